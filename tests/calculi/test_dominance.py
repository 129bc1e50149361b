"""One slope polynomial above another.

Differences of known roots, exact expansions, and the sizes beyond which none is dropped.
"""

from __future__ import annotations

from typing import Any

import flint
import mpmath
import sympy as sp

import kcalc as kc
from kcalc.calculi.subnetworks.pruning import dominates

MP = mpmath.MPContext()
MP.dps = 60
psi, t = kc.symbols.psi, sp.Symbol("t")


def rational(value: Any) -> Any:
    value = sp.Rational(value)
    return flint.fmpq(int(value.p), int(value.q))


def polynomial(expr: Any) -> Any:
    """An expression in t over the rationals, for python-flint."""
    return flint.fmpq_poly([rational(c) for c in sp.Poly(expr, t).all_coeffs()[::-1]])


# -- one polynomial above another ------------------------------------------------------------------


def test_the_degree_up_to_which_roots_are_sought() -> None:
    touching = (t - 1) ** 2 * (t - 2) ** 2
    for degree, truth in ((64, True), (65, False)):
        difference = polynomial(sp.expand(touching) + 0) * polynomial(t ** (degree - 4))
        assert difference.degree() == degree
        assert dominates(difference, polynomial(sp.Integer(0))) == truth
    assert dominates(polynomial(t**100), polynomial(t**100)) and dominates(
        polynomial(2 * t**100), polynomial(t**100)
    )


# -- sets of them ----------------------------------------------------------------------------------


# -- expansions ------------------------------------------------------------------------------------


# -- sizes beyond which nothing is dropped ---------------------------------------------------------
