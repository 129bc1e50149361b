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

from .twin import RELU, Model, Twin, entry

TANH = Nonlinear("tanh")


@entry
def mlp_functional() -> Any:
    def run(m: Any, x: Any) -> Any:
        x = F.gelu(m.first(x.flatten(1)))
        return {"logits": F.dropout(F.elu(m.second(x)), 0.25, m.training) @ m.weight}

    model = Model(run, first=nn.Linear(20, 32), second=nn.Linear(32, 32, bias=False))
    model.weight = nn.Parameter(torch.randn(32, 5) / 6)
    first = Input(20), Affine(32), Nonlinear("gelu"), Affine(32, bias=False), Nonlinear("elu")
    return model, ((3, 20),), kc.chain(*first, Dropout(0.25), Affine(5, bias=False))


def by_hand(m: Any, x: Any) -> Any:
    """Activations as people type them."""
    x = m.layers[0](x)
    x = m.layers[1](x * torch.sigmoid(x))
    x = m.layers[2](x * torch.tanh(F.softplus(x)))
    x = m.layers[3](0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    x = m.layers[4](x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))))
    x = m.layers[5](torch.where(x > 0, x, 0.2 * x))
    return m.layers[6](torch.sin(x) ** 2 + x)


@entry
def hand_written_activations() -> Any:
    leaky = kc.activation(sp.Piecewise((X / 5, X < 0), (X, True)))
    names = "swish", "mish", "gelu_tanh", "gelu", leaky, "snake"
    twin = [layer for name in names for layer in (Nonlinear(name), Affine(16))]
    model = Model(by_hand, layers=nn.ModuleList(nn.Linear(16, 16) for _ in range(7)))
    return model, ((2, 16),), kc.chain(Input(16), Affine(16), *twin)


@entry
def scalar_weighted_residuals() -> Any:
    def run(m: Any, x: Any) -> Any:
        x = m.stem(x)
        for branch in m.branches:
            x = 0.6 * x + 0.8 * branch(x)
        return x

    branches = nn.ModuleList(nn.Sequential(nn.Tanh(), nn.Linear(24, 24)) for _ in range(3))
    t = Twin()
    x = t.line(t(Input(24)), Affine(24))
    for _ in range(3):
        x = t(Sum((0.6, 0.8)), x, t.line(x, TANH, Affine(24)))
    return Model(run, stem=nn.Linear(24, 24), branches=branches), ((2, 24),), t.network()


@entry
def crelu() -> Any:
    def run(m: Any, x: Any) -> Any:
        for layer in (m.one, m.two):
            x = layer(x)
            x = torch.cat([F.relu(x), F.relu(-x)], dim=1)
        return m.out(x.mean(dim=(-2, -1)))

    convs = {name: nn.Conv2d(n, 8, 3, padding=1) for name, n in (("one", 3), ("two", 16))}
    t = Twin()
    x = t(Input(3, (8, 8)))
    for _ in range(2):
        x = t(Affine(8, 3), x)
        x = t(Concat(), t(RELU, x), t(Nonlinear(sp.Max(-X, 0)), x))
    t.line(x, Pool("mean"), Affine(4))
    return Model(run, **convs, out=nn.Linear(16, 4)), ((2, 3, 8, 8),), t.network()


@entry
def two_inputs_two_outputs() -> Any:
    """Two inputs in a dictionary, two outputs."""

    def run(m: Any, batch: Any) -> Any:
        h = torch.cat([torch.tanh(m.left(batch["a"])), torch.tanh(m.right(batch["b"]))], -1)
        return m.mean(h), F.softplus(m.spread(h))

    sizes = {"left": (6, 16), "right": (9, 16), "mean": (32, 2), "spread": (32, 2)}
    model = Model(run, **{name: nn.Linear(*size) for name, size in sizes.items()})
    t = Twin()
    inputs = t(Input(6)), t(Input(9))
    h = t(Concat(), *(t.line(x, Affine(16), TANH) for x in inputs))
    ends = t(Affine(2), h), t.line(h, Affine(2), Nonlinear("softplus"))
    return model, ({"a": torch.randn(3, 6), "b": torch.randn(3, 9)},), t.network(*ends)
