"""Certified local kernel quantities contain the truth (mpmath at 40 digits by other routes, frozen
values, each other) and are narrow.
"""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import sympy as sp
from flint import arb, ctx
from refusals import refused
from thinning import mostly_slow

from kcalc.activations import activation
from kcalc.fields.balls import Enclosure, ball_field
from kcalc.gaussian.certified import hermite_coefficients

X = sp.Symbol("x", real=True)
FIELD = ball_field(30)
"""Entries whose C map has no closed form in elementary functions and erf alone."""


@pytest.fixture(autouse=True)
def _precision_is_left_alone():
    before = ctx.prec
    yield
    assert ctx.prec == before


def encloses(ball, truth, slack=0.0) -> bool:
    """Whether |mid - truth| <= radius + slack, all exactly.

    Truth is an mpf, a decimal string or a number.
    """
    found = Enclosure.of(ball)
    value = Enclosure._ends(truth)[0]
    room = Fraction(slack) * max(1, abs(value))
    low, high = Enclosure._ends(found)
    return low - room <= value <= high + room


def width(ball) -> float:
    return float(ball.rad()) / max(1.0, abs(float(ball.mid())))


# --- truth by other routes ------------------------------------------------------------------------


# --- frozen values --------------------------------------------------------------------------------


# --- each other -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tanh", "hard_swish", "gelu_tanh"])
@pytest.mark.parametrize("digits", mostly_slow([15, 50]))
def test_more_digits_lie_inside_fewer(name, digits):
    phi, field = activation(name), ball_field(digits)
    for gap, q2 in ((0.3, 2.0), (2.0**-20, None)):
        wide = phi.taylor(gap, 1.5, q2, 1, ball_field(15))
        narrow = phi.taylor(gap, 1.5, q2, 1, field)
        for one, other in zip(wide, narrow, strict=True):
            assert one.overlaps(other)
            assert width(other) < 10.0 ** (2 - digits)


# --- known numbers, ends of the interval ----------------------------------------------------------


IRRATIONAL = sp.Piecewise((X**2 - 2, sp.Gt(X, sp.sqrt(2))), (0, True))
BENT = sp.Piecewise((0, X < -1), (X + 1, 2 * X < 1), (X + 1 + (X - sp.Rational(1, 2)) ** 2, True))


def test_derivatives_at_the_ends():
    """E phi'^2 at c = 1; at c = -1, phi'' = delta(u + 1) + 2 [u > 1/2] meets its mirror image."""
    field = ball_field(12)
    phi = activation(IRRATIONAL)
    with mpmath.workdps(30):
        edges = [mpmath.sqrt(2), 3, 5, 9, 20]
        slope = mpmath.quad(lambda z: 4 * z * z * mpmath.npdf(z), edges)
        size = mpmath.quad(lambda z: (z * z - 2) ** 2 * mpmath.npdf(z), edges)
        assert encloses(phi.taylor(0, 1, None, 1, field)[1], slope / size, 1e-20)
        assert encloses(phi.taylor(2, 1, None, 1, field)[0], 1)
        phi = activation(BENT)
        bend = phi.taylor(2, 1, None, 2, field)[2] * phi.second_moment(1, field=field)
        assert encloses(bend, 2 * mpmath.npdf(1), 1e-20)


def test_even_functions_on_the_reflected_plane():
    phi, field = activation(sp.exp(-sp.Abs(X))), ball_field(5)
    ((one,), (other,)) = (phi.taylor(gap, 1, None, 0, field) for gap in (0.1, 1.9))
    assert one.overlaps(other) and encloses(one, phi.taylor(0.1, 1)[0], 1e-12)


def test_mirrored_activations():
    """Only x < 0 counts, where phi(-2 x) = -2 x/(1 + e^(2 x))."""
    phi = activation(sp.Piecewise((0, X < 0), (X / (1 + sp.exp(-X)), True)))
    found = phi.transformed(input_scale=-2).second_moment(1, field=FIELD)
    with mpmath.workdps(40):
        truth = mpmath.quad(
            lambda z: (2 * z / (1 + mpmath.exp(-2 * z))) ** 2 * mpmath.npdf(z), [0, 1, 3, 8, 18]
        )
        assert encloses(found, truth, 1e-30)


