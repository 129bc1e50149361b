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


@pytest.mark.parametrize("start", ["mul", "stack"])
def test_streams_that_start_as_multiples(start: str) -> None:
    """Streams on axis 1 of (examples, streams, tokens, width), multiples of the input."""
    weights, home = torch.tensor([1.0, 0.5, -0.75]), torch.tensor([0.25, 1.0, 0.5])

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.up, self.down, self.pre = (
                torch.nn.Linear(WIDTH, n, bias=False) for n in (WIDTH, WIDTH, WIDTH, 1)
            )
            torch.nn.init.zeros_(self.pre.weight)

        def forward(self, x: Any) -> Any:
            x = self.embed(x)
            if start == "mul":
                h = x.unsqueeze(1) * weights.view(1, -1, 1, 1)
            else:
                h = torch.stack([x * weight for weight in weights], 1)
            gate = torch.tanh(self.pre(h)).squeeze(-1) + home[:, None]
            y = self.down(torch.relu(self.up((gate.unsqueeze(-1) * h).sum(1))))
            return (h + y.unsqueeze(1)).sum(1)

    torch.manual_seed(0)
    model = Model()
    net = read(model).network
    a, b, c = (rms(layer.weight) * WIDTH**0.5 for layer in (model.embed, model.up, model.down))
    total, seen = float(weights.sum()), float(weights @ home)
    expected = a**2 * (total**2 + (3 * seen * b * c) ** 2 / 2)
    assert kc.q_map(net)(1.0) == pytest.approx(expected, rel=1e-9)


class Gated(torch.nn.Module):
    """Attention to a sum of feature maps with gates whose channel axis is squeezed away."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.qkv = torch.nn.Linear(WIDTH, 1), torch.nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Any) -> Any:
        h = torch.stack([x, x.flip(1)], 1)
        x = (torch.tanh(self.gate(h)).squeeze(-1).unsqueeze(-1) * h).sum(1)
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4)
        heads = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return heads.transpose(1, 2).flatten(2)


def test_squeezed_gates_before_attention_are_read_in_part() -> None:
    net = kc.read(Gated(), VECTORS).network
    assert net.nodes_of(L.Opaque) and net.nodes_of(L.Attend)
