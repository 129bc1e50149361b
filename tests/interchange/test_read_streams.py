"""Models with several residual streams, as networks."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stream_models import (  # noqa: E402
    WIDTH,
    AttentionResiduals,
    Several,
)
from torch_zoo.twin import Model  # noqa: E402

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


def test_gates_without_a_start_are_not_read() -> None:
    """Queries that are not 0 give weights that differ between inputs."""
    model = AttentionResiduals(depth=1)
    read(model)
    with torch.no_grad():
        model.queries[1].normal_()
    assert kc.read(model, VECTORS).network.nodes_of(L.Opaque)


def test_streams_that_start_as_multiples() -> None:
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


PARTS: dict[str, Any] = {
    "start": lambda m, x: x.unsqueeze(-2).repeat(1, 1, 3, 1),
    "seen": lambda m, h: torch.einsum("n,btnd->btd", m.w, h),
    "put": lambda m, h, y: h + y.unsqueeze(-2),
    "out": lambda m, h: h.sum(-2),
}


def parallel(m: Any, x: Any) -> Any:
    h = PARTS["start"](m, m.embed(x))
    one, two = (layer(PARTS["seen"](m, h).relu()).unsqueeze(-2) for layer in (m.one, m.two))
    return (h + one + two).sum(-2)


def mixed(width: int = 8, **given: Any) -> Any:
    """A branch around streams, written with some functions of a test."""
    parts = PARTS | given

    def forward(m: Any, x: Any) -> Any:
        h = parts["start"](m, m.embed(x))
        seen = parts["seen"](m, h)
        return parts["out"](m, parts["put"](m, h, m.one(seen.relu()) * m.two(seen)))

    torch.manual_seed(0)
    layers = {name: torch.nn.Linear(width, width, bias=False) for name in ("embed", "one", "two")}
    model: Any = Model(given.get("forward", forward), **layers)
    model.w = torch.nn.Parameter(torch.linspace(-1, 1.5, 3))
    return model


def test_views_of_streams_made_without_gradients() -> None:
    """A branch reads the sum twice; the readout has another shape."""

    def repeated(m: Any, x: Any) -> Any:
        with torch.no_grad():
            gains = m.w.exp()[:, None]
        return gains * x.unsqueeze(-2).repeat(1, 1, 3, 1)

    model = mixed(
        4,
        start=repeated,
        seen=lambda m, h: (m.w[None] @ h).squeeze(-2),
        out=lambda m, h: h.flatten(0, 1).sum(-2),
    )
    net = read(model, (2, 5, 4)).network
    embed, one, two = (4 * rms(layer.weight) ** 2 for layer in (model.embed, model.one, model.two))
    gains = model.w.detach().exp()
    start, seen = float(gains.sum()), float(model.w.detach() @ gains)
    branch = (one * seen**2 * embed / 2) * (two * seen**2 * embed)
    assert kc.q_map(net)(1.0) == pytest.approx(start**2 * embed + 9 * branch, rel=1e-9)


def test_a_sum_over_locations_is_no_stream() -> None:
    read(mixed(forward=lambda m, x: x + m.one(x.mean(1)).unsqueeze(1)), (2, 5, 8))


@pytest.mark.parametrize(
    "given",
    [
        {"seen": lambda m, h: (h.mean(-1, keepdim=True).sigmoid() * h).sum(-2)},
        {"put": lambda m, h, y: h + h.mean(-1, keepdim=True).sigmoid() * y.unsqueeze(-2)},
        {"out": lambda m, h: (h.mean(-1, keepdim=True).sigmoid() * h).sum(-2)},
        {"out": lambda m, h: h.sum(-2) + h[..., 0, :].tanh()},
        {"put": lambda m, h, y: h.tanh() + y.unsqueeze(-2)},
        {"start": lambda m, x: x.unsqueeze(-2) * torch.linspace(0.5, 2, 24).view(3, 8)},
        {"forward": parallel},
    ],
)
def test_streams_that_are_not_read(given: dict[str, Any]) -> None:
    """Weights that depend on the input or the channel, and streams that no sum makes or reads."""
    assert kc.read(mixed(**given), (2, 5, 8)).network.nodes_of(L.Opaque)
