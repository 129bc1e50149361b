"""Intervals with ends of any size, possibly infinite, and jets of such intervals.

Expressions in the form of :class:`kcalc.fields.programs.Program` can be evaluated on both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy as sp

from ...fields.balls import Ball, Numbers, enclose
from ...fields.expressions import FUNCTIONS, OTHER
from ...fields.jets import Jet
from ...fields.programs import power_terms, taylor_program


@dataclass(frozen=True, eq=False)
class Range:
    """The numbers from ``low`` to ``high``, both exact balls.

    A ball with a centre and a radius could not represent the low end of [1, e^1000].
    """

    low: Ball
    high: Ball

    def __add__(self, other: Any) -> Range:
        if isinstance(other, Range):
            return between(self.low + other.low, self.high + other.high)
        return between(self.low + other, self.high + other)

    __radd__ = __add__

    def __neg__(self) -> Range:
        return Range(-self.high, -self.low)

    def __sub__(self, other: Any) -> Range:
        return self + -other

    def __mul__(self, other: Any) -> Range:
        if not isinstance(other, Range):
            return around(_product(self.low, other), _product(self.high, other))
        if self.low >= 0 and other.low >= 0:
            return between(_product(self.low, other.low), _product(self.high, other.high))
        ends = (other.low, other.high)
        return around(*[_product(x, y) for x in (self.low, self.high) for y in ends])

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Range:
        return self * other.inverse() if isinstance(other, Range) else self * (1 / other)

    def inverse(self) -> Range:
        """Return 1/x, with an infinite end if one end of x is 0."""
        arb = type(self.low)
        if self.low < 0 < self.high or self.low == self.high == 0:
            return Range(arb("-inf"), arb("inf"))
        low = arb("-inf") if self.high == 0 else 1 / self.high
        return between(low, arb("inf") if self.low == 0 else 1 / self.low)

    def size(self) -> Range:
        """Return |x|."""
        if self.low < 0 < self.high:
            return Range(type(self.low)(0), max(-self.low, self.high))
        return self if self.low >= 0 else -self


def _product(x: Ball, y: Any) -> Ball:
    """Return the product of ranges. 0 times an infinite end is 0, because ends are only bounds."""
    found = x * y
    return found if found.is_finite() or not (x == 0 or y == 0) else type(x)(0)


def between(low: Ball, high: Ball) -> Range:
    """Return the range from one ball to another, or the whole line if either is not a number."""
    if low.is_nan() or high.is_nan():
        return Range(type(low)("-inf"), type(low)("inf"))
    return Range(low.lower(), high.upper())


def around(*balls: Ball) -> Range:
    """Return the smallest range around balls, or the whole line if any ball is not a number."""
    for ball in balls:
        if ball.is_nan():
            return between(ball, ball)
    return Range(min([ball.lower() for ball in balls]), max([ball.upper() for ball in balls]))


class Ranges(Numbers):
    """Arithmetic of ranges. Monotone functions act on the ends; roots ignore negative numbers."""

    def sign(self, u: Range) -> int:
        return 1 if u.low > 0 else -1 if u.high < 0 else 0

    def joined(self, options: list[Range]) -> Range:
        return around(*(end for option in options for end in (option.low, option.high)))

    def power(self, u: Range, exponent: Any) -> Range:
        """Return u^exponent, ignoring negative parts of u unless the exponent is an integer."""
        if exponent.is_negative:
            return self.power(u, -exponent).inverse()
        if exponent.is_Integer:
            n = int(exponent)
            u = u if n % 2 else u.size()
            return around(u.low**n, u.high**n)
        e = self.number(exponent)
        low = max(u.low, type(u.low)(0))
        return around(low**e if low > 0 else low, u.high**e)

    def function(self, kind: Any, u: Range) -> Range:
        known = FUNCTIONS[kind]
        if known.trend is OTHER:
            found = (getattr(u.low.union(u.high), known.name)(),)
        else:
            u = u if known.trend else u.size()
            found = tuple(getattr(end, known.name)() for end in (u.low, u.high))
        if all(ball.is_finite() for ball in found) or known.trend is not OTHER:
            return around(*found)
        return around(*map(type(u.low), known.bounds))

    def outer(self, kind: Any, u: Range, order: int) -> list[Range]:
        """Return the Taylor coefficients of a function at u."""
        if kind is sp.sinc:
            return [around(c) for c in _sinc(u.low.union(u.high), order)]
        return taylor_program(kind, order).run(u, self)

    def flat(self, u: Range, factor: Any, power: Any, order: int) -> list[Range]:
        """Return Taylor coefficients of exp(factor u^-power) for factor < 0, ignoring u < 0."""
        found = []
        for k in range(order + 1):
            terms = _flat_terms(factor, power, k)
            parts = [self._flat_term(u.high, factor, power, m) * c for c, m in terms]
            found.append(sum(parts[1:], start=parts[0]))
        return found

    def _flat_term(self, high: Ball, factor: Any, power: Any, m: Any) -> Range:
        """Return u^-m exp(factor u^-power), which rises up to u^power = -factor power/m."""
        if high == 0:
            return around(high)
        c, n, rate = map(self.number, (factor, power, m / power))
        first, top = high**-n, -rate / c  # the values of u^-power at the end and at the maximum
        level = first if top < first else top if top > first else top.union(first)
        return around(type(high)(0), level**rate * (c * level).exp())


@lru_cache(maxsize=256)
def _flat_terms(factor: Any, power: Any, k: int) -> list[tuple[Ball, Any]]:
    """Return (a, m) of each term a u^-m exp(factor u^-power) of a Taylor coefficient."""
    t = sp.Symbol("t", positive=True)
    whole = sp.exp(factor * t**-power)
    terms = sp.Add.make_args(sp.expand(sp.diff(whole, t, k) / whole / sp.factorial(k)))
    found = [term.as_coeff_exponent(t) for term in terms]
    return [(enclose(a), -exponent) for a, exponent in found]


class Jets:
    """Arithmetic of jets of ranges."""

    def __init__(self, order: int) -> None:
        self.ranges, self.order = Ranges(), order
        self.number = self.ranges.number

    def sign(self, u: Jet) -> int:
        return self.ranges.sign(u.value)

    def joined(self, options: list[Jet]) -> Jet:
        """Return a jet whose coefficients enclose the coefficients of all options."""
        rows = zip(*(option.coefficients for option in options), strict=True)
        return Jet(tuple(self.ranges.joined(list(row)) for row in rows))

    def power(self, u: Jet, exponent: Any) -> Jet:
        terms = power_terms(exponent)[: self.order + 1]
        outer = [self.ranges.power(u.value, e) * self.number(weight) for e, weight in terms]
        return u.compose([*outer, *([0 * u.value] * (self.order + 1 - len(outer)))])

    def function(self, kind: Any, u: Jet) -> Jet:
        return u.compose(self.ranges.outer(kind, u.value, self.order))

    def flat(self, u: Jet, factor: Any, power: Any) -> Jet:
        """Return exp(factor u^-power), even if u is 0 at an end of the interval."""
        u = -u if u.value.high == 0 and power.is_even else u
        if u.value.low == 0:
            return u.compose(self.ranges.flat(u.value, factor, power, self.order))
        return self.function(sp.exp, self.power(u, -power) * self.number(factor))


def _sinc(u: Ball, order: int) -> list[Ball]:
    """Return Taylor coefficients of sin(u)/u, from a series or quotient; |sinc^(k)| <= 1/(k+1)."""
    from flint import arb

    if u.abs_upper() < 3:
        return [_sinc_series(u, k) for k in range(order + 1)]
    bounds = [arb(0, 1) / ((k + 1) * math.factorial(k)) for k in range(order + 1)]
    if not u.abs_lower() > 0:
        return bounds
    sin, cos = u.sin_cos()
    turns = [sin, cos, -sin, -cos]
    top = Jet(tuple(turns[k % 4] / math.factorial(k) for k in range(order + 1)))
    pairs = zip((top / Jet.variable(u, order)).coefficients, bounds, strict=True)
    return [one.intersection(two) if one.is_finite() else two for one, two in pairs]


def _sinc_series(u: Ball, k: int) -> Ball:
    """Return the k-th Taylor coefficient of sin(u)/u, |u| < 3; terms after 24 are below 1e-20."""
    from flint import arb

    total = arb(0, 1e-20)
    for n in range((k + 1) // 2, 24):
        weight = (-1) ** n * math.comb(2 * n, k)
        total += weight * u ** (2 * n - k) / arb(math.factorial(2 * n + 1))
    return total
