"""Factored polynomials against SymPy's, and how mixes weigh.

Shares by squares, channels and q values, and what is assumed of them.
"""

from __future__ import annotations

from typing import Any

import mpmath
import sympy as sp
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.calculi.convex import convex_shares
from kcalc.calculi.slopes import slope_polynomial
from kcalc.network.layers import (
    Affine,
    Input,
    Sum,
)

MP = mpmath.MPContext()
MP.dps = 50


# -- shares ----------------------------------------------------------------------------------------


def test_shares_of_other_amounts_are_simple() -> None:
    w = sp.Symbol("w")
    one, two = convex_shares((1 + sp.sqrt(2), sp.Integer(1)))
    assert (
        one == sp.sqrt(2) / 2 and sp.expand(two) == 1 - sp.sqrt(2) / 2 and sp.fraction(two)[1] == 2
    )
    for zeros in ((0.0, 0.0), (sp.Integer(0), sp.Integer(0)), (w - w, 0 * w)):
        with refused("0.*polynomial"):
            convex_shares(zeros)
    net = wired(("x", Input()), ("a", Affine(), "x"), ("s", Sum((1e-200, 1e-200)), "x a"))
    with refused("weights are all 0"):
        slope_polynomial(net)


# -- what is assumed -------------------------------------------------------------------------------


def of(*steps: Any) -> kc.Network:
    return wired(("x", Input(4)), ("a", Affine(4), "x"), *steps)
