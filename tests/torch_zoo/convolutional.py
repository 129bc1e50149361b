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


@entry
def lenet() -> Any:
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.Tanh(),
        nn.Linear(120, 10),
    )
    parts = [
        conv(6, 5, padding="valid", bias=True),
        Nonlinear("tanh"),
        Pool("mean", 2),
        conv(16, 5, padding="valid", bias=True),
    ]
    tail = [
        Nonlinear("tanh"),
        Pool("mean", 2),
        Flatten(),
        Affine(120),
        Nonlinear("tanh"),
        Affine(10),
    ]
    return model, ((2, 1, 32, 32),), kc.chain(Input(1, (32, 32)), *parts, *tail)


@entry
def vgg() -> Any:
    layers: list[nn.Module] = []
    twin: list[Any] = [Input(3, (16, 16))]
    width = 3
    for out in (8, "M", 16, 16, "M"):
        if isinstance(out, str):
            layers.append(nn.MaxPool2d(2, 2))
            twin.append(Pool("max", 2))
        else:
            layers += [
                nn.Conv2d(width, out, 3, padding=1),
                nn.BatchNorm2d(out),
                nn.ReLU(inplace=True),
            ]
            twin += [conv(out, bias=True), BatchNorm(), RELU]
            width = out
    head = [nn.Flatten(), nn.Linear(256, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 10)]
    return (
        nn.Sequential(*layers, *head),
        ((2, 3, 16, 16),),
        kc.chain(*twin, Flatten(), Affine(32), RELU, Dropout(0.5), Affine(10)),
    )


