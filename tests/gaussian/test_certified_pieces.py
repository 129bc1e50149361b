"""Certified kinks, growth bounds and ranges of expressions, and their values as balls."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy as sp
from flint import arb
from refusals import refused

from kcalc.activations import activation
from kcalc.gaussian.certified import intervals, ranges
from kcalc.gaussian.certified.enclosures import SmoothPiece
from kcalc.gaussian.certified.evaluate import compile_smooth
from kcalc.gaussian.certified.growth import derive
from kcalc.gaussian.certified.kinks import certain_kinks
from kcalc.gaussian.certified.ranges import span

X = sp.Symbol("x", real=True)


@pytest.mark.parametrize(
    ("expr", "equation"),
    [
        (sp.Max(sp.exp(X), 3 - X), lambda x: mpmath.exp(x) + x - 3),
        (sp.Max(X - sp.Float("0.1"), 0), lambda x: x - mpmath.mpf(0.1)),
    ],
)
def test_kinks_are_enclosed(expr: sp.Expr, equation: Any) -> None:
    (kink,) = certain_kinks(activation(expr))
    ball = kink()
    with mpmath.workdps(60):
        root = mpmath.findroot(equation, float(ball.mid()))
        middle, radius = (
            mpmath.mpf(part.str(60, radius=False)) for part in (ball.mid(), ball.rad())
        )
        assert abs(root - middle) <= radius + mpmath.mpf(10) ** -40 and radius < 1e-15


def test_kinks_that_nothing_proves() -> None:
    with refused("known only to double precision"):
        certain_kinks(activation(sp.Piecewise((0, sp.exp(X) + X < 3), (1, True))))


GROWING = [
    sp.exp(sp.sqrt(1 + X**2)),
    sp.exp((1 + X**2) ** sp.Rational(3, 4)),
    (2 + sp.sin(X)) ** sp.Rational(-1, 3) * X,
    (4 + X**2) ** sp.Rational(-3, 2) * X**2,
    sp.Abs(X**3 + X),
    sp.cosh(X) + sp.sinh(X / 2),
    sp.asinh(X**2 + X),
    sp.log(2 + sp.exp(X)) * sp.erfc(X),
    sp.log(2 + sp.exp(X**2 / 8)),
    sp.exp(-X) * sp.sin(X),
    sp.sqrt(2 + sp.cosh(X)),
    X**2 * sp.tanh(X) * sp.acos(sp.tanh(X)),
    sp.cosh(X**2 / 8),
]


@pytest.mark.parametrize("expr", GROWING, ids=str)
def test_growth_and_ranges_hold(expr: sp.Expr) -> None:
    f = sp.lambdify(X, expr, "mpmath")
    bound = derive(expr, X)
    for x in np.concatenate([np.linspace(-30, 30, 61), [-0.3, 0.01, 90.0, -90.0]]):
        size = abs(mpmath.re(f(mpmath.mpf(float(x)))))
        assert size == 0 or mpmath.log(size) <= bound.at(abs(float(x))) + 1e-9, x
    for low, high in ((-3.0, 2.0), (0.5, 1.0), (-900.0, 900.0)):
        least, greatest = span(expr, X, low, high)
        values = [mpmath.re(f(mpmath.mpf(float(x)))) for x in np.linspace(low, high, 41)]
        assert least <= min(values) and max(values) <= greatest


@pytest.mark.parametrize(
    ("expr", "says"),
    [
        (X**X, "x"),
        (sp.exp(sp.exp(X)), "not proven to grow more slowly"),
        (sp.gamma(X), "gamma"),
        (sp.exp(X**3), "faster"),
    ],
)
def test_growth_that_is_not_bounded(expr: sp.Expr, says: str) -> None:
    with refused(says):
        derive(expr, X)


def test_growth_on_a_half_line() -> None:
    bound = derive(sp.exp(2 * X), X, 0.0)
    assert all(0 <= bound.at(x) - 2 * x < 1e-9 for x in np.linspace(0, 30, 31))


@pytest.mark.parametrize(
    "expr",
    [
        sp.sin(X) + sp.cos(X) + sp.exp(X),
        2**X,
        sp.log(3 + X**2),
        sp.log(2 + sp.sin(X)) + 1,
        sp.log(sp.cosh(X)),
        3 ** (-(X**2)),
    ],
    ids=str,
)
def test_certified_values(expr: sp.Expr) -> None:
    """Balls on the real line and boxes in the plane contain the value at 50 digits."""
    from flint import acb

    smooth = compile_smooth(expr)
    for x in (0.75, -0.75):
        with mpmath.workdps(50):
            truth = sp.lambdify(X, expr, "mpmath")(mpmath.mpf(x))
            for ball in (smooth.real(arb(x)), smooth.complex(acb(x)).real):
                assert (
                    abs(mpmath.mpf(ball.mid().str(40, radius=False)) - truth)
                    <= float(ball.rad()) + 1e-15
                )


@pytest.mark.parametrize(
    ("expr", "says"),
    [
        (X**X, "exponent.*positive"),
        ((-2) ** X, "exponent.*positive"),
        (sp.Abs(X), r"Abs\(x\) has corners"),
    ],
)
def test_what_has_no_certified_values(expr: sp.Expr, says: str) -> None:
    with refused(says):
        compile_smooth(expr)


def test_ranges_of_what_is_hardly_known() -> None:
    """sinc(x) = sin(x)/x has derivatives up to 1/(k + 1); sin lies between -1 and 1."""
    whole = intervals.Range(arb("-inf"), arb("inf"))
    sine = intervals.Ranges().function(sp.sin, whole)
    assert sine.low <= -1 and sine.high >= 1
    assert (
        intervals.around(arb("nan")).low == intervals.between(arb(0), arb("nan")).low == -math.inf
    )
    for k, ball in enumerate(intervals._sinc(arb(1, 3), 2)):
        for x in np.linspace(-2, 4, 13):
            value = mpmath.taylor(mpmath.sinc, float(x) + 1e-9, k)[k]
            assert ball.contains(arb(float(value)))
    assert ranges.real_power((0.5, 2.0), (-1.0, 1.0))[0] == 0.0
    assert ranges.real_power((0.5, 2.0), (0.0, 0.0)) == (1.0, 1.0)
    assert ranges.inverse((0.0, 2.0)) == (0.0, math.inf)


PIECES = [
    sp.Max(X, sp.sin(2 * X), -X), sp.Min(X, sp.cos(X)), sp.Abs(sp.sin(X)), sp.sign(sp.sin(X)) * X,
    sp.Heaviside(X), sp.sec(X), sp.coth(X),
]  # fmt: skip


@pytest.mark.parametrize("expr", PIECES, ids=str)
def test_programs_enclose_functions_and_derivatives(expr: sp.Expr) -> None:
    found = SmoothPiece(expr, X, 0.4, 0.5).derivatives(0.4, 0.5)
    for n, (low, high) in enumerate(found[:3]):
        assert low - 1e-15 <= expr.diff(X, n).subs(X, 0.45).evalf() <= high + 1e-15 < low + 99
    assert not SmoothPiece(sp.gamma(X), X, 1, 2).derivatives(1, 2)[0][1] < math.inf
