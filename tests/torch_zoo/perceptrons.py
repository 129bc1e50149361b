"""Multilayer perceptrons, written in several ways."""

from __future__ import annotations

import math
from typing import Any

import sympy as sp
import torch
from torch import nn
from torch.nn import functional as F

import kcalc as kc
from kcalc.activations import X
from kcalc.network.layers import Affine, Concat, Dropout, Input, Nonlinear, Pool, Sum  # fmt: skip

from .twin import RELU, Twin, conv, entry


@entry
def mlp_modules() -> Any:
    model = nn.Sequential(
        nn.Linear(20, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Dropout(0.1),
        nn.Linear(64, 10),
    )
    twin = kc.chain(
        Input(20),
        Affine(64),
        Nonlinear("relu"),
        Affine(64),
        Nonlinear("tanh"),
        Dropout(0.1),
        Affine(10),
    )
    return model, ((4, 20),), twin


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(20, 32), nn.Linear(32, 32, bias=False)
        self.weight = nn.Parameter(torch.randn(32, 5) / 6)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = F.gelu(self.first(x.flatten(1)))
        x = F.dropout(F.elu(self.second(x)), 0.25, self.training)
        return {"logits": x @ self.weight}


@entry
def mlp_functional() -> Any:
    twin = kc.chain(
        Input(20),
        Affine(32),
        Nonlinear("gelu"),
        Affine(32, bias=False),
        Nonlinear("elu"),
        Dropout(0.25),
        Affine(5, bias=False),
    )
    return Functional(), ((3, 20),), twin


class ByHand(nn.Module):
    """Activations as people type them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(7)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](x)
        x = self.layers[1](x * torch.sigmoid(x))
        x = self.layers[2](x * torch.tanh(F.softplus(x)))
        x = self.layers[3](
            0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        )
        x = self.layers[4](x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))))
        x = self.layers[5](torch.where(x > 0, x, 0.2 * x))
        return self.layers[6](torch.sin(x) ** 2 + x)


@entry
def hand_written_activations() -> Any:
    leaky = kc.activation(sp.Piecewise((X / 5, X < 0), (X, True)))
    names = ("swish", "mish", "gelu_tanh", "gelu", leaky, "snake")
    twin = kc.chain(
        Input(16), Affine(16), *(layer for name in names for layer in (Nonlinear(name), Affine(16)))
    )
    return ByHand(), ((2, 16),), twin


class WeightedResidual(nn.Module):
    def __init__(self, width: int = 24, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.branches = nn.ModuleList(
            [nn.Sequential(nn.Tanh(), nn.Linear(width, width)) for _ in range(blocks)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for branch in self.branches:
            x = 0.6 * x + 0.8 * branch(x)
        return x


@entry
def scalar_weighted_residuals() -> Any:
    t = Twin()
    x = t.line(t(Input(24)), Affine(24))
    for _ in range(3):
        x = t(Sum((0.6, 0.8)), x, t.line(x, Nonlinear("tanh"), Affine(24)))
    return WeightedResidual(), ((2, 24),), t.network()


class Crelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(16, 8, 3, padding=1),
            nn.Linear(16, 4),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.one, self.two):
            x = layer(x)
            x = torch.cat([F.relu(x), F.relu(-x)], dim=1)
        return self.out(x.mean(dim=(-2, -1)))


@entry
def crelu() -> Any:
    t = Twin()
    x = t(Input(3, (8, 8)))
    for _ in range(2):
        x = t(conv(8, bias=True), x)
        x = t(Concat(), t(RELU, x), t(Nonlinear(sp.Max(-X, 0)), x))
    return Crelu(), ((2, 3, 8, 8),), t.network(t.line(x, Pool("mean"), Affine(4)))


class TwoTowers(nn.Module):
    """Two inputs in a dictionary, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 16), nn.Linear(9, 16)
        self.mean, self.spread = nn.Linear(32, 2), nn.Linear(32, 2)

    def forward(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.cat([torch.tanh(self.left(batch["a"])), torch.tanh(self.right(batch["b"]))], -1)
        return self.mean(h), F.softplus(self.spread(h))


@entry
def two_inputs_two_outputs() -> Any:
    t = Twin()
    a, b = t(Input(6)), t(Input(9))
    h = t(
        Concat(), t.line(a, Affine(16), Nonlinear("tanh")), t.line(b, Affine(16), Nonlinear("tanh"))
    )
    ends = t(Affine(2), h), t.line(h, Affine(2), Nonlinear("softplus"))
    return TwoTowers(), ({"a": torch.randn(3, 6), "b": torch.randn(3, 9)},), t.network(*ends)
