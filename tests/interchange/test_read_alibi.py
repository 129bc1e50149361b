"""Linear biases of attention scores: those of ALiBi's released code are read, others are told."""

from __future__ import annotations

import math
from typing import Any

import pytest

import kcalc as kc

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

L = kc.layers
T, WIDTH = 7, 4


class Heads(nn.Module):
    """Attention whose scores have the given biases, (heads, tokens, tokens)."""

    def __init__(self, biases: Any, causal: bool) -> None:
        super().__init__()
        self.heads = len(biases)
        self.q, self.k, self.v, self.o = (
            nn.Linear(self.heads * WIDTH, self.heads * WIDTH) for _ in range(4)
        )
        future = torch.full((T, T), -math.inf).triu(1) if causal else torch.zeros(T, T)
        self.register_buffer("biases", biases + future)

    def forward(self, x: Any) -> Any:
        q, k, v = (
            layer(x).view(*x.shape[:2], self.heads, WIDTH).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        A = (q @ k.mT / WIDTH**0.5 + self.biases).softmax(-1)
        return self.o((A @ v).transpose(1, 2).flatten(2))


def power_law(heads: int) -> Any:
    return 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)


# of 12 heads: those of 8 heads, and every other one of 16
RELEASED = torch.cat([power_law(8), power_law(16)[0:8:2]])
PLACES = torch.arange(T)
APART = PLACES[:, None] - PLACES


def read(biases: Any, causal: bool = True) -> Any:
    torch.manual_seed(0)
    model = Heads(biases, causal)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.2)
    return kc.read(model, (2, T, len(biases) * WIDTH))


@pytest.mark.parametrize(
    "biases",
    [
        -power_law(12)[:, None, None] * APART.abs(),
        -RELEASED[:, None, None] * APART.abs() / WIDTH**0.5,
        -torch.linspace(0.1, 0.7, 6)[:, None, None] * APART.abs(),
        -torch.full((3, 1, 1), 0.25) * APART.abs(),
    ],
    ids=["one power law", "Falcon's scale", "learned", "one slope"],
)
@pytest.mark.parametrize("causal", [True, False])
def test_other_slopes_are_told(biases: Any, causal: bool) -> None:
    found = read(biases, causal)
    (node,) = found.network.nodes_of(L.Attend)
    layer = found.network.layer(node)
    assert found.fidelity.level != "exact" and not layer.alibi and layer.relative is None
    assert any("ALiBi" in note.text and note.node == node for note in found.notes)


def test_biases_by_signed_distance_are_no_random_ones() -> None:
    found = read(-RELEASED[:, None, None] * APART, causal=False)
    (node,) = found.network.nodes_of(L.Attend)
    assert found.fidelity.level != "exact" and found.network.layer(node).relative is None


@pytest.mark.parametrize("causal", [True, False])
def test_random_biases_by_distance_are_read(causal: bool) -> None:
    table = torch.randn(12, 2 * T - 1, generator=torch.Generator().manual_seed(0))
    found = read(table[:, APART + T - 1], causal)
    (node,) = found.network.nodes_of(L.Attend)
    assert found.fidelity.level == "exact" and found.network.layer(node).relative is not None
