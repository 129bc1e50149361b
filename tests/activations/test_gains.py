"""Gains against mpmath, and the page that compares them with those that libraries ship."""

from __future__ import annotations

from pathlib import Path

from refusals import refused

import kcalc as kc
from kcalc.activations.gains import comparison


def test_a_constant_has_no_centred_gain():
    with refused("constant"):
        kc.gain(kc.activation(1), centred=True)


def test_the_page_shows_the_table():
    page = (Path(__file__).parents[2] / "docs" / "gains.md").read_text()
    assert comparison() in page


def test_q_of_a_gain_is_one_number_above_0() -> None:
    for q, why in ((0, "must be > 0, got 0"), ([1.0, 2.0], "must be a single number")):
        with refused(why):
            kc.gain("relu", q)
