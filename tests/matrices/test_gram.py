"""Kernel matrices against 60-digit recursions, and what the engine promises.

Near-duplicates, norms, precision, errors.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.calculi.homogeneity import degrees, is_odd
from kcalc.calculi.powers import DeepKernel
from kcalc.fields.gaps import Gap
from kcalc.matrices.gram.rows import RowSet, cluster_distances, distances
from kcalc.matrices.gram.tables import tabulate

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


def erf_kernels(theta: mpmath.mpf, depth: int, sigma: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The same for erf."""
    weight = MP.mpf(sigma) ** 2
    q, k = weight, weight * MP.cos(theta)
    t = k
    for _ in range(depth):
        slope = 4 / MP.pi / MP.sqrt((1 + 2 * q) ** 2 - (2 * k) ** 2)
        k = weight * 2 / MP.pi * MP.asin(2 * k / (1 + 2 * q))
        q = weight * 2 / MP.pi * MP.asin(2 * q / (1 + 2 * q))
        t = weight * slope * t + k
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


@pytest.mark.parametrize(
    ("depth", "tolerance"), [(1, 1e-13), (10, 1e-13), (100, 1e-13), (1000, 1e-12)]
)
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


@pytest.mark.parametrize(("depth", "sigma"), [(3, 1.5), (100, 1.0), (100, 1.5)])
def test_tables_against_mpmath_for_erf(depth: int, sigma: float) -> None:
    """sigma_w = 1.5 is the chaotic phase; the error allowed there is that of a rounded angle."""
    table = kc.ntk(kc.architectures.vanilla(depth, "erf", sigma_w=sigma)).table()
    for theta in (1.0, 0.3, 0.02, 1e-3, 1e-5, 1e-8):
        exact, moved = (
            erf_kernels(MP.mpf(theta) * f, depth, sigma) for f in (1, 1 + MP.mpf(10) ** -20)
        )
        got = table.at_gap(2 * np.sin(theta / 2) ** 2)
        for value, truth, other in zip(got, exact, moved, strict=True):
            condition = max(1.0, abs(float((other - truth) / truth * 10**20)))
            # an NNGP comes as 1 - u
            floor = 0.01 * float(table.at_gap(0.0)[0]) if truth == exact[0] else 0.0
            assert abs(float(MP.mpf(float(value)) - truth)) < 1e-12 * condition * max(
                float(abs(truth)), floor
            ), (theta, condition)


def test_duplicates_opposites_and_rows_in_between_against_mpmath() -> None:
    x = sphere(12, 5)
    x[1] = x[0]
    x[2] = x[0] + 1e-8 * x[5]
    x[3] = -x[0] + 1e-7 * x[6]
    x[4] = 3.7 * x[0]
    x[7] = 0.3 * (x[0] + 1e-5 * x[8])
    nngp, ntk = kc.ntk(RELU).matrices(x)
    norms = np.sqrt((x**2).mean(axis=1))
    for i in range(8):
        for j in range(8):
            exact = relu_kernels(mp_angle(x[i], x[j]), 6)
            size = MP.mpf(norms[i]) * norms[j]
            assert abs(float(nngp[i, j] / (exact[0] * size) - 1)) < 1e-13
            assert abs(float(ntk[i, j] / (exact[1] * size) - 1)) < (
                1e-13 if 3 not in (i, j) or i == j else 1e-10
            ), (i, j)
    assert np.array_equal(ntk, ntk.T)
    assert ntk[0, 1] == ntk[0, 0] == ntk[1, 1]


@pytest.mark.parametrize("spread", [1e-3, 1e-6])
def test_a_cluster_of_near_duplicates(spread: float) -> None:
    """All rows within a small angle, and a second cluster opposite."""
    width = 16
    x = sphere(1, width)[0] + spread * np.random.default_rng(1).standard_normal((90, width))
    x[60:] *= -1
    x[10] = x[11]
    x[12] = x[13] + 1e-3 * spread * x[14]
    ntk = kc.ntk(RELU).matrix(x, q=1.0)
    for i, j in [(0, 1), (3, 40), (10, 11), (12, 13), (5, 59), (0, 70), (61, 62), (12, 80)]:
        truth = relu_kernels(mp_angle(x[i], x[j]), 6)[1]
        assert abs(float(ntk[i, j] / truth - 1)) < 1e-12, (i, j)


