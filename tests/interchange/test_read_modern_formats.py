"""Gates, fixed attention and token mixing in JAX, Flax and ONNX.

The same network as from PyTorch.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kcalc as kc
from kcalc.network.layers import Affine, TokenMix

L = kc.layers
T, D = 5, 16
UNIFORM = np.full((T, T), 1 / T)


def parameters(zero: bool = True) -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(0), 2)
    qkv = jax.random.normal(keys[0], (D, 3 * D))
    o = jax.random.normal(keys[1], (D, D))
    return {"qkv": qkv.at[:, :D].set(0) if zero else qkv, "o": o}


def one_head(p: Any, x: Any) -> Any:
    q, k, v = jnp.split(x @ p["qkv"], 3, -1)
    return jax.nn.softmax(jnp.einsum("btc,bsc->bts", q, k), -1) @ v @ p["o"]


def test_attention_in_jax() -> None:
    found, attends = (
        kc.read(one_head, parameters(zero), jnp.ones((2, T, D))) for zero in (True, False)
    )
    (mixing,) = found.network.nodes_of(TokenMix)
    np.testing.assert_allclose(found.network.layer(mixing).array, UNIFORM, atol=1e-7)
    kinds = [type(layer) for _, layer, _ in found.network.steps()]
    assert kinds == [L.Input, Affine, TokenMix, Affine] and found.fidelity.level == "exact"
    assert attends.fidelity.level == "exact" and not attends.network.nodes_of(TokenMix)
    (node,) = attends.network.nodes_of(L.Attend)
    assert attends.network.layer(node) == L.Attend(1, D, scale=1)


def test_flax_attention_with_silent_queries() -> None:
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.MultiHeadAttention(4, D, decode=False, rngs=nnx.Rngs(0))
    network = kc.read(model, jnp.ones((2, T, D))).network
    assert [network.layer(node) for node in network.nodes_of(L.Attend)] == [L.Attend(4, 4)]
    model.query.kernel[...] = jnp.zeros_like(model.query.kernel[...])
    found = kc.read(model, jnp.ones((2, T, D)))
    matrix = found.network.layer(found.network.nodes_of(TokenMix)[0]).array
    np.testing.assert_allclose(matrix, UNIFORM, atol=1e-7)