class Basic(nn.Module):
    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = (
            nn.Conv2d(inputs, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = (
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(
        self, block: Any, blocks: tuple[int, ...], width: int = 8, classes: int = 10
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        inputs, stages = width, []
        for i, count in enumerate(blocks):
            parts = []
            for j in range(count):
                parts.append(block(inputs, width * 2**i, 2 if i and not j else 1))
                inputs = width * 2**i * block.expansion
            stages.append(nn.Sequential(*parts))
        self.layers = nn.ModuleList(stages)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for layer in self.layers:
            x = layer(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def _resnet_v1(block: Any, blocks: tuple[int, ...], size: int) -> kc.Network:
    t, width, inputs = Twin(), 8, 8
    x = t.line(
        t(Input(3, (size, size))), conv(8, 7, 2), BatchNorm(), RELU, Pool("max", 3, 2, "same")
    )
    for i, count in enumerate(blocks):
        for j in range(count):
            w, stride = width * 2**i, 2 if i and not j else 1
            out = w * block.expansion
            if block is Basic:
                y = t.line(x, conv(w, 3, stride), BatchNorm(), RELU, conv(w), BatchNorm())
            else:
                y = t.line(
                    x,
                    conv(w, 1),
                    BatchNorm(),
                    RELU,
                    conv(w, 3, stride),
                    BatchNorm(),
                    RELU,
                    conv(out, 1),
                    BatchNorm(),
                )
            short = (
                t.line(x, conv(out, 1, stride), BatchNorm()) if stride != 1 or inputs != out else x
            )
            x = t.line(t(Sum(), y, short), RELU)
            inputs = out
    return t.network(t.line(x, Pool("mean"), Affine(10)))


@entry
def resnet_v1_basic() -> Any:
    return ResNet(Basic, (2, 1)), ((2, 3, 33, 33),), _resnet_v1(Basic, (2, 1), 33)


@entry
def resnet_v1_bottleneck() -> Any:
    return ResNet(Bottleneck, (1, 2)), ((2, 3, 33, 33),), _resnet_v1(Bottleneck, (1, 2), 33)


class PreBottleneck(nn.Module):
    def __init__(
        self, inputs: int, width: int, out: int, stride: int, transition: bool, norm: bool = True
    ) -> None:
        super().__init__()
        make: Any = nn.BatchNorm2d if norm else (lambda _: nn.Identity())
        self.bn1, self.conv1 = make(inputs), nn.Conv2d(inputs, width, 1, bias=False)
        self.bn2, self.conv2 = make(width), nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn3, self.conv3 = make(width), nn.Conv2d(width, out, 1, bias=False)
        self.shortcut = nn.Conv2d(inputs, out, 1, stride, bias=False) if transition else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.bn1(x))
        short = x if self.shortcut is None else self.shortcut(h)
        h = self.conv1(h)
        h = self.conv2(F.relu(self.bn2(h)))
        return short + self.conv3(F.relu(self.bn3(h)))


class ResNetV2(nn.Module):
    """Pre-activation bottlenecks with BatchNorm; (3, 4, 6, 3) blocks are a ResNet-50."""

    def __init__(
        self,
        blocks: tuple[int, ...] = (3, 4, 6, 3),
        width: int = 64,
        classes: int = 1000,
        norm: bool = True,
    ) -> None:
        super().__init__()
        self.stem, self.pool = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.MaxPool2d(3, 2, 1)
        inputs, parts = width, []
        for i, count in enumerate(blocks):
            for j in range(count):
                out = 4 * width * 2**i
                parts.append(
                    PreBottleneck(inputs, width * 2**i, out, 2 if i and not j else 1, j == 0, norm)
                )
                inputs = out
        self.blocks = nn.Sequential(*parts)
        self.bn, self.fc = (
            nn.BatchNorm2d(inputs) if norm else nn.Identity(),
            nn.Linear(inputs, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.pool(self.stem(x)))
        return self.fc(F.relu(self.bn(x)).mean((2, 3)))


@entry
def resnet_v2_bottleneck() -> Any:
    t, inputs = Twin(), 4
    x = t.line(t(Input(3, (33, 33))), conv(4, 7, 2), Pool("max", 3, 2, "same"))
    for i, count in enumerate((2, 1)):
        for j in range(count):
            w, stride = 4 * 2**i, 2 if i and not j else 1
            h = t.line(x, BatchNorm(), RELU)
            y = t.line(
                h,
                conv(w, 1),
                BatchNorm(),
                RELU,
                conv(w, 3, stride),
                BatchNorm(),
                RELU,
                conv(4 * w, 1),
            )
            x = t(Sum(), t(conv(4 * w, 1, stride), h) if j == 0 else x, y)
            inputs = 4 * w
    assert inputs == 32
    return (
        ResNetV2((2, 1), 4, 10),
        ((2, 3, 33, 33),),
        t.network(t.line(x, BatchNorm(), RELU, Pool("mean"), Affine(10))),
    )


class WideBlock(nn.Module):
    def __init__(self, inputs: int, out: int, stride: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(inputs), nn.BatchNorm2d(out)])
        self.convs = nn.ModuleList(
            [
                nn.Conv2d(inputs, out, 3, stride, 1, bias=False),
                nn.Conv2d(out, out, 3, 1, 1, bias=False),
            ]
        )
        self.drop = nn.Dropout(0.3)
        self.short = (
            nn.Conv2d(inputs, out, 1, stride, bias=False) if inputs != out else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norms[0](x))
        y = self.convs[1](self.drop(F.relu(self.norms[1](self.convs[0](h)))))
        return torch.add(y, self.short(x if isinstance(self.short, nn.Identity) else h))


@entry
def wide_resnet() -> Any:
    blocks = nn.Sequential(WideBlock(4, 8, 1), WideBlock(8, 8, 1), WideBlock(8, 16, 2))
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        blocks,
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    t = Twin()
    x = t.line(t(Input(3, (15, 15))), conv(4))
    for inputs, out, stride in ((4, 8, 1), (8, 8, 1), (8, 16, 2)):
        h = t.line(x, BatchNorm(), RELU)
        y = t.line(h, conv(out, 3, stride), BatchNorm(), RELU, Dropout(0.3), conv(out))
        x = t(Sum(), y, t(conv(out, 1, stride), h) if inputs != out else x)
    return (
        model,
        ((2, 3, 15, 15),),
        t.network(t.line(x, BatchNorm(), RELU, Pool("mean"), Affine(10))),
    )


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8 + 4 * i) for i in range(3)])
        self.convs = nn.ModuleList(
            [nn.Conv2d(8 + 4 * i, 4, 3, padding=1, bias=False) for i in range(3)]
        )
        self.transition = nn.Sequential(
            nn.BatchNorm2d(20), nn.ReLU(), nn.Conv2d(20, 10, 1, bias=False), nn.AvgPool2d(2)
        )
        self.head = nn.Linear(10, 5)

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
        known.append(t.line(x, BatchNorm(), RELU, conv(4)))
    x = t.line(t(Concat(), *known), BatchNorm(), RELU, conv(10, 1), Pool("mean", 2), RELU)
    return DenseNet(), ((2, 3, 8, 8),), t.network(t.line(x, Pool("mean"), Affine(5)))


class Fire(nn.Module):
    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeeze, 1)
        self.expand1x1, self.expand3x3 = (
            nn.Conv2d(squeeze, expand, 1),
            nn.Conv2d(squeeze, expand, 3, padding=1),
        )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.activation(self.squeeze(x))
        return torch.cat(
            [self.activation(self.expand1x1(x)), self.activation(self.expand3x3(x))], 1
        )


