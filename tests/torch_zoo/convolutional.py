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
    Concat,
    Dropout,
    Flatten,
    GroupNorm,
    Input,
    LayerNorm,
    Nonlinear,
    Pool,
    Sum,
)

from .twin import RELU, Twin, conv, entry

NORM, TANH = BatchNorm(), Nonlinear("tanh")


def plain(inputs: int, out: int, kernel: int = 3, stride: int = 1, **options: Any) -> nn.Module:
    """A convolution without biases, padded as usual."""
    return nn.Conv2d(inputs, out, kernel, stride, kernel // 2, bias=False, **options)


def headed(*body: nn.Module, width: int, classes: int = 10) -> nn.Module:
    """A mean over locations and a linear layer behind a body."""
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def twin_of(t: Twin, x: str, *layers: Any, classes: int = 10) -> kc.Network:
    """The twin that ends in layers, a mean over locations and a linear layer."""
    return t.network(t.line(x, *layers, Pool("mean"), Affine(classes)))


@entry
def lenet() -> Any:
    body = nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh()
    head = nn.AvgPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 10)
    parts = [[Affine(n, 5, padding="valid"), TANH, Pool("mean", 2)] for n in (6, 16)]
    tail = Flatten(), Affine(120), TANH, Affine(10)
    return (
        nn.Sequential(*body, *head),
        ((2, 1, 32, 32),),
        kc.chain(Input(1, (32, 32)), *parts[0], *parts[1], *tail),
    )


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
    head = nn.Flatten(), nn.Linear(256, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 10)
    twin += [Flatten(), Affine(32), RELU, Dropout(0.5), Affine(10)]
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
    model = headed(*stem, Basic(8, 8), Basic(8, 8), Basic(8, 16, 2), width=16)
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


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = plain(3, 8), nn.Linear(10, 5)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (8, 12, 16))
        self.convs = nn.ModuleList(plain(n, 4) for n in (8, 12, 16))
        self.transition = nn.Sequential(
            nn.BatchNorm2d(20), nn.ReLU(), plain(20, 10, 1), nn.AvgPool2d(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [self.stem(x)]
        for norm, layer in zip(self.norms, self.convs, strict=True):
            features.append(layer(torch.relu(norm(torch.cat(features, 1)))))
        x = F.relu(self.transition(torch.cat(features, 1)))
        return self.head(F.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


@entry
def densenet() -> Any:
    t = Twin()
    known = [t.line(t(Input(3, (8, 8))), conv(8))]
    for i in range(3):
        x = t(Concat(), *known) if i else known[0]
        known.append(t.line(x, NORM, RELU, conv(4)))
    end = NORM, RELU, conv(10, 1), Pool("mean", 2), RELU
    return DenseNet(), ((2, 3, 8, 8),), twin_of(t, t(Concat(), *known), *end, classes=5)


class Fire(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.squeeze, self.expand1x1 = nn.Conv2d(inputs, 4, 1), nn.Conv2d(4, 8, 1)
        self.expand3x3, self.activation = nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.activation(self.squeeze(x))
        return torch.cat([self.activation(f(x)) for f in (self.expand1x1, self.expand3x3)], 1)


@entry
def squeezenet() -> Any:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(8),
        Fire(16),
        nn.Dropout(0.5),
        nn.Conv2d(16, 10, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
    )
    t = Twin()
    x = t.line(t(Input(3, (31, 31))), Affine(8, 3, 2, "valid"), RELU, Pool("max", 3, 2))
    for _ in range(2):
        x = t.line(x, Affine(4), RELU)
        x = t(Concat(), *(t.line(x, Affine(8, k), RELU) for k in (1, 3)))
    return (
        model,
        ((2, 3, 31, 31),),
        t.network(t.line(x, Dropout(0.5), Affine(10), RELU, Pool("mean"))),
    )


@entry
def mobilenet() -> Any:
    six = Nonlinear("relu6")
    body, twin = [plain(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU6()], [conv(8, 3, 2), NORM, six]
    for inputs, out, stride in ((8, 16, 1), (16, 32, 2)):
        body += [plain(inputs, inputs, 3, stride, groups=inputs), nn.BatchNorm2d(inputs)]
        body += [nn.ReLU6(True), plain(inputs, out, 1), nn.BatchNorm2d(out), nn.ReLU6(True)]
        twin += [conv(inputs, 3, stride, groups=inputs), NORM, six, conv(out, 1), NORM, six]
    network = kc.chain(Input(3, (17, 17)), *twin, Pool("mean"), Affine(10))
    return headed(*body, width=32), ((2, 3, 17, 17),), network


class ConvNeXtBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.mlp = nn.Sequential(
            nn.LayerNorm(8, eps=1e-6), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)
        )
        self.gamma = nn.Parameter(0.5 * torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.gamma * self.mlp(self.dwconv(x).permute(0, 2, 3, 1))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 4, 4), ConvNeXtBlock(), ConvNeXtBlock())
        self.norm, self.head = nn.LayerNorm(8, eps=1e-6), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(x).mean([-2, -1])))


@entry
def convnext() -> Any:
    t = Twin()
    x = t.line(t(Input(3, (32, 32))), Affine(8, 4, 4))
    branch = Affine(8, 7, groups=8), LayerNorm(), Affine(32), Nonlinear("gelu"), Affine(8)
    for _ in range(2):
        x = t(Sum((1, 0.5)), x, t.line(x, *branch))
    return (
        ConvNeXt(),
        ((2, 3, 32, 32),),
        t.network(t.line(x, Pool("mean"), LayerNorm(), Affine(10))),
    )


class ResNeXtBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(4, 16),
            nn.SiLU(),
            nn.Conv2d(16, 16, 3, padding="same", groups=4),
            nn.GroupNorm(1, 16),
            nn.SiLU(),
            nn.Conv2d(16, 16, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.body(x)) / math.sqrt(2)


@entry
def resnext_groupnorm() -> Any:
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), ResNeXtBlock(), ResNeXtBlock())
    t, swish, half = Twin(), Nonlinear("swish"), math.sqrt(0.5)
    x = t.line(t(Input(3, (6, 6))), Affine(16, 3))
    branch = GroupNorm(4), swish, Affine(16, 3, groups=4), GroupNorm(1), swish, Affine(16)
    for _ in range(2):
        x = t(Sum((half, half)), x, t.line(x, *branch))
    return model, ((2, 3, 6, 6),), t.network(x)
