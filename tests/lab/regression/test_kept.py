"""Kernels that keep their matrices, and ridges on one matrix."""

from __future__ import annotations

import numpy as np
import pytest

import kcalc as kc

THETA = kc.ntk(kc.architectures.vanilla(2, "erf"))
RANDOM = np.random.default_rng(0)
X, NEW = RANDOM.normal(size=(60, 5)), RANDOM.normal(size=(7, 5))
Y = np.sin(X[:, 0])


def test_the_oldest_matrices_are_dropped_and_none_can_be_written_to() -> None:
    kept = kc.kept_kernel(THETA, keep=60 * 60 * 8)
    for data in (X, NEW, X):
        found = kept.matrix(data)
        with pytest.raises(ValueError, match="read-only"):
            found[0, 0] = 1.0
    assert [record.shape for record in kept.records] == [(60, 60), (7, 7), (60, 60)]


def test_a_gaussian_process_on_a_kept_kernel() -> None:
    kept = kc.gaussian_process(kc.kept_kernel(THETA.nngp, q=1.0), X, Y, noise=0.1)
    rows = X / np.sqrt((X**2).mean(axis=1, keepdims=True))
    plain = kc.gaussian_process(THETA.nngp, rows, Y, noise=0.1)
    new = NEW / np.sqrt((NEW**2).mean(axis=1, keepdims=True))
    for found, expected in zip(
        kept.mean_and_variance(NEW), plain.mean_and_variance(new), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
