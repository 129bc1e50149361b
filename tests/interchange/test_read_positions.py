"""Positions of a PyTorch model that is read.

`spatial="exact"` agrees with the model's own forward pass, or is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from position_oracle import MOST, WIDTH, compared, deviation, drawn_module
from refusals import refused

torch = pytest.importorskip("torch")


nn = torch.nn
F = nn.functional


def redrawn(model: Any, generator: Any) -> Any:
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 1 / math.sqrt(weight[0].numel()), generator=generator)
    return model


of_torch = partial(drawn_module, redrawn)


# -- random networks -------------------------------------------------------------------------------


def windows(n: int, low: int, high: int, k: int, s: int) -> int:
    return (n + low + high - k) // s + 1


def as_same(n: int, low: int, count: int, k: int, s: int) -> bool:
    """Whether windows lie where padding "same" has them.

    ceil(n / s), the smaller half of the padding first.
    """
    return count == -(-n // s) and low == max((count - 1) * s + k - n, 0) // 2


@dataclass
class Drawn:
    """A random network: its modules, the locations so far, and why kcalc has no layers for it (""
    where it has).
    """

    rng: np.random.Generator
    sizes: list[int]
    modules: list[Any]
    channels: int = 3
    reason: str = ""

    def __post_init__(self) -> None:
        self.given = tuple(self.sizes)

    def one(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    @property
    def rank(self) -> int:
        return len(self.sizes)

    def of(self, name: str) -> Any:
        return getattr(nn, f"{name}{self.rank}d")

    def convolution(self, kernel: int | None = None) -> None:
        k, s, d = kernel or self.one(1, 2, 3, 3, 5), self.one(1, 1, 1, 2, 3), self.one(*[1] * 5, 2)
        p = int(self.one((k - 1) // 2, (k - 1) // 2, self.rng.integers(0, (k + 1) // 2 + 1)))
        mode = self.one(*["zeros"] * 6, *["circular"] * 3, "reflect", "replicate")
        reach = (k - 1) * d + 1
        if min(self.sizes) + 2 * p < reach or p >= min(self.sizes):
            return self.convolution(1)
        counts = [windows(n, p, p, reach, s) for n in self.sizes]
        fits = all(as_same(n, p, m, reach, s) for n, m in zip(self.sizes, counts, strict=True))
        if p and not (mode == "zeros" or fits):
            self.reason = self.reason or mode
        options = {"stride": s, "padding": p, "dilation": d, "padding_mode": mode, "bias": False}
        self.modules.append(self.of("Conv")(self.channels, WIDTH, k, **options))
        self.sizes, self.channels = counts, WIDTH
        return None

    def padded(self) -> None:
        """Zeros on both sides of a convolution, more on one of them."""
        low, high = self.one((0, 1), (1, 0), (2, 0), (1, 1), (0, 0))
        if min(self.sizes) + low + high < 3:
            return
        counts = [windows(n, low, high, 3, 1) for n in self.sizes]
        if low != high and (low, high) != (2, 0):
            self.reason = self.reason or "asymmetric padding"
        self.modules += (
            [nn.ConstantPad1d, nn.ConstantPad2d][self.rank - 1]((low, high) * self.rank, 0.0),
        )
        self.modules.append(self.of("Conv")(self.channels, WIDTH, 3, bias=False))
        self.sizes, self.channels = counts, WIDTH

    def mean(self) -> None:
        k = self.one(2, 3)
        s = self.one(1, 2, 3)
        ceil = bool(self.one(0, 1))
        count = bool(self.one(0, 1))
        p = int(self.rng.integers(0, k // 2 + 1))
        if min(self.sizes) + 2 * p < k:
            return
        counts = []
        for n in self.sizes:
            m = windows(n, p, p, k, s)
            # a last window begins inside the image or its padding
            more = ceil and (n + 2 * p - k) % s and m * s < n + p
            counts.append(m + bool(more))
        valid = p == 0 and all(
            m == windows(n, 0, 0, k, s) for n, m in zip(self.sizes, counts, strict=True)
        )
        same = all(
            as_same(n, p, m, k, s) for n, m in zip(self.sizes, counts, strict=True)
        ) and not (count and p)
        if not valid and not same:
            self.reason = self.reason or "pooling"
        self.modules.append(self.of("AvgPool")(k, s, p, ceil_mode=ceil, count_include_pad=count))
        self.sizes = counts

    def adaptive(self) -> None:
        to = int(self.one(1, 2, 3))
        if any(n % to for n in self.sizes):
            self.reason = self.reason or "windows of unequal sizes"
        self.modules.append(self.of("AdaptiveAvgPool")(to))
        self.sizes = [to] * self.rank

    def resized(self) -> None:
        mode = self.one("nearest", "linear", "area")
        factor = self.one(2, 1.5) if mode != "area" else 0.5
        if mode == "area" and any(n % (n // 2) for n in self.sizes):
            self.reason = self.reason or "resizing"
        self.modules.append(
            nn.Upsample(
                scale_factor=factor,
                mode="bilinear" if mode == "linear" and self.rank == 2 else mode,
            )
        )
        self.sizes = [int(n * factor) for n in self.sizes]

    def maximum(self) -> None:
        if min(self.sizes) >= 2:
            self.reason = self.reason or "max pooling"
            self.modules.append(self.of("MaxPool")(2, ceil_mode=bool(self.one(0, 1))))
            ceil = self.modules[-1].ceil_mode
            self.sizes = [-(-n // 2) if ceil else n // 2 for n in self.sizes]


def drawn(rng: np.random.Generator) -> Drawn:
    """Two or three convolutions with poolings and resizings between them."""
    net = Drawn(rng, rng.integers(6, 11, size=rng.integers(1, 3)).tolist(), [])
    net.one(*[net.convolution] * 5, net.padded)()
    for _ in range(rng.integers(1, 3)):
        net.modules.append(nn.ReLU())
        between = [net.mean, net.mean, net.adaptive, net.resized, net.maximum, *[lambda: None] * 4]
        if min(net.sizes) > 1:
            net.one(*between)()
        net.one(*[net.convolution] * 5, net.padded)()
    return net


def judged(seed: int) -> float | None:
    """The difference in standard errors of a network that layers can express (even seeds).

    others (odd ones) are refused.
    """
    rng = np.random.default_rng(seed)
    net = drawn(rng)
    while bool(net.reason) != bool(seed % 2):
        net = drawn(rng)
    model, shape = nn.Sequential(*net.modules), (*net.given, 3)
    reading, draw = of_torch(model, shape, seed)
    if not net.reason:
        z = deviation(reading.network, draw, shape, seed)
        assert z < MOST, (seed, model, shape, z)
        assert reading.fidelity.level in ("exact", "pooling")
        return z
    with refused("node '") as refusal:
        deviation(reading.network, draw, shape, seed)
    noted = {note.level for note in reading.notes} & {"locations", "not read"}
    assert noted or "max pooling" in str(refusal.value), (seed, net.reason)
    return None


def test_random_networks_agree_with_monte_carlo_or_are_refused() -> None:
    assert len([seed for seed in range(8) if judged(seed) is not None]) == 4


@pytest.mark.slow
def test_forty_random_networks_agree_with_monte_carlo_or_are_refused() -> None:
    """Paddings of all modes, dilations, strides, resizings, poolings with and without ceil_mode, in
    one and two dimensions.
    """
    assert len([seed for seed in range(8, 48) if judged(seed) is not None]) == 20


# -- one thing at a time ---------------------------------------------------------------------------


def conv(i: int = WIDTH, k: int = 3, **options: Any) -> Any:
    return nn.Conv2d(i, WIDTH, k, bias=False, **{"padding": k // 2} | options)


def around(module: Any, width: int = WIDTH) -> Any:
    """Something between two convolutions."""
    return nn.Sequential(conv(3), nn.ReLU(), module, conv(width))


class Excited(nn.Module):
    """Squeeze and excitation, by broadcasting or by expand_as."""

    def __init__(self, expand: bool) -> None:
        super().__init__()
        self.stem, self.gate, self.out, self.expand = conv(3), conv(k=1), conv(), expand

    def forward(self, x: Any) -> Any:
        h = F.relu(self.stem(x))
        g = torch.sigmoid(self.gate(F.adaptive_avg_pool2d(h, 1)))
        return self.out(h * (g.expand_as(h) if self.expand else g))


class Rearranged(nn.Module):
    """Pieces of an image become channels; locations change places at the output."""

    def __init__(self, pieces: bool) -> None:
        super().__init__()
        self.stem, self.out, self.pieces = conv(3), conv(4 * WIDTH if pieces else WIDTH, 1), pieces

    def forward(self, x: Any) -> Any:
        h = F.relu(self.stem(x))
        if not self.pieces:
            return self.out(h).transpose(2, 3)
        h = h.reshape(2, WIDTH, 3, 2, 3, 2).permute(0, 1, 3, 5, 2, 4)
        return self.out(h.reshape(2, 4 * WIDTH, 3, 3))


# (module, side of the image, words of the note that refuses it; "" where it is computed)
SINGLE = {
    "circular": (
        lambda: nn.Sequential(
            conv(3, padding_mode="circular"), nn.ReLU(), conv(padding_mode="circular")
        ),
        6,
        "",
    ),
    "excited": (lambda: Excited(False), 6, ""),
    "excited, expanded": (lambda: Excited(True), 6, ""),
    "reflect": (lambda: around(conv(padding_mode="reflect")), 6, ""),
    "replicate": (
        lambda: around(nn.Sequential(nn.ReplicationPad2d(1), conv(padding=0))),
        6,
        "",
    ),
    "dilation": (lambda: around(conv(dilation=2, padding=2)), 6, ""),
    "means of zeros": (lambda: around(nn.AvgPool2d(3, 1, 1)), 6, "include padding zeros"),
    "nearest": (lambda: around(nn.Upsample(scale_factor=2)), 4, ""),
    "pieces": (lambda: Rearranged(True), 6, "some of the locations into channels"),
    "turned": (lambda: Rearranged(False), 6, "transposes its spatial axes"),
}


@pytest.mark.parametrize("name", SINGLE)
def test_positions_of_torch(name: str) -> None:
    make, side, words = SINGLE[name]
    compared(*of_torch(make(), (side, side, 3)), (side, side, 3), words)


def test_another_size_of_image_than_the_model_was_read_for_is_refused() -> None:
    """Strides of 2 put windows elsewhere at even sizes.

    Padding 1 of PyTorch is "same" at 7 x 7, not at 8 x 8.
    """
    model = nn.Sequential(conv(3, stride=2), nn.ReLU(), conv())
    reading, draw = of_torch(model, (7, 7, 3))
    with refused(r"images.*\(8.*8\).*images.*7.*7"):
        deviation(reading.network, draw, (8, 8, 3))
    # so wrong is what the refusal spares
    assert deviation(reading.network.with_notes([]), draw, (8, 8, 3)) > 6
    assert deviation(of_torch(model, (8, 8, 3))[0].network, draw, (8, 8, 3)) < MOST
