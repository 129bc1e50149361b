"""Regressions on grids that hold the input 0, against linear algebra with closed-form kernels."""

from __future__ import annotations

import numpy as np
import pytest

import kcalc as kc
from tests.erf_kernels import ERF, erf_kernels

X = np.linspace(-3, 3, 7)[:, None]
Y = np.sin(X[:, 0])
NEW = np.array([[0.0], [0.4], [-5.0]])


def truth(part, ridge):
    kernel = erf_kernels(X, X)[part] + ridge * np.eye(len(X))
    cross = erf_kernels(NEW, X)[part]
    mean = cross @ np.linalg.solve(kernel, Y)
    spread = np.diag(erf_kernels(NEW, NEW)[part]) - np.einsum(
        "ij,ij->i", cross, np.linalg.solve(kernel, cross.T).T
    )
    return mean, spread


def test_gaussian_processes():
    mean, variance = truth(0, 1e-3)
    for kernel in (kc.ntk(ERF).nngp, kc.kept_kernel(kc.ntk(ERF).nngp)):
        found = kc.gaussian_process(kernel, X, Y, noise=1e-3)
        means, variances = found.mean_and_variance(NEW)
        assert means == pytest.approx(mean, rel=1e-6, abs=1e-9)
        assert variances == pytest.approx(variance, rel=1e-6)


def test_kernel_regression():
    assert kc.kernel_regression(kc.ntk(ERF), X, Y, ridge=1e-2).predict(NEW) == pytest.approx(
        truth(1, 1e-2)[0], rel=1e-8, abs=1e-10
    )


def test_training_curves_end_at_the_regression():
    curve = kc.training_curve(kc.ntk(ERF), X, Y)
    kernel = erf_kernels(X, X)[1]
    values, vectors = np.linalg.eigh(kernel)
    step = vectors @ np.diag(np.exp(-values * 2.0)) @ vectors.T
    np.testing.assert_allclose(
        curve.predict(2.0), (np.eye(len(X)) - step) @ Y, rtol=1e-7, atol=1e-9
    )


def test_kernels_for_scikit_learn():
    pytest.importorskip("sklearn")
    kernel = kc.sklearn_kernel(ERF, kind="nngp")
    np.testing.assert_allclose(kernel(X), erf_kernels(X, X)[0], rtol=1e-11)
    np.testing.assert_allclose(kernel.diag(X), np.diag(erf_kernels(X, X)[0]), rtol=1e-11)
    moved = kc.sklearn_kernel(ERF, kind="nngp", sigma_w=1.5)
    _, slope = moved(X, eval_gradient=True)
    assert np.isfinite(slope).all() and slope.shape == (7, 7, 1)
