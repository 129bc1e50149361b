"""Kernel matrices against 60-digit recursions, and what the engine promises.

Near-duplicates, norms, precision, errors.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from refusals import refused

import kcalc as kc

L = kc.layers
MP = mpmath.mp.clone()
MP.dps = 60
ROOT2 = 2**0.5
RELU = kc.architectures.vanilla(6, "relu", sigma_w=ROOT2)
HARD = kc.architectures.vanilla(1, "hard_tanh")
TANH = kc.architectures.vanilla(3, "tanh", sigma_w=1.5)


def relu_kernels(theta: mpmath.mpf, depth: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """(NNGP, NTK) of ``vanilla(depth, "relu", sigma_w=sqrt 2)`` at q = 1, from the arc-cosine
    kernels.
    """
    weight = MP.mpf(ROOT2) ** 2
    q, k, t = weight, weight * MP.cos(theta), weight * MP.cos(theta)
    for _ in range(depth):
        angle = theta
        ratio = (MP.sin(angle) + (MP.pi - angle) * MP.cos(angle)) / MP.pi
        slope = (MP.pi - angle) / (2 * MP.pi)
        gap = 2 * MP.sin(angle / 2) ** 2 - (MP.sin(angle) - angle * MP.cos(angle)) / MP.pi
        q, k, t = weight * q / 2, weight * q / 2 * ratio, weight * slope * t
        t += k
        theta = 2 * MP.asin(MP.sqrt(gap / 2))
    return k, t


def mp_angle(x: np.ndarray, y: np.ndarray) -> mpmath.mpf:
    """The angle of two float rows, exact to 50 digits."""
    one, two = [MP.mpf(float(v)) for v in x], [MP.mpf(float(v)) for v in y]
    long, wide = (MP.sqrt(sum(v * v for v in row)) for row in (one, two))
    return 2 * MP.asin(
        MP.sqrt(sum((a / long - b / wide) ** 2 for a, b in zip(one, two, strict=True))) / 2
    )


def sphere(rows: int, width: int, seed: int = 0) -> np.ndarray:
    """Rows of q = 1."""
    x = np.random.default_rng(seed).standard_normal((rows, width))
    return x * np.sqrt(width) / np.linalg.norm(x, axis=1)[:, None]


@pytest.mark.parametrize(("depth", "tolerance"), [(1, 1e-13), (100, 1e-13), (1000, 1e-12)])
def test_tables_against_mpmath_for_relu(depth: int, tolerance: float) -> None:
    table = kc.ntk(kc.architectures.vanilla(depth, "relu", sigma_w=ROOT2)).table()
    assert table.error_bound < 1e-10
    for theta in (3.0, 1.6, 1.0, 0.3, 0.02, 1e-3, 1e-5, 1e-8):
        exact = relu_kernels(MP.mpf(theta), depth)
        got = table.at_gap(2 * np.sin(theta / 2) ** 2)
        for value, truth in zip(got, exact, strict=True):
            floor = 0.01 * float(table.at_gap(0.0)[0])
            assert abs(float(MP.mpf(float(value)) - truth)) < tolerance * max(
                float(truth), floor
            ), theta


def test_a_cluster_of_near_duplicates() -> None:
    """All rows within a small angle, and a second cluster opposite."""
    width, spread = 16, 1e-6
    x = sphere(1, width)[0] + spread * np.random.default_rng(1).standard_normal((90, width))
    x[60:] *= -1
    x[10] = x[11]
    x[12] = x[13] + 1e-3 * spread * x[14]
    ntk = kc.ntk(RELU).matrix(x, q=1.0)
    for i, j in [(0, 1), (3, 40), (10, 11), (12, 13), (5, 59), (0, 70), (61, 62), (12, 80)]:
        truth = relu_kernels(mp_angle(x[i], x[j]), 6)[1]
        assert abs(float(ntk[i, j] / truth - 1)) < 1e-12, (i, j)


def test_a_bias_counts_in_the_standard_parameterisation() -> None:
    """There its kernel is 1 even at sigma_b = 0, so that the kernel is not homogeneous."""
    network = kc.chain(
        L.Input(features=8),
        L.Affine(50, sigma_w=ROOT2),
        L.Nonlinear("relu"),
        L.Affine(1, sigma_w=ROOT2),
    )
    K = kc.ntk(network, parameterization="standard")
    x = sphere(9, 8) * np.random.default_rng(4).uniform(1, 2, 9)[:, None]
    np.testing.assert_allclose(K.matrix(x), K.matrix(x, method="pairs"), rtol=1e-12)


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    kc.ntk(RELU).matrix(sphere(20, 3), progress=True)
    assert "kernel: 100%" in capsys.readouterr().err


BAD = [
    (np.ones(3), "two axes"),
    (np.zeros((0, 3)), "empty"),
    (np.array([[1.0, np.nan]]), r"X\[0, 1\] is nan"),
    (np.array([[1j, 2.0]]), "real numbers"),
    ([[1.0], [1.0, 2.0]], "equal length"),
    (np.full((2, 2), 1e200), "rescale"),
]


@pytest.mark.parametrize(("data", "message"), BAD, ids=[m for _, m in BAD])
def test_bad_data(data: object, message: str) -> None:
    with refused(message):
        kc.ntk(RELU).matrix(data)


def test_bad_options() -> None:
    x = sphere(5, 4)
    K, T = kc.ntk(RELU), kc.ntk(TANH)
    norms = x * np.arange(1, 6)[:, None] ** 0.5
    cases = [
        (lambda: K.matrix(x, np.ones((3, 5))), "same number of features, got 4 and 5"),
        (lambda: K.matrix(x, kind="ntkk"), "unknown kind"),
        (
            lambda: K.nngp.matrix(x, kind="ntk"),
            "is one part of a kernel and has only matrices of kind 'nngp'",
        ),
        (lambda: K.matrix(x, method="fast"), "unknown method"),
        (lambda: K.matrix(x, backend="torch"), "unknown backend"),
        (lambda: K.matrix(x, q=-1), "must be > 0"),
        (lambda: K.matrix(x, block_rows=0), "block_rows"),
        (lambda: K.matrix(x, dtype=np.int32), "float64 or float32"),
        (lambda: K.matrix(x, dtype="nope"), "float64 or float32"),
        (lambda: K.matrix(x, out=np.zeros((4, 4))), "shape"),
        (lambda: K.matrix(x, out=7), "path or a NumPy array"),
        (lambda: K.matrices(x, out="one.npy"), "2 paths"),
        (lambda: T.matrix(norms, method="angle"), "general recursion"),
        (lambda: kc.ntk(HARD).matrix(norms, backend="jax"), "different norms"),
        (
            lambda: kc.ntk(
                kc.chain(L.Input(features=3), L.Affine(), L.Nonlinear("relu"), L.Affine())
            ).matrix(x),
            "3 features",
        ),
    ]
    for call, message in cases:
        with refused(message):
            call()
