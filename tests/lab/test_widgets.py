"""Sliders over C maps, without a notebook.

The controls are set and the picture is looked at as bytes.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
from refusals import refused

import kcalc as kc
from kcalc import widgets

rescaled_resnet, vanilla = kc.architectures.rescaled_resnet, kc.architectures.vanilla

pytestmark = pytest.mark.usefixtures("untouched_pyplot")
PNG = b"\x89PNG"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with refused("pip install.*widgets"):
        widgets.explore(vanilla)


class TestControls:
    @pytest.fixture(autouse=True)
    def _present(self) -> None:
        pytest.importorskip("ipywidgets")

    def test_a_builder_gets_controls_for_what_it_takes(self) -> None:
        found = widgets.explore(rescaled_resnet)
        assert list(found.controls) == [
            "activation",
            "blocks",
            "shortcut_weight",
            "method",
            "zeta",
            "eta",
        ]
        assert bytes(found.picture.value).startswith(PNG)
        first = bytes(found.picture.value)
        found.controls["blocks"].value = 3
        assert bytes(found.picture.value) != first
        assert found.network == rescaled_resnet(3, shortcut_weight=0.7, activation="relu")
        assert list(widgets.explore(vanilla).controls) == [
            "activation",
            "depth",
            "method",
            "zeta",
            "eta",
        ]

    def test_shaping_draws_a_second_map_and_refusals_are_shown(self) -> None:
        found = widgets.explore(vanilla)
        found.controls["activation"].value = "tanh"
        plain = bytes(found.picture.value)
        found.controls["method"].value = "dks"
        assert bytes(found.picture.value) != plain
        assert not found.message.value
        found.controls["method"].value = "tat"
        found.controls["activation"].value = "relu"
        found.controls["depth"].value = 2
        found.controls["eta"].value = 0.99
        assert "not reachable" in found.message.value
        assert bytes(found.picture.value).startswith(PNG)

    def test_a_network_keeps_what_is_not_changed(self) -> None:
        branch = kc.chain(kc.layers.Nonlinear("tanh"), kc.layers.Affine())
        net = kc.chain(
            kc.layers.Affine(),
            kc.residual(branch, 0.6),
            kc.layers.Nonlinear("tanh"),
            kc.layers.Affine(),
        )
        found = widgets.explore(net)
        assert found.network == net
        found.controls["shortcut_weight"].value = "0.30"
        assert found.network == kc.with_residual_weights(net, shortcut_weight=0.3)
        found.controls["activation"].value = "erf"
        assert {
            found.network.layer(node).activation.name
            for node in found.network.nodes_of(kc.layers.Nonlinear)
        } == {"erf"}
        assert "application/vnd.jupyter.widget-view+json" in str(found._repr_mimebundle_())
        assert "activation=erf" in repr(found)

    @pytest.mark.parametrize("given", [3, "vanilla", kc.Network, lambda q: q])
    def test_anything_else_is_refused(self, given: Any) -> None:
        with refused(r"explore needs|nothing to change"):
            widgets.explore(given)

    def test_a_builder_of_something_else_says_so(self) -> None:
        assert "must return a kcalc.Network" in widgets.explore(lambda depth: depth).message.value


def test_kcalc_needs_no_widgets() -> None:
    assert importlib.import_module("kcalc.lab.widgets").explore is widgets.explore
