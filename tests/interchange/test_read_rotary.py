"""Rotary embeddings in every layout (halves, neighbours, complex) and what only looks like them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import kcalc as kc
from kcalc.interchange.rewriting.scores import NoAttentionError, Turn

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

BASE, TOKENS, HEAD, INPUT = 10000.0, 6, 16, 12
Turned = Callable[[Any, "Rotary"], Any]


def angles(count: int = 32, width: int = HEAD) -> Any:
    return torch.arange(count)[:, None] * BASE ** (-torch.arange(0, width, 2) / width)


def by_halves(x: Any, m: Rotary) -> Any:
    a = torch.cat([m.angles[: x.shape[2]]] * 2, -1)
    u, v = x.chunk(2, -1)
    return x * a.cos() + torch.cat([-v, u], -1) * a.sin()


def by_neighbours(x: Any, m: Rotary) -> Any:
    """GPT-J, RoFormer, Cohere."""
    a = m.angles[: x.shape[2]].repeat_interleave(2, -1)
    return x * a.cos() + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * a.sin()


def as_complex(x: Any, m: Rotary) -> Any:
    """Llama, from a complex buffer."""
    z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * m.circle[: x.shape[2]]).flatten(3).type_as(x)


def complex_by_parts(x: Any, m: Rotary) -> Any:
    z = torch.complex(x[..., ::2], x[..., 1::2]) * m.circle[: x.shape[2]]
    return torch.stack((z.real, z.imag), -1).flatten(-2)


def tokens_first(x: Any, m: Rotary) -> Any:
    z = torch.view_as_complex(x.transpose(1, 2).unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(z * m.circle[: x.shape[2], None]).flatten(3).transpose(1, 2)


def by_matrices(x: Any, m: Rotary) -> Any:
    """Every pair times a matrix of its own."""
    a = m.angles[: x.shape[2]]
    turns = torch.stack([a.cos(), -a.sin(), a.sin(), a.cos()], -1).unflatten(-1, (2, 2))
    return torch.einsum("tpij,bhtpj->bhtpi", turns, x.unflatten(-1, (-1, 2))).flatten(-2)


def of_places(x: Any, m: Rotary) -> Any:
    """GPT-J's tables, looked up by place."""
    place = torch.arange(x.shape[2])[None]
    c, s = m.angles.cos()[place][:, None], m.angles.sin()[place][:, None]
    u, v = x[..., ::2], x[..., 1::2]
    return torch.stack((u * c - v * s, u * s + v * c), -1).flatten(-2)


def regrouped(x: Any, m: Rotary) -> Any:
    """DeepSeek: neighbours become halves, and stay so."""
    return by_halves(x.unflatten(-1, (-1, 2)).transpose(3, 4).reshape(x.shape), m)


ROTARY: dict[str, Turned] = {
    "halves": by_halves,
    "neighbours": by_neighbours,
    "complex": as_complex,
    "complex by parts": complex_by_parts,
    "tokens first": tokens_first,
    "places": of_places,
    "matrices": by_matrices,
    "regrouped": regrouped,
}


def apart(x: Any, m: Rotary, by: int) -> Any:
    """Turned as if the tokens stood ``by`` places further on."""
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(z * m.circle[by : by + x.shape[2]]).flatten(3)


def grown(x: Any, m: Rotary) -> Any:
    """Turned and multiplied by a number that grows from token to token."""
    return as_complex(x, m) * (1 + torch.arange(x.shape[2])[:, None] / 4)


def by_content(x: Any, m: Rotary) -> Any:
    """Turned by angles that the data decide."""
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    turn = torch.polar(torch.ones_like(x[..., ::2]), x[..., :1].expand(x[..., ::2].shape))
    return torch.view_as_real(z * turn).flatten(-2)


def plain(x: Any, m: Rotary) -> Any:
    return x


OTHERS: dict[str, tuple[Turned, Turned, Turned]] = {
    "queries alone": (by_neighbours, plain, plain),
    "values too": (as_complex, as_complex, as_complex),
    "values alone": (plain, plain, by_neighbours),
    "other places": (partial(apart, by=3), as_complex, plain),
    "halves against neighbours": (by_halves, by_neighbours, plain),
    "regrouped against neighbours": (regrouped, by_neighbours, plain),
    "grown": (grown, grown, plain),
    "by content": (by_content, by_content, plain),
}


class Rotary(nn.Module):
    """One attention over given tokens."""

    angles: Any
    circle: Any

    def __init__(self, turned: Any, heads: int = 2) -> None:
        super().__init__()
        self.turned = turned if isinstance(turned, tuple) else (turned, turned, plain)
        self.heads, width = heads, heads * HEAD
        self.first = nn.Linear(INPUT, width, bias=False)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.register_buffer("angles", angles())
        self.register_buffer("circle", torch.polar(torch.ones_like(angles()), angles()))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        q, k, v = (
            turn(layer(x).unflatten(-1, (self.heads, HEAD)).transpose(1, 2), self)
            for turn, layer in zip(self.turned, (self.q, self.k, self.v), strict=True)
        )
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def read(turned: Any, tokens: int = TOKENS) -> kc.Reading:
    torch.manual_seed(0)
    return kc.read(Rotary(turned).eval(), torch.randn(2, tokens, INPUT), sigmas=False)


def attention(network: kc.Network) -> list[kc.layers.Attend]:
    return [layer for _, layer, _ in network.steps() if isinstance(layer, kc.layers.Attend)]


