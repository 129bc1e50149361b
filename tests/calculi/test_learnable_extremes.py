"""Differentiable kernels in odd corners.

Shared Gaussians, fusions, precision without x64, near-duplicates, bad parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc import activation, chain, learnable_kernel, ntk, residual
from kcalc.activations.traced import cross, cross_drop, traced
from kcalc.calculi.learnable_parameters import common_level, gaps_of
from kcalc.network.layers import Affine, Input, Nonlinear, Sum

jax = pytest.importorskip("jax")
jnp = jax.numpy
N = Nonlinear
RNG = np.random.default_rng(11)
X = RNG.normal(size=(4, 5))


def parallel(first: str, second: str, deeper: bool = False) -> kc.Network:
    """first(h) + second(h), or first(h) + second(h') with h' = h plus an Affine of its own."""
    deep = [("g", Affine(sigma_w=1.2), "x"), ("m", Sum((0.8, 0.6)), "h g")]
    return wired(
        ("h", Affine(sigma_b=0.3)),
        *(deep if deeper else []),
        ("b", N(second)),
        ("a", N(first), "h"),
        ("s", Sum(), "a b"),
        ("o", Affine()),
    )


def dense(*activations: str) -> kc.Network:
    """Activations between two Affine layers."""
    return chain(Input(), Affine(), *map(N, activations), Affine())


def beside(name: str) -> kc.Network:
    """An activation beside its input."""
    return chain(Input(), Affine(), residual(N(name), shortcut_weight=0.6), Affine())


NETS = {
    "tanh beside its input": beside("tanh"),
    "relu beside its input": beside("relu"),
    "two of one Gaussian": parallel("tanh", "sin"),
    "a kink of one Gaussian": parallel("relu", "tanh"),
    "dependent Gaussians": parallel("tanh", "erf", deeper=True),
    "sin after tanh": dense("tanh", "sin"),
    "tanh after relu": dense("relu", "tanh"),
    "relu after tanh": dense("tanh", "relu"),
}


@pytest.mark.parametrize(
    "name",
    [n if n == "sin after tanh" else pytest.param(n, marks=pytest.mark.slow) for n in NETS],
)
def test_shared_and_fused_activations(name: str) -> None:
    net = NETS[name]
    kernel, K = learnable_kernel(net), ntk(net)
    q = (X**2).mean(axis=1)
    c = np.clip(X @ X.T / 5 / np.sqrt(np.outer(q, q)), -1, 1)
    np.fill_diagonal(c, 1.0)
    truth = K.nngp(c, q[:, None], q[None, :]), K(c, q[:, None], q[None, :])
    for params in ({}, kernel.init()):
        for one, want in zip(kernel(params, X, kind="both"), truth, strict=True):
            assert one.dtype == np.float64
            np.testing.assert_allclose(one, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("first", "second"), [("tanh", "sin"), pytest.param("relu", "tanh", marks=pytest.mark.slow)]
)
def test_cross_moments_against_a_plane_rule(first: str, second: str) -> None:
    """Relu kinks at 0, where the rule is split; tanh and sin are smooth."""
    f, g = (activation(name).numeric(0) for name in (first, second))
    q1, q2, top, loss = 0.8, 1.3, 0.9, 0.25
    t, w = np.polynomial.legendre.leggauss(40)
    middle = np.arange(-11.25, 12, 1.5)
    z = (middle[:, None] + 0.75 * t).ravel()  # split at 0
    w = np.tile(0.75 * w, len(middle)) * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    x, y = np.meshgrid(z, z, indexing="ij")

    def at(c: float) -> float:
        other = g(np.sqrt(q2) * (c * x + np.sqrt(1 - c * c) * y))
        return float(w @ (f(np.sqrt(q1) * x) * other) @ w)

    with jax.enable_x64(True):
        phi, psi = (traced(activation(name), {}) for name in (first, second))
        sizes = jnp.asarray(q1), jnp.asarray(q2)
        whole, drop, slope = cross_drop(phi, psi, *sizes, jnp.asarray(top), jnp.asarray(loss))
        same, lost, _ = cross_drop(phi, psi, *sizes, None, jnp.asarray(0.35))
        assert abs(float(cross(phi, psi, *sizes, jnp.asarray(0.3))) - at(0.3)) < 1e-11
    assert abs(float(whole) - at(top)) < 1e-11
    assert abs(float(whole - drop) - at(top - loss)) < 1e-11
    assert abs(float(slope) - (at(top - loss + 1e-4) - at(top - loss - 1e-4)) / 2e-4) < 1e-7
    assert abs(float(same - lost) - at(0.65)) < 1e-11


@pytest.mark.parametrize(
    "name",
    ["relu", *(pytest.param(name, marks=pytest.mark.slow) for name in ("hard_tanh", "selu"))],
)
def test_gradients_of_kinked_maps_are_differences(name: str) -> None:
    def total(b: Any, a: Any, e: Any, gap: Any, q1: Any, q2: Any) -> Any:
        maps = traced(activation(name), {"input_shift": b, "input_scale": a, "output_shift": e})
        value, slope = maps.taylor(gap, q1, q2, False)
        return jnp.sum(value * jnp.array([1.0, 2.0]) + slope)

    with jax.enable_x64(True):
        given = [
            jnp.asarray(v, jnp.float64)
            for v in (0.3, 1.2, -0.2, [0.3, 1.2], [0.8, 1.1], [0.9, 0.7])
        ]
        total = jax.jit(total)
        slopes = jax.jit(jax.grad(total, argnums=tuple(range(6))))(*given)
        for i, slope in enumerate(slopes):
            up, down = ([*given[:i], given[i] + h, *given[i + 1 :]] for h in (1e-5, -1e-5))
            assert abs(float(total(*up) - total(*down)) / 2e-5 - float(jnp.sum(slope))) < 1e-7


def test_constants_of_a_fused_kink_are_left_alone() -> None:
    kernel = learnable_kernel(NETS["relu after tanh"])
    assert kernel.init()["constants"] == {}
    with refused(r"nonlinear_2.*kinks.*omit its constants"):
        kernel({"constants": {"nonlinear_2": {"input_scale": 1.0}}}, X)


BAD = [
    ([1], "mapping"),
    ({"sigma_w": "a"}, "single real number"),
    ({"sigma_w": 0.0}, "must be > 0"),
    ({"sigma_w": -1.0}, "must be > 0"),
    ({"sigma_w": {"affine_1": [1, 2]}}, "sigma_w of affine_1"),
    ({"sigma_b": -0.1}, "must be >= 0"),
    ({"constants": 3}, "nonlinear layer"),
    ({"constants": {"nonlinear_1": 5}}, "constants of nonlinear_1"),
    ({"constants": {"nonlinear_1": {"input_scale": 0.0}}}, "must not be zero"),
]


test_parameters_that_make_no_sense = refusals(
    BAD, lambda params: learnable_kernel(dense("erf"))(params, X)
)


def test_results_that_are_not_finite_are_refused() -> None:
    kernel = learnable_kernel(dense("tanh"))
    with refused(r"not finite.*tanh"):
        kernel({}, 1e6 * X)
    with refused("zero or not finite"):
        kernel({}, 1e200 * X)
    for rows in ([[1, 2], [3]], "text", X > 0, 1j * X, None):
        with refused("X must"):
            kernel({}, rows)


# -- around kernels --------------------------------------------------------------------------------


def test_certified_kernels_say_what_is_in_the_way() -> None:
    with refused("NTK.*'affine_2'.*q1.*10000.0.*q2.*0.0001"):
        ntk(dense("softplus")).ball(-0.6, 1e4, 1e-4, digits=12)
    with refused(r"1.*e\+30.*fast.*smaller"):
        ntk(dense("tanh")).ball(0.3, 1e30)
    with refused("no certified enclosure") as caught:
        ntk(parallel("tanh", "sin")).ball(0.3)
    assert "assume_independent" not in str(caught.value)


def test_messages(tmp_path: Any) -> None:
    K = ntk(kc.architectures.vanilla(2))
    rows = RNG.normal(size=(9, 5))
    with refused("separate condition numbers"):
        K.condition_number(rows, kind="both")
    with refused("pass the kernel itself"):
        kc.kernel_regression(K.matrix(rows), rows, np.ones(9))
    K.matrix(rows, out=tmp_path / "theta", block_rows=4)
    with refused("block_rows=4"):
        K.matrix(rows, out=tmp_path / "theta", block_rows=3)
    (tmp_path / "theta.npy.progress.json").write_text("[]")
    with refused("record.*finished"):
        K.matrix(rows, out=tmp_path / "theta")
    with refused("near x = 1;"):
        activation(lambda v: np.minimum(np.maximum(v, -0.5), 1))


def test_networks_and_targets_that_cannot_be_learnt() -> None:
    outputs = [("x", Input()), ("a", Affine()), ("b", Affine(), "x")]
    with refused("input.*output"):
        learnable_kernel(wired(*outputs))
    with refused("network.*symbols"):
        learnable_kernel(
            chain(Input(), Affine(sigma_w=sp.Symbol("s", positive=True)), N("erf"), Affine())
        )
    kernel = learnable_kernel(dense("erf"))
    with refused(r"\(N,\).*\(N.*k\)"):
        kernel.log_marginal_likelihood({}, X, 1.0, 0.1)
    with refused("3.*rows"):
        kernel.log_marginal_likelihood({}, X, np.ones(3), 0.1)
    with refused("unknown nonlinear layer 'affine_1'"):
        kernel({"constants": {"affine_1": {"input_scale": 2.0}}}, X)


def test_gaps_of_two_sets_have_no_diagonal() -> None:
    first, second = X[:3], np.concatenate([X[:1], -X[1:2], 2 * X[2:3]])
    u, v = (rows / np.linalg.norm(rows, axis=1)[:, None] for rows in (first, second))
    found = gaps_of(first, second, False)
    np.testing.assert_allclose(found, 1 - u @ v.T, atol=1e-15)
    assert found[0, 0] < 1e-30 and found[1, 1] == 2.0 and found[2, 2] < 1e-30
    with jax.enable_x64(True):
        traced = jax.jit(lambda one, two: gaps_of(one, two, False))(first, second)
    np.testing.assert_allclose(traced, found, atol=1e-15)


def test_the_level_of_rows_under_a_trace_is_what_the_caller_says() -> None:
    sizes = [jnp.asarray([2.5, 2.5])]
    assert common_level(sizes, True, True) == common_level(sizes, None, True) == 2.5
    assert float(jax.jit(lambda s: common_level([s], True, True))(sizes[0])) == 2.5
    seen: list[Any] = []
    jax.jit(lambda s: seen.append(common_level([s], None, True)) or s)(sizes[0])
    assert seen == [None]
