"""Asymptotic scales, such as y^3 or exp(-3 y^2 + y), compared and bounded on low <= y <= high.

A scale is exp of a sum of constants times growing functions, each a scale or log log y:
log y = exp(log log y), y = exp(log y), y^p = exp(p log y), e^(-3 y^2) = exp(-3 exp(2 log y)).
Their products, quotients and powers are exact, so that e^y / (e^y)^2 is known to be e^-y
however wide the interval is, and whether its end is infinite or not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cmp_to_key, lru_cache
from typing import Any

import sympy as sp

from .ranges import Interval, bounded_exp, constant, meet, plus, times

LOGLOG = "log log y"
LEAST = 4.0  # the least y: log log y is positive there


class Scale:
    """exp(sum of ``parts[g] g``) for growing functions g, the parts being SymPy numbers, not 0."""

    __slots__ = ("_hash", "parts")

    def __init__(self, parts: dict[Any, Any]) -> None:
        self.parts = parts
        self._hash = hash(frozenset(parts.items()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Scale) and self._hash == other._hash and self.parts == other.parts

    @lru_cache(maxsize=1 << 14)  # noqa: B019  (scales are values)
    def __mul__(self, other: Scale) -> Scale:
        if not other.parts:
            return self
        return Scale(combined(self.parts, other.parts)) if self.parts else other

    @lru_cache(maxsize=1 << 14)  # noqa: B019  (scales are values)
    def __truediv__(self, other: Scale) -> Scale:
        return self * other ** sp.Integer(-1)

    @lru_cache(maxsize=1 << 14)  # noqa: B019  (scales are values)
    def __pow__(self, exponent: Any) -> Scale:
        return Scale({g: exponent * c for g, c in self.parts.items()}) if exponent != 0 else ONE


def combined(one: dict[Any, Any], other: dict[Any, Any]) -> dict[Any, Any]:
    """The sum of two linear combinations; coefficients that cancel are left out."""
    total = dict(one)
    for key, c in other.items():
        value = total.get(key, sp.S.Zero) + c
        if value == 0:
            total.pop(key, None)
        else:
            total[key] = value
    return total


ONE = Scale({})
LOG = Scale({LOGLOG: sp.Integer(1)})
VARIABLE = Scale({LOG: sp.Integer(1)})


@dataclass(frozen=True, eq=False)
class Unresolved:
    """A growing function known to be ``scale * size``, 0 < size; unlike every other one."""

    scale: Scale
    size: Interval


@lru_cache(maxsize=4096)
def bounds_of(number: Any) -> Interval:
    """A SymPy number as a float interval."""
    return constant(number)


def sign(number: Any) -> int:
    """The sign of a SymPy number, 0 where it is not certain."""
    low, high = bounds_of(number)
    return 1 if low > 0 else -1 if high < 0 else 0


@dataclass(eq=False)
class Stretch:
    """The interval low <= y <= high, with 4 <= low; ``high`` may be infinite.

    On an infinite one scales are ordered by growth, on a finite one by size at its geometric
    middle. ``work`` counts products of functions on it.
    """

    low: float
    high: float
    work: int = 0
    _ranges: dict[Scale, Interval] = field(default_factory=dict, repr=False)
    _orders: dict[tuple[Any, Any], int] = field(default_factory=dict, repr=False)

    def order(self, one: Scale, other: Scale) -> int:
        """1, 0 or -1: whether ``one`` is larger, alike or smaller."""
        if one == other:
            return 0
        key = one, other
        if key not in self._orders:
            self._orders[key] = self._compare(one / other)
        return self._orders[key]

    def _compare(self, ratio: Scale) -> int:
        if math.isfinite(self.high):
            size = _value(ratio, math.log(self.low) / 2 + math.log(self.high) / 2)
            return (size > 0) - (size < 0)
        leading = self.largest(list(ratio.parts))
        return 0 if leading == ONE else sign(ratio.parts[leading])

    def largest(self, functions: list[Any]) -> Any:
        """The largest of some growing functions."""
        return max(functions, key=cmp_to_key(self._functions))

    def _functions(self, one: Any, other: Any) -> int:
        if LOGLOG in (one, other):
            return 0 if one == other else -1 if (one == LOGLOG) == (other != ONE) else 1
        first, second = (g.scale if isinstance(g, Unresolved) else g for g in (one, other))
        return self.order(first, second)

    def range(self, scale: Scale) -> Interval:
        """An interval of floats that holds all values of a scale."""
        if not scale.parts:
            return 1.0, 1.0
        if scale not in self._ranges:
            low, high = self._exponent(scale.parts)
            self._ranges[scale] = plus((0.0, 0.0), (bounded_exp(low), bounded_exp(high)))
        low, high = self._ranges[scale]
        return max(low, 0.0), high

    def _exponent(self, parts: dict[Any, Any]) -> Interval:
        """The range of a sum: term by term, and as a multiple of its largest term."""
        total = 0.0, 0.0
        for g, c in parts.items():
            total = plus(total, times(bounds_of(c), self._values(g)))
        leading = self.largest(list(parts))
        if len(parts) == 1 or leading in (LOGLOG, ONE):
            return total
        share = bounds_of(parts[leading])
        for g, c in parts.items():
            if g is not leading:
                share = plus(share, times(bounds_of(c), self._ratio(g, leading)))
        return meet(total, times(share, self._values(leading)))

    def _values(self, g: Any) -> Interval:
        """The range of a growing function."""
        if g == LOGLOG:
            ends = math.log(math.log(self.low)), math.log(math.log(self.high))
            return plus((0.0, 0.0), ends)
        return times(g.size, self.range(g.scale)) if isinstance(g, Unresolved) else self.range(g)

    def _ratio(self, g: Any, leading: Any) -> Interval:
        """The range of g over a larger function; log log y <= log y / e."""
        if g == LOGLOG:
            return 0.0, 0.368 * self._ratio(LOG, leading)[1]
        size = 1.0, 1.0
        if isinstance(g, Unresolved):
            g, size = g.scale, g.size
        if isinstance(leading, Unresolved):
            leading, size = leading.scale, times(size, (1 / leading.size[1], 1 / leading.size[0]))
        return times(size, self.range(g / leading))


def _value(scale: Scale, log_y: float) -> float:
    """The logarithm of a scale at one y, roughly."""
    total = 0.0
    for g, c in scale.parts.items():
        if g == LOGLOG:
            size = math.log(log_y)
        elif isinstance(g, Unresolved):
            size = bounded_exp(_value(g.scale, log_y)) * g.size[0]
        else:
            size = bounded_exp(_value(g, log_y))
        total += bounds_of(c)[0] * size
    return 0.0 if math.isnan(total) else total
