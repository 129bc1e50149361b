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
    keys = jax.random.split(jax.random.key(0), 4)
    qkv = jax.random.normal(keys[0], (D, 3 * D))
    return {
        "qkv": {"w": qkv.at[:, :D].set(0) if zero else qkv, "b": jnp.zeros(3 * D)},
        "o": {"w": jax.random.normal(keys[1], (D, D))},
        "up": {"w": jax.random.normal(keys[2], (D, 2 * D)), "b": jnp.zeros(2 * D)},
        "mix": jax.random.normal(keys[3], (T, T)),
    }


def one_head(p: Any, x: Any) -> Any:
    q, k, v = jnp.split(x @ p["qkv"]["w"], 3, -1)
    return jax.nn.softmax(jnp.einsum("btc,bsc->bts", q, k), -1) @ v @ p["o"]["w"]


ATTENTION = [(one_head, UNIFORM, L.Attend(1, D, scale=1))]


@pytest.mark.parametrize(("function", "matrix", "layer"), ATTENTION)
def test_attention_in_jax(function: Any, matrix: np.ndarray, layer: Any) -> None:
    found = kc.read(function, parameters(), jnp.ones((2, T, D)))
    twin = kc.chain(L.Input(D, (T,)), Affine(D), TokenMix(matrix), Affine(D, bias=False))
    network = found.network.map_layers(
        lambda _, layer: (
            Affine(layer.features, bias=layer.bias) if isinstance(layer, Affine) else layer
        )
    )
    (mixing,) = network.nodes_of(TokenMix)
    np.testing.assert_allclose(network.layer(mixing).array, matrix, atol=1e-7)
    kinds = [type(layer) for _, layer, _ in network.steps()]
    assert (
        kinds == [type(layer) for _, layer, _ in twin.steps()] and found.fidelity.level == "exact"
    )
    attends = kc.read(function, parameters(zero=False), jnp.ones((2, T, D)))
    assert attends.fidelity.level == "exact" and not attends.network.nodes_of(TokenMix)
    assert [attends.network.layer(node) for node in attends.network.nodes_of(L.Attend)] == [layer]


def test_flax_attention_with_silent_queries() -> None:
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.MultiHeadAttention(4, D, decode=False, rngs=nnx.Rngs(0))
    (attends,) = kc.read(model, jnp.ones((2, T, D))).network.nodes_of(L.Attend)
    assert kc.read(model, jnp.ones((2, T, D))).network.layer(attends) == L.Attend(4, 4)
    model.query.kernel[...] = jnp.zeros_like(model.query.kernel[...])
    found = kc.read(model, jnp.ones((2, T, D)))
    matrix = found.network.layer(found.network.nodes_of(TokenMix)[0]).array
    np.testing.assert_allclose(matrix, UNIFORM, atol=1e-7)
