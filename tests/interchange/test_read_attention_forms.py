"""Attention of JAX functions in forms that models seldom use: heads, orders, masks and stops."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest

import kcalc as kc

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

L = kc.layers
T, D = 6, 48
RANDOM = np.random.default_rng(0)
P = {n: RANDOM.standard_normal((D, D)).astype("f") / D**0.5 for n in "qkvorsu"}
LEARNED = RANDOM.standard_normal((4, T, 12)).astype("f")
BIAS = RANDOM.standard_normal((4, T, 4)).astype("f")
SCALES = np.array([0.1, 0.2, 0.3, 0.4])[:, None, None]
stopped, soft = jax.lax.stop_gradient, jax.nn.softmax


def split(h: Any) -> Any:
    return h.reshape(2, -1, 4, 12).swapaxes(1, 2)


def joined(y: Any) -> Any:
    return y.swapaxes(1, 2).reshape(2, -1, D)


def attend(q: Any, k: Any, v: Any) -> Any:
    return soft(0.3 * (q @ k.mT)) @ v


def heads(
    function: Callable[..., Any] = attend, join: Any = joined, split: Any = split, enter: Any = None
) -> Callable[..., Any]:
    """A model with ``function`` of the queries, keys and values of four heads."""

    def run(p: Any, x: Any, *y: Any) -> Any:
        x = x if enter is None else enter(x)
        parts = [split(h @ p[n]) for n, h in zip("qkv", (x, *(y or [x]) * 2), strict=True)]
        return join(function(*parts)) @ p["o"]

    return run


def long(x: Any) -> Any:
    return reduce(lambda x, _: 1.01 * x, range(50), x)


def normed(x: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def twice(p: Any, x: Any) -> Any:
    """Two attentions with the same normalised queries."""
    q, k, r = (normed((x @ p[n]).reshape(2, T, 4, 12)).swapaxes(1, 2) for n in "qkr")
    one, two = attend(q, k, split(x @ p["v"])), attend(q, r, split(x @ p["s"]))
    return joined(one) @ p["o"] + joined(two) @ p["u"]


def turned(x: Any) -> Any:
    return x.swapaxes(0, 1).reshape(-1, D)


def by_channel(p: Any, x: Any) -> Any:
    y = attend(*(split(x @ p[n]) for n in "qkv")).mT.reshape(2, D, T)
    return jnp.einsum("bct,cd->bdt", y, p["o"])


READ: dict[str, tuple[Callable[..., Any], int]] = {
    "channels before tokens": (by_channel, 1),
    "tokens without examples": (heads(enter=lambda x: x.reshape(-1, D)), 1),
    "tokens first": (
        heads(split=lambda h: h.reshape(T, 2, 4, 12).transpose(1, 2, 0, 3), enter=turned),
        1,
    ),
    "shared queries": (twice, 2),
}


@pytest.mark.parametrize("name", READ)
def test_heads_are_read_exactly(name: str) -> None:
    model, count = READ[name]
    found = kc.read(model, P, (2, T, D))
    nodes = found.network.nodes_of(L.Attend)
    assert found.fidelity.level in ("exact", "approximate")
    assert [found.network.layer(n) for n in nodes] == [L.Attend(4, 12, scale=0.3)] * count
    assert len(found.network.nodes_of(L.Affine)) == 4 * count - (name == "shared queries")


UNREAD: dict[str, tuple[Callable[..., Any], str]] = {
    "some of the tokens": (
        heads(lambda q, k, v: attend(q, k[:, :, :3], v[:, :, :3])),
        "its keys have 3 tokens, but are computed from 6",
    ),
    "parts of no layer": (
        lambda p, x: joined(attend(*(split(jnp.tile(x[..., n : n + 16], 3)) for n in (0, 16, 32)))),
        "its queries are only some of the channels of x",
    ),
    "learned queries": (
        heads(lambda q, k, v: attend(LEARNED, k, v)),
        "its queries are the same for all inputs",
    ),
    "learned queries, stopped": (
        heads(lambda q, k, v: soft(stopped(LEARNED @ k.mT)) @ v),
        "mix tokens with different matrices",
    ),
    "sums of scores": (
        heads(lambda q, k, v: soft(jnp.einsum("bhqd,bhse->bhqs", q, k)) @ v),
        "its scores are not products",
    ),
    "over all scores": (
        heads(lambda q, k, v: soft((q @ k.mT).reshape(2, 4, -1)).reshape(2, 4, T, T) @ v),
        "its weights multiply the values",
    ),
    "over the queries": (
        heads(lambda q, k, v: soft((q @ k.mT).reshape(8, T, T), axis=1).reshape(2, 4, T, T) @ v),
        "its softmax runs over the queries, not over the keys",
    ),
    "some of the heads": (
        heads(
            lambda q, k, v: soft((q @ k.mT)[:, :2]) @ v[:, :2],
            lambda y: jnp.tile(y.swapaxes(1, 2).reshape(2, T, 24), 2),
        ),
        "",
    ),
    "normalised over channels and tokens": (
        heads(lambda q, k, v: attend(q / jnp.sqrt((q * q).mean((1, 2), keepdims=True)), k, v)),
        "its queries are computed from feature maps in a way that kcalc does not follow",
    ),
    "scattered tokens": (
        heads(enter=lambda x: x.transpose(1, 2, 0).reshape(-1, D)),
        "its queries are computed from feature maps in a way that kcalc does not follow",
    ),
    "masked by their scores": (
        heads(lambda q, k, v: soft(jnp.where(q @ k.mT > 0, q @ k.mT, 0)) @ v),
        "",
    ),
    "wide values": (
        heads(
            lambda q, k, v: jnp.einsum(
                "bhqs,bhsde->bhqde", soft(q @ k.mT), v.reshape(2, 4, T, 3, 4)
            )
        ),
        "its weights multiply the values",
    ),
    "another order of heads": (
        heads(join=lambda y: y.reshape(2, T, D)),
        "its heads are joined in an order",
    ),
    "tokens first at the end": (
        heads(join=lambda y: y.transpose(2, 0, 1, 3).reshape(T, 2, D)),
        "its heads are joined in an order",
    ),
    "long queries": (heads(lambda q, k, v: attend(long(q), k, v)), "that kcalc does not track"),
    "long scores": (heads(lambda q, k, v: soft(long(q @ k.mT)) @ v), "its scores depend on arrays"),
    "no scores": (heads(lambda q, k, v: soft(0 * (q @ k.mT)) @ v), "do not depend on queries"),
    "masks of examples": (
        heads(lambda q, k, v: soft(jnp.where(MASKS, q @ k.mT, -1e9)) @ v),
        "its mask differs between examples",
    ),
    "fewer keys": (
        heads(lambda q, k, v: attend(q, k[:, :2].repeat(2, 1), v)),
        "it has 2 key heads but 4 value heads",
    ),
    "stopped products that are no scores": (
        heads(lambda q, k, v: jax.nn.relu(stopped(q @ k.mT)) @ v),
        "",
    ),
    "keys in turns": (
        heads(lambda q, k, v: attend(q, jnp.tile(k[:, :2], (1, 2, 1, 1)), v)),
        "its heads share keys in an order",
    ),
}
MASKS = np.stack([np.tril(np.ones((T, T))) > 0, np.ones((T, T)) > 0])[:, None]


@pytest.mark.parametrize("name", UNREAD)
def test_other_attention_is_not_read(name: str) -> None:
    model, words = UNREAD[name]
    found = kc.read(model, P, (2, T, D))
    assert not found.network.nodes_of(L.Attend)
    assert any(words in note.text for note in found.notes), str(found)


def test_scores_that_are_too_large() -> None:
    found = kc.read(heads(), P, jax.ShapeDtypeStruct((2, 3000, D), "float32"))
    words = "pass example inputs with fewer tokens or examples"
    assert any(words in note.text for note in found.notes)


ALMOST: dict[str, tuple[Callable[..., Any], int, str]] = {
    "scales": (
        heads(lambda q, k, v: soft(SCALES * (q @ k.mT)) @ v),
        T,
        "the scales of its heads differ",
    ),
    "biases of other tokens": (
        heads(lambda q, k, v: soft(q @ k.mT + BIAS) @ v),
        4,
        "its scores have biases",
    ),
}


@pytest.mark.parametrize("name", ALMOST)
def test_differences_are_said(name: str) -> None:
    model, tokens, words = ALMOST[name]
    shapes = ((2, T, D),) if tokens == T else ((2, T, D), (2, tokens, D))
    found = kc.read(model, P, *shapes)
    (node,) = found.network.nodes_of(L.Attend)
    assert found.network.layer(node).relative is None
    assert [words in note.text for note in found.notes if note.node == node] == [True]


STOPS: dict[str, tuple[Callable[..., Any], str]] = {
    "of queries": (lambda q, k, v: attend(stopped(q), k, v), "kvo"),
    "of keys": (lambda q, k, v: attend(q, stopped(k), v), "qvo"),
    "of values": (lambda q, k, v: attend(q, k, stopped(v)), "qko"),
    "of scores": (lambda q, k, v: soft(stopped(q @ k.mT)) @ v, "vo"),
    "of weights": (lambda q, k, v: stopped(soft(q @ k.mT)) @ v, "vo"),
    "of the result": (lambda q, k, v: stopped(attend(q, k, v)), "o"),
}


@pytest.mark.parametrize("name", STOPS)
def test_stops_in_attention(name: str) -> None:
    """They leave the gradients of the weights behind them as they are."""
    function, left = STOPS[name]
    found = kc.gradients(kc.read(heads(function), P, (2, T, D)).network, tokens=T).weights
    plain = kc.gradients(kc.read(heads(), P, (2, T, D)).network, tokens=T).weights
    assert {n for n in "qkvo" if found[n]} == set(left)
    if name == "of the result":
        assert found["o"] == pytest.approx(plain["o"], rel=1e-9)
