"""Differentiable kernels: values against the NumPy calculus, gradients against differences, a
likelihood against SciPy.
"""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused
from scipy.stats import multivariate_normal

import kcalc as kc
from kcalc import learnable_kernel

jax = pytest.importorskip("jax")
jnp = jax.numpy
A = kc.architectures
RNG = np.random.default_rng(5)
X = RNG.normal(size=(6, 5))


ERF = A.vanilla(2, activation="erf", sigma_w=1.3)


def test_a_likelihood_can_be_climbed() -> None:
    net, truth = A.vanilla(1, activation="erf", sigma_w=1.3), RNG.normal(size=6)
    kernel = learnable_kernel(net)
    q = (X**2).mean(axis=1)
    c = np.clip(X @ X.T / 5 / np.sqrt(np.outer(q, q)), -1, 1)
    np.fill_diagonal(c, 1.0)
    covariance = kc.ntk(net).nngp(c, q[:, None], q[None, :]) + 0.1 * np.eye(6)
    with jax.enable_x64(True):
        found = float(kernel.log_marginal_likelihood({}, jnp.asarray(X), truth, 0.1))
        assert abs(found - multivariate_normal(np.zeros(6), covariance).logpdf(truth)) < 1e-8
        climb = jax.jit(
            jax.value_and_grad(
                lambda p: kernel.log_marginal_likelihood(p, jnp.asarray(X), truth, 0.1)
            )
        )
        params = jax.tree.map(jnp.asarray, kernel.init(shared=True))
        params.pop("constants")
        before, slope = climb(params)
        step = 1e-5
        after, _ = climb({name: params[name] + step * slope[name] for name in params})
        square = sum(float(part) ** 2 for part in slope.values())
        assert float(after - before) == pytest.approx(step * square, rel=1e-3)


def test_rows_against_other_rows() -> None:
    net = A.vanilla(1, activation="erf", sigma_w=1.3)
    found = learnable_kernel(net)({}, X[:3], X[:2])
    np.testing.assert_allclose(found, np.asarray(kc.ntk(net).matrix(X[:3], X[:2])), rtol=1e-6)


def test_bad_input_is_named() -> None:
    kernel = learnable_kernel(ERF)
    rows = jnp.asarray(X)
    with refused():
        kernel({}, jnp.zeros((3, 4)))
    with refused("X and Y .* features, got 5 and 4"):
        kernel({}, rows, jnp.ones((2, 4)))
    with refused(r"shape \(N, d\), got shape \(5,\)"):
        kernel({}, rows[0])
    with refused("uniform"):
        kernel({}, rows, uniform=True)
    with refused("kind"):
        kernel({}, rows, kind="tangent")
    with refused("jumps"):
        learnable_kernel(A.vanilla(2, activation="sign"))
