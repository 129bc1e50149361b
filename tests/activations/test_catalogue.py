"""The catalogue: closed forms in every number system and as the textbooks write them, factories and
their parameters.

That the formulas are right is tested in test_catalogue_kernels.py and test_truncated.py, against
quadrature.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import sympy as sp
from refusals import refused
from thinning import mostly_slow

from kcalc.activations import (
    X,
    abrelu,
    activation,
    celu,
    gabor,
    gaussian,
    hard_shrink,
    hermite,
    leaky_relu,
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
C, Q, Q1, Q2 = sp.Symbol("c", real=True), *sp.symbols("q q1 q2", positive=True)
CLOSED = [name for name in names() if activation(name).has_closed_form]

# --- one formula, many number systems -------------------------------------------------------------

EXTREME = {
    "gaussian(50)": gaussian(50),
    "gaussian(1/1000)": gaussian(R(1, 1000)),
    "gabor(20,20)": gabor(20, 20),
    "gabor(1/100,10)": gabor(R(1, 100), 10),
    "scaled_erf(1000)": scaled_erf(1000),
    "snake(1/20)": snake(R(1, 20)),
    "snake(10)": snake(10),
    "hermite(30)": hermite(30),
    "hermite(7)": hermite(7),
    "He_7 as a polynomial": activation(sp.expand(2 * hermite(7).expr)),
}


@pytest.mark.parametrize("name", mostly_slow([*CLOSED, *EXTREME]))
def test_numpy_keeps_its_digits_from_q_small_to_large(name):
    """Against the textbook form at 90 digits, which cancels near c = 1 and is checked by quadrature
    above.
    """
    phi = EXTREME[name] if name in EXTREME else activation(name)
    assert phi.closed_in_numpy
    textbook = phi.c_expr(C, Q1, Q2)
    forms = [sp.lambdify([C, Q1, Q2], sp.diff(textbook, C, k), "mpmath") for k in range(3)]
    with mpmath.workdps(90):
        for q1, q2 in [(0.01, 0.01), (1.0, 1.0), (100.0, 100.0), (0.01, 100.0), (3.0, 2.5)]:
            for theta in (1e-8, 1e-3, 0.3, 1.2, 2.5, 3.14):
                gap = float(2 * mpmath.sin(mpmath.mpf(theta) / 2) ** 2)
                truth = [
                    form(1 - mpmath.mpf(gap), mpmath.mpf(q1), mpmath.mpf(q2)) for form in forms
                ]
                got = phi.taylor(gap, q1, q2, 2)
                relative = q1 == q2 and theta < 1.5
                assert got[0] == pytest.approx(
                    float(1 - truth[0]), rel=1e-13 if relative else 0, abs=0 if relative else 4e-15
                ), (
                    q1,
                    q2,
                    theta,
                )
                for value, expected in ((got[1], truth[1]), (2 * got[2], truth[2])):
                    assert value == pytest.approx(float(expected), rel=1e-13, abs=1e-14), (
                        q1,
                        q2,
                        theta,
                    )
            assert phi.taylor(0.0, q1, q2)[0] == 0 or q1 != q2


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


@pytest.mark.parametrize(
    ("name", "second_moment", "cosine"),
    [
        ("relu", Q / 2, (sp.sqrt(1 - C**2) + (sp.pi - sp.acos(C)) * C) / sp.pi),
        (
            "erf",
            2 * sp.asin(2 * Q / (1 + 2 * Q)) / sp.pi,
            sp.asin(2 * Q * C / (1 + 2 * Q)) / sp.asin(2 * Q / (1 + 2 * Q)),
        ),
        ("sign", sp.Integer(1), 2 * sp.asin(C) / sp.pi),
        ("sin", (1 - sp.exp(-2 * Q)) / 2, sp.sinh(C * Q) / sp.sinh(Q)),
        ("cos", (1 + sp.exp(-2 * Q)) / 2, sp.cosh(C * Q) / sp.cosh(Q)),
        ("rbf", sp.Integer(1), sp.exp(-Q * (1 - C))),
        ("square", 3 * Q**2, (1 + 2 * C**2) / 3),
        (
            "gaussian",
            1 / sp.sqrt(1 + 4 * Q),
            sp.sqrt(1 + 4 * Q) / sp.sqrt((1 + 2 * Q) ** 2 - 4 * C**2 * Q**2),
        ),
    ],
)
def test_expressions_are_those_of_the_textbooks(name, second_moment, cosine):
    phi = activation(name)
    assert sp.simplify(phi.q_expr(Q) - second_moment) == 0
    assert sp.simplify(phi.c_expr(C, Q) - cosine) == 0
    assert sp.count_ops(phi.c_expr(C, Q)) <= sp.count_ops(cosine) + 4


@pytest.mark.parametrize("name", CLOSED)
def test_expressions_print_on_one_line(name):
    phi = activation(name)
    for expr in (phi.q_expr(Q), phi.c_expr(C, Q)):
        assert expr is not None
        text = sp.latex(expr)
        assert len(text) < 350 and "\n" not in text and not expr.has(sp.Float)
    assert abs(sp.N(phi.c_expr(1, 2), 30) - 1) < 1e-25


def test_unknown_expressions_are_none():
    assert activation("tanh").q_expr(Q) is None and activation("tanh").c_expr(C) is None
    assert activation("elu").c_expr(C, Q) is None and activation("elu").q_expr(Q) is not None


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
    ("phi", "function"),
    [
        (abrelu(2, -3), lambda x: 2 * x if x < 0 else -3 * x),
        (abrelu(3, 3), lambda x: 3 * x),
        (abrelu(-1, 0), lambda x: -x if x < 0 else 0),
        (leaky_relu(0.2), lambda x: x / 5 if x < 0 else x),
        (rectified_power(0), lambda x: float(x >= 0)),
        (rectified_power(4), lambda x: x**4 if x > 0 else 0),
        (scaled_erf(0.3), lambda x: math.erf(0.3 * x)),
        (activation("probit"), lambda x: math.erfc(-x / math.sqrt(2)) / 2),
        (gaussian(0.7), lambda x: math.exp(-0.7 * x * x)),
        (gabor(0.7, 3), lambda x: math.exp(-0.7 * x * x) * math.cos(3 * x)),
        (snake(3), lambda x: x + math.sin(3 * x) ** 2 / 3),
        (hard_shrink(1.25), lambda x: x if abs(x) > 1.25 else 0),
        (celu(3), lambda x: x if x > 0 else 3 * math.expm1(x / 3)),
        (hermite(5), lambda x: x**5 - 10 * x**3 + 15 * x),
    ],
)
def test_functions_are_what_their_docstrings_say(phi, function):
    x = [-2.6, -1.3, -0.3, 0.4, 1.0, 2.2]
    np.testing.assert_allclose(
        phi(np.array(x)), [function(value) for value in x], rtol=1e-13, atol=1e-15
    )


def test_hermite_polynomials_keep_their_digits():
    x = np.array([-6.3, -1.0, 0.25, 5.5])
    for n in (7, 30):
        for k in (0, 1, 3):
            with mpmath.workdps(60):
                form = sp.lambdify(X, sp.diff(hermite(n).expr, X, k), "mpmath")
                truth = np.array([float(form(mpmath.mpf(value))) for value in x])
            np.testing.assert_allclose(hermite(n).numeric(k)(x), truth, rtol=1e-12)
    np.testing.assert_allclose(
        hermite(30).taylor(np.array([0.1, 1.0, 1.5]), 1)[0],
        [1 - 0.9**30, 1, 1 - 0.5**30],
        rtol=1e-13,
    )
    assert (hermite(2).numeric(3)(x) == 0).all()


Y = sp.Symbol("y")


@pytest.mark.parametrize("bad", [Y, float("nan"), math.inf, "1", None, 1j, True, sp.I, [1]])
@pytest.mark.parametrize(
    ("factory", "name"),
    [
        (scaled_erf, "scaled_erf"),
        (gaussian, "gaussian"),
        (lambda a: gabor(a, 1), "gabor"),
        (lambda w: gabor(1, w), "gabor"),
        (snake, "snake"),
        (hard_shrink, "hard_shrink"),
        (celu, "celu"),
        (leaky_relu, "leaky_relu"),
        (lambda a: abrelu(a, 1), "abrelu"),
        (lambda b: abrelu(1, b), "abrelu"),
        (rectified_power, "rectified_power"),
        (hermite, "hermite"),
    ],
)
def test_parameters_must_be_numbers(factory, name, bad):
    with refused(rf"{name}: \w+ (= |must be a whole number)"):
        factory(bad)


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
