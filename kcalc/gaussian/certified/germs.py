"""Functions on a stretch of y as expansions: exact terms c s and remainders [low, high] s.

Exact terms cancel exactly, so that 1 - tanh y is known to decay like e^(-2y) and log(1 + e^y) - y
like e^-y; everything else is interval arithmetic relative to scales. An expansion holds on the
whole stretch, not only asymptotically.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import sympy as sp

from ...foundation.process_state import cached_property
from .ranges import (
    Interval,
    above,
    below,
    bounded_exp,
    hull,
    meet,
    plus,
    real_power,
    times,
    whole_power,
)
from .scales import (
    LOG,
    LOGLOG,
    ONE,
    VARIABLE,
    Scale,
    Stretch,
    Unresolved,
    bounds_of,
    combined,
    sign,
)

_TERMS, _RESTS = 5, 3  # exact terms and remainders kept
_OPERATIONS = 12  # in a coefficient kept exactly
_LONGEST = 400  # bits of one that is rational
NEAR = 0.125  # series are used for relative deviations up to it
_ORDER = 4  # of the remainder of a series on an infinite stretch


@dataclass(frozen=True, eq=False)
class Germ:
    """The sum of ``exact[s] s`` and ``rest[s] s`` over scales s, a rest lying in its interval."""

    stretch: Stretch
    exact: dict[Scale, Any]
    rest: dict[Scale, Interval] = field(default_factory=dict)

    @classmethod
    def variable(cls, stretch: Stretch, start: Any, factor: Any, power: int) -> Germ:
        """``start + factor y^power``."""
        terms = {ONE: start} if start != 0 else {}
        return cls(stretch, {**terms, VARIABLE**power: factor})

    def within(self, rest: Interval, scale: Scale = ONE) -> Germ:
        """A function on the same stretch whose ratio to ``scale`` is in the interval ``rest``."""
        return Germ(self.stretch, {}, {scale: rest})

    def constant(self, number: Any) -> Germ:
        """A number on the same stretch."""
        return Germ(self.stretch, {ONE: sp.sympify(number)} if number != 0 else {})

    def _monomial(self, c: Any, scale: Scale) -> Germ:
        return Germ(self.stretch, {scale: c})

    @property
    def is_zero(self) -> bool:
        return not self.exact and not self.rest

    @cached_property
    def lead(self) -> tuple[Scale, Interval]:
        """(its largest scale, the interval of its ratio to it)."""
        if self.is_zero:
            return ONE, (0.0, 0.0)
        top = self._largest([*self.exact, *self.rest])
        return top, self._relative(top)

    def _largest(self, scales: Iterable[Scale], sign: int = 1) -> Scale:
        """The largest (sign = 1) or smallest (-1) of some scales."""
        order = self.stretch.order
        return reduce(lambda one, other: other if sign * order(other, one) > 0 else one, scales)

    def _relative(self, by: Scale) -> Interval:
        """The range of the ratio to a scale, term by term."""
        total = 0.0, 0.0
        for scale, c in self.exact.items():
            total = plus(total, times(bounds_of(c), self.stretch.range(scale / by)))
        for scale, size in self.rest.items():
            total = plus(total, times(size, self.stretch.range(scale / by)))
        return total

    @cached_property
    def span(self) -> Interval:
        """An interval that holds all values."""
        scale, size = self.lead
        return meet(times(size, self.stretch.range(scale)), self._relative(ONE))

    # --- ring ---------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Germ:
        if not isinstance(other, Germ):
            if other == 0:
                return self
            other = self.constant(other)
        if self.is_zero or other.is_zero:
            return other if self.is_zero else self
        exact, rest = combined(self.exact, other.exact), _joined(self.rest, other.rest)
        return Germ(self.stretch, exact, rest)._trimmed()

    __radd__ = __add__

    def _trimmed(self) -> Germ:
        """With few terms: exact ones too long or below a remainder become remainders."""
        exact, rest = dict(self.exact), dict(self.rest)
        top = self._largest(rest) if rest else None
        for scale, c in self.exact.items():
            if _long(c) or (top is not None and self.stretch.order(scale, top) < 0):
                rest = _joined(rest, {scale: bounds_of(exact.pop(scale))})
        while len(exact) > _TERMS:
            least = self._largest(exact, -1)
            rest = _joined(rest, {least: bounds_of(exact.pop(least))})
        while len(rest) > _RESTS:
            least = self._largest(rest, -1)
            size = rest.pop(least)
            larger = self._largest(rest, -1)
            rest = _joined(rest, {larger: times(size, self.stretch.range(least / larger))})
        return Germ(self.stretch, exact, rest)

    def __neg__(self) -> Germ:
        return self * -1

    def __sub__(self, other: Any) -> Germ:
        return self + (-other)

    def __rsub__(self, other: Any) -> Germ:
        return (-self) + other

    def __mul__(self, other: Any) -> Germ:
        if not isinstance(other, Germ):
            if other == 0 or other == 1:
                return self if other == 1 else Germ(self.stretch, {})
            c = sp.sympify(other)
            scaled = {s: times(size, bounds_of(c)) for s, size in self.rest.items()}
            return Germ(self.stretch, {s: c * own for s, own in self.exact.items()}, scaled)
        if self.is_zero or other.is_zero:
            return self if self.is_zero else other
        self.stretch.work += 1
        exact: dict[Scale, Any] = {}
        for s, c in self.exact.items():
            exact = combined(exact, {s * t: c * d for t, d in other.exact.items()})
        rest: dict[Scale, Interval] = {}
        for one, whole in ((self, other), (other, Germ(self.stretch, self.exact))):
            scale, share = whole.lead
            rest = _joined(rest, {s * scale: times(size, share) for s, size in one.rest.items()})
        return Germ(self.stretch, exact, rest)._trimmed()

    __rmul__ = __mul__

    # --- powers, exponentials, logarithms -----------------------------------------------------

    def _factors(self, most: float) -> tuple[Any, Scale, Germ] | None:
        """(c, s, d) with self = c s (1 + d), |d| <= most; None if no exact term leads so far."""
        top, _ = self.lead
        c = self.exact.get(top)
        if c is None or sign(c) == 0:
            return None
        others = {s: own for s, own in self.exact.items() if s != top}
        inverse = self._monomial(1 / c, top ** sp.Integer(-1))
        deviation = Germ(self.stretch, others, self.rest) * inverse
        low, high = deviation.span
        return (c, top, deviation) if max(-low, high) <= most else None

    def power(self, exponent: Any) -> Germ:
        """self^exponent for a SymPy number.

        The values must be positive where the exponent is not an integer.
        """
        if exponent == 0 or exponent == 1:
            return self.constant(1) if exponent == 0 else self
        if self.exact and (exponent == 2 or exponent == 3):
            return self * self if exponent == 2 else self * self * self
        is_whole = bool(exponent.is_Integer)
        parts = self._factors(NEAR / max(1.0, abs(float(exponent))))
        if parts is not None and (is_whole or sign(parts[0]) > 0):
            c, scale, deviation = parts
            weights = [sp.binomial(exponent, k) for k in range(_ORDER + 1)]

            def remainder(k: int, d: Interval) -> Interval:
                power = real_power(plus((1.0, 1.0), d), bounds_of(exponent - k))
                return times(bounds_of(weights[k]), power)

            return self._raised(c, scale, exponent) * deviation.series(weights, remainder)
        scale, size = self.lead
        if is_whole:
            return self.within(whole_power(size, int(exponent)), scale**exponent)
        return self.within(real_power(size, bounds_of(exponent)), scale**exponent)

    def _raised(self, c: Any, scale: Scale, exponent: Any) -> Germ:
        """(c scale)^exponent; a power of c too long for a coefficient is a part of the scale."""
        if _bits(c) * abs(float(exponent)) <= _LONGEST:
            return self._monomial(c**exponent, scale**exponent)
        side = -1 if sign(c) < 0 and exponent % 2 else 1
        size = Scale({ONE: exponent * sp.log(abs(c))})
        return self._monomial(sp.Integer(side), scale**exponent * size)

    def series(self, exact: list[Any], remainder: Callable[[int, Interval], Interval]) -> Germ:
        """f(self) from Taylor coefficients at 0, and enclosures of the k-th one around 0."""
        order = _ORDER if math.isinf(self.stretch.high) else 1
        low, high = self.span
        total, power = self.constant(exact[0]), self
        for k in range(1, order):
            total, power = total + power * exact[k], power * self
        return total + power * self.within(remainder(order, (min(low, 0.0), max(high, 0.0))))

    def split(self) -> tuple[Germ, Any, Germ]:
        """(growing exact terms, a number, the rest)."""
        growing = {s: c for s, c in self.exact.items() if self.stretch.order(s, ONE) > 0}
        others = {s: c for s, c in self.exact.items() if s not in growing and s != ONE}
        number = self.exact.get(ONE, sp.S.Zero)
        return Germ(self.stretch, growing), number, Germ(self.stretch, others, self.rest)

    def exp(self) -> Germ:
        """e^self."""
        growing, number, rest = self.split()
        exponents: dict[Any, Any] = dict(growing.exact)
        if number != 0:
            exponents[ONE] = number
        low, high = rest.span
        if max(-low, high) <= NEAR:
            weights = [1 / sp.factorial(k) for k in range(_ORDER + 1)]
            factor = rest.series(weights, lambda k, d: times(bounds_of(weights[k]), _exp(d)))
        else:
            factor = self.within(_exp((low, high)))
            scale, (least, most) = rest.lead
            is_certain = 0 < least <= most < math.inf or -math.inf < least <= most < 0
            if high - low > 1 and self.stretch.order(scale, ONE) > 0 and is_certain:
                size = (least, most) if least > 0 else (-most, -least)
                exponents[Unresolved(scale, size)] = sp.Integer(1 if least > 0 else -1)
                factor = self.constant(1)
        return self._monomial(sp.Integer(1), Scale(exponents)) * factor

    def log(self) -> Germ:
        """The logarithm of the positive values."""
        parts = self._factors(NEAR)
        if parts is not None and sign(parts[0]) > 0:
            c, scale, deviation = parts
            weights = [sp.S.Zero]
            weights += [sp.Rational((-1) ** (k - 1), k) for k in range(1, _ORDER + 1)]

            def remainder(k: int, d: Interval) -> Interval:
                power = real_power(plus((1.0, 1.0), d), (-float(k), -float(k)))
                return times(bounds_of(weights[k]), power)

            total = deviation.series(weights, remainder) + sp.log(c)
        else:
            scale, (low, high) = self.lead
            bottom = below(math.log(low)) if low > 0 else -math.inf
            total = self.within((bottom, above(math.log(high)) if high > 0 else math.inf))
        for g, c in scale.parts.items():
            if g == LOGLOG:  # between 0.32 and log y / e
                total = total + self.within(times(bounds_of(c), (0.0, 0.368)), LOG)
            elif isinstance(g, Unresolved):
                total = total + self.within(times(bounds_of(c), g.size), g.scale)
            else:
                total = total + self._monomial(c, g)
        return total

    def joined(self, other: Germ) -> Germ:
        """Values of one of two functions, it is not known which."""
        (one, a), (two, b) = self.lead, other.lead
        top = one if self.stretch.order(one, two) >= 0 else two
        first = times(a, self.stretch.range(one / top))
        return self.within(hull(first, times(b, self.stretch.range(two / top))), top)


def _exp(x: Interval) -> Interval:
    low, high = plus((0.0, 0.0), (bounded_exp(x[0]), bounded_exp(x[1])))
    return max(low, 0.0), high


def _joined(one: dict[Scale, Interval], other: dict[Scale, Interval]) -> dict[Scale, Interval]:
    """The sum of remainders."""
    total = dict(one)
    for scale, size in other.items():
        total[scale] = plus(total[scale], size) if scale in total else size
    return total


def _long(c: Any) -> bool:
    """Whether a coefficient is too long to be kept exactly."""
    return _bits(c) > _LONGEST if isinstance(c, sp.Rational) else c.count_ops() > _OPERATIONS


def _bits(c: Any) -> int:
    """The length of a rational number; 1 for other ones, whose powers stay symbolic."""
    return max(int(c.p).bit_length(), int(c.q).bit_length()) if isinstance(c, sp.Rational) else 1
