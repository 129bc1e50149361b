"""A transformer block with known weights reads to the same network from every format.

That written by hand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused
from transformer_formats import FORMATS, HEAD, IDS, D, Graph, H, T, V, network, weights

import kcalc as kc

L = kc.layers
W = weights()


def rounded(net: kc.Network) -> kc.Network:
    """The network with its sizes of weights in six digits."""

    def layer(_: Any, found: L.Layer) -> L.Layer:
        sizes = {name: getattr(found, name, None) for name in ("sigma_w", "sigma")}
        known = {name: float(f"{size:.6g}") for name, size in sizes.items() if size is not None}
        return dataclasses.replace(found, **known)

    return net.map_layers(layer)


@pytest.mark.parametrize("case", list(FORMATS), ids=", ".join)
def test_a_transformer_reads_as_the_network_written_by_hand(case: tuple[str, str]) -> None:
    found = kc.read(*FORMATS[case](W))
    assert found.fidelity.level == "exact", str(found)
    assert rounded(found.network).isomorphic(rounded(network(case[0], W))), str(found.network)


# -- further forms ---------------------------------------------------------------------------------


def of_keras(kind: str, *sizes: int, **settings: Any) -> tuple[Any, ...]:
    import keras

    x = keras.Input((T, D))
    layer = getattr(keras.layers, kind)(*sizes, **settings)
    return (keras.Model(x, layer(x, x)),)


PLAIN = L.Attend(H, HEAD)
FORMS: dict[str, tuple[Callable[[], tuple[Any, ...]], L.Attend]] = {
    "keras, one key head": (
        lambda: of_keras("GroupQueryAttention", 8, 3, 1),
        L.Attend(3, 8, key_heads=1),
    ),
    "keras, dropout": (
        lambda: of_keras("MultiHeadAttention", H, HEAD, dropout=0.1),
        L.Attend(H, HEAD, dropout=0.1),
    ),
    "onnx, one vector for all tokens": (lambda: of_operator(), PLAIN),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_attention(name: str) -> None:
    build, wanted = FORMS[name]
    found = kc.read(*build())
    (node,) = found.network.nodes_of(L.Attend)
    assert found.network.layer(node) == wanted and not found.network.nodes_of(L.Opaque), str(found)


# -- what is not read, and why ---------------------------------------------------------------------


def of_keras_zeros() -> tuple[Any, ...]:
    import keras

    ids = keras.Input((T,), dtype="int32")
    x = keras.layers.Embedding(V, D, mask_zero=True)(ids)
    return (keras.Model(ids, keras.layers.MultiHeadAttention(H, HEAD)(x, x)),)


def of_operator(**attributes: Any) -> tuple[Any, ...]:
    """Attention of tokens that a table looked up in another one adds the same vector to."""
    g = Graph(W)
    g.hold("kinds", np.zeros((1, 9), np.int64))
    g.hold("places", np.arange(T)[None])
    g.add("Gather", f"pos {g.add('GatherElements', 'kinds places', 'kind', axis=1)}", "own")
    g.add("Add", f"{g.add('Gather', 'tok ids', 'embedded')} own", "h1")
    sizes = {"q_num_heads": H, "kv_num_heads": H}
    g.add("Attention", " ".join(g.projected()), "heads", **sizes, **attributes)
    g.add("MatMul", "heads out", "logits")
    return (g.model(),)


REFUSED: dict[str, tuple[Callable[[], tuple[Any, ...]], str]] = {
    "keras, padding": (of_keras_zeros, "its mask depends on the input"),
    "onnx, capped scores": (lambda: of_operator(softcap=30.0), "softcap"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_attention_is_opaque_and_says_why(name: str) -> None:
    build, words = REFUSED[name]
    found = kc.read(*build())
    assert found.network.nodes_of(L.Opaque) and not found.network.nodes_of(L.Attend)
    assert words in str(found), str(found)


def test_ids_are_given_as_whole_numbers() -> None:
    def model(p: Any, ids: Any) -> Any:
        return p["tok"][jnp.clip(ids, 0, V - 1)] @ p["q"]

    found = kc.read(model, W, IDS).network
    assert [type(layer) for _, layer, _ in found.steps()] == [L.Input, L.Embedding, L.Affine]
    assert kc.read(lambda p, ids: p["tok"][ids // 2] @ p["q"], W, IDS).network.nodes_of(
        L.Opaque, L.Nonlinear
    )
    with refused("array of integers"):
        kc.read(model, W, (2, T))
