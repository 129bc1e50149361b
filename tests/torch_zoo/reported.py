"""Models of which something has no rule, and is reported."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import kcalc as kc
from kcalc.network.layers import (
    Affine,
    Concat,
    Embedding,
    Flatten,
    Input,
    Nonlinear,
    Opaque,
    Pool,
    Resize,
)

from .twin import RELU, Model, Twin, entry

TANH = Nonlinear("tanh")


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
        a = m.down(x)
        z = m.up(m.bottom(m.pool(a)))
        return m.out(m.join(torch.cat([z, a], 1)))

    sizes = {"down": (3, 8), "bottom": (8, 16), "join": (18, 8)}
    model = Model(
        run,
        **{name: double(*size) for name, size in sizes.items()},
        pool=nn.MaxPool2d(2),
        up=nn.ConvTranspose2d(16, 10, 2, 2),
        out=nn.Conv2d(8, 1, 1),
    )
    t = Twin()

    def twice(start: str, width: int, *first: Any) -> str:
        return t.line(start, *first, Affine(width, 3), RELU, Affine(width, 3), RELU)

    a = twice(t(Input(3, (16, 16))), 8)
    z = t.line(twice(a, 16, Pool("max", 2)), Resize(2, "zeros", 1), Affine(10, 2))
    t(Affine(1), twice(t(Concat(), z, a), 8))
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
