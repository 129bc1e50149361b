"""Arb balls as a number system.

What goes in is enclosed, what comes out contains the truth, flint's precision is left alone.
"""

from __future__ import annotations

from fractions import Fraction

import flint
import mpmath
import numpy as np
import pytest
import sympy as sp
from flint import arb, ctx
from refusals import refused

from kcalc.fields.balls import Enclosure, ball_field, working

FIELD = ball_field(30)


@pytest.fixture(autouse=True)
def _precision_is_left_alone():
    before = ctx.prec
    yield
    assert ctx.prec == before


def exact(value: mpmath.mpf) -> Fraction:
    sign, man, exp, _ = value._mpf_
    whole = Fraction(-int(man) if sign else int(man))
    return whole * Fraction(2) ** int(exp)


def holds(ball: arb, truth: mpmath.mpf, slack: str = "1e-70") -> bool:
    """Whether the ball contains an mpmath value that is good to ``slack`` relative to 1
    + |value|.
    """
    room = Fraction(slack) * (1 + abs(exact(truth)))
    found = Enclosure.of(ball)
    return exact(found.lower) - room <= exact(truth) <= exact(found.upper) + room


# --- numbers in -----------------------------------------------------------------------------------


def test_balls_that_are_not_finite_are_refused():
    with refused("must be finite"):
        FIELD.number(arb(1) / 0)
    with refused("must be finite"):
        Enclosure.of(arb(1) / 0)


@pytest.mark.parametrize(
    "value",
    [
        7,
        -3,
        0.1,
        2.0**-300,
        np.float32(0.1),
        np.int64(5),
        np.array(0.3),
        mpmath.mpf("0.1"),
        sp.Float(0.1),
    ],
)
def test_binary_numbers_are_exact(value):
    ball = FIELD.number(value)
    assert ball.is_exact()
    if not isinstance(value, sp.Float | mpmath.mpf):
        assert exact(Enclosure.of(ball).mid) == Fraction(float(value))


_X = sp.Symbol("x")
CONSTANTS = [
    *(
        sp.sqrt(2),
        sp.pi / 3,
        sp.E,
        sp.exp(sp.Rational(1, 3)),
        sp.log(2),
        sp.Rational(2, 7),
        sp.cbrt(5),
        sp.atan(sp.Rational(1, 2)),
    ),
    *(
        sp.erf(1),
        sp.sin(1) * sp.cosh(2),
        sp.GoldenRatio,
        sp.EulerGamma,
        sp.sqrt(2 / sp.pi),
        sp.asinh(1) ** 3,
        sp.pi**sp.E,
        sp.Abs(sp.Rational(-3, 2), evaluate=False),
    ),
    sp.real_roots(_X**5 - _X - 1)[0],
]


@pytest.mark.parametrize("constant", CONSTANTS, ids=str)
def test_symbolic_constants_are_enclosed_tightly(constant):
    ball = FIELD.number(constant)
    with mpmath.workdps(80):
        truth = mpmath.mpf(sp.Float(constant.evalf(75), 75)._mpf_)
        assert holds(ball, truth)
    assert float(ball.rad()) < 1e-38 * max(1.0, abs(float(constant)))


# --- functions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "value"), [("sqrt", -1), ("asin", 1.5), ("acos", -2)])
def test_arguments_outside_the_domain_are_refused(function, value):
    with refused("domain"):
        getattr(FIELD, function)(FIELD.number(value))


# --- precision ------------------------------------------------------------------------------------


# --- results --------------------------------------------------------------------------------------


def test_enclosures_compare_with_text_fractions_and_each_other():
    wide, narrow = Enclosure.of(arb(0.5, 0.25)), Enclosure.of(arb(0.5, 0.125))
    assert wide.contains(narrow) and not narrow.contains(wide)
    assert wide.contains(Fraction(1, 3)) and wide.contains(mpmath.mpf(0.7)) and not wide.contains(2)
    with refused("decimal"):
        wide.contains("a third")


def test_printing_is_one_short_line():
    with working(110):
        found = Enclosure.of(1 / arb.pi())
    assert repr(found).startswith("0.3183098861837906715377675267450") and "\n" not in repr(found)
    assert (
        found._repr_latex_().startswith("$0.31830988618379067153776752674")
        and r"\cdot 10^{-" in found._repr_latex_()
    )
    assert (
        repr(Enclosure.of(arb(2.5))) == "2.5 +/- 0"
        and Enclosure.of(arb(2.5))._repr_latex_() == "$2.5$"
    )
    assert repr(Enclosure.of(arb(0))) == "0 +/- 0"
    assert repr(Enclosure.of(arb(3) * arb(2) ** 1500)) == f"{3 * 2**1500} +/- 0"


def test_flint_version_has_what_is_used():
    assert hasattr(flint.acb, "integral") and hasattr(flint.arb, "legendre_p_root")


def test_functions_without_a_ball_method_are_named():
    for expr in (
        sp.S.TribonacciConstant,
        sp.zeta(3),
        sp.besselj(0, sp.Integer(1)),
        sp.Function("f")(1),
    ):
        with refused(f"ball arithmetic does not support {type(expr).__name__}"):
            FIELD.number(expr)


def test_the_excess_of_tiny_gaps():
    gap = FIELD.number(2.0**-400)  # t^3 / 3 with t = sqrt(2 u)
    assert float(FIELD.sine_excess(gap) / gap**1.5) == pytest.approx(8**0.5 / 3, rel=1e-15)
