"""Arb balls as a number system, and certified enclosures as results.

A ball [m +/- r] has a midpoint and a radius, and provably contains a real number. Every operation
rounds outward. The precision of python-flint is global. This module sets it with :func:`working`,
one thread at a time, and restores it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import mpmath
import numpy as np
import sympy as sp
from mpmath.libmp import from_man_exp, to_rational

from kcalc.foundation.errors import KcalcError, glimpse
from kcalc.foundation.plain_arguments import whole
from kcalc.foundation.process_state import ALONE

from ..foundation.real_numbers import closed_value, plain_number, refused
from .expressions import FUNCTIONS, Fold
from .systems import Field, Number

if TYPE_CHECKING:
    from mpmath.ctx_mp_python import _mpf as Mpf

Ball = Any
"""The type ``flint.arb``."""

GUARD = 40  # bits beyond the requested digits
_EXACTER = 64  # extra bits for the caller's numbers: they cost nothing, and 1 - c may cancel

CONSTANTS: dict[Any, Callable[[Any], Ball]] = {
    sp.S.Pi: lambda arb: arb.pi(),
    sp.S.Exp1: lambda arb: arb.const_e(),
    sp.S.EulerGamma: lambda arb: arb.const_euler(),
    sp.S.Catalan: lambda arb: arb.const_catalan(),
    sp.S.GoldenRatio: lambda arb: (1 + arb(5).sqrt()) / 2,
}


@contextmanager
def working(bits: int) -> Iterator[None]:
    """Return a context in which flint computes with ``bits`` bits, in this thread only."""
    from flint import ctx

    with ALONE:
        before = ctx.prec
        ctx.prec = bits
        try:
            yield
        finally:
            ctx.prec = before


def bits_for(digits: float) -> int:
    """Return the working bits for ``digits`` decimal digits, including guard bits."""
    return math.ceil(digits * math.log2(10)) + GUARD


# --- outside numbers -> balls ---------------------------------------------------------------------


def _mpf_ball(value: Any) -> Ball:
    from flint import arb

    sign, man, exp, _ = value._mpf_
    if man == 0 and exp != 0:
        raise refused(value, "nan and infinite values are not supported here")
    return arb((-int(man) if sign else int(man), int(exp)))


def _exact(value: int | float | Fraction) -> Ball:
    from flint import arb, fmpq

    if isinstance(value, Fraction):
        return arb(fmpq(value.numerator, value.denominator))
    return arb(value)


def _root_ball(root: Any) -> Ball:
    """Return an algebraic number of SymPy as a ball, by refining its isolating interval."""
    from flint import arb, ctx, fmpq

    width = sp.Rational(1, 2 ** (ctx.prec + 8))
    near = root.eval_rational(width)
    return arb(fmpq(int(near.p), int(near.q))) + arb(0, arb((1, -ctx.prec - 7)))


def enclose(expr: Any) -> Ball:
    """Return a SymPy number as a ball at the current precision, computed from its expression tree.

    Raises KcalcError if a function has no ball method.
    """
    from flint import ctx

    return _enclosed(expr, ctx.prec)


@lru_cache(maxsize=4096)
def _enclosed(expr: Any, bits: int) -> Ball:
    return _Enclosing()(expr)


class Numbers:
    """Arb balls as numbers for evaluating expressions."""

    def number(self, expr: Any) -> Ball:
        """Return a SymPy number as a ball."""
        return enclose(expr)

    def power(self, u: Ball, exponent: Any) -> Ball:
        """Return u^exponent: integer powers by products, half-integer powers by roots."""
        twice = _doubled(exponent)
        if twice is None:
            return self.raised(u, self.number(exponent))
        return _whole_power(self.root(u), twice) if twice % 2 else _whole_power(u, twice // 2)

    def root(self, u: Ball) -> Ball:
        """Return sqrt u."""
        return u.sqrt()

    def raised(self, u: Ball, exponent: Ball) -> Ball:
        """Return u^exponent for any exponent."""
        return u**exponent

    def function(self, kind: Any, u: Ball) -> Ball:
        """Return the value at u of a function in ``FUNCTIONS``."""
        return getattr(u, FUNCTIONS[kind].name)()


@lru_cache(maxsize=4096)
def _doubled(exponent: Any) -> int | None:
    return int(2 * exponent) if exponent.is_Rational and exponent.q <= 2 else None


def _whole_power(u: Ball, n: int) -> Ball:
    if n < 0:
        return 1 / _whole_power(u, -n)
    return u * u if n == 2 else u if n == 1 else u**n


class _Enclosing(Fold[Any]):
    """Convert numbers to balls."""

    def is_number(self, expr: Any) -> bool:
        return not expr.args or isinstance(expr, sp.CRootOf)

    def number(self, expr: Any) -> Ball:
        if isinstance(expr, sp.Rational):
            return _exact(Fraction(int(expr.p), int(expr.q)))
        if isinstance(expr, sp.Float):
            return _mpf_ball(expr)
        if isinstance(expr, sp.CRootOf):
            return _root_ball(expr)
        if expr in CONSTANTS:
            from flint import arb

            return CONSTANTS[expr](arb)
        raise _unknown(expr)

    def power(self, base: Any, exponent: Any) -> Ball:
        if exponent.is_number and exponent.is_Rational:
            return _NUMBERS.power(self(base), exponent)
        return self(base) ** self(exponent)

    def function(self, kind: Any, *arguments: Any) -> Ball:
        if kind is sp.Abs:
            return abs(self(arguments[0]))
        if kind not in FUNCTIONS:
            raise _unknown(kind(*arguments))
        return _NUMBERS.function(kind, self(arguments[0]))


_NUMBERS = Numbers()


def _unknown(expr: Any) -> KcalcError:
    return KcalcError(
        f"{glimpse(expr)} has no certified enclosure, because ball arithmetic does not support "
        f"{type(expr).__name__}"
    )


# --- the field ------------------------------------------------------------------------------------


def _clipped(x: Ball, low: int | None, high: int | None) -> tuple[Ball, Ball] | None:
    """Return the ends of the overlap between a ball and [low, high].

    The true value is known to lie in [low, high]. Return None if the whole ball does.
    """
    from flint import arb

    if (low is None or x >= low) and (high is None or x <= high):
        return None
    if not x.is_finite() or (low is not None and x < low) or (high is not None and x > high):
        raise KcalcError(f"{x.str(10)} is outside the domain [{low}, {high}] of a real function")
    bottom = arb(low) if low is not None and not x >= low else arb(x.lower())
    top = arb(high) if high is not None and not x <= high else arb(x.upper())
    return bottom, top


class BallField(Field):
    """Arb balls with ``digits`` decimal digits.

    The ``bits`` of working precision include guard bits.

    Functions compute at this precision, whatever flint's precision is. Operators between balls need
    ``with field.working():`` around them.
    """

    def __init__(self, digits: int) -> None:
        self.digits = digits
        self.bits = bits_for(digits)
        self.name = f"balls({digits})"
        from flint import arb

        with self.working():
            self.pi = arb.pi()

    def working(self) -> Any:  # type: ignore[override]
        """Return a context in which flint's operators have this field's precision."""
        return working(self.bits)

    def number(self, value: object) -> Ball:
        """Return ``value`` as a ball.

        Integers, floats and mpmath numbers are converted exactly. Fractions and SymPy constants are
        enclosed. Balls are returned unchanged.
        """
        from flint import arb

        if isinstance(value, arb):
            if not value.is_finite():
                raise KcalcError(
                    f"the ball {value} must be finite; use more digits, unless the quantity is "
                    "infinite"
                )
            return value
        with working(self.bits + _EXACTER):
            if isinstance(value, mpmath.mpf) or type(value).__name__ == "mpf":
                return _mpf_ball(value)
            if isinstance(value, np.ndarray) and value.ndim == 0:
                value = value[()]
            plain = plain_number(value)
            ball = enclose(closed_value(plain)) if isinstance(plain, sp.Expr) else _exact(plain)
        if not ball.is_finite():
            raise refused(value, "it has no finite real enclosure")
        return ball

    def _apply(self, method: str, x: Ball, low: int | None = None, high: int | None = None) -> Ball:
        """Apply a function to a ball.

        If the domain [low, high] is bounded, the function must be monotone.
        """
        from flint import arb

        with self.working():
            ball = x if isinstance(x, arb) else self.number(x)
            ends = _clipped(ball, low, high)
            if ends is None:
                return getattr(ball, method)()
            return getattr(ends[0], method)().union(getattr(ends[1], method)())

    def sqrt(self, x: Ball) -> Ball:  # type: ignore[override]
        """Return the square root of the nonnegative part of x."""
        return self._apply("sqrt", x, 0)

    def asin(self, x: Ball) -> Ball:  # type: ignore[override]
        return self._apply("asin", x, -1, 1)

    def acos(self, x: Ball) -> Ball:  # type: ignore[override]
        return self._apply("acos", x, -1, 1)

    def angle(self, gap: Ball) -> Ball:
        """Return 2 atan2(sqrt u, sqrt(2 - u)), a tight enclosure even near u = 0 and u = 2."""
        from flint import arb

        with self.working():
            gap = self.number(gap)
            return 2 * arb.atan2(self.sqrt(gap), self.sqrt(2 - gap))

    def sine(self, gap: Ball) -> Ball:
        with self.working():
            gap = self.number(gap)
            return self.sqrt(gap) * self.sqrt(2 - gap)

    def sine_excess(self, gap: Ball) -> Ball:
        """Return sin t - t cos t, where t is the angle with gap u = 1 - cos t.

        As a function of u, the value increases and has the derivative t. At the midpoint of u, it
        is computed with more bits. The radius of the result is the radius of u, multiplied by a
        bound on t.
        """
        from flint import arb

        with self.working():
            gap = self.number(gap)
            ends = _clipped(gap, 0, 2)
            if ends is not None:
                return self._excess_at(ends[0]).union(self._excess_at(ends[1]))
            value = self._excess_at(arb(gap.mid()))
            return value if gap.is_exact() else value + self.angle(gap) * arb(0, gap.rad())

    def _excess_at(self, gap: Ball) -> Ball:
        from flint import arb

        if gap <= 0:
            return arb(0)
        lost = max(0, -math.floor(math.log2(float(gap)))) if float(gap) > 0 else 10**6
        if lost > 2 * self.bits:  # t^3/3 - t^5/30 < S < t^3/3
            t = self.angle(gap)
            return t**3 / 3 * (1 - (t * t / 10) * arb(0.5, 0.5))
        with working(self.bits + 2 * lost + 8):
            sine = (gap * (2 - gap)).sqrt() if gap < 2 else arb(0)
            return sine - self._two_atan(gap) * (1 - gap)

    @staticmethod
    def _two_atan(gap: Ball) -> Ball:
        from flint import arb

        return 2 * arb.atan2(gap.sqrt(), (2 - gap).sqrt())


def _elementary(name: str) -> Callable[[BallField, Ball], Ball]:
    method = {"abs": "__abs__"}.get(name, name)

    def function(self: BallField, x: Ball) -> Ball:
        return self._apply(method, x)

    function.__name__, function.__doc__ = name, f"{name}(x) enclosed."
    return function


for _name in (
    "exp",
    "expm1",
    "log",
    "sin",
    "cos",
    "tan",
    "atan",
    "erf",
    "erfc",
    "abs",
    "cosh",
    "sinh",
    "tanh",
):
    setattr(BallField, _name, _elementary(_name))


def ball_field(digits: int = 30) -> BallField:
    """Return the field of Arb balls with ``digits`` decimal digits, one field per precision.

    Raises KcalcError unless 5 <= digits <= 1000.
    """
    return _ball_field(whole(digits, "digits", 5, 1000))


@lru_cache(maxsize=32)
def _ball_field(digits: int) -> BallField:
    return BallField(digits)


# --- balls -> results -----------------------------------------------------------------------------


def exact_mpf(ball: Ball) -> Any:
    """Return an exact ball as an mpmath number with the same number of bits."""
    man, exp = ball.man_exp()
    return mpmath.mp.make_mpf(from_man_exp(int(man), int(exp)))


def _fraction(value: Any) -> Fraction:
    """Return an mpf as an exact fraction."""
    return Fraction(*map(int, to_rational(value._mpf_)))


@dataclass(frozen=True, repr=False)
class Enclosure:
    """A certified result: the true value is within ``radius`` of ``mid``.

    ``mid`` and ``radius`` are exact mpmath numbers.
    """

    mid: Any
    radius: Any

    @classmethod
    def of(cls, ball: Ball) -> Enclosure:
        """Return a ball as an enclosure, without rounding.

        Raises KcalcError if the ball is not finite.
        """
        if not ball.is_finite():
            raise KcalcError(
                "the ball must be finite; use more digits, unless the quantity is infinite"
            )
        return cls(exact_mpf(ball.mid()), exact_mpf(ball.rad()))

    def checked(self, what: str) -> Enclosure:
        """Return the enclosure itself.

        Raises KcalcError if the enclosure is useless: a radius above a thousandth of max(1, |mid|).
        """
        if self.radius > max(1, abs(self.mid)) / 1000:
            known = (
                f"the best one is {self!r}"
                if self.radius < 1000 * max(1, abs(self.mid))
                else "the bounds are far wider than the value"
            )
            raise KcalcError(
                f"{what} has no useful enclosure: {known}. Use smaller q values, q values "
                "closer to each other, c away from -1 and 1, another digits=, or an activation "
                "declared with growth=(A, p, B). Call the map itself for the value in double "
                "precision"
            )
        return self

    @property
    def lower(self) -> Mpf:
        """The exact lower end."""
        return mpmath.fsub(self.mid, self.radius, exact=True)

    @property
    def upper(self) -> Mpf:
        """The exact upper end."""
        return mpmath.fadd(self.mid, self.radius, exact=True)

    def contains(self, x: object) -> bool:
        """Whether the number or enclosure x lies inside, ends included.

        The number may also be a decimal string, a Fraction or a SymPy constant.
        """
        low, high = self._ends(x)
        return _fraction(self.lower) <= low and high <= _fraction(self.upper)

    @staticmethod
    def _ends(x: object) -> tuple[Fraction, Fraction]:
        if isinstance(x, Enclosure):
            return _fraction(x.lower), _fraction(x.upper)
        if isinstance(x, str):
            try:
                x = Fraction(x)
            except (ValueError, ZeroDivisionError):
                raise KcalcError(f"{x[:60]!r} is not a decimal number") from None
        if isinstance(x, Fraction):
            return x, x
        around = Enclosure.of(ball_field(60).number(x))
        return _fraction(around.lower), _fraction(around.upper)

    def __float__(self) -> float:
        return float(self.mid)

    def _decimal(self) -> tuple[str, str]:
        """Return the midpoint and the radius as decimal text.

        The midpoint has as many decimals as the radius justifies. The radius covers the rounding of
        the midpoint.
        """
        mid, radius = _fraction(self.mid), _fraction(self.radius)
        if radius:
            decimals = max(0, 1 - _exponent(radius))
        else:
            decimals = max(
                0, min(mid.denominator.bit_length() - 1, 40 - (_exponent(abs(mid)) if mid else 0))
            )
        shown = Fraction(round(mid * 10**decimals), 10**decimals)
        total = radius + abs(mid - shown)
        with localcontext() as context:
            context.prec = decimals + 42 + max(0, _exponent(abs(mid)) if mid else 0)
            text = f"{Decimal(shown.numerator) / Decimal(shown.denominator):.{decimals}f}"
            context.prec, context.rounding = 1, ROUND_CEILING
            error = Decimal(total.numerator) / Decimal(total.denominator) if total else Decimal(0)
        return text, f"{error:.0e}" if error else "0"

    def __repr__(self) -> str:
        return " +/- ".join(self._decimal())

    def _repr_latex_(self) -> str:
        text, error = self._decimal()
        if error == "0":
            return f"${text}$"
        digit, power = error.split("e")
        return rf"${text} \pm {digit}\cdot 10^{{{int(power)}}}$"

    def to_dict(self) -> dict[str, Any]:
        """Return mid and radius as decimal text that encloses the ball, and the nearest float."""
        text, error = self._decimal()
        return {"mid": text, "radius": error, "value": float(self)}


def _exponent(value: Fraction) -> int:
    """Return floor(log10 value) of a positive fraction."""
    # avoid decimal text, because Python refuses to print very large integers
    bits = value.numerator.bit_length() - value.denominator.bit_length()
    guess = math.floor(bits * math.log10(2)) - 1
    while value >= Fraction(10) ** (guess + 1):
        guess += 1
    return guess


__all__ = [
    "Ball",
    "BallField",
    "Enclosure",
    "Number",
    "ball_field",
    "bits_for",
    "enclose",
    "working",
]
