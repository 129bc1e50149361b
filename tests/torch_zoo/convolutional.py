"""Convolutional networks of the literature."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import kcalc as kc
from kcalc.network.layers import (  # fmt: skip
    Affine,
    BatchNorm,
    Dropout,
    Flatten,
    GroupNorm,
    Input,
    Nonlinear,
    Pool,
    Sum,
)

from .twin import RELU, Model, Twin, conv, entry

NORM = BatchNorm()


def plain(inputs: int, out: int, kernel: int = 3, stride: int = 1) -> nn.Module:
    """A convolution without biases, padded as usual."""
    return nn.Conv2d(inputs, out, kernel, stride, kernel // 2, bias=False)


def twin_of(t: Twin, x: str, *layers: Any) -> kc.Network:
    """The twin that ends in layers, a mean over locations and a linear layer."""
    return t.network(t.line(x, *layers, Pool("mean"), Affine(10)))


@entry
def vgg() -> Any:
    layers: list[nn.Module] = []
    twin: list[Any] = [Input(3, (16, 16))]
    for inputs, *widths in ((3, 8), (8, 16, 16)):
        for out in widths:
            layers += [nn.Conv2d(inputs, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(True)]
            twin += [Affine(out, 3), NORM, RELU]
            inputs = out
        layers.append(nn.MaxPool2d(2, 2))
        twin.append(Pool("max", 2))
    head = nn.Flatten(), nn.Linear(256, 32), nn.ReLU(True), nn.Dropout(0.25), nn.Linear(32, 10)
    twin += [Flatten(), Affine(32), RELU, Dropout(0.25), Affine(10)]
    return nn.Sequential(*layers, *head), ((2, 3, 16, 16),), kc.chain(*twin)


class Basic(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = plain(inputs, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = plain(width, width), nn.BatchNorm2d(width)
        self.relu, self.downsample = nn.ReLU(inplace=True), nn.Identity()
        if stride > 1:
            self.downsample = nn.Sequential(plain(inputs, width, 1, 2), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.downsample(x)
        return self.relu(out)


@entry
def resnet_v1() -> Any:
    stem = plain(3, 8, 7, 2), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    blocks = Basic(8, 8), Basic(8, 8), Basic(8, 16, 2)
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    t = Twin()
    x = t.line(t(Input(3, (33, 33))), conv(8, 7, 2), NORM, RELU, Pool("max", 3, 2, "same"))
    for width, stride in ((8, 1), (8, 1), (16, 2)):
        y = t.line(x, conv(width, 3, stride), NORM, RELU, conv(width), NORM)
        short = t.line(x, conv(width, 1, 2), NORM) if stride > 1 else x
        x = t.line(t(Sum(), y, short), RELU)
    return model, ((2, 3, 33, 33),), twin_of(t, x)


class PreBottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, out: int, stride: int, transition: bool) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), plain(inputs, width, 1)
        self.bn2, self.conv2 = nn.BatchNorm2d(width), plain(width, width, 3, stride)
        self.bn3, self.conv3 = nn.BatchNorm2d(width), plain(width, out, 1)
        self.shortcut = plain(inputs, out, 1, stride) if transition else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.bn1(x))
        short = x if self.shortcut is None else self.shortcut(h)
        h = self.conv2(F.relu(self.bn2(self.conv1(h))))
        return short + self.conv3(F.relu(self.bn3(h)))


class ResNetV2(nn.Module):
    """Pre-activation bottlenecks with BatchNorm; (3, 4, 6, 3) blocks are a ResNet-50."""

    def __init__(self, blocks: tuple[int, ...], width: int, classes: int) -> None:
        super().__init__()
        self.stem, self.pool = plain(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)
        inputs, parts = width, []
        for i, count in enumerate(blocks):
            for j in range(count):
                w, stride = width * 2**i, 2 if i and not j else 1
                parts.append(PreBottleneck(inputs, w, 4 * w, stride, j == 0))
                inputs = 4 * w
        self.blocks = nn.Sequential(*parts)
        self.bn, self.fc = nn.BatchNorm2d(inputs), nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.pool(self.stem(x)))
        return self.fc(F.relu(self.bn(x)).mean((2, 3)))


@entry
def resnet_v2_bottleneck() -> Any:
    t = Twin()
    x = t.line(t(Input(3, (33, 33))), conv(4, 7, 2), Pool("max", 3, 2, "same"))
    for w, stride, transition in ((4, 1, True), (4, 1, False), (8, 2, True)):
        h = t.line(x, NORM, RELU)
        y = t.line(h, conv(w, 1), NORM, RELU, conv(w, 3, stride), NORM, RELU, conv(4 * w, 1))
        x = t(Sum(), t(conv(4 * w, 1, stride), h) if transition else x, y)
    return ResNetV2((2, 1), 4, 10), ((2, 3, 33, 33),), twin_of(t, x, NORM, RELU)


@entry
def resnext_groupnorm() -> Any:
    body = nn.Sequential(
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.Conv2d(16, 16, 3, padding="same", groups=4),
        nn.GroupNorm(1, 16),
        nn.SiLU(),
        nn.Conv2d(16, 16, 1),
    )

    def run(m: Any, x: Any) -> Any:
        x = m.stem(x)
        return (x + m.body(x)) / math.sqrt(2)

    t, swish, half = Twin(), Nonlinear("swish"), math.sqrt(0.5)
    x = t.line(t(Input(3, (6, 6))), Affine(16, 3))
    branch = GroupNorm(4), swish, Affine(16, 3, groups=4), GroupNorm(1), swish, Affine(16)
    t(Sum((half, half)), x, t.line(x, *branch))
    return Model(run, stem=nn.Conv2d(3, 16, 3, padding=1), body=body), ((2, 3, 6, 6),), t.network()
