"""Jets, which give Taylor coefficients of expressions, and balls, which enclose them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import sympy as sp

from ...fields.balls import Numbers
from ...fields.expressions import FUNCTIONS, OTHER
from ...fields.jets import Jet
from ...fields.programs import power_terms, taylor_program
from .ranges import ALL, Interval, above, below


class Jets:
    """Functions of jets of the given order, from functions of the numbers they are made of."""

    def __init__(self, base: Any, order: int) -> None:
        self.base, self.order = base, order
        self.number = base.number

    def sign(self, u: Jet) -> int:
        return self.base.sign(u.value)

    def joined(self, options: list[Jet]) -> Jet:
        """Coefficients that enclose those of all options."""
        rows = zip(*(option.coefficients for option in options), strict=True)
        return Jet(tuple(self.base.joined(list(row)) for row in rows))

    def power(self, u: Jet, exponent: Any) -> Jet:
        """u^exponent."""
        terms = power_terms(exponent)[: self.order + 1]
        outer = [self.base.power(u.value, e) * self.number(weight) for e, weight in terms]
        return u.compose([*outer, *([0 * u.value] * (self.order + 1 - len(outer)))])

    def circular(self, u: Jet, argument: Any) -> tuple[Jet, Jet]:
        """sin u and cos u, ``argument`` being the expression of u."""
        sin, cos = self.base.circular(u.value, argument)
        turns = [sin, cos, -1 * sin, -1 * cos]
        weights = [self.number(sp.Rational(1, math.factorial(k))) for k in range(self.order + 1)]
        rows = [[turns[(k + turn) % 4] * w for k, w in enumerate(weights)] for turn in (0, 1)]
        return u.compose(rows[0]), u.compose(rows[1])

    def wave(self, kind: Any, u: Jet, argument: Any) -> Jet:
        return self.circular(u, argument)[kind is sp.cos]

    def function(self, kind: Any, u: Jet) -> Jet:
        return u.compose(self.base.outer(kind, u.value, self.order))

    def outer(self, kind: Any, u: Jet, order: int) -> list[Jet]:
        """The Taylor coefficients of a function at u."""
        return taylor_program(kind, order).run(u, self)


class Waves(Jets):
    """Jets of first order in the phase of waves, their coefficients functions of x.

    ``angles``: for an argument of sin and cos, (a ball that holds it modulo 2 pi, its rate in the
    phase), or None. It serves where an argument runs through more than a turn.
    """

    def __init__(self, base: Any, angles: Callable[[Any], tuple[Any, int] | None]) -> None:
        super().__init__(base, 1)
        self.angles = angles

    def circular(self, u: Jet, argument: Any) -> tuple[Jet, Jet]:
        found = self.angles(argument)
        low, high = u.value.span
        if found is None or high - low < 2 * math.pi:
            return super().circular(u, argument)
        angle, rate = found
        sin, cos = (u.value.within(ends(value)) for value in angle.sin_cos())
        return Jet((sin, cos * rate)), Jet((cos, sin * -rate))


class Balls(Numbers):
    """Real Arb balls, also wide ones: monotone functions by their ends, roots where real."""

    def sign(self, u: Any) -> int:
        return 1 if u > 0 else -1 if u < 0 else 0

    def joined(self, options: list[Any]) -> Any:
        return reduce(lambda total, option: total.union(option), options)

    def power(self, u: Any, exponent: Any) -> Any:
        """u^exponent, of the part of u that is not negative where the exponent is no integer."""
        from flint import arb

        if exponent.is_Integer:
            n = int(exponent)
            raised = u**n
            crosses = n % 2 == 0 and raised.is_finite() and not raised > 0
            return raised.nonnegative_part() if crosses else raised
        e = self.number(exponent)
        low, high = arb(max(u.lower(), arb(0))), arb(u.upper())
        if e > 0:
            return (low**e if low > 0 else arb(0)).union(high**e)
        return (low**e).union(high**e) if low > 0 else arb.nan()

    def circular(self, u: Any, argument: Any) -> tuple[Any, Any]:
        return u.sin_cos()

    def function(self, kind: Any, u: Any) -> Any:
        from flint import arb

        trend = FUNCTIONS[kind].trend
        if u.is_exact() or trend is OTHER:
            return super().function(kind, u)
        sides = (u.lower(), u.upper()) if trend else (u.abs_lower(), u.abs_upper())
        first, second = (super(Balls, self).function(kind, arb(side)) for side in sides)
        return first.union(second)

    def outer(self, kind: Any, u: Any, order: int) -> list[Any]:
        """The Taylor coefficients of a function at u."""
        return _sinc(u, order) if kind is sp.sinc else taylor_program(kind, order).run(u, self)


def _sinc(u: Any, order: int) -> list[Any]:
    """Taylor coefficients of sin(u)/u: its series, or a quotient and |sinc^(k)| <= 1/(k + 1)."""
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


def _sinc_series(u: Any, k: int) -> Any:
    """The k-th Taylor coefficient of sin(u)/u, |u| < 3: after 24 terms less than 1e-20 is left."""
    from flint import arb

    total = arb(0, 1e-20)
    for n in range((k + 1) // 2, 24):
        weight = (-1) ** n * math.comb(2 * n, k)
        total += weight * u ** (2 * n - k) / arb(math.factorial(2 * n + 1))
    return total


def ends(ball: Any) -> Interval:
    """A ball as an interval of floats."""
    if not ball.is_finite():
        return ALL
    return below(float(ball.lower())), above(float(ball.upper()))