@entry
def squeezenet() -> Any:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(8, 4, 8),
        Fire(16, 4, 8),
        nn.Dropout(0.5),
        nn.Conv2d(16, 10, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
    )
    t = Twin()
    x = t.line(t(Input(3, (31, 31))), conv(8, 3, 2, "valid", bias=True), RELU, Pool("max", 3, 2))
    for _ in range(2):
        x = t.line(x, conv(4, 1, bias=True), RELU)
        x = t(Concat(), *(t.line(x, conv(8, k, bias=True), RELU) for k in (1, 3)))
    x = t.line(x, Dropout(0.5), conv(10, 1, bias=True), RELU, Pool("mean"))
    return model, ((2, 3, 31, 31),), t.network(x)


def _separable(inputs: int, out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False),
        nn.BatchNorm2d(inputs),
        nn.ReLU6(inplace=True),
        nn.Conv2d(inputs, out, 1, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU6(inplace=True),
    )


@entry
def mobilenet() -> Any:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU6(),
        _separable(8, 16, 1),
        _separable(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    six = Nonlinear("relu6")
    layers = [conv(8, 3, 2), BatchNorm(), six]
    for inputs, out, stride in ((8, 16, 1), (16, 32, 2)):
        layers += [
            conv(inputs, 3, stride, groups=inputs),
            BatchNorm(),
            six,
            conv(out, 1),
            BatchNorm(),
            six,
        ]
    return model, ((2, 3, 17, 17),), kc.chain(Input(3, (17, 17)), *layers, Pool("mean"), Affine(10))


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv, self.norm = (
            nn.Conv2d(width, width, 7, padding=3, groups=width),
            nn.LayerNorm(width, eps=1e-6),
        )
        self.pwconv1, self.act, self.pwconv2 = (
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )
        self.gamma = nn.Parameter(0.5 * torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.dwconv(x).permute(0, 2, 3, 1)
        y = self.gamma * self.pwconv2(self.act(self.pwconv1(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = (
            nn.Conv2d(3, 8, 4, 4),
            nn.Sequential(ConvNeXtBlock(8), ConvNeXtBlock(8)),
        )
        self.norm, self.head = nn.LayerNorm(8, eps=1e-6), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.stem(x)).mean([-2, -1])))


@entry
def convnext() -> Any:
    t = Twin()
    x = t.line(t(Input(3, (32, 32))), conv(8, 4, 4, "same", bias=True))
    for _ in range(2):
        y = t.line(
            x,
            conv(8, 7, groups=8, bias=True),
            LayerNorm(),
            Affine(32),
            Nonlinear("gelu"),
            Affine(8),
        )
        x = t(Sum((1, 0.5)), x, y)
    return (
        ConvNeXt(),
        ((2, 3, 32, 32),),
        t.network(t.line(x, Pool("mean"), LayerNorm(), Affine(10))),
    )


class ResNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(4, width),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding="same", groups=4),
            nn.GroupNorm(1, width),
            nn.SiLU(),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.body(x)) / math.sqrt(2)


@entry
def resnext_groupnorm() -> Any:
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), ResNeXtBlock(16), ResNeXtBlock(16))
    t = Twin()
    x = t.line(t(Input(3, (6, 6))), conv(16, bias=True))
    for _ in range(2):
        swish = Nonlinear("swish")
        y = t.line(
            x,
            GroupNorm(4),
            swish,
            conv(16, groups=4, bias=True),
            GroupNorm(1),
            swish,
            conv(16, 1, bias=True),
        )
        x = t(Sum((math.sqrt(0.5), math.sqrt(0.5))), x, y)
    return model, ((2, 3, 6, 6),), t.network(x)
