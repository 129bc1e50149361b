"""Rotary embeddings in every layout (halves, neighbours, complex) and what only looks like them."""

from __future__ import annotations

from collections.abc import Callable
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


def angles() -> Any:
    return torch.arange(32)[:, None] * BASE ** (-torch.arange(0, HEAD, 2) / HEAD)


def by_halves(x: Any, m: Rotary) -> Any:
    a = torch.cat([m.angles[: x.shape[2]]] * 2, -1)
    u, v = x.chunk(2, -1)
    return x * a.cos() + torch.cat([-v, u], -1) * a.sin()


def by_neighbours(x: Any, m: Rotary) -> Any:
    """GPT-J, RoFormer, Cohere."""
    a = m.angles[: x.shape[2]].repeat_interleave(2, -1)
    return x * a.cos() + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * a.sin()


def turned(x: Any, circle: Any) -> Any:
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(z * circle).flatten(-2)


def as_complex(x: Any, m: Rotary) -> Any:
    """Llama, from a complex buffer."""
    z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * m.circle[: x.shape[2]]).flatten(3).type_as(x)


def complex_by_parts(x: Any, m: Rotary) -> Any:
    z = torch.complex(x[..., ::2], x[..., 1::2]) * m.circle[: x.shape[2]]
    return torch.stack((z.real, z.imag), -1).flatten(-2)


def tokens_first(x: Any, m: Rotary) -> Any:
    return turned(x.transpose(1, 2), m.circle[: x.shape[2], None]).transpose(1, 2)


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


def apart(x: Any, m: Rotary) -> Any:
    """Turned as if the tokens stood 3 places further on."""
    return turned(x, m.circle[3 : 3 + x.shape[2]])


def grown(x: Any, m: Rotary) -> Any:
    """Turned and multiplied by a number that grows from token to token."""
    return as_complex(x, m) * (1 + torch.arange(x.shape[2])[:, None] / 4)


def by_content(x: Any, m: Rotary) -> Any:
    """Turned by angles that the data decide."""
    ones = torch.ones_like(x[..., ::2])
    return turned(x, torch.polar(ones, x[..., :1].expand(ones.shape)))


def sized(x: Any, m: Rotary) -> Any:
    """Multiplied by other numbers in every channel."""
    return x * torch.linspace(0.3, 2, HEAD)


def plain(x: Any, m: Rotary) -> Any:
    return x


OTHERS: dict[str, tuple[Turned, Turned, Turned]] = {
    "queries alone": (by_neighbours, plain, plain),
    "values alone": (plain, plain, by_neighbours),
    "other places": (apart, as_complex, plain),
    "halves against neighbours": (by_halves, by_neighbours, plain),
    "regrouped against neighbours": (regrouped, by_neighbours, plain),
    "grown": (grown, grown, plain),
    "other sizes": (sized, sized, plain),
    "by content": (by_content, by_content, plain),
}


class Rotary(nn.Module):
    """One attention over given tokens."""

    angles: Any
    circle: Any

    def __init__(self, turned: Any) -> None:
        super().__init__()
        self.turned = turned if isinstance(turned, tuple) else (turned, turned, plain)
        self.first = nn.Linear(INPUT, 2 * HEAD, bias=False)
        self.q, self.k, self.v, self.o = (
            nn.Linear(2 * HEAD, 2 * HEAD, bias=False) for _ in range(4)
        )
        self.register_buffer("angles", angles())
        self.register_buffer("circle", torch.polar(torch.ones_like(angles()), angles()))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        q, k, v = (
            turn(layer(x).unflatten(-1, (2, HEAD)).transpose(1, 2), self)
            for turn, layer in zip(self.turned, (self.q, self.k, self.v), strict=True)
        )
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def read(turned: Any, tokens: int = TOKENS) -> kc.Reading:
    torch.manual_seed(0)
    return kc.read(Rotary(turned).eval(), torch.randn(2, tokens, INPUT), sigmas=False)


