"""Exported JAX and Flax code: values, gradients, initial weights, input normalisation, layers."""

from __future__ import annotations

from typing import Any

import exported
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kcalc as kc

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


def test_flax_layers() -> None:
    nnx = pytest.importorskip("flax.nnx")
    shaping = kc.shape(kc.architectures.vanilla(10), "tanh", method="eoc", sigma_b=0.05)
    names = exported.load(shaping.export("flax"))
    rngs = nnx.Rngs(0)
    conv = names["conv"](8, 16, (3, 3), groups=2, sigma_w=2.0, rngs=rngs)
    kernel = np.asarray(conv.kernel[...])
    assert kernel.shape == (3, 3, 4, 16) and np.count_nonzero(kernel) == kernel[1, 1].size
    assert np.mean(kernel[1, 1] ** 2) == pytest.approx(4 / 4, rel=1e-5)
    dense = names["linear"](400, 300, sigma_b=0.5, rngs=rngs)
    assert np.mean(np.asarray(dense.kernel[...]) ** 2) == pytest.approx(1 / 400, rel=1e-5)
    assert np.std(np.asarray(dense.bias[...])) == pytest.approx(0.5, rel=0.2)
    assert not np.asarray(conv.bias[...]).any()
    out = conv(names["tanh_eoc"](jnp.ones((1, 5, 5, 8))))
    assert out.shape == (1, 5, 5, 16) and np.isfinite(out).all()
    assert names["SIGMAS"].keys() == set(shaping.network.nodes_of(kc.layers.Affine))
    linen = pytest.importorskip("flax.linen")
    layer = linen.Conv(6, (3,), feature_group_count=2, kernel_init=names["delta_gaussian_init"](2))
    kernel = np.asarray(layer.init(jax.random.key(1), jnp.ones((1, 4, 4)))["params"]["kernel"])
    assert kernel.shape == (3, 2, 6) and not kernel[0].any() and kernel[1].all()
