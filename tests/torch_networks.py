"""A network of kcalc as a PyTorch module that computes it, as a user would write it down."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kcalc as kc

L = kc.layers
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "gelu": F.gelu,
    "softplus": F.softplus,
    "swish": F.silu,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "abs": torch.abs,
    "abrelu": lambda x: F.relu(x) + F.relu(-x),
    "identity": lambda x: x,
}


class Untold(Exception):
    """The network has a layer that is not written down here."""


class Written(nn.Module):
    """A module per node with weights, and the network's order.

    Channels come second in images, last in tokens.
    """

    def __init__(self, network: kc.Network) -> None:
        super().__init__()
        self.network, self.parts = network, nn.ModuleDict()
        sides = max(len(network.layer(node).image_shape or ()) for node in network.inputs)
        self.axis = 1 if sides == 2 else -1
        for node, layer, parents in network.steps():
            made = self.part(layer, network.features[parents[0]] if parents else 0)
            if made is not None:
                self.parts[node] = made

    def forward(self, *inputs: Tensor) -> Any:
        values = dict(zip(self.network.inputs, inputs, strict=True))
        for node, layer, parents in self.network.steps():
            if node not in values:
                values[node] = self.run(layer, node, *(values[p] for p in parents))
        found = tuple(values[node] for node in self.network.outputs)
        return found[0] if len(found) == 1 else found

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Those of two examples for every input."""
        found = []
        for node in self.network.inputs:
            layer = self.network.layer(node)
            sides, width = layer.image_shape or (), layer.features
            found.append((2, width, *sides) if self.axis == 1 else (2, *sides, width))
        return tuple(found)

    # -- modules that hold weights

    def part(self, layer: Any, width: Any) -> nn.Module | None:
        match layer:
            case L.Affine():
                return self.affine(layer, width)
            case L.BatchNorm():
                return nn.BatchNorm2d(width) if self.axis == 1 else nn.BatchNorm1d(width)
            case L.GroupNorm():
                return nn.GroupNorm(layer.groups, width)
            case L.RMSNorm():
                return nn.RMSNorm(width)
            case L.Normalisation():
                return nn.LayerNorm(width)
            case L.Embedding():
                raise Untold
        return None

    def affine(self, layer: L.Affine, width: Any) -> nn.Module:
        if layer.standardised or not isinstance(width, int):
            raise Untold
        if layer.kernel == layer.groups == 1:
            return nn.Linear(width, layer.features, bias=layer.bias)
        if self.axis != 1:
            raise Untold
        padding, mode = layer.padding, "zeros"
        if padding == "circular":
            padding, mode = 1, "circular"
        if padding == "same" and layer.stride != 1:
            padding = 1
        options = {"groups": layer.groups, "bias": layer.bias, "padding_mode": mode}
        return nn.Conv2d(width, layer.features, layer.kernel, layer.stride, padding, **options)

    # -- what is computed

    def run(self, layer: Any, node: Any, *inputs: Tensor) -> Tensor:
        x, axis = inputs[0], 1 if inputs[0].ndim == 4 else -1
        module: Any = dict(self.parts).get(node)
        match layer:
            case L.Affine() | L.LayerNorm() | L.RMSNorm() if not isinstance(module, nn.Conv2d):
                return module(x.movedim(axis, -1)).movedim(-1, axis)
            case L.GroupNorm() | L.BatchNorm() if x.ndim == 3 or (
                isinstance(module, nn.BatchNorm2d) and x.ndim == 2
            ):
                raise Untold
            case L.Affine() | L.GroupNorm() | L.BatchNorm():
                return module(x)
            case L.Nonlinear() if layer.activation.name in FUNCTIONS:
                return FUNCTIONS[layer.activation.name](x)
            case L.Sum():
                weights = map(float, layer.weights or (1,) * len(inputs))
                return sum(w * x for w, x in zip(weights, inputs, strict=True))
            case L.Product():
                return math.prod(inputs)
            case L.Concat():
                return torch.cat(inputs, dim=axis)
            case L.Scale():
                return float(layer.factor) * x
            case L.Identity():
                return x
            case L.Dropout():
                return F.dropout(x, float(layer.rate), self.training)
            case L.Flatten():
                return x.flatten(1)
            case L.TokenMix():
                matrix = torch.tensor(layer.array, dtype=x.dtype)
                if x.ndim == 4:
                    return (x.flatten(2) @ matrix.T).view(x.shape)
                return torch.einsum("ts,bsc->btc", matrix, x)
        raise Untold


def written(network: kc.Network) -> Written:
    """The module of a network; raises :class:`Untold` where it has none."""
    if network.free_symbols or any(
        not isinstance(network.layer(node).features, int) for node in network.inputs
    ):
        raise Untold
    model = Written(network).eval()
    with torch.no_grad():
        try:
            model(*map(torch.zeros, model.shapes()))
        except RuntimeError as error:  # sizes that PyTorch's paddings do not give
            raise Untold from error
    return model
