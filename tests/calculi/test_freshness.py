"""What feature maps are made of.

Exact cross terms, fusion, refusals, and what a heuristic answer says of itself.
"""

from __future__ import annotations

from typing import Any

import pytest
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


def test_activations_of_a_named_gaussian_are_not_fused_in_symbols() -> None:
    """The scale of a LayerNorm is no number there; in numbers the two are one activation."""
    activations = [L.Nonlinear("sigmoid"), L.Nonlinear("relu")]
    C = kc.c_map(
        kc.chain(
            L.Input(),
            L.Affine(sigma_b=0.5),
            L.Nonlinear("gelu"),
            L.Affine(),
            L.LayerNorm(),
            *activations,
            L.Affine(),
        )
    )
    assert C(1.0) == pytest.approx(1.0)
    with pytest.raises(kc.FreshnessError, match="relu sees the output of sigmoid"):
        C.symbolic(1)