def test_distances_of_a_whole_block_are_those_of_its_pairs() -> None:
    width, x = 9, sphere(40, 9)
    x[:30] = x[0] * np.linspace(1 - 1e-5, 1 + 1e-5, 30)[:, None] + 1e-4 * np.random.default_rng(
        2
    ).standard_normal((30, width))
    rows = RowSet.of(x)
    upper = (rows.unit @ rows.unit.T) < 0
    near = np.abs(rows.unit @ rows.unit.T) > 0.99
    whole, found = cluster_distances(rows, rows, slice(0, 40), slice(0, 40), near, upper)
    i, j = np.nonzero(found)
    single = distances(rows, rows, i, j, upper[i, j])
    assert found.sum() > 700
    np.testing.assert_allclose(whole[found], single, rtol=1e-11)
    for a, b in [(3, 17), (0, 29), (8, 9)]:
        truth = 2 * MP.sin(mp_angle(x[a], x[b]) / 2) ** 2
        assert (
            abs(
                float(
                    distances(rows, rows, np.array([a]), np.array([b]), upper[[a], [b]])[0] / truth
                    - 1
                )
            )
            < 1e-14
        )


@pytest.mark.parametrize(
    "network",
    [RELU, TANH, kc.architectures.vanilla(3, "softplus", sigma_w=1.2)],
    ids=["relu", "tanh", "softplus"],
)
def test_matrices_are_the_kernels_of_pairs(network: kc.Network) -> None:
    K = kc.ntk(network)
    random = np.random.default_rng(3)
    rows = 70 if network is RELU else 20
    x, y = sphere(rows, 8), sphere(12, 8, 1)
    for a, b in (
        (x, None),
        (x, y),
        (2 * x, 2 * y),
        (x * random.choice([0.5, 1.0, 2.0], rows)[:, None], y),
        (x * random.uniform(1, 2, rows)[:, None], y),
    ):
        other = a if b is None else b
        q1, q2 = (a**2).mean(axis=1)[:, None], (other**2).mean(axis=1)[None, :]
        c = np.clip(a @ other.T / 8 / np.sqrt(q1 * q2), -1, 1)
        if b is None:
            np.fill_diagonal(c, 1)
        np.testing.assert_allclose(K.matrix(a, b), K(c, q1, q2), rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(K.nngp.matrix(a, b), K.nngp(c, q1, q2), rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(
            K.matrix(a, b, method="pairs"), K(c, q1, q2), rtol=1e-11, atol=1e-12
        )
    node = network.nodes_of(L.Affine)[1]
    np.testing.assert_allclose(
        K.layers[node].matrix(x), K.layers[node](np.clip(x @ x.T / 8, -1, 1)), rtol=1e-7
    )


def test_kinds_blocks_and_types() -> None:
    x = sphere(101, 6)
    K = kc.ntk(RELU)
    nngp, ntk = K.matrices(x)
    assert np.array_equal(K.matrix(x, kind="both").nngp, nngp)
    assert np.array_equal(K.matrix(x, kind="nngp"), K.nngp.matrix(x))
    for rows in (1, 7, 50, 101, 1000):
        np.testing.assert_allclose(K.matrix(x, block_rows=rows), ntk, rtol=1e-13)
        np.testing.assert_allclose(
            K.matrix(x, x[:40].copy(), block_rows=rows), ntk[:, :40], rtol=1e-13
        )
    np.testing.assert_allclose(K.matrix(x, memory=1000), ntk, rtol=1e-13)
    single = K.matrix(x.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(
        single, K.matrix(x.astype(np.float32).astype(np.float64), q=1.0), rtol=3e-6
    )
    assert K.matrix(x, dtype=np.float32).dtype == np.float32
    counts = np.arange(12).reshape(4, 3) + 1
    np.testing.assert_allclose(K.matrix(counts), K.matrix(counts * 1.0))
    np.testing.assert_allclose(K.matrix(5 * x, q=1.0), ntk, rtol=1e-13)
    np.testing.assert_allclose(K.matrix(x / 7), ntk / 49, rtol=1e-13)
    out = np.zeros((101, 101))
    assert K.matrix(x, out=out) is out
    np.testing.assert_array_equal(out, ntk)


DEEP = {
    "relu at sigma_w = 1": kc.architectures.vanilla(40, "relu", sigma_w=1),
    "tanh, shaped": kc.shape(
        kc.architectures.vanilla(100), activation="tanh", method="dks", zeta=1.5
    ).network,
    "tanh with biases": kc.chain(
        *[L.Affine(sigma_w=1.3, sigma_b=0.4), L.Nonlinear("tanh")] * 150, L.Affine()
    ),
    "resnet": kc.architectures.rescaled_resnet(30, shortcut_weight=0.8, activation="relu"),
    "softplus": kc.architectures.vanilla(40, "softplus", sigma_w=0.7),
}


@pytest.mark.parametrize("name", DEEP)
def test_powers_of_blocks_are_the_layers_one_by_one(name: str) -> None:
    network = DEEP[name]
    K = kc.ntk(network)
    deep = DeepKernel(K.reading, 1.0, None)
    gap = np.concatenate([np.linspace(0, 2, 41)[:-1], np.logspace(-30, -1, 30)])
    found = deep(Gap.of(gap, 2 - gap))
    assert deep._powers, "nothing was leapt over"
    (node,) = network.inputs
    ((nngp, ntk),) = K.reading.values(
        {node: Gap.of(gap, 2 - gap)}, {node: np.asarray(1.0)}, None
    ).values()
    np.testing.assert_allclose(
        found[0], np.broadcast_to(nngp, gap.shape), rtol=1e-12, atol=3e-14 * found[0].max()
    )
    np.testing.assert_allclose(
        found[1], np.broadcast_to(ntk, gap.shape), rtol=1e-12, atol=3e-14 * found[1].max()
    )


def test_structure_of_networks() -> None:
    assert degrees(RELU)[RELU.outputs[0]] == 1
    assert degrees(TANH)[TANH.outputs[0]] is None
    biased = kc.chain(L.Affine(sigma_b=0.1), L.Nonlinear("relu"), L.Affine())
    assert degrees(biased)[biased.outputs[0]] is None
    normed = kc.chain(L.LayerNorm(), L.Affine(sigma_b=0.1), L.Nonlinear("tanh"), L.Affine())
    assert degrees(normed)[normed.outputs[0]] == 0
    assert is_odd(TANH) and not is_odd(RELU) and not is_odd(biased)


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


def test_the_stated_error_is_not_exceeded() -> None:
    random = np.random.default_rng(5)
    for function in (
        lambda u: np.stack([1 - u + 0 * u, 3 - np.sqrt(u)]),
        lambda u: np.stack([np.exp(-u), 1 / (1e-6 + u)]),
    ):
        table = tabulate(lambda gap, f=function: f(np.asarray(gap)))
        gap = np.concatenate([random.uniform(0, 2, 2000), 2 * 10.0 ** random.uniform(-20, 0, 2000)])
        found, exact = np.stack(table.at_gap(gap)), function(gap)
        assert (
            np.abs(found - exact) / np.maximum(np.abs(exact), np.abs(exact[0].max()))
        ).max() <= table.error_bound


def test_norms_that_are_close_to_their_neighbours_are_not_all_one() -> None:
    """Many norms, each within single-precision rounding of the next, but not of the last."""
    x = (sphere(300, 4) * np.linspace(1, 1.0006, 300)[:, None]).astype(np.float32)
    K = kc.ntk(TANH)
    y = x[[0, -1]].astype(np.float64)
    q = (y**2).mean(axis=1)
    c = np.clip(y[0] @ y[1] / 4 / np.sqrt(q[0] * q[1]), -1, 1)
    np.testing.assert_allclose(K.matrix(x, x[[0, -1]])[0, 1], K(c, q[0], q[1]), rtol=1e-6)
    np.testing.assert_allclose(kc.ntk(RELU).matrix(x)[-1, -1], 14 * q[1], rtol=1e-6)


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    kc.ntk(RELU).matrix(sphere(20, 3), progress=True)
    assert "kernel: 100%" in capsys.readouterr().err


BAD = [
    (np.ones(3), "two axes"),
    (np.zeros((0, 3)), "empty"),
    (np.array([[1.0, np.nan]]), r"X\[0, 1\] is nan"),
    (np.array([["a", "b"]]), "real numbers"),
    (np.array([[1j, 2.0]]), "real numbers"),
    ([[1.0], [1.0, 2.0]], "different lengths"),
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


def test_many_norms_are_interpolated_to_the_general_recursion() -> None:
    random = np.random.default_rng(5)
    x = random.normal(size=(48, 6)) * random.uniform(0.6, 1.5, size=(48, 1))
    x[7] = x[3]
    x[9] = 1.3 * x[4] + 1e-6 * x[5]
    net = kc.chain(
        kc.layers.Input(),
        kc.layers.Affine(sigma_w=1.3, sigma_b=0.2),
        kc.layers.Nonlinear("tanh"),
        kc.layers.Affine(),
        kc.layers.Nonlinear("gelu"),
        kc.layers.Affine(sigma_b=0.1),
    )
    K = kc.ntk(net)
    found = K.matrices(x)
    exact = K.matrices(x[:14], x, method="pairs")
    for fast, slow in ((found.ntk[:14], exact.ntk), (found.nngp[:14], exact.nngp)):
        np.testing.assert_allclose(fast, slow, rtol=0, atol=3e-12 * np.abs(slow).max())
    np.testing.assert_array_equal(found.ntk, found.ntk.T)
    assert found.ntk[3, 7] == pytest.approx(found.ntk[3, 3], rel=1e-12)


def test_only_smooth_activations_are_interpolated_in_the_norms() -> None:
    assert kc.ntk(kc.architectures.vanilla(1, "gelu"))._on_rows.kernel.smooth
    assert not kc.ntk(kc.architectures.vanilla(1, "relu6"))._on_rows.kernel.smooth
