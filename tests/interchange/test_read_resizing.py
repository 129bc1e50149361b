"""Transposed convolutions, resizing and pixel shuffles of PyTorch models."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
from position_oracle import MOST, WIDTH, deviation, drawn_module
from refusals import refused

torch = pytest.importorskip("torch")


import kcalc as kc  # noqa: E402

L = kc.layers
nn = torch.nn


def redrawn(model: Any, generator: Any) -> Any:
    """Weights for which sigma_w is 1: an output reads a share of a transposed convolution's."""
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "weight"):
                fan = module.weight[0].numel()
                if isinstance(module, nn.modules.conv._ConvTransposeNd):
                    taps = math.prod(module.kernel_size) / math.prod(module.stride)
                    fan = module.in_channels // module.groups * taps
                module.weight.normal_(0, fan**-0.5, generator=generator)
    return model


of_torch = partial(drawn_module, redrawn)


def up(rank: int, *args: Any, **options: Any) -> Any:
    kind = getattr(nn, f"ConvTranspose{rank}d")
    return kind(6, WIDTH, *args, bias=False, **options)


def behind(rank: int, *modules: Any) -> Any:
    """The modules, then an activation, means over windows and dense weights."""
    mean, conv = getattr(nn, f"AvgPool{rank}d"), getattr(nn, f"Conv{rank}d")
    return nn.Sequential(*modules, nn.ReLU(), mean(2), conv(WIDTH, WIDTH, 1, bias=False))


CASES = {
    "kernel = stride, another along each axis": (
        lambda: behind(2, up(2, (2, 3), stride=(2, 3))),
        (3, 3, 6),
    ),
    "kernel 6, stride 4": (lambda: behind(1, up(1, 6, stride=4, padding=1)), (5, 6)),
    "kernel 1, stride 2": (lambda: behind(1, up(1, 1, stride=2, output_padding=1)), (5, 6)),
    "pixel shuffle": (
        lambda: behind(2, nn.Conv2d(6, 4 * WIDTH, 3, padding=1, bias=False), nn.PixelShuffle(2)),
        (3, 3, 6),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_pairs_of_positions(case: str) -> None:
    make, shape = CASES[case]
    reading, draw = of_torch(make(), shape)
    assert reading.fidelity.level in ("exact", "pooling"), str(reading)
    assert deviation(reading.network, draw, shape) < MOST


def test_adaptive_pooling_to_other_sizes() -> None:
    conv = nn.Conv2d(3, 8, 3, padding=1)
    for pool in (nn.AdaptiveAvgPool2d(3), nn.AdaptiveMaxPool2d(3)):
        model = nn.Sequential(conv, nn.ReLU(), pool, nn.Flatten(), nn.Linear(72, 4))
        r = kc.read(model, (2, 3, 7, 8))
        assert "windows have unequal sizes" in str(r) and r.fidelity.counts["locations"] == 1
        with refused("unequal sizes"):
            kc.ntk(r.network, spatial="exact", image_shape=(7, 8))
        same = kc.shape(r.network, activation="relu", method="eoc").apply_to(model, weights="keep")
        x = torch.randn(2, 3, 7, 8)
        assert same(x).shape == model(x).shape
    alone = kc.read(nn.Sequential(conv, nn.AdaptiveAvgPool2d(6)), (2, 3, 3, 3))
    assert alone.network.layer("1") == L.Resize(2) and alone.fidelity.level == "exact"


def test_what_resizing_is_not_read() -> None:
    conv = nn.Conv2d(3, 8, 1)
    for module, words in (
        (nn.Upsample(scale_factor=2, mode="bicubic"), "only nearest and linear resizing"),
        (nn.Upsample(5, mode="nearest-exact"), "not integers"),
    ):
        r = kc.read(nn.Sequential(conv, module), (2, 3, 4, 4))
        assert r.fidelity.level == "not read" and words in r.notes[-1].text
    r = kc.read(nn.ConvTranspose2d(3, 8, 2, 2, padding=2), (2, 3, 8, 8))
    assert "its padding crops the image" in r.notes[-1].text
