"""Proven ranges of real expressions on an interval, possibly unbounded.

The ranges come from interval arithmetic on floats, widened at every step. Growth bounds use them to
decide whether a denominator stays away from 0 and whether an exponent is bounded above.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from typing import Any

import sympy as sp

from kcalc.fields.balls import bits_for, enclose, working
from kcalc.fields.expressions import EVEN, FUNCTIONS, OTHER, Fold

Interval = tuple[float, float]

ALL: Interval = (-math.inf, math.inf)
_WIDEN = 1e-13  # relative; a few hundred times the error of any float operation or libm call
_TINY = 1e-305
_LARGEST = sys.float_info.max
_CELLS = 64


def above(x: float) -> float:
    """Return a float that is certainly not below the exact value that was rounded to x."""
    return x + abs(x) * _WIDEN + _TINY if math.isfinite(x) else x


def below(x: float) -> float:
    """Return a float that is certainly not above the exact value that was rounded to x."""
    return x - abs(x) * _WIDEN - _TINY if math.isfinite(x) else x


def _wide(low: float, high: float) -> Interval:
    if math.isnan(low) or math.isnan(high):
        return ALL
    return min(below(low), _LARGEST), max(above(high), -_LARGEST)


def constant(expr: sp.Expr) -> Interval:
    """Return a SymPy number as a float interval."""
    if isinstance(expr, sp.Integer) and abs(int(expr)) < 2**53:
        return float(int(expr)), float(int(expr))
    with working(bits_for(20)):
        ball = enclose(expr)
        return _wide(float(ball.lower()), float(ball.upper())) if ball.is_finite() else ALL


def times(a: Interval, b: Interval) -> Interval:
    """Return an interval that contains x y for all x in a and y in b; 0 times infinity is 0."""
    if a == (0.0, 0.0) or b == (0.0, 0.0):
        return 0.0, 0.0
    products = [0.0 if x == 0 or y == 0 else x * y for x in a for y in b]
    return _wide(min(products), max(products))


def plus(a: Interval, b: Interval) -> Interval:
    """Return an interval that contains x + y for all x in a and y in b."""
    return _wide(a[0] + b[0], a[1] + b[1])


def meet(a: Interval, b: Interval) -> Interval:
    """Return the intersection of two intervals that contain the same values."""
    return max(a[0], b[0]), min(a[1], b[1])


def hull(a: Interval, b: Interval) -> Interval:
    """Return the smallest interval that contains both intervals."""
    return min(a[0], b[0]), max(a[1], b[1])


def real_power(x: Interval, p: Interval) -> Interval:
    """Return x^p for x >= 0; the negative part of x is ignored."""
    if p[1] < 0:
        return inverse(real_power(x, (-p[1], -p[0])))
    if p[0] <= 0:
        return (1.0, 1.0) if p == (0.0, 0.0) else (0.0, math.inf)
    corners = [raised(max(end, 0.0), e) for end in x for e in p]
    return max(0.0, below(min(corners))), above(max(corners))


def whole_power(x: Interval, n: int) -> Interval:
    """Return an interval that contains the n-th powers of x, for an integer n.

    The interval is the whole line if n < 0 and x has both signs.
    """
    if n < 0:
        return inverse(whole_power(x, -n))
    ends = [raised(end, n) for end in x]
    if n % 2:
        return _wide(math.copysign(ends[0], x[0]), math.copysign(ends[1], x[1]))
    return (0.0, above(max(ends))) if x[0] < 0 < x[1] else _wide(min(ends), max(ends))


def inverse(x: Interval) -> Interval:
    """Return an interval that contains 1/x, or the whole line if x has both signs."""
    if x[0] > 0 or x[1] < 0:
        return _wide(1 / x[1], 1 / x[0])
    if x[0] == 0 and x[1] > 0:
        return 0.0, math.inf
    return ALL


def raised(x: float, p: float) -> float:
    """Return |x|^p in the extended reals, for p > 0."""
    try:
        return abs(x) ** p
    except OverflowError:
        return math.inf


def bounded_exp(x: float) -> float:
    """Return exp(x), infinite if it overflows."""
    return math.inf if x > 709 else math.exp(x)


def span(expr: sp.Expr, symbol: sp.Symbol, low: float, high: float) -> Interval:
    """Return an interval that contains every value of ``expr`` for low <= symbol <= high.

    The interval is the whole line if nothing is known.
    """
    return Spans(symbol, low, high)(expr)


class Spans(Fold[Interval]):
    """Intervals that contain the values of an expression and its subexpressions."""

    def __init__(self, symbol: sp.Symbol, low: float, high: float) -> None:
        super().__init__(symbol)
        self.low, self.high = low, high

    def visit(self, expr: Any) -> Interval:
        found = super().visit(expr)
        if expr == self.symbol or self.is_number(expr) or not expr.is_polynomial(self.symbol):
            return found
        return meet(_polynomial_span(expr, self.symbol, self.low, self.high), found)

    def number(self, expr: Any) -> Interval:
        return constant(expr)

    def variable(self, expr: Any) -> Interval:
        return self.low, self.high

    def add(self, first: Interval, second: Interval) -> Interval:
        return plus(first, second)

    def multiply(self, first: Interval, second: Interval) -> Interval:
        return times(first, second)

    def power(self, base: Any, exponent: Any) -> Interval:
        inner = self(base)
        if isinstance(exponent, sp.Integer):
            return whole_power(inner, int(exponent))
        if inner[0] < 0 or exponent.free_symbols:
            return ALL
        return real_power(inner, constant(exponent))

    def function(self, kind: Any, *arguments: Any) -> Interval:
        return function_span(kind, self(arguments[0]))


def function_span(kind: Any, x: Interval) -> Interval:
    """Return an interval that contains the values of a SymPy function on x.

    The interval is the whole line for functions without a rule.
    """
    known = FUNCTIONS.get(kind)
    if known is None or known.trend is OTHER or not hasattr(math, known.name):
        return ALL if known is None else known.bounds
    if known.trend is EVEN:
        x = (0.0 if x[0] <= 0 <= x[1] else min(map(abs, x))), max(map(abs, x))
    ends = [_end(getattr(math, known.name), x[i], known.bounds[i]) for i in (0, 1)]
    return meet(_wide(min(ends), max(ends)), known.bounds)


def _end(function: Callable[[float], float], x: float, otherwise: float) -> float:
    """Return the value of a monotone function at x, or its bound if x is outside the domain."""
    try:
        return function(x)
    except OverflowError:
        return math.copysign(math.inf, x)
    except ValueError:
        return otherwise


def _polynomial_span(expr: sp.Expr, symbol: sp.Symbol, low: float, high: float) -> Interval:
    """Bound a polynomial by its values at the ends and on cells in the middle.

    Beyond its Cauchy bound the derivative has no zero, so the polynomial is monotone there.
    """
    coefficients = [constant(c) for c in sp.Poly(expr, symbol).all_coeffs()]
    if any(c == ALL for c in coefficients) or _contains_zero(coefficients[0]):
        return ALL
    degree = len(coefficients) - 1
    slopes = [
        times(c, (float(degree - i), float(degree - i))) for i, c in enumerate(coefficients[:-1])
    ]
    lead = min(abs(slopes[0][0]), abs(slopes[0][1]))
    radius = above(1 + max((max(abs(c[0]), abs(c[1])) for c in slopes[1:]), default=0.0) / lead)
    inner_low, inner_high = max(low, -radius), min(high, radius)
    values = [_end_value(coefficients, x) for x in (low, high)]
    if inner_low <= inner_high:
        steps = [inner_low + (inner_high - inner_low) * i / _CELLS for i in range(_CELLS)] + [
            inner_high
        ]
        values += [_horner(coefficients, cell) for cell in pairwise(steps)] or [
            _horner(coefficients, (inner_low, inner_high))
        ]
    return min(v[0] for v in values), max(v[1] for v in values)


def _contains_zero(x: Interval) -> bool:
    return x[0] <= 0 <= x[1]


def _horner(coefficients: list[Interval], x: Interval) -> Interval:
    return reduce(lambda total, c: plus(times(total, x), c), coefficients)


def _end_value(coefficients: list[Interval], x: float) -> Interval:
    if math.isfinite(x):
        return _horner(coefficients, (x, x))
    sign = math.copysign(1.0, coefficients[0][0]) * (
        1.0 if x > 0 or len(coefficients) % 2 else -1.0
    )
    return (math.inf, math.inf) if sign > 0 else (-math.inf, -math.inf)
