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

from .twin import RELU, Model, Twin, entry

TANH = Nonlinear("tanh")


@entry
def highway() -> Any:
    def run(m: Any, x: Any) -> Any:
        x = m.stem(x)
        gate = torch.sigmoid(m.gate(x))
        return m.out(gate * torch.relu(m.branch(x)) + (1 - gate) * x)

    t = Twin()
    x = t.line(t(Input(8)), Affine(8))
    z = t(Affine(8), x)
    carry = t(Nonlinear(1 - 1 / (1 + sp.exp(-X))), z)
    gated = t(Product(), t(Nonlinear("sigmoid"), z), t.line(x, Affine(8), RELU))
    t(Affine(8), t(Sum(), gated, t(Product(), carry, x)))
    parts = {name: nn.Linear(8, 8) for name in ("stem", "gate", "branch", "out")}
    return Model(run, **parts), ((2, 8),), t.network()


@entry
def shared_weights() -> Any:
    def run(m: Any, x: Any) -> Any:
        return m.out(torch.tanh(m.cell(torch.tanh(m.cell(m.stem(x))))))

    reason = "it shares its weights with 'cell', but kcalc needs independent weights in every layer"
    twin = Input(8), Affine(8), Affine(8), TANH, Opaque("shared weights", reason, 8), TANH
    model = Model(run, stem=nn.Linear(8, 8), cell=nn.Linear(8, 8), out=nn.Linear(8, 2))
    return model, ((2, 8),), kc.chain(*twin, Affine(2))


def double(inputs: int, outputs: int) -> nn.Module:
    first, last = (nn.Conv2d(n, outputs, 3, padding=1) for n in (inputs, outputs))
    return nn.Sequential(first, nn.ReLU(), last, nn.ReLU())


@entry
def transposed_unet() -> Any:
    def run(m: Any, x: Any) -> Any:
        a = m.down1(x)
        b = m.down2(m.pool(a))
        z = m.bottom(m.pool(b))
        z = m.join2(torch.cat([m.up2(z), b], 1))
        return m.out(m.join1(torch.cat([m.up1(z), a], 1)))

    sizes = {"down1": (3, 8), "down2": (8, 16), "bottom": (16, 32), "join2": (28, 16)}
    model = Model(
        run,
        **{name: double(*size) for name, size in sizes.items()},
        join1=double(18, 8),
        pool=nn.MaxPool2d(2),
        up2=nn.ConvTranspose2d(32, 12, 2, 2),
        up1=nn.ConvTranspose2d(16, 10, 2, 2),
        out=nn.Conv2d(8, 1, 1),
    )
    t = Twin()

    def twice(start: str, width: int, *first: Any) -> str:
        return t.line(start, *first, Affine(width, 3), RELU, Affine(width, 3), RELU)

    def up(start: str, width: int, skip: str) -> str:
        return t(Concat(), t.line(start, Resize(2, "zeros", 1), Affine(width, 2)), skip)

    a = twice(t(Input(3, (16, 16))), 8)
    b = twice(a, 16, Pool("max", 2))
    z = twice(up(twice(b, 32, Pool("max", 2)), 12, b), 16)
    t(Affine(1), twice(up(z, 10, a), 8))
    return model, ((2, 3, 16, 16),), t.network()


@entry
def recommender() -> Any:
    """Tables of several widths beside numbers, joined by concatenation (DLRM)."""

    def run(m: Any, x: Any, *rows: Any) -> Any:
        looked_up = (table(row) for table, row in zip(m.tables, rows, strict=True))
        return m.top(torch.cat([m.bottom(x), *looked_up], 1))

    model = Model(
        run,
        bottom=nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU()),
        tables=nn.ModuleList(nn.EmbeddingBag(50, width) for width in (4, 12)),
        top=nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)),
    )
    t = Twin()
    x = t.line(t(Input(13)), Affine(32), RELU, Affine(16), RELU)
    looked_up = [t(Embedding(width, 50, 3**-0.5), t(Input())) for width in (4, 12)]
    t.line(t(Concat(), x, *looked_up), Affine(32), RELU, Affine(1))
    example = (torch.randn(2, 13), *(torch.randint(0, 50, (2, 3)) for _ in looked_up))
    return model, example, t.network()


@entry
def views() -> Any:
    """An image beside numbers: locations become channels before the concatenation."""

    def run(m: Any, x: Any, y: Any) -> Any:
        return m.out(torch.cat([torch.tanh(m.image(x)).flatten(1), torch.relu(m.numbers(y))], 1))

    parts = {"numbers": nn.Linear(5, 64), "out": nn.Linear(4 * 64 + 64, 2)}
    model = Model(run, image=nn.Conv2d(3, 4, 3, padding=1), **parts)
    t = Twin()
    x = t.line(t(Input(3, (8, 8))), Affine(4, 3), TANH, Flatten())
    y = t.line(t(Input(5)), Affine(64), RELU)
    t(Affine(2), t(Concat((256, 64)), x, y))
    return model, ((2, 3, 8, 8), (2, 5)), t.network()
