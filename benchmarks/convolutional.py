"""Convolutional models of 1024 channels for ``benchmarks.forwards``, and kcalc's predictions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kcalc as kc

WIDTH, SIZE, COSINE = 1024, 7, 0.5


class _UNet(nn.Module):
    """One level of a U-Net: a strided convolution, a transposed convolution back, and a
    concatenation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(WIDTH, WIDTH, 2)
        self.down = nn.Conv2d(WIDTH, WIDTH, 2, stride=2)
        self.up = nn.ConvTranspose2d(WIDTH, WIDTH, 2, stride=2)
        self.join = nn.Conv2d(2 * WIDTH, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return self.join(torch.cat([x, self.up(F.relu(self.down(x)))], 1))


class _Gated(nn.Module):
    """A WaveNet layer: gated dilated causal convolutions along rows, and a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.kept, self.gate = (nn.Conv2d(WIDTH, WIDTH, (1, 2), dilation=2) for _ in range(2))
        self.out = nn.Conv2d(WIDTH, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (2, 0))
        h = torch.tanh(self.kept(padded)) * torch.sigmoid(self.gate(padded))
        return x + self.out(h)


def _library(module: str, name: str, *arguments: Any, **options: Any) -> Callable[[], nn.Module]:
    """A builder for a class of a library, which is imported when the builder is called."""

    def build() -> nn.Module:
        return getattr(importlib.import_module(module), name)(*arguments, **options)

    return build


def _behind(
    build: Callable[[], nn.Module], stem: Callable[[], nn.Module] | None = None
) -> Callable[[], nn.Module]:
    """A block after a 1x1 convolution (or another stem), as in a network."""
    first = stem or partial(nn.Conv2d, WIDTH, WIDTH, 1)
    return lambda: nn.Sequential(first(), build())


def _stack(
    *layers: Callable[[], nn.Module], act: type[nn.Module] = nn.ReLU
) -> Callable[[], nn.Module]:
    """A convolution, an activation, the given layers, an activation, a 1x1 convolution."""

    def build() -> nn.Module:
        ends = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.LazyConv2d(WIDTH, 1)
        middle = [layer() for layer in layers]
        model = nn.Sequential(ends[0], act(), *middle, act(), ends[1])
        model(torch.zeros(1, WIDTH, SIZE, SIZE))  # initialises the lazy last layer
        return model

    return build


def _conv(size: int = 3, **options: Any) -> Callable[[], nn.Module]:
    return partial(nn.Conv2d, WIDTH, WIDTH, size, **options)


def _vgg() -> nn.Module:
    """Two stages of torchvision's VGG, with mean pooling and without the first layer, which reads
    three channels.
    """
    layers = importlib.import_module("torchvision.models.vgg").make_layers([WIDTH, "M", WIDTH])
    kept = [nn.AvgPool2d(2) if isinstance(m, nn.MaxPool2d) else m for m in layers]
    return nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), *kept[1:])


BLOCKS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "BasicBlock, BatchNorm": (
        "torchvision",
        _behind(_library("torchvision.models.resnet", "BasicBlock", WIDTH, WIDTH)),
    ),
    "Bottleneck, BatchNorm": (
        "torchvision",
        _behind(
            _library("torchvision.models.resnet", "Bottleneck", 4 * WIDTH, WIDTH),
            partial(nn.Conv2d, WIDTH, 4 * WIDTH, 1),
        ),
    ),
    "BasicBlock, GroupNorm": (
        "timm",
        _behind(
            _library(
                "timm.models.resnet",
                "BasicBlock",
                WIDTH,
                WIDTH,
                norm_layer=partial(nn.GroupNorm, 1),
            )
        ),
    ),
    "VGG, mean pooling": ("torchvision", _vgg),
    "ConvNeXt block": (
        "torchvision",
        _behind(_library("torchvision.models.convnext", "CNBlock", WIDTH, 1.0, 0.0)),
    ),
    "Dense layer": (
        "torchvision",
        _behind(_library("torchvision.models.densenet", "_DenseLayer", WIDTH, WIDTH, 1, 0.0)),
    ),
    "Inverted residual": (
        "torchvision",
        _library("torchvision.models.mobilenetv2", "InvertedResidual", WIDTH, WIDTH, 1, 1),
    ),
    "Squeeze and excitation": (
        "torchvision",
        _library("torchvision.ops", "SqueezeExcitation", WIDTH, WIDTH),
    ),
    "Mixer block": (
        "timm",
        _behind(
            _library("timm.models.mlp_mixer", "MixerBlock", WIDTH, SIZE**2),
            partial(nn.Linear, WIDTH, WIDTH),
        ),
    ),
    "U-Net level": ("", _UNet),
    "WaveNet layer": ("", _Gated),
    "PReLU": ("", _stack(_conv(padding=1), act=nn.PReLU)),
    "SiLU": ("", _stack(_conv(padding=1), act=nn.SiLU)),
    "LeakyReLU, dilation 2": (
        "",
        _stack(_conv(padding=2, dilation=2), act=partial(nn.LeakyReLU, 0.2)),
    ),
    "Stride 2": ("", _stack(_conv(padding=1, stride=2))),
    "Stride 2, kernel 2": ("", _stack(_conv(2, stride=2), act=nn.GELU)),
    "No padding": ("", _stack(_conv())),
    "Reflected padding": ("", _stack(_conv(padding=1, padding_mode="reflect"))),
    "Replicated padding": ("", _stack(_conv(padding=1, padding_mode="replicate"))),
    "Circular padding": ("", _stack(_conv(padding=1, padding_mode="circular"), act=nn.Tanh)),
    "Two groups": ("", _stack(_conv(padding=1, groups=2))),
    "Mean pooling": (
        "",
        _stack(_conv(1), partial(nn.AvgPool2d, 3, 2, 1, count_include_pad=False)),
    ),
    "Mean pooling, ceil_mode": ("", _stack(_conv(1), partial(nn.AvgPool2d, 2, ceil_mode=True))),
    "Mean over all locations": ("", _stack(_conv(1), partial(nn.AdaptiveAvgPool2d, 1))),
    "Nearest upsampling": ("", _stack(partial(nn.Upsample, scale_factor=2), _conv(padding=1))),
    "Bilinear upsampling": (
        "",
        _stack(partial(nn.Upsample, scale_factor=2, mode="bilinear"), _conv(1)),
    ),
    "Transposed convolution": (
        "",
        _stack(partial(nn.ConvTranspose2d, WIDTH, WIDTH, 4, stride=2, padding=1)),
    ),
    "Pixel shuffle": (
        "",
        _stack(partial(nn.Conv2d, WIDTH, 4 * WIDTH, 1), partial(nn.PixelShuffle, 2)),
    ),
}


def images() -> Tensor:
    """Two images with q = 1 and cosine ``COSINE`` at every location, (2, channels, size, size)."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn((SIZE, SIZE, WIDTH, 2), generator=random)
    x = torch.linalg.qr(x)[0].permute(3, 2, 0, 1) * WIDTH**0.5
    return torch.stack([x[0], COSINE * x[0] + (1 - COSINE**2) ** 0.5 * x[1]])


def tokens() -> Tensor:
    """The same inputs as sequences, (2, locations, channels)."""
    return images().flatten(2).transpose(1, 2)


def predictions(reading: Any, x: Tensor) -> dict[Any, tuple[Any, Any, bool]]:
    """{node: (covariance of equal locations of both images, its error, whether it is exact)}.

    Entries for different locations are 0. BatchNorm is left out, because it is the identity in new
    models in evaluation mode.
    """
    network = reading.network.without_normalization(kc.layers.BatchNorm)
    levels = {note.level for note in reading.notes}
    arrays = (x if x.ndim == 3 else x.movedim(1, -1)).double().numpy()
    for assume in (False, True):
        try:
            maps = {"spatial": "exact", "image_shape": arrays.shape[1:-1]}
            C = kc.c_map(network, **maps, assume_independent=assume)
            q, c = C.q_values(arrays), C.c_values(*arrays)
            break
        except kc.FreshnessError:
            if assume:
                raise
    exact = not any(a.kind == "heuristic" for a in C.assumptions) and levels <= {"pooling"}
    return {node: (_covariance(q[node], c[node]), np.zeros(()), exact) for node in q}


def _covariance(q: Any, c: Any) -> Any:
    one, two = (np.reshape(part, -1) for part in q)
    crossed = np.diag(np.reshape(c, -1) * np.sqrt(one * two))
    return np.block([[np.diag(one), crossed], [crossed, np.diag(two)]])
