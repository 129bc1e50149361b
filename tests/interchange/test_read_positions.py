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


from torch_zoo.twin import Model  # noqa: E402

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


def around(*modules: Any) -> Any:
    """Something between two convolutions."""
    return nn.Sequential(conv(3), nn.ReLU(), *modules, conv())


def excited() -> Any:
    """Squeeze and excitation."""

    def run(m: Any, x: Any) -> Any:
        h = F.relu(m.stem(x))
        g = torch.sigmoid(m.gate(F.adaptive_avg_pool2d(h, 1)))
        return m.out(h * g.expand_as(h))

    return Model(run, stem=conv(3), gate=conv(k=1), out=conv())


def rearranged(pieces: bool) -> Any:
    """Pieces of an image become channels; locations change places at the output."""

    def run(m: Any, x: Any) -> Any:
        h = F.relu(m.stem(x))
        if not pieces:
            return m.out(h).transpose(2, 3)
        h = h.reshape(2, WIDTH, 3, 2, 3, 2).permute(0, 1, 3, 5, 2, 4)
        return m.out(h.reshape(2, 4 * WIDTH, 3, 3))

    return Model(run, stem=conv(3), out=conv(4 * WIDTH if pieces else WIDTH, 1))


# words of the notes that refuse what is not computed
NOTED = {
    "means of zeros": "include zeros from the padding",
    "pieces": "some locations into channels",
    "turned": "transposes its spatial axes",
}
SINGLE = {
    "circular": lambda: nn.Sequential(
        conv(3, padding_mode="circular"), nn.ReLU(), conv(padding_mode="circular")
    ),
    "excited": excited,
    "reflect": lambda: around(conv(padding_mode="reflect")),
    "replicate": lambda: around(nn.ReplicationPad2d(1), conv(padding=0)),
    "dilation": lambda: around(conv(dilation=2, padding=2)),
    "means of zeros": lambda: around(nn.AvgPool2d(3, 1, 1)),
    "nearest": lambda: around(nn.Upsample(scale_factor=2)),
    "pieces": lambda: rearranged(True),
    "turned": lambda: rearranged(False),
}


@pytest.mark.parametrize("name", SINGLE)
def test_positions_of_torch(name: str) -> None:
    shape = (4, 4, 3) if name == "nearest" else (6, 6, 3)
    compared(*of_torch(SINGLE[name](), shape), shape, NOTED.get(name, ""))


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
