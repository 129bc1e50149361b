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


def sphere(rows: int, width: int, seed: int = 0) -> np.ndarray:
    """Rows of q = 1."""
    x = np.random.default_rng(seed).standard_normal((rows, width))
    return x * np.sqrt(width) / np.linalg.norm(x, axis=1)[:, None]


def test_a_bias_counts_in_the_standard_parameterisation() -> None:
    """There its kernel is 1 even at sigma_b = 0, so that the kernel is not homogeneous."""
    network = kc.chain(
        L.Input(features=8),
        L.Affine(50, sigma_w=ROOT2),
        L.Nonlinear("relu"),
        L.Affine(1, sigma_w=ROOT2),
    )
    K = kc.ntk(network, parameterization="standard")
    x = sphere(20, 8) * np.random.default_rng(4).uniform(1, 2, 20)[:, None]
    q = (x**2).mean(axis=1)
    c = np.clip(x @ x.T / 8 / np.sqrt(q[:, None] * q), -1, 1)
    off = ~np.eye(20, dtype=bool)
    np.testing.assert_allclose(K.matrix(x)[off], K(c, q[:, None], q[None, :])[off], rtol=1e-12)


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    kc.ntk(RELU).matrix(sphere(20, 3), progress=True)
    assert "kernel: 100%" in capsys.readouterr().err


BAD = [
    (np.zeros((0, 3)), "empty"),
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
        (lambda: K.nngp.matrix(x, kind="ntk"), "is one part and only has matrices of kind 'nngp'"),
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
