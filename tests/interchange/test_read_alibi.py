"""Linear biases of attention scores: those of ALiBi's released code are read, others are told."""

from __future__ import annotations

import math
from typing import Any

import pytest

import kcalc as kc

torch = pytest.importorskip("torch")

from test_read_transformers import Heads  # noqa: E402
from transformer_models import drawn  # noqa: E402

L = kc.layers
T, WIDTH = 7, 4


def power_law(heads: int) -> Any:
    return 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)


# of 12 heads: those of 8 heads, and every other one of 16
RELEASED = torch.cat([power_law(8), power_law(16)[0:8:2]])
PLACES = torch.arange(T)
APART = PLACES[:, None] - PLACES


def read(biases: Any, causal: bool = True) -> tuple[Any, Any, Any]:
    """The reading, and the node of attention and its layer."""
    scores = biases + (torch.full((T, T), -math.inf).triu(1) if causal else 0)
    attend = lambda q, k, v: (q @ k.mT / WIDTH**0.5 + scores).softmax(-1) @ v  # noqa: E731
    found = kc.read(drawn(Heads(attend, heads=12)), (2, T, 48))
    (node,) = found.network.nodes_of(L.Attend)
    return found, node, found.network.layer(node)


@pytest.mark.parametrize(
    "biases",
    [
        -power_law(12)[:, None, None] * APART.abs(),
        -RELEASED[:, None, None] * APART.abs() / WIDTH**0.5,
    ],
    ids=["one power law", "Falcon's scale"],
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
