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
    Embedding,
    Input,
    Nonlinear,
    Opaque,
    Product,
    Sum,
)

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
    reason = "it shares its weights with 'cell', but kcalc needs independent weights in every layer"
    cell = [Affine(8), Nonlinear("tanh"), Opaque("shared weights", reason, 8), Nonlinear("tanh")]
    return Shared(), ((2, 8),), kc.chain(Input(8), Affine(8), *cell, Affine(2))


class Recommender(nn.Module):
    """Tables of several widths beside numbers, joined by concatenation (DLRM)."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.tables = nn.ModuleList([nn.EmbeddingBag(50, width) for width in (4, 12)])
        self.top = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
        return self.top(
            torch.cat(
                [
                    self.bottom(x),
                    *(table(row) for table, row in zip(self.tables, rows, strict=True)),
                ],
                1,
            )
        )


@entry
def recommender() -> Any:
    t = Twin()
    x = t.line(t(Input(13)), Affine(32), RELU, Affine(16), RELU)
    looked_up = [t(Embedding(width, 50, 3**-0.5), t(Input())) for width in (4, 12)]
    example = (torch.randn(2, 13), *(torch.randint(0, 50, (2, 3)) for _ in looked_up))
    return (
        Recommender(),
        example,
        t.network(t.line(t(Concat(), x, *looked_up), Affine(32), RELU, Affine(1))),
    )
