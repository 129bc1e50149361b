"""Sliders over C maps, without a notebook.

The controls are set and the picture is looked at as bytes.
"""

from __future__ import annotations

import importlib
import sys

import pytest
from refusals import refused

import kcalc as kc
from kcalc import widgets

rescaled_resnet, vanilla = kc.architectures.rescaled_resnet, kc.architectures.vanilla

pytestmark = pytest.mark.usefixtures("untouched_pyplot")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with refused("pip install.*widgets"):
        widgets.explore(vanilla)


def test_kcalc_needs_no_widgets() -> None:
    assert importlib.import_module("kcalc.lab.widgets").explore is widgets.explore
