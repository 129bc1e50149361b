"""Gradients over tokens that are alike, by hand."""

from __future__ import annotations

from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.network.layers import Affine, Nonlinear, Sum


def test_shared_branches_have_no_gradients_over_tokens() -> None:
    steps = [
        ("a", Affine()),
        ("f", Nonlinear("relu")),
        ("s", Sum((0.6, 0.8)), "a f"),
        ("out", Affine()),
    ]
    with refused("'s': the addends share weights.*gradients over tokens"):
        kc.gradients(wired(*steps, outputs=["out"]), tokens=3)
