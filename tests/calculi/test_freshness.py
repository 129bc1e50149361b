"""What feature maps are made of.

Exact cross terms, fusion, refusals, and what a heuristic answer says of itself.
"""

from __future__ import annotations

from typing import Any

from wiring import wired

import kcalc as kc

L = kc.layers


def phi(name: Any) -> L.Nonlinear:
    """An activation layer."""
    return L.Nonlinear(name)


# -- an independent quadrature ---------------------------------------------------------------------


# -- pinned ----------------------------------------------------------------------------------------


# -- hypotheses that fail: refused, or what a real network does ------------------------------------


def test_a_small_grouped_fan_in_is_not_gaussian():
    """Without channel counts a grouped layer says what it takes for granted."""
    unknown = wired(("z", L.Affine(), "x"), ("d", L.Affine(groups=8), "z"), ("p", phi("tanh"), "d"))
    assert any(a.node == "d" and "group" in a.text for a in kc.c_map(unknown).assumptions)
