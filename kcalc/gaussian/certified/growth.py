"""Proven growth bounds on an interval, and their Gaussian integrals beyond a radius.

The bound |f(x)| <= A (1 + |x|)^p exp(B |x| + G x^2) is declared, or derived from the expression
tree. All numbers are floats, rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy as sp

from kcalc.fields.expressions import Fold
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.certified.ranges import Spans, above, below, constant


@dataclass(frozen=True)
class Growth:
    """The bound |f(x)| <= exp(log_scale) (1 + |x|)^power exp(rate |x| + gauss x^2)."""

    log_scale: float = 0.0
    power: float = 0.0
    rate: float = 0.0
    gauss: float = 0.0

    def __mul__(self, other: Growth) -> Growth:
        sums = (a + b for a, b in zip(self._parts(), other._parts(), strict=True))
        # a sum that is 0 is exact
        return Growth(*(above(total) if total else 0.0 for total in sums))

    def __or__(self, other: Growth) -> Growth:
        """Return a bound that holds for both functions."""
        return Growth(*(max(a, b) for a, b in zip(self._parts(), other._parts(), strict=True)))

    def __add__(self, other: Growth) -> Growth:
        return Growth(log_sum(self.log_scale, other.log_scale), *(self | other)._parts()[1:])

    def __pow__(self, n: float) -> Growth:
        return Growth(*(above(n * part) if part else 0.0 for part in self._parts()))

    def _parts(self) -> tuple[float, float, float, float]:
        return self.log_scale, self.power, self.rate, self.gauss

    def after(self, scale: float, shift: float) -> Growth:
        """Return the bound on the function x -> f(scale x + shift)."""
        s, b = abs(scale), abs(shift)
        twist = (
            self.power * math.log((1 + b) * max(1.0, s)) + self.rate * b + 2 * self.gauss * b * b
        )
        gauss = self.gauss * s * s * (2.0 if b else 1.0)
        return Growth(above(self.log_scale + twist), self.power, above(self.rate * s), above(gauss))

    def at(self, x: float) -> float:
        """Return the log of the bound on [-x, x]."""
        return above(
            self.log_scale + self.power * math.log1p(x) + self.rate * x + self.gauss * x * x
        )


# --- from the tree --------------------------------------------------------------------------------


def _size(bound: float) -> Growth:
    return Growth(-math.inf if bound == 0 else above(math.log(bound)))


def _logarithm(inner: Growth) -> Growth:
    """Bound log(1 + |g|) by log(1 + A) + p log(1 + |x|) + B |x| + G x^2, given the bound on g."""
    start = above(
        math.log1p(math.exp(min(inner.log_scale, 700.0))) + max(0.0, inner.log_scale - 700.0)
    )
    if inner.gauss:
        return Growth(above(math.log(start + inner.power + inner.rate + inner.gauss)), 2.0)
    slope = inner.power + inner.rate
    return Growth(above(math.log(max(start + slope, 1e-300))), 1.0 if slope else 0.0)


class _Derived(Fold[Growth]):
    """Growth of expressions in one symbol on one interval."""

    def __init__(self, symbol: sp.Symbol, low: float, high: float) -> None:
        super().__init__(symbol)
        self.low, self.high = low, high
        self.span = Spans(symbol, low, high)

    def visit(self, expr: Any) -> Growth:
        size = max(map(abs, self.span(expr)))
        return _size(size) if math.isfinite(size) else super().visit(expr)

    def variable(self, expr: Any) -> Growth:
        return Growth(power=1.0)

    def number(self, expr: Any) -> Growth:
        return Growth(math.inf)

    def power(self, base: Any, exponent: Any) -> Growth:
        if exponent.free_symbols:
            raise KcalcError(f"no growth bound is known for {str(base**exponent)[:60]}")
        low, high = constant(exponent)
        if low >= 0:
            inner = self(base)
            return replace(inner, log_scale=max(inner.log_scale, 0.0)) ** high
        floor = self.floor(base)
        worst = low if floor < 1 else high
        return Growth(above(worst * math.log(floor)))

    def floor(self, expr: Any) -> float:
        """Return a proven positive lower bound on |expr|.

        Raises KcalcError if no bound is found.
        """
        bottom, top = self.span(expr)
        floor = max(bottom, -top)
        if floor <= 0:
            raise KcalcError(f"{str(expr)[:60]} is not proven to be bounded away from 0")
        return floor

    def exponential(self, inner: Any, sign: int = 1) -> Growth:
        """Bound exp(sign * inner) by an upper bound on the exponent that is at most quadratic."""
        low, high = self.span(inner)
        top = high if sign > 0 else -low
        if math.isfinite(top):
            return Growth(above(top))
        if inner.is_polynomial(self.symbol):
            poly = sp.Poly(sign * inner, self.symbol)
            bounds = [(n, constant(c)) for (n,), c in poly.terms()]
            size = [0.0, 0.0, 0.0]
            for n, (bottom, upper) in bounds:
                gain = self._greatest(n, bottom, upper)
                if gain > 0 and n > 2:
                    raise KcalcError(
                        f"exp({str(sign * inner)[:50]}) grows faster than any Gaussian decays"
                    )
                if n <= 2:
                    size[n] = gain if n else upper
            return Growth(above(size[0]), 0.0, max(0.0, size[1]), max(0.0, size[2]))
        growth = self(inner)
        if growth.rate or growth.gauss or growth.power > 2:
            raise KcalcError(
                f"exp({str(sign * inner)[:50]}) is not proven to grow more slowly than a "
                "Gaussian decays"
            )
        scale = above(math.exp(growth.log_scale))
        return Growth(
            scale,
            0.0,
            scale if growth.power <= 1 else above(2 * scale),
            0.0 if growth.power <= 1 else scale,
        )

    def _greatest(self, n: int, bottom: float, upper: float) -> float:
        """Return the largest c x^n / |x|^n over the interval, for ``bottom`` <= c <= ``upper``."""
        sides = [upper] if self.high > 0 else []
        if self.low < 0:
            sides.append(upper if n % 2 == 0 else -bottom)
        return max(sides, default=0.0)

    def function(self, kind: Any, *arguments: Any) -> Growth:
        inner = arguments[0]
        if kind is sp.exp:
            return self.exponential(inner)
        if kind is sp.log:
            return _logarithm(self(inner)) + _size(max(0.0, -math.log(self.floor(inner))))
        if kind in (sp.sinh, sp.cosh):
            return self.exponential(inner) | self.exponential(inner, -1)
        if kind in (sp.asinh, sp.acosh):
            return _logarithm(self(inner) * _size(2.0))
        if kind is sp.Abs:
            return self(inner)
        raise KcalcError(f"no growth bound is known for {kind.__name__}({str(inner)[:40]})")


def derive(
    expr: sp.Expr, symbol: sp.Symbol, low: float = -math.inf, high: float = math.inf
) -> Growth:
    """Return a proven growth bound on ``expr`` for low <= symbol <= high.

    Raises KcalcError if no bound can be derived from the expression.
    """
    return _Derived(symbol, low, high)(expr)


# --- under a Gaussian -----------------------------------------------------------------------------


def check_moment(growths: Sequence[tuple[Growth, float]], what: str) -> None:
    """Check that the product of the functions f_i(r_i z) has a Gaussian expectation.

    Raises KcalcError unless this is proven.
    """
    gauss = sum(g.gauss * r * r for g, r in growths)
    if above(gauss) >= 0.5:
        raise KcalcError(
            f"{what} diverges or is not proven to converge; growth like exp(G x^2) requires G < "
            "1/(4 q)"
        )


def tail(growths: Sequence[tuple[Growth, float]], reach: float, degree: int = 0) -> float:
    """Return the log of a bound on E[|z|^degree prod_i |f_i(r_i z)|; |z| > reach].

    The result is inf if reach is too small.
    """
    log_scale = sum(g.log_scale for g, _ in growths)
    if log_scale == -math.inf:
        return -math.inf
    rate = sum(g.rate * r for g, r in growths)
    gauss = sum(g.gauss * r * r for g, r in growths)
    powers = sum(g.power * math.log1p(r * reach) for g, r in growths) + (
        degree * math.log(reach) if degree else 0.0
    )
    slopes = sum(g.power * r / (1 + r * reach) for g, r in growths) + degree / reach
    decay = below(below((1 - 2 * gauss) * reach) - above(rate + slopes))
    if decay <= 0:
        return math.inf
    return above(
        log_scale
        + powers
        + rate * reach
        + (gauss - 0.5) * reach * reach
        - 0.2257913526
        - math.log(decay)
        + 1e-9
    )


def whole(growths: Sequence[tuple[Growth, float]], degree: int = 0) -> float:
    """Return the log of a bound on E[|z|^degree prod_i |f_i(r_i z)|].

    The bound is an upper Riemann sum plus a bound on the tail.
    """
    step, total, left = 0.25, -math.inf, 0.0
    while all(g.log_scale > -math.inf for g, _ in growths):
        right = left + step
        inside = sum(g.at(r * right) for g, r in growths) + (
            degree * math.log(right) if degree else 0.0
        )
        total = log_sum(total, above(inside - left * left / 2 - 0.2257913526 + math.log(step)))
        rest = tail(growths, right, degree)
        if rest < total:
            return above(log_sum(total, rest))
        left = right
    return -math.inf


def log_sum(a: float, b: float) -> float:
    """Return log(e^a + e^b), rounded up."""
    low, high = min(a, b), max(a, b)
    return high if low == -math.inf else above(high + math.log1p(math.exp(low - high)))


def radius(growths: Sequence[tuple[Growth, float]], log_target: float, degree: int = 0) -> float:
    """Return a reach at which the tail is below exp(log_target)."""
    reach = 4.0
    while tail(growths, reach, degree) > log_target:
        reach += 0.25
        if reach > 1e4:
            raise KcalcError(
                "the activation grows too fast for a certified Gaussian integral of this width; "
                "use a smaller q"
            )
    return reach