def test_balls_of_c_where_activations_jump():
    phi = activation(sp.Piecewise((0, X < 1), (sp.exp(-X), True)))
    (wide,), (exact,) = (phi.taylor(g, 1, None, 0, ball_field(8)) for g in (arb(0.3, 1e-12), 0.3))
    assert wide.contains(exact) and width(wide) < 1e-10
    phi, near = activation(IRRATIONAL), arb(0, 1e-12)
    (wide,) = phi.taylor(near, 1, None, 0, ball_field(8))
    assert wide.contains(phi.taylor(1e-13, 1, None, 0, ball_field(8))[0]) and width(wide) < 1e-10
    with refused("not bounded over the balls"):
        phi.taylor(near, 1, None, 2, ball_field(8))


@pytest.mark.parametrize(
    ("name", "order"), [("relu", 2), ("hard_tanh", 2), ("hard_shrink", 1), ("selu", 2)]
)
def test_infinite_derivatives_say_so(name, order):
    with refused("infinite"):
        activation(name).taylor(0, 1, None, order, FIELD)


def test_hermite_coefficients_of_tanh_and_relu():
    first = hermite_coefficients(activation("tanh"), 1, 4, FIELD)
    with mpmath.workdps(40):
        edges = [-14, -7, -3, -1, 0, 1, 3, 7, 14]
        one = mpmath.quad(lambda z: mpmath.tanh(z) * z * mpmath.npdf(z), edges)
        three = mpmath.quad(
            lambda z: mpmath.tanh(z) * (z**3 - 3 * z) / mpmath.sqrt(6) * mpmath.npdf(z), edges
        )
        assert (
            encloses(first[1], one, 1e-33)
            and encloses(first[3], three, 1e-33)
            and first[0].contains(0)
        )
        relu = hermite_coefficients(activation("relu"), 2.0, 3, FIELD)
        assert encloses(relu[0], 1 / mpmath.sqrt(mpmath.pi), 1e-38) and encloses(
            relu[1], 1 / mpmath.sqrt(2), 1e-38
        )
    with refused("exact q"):
        hermite_coefficients(activation("relu"), Fraction(1, 3), 3, FIELD)


# --- activations made of others, and the user's own -----------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: activation(sp.besselj(0, X)), "besselj, .*has no certified"),
        (
            lambda: activation("sign").composed(
                activation("softplus").transformed(output_shift=-1)
            ),
            "known only to double precision",
        ),
        (lambda: activation(lambda x: np.tanh(x), name="mine"), "callable"),
        (
            lambda: activation(
                IRRATIONAL.subs(X**2, X**2 + sp.Rational(1, 10**200)), name="tiny jump"
            ),
            "derivative 0 jumps",
        ),
    ],
)
def test_what_cannot_be_proven_is_refused(make, message):
    with refused(message):
        make().taylor(0, 1, None, 1, FIELD)


def test_growth_may_be_declared():
    phi = activation(sp.tan(sp.atan(X) / 2), name="half-angle")
    with refused("pass growth"):
        phi.second_moment(1, field=FIELD)
    object.__setattr__(phi, "growth", (1, 0, 0))
    assert abs(float(phi.second_moment(1, field=FIELD)) - phi.second_moment(1)) < 1e-14


def test_bad_arguments_are_refused():
    phi = activation("tanh")
    with refused("provably > 0"):
        phi.second_moment(-1, field=FIELD)
    with refused("not smooth enough"):
        activation(sp.Heaviside(X - 1)).taylor(2, 1, None, 2, FIELD)
    with refused("cosine"):
        phi.taylor(2.5, 1, None, 0, FIELD)
    with refused("converge"):
        activation(sp.exp(X**2 / 10)).second_moment(3, field=FIELD)
    with refused("jumps"):
        activation("hard_shrink").taylor(0.3, arb(1, 2.0**-90), None, 0, FIELD)


# --- networks -------------------------------------------------------------------------------------
