"""A network of kcalc as a PyTorch module that computes it, as a user would write it down."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatchmethod
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


def _pairs(size: Any, sides: int) -> tuple[int, ...]:
    return (size,) * sides if isinstance(size, int) else tuple(size)


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

    @singledispatchmethod
    def part(self, layer: Any, width: int) -> nn.Module | None:
        return None

    @part.register
    def _(self, layer: L.Affine, width: int) -> nn.Module:
        if layer.standardised or not isinstance(width, int):
            raise Untold
        if not isinstance(layer.kernel, int) or layer.kernel > 1 or layer.groups > 1:
            if self.axis != 1:
                raise Untold
            padding, mode = layer.padding, "zeros"
            if padding == "circular":
                padding, mode = 1, "circular"
            if padding == "same" and layer.stride != 1:
                padding = 1
            options = {"groups": layer.groups, "bias": layer.bias, "padding_mode": mode}
            sizes = layer.features, layer.kernel, layer.stride, padding
            return nn.Conv2d(width, *sizes, **options)
        return nn.Linear(width, layer.features, bias=layer.bias)

    @part.register
    def _(self, layer: L.Normalisation, width: int) -> nn.Module | None:
        if isinstance(layer, L.BatchNorm):
            return nn.BatchNorm2d(width) if self.axis == 1 else nn.BatchNorm1d(width)
        if isinstance(layer, L.GroupNorm):
            return nn.GroupNorm(layer.groups, width)
        return (nn.RMSNorm if isinstance(layer, L.RMSNorm) else nn.LayerNorm)(width)

    @part.register
    def _(self, layer: L.Embedding, width: int) -> nn.Module:
        raise Untold

    # -- what is computed

    def channels_last(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        return function(x.movedim(1, -1)).movedim(-1, 1) if x.ndim == 4 else function(x)

    @singledispatchmethod
    def run(self, layer: Any, node: Any, *inputs: Tensor) -> Tensor:
        raise Untold

    @run.register
    def _(self, layer: L.Affine | L.LayerNorm | L.RMSNorm, node: Any, x: Tensor) -> Tensor:
        module = self.parts[node]
        return module(x) if isinstance(module, nn.Conv2d) else self.channels_last(x, module)

    @run.register
    def _(self, layer: L.GroupNorm | L.BatchNorm, node: Any, x: Tensor) -> Tensor:
        if x.ndim == 3 or (isinstance(self.parts[node], nn.BatchNorm2d) and x.ndim == 2):
            raise Untold
        return self.parts[node](x)

    @run.register
    def _(self, layer: L.Nonlinear, node: Any, x: Tensor) -> Tensor:
        if layer.activation.name not in FUNCTIONS:
            raise Untold
        return FUNCTIONS[layer.activation.name](x)

    @run.register
    def _(self, layer: L.Sum, node: Any, *inputs: Tensor) -> Tensor:
        weights = layer.weights or (1,) * len(inputs)
        return sum((float(w) * x for w, x in zip(weights, inputs, strict=True)), torch.zeros(()))

    @run.register
    def _(self, layer: L.Product, node: Any, first: Tensor, *rest: Tensor) -> Tensor:
        for x in rest:
            first = first * x
        return first

    @run.register
    def _(self, layer: L.GatedUnit, node: Any, value: Tensor, gate: Tensor) -> Tensor:
        return value * FUNCTIONS[layer.activation.name](gate)

    @run.register
    def _(self, layer: L.Concat, node: Any, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, dim=1 if inputs[0].ndim == 4 else -1)

    @run.register
    def _(self, layer: L.Scale, node: Any, x: Tensor) -> Tensor:
        return float(layer.factor) * x

    @run.register
    def _(self, layer: L.Identity, node: Any, x: Tensor) -> Tensor:
        return x

    @run.register
    def _(self, layer: L.Dropout, node: Any, x: Tensor) -> Tensor:
        return F.dropout(x, float(layer.rate), self.training)

    @run.register
    def _(self, layer: L.Flatten, node: Any, x: Tensor) -> Tensor:
        return x.flatten(1)

    @run.register
    def _(self, layer: L.Opaque, node: Any, x: Tensor) -> Tensor:
        return x.sort(dim=-1)[0]

    @run.register
    def _(self, layer: L.Pool, node: Any, x: Tensor) -> Tensor:
        if x.ndim == 2 or layer.kind == "weighted_mean":
            raise Untold
        if layer.window is None:
            return x.mean((2, 3), keepdim=True) if x.ndim == 4 else x.mean(1, keepdim=True)
        if x.ndim == 3:
            raise Untold
        pool = F.max_pool2d if layer.kind == "max" else F.avg_pool2d
        return pool(x, _pairs(layer.window, 2))

    @run.register
    def _(self, layer: L.TokenMix, node: Any, x: Tensor) -> Tensor:
        matrix = torch.tensor(layer.array, dtype=x.dtype)
        if x.ndim == 4:
            return (x.flatten(2) @ matrix.T).view(x.shape)
        return torch.einsum("ts,bsc->btc", matrix, x)

    @run.register
    def _(self, layer: L.Attend, node: Any, *inputs: Tensor) -> Tensor:
        if layer.identity or layer.centre or layer.rotary or layer.alibi or layer.scale != "sqrt":
            raise Untold
        if inputs[0].ndim != 3:
            raise Untold
        heads = (x.view(*x.shape[:2], layer.heads, -1).transpose(1, 2) for x in inputs)
        found = F.scaled_dot_product_attention(*heads, is_causal=layer.causal)
        return found.transpose(1, 2).flatten(2)


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