def attention(reading: kc.Reading) -> list[Any]:
    network = reading.network
    return [network.layer(node) for node in network.nodes_of(kc.layers.Attend)]


@pytest.mark.parametrize("name", ROTARY)
def test_layouts_are_read_as_the_same_network(name: str) -> None:
    reading = read(ROTARY[name])
    assert reading.fidelity.level == "exact"
    assert [layer.rotary for layer in attention(reading)] == [BASE]
    assert reading.network.isomorphic(read(by_halves).network)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_rotation_by_place_is_not_read(name: str) -> None:
    reading = read(OTHERS[name])
    assert reading.fidelity.level == "not read" and not attention(reading)
    assert any("attention" in note.text for note in reading.notes)
    assert not any("internal error" in note.text for note in reading.notes)


# -- angles --------------------------------------------------------------------------------------


def turned_by(speeds: Any, places: Any) -> Turned:
    a = torch.as_tensor(places)[:, None] * torch.as_tensor(speeds)
    return lambda x, m: turned(x, torch.polar(torch.ones_like(a), a))


SPEEDS = BASE ** (-np.arange(0, HEAD, 2, dtype=np.float32) / HEAD)
PLACES = np.arange(TOKENS, dtype=np.float32)


@pytest.mark.parametrize("sizes", [None, [1.5**0.5, 0.5**0.5] * 4])
def test_a_part_of_the_channels(sizes: Any) -> None:
    """With other angles it says both; of other sizes it is not read.

    These have the same mean square, and other products of queries and keys.
    """
    speeds = 10.0 ** (-np.arange(4, dtype=np.float32))

    def part(x: Any, m: Rotary) -> Any:
        half = turned_by(speeds if sizes else speeds / 5, PLACES)(x[..., :8], m)
        rest = x[..., 8:]
        return torch.cat([half, rest * torch.tensor(sizes) if sizes else rest], -1)

    reading = read(part)
    if sizes:
        assert reading.fidelity.level == "not read" and not attention(reading)
    else:
        for words in ("8 of the 16", "not powers of one base"):
            assert any(words in note.text for note in reading.notes)


def test_one_token_shows_no_angles() -> None:
    turn = Turn(np.ones((1, 2)), np.array([[0, 1], [2, 3]]), 4)
    with pytest.raises(NoAttentionError, match="single token"):
        turn.base()
    assert read(turned_by(SPEEDS, PLACES[1:2]), tokens=1).fidelity.level == "not read"


# -- JAX, ONNX, published models -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["strided", "complex"])
def test_layouts_in_jax(name: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    import jax

    def turn(x: Any, a: Any) -> Any:
        if name == "complex":
            y = x.reshape(*x.shape[:-1], -1, 2)
            z = jax.lax.complex(y[..., 0], y[..., 1]) * jnp.exp(1j * a)
            return jnp.stack([z.real, z.imag], -1)
        u, v, c, s = x[..., ::2], x[..., 1::2], jnp.cos(a), jnp.sin(a)
        return jnp.stack([u * c - v * s, u * s + v * c], -1)

    rng = np.random.default_rng(0)
    params = {n: jnp.asarray(rng.standard_normal((32, 32)) / 6, jnp.float32) for n in "iqkvo"}

    def function(p: Any, x: Any) -> Any:
        x = x @ p["i"]
        q, k, v = ((x @ p[n]).reshape(*x.shape[:2], 2, HEAD) for n in "qkv")
        a = jnp.asarray(angles()[: x.shape[1]].numpy())[None, :, None]
        q, k = (turn(y, a).reshape(y.shape) for y in (q, k))
        weight = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) / HEAD**0.5, -1)
        return jnp.einsum("bhts,bshd->bthd", weight, v).reshape(x.shape) @ p["o"]

    reading = kc.read(function, params, np.ones((2, TOKENS, 32), np.float32))
    assert reading.fidelity.level == "exact"
    assert [layer.rotary for layer in attention(reading)] == [BASE]
