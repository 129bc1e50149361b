"""Quadrature, Hermite coefficients and pair maps against mpmath and against each other."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import sympy as sp
from refusals import refused
from thinning import mostly_slow

from kcalc.activations import Activation, X, activation
from kcalc.gaussian.expectations import single as expectations
from kcalc.gaussian.expectations.pairs import PairMap
from kcalc.gaussian.expectations.quadrature import mesh, rule

GAPS = np.array(
    [
        0,
        1e-16,
        1e-12,
        1e-8,
        1e-5,
        1e-3,
        0.01,
        0.05,
        0.3,
        0.7,
        1,
        1.3,
        1.9,
        1.95,
        1.99,
        1.9999,
        2 - 1e-8,
        2 - 1e-12,
        2,
    ]
)


@pytest.mark.parametrize("power", [0, 2, 4, 10])
@pytest.mark.parametrize("q", [0.01, 1.0, 100.0])
def test_the_rule_integrates_even_powers(power, q):
    nodes = rule(activation("tanh"), q)
    assert nodes.w @ nodes.z**power == pytest.approx(math.prod(range(1, power, 2)), rel=1e-14)


def test_mesh_has_the_kinks_among_its_edges():
    edges = mesh(activation("hard_tanh"), 16.0)
    assert {-1.0, 1.0} <= set(edges)


def test_an_undeclared_kink_is_found_out():
    with refused("not smooth near"):
        mesh(Activation("hidden corner", sp.Abs(X - sp.Rational(1, 3))), 16.0)


def test_steep_but_smooth_functions_are_resolved():
    phi = activation(sp.erf(1000 * X))
    assert phi.second_moment(1.0) == pytest.approx(
        2 / np.pi * np.arcsin(2e6 / (1 + 2e6)), rel=1e-13
    )
    bump = activation(X + 10 * sp.exp(-(10**4) * (X - 1) ** 2))
    assert bump.second_moment(1.0) == pytest.approx(1.3890374296, rel=1e-9)
    assert activation(sp.tanh(50 * (X - 2))).second_moment(1.0) == pytest.approx(
        0.99783929581, rel=1e-9
    )


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


@pytest.mark.parametrize(
    "name", ["relu", "leaky_relu", "abs", "sign", "heaviside", "erf", "rbf", "cube"]
)
@pytest.mark.parametrize(
    ("q1", "q2"), mostly_slow([(1, 1), (50, 50), (2, 0.5), (100, 0.01), (1, 1.0001)])
)
def test_integrated_maps_agree_with_closed_forms_everywhere(name, q1, q2):
    known = activation(name)
    plain = Activation(name, known.expr, known.kinks)
    for order, (got, truth) in enumerate(
        zip(plain.taylor(GAPS, q1, q2, 2), known.taylor(GAPS, q1, q2, 2), strict=True)
    ):
        finite = np.isfinite(truth)
        np.testing.assert_array_equal(got[~finite], truth[~finite])
        error = np.abs(got[finite] - truth[finite]) / np.maximum(1, np.abs(truth[finite]))
        assert error.max() < (1e-13 if order < 2 else 2e-12)
    if q1 == q2:
        gap, truth = plain.taylor(GAPS, q1)[0], known.taylor(GAPS, q1)[0]
        assert gap[0] == 0
        np.testing.assert_allclose(gap[1:10], truth[1:10], rtol=2e-14)


@pytest.mark.parametrize("name", ["elu", "softsign", "hard_tanh", "tanh"])
def test_series_and_end_zones_meet(name):
    phi = activation(name)
    pair = PairMap(phi, 3.0, phi, 3.0)
    pair.complete = False
    edge = 1 - math.cos(0.35)
    for side in (edge, 2 - edge):
        left, right = (pair.taylor(np.array([side + step]), 2) for step in (-1e-13, 1e-13))
        for a, b in zip(left, right, strict=True):
            assert a[0] == pytest.approx(b[0], rel=1e-11)


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
