"""Differentiable kernels in odd corners.

Shared Gaussians, fusions, precision without x64, near-duplicates, bad parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc import activation, chain, learnable_kernel, ntk
from kcalc.activations.traced import traced
from kcalc.calculi.learnable_parameters import common_level, gaps_of
from kcalc.network.layers import Affine, Input, Nonlinear, Sum

jax = pytest.importorskip("jax")
jnp = jax.numpy
N = Nonlinear
RNG = np.random.default_rng(11)
X = RNG.normal(size=(4, 5))


def parallel(first: str, second: str, deeper: bool = False) -> kc.Network:
    """h + first(h) + second(h), or second of h plus an Affine of its own."""
    deep = [("g", Affine(sigma_w=1.2), "x"), ("m", Sum((0.8, 0.6)), "h g")]
    return wired(
        ("h", Affine(sigma_b=0.3)),
        *(deep if deeper else []),
        ("b", N(second)),
        ("a", N(first), "h"),
        ("s", Sum(), "a b h"),
        ("o", Affine()),
    )


def dense(*activations: str) -> kc.Network:
    """Activations between two Affine layers."""
    return chain(Input(), Affine(), *map(N, activations), Affine())


NETS = {
    "two of one Gaussian": parallel("tanh", "sin"),
    "a kink of one Gaussian": parallel("relu", "tanh"),
    "dependent Gaussians": parallel("tanh", "erf", deeper=True),
    "a kink of dependent Gaussians": parallel("relu", "erf", deeper=True),
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
    "name",
    ["relu", pytest.param("hard_tanh", marks=pytest.mark.slow)],
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
    ({"sigma": 1.0}, "sigma"),
    ({"sigma_w": {"zz": 1.0}}, "zz"),
    ({"sigma_w": "a"}, "single real number"),
    ({"sigma_w": {"affine_1": [1, 2]}}, "sigma_w of affine_1 .*single real number"),
    ({"sigma_w": {"affine_1": np.nan}}, "finite, got nan"),
    ({"sigma_w": 0.0}, "must be > 0"),
    ({"sigma_b": -0.1}, "must be >= 0"),
    ({"constants": 3}, "nonlinear layer"),
    ({"constants": {"nonlinear_1": 5}}, "constants of nonlinear_1"),
    ({"constants": {"affine_1": {"input_scale": 2.0}}}, "unknown nonlinear layer 'affine_1'"),
    ({"constants": {"nonlinear_1": {"sigma": 1.0}}}, "sigma"),
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
    with refused("X must"):
        kernel({}, X > 0)


# -- around kernels --------------------------------------------------------------------------------


def test_certified_kernels_say_what_is_in_the_way() -> None:
    with refused("NTK.*'affine_2'.*q1.*10000.0.*q2.*0.0001"):
        ntk(dense("softplus")).ball(-0.6, 1e4, 1e-4, digits=12)
    with refused(r"1.*e\+30.*fast.*smaller"):
        ntk(dense("tanh")).ball(0.3, 1e30)
    with refused("no certified enclosure") as caught:
        ntk(parallel("tanh", "sin")).ball(0.3)
    assert "assume_independent" not in str(caught.value)


def test_messages() -> None:
    K = ntk(kc.architectures.vanilla(2))
    with refused("separate condition numbers"):
        K.condition_number(X, kind="both")
    with refused("pass the kernel itself"):
        kc.kernel_regression(K.matrix(X), X, np.ones(4))


def test_networks_and_targets_that_cannot_be_learnt() -> None:
    with refused("input.*output"):
        learnable_kernel(wired(("a", Affine()), ("b", Affine(), "x")))
    kernel = learnable_kernel(dense("erf"))
    with refused(r"\(N,\).*\(N.*k\)"):
        kernel.log_marginal_likelihood({}, X, 1.0, 0.1)
    with refused("3.*rows"):
        kernel.log_marginal_likelihood({}, X, np.ones(3), 0.1)


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
