"""Convolutional networks of the literature."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import kcalc as kc
from kcalc.network.layers import (  # fmt: skip
    Affine,
    BatchNorm,
    Input,
    Pool,
    Sum,
)

from .twin import RELU, Twin, conv, entry


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
