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
    Flatten,
    Input,
    Nonlinear,
    Opaque,
    Pool,
    Product,
    Resize,
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
    reason = "it shares its weights with 'cell', but kcalc needs independent weights in every layer"
    cell = [Affine(8), Nonlinear("tanh"), Opaque("shared weights", reason, 8), Nonlinear("tanh")]
    return Shared(), ((2, 8),), kc.chain(Input(8), Affine(8), *cell, Affine(2))


def double(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.ReLU(),
    )


class TransposedUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom, self.pool = (
            double(3, 8),
            double(8, 16),
            double(16, 32),
            nn.MaxPool2d(2),
        )
        self.up2, self.up1 = nn.ConvTranspose2d(32, 12, 2, 2), nn.ConvTranspose2d(16, 10, 2, 2)
        self.join2, self.join1, self.out = double(28, 16), double(18, 8), nn.Conv2d(8, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down1(x)
        b = self.down2(self.pool(a))
        z = self.bottom(self.pool(b))
        z = self.join2(torch.cat([self.up2(z), b], 1))
        return self.out(self.join1(torch.cat([self.up1(z), a], 1)))


@entry
def transposed_unet() -> Any:
    t = Twin()

    def twice(start: str, width: int) -> str:
        return t.line(start, conv(width, bias=True), RELU, conv(width, bias=True), RELU)

    def up(start: str, width: int, skip: str) -> str:
        made = t.line(start, Resize(2, "zeros", 1), conv(width, 2, bias=True))
        return t(Concat(), made, skip)

    a = twice(t(Input(3, (16, 16))), 8)
    b = twice(t(Pool("max", 2), a), 16)
    z = twice(t(Pool("max", 2), b), 32)
    z = twice(up(z, 12, b), 16)
    return (
        TransposedUNet(),
        ((2, 3, 16, 16),),
        t.network(t(conv(1, 1, bias=True), twice(up(z, 10, a), 8))),
    )


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
