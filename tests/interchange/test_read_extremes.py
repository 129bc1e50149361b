"""The minimum of two feature maps in a model that is shaped."""

from __future__ import annotations

import pytest

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
