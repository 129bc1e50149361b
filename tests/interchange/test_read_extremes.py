"""max and min of two feature maps, and maxima over groups of channels (maxout)."""

from __future__ import annotations

from typing import Any

import pytest
from refusals import refused

import kcalc as kc

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch_zoo.twin import Model  # noqa: E402


def test_a_maximum_is_left_alone_and_what_surrounds_it_shaped() -> None:
    before = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 6), nn.ReLU())
    layers = {"a": nn.Linear(6, 16), "b": nn.Linear(6, 16), "out": nn.Linear(16, 3)}
    pair = Model(lambda m, x: m.out(torch.minimum(m.a(x), m.b(x))), **layers)
    model = nn.Sequential(before, pair).double()
    shaping = kc.shape(kc.read(model, (4, 6)), "tanh")
    (reason,) = {why for why in shaping.left_alone.values() if "maximum or minimum" in why}
    assert len(shaping.by_reason()[reason]) == 3
    assert {k.activation.name for k in shaping.constants.by_node.values()} == {"tanh"}
    copy = shaping.apply_to(model)
    assert bool(torch.isfinite(copy(torch.randn(4, 6).double())).all())
    changed = shaping.edits.only("activation")
    assert len(changed) and all("relu -> " in edit.what for edit in changed)


def test_maxout_by_a_reshape_is_no_pooling_of_locations() -> None:
    """Goodfellow et al. 2013: the largest of two channels."""
    layers = {"a": nn.Linear(6, 16), "b": nn.Linear(8, 3)}
    maxout = Model(lambda m, x: m.b(m.a(x).view(-1, 8, 2).amax(-1)), **layers)
    reading = kc.read(maxout, (2, 6))
    (note,) = (note for note in reading.notes if note.level == "not read")
    assert "maxout" in note.text and "torch.maximum" in note.text


def test_a_class_is_no_model() -> None:
    with refused("Model.*class"):
        kc.read(Model, (2, 6))


class Insists(nn.Module):
    """An optional input that it cannot do without."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x: Any, y: Any = None) -> Any:
        if y is None:
            raise ValueError("y is needed")
        return self.a(x) + self.a(y)


def test_an_optional_input_that_is_needed_is_named() -> None:
    with refused("optional.*inputs"):
        kc.read(Insists(), (2, 6))
