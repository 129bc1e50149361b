"""Today's networks read: gates, halves of one layer, fixed attention, token mixing, normalisation
by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kcalc as kc

torch = pytest.importorskip("torch")

from modern_zoo import (  # noqa: E402
    CAUSAL,
    TOKENS,
    UNIFORM,
    ZOO,
    D,
    Model,
    T,
    heads,
    linear,
    silent,
)
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kcalc.interchange.json_format import network_from_dict, network_to_dict  # noqa: E402
from kcalc.network.layers import Affine, TokenMix  # noqa: E402

L = kc.layers


def plain(network: kc.Network) -> kc.Network:
    """With sigma_w = 1, sigma_b = 0, and Scale factors to ten digits."""

    def changed(_: Any, layer: Any) -> Any:
        if isinstance(layer, Affine):
            return replace(layer, sigma_w=1, sigma_b=0)
        return L.Scale(round(float(layer.factor), 7)) if isinstance(layer, L.Scale) else layer

    return network.map_layers(changed)


@pytest.mark.parametrize("name", ZOO)
def test_network_is_the_one_written_by_hand(name: str) -> None:
    torch.manual_seed(0)
    model, shape, twin = ZOO[name]()
    found = kc.read(model.eval(), shape)
    assert plain(found.network).isomorphic(plain(twin)), f"\n{found}\n{list(found.network.steps())}"
    heuristic = name.startswith("squeeze") or name == "mixer"
    assert found.fidelity.level == ("pooling" if heuristic else "exact")
    assert network_from_dict(network_to_dict(found.network)) == found.network


# -- attention -------------------------------------------------------------------------------------


def attention(
    function: Callable[..., Any],
    key: bool = True,
    query: nn.Linear | None = None,
) -> Any:
    """Attention by a function, its queries and perhaps its keys the same for every token."""
    key = linear(D, D) if key else silent(linear(D, D), bias=False)
    parts = {"q": query or silent(linear(D, D)), "k": key, "v": linear(D, D), "o": linear(D, 8)}
    return Model(lambda m, *x: m.o(function(m, *x)), **parts).eval()


def usual(m: Any, x: Any, **options: Any) -> Any:
    return heads(m.q(x), m.k(x), m.v(x), **options)


def test_multi_head_attention_module() -> None:
    for zero, causal, weights in ((1, 0, 0), (1, 1, 0), (1, 0, 1), (0, 0, 0), (0, 1, 1)):
        module = nn.MultiheadAttention(D, 4, batch_first=True)
        if zero:
            module.in_proj_weight.data[:D] = 0
        mask = nn.Transformer.generate_square_subsequent_mask(T) if causal else None
        options = {"need_weights": bool(weights), "attn_mask": mask}
        model = Model(lambda m, x, options=options: x + m.attn(x, x, x, **options)[0], attn=module)
        found = kc.read(model.eval(), TOKENS)
        (node,) = found.network.nodes_of(TokenMix, L.Attend)
        layer = found.network.layer(node)
        if zero:
            np.testing.assert_allclose(layer.array, CAUSAL if causal else UNIFORM, atol=1e-12)
        else:
            assert layer == L.Attend(4, 4, causal=bool(causal))
        assert found.fidelity.level == "exact"
        assert len(found.network.nodes_of(Affine)) == (2 if zero else 4)


def test_what_makes_attention_fixed() -> None:
    """Keys that are the same for every token do.

    Queries of their own with other keys do not, nor heads that differ.
    """
    alibi, future = torch.randn(1, 1, T, T), torch.triu(torch.full((T, T), -1e9), 1)
    by_head = torch.arange(4.0).view(1, 4, 1, 1) * torch.arange(float(T))

    def over_queries(m: Any, x: Any) -> Any:
        return F.softmax(m.q(x) @ m.k(x).mT, 1) @ m.v(x)

    fixed = {
        "same keys": (attention(usual, False, linear(D, D)), UNIFORM),
        "a bias of scores": (
            attention(lambda m, x: usual(m, x, attn_mask=alibi)),
            torch.softmax(alibi[0, 0], -1).numpy(),
        ),
        "softmax over the queries": (attention(over_queries), UNIFORM),
        "masked by a great number": (
            attention(
                lambda m, x: F.softmax(m.q(x) @ m.k(x).mT + future, -1) @ m.v(x),
                False,
                linear(D, D),
            ),
            CAUSAL,
        ),
    }
    for name, (model, matrix) in fixed.items():
        network = kc.read(model, TOKENS).network
        (node,) = network.nodes_of(TokenMix)
        np.testing.assert_allclose(network.layer(node).array, matrix, atol=1e-7, err_msg=name)
    opaque = {
        "a bias of queries": attention(usual, query=silent(linear(D, D), bias=False)),
        "a bias by head": attention(lambda m, x: usual(m, x, attn_mask=by_head)),
        "same keys, softmax over the queries": attention(over_queries, False, linear(D, D)),
        "values that the scores multiply": attention(lambda m, x: (m.q(x) @ m.k(x).mT) @ m.v(x)),
    }
    for name, model in opaque.items():
        found = kc.read(model, TOKENS)
        assert found.fidelity.level == "not read" and not found.network.nodes_of(TokenMix), name


def test_masks_that_depend_on_the_input_and_cross_attention() -> None:
    model = attention(lambda m, x, mask: usual(m, x, attn_mask=mask[:, None, None, :]))
    assert kc.read(model, TOKENS, (2, T)).fidelity.level == "not read"
    crossed = attention(lambda m, x, y: heads(m.q(x), m.k(y), m.v(y)))
    network = kc.read(crossed, TOKENS, (2, 9, D)).network
    assert network.layer(network.nodes_of(TokenMix)[0]) == TokenMix(np.full((T, 9), 1 / 9))
