"""Kernels that keep their matrices, and ridges on one matrix."""

from __future__ import annotations

import numpy as np
import pytest

import kcalc as kc

THETA = kc.ntk(kc.architectures.vanilla(2, "erf"))
RANDOM = np.random.default_rng(0)
X, NEW = RANDOM.normal(size=(60, 5)), RANDOM.normal(size=(7, 5))


def test_the_oldest_matrices_are_dropped_and_none_can_be_written_to() -> None:
    kept = kc.kept_kernel(THETA, keep=60 * 60 * 8)
    for data in (X, NEW, X):
        found = kept.matrix(data)
        with pytest.raises(ValueError, match="read-only"):
            found[0, 0] = 1.0
    assert [record.shape for record in kept.records] == [(60, 60), (7, 7), (60, 60)]


def test_jax_arrays_are_not_kept() -> None:
    jnp = pytest.importorskip("jax.numpy")
    kept = kc.kept_kernel(THETA)
    found = kept.matrix(jnp.asarray(NEW))
    np.testing.assert_allclose(found, THETA.matrix(NEW), rtol=1e-5)
    assert not isinstance(found, np.ndarray) and not kept.records
