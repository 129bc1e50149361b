"""Networks for other things than classes of images: segmentation, audio, sequences of tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import kcalc as kc
from kcalc.network.layers import (
    Affine,
    Attend,
    Concat,
    Input,
    LayerNorm,
    Nonlinear,
    Pool,
    Resize,
    Sum,
)

from .twin import RELU, Model, Twin, entry


@entry
def unet() -> Any:
    def run(m: Any, x: Any) -> Any:
        a = F.relu(m.down1(x))
        b = F.relu(m.down2(F.max_pool2d(a, 2)))
        c = F.relu(m.middle(F.max_pool2d(b, 2)))
        y = F.relu(m.up2(torch.cat([m.upsample(c), b], 1)))
        y = F.relu(m.up1(torch.cat([F.interpolate(y, scale_factor=2, mode="nearest"), a], 1)))
        return m.out(y)

    sizes = {"down1": (3, 8), "down2": (8, 16), "middle": (16, 16), "up2": (32, 8), "up1": (16, 8)}
    convs = {name: nn.Conv2d(*size, 3, padding=1) for name, size in sizes.items()}
    model = Model(run, **convs, upsample=nn.Upsample(scale_factor=2), out=nn.Conv2d(8, 2, 1))
    t = Twin()
    a = t.line(t(Input(3, (16, 16))), Affine(8, 3), RELU)
    b = t.line(a, Pool("max", 2), Affine(16, 3), RELU)
    c = t.line(b, Pool("max", 2), Affine(16, 3), RELU, Resize(2))
    y = t.line(t(Concat(), c, b), Affine(8, 3), RELU, Resize(2))
    t.line(t(Concat(), y, a), Affine(8, 3), RELU, Affine(2))
    return model, ((2, 3, 16, 16),), t.network()


@entry
def audio_conv1d() -> Any:
    model = nn.Sequential(
        nn.Conv1d(2, 8, 5, stride=2, padding=2),
        nn.LeakyReLU(0.01),
        nn.MaxPool1d(2),
        nn.Conv1d(8, 8, 3, padding=1),
        nn.Softplus(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    first = Affine(8, 5, 2), Nonlinear("leaky_relu"), Pool("max", 2)
    last = Affine(8, 3), Nonlinear("softplus"), Pool("mean"), Affine(3)
    return model, ((2, 2, 31),), kc.chain(Input(2, (31,)), *first, *last)


@entry
def transformer_block() -> Any:
    def run(m: Any, x: Any) -> Any:
        y = m.norm1(x)
        x = x + m.attn(y, y, y)[0]
        return x + m.mlp(m.norm2(x))

    model = Model(
        run,
        norm1=nn.LayerNorm(16),
        norm2=nn.LayerNorm(16),
        attn=nn.MultiheadAttention(16, 2, batch_first=True),
        mlp=nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)),
    )
    t = Twin()
    x = t(Input(16, (5,)))
    y = t(LayerNorm(), x)
    attended = t(Attend(2, 8), *(t(Affine(16), y) for _ in range(3)))
    x = t(Sum(), x, t(Affine(16), attended))
    t(Sum(), x, t.line(x, LayerNorm(), Affine(64), Nonlinear("gelu"), Affine(16)))
    return model, ((2, 5, 16),), t.network()
