"""Bounds of activations against suprema in closed form, and enclosures against values of many
digits.
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy as sp

import kcalc as kc
from kcalc.activations.base import Activation, X
from kcalc.fields.balls import working
from kcalc.gaussian.certified.enclosures import SmoothPiece
from kcalc.gaussian.certified.suprema import BITS

x = sp.Symbol("x", real=True)
_exp, _log, _tanh, _sin, _sqrt = sp.exp, sp.log, sp.tanh, sp.sin, sp.sqrt
STEEP = math.exp(-0.5)  # sqrt(2 a) times it is the largest slope of exp(-a x^2)


REACH = 30.0
# expression, reach, sup |phi'|, sup |phi''| for |x| <= reach; None where there is no closed form
CASES: list[tuple[Any, float, float | None, float | None]] = [
    (_log(1 + _exp(2 * x)) / 2, REACH, 1, 0.5),
    (_log(1 + _exp(100 * x)) / 100, 1e6, 1, 25),
    (_log(1 + _exp(x)) * _tanh(x), REACH, 1.1141402, 1.0484251),
    (_log(sp.cosh(x)), REACH, 1, 1),
    (_tanh(x) + _exp(-((x - 10**6) ** 2) * 10**12), 2e6, math.sqrt(2e12) * STEEP, 2e12),
    (_exp(-(x**2)) * sp.cosh(x), REACH, None, 1),
    (x * sp.erf(x), REACH, None, 4 / math.sqrt(math.pi)),
    (x * _exp(-_exp(-x)), REACH, None, 2 / math.e),
    (_sqrt((10000 * x - 370000) ** 2 + 1), 64.0, 1e4, 1e8),
    (sp.asinh(x), REACH, 1, 2 / (3 * math.sqrt(3))),
    (x**2 * (1 - _tanh(x) ** 2), REACH, None, 2),
    (x + _sin(x) ** 2, REACH, 2, 2),
    (_exp(_sin(x)), REACH, None, math.e),
    (sp.sinc(x), REACH, 0.43618181, 1 / 3),
    (sp.Abs(_sin(x)), REACH, 1, math.inf),
    (x + sp.Max(0, _sin(x)), REACH, 2, math.inf),
    (sp.Abs(x) * _tanh(x), REACH, None, 2),
    (sp.Max(x - _sqrt(2), 0) ** 2 / (1 + x**2), REACH, None, 2 / 3),
    (sp.sign(x) * _log(1 + sp.Abs(x)), REACH, 1, 1),
    (sp.sign(x) * sp.Abs(x) ** sp.Rational(3, 2), REACH, 1.5 * math.sqrt(REACH), math.inf),
    (_exp(-sp.Abs(x)), REACH, 1, math.inf),
    (_exp(-1 / x**2), REACH, (2 * 1.5**1.5) * math.exp(-1.5), None),
    (sp.besselj(0, x), REACH, math.inf, math.inf),  # nothing is known of it
]


@pytest.mark.parametrize(
    ("expr", "reach", "slope", "curvature"), CASES, ids=[str(case[0])[:50] for case in CASES]
)
def test_bounds_hold_and_are_tight(
    expr: Any, reach: float, slope: float | None, curvature: float | None
) -> None:
    b = kc.activation_bounds(_activation(expr), reach)
    for bound, truth in ((b.slope, slope), (b.curvature, curvature)):
        if truth is not None:
            assert truth * (1 - 1e-7) <= bound <= truth * 1.01
    assert not b.note


@pytest.mark.parametrize(
    "expr", [x * sp.atan(x), _exp(_sin(x)), sp.Max(0, _sin(x)), _tanh(x) + _tanh(2 * x)], ids=str
)
def test_on_the_whole_line_nothing_is_claimed_of_a_users_expression(expr: Any) -> None:
    phi = _activation(expr)
    b = kc.activation_bounds(phi.transformed(2, 1, 3, 1))
    assert b.value == b.slope == b.curvature == math.inf and b.least_slope == 0
    assert "reach=" in b.note and b.note in str(b)
    near = kc.activation_bounds(phi.transformed(2, 1, 3, 1), 2.0)
    assert math.isfinite(near.slope) and not near.note


def test_pieces_that_are_polynomials_need_no_declaration() -> None:
    ramp = kc.activation(sp.Piecewise((-2 * x - 3, x < -1), (x**3, x < 1), (sp.Rational(1), True)))
    b = kc.activation_bounds(ramp)
    assert (b.value, b.slope) == (math.inf, pytest.approx(3, rel=1e-8)) and not b.note
    bump = kc.activation(sp.Max(0, 1 - x**2))
    assert kc.activation_bounds(bump).value == pytest.approx(1, rel=1e-8)
    shifted = kc.activation_bounds(kc.activation("square").transformed(1, 2, 1, -3), 1e6)
    assert shifted.value == pytest.approx((1e6 + 2) ** 2 - 3, rel=1e-9)


def _activation(expr: Any) -> Activation:
    return kc.activation(expr) if _has_corners(expr) else _made(expr)


def _has_corners(expr: Any) -> bool:
    """Whether the expression has corners, which only kc.activation finds."""
    return expr.has(sp.Abs, sp.Max, sp.sign, sp.Piecewise)


def _made(expr: Any) -> Activation:
    return Activation("own", expr.xreplace({x: X}))


def test_values_that_are_bounded_because_terms_cancel_far_out() -> None:
    for expr, truth in (
        (_log(1 + _exp(x + 1)) - _log(1 + _exp(x - 1)), 2),
        (_sqrt((x + 1) ** 2 + 1) - _sqrt((x - 1) ** 2 + 1), 1.99778),
        (x**2 * _exp(x) / (1 + _exp(x)) ** 2, 0.4392288403),  # y^2 sech(y/2)^2 / 4
    ):
        bound = kc.activation_bounds(_made(expr), REACH).value
        assert truth * (1 - 1e-7) <= bound <= truth * 1.01
    shifted = kc.activation("sigmoid").transformed(output_shift=sp.Rational(-1, 2))
    assert 0.5 <= kc.activation_bounds(shifted).value <= 0.5 * (1 + 1e-6)


ENCLOSED = [
    _log(1 + _exp(x)) * _tanh(x),
    _sin(x**2) / (1 + x**2),
    _sqrt(x**2 + 1) * sp.erf(x) + sp.atan(3 * x),
    x * _exp(-_exp(-x)),
    _log(sp.cosh(3 * x)) - (1 + _exp(2 * x)) ** sp.Rational(-3, 2),
    x**3 * _exp(-2 / x**2) + sp.sinc(x),
    _exp(-1 / x**4) * sp.asinh(x) ** -2,
    sp.cos(x) ** 2 / (2 + _sin(x)) - sp.cosh(x) ** -1,
]


@pytest.mark.parametrize("expr", ENCLOSED, ids=str)
def test_enclosures_hold_values_of_fifty_digits(expr: Any) -> None:
    own, rng = expr.xreplace({x: X}), np.random.default_rng(0)
    exact = [sp.lambdify(X, sp.diff(own, X, order), "mpmath") for order in range(3)]
    piece = SmoothPiece(own, X, -100.0, 100.0)
    with mpmath.workdps(50), working(BITS):
        for low, high in ((0.0, 0.5), (0.3, 0.9), (2.5, 4.0), (6.0, 40.0)):
            points = low + (high - low) * rng.uniform(size=6)
            for side, order in ((side, order) for side in (1, -1) for order in range(3)):
                bottom, top = piece.derivatives(*sorted((side * low, side * high)))[order]
                for point in points:
                    value = exact[order](mpmath.mpf(side * float(point)))
                    assert bottom <= value <= top
