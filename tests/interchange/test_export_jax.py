"""Exported JAX and Flax code: values, gradients, initial weights, input normalisation, layers."""

from __future__ import annotations

import itertools
from functools import partial

import exported
import jax
import jax.numpy as jnp
import numpy as np

names = partial(exported.module, "jax")


def test_initial_weights() -> None:
    keys = map(jax.random.key, itertools.count())
    exported.check_weights(
        lambda name, shape, groups: names()[name](next(keys), shape, groups=groups)
    )
    orthogonal = names()["delta_orthogonal"]
    assert orthogonal(next(keys), (3, 8, 8), jnp.bfloat16).dtype == jnp.bfloat16
    drawn = jax.jit(lambda key: orthogonal(key, (3, 8, 8)))(next(keys))
    assert np.allclose(drawn[1].T @ drawn[1], np.eye(8), atol=1e-5)
