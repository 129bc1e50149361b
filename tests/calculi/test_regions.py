"""Regions of random graphs against the definition of a subnetwork, trees that skip against walks,
and subnetworks as networks.
"""

from __future__ import annotations

from wiring import wired

from kcalc.calculi.subnetworks.regions import Subnetwork
from kcalc.network.layers import (
    Affine,
    Input,
    Nonlinear,
)

# -- subnetworks as networks -----------------------------------------------------------------------


def test_names_of_the_new_input_are_free_ones() -> None:
    steps = [
        ("x", Input(4)),
        ("a", Affine(4)),
        ("input of a", Nonlinear("relu")),
    ]
    steps.append(("input of a'", Affine(4), ("input of a",)))
    piece = Subnetwork("a", "input of a'", wired(*steps))
    assert piece.layers == ("input of a", "input of a'")
    assert piece.network.inputs == ("input of a''",)
    assert list(piece.network) == ["input of a''", "a", "input of a", "input of a'"]
    whole = Subnetwork("x", "input of a'", wired(*steps))
    assert whole.network == wired(*steps)
