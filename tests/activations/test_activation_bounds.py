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
from kcalc.activations.wide import compile_wide
from kcalc.fields.balls import working
from kcalc.gaussian.certified.enclosures import Piece
from kcalc.gaussian.certified.suprema import BITS

x = sp.Symbol("x", real=True)
_exp, _log, _tanh, _sin, _sqrt = sp.exp, sp.log, sp.tanh, sp.sin, sp.sqrt
BEND = 1 / (6 * math.sqrt(3))  # the largest second derivative of the logistic function
TURN = 4 / (3 * math.sqrt(3))  # that of tanh
STEEP = math.exp(-0.5)  # sqrt(2 a) times it is the largest slope of exp(-a x^2)
POWER = 10**6


def _written_tanh(u: sp.Expr) -> sp.Expr:
    return (_exp(u) - _exp(-u)) / (_exp(u) + _exp(-u))


# expression, sup |phi'|, sup |phi''|; None where there is no closed form
CASES: list[tuple[Any, float | None, float | None]] = [
    (1 / (1 + _exp(-3 * x)), 0.75, 9 * BEND),
    (1 / (1 + _exp(-10000 * x)), 2500, 1e8 * BEND),
    (1 / (1 + _exp(-sp.Float(1e12) * x)), 2.5e11, 1e24 * BEND),
    ((1 + _exp(-x)) ** -POWER, (POWER / (POWER + 1)) ** (POWER + 1), None),
    (_log(1 + _exp(2 * x)) / 2, 1, 0.5),
    (_log(1 + _exp(100 * x)) / 100, 1, 25),
    (_log(1 + _exp(x)) * _tanh(x), 1.1141402, 1.0484251),
    (_log(sp.cosh(x)), 1, 1),
    (_written_tanh(x), 1, TURN),
    (_written_tanh(1000 * x), 1000, 1e6 * TURN),
    (_written_tanh(1000 * (x - 5)), 1000, 1e6 * TURN),
    (x + _exp(-1000 * (x - 1) ** 2), 1 + math.sqrt(2000) * STEEP, 2000),
    (_tanh(x) + _exp(-((x - 37) ** 2) * 10**6) / 1000, 1, 2000),
    (_tanh(x) + _exp(-((x - 10**6) ** 2) * 10**12), math.sqrt(2e12) * STEEP, 2e12),
    (_exp(-(x**2)) * sp.cosh(x), None, 1),
    ((1 + x**2) ** -500, 1000 / math.sqrt(1001) * (1 + 1 / 1001) ** -501, 1000),
    (x * sp.erf(x), None, 4 / math.sqrt(math.pi)),
    (x * (1 + sp.erf(x / _sqrt(2))) / 2, 1.12890414, math.sqrt(2 / math.pi)),
    (x * _exp(-_exp(-x)), None, 2 / math.e),
    (_log(1 + _exp(x + 1)) - _log(1 + _exp(x - 1)), math.tanh(0.5), None),
    (_sqrt((x + 1) ** 2 + 1) - _sqrt((x - 1) ** 2 + 1), math.sqrt(2), None),
    (_sqrt(x**2 + sp.Rational(1, 10**12)), 1, 1e6),
    (_sqrt((10000 * x - 370000) ** 2 + 1), 1e4, 1e8),
    (sp.asinh(x), 1, 2 / (3 * math.sqrt(3))),
    (x * sp.atan(x), math.pi / 2, 2),
    (x * (_exp(1 / (1 + x**2)) - 1), math.e - 1, None),
    (x**2 * (1 - _tanh(x) ** 2), None, 2),
    (x * _log(1 + x**2), math.inf, None),
    (x * sp.cos(x / 10), math.inf, math.inf),
    (x + _sin(x) ** 2, 2, 2),
    (x + _sin(30 * x) ** 2 / 30, 2, 60),
    (_exp(_sin(x)), None, math.e),
    (_sin(x) + _sin(_sqrt(2) * x), 1 + math.sqrt(2), 3),
    (_sin(x**2) / (1 + x**2), None, 4),
    (sp.sinc(x), 0.43618181, 1 / 3),
    (sp.Abs(_sin(x)), 1, math.inf),
    (x + sp.Max(0, _sin(x)), 2, math.inf),
    (sp.Abs(x) * _tanh(x), None, 2),
    (sp.Max(x, 0) + _log(1 + _exp(-sp.Abs(x))), 1, 0.25),
    (sp.Max(x - _sqrt(2), 0) ** 2 / (1 + x**2), None, 2 / 3),
    (sp.sign(x) * _log(1 + sp.Abs(x)), 1, 1),
    (_exp(-sp.Abs(x)), 1, math.inf),
    (sp.Piecewise((x * _exp(-1 / x), x > 0), (0, True)), 1, None),
    (sp.besselj(0, x), math.inf, math.inf),  # nothing is known of it
]


