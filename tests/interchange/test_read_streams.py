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


def rms(tensor: Any) -> float:
    return float(tensor.detach().square().mean().sqrt())


def affine(layer: Any) -> Any:
    """A layer with the standard deviations of the weights as drawn."""
    sigma_w, sigma_b = rms(layer.weight) * layer.in_features**0.5, rms(layer.bias)
    return L.Affine(sigma_w=sigma_w, sigma_b=sigma_b)


@pytest.mark.parametrize("dynamic", [True, False])
def test_hyper_connections_start_as_one_residual_stream(dynamic: bool) -> None:
    torch.manual_seed(0)
    model = Several("HC", dynamic=dynamic)
    net = read(model).network
    plain = [
        kc.residual(kc.chain(L.RMSNorm(), affine(b.up), L.Nonlinear("relu"), affine(b.down)))
        for b in model.branches
    ]
    chain = kc.chain(affine(model.embed), *plain, L.RMSNorm(), affine(model.head))
    assert kc.c_map(net)(0.5) == pytest.approx(kc.c_map(chain)(0.5), rel=1e-9)
    assert any("depend on the input" in a.text for a in net.assumptions) == dynamic


def test_tokens() -> None:
    found = read(Several(vocabulary=50), torch.arange(10).reshape(2, 5))
    assert kc.q_values(found.network, tokens=5)[f"stream_1_{DEPTH - 1}"] > 1


def test_gates_without_a_start_are_not_read() -> None:
    """Queries that are not 0 give weights that differ between inputs."""
    model = AttentionResiduals(depth=2)
    with torch.no_grad():
        model.queries[1].normal_()
    assert kc.read(model, VECTORS).network.nodes_of(L.Opaque)
