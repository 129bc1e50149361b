"""Quadrature, Hermite coefficients and pair maps against mpmath and against each other."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import sympy as sp
from refusals import refused

from kcalc.activations import Activation, X, activation
from kcalc.gaussian.expectations import single as expectations
from kcalc.gaussian.expectations.quadrature import mesh


def test_an_undeclared_kink_is_found_out():
    with refused("not smooth at"):
        mesh(Activation("hidden corner", sp.Abs(X - sp.Rational(1, 3))), 16.0)


@pytest.mark.parametrize("name", ["tanh", "softplus", "elu", "hard_tanh", "relu"])
def test_hermite_coefficients_agree_with_mpmath(name):
    phi = activation(name)
    pieces = [sp.lambdify(X, piece, "mpmath") for piece in phi.pieces]
    kinks = phi.kink_points
    found = expectations.hermite(phi, 1.5)
    with mpmath.workdps(20):
        for n in (1, 2, 7):

            def integrand(z, n=n):
                u = mpmath.sqrt(1.5) * z
                value = pieces[sum(u > k for k in kinks)](u)
                return value * mpmath.hermite(n, z / mpmath.sqrt(2)) * mpmath.npdf(z)

            cuts = sorted(
                {-13.0, -6, -3, -1, 0.0, 1, 3, 6, 13.0, *(k / math.sqrt(1.5) for k in kinks)}
            )
            truth = mpmath.quad(integrand, cuts) / mpmath.sqrt(
                mpmath.mpf(2) ** n * mpmath.factorial(n)
            )
            assert found.coefficients[n - 1] == pytest.approx(float(truth), abs=2e-15)


def test_cross_moments_of_different_functions():
    """E[u max(v, 0)] = sqrt(q1 q2) c/2 and E[sign(u) v] = c sqrt(2 q2/pi), linear in c."""
    relu, identity, sign = (activation(name) for name in ("relu", "identity", "sign"))
    c = np.array([-1, -0.999, -0.3, 0, 0.5, 0.97, 1])
    value, slope, bend = identity.cross(relu, 2.0, 3.0, c, 2)
    np.testing.assert_allclose(value, math.sqrt(6) * c / 2, atol=1e-14)
    np.testing.assert_allclose(slope, math.sqrt(6) / 2, rtol=1e-14)
    np.testing.assert_allclose(bend, 0, atol=1e-13)
    np.testing.assert_allclose(
        sign.cross(identity, 2.0, 3.0, c, 0)[0], c * math.sqrt(6 / math.pi), atol=1e-14
    )


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
