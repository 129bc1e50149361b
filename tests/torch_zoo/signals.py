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

from .twin import RELU, Twin, conv, entry


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.middle, self.up2, self.up1 = (
            nn.Conv2d(16, 16, 3, padding=1),
            nn.Conv2d(32, 8, 3, padding=1),
            nn.Conv2d(16, 8, 3, padding=1),
        )
        self.upsample, self.out = nn.Upsample(scale_factor=2), nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        c = F.relu(self.middle(F.max_pool2d(b, 2)))
        y = F.relu(self.up2(torch.cat([self.upsample(c), b], 1)))
        y = F.relu(self.up1(torch.cat([F.interpolate(y, scale_factor=2, mode="nearest"), a], 1)))
        return self.out(y)


@entry
def unet() -> Any:
    t = Twin()
    a = t.line(t(Input(3, (16, 16))), conv(8, bias=True), RELU)
    b = t.line(a, Pool("max", 2), conv(16, bias=True), RELU)
    c = t.line(b, Pool("max", 2), conv(16, bias=True), RELU, Resize(2))
    y = t.line(t(Concat(), c, b), conv(8, bias=True), RELU, Resize(2))
    y = t.line(t(Concat(), y, a), conv(8, bias=True), RELU)
    return UNet(), ((2, 3, 16, 16),), t.network(t(conv(2, 1, bias=True), y))


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
    layers = [
        conv(8, 5, 2, bias=True),
        Nonlinear("leaky_relu"),
        Pool("max", 2),
        conv(8, bias=True),
        Nonlinear("softplus"),
    ]
    return model, ((2, 2, 31),), kc.chain(Input(2, (31,)), *layers, Pool("mean"), Affine(3))


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
    t = Twin()
    x = t(Input(16, (5,)))
    y = t(LayerNorm(), x)
    attended = t(Attend(2, 8), *(t(Affine(16), y) for _ in range(3)))
    x = t(Sum(), x, t(Affine(16), attended))
    x = t(Sum(), x, t.line(x, LayerNorm(), Affine(64), Nonlinear("gelu"), Affine(16)))
    return TransformerBlock(), ((2, 5, 16),), t.network(x)
