"""Shaped models compute their shaped networks, whatever they are made of."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

import kcalc as kc  # noqa: E402

N = 16


def test_quantised_layers_beside_edits():
    quantise = pytest.importorskip("torch.ao.quantization").quantize_dynamic
    net = nn.Sequential(nn.Linear(N, N), nn.ReLU(), nn.Linear(N, 2))
    try:
        small = quantise(net, {nn.Linear}, dtype=torch.qint8)
        small(torch.randn(2, N))
    except Exception as error:  # builds without a quantised engine
        pytest.skip(str(error))
    edits = kc.shape(kc.read(net, torch.randn(2, N))).edits
    with pytest.raises(kc.KcalcError):
        kc.apply_edits(small, edits)


class Shaped:
    """Activations and sums of shaped networks, in the order in which the model runs them."""

    def __init__(self, s: Any) -> None:
        networks = getattr(s, "networks", None) or (s.network,)
        steps = {str(node): layer for n in networks for node, layer, _ in n.steps()}
        layers = [steps.get(str(node)) for node in s.reading.unmerged]
        self.activations = [
            each.activation for each in layers if isinstance(each, kc.layers.Nonlinear)
        ]
        self.sums = [each.weights for each in layers if isinstance(each, kc.layers.Sum)]
        self.used = [0, 0]

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func.__name__
        if name == "batch_norm":
            return args[0]
        if name in ("relu", "gelu"):
            phi = self.activations[self.used[0]]
            self.used[0] += 1
            options = {key: value for key, value in kwargs.items() if key != "inplace"}
            y = changed(phi, args[0], lambda u: func(u, **options))
            return args[0].copy_(y) if kwargs.get("inplace") else y
        tensors = all(isinstance(arg, torch.Tensor) and arg.ndim == 4 for arg in args[:2])
        if name in ("add_", "__iadd__", "add", "__add__") and tensors:
            first, second = (float(w) for w in self.sums[self.used[1]])
            self.used[1] += 1
            return first * args[0] + second * args[1]
        return None


def changed(phi: Any, x: Any, function: Any) -> Any:
    """The transformed activation, a leaky rectifier by its two halves."""
    change = phi.transformation
    a, b, scale, shift = (1.0, 0.0, 1.0, 0.0)
    if change is not None:
        names = ("input_scale", "input_shift", "output_scale", "output_shift")
        a, b, scale, shift = (float(getattr(change, name)) for name in names)
    u = a * x + b
    slope = getattr(phi if change is None else phi.base, "negative_slope", None)
    y = function(u) if slope is None else torch.where(u > 0, u, float(slope) * u)
    return scale * (y + shift)
