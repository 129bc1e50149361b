"""Quadrature, Hermite coefficients and pair maps against mpmath and against each other."""

from __future__ import annotations

import pytest
import sympy as sp
from refusals import refused

from kcalc.activations import Activation, X
from kcalc.gaussian.expectations.quadrature import mesh


def test_an_undeclared_kink_is_found_out():
    with refused("not smooth at"):
        mesh(Activation("hidden corner", sp.Abs(X - sp.Rational(1, 3))), 16.0)


def test_high_orders_at_zero_are_hermite_weights_and_near_one_are_refused():
    plain = Activation("relu", sp.Max(X, 0), (sp.Integer(0),))
    c = sp.Symbol("c")
    closed = (sp.sqrt(1 - c**2) + (sp.pi - sp.acos(c)) * c) / sp.pi
    got = plain.taylor(1.0, 1, None, 8)
    for n in range(1, 9):
        assert got[n] == pytest.approx(
            float(closed.diff(c, n).subs(c, 0) / sp.factorial(n)), abs=1e-14
        )
    with refused("order 5"):
        plain.taylor(1e-3, 1, None, 5)
