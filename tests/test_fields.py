"""Number systems: exact conversion, refusals, and functions that must not cancel."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import sympy as sp

from kcalc.errors import KcalcError
from kcalc.fields import NUMPY, SYMPY, mpmath_field

C = sp.Symbol("c", real=True)


@pytest.mark.parametrize(
    "value", [float("nan"), math.inf, 1j, sp.I, sp.oo, "1", True, None, sp.nan, np.array([1.0, np.nan]), np.array(["a"])]
)
@pytest.mark.parametrize("field", [NUMPY, SYMPY, mpmath_field(20)])
def test_what_is_not_a_finite_real_number_is_refused(field, value):
    with pytest.raises(KcalcError):
        field.number(value)


@pytest.mark.parametrize("field", [NUMPY, mpmath_field(20)])
def test_free_symbols_name_themselves_and_the_remedy(field):
    with pytest.raises(KcalcError, match=r"free symbols \(w\).*net\.subs\(\{w"):
        field.number(sp.Symbol("w") * 2)


def test_sympy_numbers_stay_exact():
    assert SYMPY.number(Fraction(1, 3)) == sp.Rational(1, 3)
    assert SYMPY.number(2.0) == sp.Integer(2)
    assert SYMPY.number(0.1) == sp.Float(0.1)
    assert SYMPY.number(C + 1) == C + 1


def test_mpmath_numbers_carry_all_digits_and_leave_the_global_context_alone():
    before, field = mpmath.mp.dps, mpmath_field(40)
    assert abs(field.number(sp.sqrt(2)) ** 2 - 2) < mpmath.mpf(10) ** -38
    assert abs(field.number(Fraction(1, 3)) * 3 - 1) < mpmath.mpf(10) ** -38
    assert mpmath.mp.dps == before
    with pytest.raises(KcalcError):
        mpmath_field(2)


def test_angles_print_in_terms_of_c():
    assert SYMPY.cosine(1 - C) == C
    assert SYMPY.angle(1 - C) == sp.acos(C)
    assert SYMPY.sine(1 - C) == sp.sqrt(1 - C**2)


@pytest.mark.parametrize("angle", ["1e-8", "1e-4", "0.1", "0.29", "0.31", "1", "3", "3.1415"])
def test_numpy_angle_helpers_are_relatively_accurate(angle):
    with mpmath.workdps(50):
        t = mpmath.mpf(angle)
        gap = float(2 * mpmath.sin(t / 2) ** 2)
        t = 2 * mpmath.asin(mpmath.sqrt(mpmath.mpf(gap) / 2))
        assert abs(NUMPY.angle(gap) / t - 1) < 1e-15
        assert abs(NUMPY.sine(gap) / mpmath.sin(t) - 1) < 1e-15
        assert abs(NUMPY.sine_excess(gap) / (mpmath.sin(t) - t * mpmath.cos(t)) - 1) < 2e-15
