"""Weights and biases that are not independent draws are noted, and those of the usual initialisers
are not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kcalc as kc

torch = pytest.importorskip("torch")
nn = torch.nn
N = 512
Q, C = 1.3, 0.4


def gaussian(inputs: int = N) -> Any:
    return holding(torch.randn(N, inputs) / inputs**0.5)


def holding(weight: Any, bias: Any = None) -> Any:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight.data = weight
    if bias is not None:
        layer.bias.data = bias
    return layer


def between(layer: Any, phi: Any = nn.Tanh) -> Any:
    return nn.Sequential(gaussian(), phi(), layer, phi(), gaussian())


def measured(model: Any) -> tuple[float, float]:
    """q of the output for an input of q = Q, and the cosine of the outputs of two such inputs with
    cosine C.
    """
    x, y = torch.randn(2, N)
    x = x / x.square().mean().sqrt()
    y = y - (x * y).mean() * x
    y = C * x + (1 - C * C) ** 0.5 * y / y.square().mean().sqrt()
    with torch.no_grad():
        a, b = model(Q**0.5 * torch.stack([x, y])).double()
    return float((a * a).mean()), float((a * b).mean() / ((a * a).mean() * (b * b).mean()).sqrt())


def mirrored() -> Any:
    half = torch.randn(N // 2, N // 2) / (N // 2) ** 0.5
    return torch.cat([torch.cat([half, -half], 1), torch.cat([-half, half], 1)])


def looks_linear() -> Any:
    first = torch.randn(N // 2, N) / N**0.5
    layers = torch.cat([first, -first]), mirrored(), mirrored()
    return nn.Sequential(*(m for w in layers for m in (holding(w), nn.ReLU())))[:-1]


def mean_removed() -> Any:
    weight = torch.randn(N, N) / N**0.5
    return between(holding(weight, -0.4 * weight.sum(1)), nn.ReLU)


def triangle() -> Any:
    weight = torch.randn(N, N) / N**0.5
    return between(holding(weight.tril() * torch.linspace(0, 3, N)[:, None]))


WRONG: dict[str, Callable[[], Any]] = {
    "a triangle": triangle,
    "looks linear": looks_linear,
    "biases that take off a mean": mean_removed,
    "one input number": lambda: nn.Sequential(nn.Linear(1, 4 * N), nn.Tanh(), gaussian(4 * N)),
}


@pytest.mark.parametrize("name", WRONG)
def test_structured_weights_and_biases_are_noted_and_matter(name: str) -> None:
    torch.manual_seed(0)
    model = WRONG[name]()
    width = model[0].in_features
    reading = kc.read(model, (2, width))
    assert reading.fidelity.level == "approximate", reading
    expected = float(kc.q_map(reading.network)(Q))
    if width == 1:
        with torch.no_grad():
            truth = float(model(torch.full((1, 1), Q**0.5)).square().mean())
        assert abs(expected / truth - 1) > 0.05
        return
    q, c = measured(model)
    found = float(kc.c_map(reading.network)(C, q1=Q))
    assert abs(expected / q - 1) > 0.05 or abs(found - c) > 0.05
