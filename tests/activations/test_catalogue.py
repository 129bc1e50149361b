"""The catalogue: closed forms in every number system and as the textbooks write them, factories and
their parameters.

That the formulas are right is tested in test_catalogue_kernels.py and test_truncated.py, against
quadrature.
"""

from __future__ import annotations

import math

import mpmath
import pytest
import sympy as sp
from refusals import refused

from kcalc.activations import (
    abrelu,
    activation,
    celu,
    gabor,
    gaussian,
    hard_shrink,
    hermite,
    names,
    rectified_power,
    scaled_erf,
    snake,
)
from kcalc.fields import NUMPY, SYMPY, mpmath_field
from kcalc.fields.balls import Enclosure, ball_field
from kcalc.fields.jets import Jet, JetField

R = sp.Rational
WIDE = mpmath_field(30)
CLOSED = [name for name in names() if activation(name).has_closed_form]

# --- one formula, many number systems -------------------------------------------------------------


@pytest.mark.parametrize("name", CLOSED)
def test_balls_enclose_and_jets_differentiate(name):
    phi, balls, precise = activation(name), ball_field(30), mpmath_field(120)
    with mpmath.workdps(60):
        for gap in (R(0), R(1, 10**16), R(3, 4), R(2)):
            for q1, q2 in ((R(1), R(1)), (R(1, 100), R(100))):
                with balls.working():
                    ball = phi._closed_gap(*[balls.number(x) for x in (gap, q1, q2)], field=balls)
                truth = phi._closed_gap(*[precise.number(x) for x in (gap, q1, q2)], field=precise)
                assert Enclosure.of(ball).contains(truth) and float(ball.rad()) < 1e-35  # type: ignore[union-attr]
    jet = phi._closed_gap(0.75, Jet.variable(2.0, 1), 3.0, JetField(NUMPY))
    with mpmath.workdps(60):
        slope = mpmath.diff(
            lambda q: phi._closed_gap(
                precise.number(0.75), precise.number(q), precise.number(3), precise
            ),
            2,
        )
    assert (jet.coefficients[1] if isinstance(jet, Jet) else 0.0) == pytest.approx(
        float(slope), abs=1e-14
    )
    series = phi.taylor(0.75, 2.0, 3.0, 5)
    for got, expected in zip(series, phi.taylor(R(3, 4), 2, 3, 5, precise), strict=True):
        assert got == pytest.approx(float(expected), rel=1e-11, abs=1e-13)


def test_derivatives_are_infinite_where_they_diverge():
    for field in (NUMPY, WIDE, SYMPY):
        for end in (0, 2):
            _, slope, bend = activation("relu").taylor(end, 1, 1, 2, field)
            assert (
                float(slope) == pytest.approx(1 if end == 0 else 0, abs=1e-15)
                and float(bend) == math.inf
            )
            _, slope, bend = activation("heaviside").taylor(end, 1, 1, 2, field)
            assert float(slope) == math.inf and float(bend) == (math.inf if end == 0 else -math.inf)
            assert [float(part) for part in activation("identity").taylor(end, 1, 1, 2, field)] == [
                end,
                1,
                0,
            ]
    assert float(rectified_power(2).taylor(0, 1, 1, 2)[2]) == pytest.approx(2 / 3, rel=1e-15)


# --- as the textbooks write it --------------------------------------------------------------------


# --- factories ------------------------------------------------------------------------------------


def test_factories_give_the_registered_entries_and_recognise_equals():
    assert (
        abrelu(R(-1, 2), R(3, 2)) == activation("abrelu")
        and abrelu(0, 1) == activation("relu")
        and abrelu(-1, 1) == activation("abs")
    )
    assert abrelu(1, 1) == activation("identity") == hermite(1)
    assert [rectified_power(k).name for k in range(6)] == [
        "heaviside",
        "relu",
        "relu2",
        "relu3",
        "relu4",
        "relu5",
    ]
    assert scaled_erf(1) == activation("erf") and gaussian(1) == gaussian() == activation(
        "gaussian"
    )
    assert (
        gabor() == gabor(0.5, 2) == activation("gabor")
        and snake() == activation("snake")
        and hard_shrink() == activation("hard_shrink")
    )
    assert celu() == celu(1) == activation("celu") == activation("elu") and hermite(
        4
    ) == activation("hermite4")
    assert activation(
        sp.Symbol("y") ** 5 - 10 * sp.Symbol("y") ** 3 + 15 * sp.Symbol("y")
    ) == hermite(5)
    assert type(activation(hermite(11).expr)) is type(hermite(11))
    assert activation("probit") == activation("normal_cdf")


@pytest.mark.parametrize(
    ("factory", "bad"),
    [
        *(
            (factory, bad)
            for factory in (scaled_erf, gaussian, snake, hard_shrink, celu)
            for bad in (0, -1, -0.5, sp.Integer(0))
        ),
        *((rectified_power, bad) for bad in (-1, 6, 1.5, 2.0)),
        *((hermite, bad) for bad in (0, -1, 31, 2.5)),
        (lambda a: gabor(a, 1), 0),
        (lambda w: gabor(1, w), -2),
        (lambda a: abrelu(a, 0), 0),
    ],
)
def test_parameters_out_of_range_are_named(factory, bad):
    with refused(str(bad).replace(".", r"\.")):
        factory(bad)
