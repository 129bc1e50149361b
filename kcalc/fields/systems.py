"""Number systems (*fields*). Every rule of the calculus is written once for all of them.

A rule can thus run in SymPy, mpmath, NumPy or Arb balls.

A field provides its numbers (:meth:`Field.number`) and the elementary functions. It also provides
the few combinations that need special care for accuracy: angles from the gap ``u = 1 - c``, and
differences that would cancel.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import sympy as sp
from mpmath.libmp import fone, mpf_exp, mpf_sub

from ..foundation.errors import KcalcError, glimpse
from ..foundation.plain_arguments import whole
from ..foundation.process_state import alone
from ..foundation.real_numbers import closed_value, floats, plain_number, refused

Number = Any
"""A number of a field: a SymPy expression, an mpmath number, a ball, a float or a float64 array."""

MOST_DIGITS = 10_000


class Field(ABC):
    """A number system.

    Subclasses define ``number``, ``pi`` and the elementary functions. The functions for angles have
    default implementations.
    """

    name: str = "field"
    pi: Number
    sqrt: Any
    exp: Any
    expm1: Any
    log: Any
    sin: Any
    cos: Any
    tan: Any
    atan: Any
    asin: Any
    acos: Any
    erf: Any
    abs: Any
    cosh: Any
    sinh: Any
    tanh: Any

    def __repr__(self) -> str:
        return f"<field {self.name}>"

    @property
    def kind(self) -> str:
        """The name without the number of digits: sympy, numpy, mpmath, balls or jax."""
        return self.name.partition("(")[0]

    @abstractmethod
    def number(self, value: object) -> Number:
        """Return ``value`` as a number of this field, exact if possible.

        Raises KcalcError for nan, infinities, complex values and text.
        """

    def cosine(self, gap: Number) -> Number:
        """Return c = 1 - u."""
        return 1 - gap

    def clipped(self, gap: Number) -> Number:
        """Return the gap u = 1 - c, clipped to [0, 2] to remove rounding errors.

        Exact numbers stay unchanged.
        """
        return gap

    def angle(self, gap: Number) -> Number:
        """Return the angle theta = arccos(1 - u) = 2 asin sqrt(u/2) for a gap u in [0, 2].

        It is accurate for arbitrarily small gaps.
        """
        return 2 * self.asin(self.sqrt(gap / 2))

    def sine(self, gap: Number) -> Number:
        """Return sin theta = sqrt(u (2 - u)) for u = 1 - cos theta in [0, 2]."""
        return self.sqrt(gap * (2 - gap))

    def erfc(self, x: Number) -> Number:
        """Return 1 - erf x. Some fields keep full relative accuracy for large x."""
        return 1 - self.erf(x)

    def sine_excess(self, gap: Number) -> Number:
        """Return sin t - t cos t at t = angle(gap), the corner term of rectifiers."""
        return self.sine(gap) - self.angle(gap) * self.cosine(gap)


class _Symbolic(Field):
    """SymPy expressions: exact, with free symbols allowed."""

    name = "sympy"
    pi = sp.pi
    sqrt, exp, log = staticmethod(sp.sqrt), staticmethod(sp.exp), staticmethod(sp.log)
    sin, cos, tan = staticmethod(sp.sin), staticmethod(sp.cos), staticmethod(sp.tan)
    atan, asin, acos = staticmethod(sp.atan), staticmethod(sp.asin), staticmethod(sp.acos)
    erf, abs = staticmethod(sp.erf), staticmethod(sp.Abs)
    cosh, sinh, tanh = staticmethod(sp.cosh), staticmethod(sp.sinh), staticmethod(sp.tanh)

    def number(self, value: object) -> sp.Expr:
        """Return ``value`` as a SymPy expression.

        Integers and fractions are exact. Integer-valued floats become integers, and other floats
        become 53-bit Floats. Expressions stay unchanged.
        """
        plain = plain_number(value)
        if isinstance(plain, sp.Expr):
            return plain
        if isinstance(plain, Fraction):
            return sp.Rational(plain.numerator, plain.denominator)
        if isinstance(plain, float) and not plain.is_integer():
            return sp.Float(plain)
        return sp.Integer(int(plain))

    def expm1(self, x: sp.Expr) -> sp.Expr:  # type: ignore[override]
        return sp.exp(x) - 1

    def erfc(self, x: sp.Expr) -> sp.Expr:
        return sp.erfc(x)

    def cosine(self, gap: Number) -> sp.Expr:
        return sp.expand(1 - self.number(gap))

    def angle(self, gap: Number) -> sp.Expr:
        return sp.acos(self.cosine(gap))

    def sine(self, gap: Number) -> sp.Expr:
        return sp.sqrt(1 - self.cosine(gap) ** 2)


_SINE_EXCESS = tuple((-1) ** (n + 1) * 2 * n / math.factorial(2 * n + 1) for n in range(8, 0, -1))
"""Coefficients of (sin t - t cos t) / t^3 in t^2, highest first."""


def sine_excess_at(t: Number, xp: Any) -> Number:
    """Return sin t - t cos t for arrays of ``xp``, which is numpy or jax.numpy."""
    square = t * t
    series = 0 * square
    for coefficient in _SINE_EXCESS:
        series = series * square + coefficient
    return xp.where(t < 0.3, t * square * series, xp.sin(t) - t * xp.cos(t))


class _Numpy(Field):
    """float64 numbers and arrays, elementwise."""

    name = "numpy"
    pi = math.pi
    sqrt, exp, expm1, log = np.sqrt, np.exp, np.expm1, np.log
    sin, cos, tan = np.sin, np.cos, np.tan
    atan, asin, acos = np.arctan, np.arcsin, np.arccos
    abs, cosh, sinh, tanh = np.abs, np.cosh, np.sinh, np.tanh

    def number(self, value: object) -> Number:
        """Return a float, or a float64 array of the same shape."""
        # shortcut for floats, because maps of deep networks call this thousands of times
        if isinstance(value, float) and math.isfinite(value):
            return float(value)
        return floats(value)

    def clipped(self, gap: Number) -> Number:
        return np.clip(gap, 0.0, 2.0)

    def angle(self, gap: Number) -> Number:
        """Return 2 atan2(sqrt u, sqrt(2 - u)).

        The angle theta has full relative accuracy even if u is tiny, and so has pi - theta if 2 - u
        is tiny.
        """
        return 2 * np.arctan2(np.sqrt(gap), np.sqrt(2 - gap))

    def erf(self, x: Number) -> Number:  # type: ignore[override]
        from scipy.special import erf

        return erf(x)

    def erfc(self, x: Number) -> Number:
        from scipy.special import erfc

        return erfc(x)

    def sine_excess(self, gap: Number) -> Number:
        """Return sin t - t cos t, for t < 0.3 as sum_n (-1)^(n+1) 2n t^(2n+1)/(2n+1)!.

        The relative error is about 1e-15 for every t in [0, pi].
        """
        return sine_excess_at(self.angle(gap), np)[()]


class _Mpmath(Field):
    """mpmath numbers in a separate context of fixed precision.

    Threads share this context. ``mpmath.mp`` is never changed.
    """

    def __init__(self, digits: int) -> None:
        self.digits = digits
        self.name = f"mpmath({digits})"
        self.context = context = mpmath.mp.clone()
        context.dps = digits
        self.pi = +context.pi
        for function in (
            "sqrt",
            "exp",
            "log",
            "sin",
            "cos",
            "tan",
            "atan",
            "asin",
            "acos",
            "erf",
            "erfc",
            "cosh",
            "sinh",
            "tanh",
        ):
            setattr(self, function, getattr(context, function))
        self.abs = context.fabs

    def expm1(self, x: Number) -> Number:  # type: ignore[override]
        """Return exp x - 1 without changing the context's precision.

        mpmath's function temporarily raises the precision of the context, which would affect other
        threads.
        """
        x, bits = self.context.convert(x), self.context.prec
        if not x:
            return self.context.zero
        lost = -self.context.mag(x)
        if lost > bits:
            return x + x * x / 2
        return self.context.make_mpf(
            mpf_sub(mpf_exp(x._mpf_, bits + max(lost, 0) + 10), fone, bits, "n")
        )

    def clipped(self, gap: Number) -> Number:
        return min(max(gap, self.context.zero), self.context.mpf(2))

    def sine_excess(self, gap: Number) -> Number:
        """Return sin t - t cos t, as a series for small t.

        The series is sum_n (-1)^(n+1) 2n t^(2n+1)/(2n+1)!. For small t, the difference would lose
        its leading digits.
        """
        if gap > 0.125:
            return super().sine_excess(gap)
        t = self.angle(gap)
        term = total = t * t * t / 3
        n = 1
        while abs(term) > self.context.eps * total:
            n += 1
            term *= -t * t / ((2 * n - 2) * (2 * n + 1))
            total += term
        return total

    def number(self, value: object) -> Number:
        if isinstance(value, mpmath.mpf) or type(value).__name__ == "mpf":
            if not self.context.isfinite(value):
                raise refused(value, "nan and infinite values are not supported here")
            return self.context.mpf(value)
        plain = plain_number(value)
        if isinstance(plain, Fraction):
            return self.context.mpf(plain.numerator) / plain.denominator
        if isinstance(plain, sp.Expr):
            return self.context.mpf(_evaluated(plain, self.digits + 5)._mpf_)
        return self.context.mpf(plain)


@alone
def _evaluated(value: sp.Expr, digits: int) -> sp.Float:
    """Evaluate a SymPy number to ``digits`` digits."""
    return sp.Float(closed_value(value).evalf(digits), digits)


NUMPY = _Numpy()
SYMPY = _Symbolic()


def mpmath_field(digits: int = 30) -> _Mpmath:
    """Return the field of mpmath numbers with ``digits`` decimal digits, one field per precision.

    Raises KcalcError unless 5 <= digits <= 10000.
    """
    return _mpmath_field(whole(digits, "digits", 5, MOST_DIGITS))


@lru_cache(maxsize=32)
def _mpmath_field(digits: int) -> _Mpmath:
    return _Mpmath(digits)


def as_field(field: Any) -> Any:
    """Return ``field`` if it is a number system.

    Raises KcalcError for anything else.
    """
    if not callable(getattr(field, "number", None)):
        raise KcalcError(
            "a number system must come from kcalc.fields, such as mpmath_field(30), got "
            f"{glimpse(field)}"
        )
    return field
