"""Sliders over C maps, without a notebook.

The controls are set and the picture is looked at as bytes.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc import widgets

module = importlib.import_module("kcalc.lab.widgets")
rescaled_resnet, vanilla = kc.architectures.rescaled_resnet, kc.architectures.vanilla

pytestmark = pytest.mark.usefixtures("untouched_pyplot")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with refused("pip install.*widgets"):
        widgets.explore(vanilla)


GRID = np.linspace(-0.9, 0.9, 5)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The maps that are drawn, without a picture."""
    pytest.importorskip("ipywidgets")
    found: list[Any] = []
    monkeypatch.setattr(module, "_png", lambda maps: found.append(dict(maps)) or b"png")
    return found


def test_controls_of_a_builder_build(drawn: list[Any]) -> None:
    found = widgets.explore(rescaled_resnet)
    controls = found.controls
    for name, value in (("activation", "tanh"), ("blocks", 2), ("shortcut_weight", 0.5)):
        controls[name].value = value
    wanted = kc.c_map(rescaled_resnet(2, activation="tanh", shortcut_weight=0.5))
    np.testing.assert_allclose(drawn[-1]["before shaping"](GRID), wanted(GRID))
    assert "shortcut_weight=0.5" in repr(found)
    found = widgets.explore(lambda layers: vanilla(layers, "tanh"))
    for name, value in (("layers", 3), ("zeta", 2.0), ("method", "dks")):
        found.controls[name].value = value
    assert drawn[-1]["shaped"].derivative(1)(1.0) == pytest.approx(2)  # what zeta means
    found.controls["method"].value = "tat"  # needs leaky ReLUs
    assert "alert" in found.message.value and [*drawn[-1]] == ["before shaping"]


def test_controls_of_a_network_change_it(drawn: list[Any]) -> None:
    net = rescaled_resnet(2, activation="relu", shortcut_weight=0.8)
    found = widgets.explore(net)
    assert found.network is net
    for name, value in (("activation", "tanh"), ("shortcut_weight", "0.50")):
        found.controls[name].value = value
    wanted = kc.c_map(rescaled_resnet(2, activation="tanh", shortcut_weight=0.5))
    np.testing.assert_allclose(drawn[-1]["before shaping"](GRID), wanted(GRID))
    assert [*widgets.explore(vanilla(2)).controls] == ["activation", "method", "zeta", "eta"]


def test_what_has_no_controls(drawn: list[Any]) -> None:
    for given, words in ((3, "got int"), (lambda width: vanilla(2), "nothing to control")):
        with refused(words):
            widgets.explore(given)  # type: ignore[arg-type]
    found = widgets.explore(lambda depth: depth)  # type: ignore[arg-type, return-value]
    assert "must return a kcalc.Network, got int" in found.message.value and not drawn