@pytest.mark.parametrize(
    ("expr", "slope", "curvature"), CASES, ids=[str(case[0])[:50] for case in CASES]
)
def test_bounds_hold_and_are_tight(expr: Any, slope: float | None, curvature: float | None) -> None:
    phi = kc.activation(expr) if _has_corners(expr) else _made(expr)
    b = kc.activation_bounds(phi)
    for bound, truth in ((b.slope, slope), (b.curvature, curvature)):
        if truth is not None:
            assert truth * (1 - 1e-7) <= bound <= truth * 1.01


def _has_corners(expr: Any) -> bool:
    """Whether the expression has corners, which only kc.activation finds."""
    return expr.has(sp.Abs, sp.Max, sp.sign, sp.Piecewise)


def _made(expr: Any) -> Activation:
    return Activation("own", expr.xreplace({x: X}))


def test_values_that_are_bounded_because_terms_cancel_far_out() -> None:
    for expr, truth in (
        (_log(1 + _exp(x + 1)) - _log(1 + _exp(x - 1)), 2),
        (_sqrt((x + 1) ** 2 + 1) - _sqrt((x - 1) ** 2 + 1), 2),
        (x**2 * _exp(x) / (1 + _exp(x)) ** 2, 0.4392288403),  # y^2 sech(y/2)^2 / 4
    ):
        bound = kc.activation_bounds(_made(expr)).value
        assert truth * (1 - 1e-7) <= bound <= truth * 1.01
    shifted = kc.activation("sigmoid").transformed(output_shift=sp.Rational(-1, 2))
    assert 0.5 <= kc.activation_bounds(shifted).value <= 0.5 * (1 + 1e-6)


def test_corners_count_where_they_are_reached() -> None:
    clip = kc.activation(sp.Min(sp.Max(x, -1), 1))
    assert kc.activation_bounds(clip, 0.5).curvature < 1e-300  # 0, rounded outwards
    assert math.isinf(kc.activation_bounds(clip, 2.0).curvature)
    assert kc.activation_bounds(kc.activation(sp.Abs(x))).least_slope == pytest.approx(1, rel=1e-9)


ENCLOSED = [
    _log(1 + _exp(x)) * _tanh(x),
    x**2 * (1 - _tanh(x) ** 2) + _exp(-((x - 3) ** 2)),
    _sin(x**2) / (1 + x**2),
    _sqrt(x**2 + 1) * sp.erf(x) + sp.atan(3 * x),
    x * _exp(-_exp(-x)),
]


@pytest.mark.parametrize("expr", ENCLOSED, ids=str)
def test_enclosures_hold_values_of_fifty_digits(expr: Any) -> None:
    own, rng = expr.xreplace({x: X}), np.random.default_rng(0)
    exact = [sp.lambdify(X, sp.diff(own, X, order), "mpmath") for order in range(3)]
    piece = Piece(own, X, (None, -math.inf), (None, math.inf))
    with mpmath.workdps(50), working(BITS):
        for low, high in ((0.3, 0.9), (2.5, 4.0), (6.0, 40.0), (70.0, math.inf)):
            points = low + (min(high, 90.0) - low) * rng.uniform(size=6)
            for side, order in ((side, order) for side in (1, -1) for order in range(3)):
                a, b = sorted((side * low, side * high))
                found = [piece.stretched(a, b, order, None), piece.derivatives(a, b)[order]]
                for point in points:
                    value = exact[order](mpmath.mpf(side * float(point)))
                    assert all(bottom <= value <= top for bottom, top in found)


@pytest.mark.parametrize(
    "expr",
    [
        1 / (1 + _exp(-10000 * x)),
        _written_tanh(1000 * x),
        _log(1 + _exp(1000 * x)),
        sp.cosh(800 * x) / (1 + sp.cosh(800 * x)),
    ],
    ids=str,
)
def test_values_that_overflow_on_the_way(expr: Any) -> None:
    own, points = expr.xreplace({x: X}), np.array([-40.0, -3.1, -0.9, 0.9, 3.1, 40.0])
    with mpmath.workdps(60):
        truth = [float(sp.lambdify(X, own, "mpmath")(mpmath.mpf(float(point)))) for point in points]
    assert compile_wide(own, X)(points) == pytest.approx(truth, rel=1e-14, abs=1e-300)
