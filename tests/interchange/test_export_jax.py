"""Exported JAX and Flax code: values, gradients, initial weights, input normalisation, layers."""

from __future__ import annotations

from typing import Any

import exported
import jax
import jax.numpy as jnp
import numpy as np
import pytest

NAMES = exported.module("jax")


def keys() -> Any:
    key = jax.random.key(0)
    while True:
        key, out = jax.random.split(key)
        yield out


def test_initial_weights() -> None:
    key = keys()
    exported.check_law(
        lambda shape, groups: NAMES["delta_orthogonal"](next(key), shape, groups=groups),
        orthogonal=True,
        cases=exported.FEW,
    )
    exported.check_law(
        lambda shape, groups: NAMES["delta_gaussian"](next(key), shape, groups=groups),
        orthogonal=False,
        cases=exported.FEW,
    )
    with pytest.raises(ValueError, match="no centre tap"):
        NAMES["delta_gaussian"](next(key), (4, 3, 8, 8))
    assert NAMES["delta_orthogonal"](next(key), (3, 8, 8), jnp.bfloat16).dtype == jnp.bfloat16
    drawn = jax.jit(lambda k: NAMES["delta_orthogonal"](k, (3, 8, 8)))(next(key))
    assert np.allclose(drawn[1].T @ drawn[1], np.eye(8), atol=1e-5)
