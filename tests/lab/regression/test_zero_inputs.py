"""Regressions on grids that hold the input 0, against linear algebra with closed-form kernels."""

from __future__ import annotations

import numpy as np
import pytest

import kcalc as kc
from kcalc import ntk
from tests.erf_kernels import ERF, erf_kernels

X = np.linspace(-3, 3, 7)[:, None]
Y = np.sin(X[:, 0])
NEW = np.array([[0.0], [0.4], [-5.0]])


def test_gaussian_processes():
    cross, kernel = erf_kernels(NEW, X)[0], erf_kernels(X, X)[0] + 1e-3 * np.eye(len(X))
    mean = cross @ np.linalg.solve(kernel, Y)
    variance = np.diag(erf_kernels(NEW, NEW)[0] - cross @ np.linalg.solve(kernel, cross.T))
    for kernel in (ntk(ERF).nngp, kc.kept_kernel(ntk(ERF).nngp)):
        found = kc.gaussian_process(kernel, X, Y, noise=1e-3)
        means, variances = found.mean_and_variance(NEW)
        assert means == pytest.approx(mean, rel=1e-6, abs=1e-9)
        assert variances == pytest.approx(variance, rel=1e-6)
