"""How an entry is written down: its model and, node by node, the network that it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

import kcalc as kc
from kcalc.network.layers import Affine, Nonlinear  # fmt: skip

ZOO: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...], kc.Network]]] = {}
RELU = Nonlinear("relu")


def entry(make: Callable[[], Any]) -> Callable[[], Any]:
    ZOO[make.__name__] = make
    return make


class Model(nn.Module):
    """A function of submodules and inputs."""

    def __init__(self, function: Callable[..., Any], **modules: Any) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


class Twin:
    """A network written down node by node."""

    def __init__(self) -> None:
        self.steps: list[Any] = []

    def __call__(self, layer: Any, *parents: str) -> str:
        name = f"n{len(self.steps)}"
        self.steps.append((name, layer, parents))
        return name

    def line(self, start: str, *layers: Any) -> str:
        for layer in layers:
            start = self(layer, start)
        return start

    def network(self, *outputs: str) -> kc.Network:
        return kc.Network.from_steps(self.steps, outputs or None)


def conv(features: int, kernel: int = 3, *more: Any) -> Affine:
    """A convolution without biases."""
    return Affine(features, kernel, *more, bias=False)
