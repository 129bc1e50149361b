"""Linear biases of attention scores: those of ALiBi's released code are read, others are told."""

from __future__ import annotations

import math
from typing import Any

import pytest

import kcalc as kc

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_zoo.twin import Model  # noqa: E402

L = kc.layers
T, WIDTH = 7, 4


def heads(biases: Any, causal: bool) -> Model:
    """Attention whose scores have the given biases, (heads, tokens, tokens)."""
    future = torch.full((T, T), -math.inf).triu(1) if causal else torch.zeros(T, T)
    width = len(biases) * WIDTH

    def run(m: Any, x: Any) -> Any:
        q, k, v = (f(x).view(*x.shape[:2], -1, WIDTH).transpose(1, 2) for f in (m.q, m.k, m.v))
        weights = (q @ k.mT / WIDTH**0.5 + m.biases).softmax(-1)
        return m.o((weights @ v).transpose(1, 2).flatten(2))

    model = Model(run, **{name: nn.Linear(width, width) for name in "qkvo"})
    model.register_buffer("biases", biases + future)
    return model


def power_law(heads: int) -> Any:
    return 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)


# of 12 heads: those of 8 heads, and every other one of 16
RELEASED = torch.cat([power_law(8), power_law(16)[0:8:2]])
PLACES = torch.arange(T)
APART = PLACES[:, None] - PLACES


def read(biases: Any, causal: bool = True) -> tuple[Any, Any, Any]:
    """The reading, and the node of attention and its layer."""
    torch.manual_seed(0)
    model = heads(biases, causal)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.2)
    found = kc.read(model, (2, T, len(biases) * WIDTH))
    (node,) = found.network.nodes_of(L.Attend)
    return found, node, found.network.layer(node)


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
    found, node, layer = read(biases, causal)
    assert found.fidelity.level != "exact" and not layer.alibi and layer.relative is None
    assert any("ALiBi" in note.text and note.node == node for note in found.notes)


def test_biases_by_signed_distance_are_no_random_ones() -> None:
    found, _, layer = read(-RELEASED[:, None, None] * APART, causal=False)
    assert found.fidelity.level != "exact" and layer.relative is None


@pytest.mark.parametrize("causal", [True, False])
def test_random_biases_by_distance_are_read(causal: bool) -> None:
    table = torch.randn(12, 2 * T - 1, generator=torch.Generator().manual_seed(0))
    found, _, layer = read(table[:, APART + T - 1], causal)
    assert found.fidelity.level == "exact" and layer.relative is not None