@pytest.mark.parametrize("name", ROTARY)
def test_layouts_are_read_as_the_same_network(name: str) -> None:
    reading, halves = read(ROTARY[name]), read(by_halves)
    assert reading.fidelity.level == "exact"
    assert [layer.rotary for layer in attention(reading.network)] == [BASE]
    assert reading.network.isomorphic(halves.network)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_rotation_by_place_is_not_read(name: str) -> None:
    reading = read(OTHERS[name])
    assert reading.fidelity.level == "not read" and not attention(reading.network)
    assert any("attention" in note.text for note in reading.notes)


def test_neighbours_with_weights_in_another_order_are_halves() -> None:
    """The same function of the input, so the layout makes no difference to the statistics."""
    one, two = Rotary(by_halves), Rotary(by_neighbours)
    two.load_state_dict(one.state_dict())
    order = torch.cat([torch.arange(HEAD // 2)[:, None], torch.arange(HEAD // 2, HEAD)[:, None]], 1)
    rows = (torch.arange(2)[:, None] * HEAD + order.flatten()).flatten()
    for mine, other in ((one.q, two.q), (one.k, two.k)):
        other.weight.data = mine.weight.data[rows]
    x = torch.randn(2, TOKENS, INPUT)
    assert torch.allclose(one(x), two(x), atol=1e-6)


# -- angles --------------------------------------------------------------------------------------


def turned_by(speeds: Any, places: Any) -> Turned:
    def turn(x: Any, m: Rotary) -> Any:
        a = torch.as_tensor(places)[:, None] * torch.as_tensor(speeds)
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(z * torch.polar(torch.ones_like(a), a)).flatten(-2)

    return turn


SPEEDS = BASE ** (-np.arange(0, HEAD, 2, dtype=np.float32) / HEAD)
PLACES = np.arange(TOKENS, dtype=np.float32)


def test_a_part_of_the_channels_with_other_angles_says_both() -> None:
    def part(x: Any, m: Rotary) -> Any:
        half = turned_by(10.0 ** (-np.arange(4, dtype=np.float32)) / 5, PLACES)(x[..., :8], m)
        return torch.cat([half, x[..., 8:]], -1)

    texts = [note.text for note in read(part).notes]
    assert any("8 of the 16" in text for text in texts)
    assert any("not powers of one base" in text for text in texts)


@pytest.mark.parametrize("sizes", [3.0, [1.5**0.5, 0.5**0.5] * 4])
def test_a_part_of_the_channels_of_another_size_is_not_read(sizes: Any) -> None:
    """The second has the same mean square, and other products of queries and keys."""

    def part(x: Any, m: Rotary) -> Any:
        half = turned_by(10.0 ** (-np.arange(4, dtype=np.float32)), PLACES)(x[..., :8], m)
        return torch.cat([half, x[..., 8:] * torch.tensor(sizes)], -1)

    reading = read((part, part, plain))
    assert reading.fidelity.level == "not read" and not attention(reading.network)


def test_other_sizes_by_channel_are_no_internal_error() -> None:
    reading = read((lambda x, m: x * torch.linspace(0.3, 2, HEAD),) * 2 + (plain,))
    assert reading.fidelity.level == "not read" and not attention(reading.network)
    assert not any("internal error" in note.text for note in reading.notes)


def test_one_token_shows_no_angles() -> None:
    turn = Turn(np.ones((1, 2)), np.array([[0, 1], [2, 3]]), 4)
    with pytest.raises(NoAttentionError, match="one token"):
        turn.base()
    assert read(turned_by(SPEEDS, PLACES[1:2]), tokens=1).fidelity.level == "not read"


# -- JAX, ONNX, published models -----------------------------------------------------------------


def jax_layouts() -> dict[str, Callable[[Any, Any], Any]]:
    import jax
    import jax.numpy as jnp

    def pairs(u: Any, v: Any, a: Any, shape: tuple[int, ...]) -> Any:
        c, s = jnp.cos(a), jnp.sin(a)
        return jnp.stack([u * c - v * s, u * s + v * c], -1).reshape(shape)

    def whole(x: Any, a: Any) -> Any:
        y = x.reshape(*x.shape[:-1], -1, 2)
        z = jax.lax.complex(y[..., 0], y[..., 1]) * jnp.exp(1j * a)
        return jnp.stack([z.real, z.imag], -1).reshape(x.shape)

    def neighbours(x: Any, a: Any) -> Any:
        a = jnp.repeat(a, 2, -1)
        moved = jnp.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
        return x * jnp.cos(a) + moved * jnp.sin(a)

    def split(x: Any, a: Any) -> Any:
        y = x.reshape(*x.shape[:-1], -1, 2)
        return pairs(y[..., 0], y[..., 1], a, x.shape)

    return {
        "neighbours": neighbours,
        "strided": lambda x, a: pairs(x[..., ::2], x[..., 1::2], a, x.shape),
        "split": split,
        "complex": whole,
    }


@pytest.mark.parametrize("name", ["neighbours", "strided", "split", "complex"])
def test_layouts_in_jax(name: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    import jax

    turn = jax_layouts()[name]
    rng = np.random.default_rng(0)
    params = {n: jnp.asarray(rng.standard_normal((32, 32)) / 6, jnp.float32) for n in "iqkvo"}

    def function(p: Any, x: Any) -> Any:
        x = x @ p["i"]
        q, k, v = ((x @ p[n]).reshape(*x.shape[:2], 2, HEAD) for n in "qkv")
        a = jnp.asarray(angles(x.shape[1]).numpy())[None, :, None]
        q, k = turn(q, a), turn(k, a)
        weight = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) / HEAD**0.5, -1)
        return jnp.einsum("bhts,bshd->bthd", weight, v).reshape(x.shape) @ p["o"]

    reading = kc.read(function, params, np.ones((2, TOKENS, 32), np.float32))
    assert reading.fidelity.level == "exact"
    assert [layer.rotary for layer in attention(reading.network)] == [BASE]
