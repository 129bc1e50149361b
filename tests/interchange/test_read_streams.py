"""Models with several residual streams, as networks."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stream_models import (  # noqa: E402
    DEPTH,
    WIDTH,
    AttentionResiduals,
    Several,
)

import kcalc as kc  # noqa: E402

L = kc.layers
VECTORS = (2, 5, WIDTH)


def read(model: Any, inputs: Any = VECTORS) -> Any:
    found = kc.read(model.double(), inputs)
    assert not found.network.nodes_of(L.Opaque), str(found)
    return found


def test_tokens() -> None:
    found = read(Several(vocabulary=50), torch.arange(10).reshape(2, 5))
    assert kc.q_values(found.network, tokens=5)[f"stream_1_{DEPTH - 1}"] > 1


def test_gates_without_a_start_are_not_read() -> None:
    """Queries that are not 0 give weights that differ between inputs."""
    model = AttentionResiduals(depth=2)
    with torch.no_grad():
        model.queries[1].normal_()
    assert kc.read(model, VECTORS).network.nodes_of(L.Opaque)
