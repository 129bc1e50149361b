"""Positions of a PyTorch model that is read.

`spatial="exact"` agrees with the model's own forward pass, or is refused.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

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
    "replicate": (lambda: around(nn.Sequential(nn.ReplicationPad2d(1), conv(padding=0))), 6, ""),
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
