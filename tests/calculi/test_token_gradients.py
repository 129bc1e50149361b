"""Gradients over tokens that are alike, by hand."""

from __future__ import annotations

from refusals import refused
from wiring import wired

import kcalc as kc

L = kc.layers


def test_shared_branches_have_no_gradients_over_tokens() -> None:
    steps = [
        ("x", L.Input()),
        ("a", L.Affine(), "x"),
        ("f", L.Nonlinear("relu"), "a"),
        ("s", L.Sum((0.6, 0.8)), "a f"),
        ("out", L.Affine(), "s"),
    ]
    with refused("'s': the addends share weights.*gradients over tokens"):
        kc.gradients(wired(*steps, outputs=["out"]), tokens=3)
