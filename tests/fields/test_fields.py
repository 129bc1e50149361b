"""Number systems: exact conversion, refusals, and functions that must not cancel."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import sympy as sp
from refusals import refused

from kcalc.fields import NUMPY, SYMPY, mpmath_field
from kcalc.fields.balls import ball_field
from kcalc.fields.degrees import expandable
from kcalc.fields.jets import Jet, JetField
from kcalc.foundation.errors import KcalcError


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        math.inf,
        1j,
        sp.I,
        sp.oo,
        "1",
        True,
        None,
        sp.nan,
        np.array([1.0, np.nan]),
        np.array(["a"]),
    ],
)
@pytest.mark.parametrize("field", [NUMPY, SYMPY, mpmath_field(20)])
def test_what_is_not_a_finite_real_number_is_refused(field, value):
    with pytest.raises(KcalcError):
        field.number(value)


@pytest.mark.parametrize("name", ["sin", "cos", "sinh", "cosh"])
@pytest.mark.parametrize("order", [0, 1, 4])
def test_jets_of_circular_and_hyperbolic_functions_are_their_taylor_series(name, order):
    x = [
        mpmath.mpf("0.7"),
        mpmath.mpf("-1.3"),
        mpmath.mpf("0.4"),
        mpmath.mpf(0),
        mpmath.mpf("2.1"),
    ][: order + 1]
    with mpmath.workdps(40):
        expected = mpmath.taylor(
            lambda e: getattr(mpmath, name)(sum(a * e**k for k, a in enumerate(x))), 0, order
        )
    exact, quick = (
        getattr(JetField(field), name)(Jet(tuple(map(field.number, x))))
        for field in (mpmath_field(30), NUMPY)
    )
    assert exact.order == quick.order == order
    assert all(
        abs(a - b) < 1e-18 * (1 + abs(b)) for a, b in zip(exact.coefficients, expected, strict=True)
    )
    assert np.allclose(
        [float(a) for a in quick.coefficients], [float(b) for b in expected], rtol=1e-14, atol=1e-14
    )


def test_powers_of_jets_are_whole():
    jet = Jet((2.0, 1.0, 0.0))
    assert (jet**3).coefficients == (8.0, 12.0, 6.0)
    for exponent in (-1, 0.5):
        with pytest.raises(TypeError, match="unsupported operand"):
            jet**exponent


def test_exponentials_less_one_of_tiny_numbers_keep_their_digits():
    field = mpmath_field(30)
    for text in ("1e-200", "-1e-200", "3e-31", "1e-20", "-2", "40"):
        with mpmath.workdps(300):
            true = mpmath.exp(mpmath.mpf(text)) - 1
            assert abs(field.expm1(field.number(mpmath.mpf(text))) / true - 1) < mpmath.mpf("1e-29")


@pytest.mark.parametrize("value", [mpmath.nan, mpmath.inf, -mpmath.inf])
def test_numbers_of_mpmath_that_are_not_finite_are_refused(value):
    for field in (mpmath_field(30), ball_field(30), NUMPY, SYMPY):
        with refused("finite.*number"):
            field.number(value)
        with refused("finite.*number"):
            field.number(sp.Tuple(1, 2))


def test_powers_with_many_terms_are_not_expanded() -> None:
    x = sp.Symbol("x", real=True)
    assert expandable((x + 1) ** 3) and not expandable((x + 1) ** 10**7)
