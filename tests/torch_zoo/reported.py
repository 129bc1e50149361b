"""Models of which something has no rule, and is reported."""

from __future__ import annotations

from typing import Any

import sympy as sp
import torch
from torch import nn

import kcalc as kc
from kcalc.activations import X
from kcalc.network.layers import (
    Affine,
    Concat,
    Flatten,
    Input,
    Nonlinear,
    Opaque,
    Product,
    Sum,
)

from .twin import RELU, Twin, conv, entry


class Highway(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.gate, self.branch, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        gate = torch.sigmoid(self.gate(x))
        return self.out(gate * torch.relu(self.branch(x)) + (1 - gate) * x)


@entry
def highway() -> Any:
    t = Twin()
    x = t.line(t(Input(8)), Affine(8))
    z = t(Affine(8), x)
    carry = t(Nonlinear(1 - 1 / (1 + sp.exp(-X))), z)
    gated = t(Product(), t(Nonlinear("sigmoid"), z), t.line(x, Affine(8), RELU))
    return Highway(), ((2, 8),), t.network(t(Affine(8), t(Sum(), gated, t(Product(), carry, x))))


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.cell, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for _ in range(2):
            x = torch.tanh(self.cell(x))
        return self.out(x)


@entry
def shared_weights() -> Any:
    reason = "its weights are those of 'cell', and kcalc needs independent weights in every layer"
    cell = [Affine(8), Nonlinear("tanh"), Opaque("shared weights", reason, 8), Nonlinear("tanh")]
    return Shared(), ((2, 8),), kc.chain(Input(8), Affine(8), *cell, Affine(2))


class Views(nn.Module):
    """An image beside numbers: locations become channels before the concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.numbers, self.out = (
            nn.Conv2d(3, 4, 3, padding=1),
            nn.Linear(5, 64),
            nn.Linear(4 * 64 + 64, 2),
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.out(
            torch.cat([torch.tanh(self.image(x)).flatten(1), torch.relu(self.numbers(y))], 1)
        )


@entry
def views() -> Any:
    t = Twin()
    x = t.line(t(Input(3, (8, 8))), conv(4, bias=True), Nonlinear("tanh"), Flatten())
    y = t.line(t(Input(5)), Affine(64), RELU)
    return Views(), ((2, 3, 8, 8), (2, 5)), t.network(t(Affine(2), t(Concat((256, 64)), x, y)))
