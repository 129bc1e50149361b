"""Networks for other things than classes of images: audio, numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import kcalc as kc
from kcalc.network.layers import Affine, Concat, Input, Nonlinear, Pool

from .twin import Model, Twin, entry


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
    first = Affine(8, 5, 2), Nonlinear("leaky_relu"), Pool("max", 2)
    last = Affine(8, 3), Nonlinear("softplus"), Pool("mean"), Affine(3)
    return model, ((2, 2, 31),), kc.chain(Input(2, (31,)), *first, *last)


@entry
def two_inputs_two_outputs() -> Any:
    """Two inputs in a dictionary, two outputs in another."""

    def run(m: Any, batch: Any) -> Any:
        h = torch.cat([torch.tanh(m.left(batch["a"])), torch.tanh(m.right(batch["b"]))], -1)
        return {"mean": m.mean(h), "spread": F.softplus(m.spread(h))}

    sizes = {"left": (6, 16), "right": (9, 16), "mean": (32, 2), "spread": (32, 2)}
    model = Model(run, **{name: nn.Linear(*size) for name, size in sizes.items()})
    t = Twin()
    inputs = t(Input(6)), t(Input(9))
    h = t(Concat(), *(t.line(x, Affine(16), Nonlinear("tanh")) for x in inputs))
    ends = t(Affine(2), h), t.line(h, Affine(2), Nonlinear("softplus"))
    return model, ({"a": torch.randn(3, 6), "b": torch.randn(3, 9)},), t.network(*ends)
