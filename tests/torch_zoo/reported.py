"""Models of which something has no rule, and is reported."""

from __future__ import annotations

from typing import Any

import sympy as sp
import torch
from torch import nn

import kcalc as kc
from kcalc.activations import X
from kcalc.layers import (
    Affine,
    Input,
    LayerNorm,
    Nonlinear,
    Opaque,
    Product,
    Sum,
)  # fmt: skip

from .twin import RELU, Twin, entry


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


class TransformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attn = nn.MultiheadAttention(16, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attn(y, y, y)[0]
        return x + self.mlp(self.norm2(x))


@entry
def transformer_block() -> Any:
    reason = "the weights of its sums are computed from the input; kernel maps of attention are not covered"
    t = Twin()
    x = t(Input(16, (5,)))
    x = t(Sum(), x, t.line(x, LayerNorm(), Opaque("attention", reason)))
    x = t(Sum(), x, t.line(x, LayerNorm(), Affine(64), Nonlinear("gelu"), Affine(16)))
    return TransformerBlock(), ((2, 5, 16),), t.network(x)


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
    reason = "its weights are those of 'cell', and the calculus takes every layer's as its own"
    cell = [Affine(8), Nonlinear("tanh"), Opaque("shared weights", reason), Nonlinear("tanh")]
    return Shared(), ((2, 8),), kc.chain(Input(8), Affine(8), *cell, Affine(2))
