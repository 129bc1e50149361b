"""Second moments per location with a separate exponent, so that they never over- or underflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp

from ...foundation.errors import KcalcError
from ...foundation.keyed import Keyed

Number = Any
Array = np.ndarray
FAR = 200  # mantissas beyond 2^+-FAR are rescaled


@dataclass(frozen=True)
class Level:
    """Numbers with a common exponent, ``values * 2^exponent``.

    ``values`` has one value per location (P,) or per pair of locations (P, P), or is one SymPy
    expression for all of them.
    """

    values: Any
    exponent: int = 0

    @property
    def symbolic(self) -> bool:
        """Whether ``values`` is a SymPy expression."""
        return isinstance(self.values, sp.Basic)

    def scaled(self, factor: Number) -> Level:
        """Multiply the values by one number, or by one float per location."""
        return Level(self.values * factor, self.exponent)._settled()

    def plus(self, other: Level) -> Level:
        """The sum of two levels."""
        if self.symbolic:
            return Level(self.values + other.values)
        if self.exponent == other.exponent:
            return Level(self.values + other.values, self.exponent)._settled()
        high, low = (self, other) if self.exponent >= other.exponent else (other, self)
        if not np.any(high.values):
            return Level(high.values + low.values, low.exponent)
        return Level(
            high.values + np.ldexp(low.values, max(low.exponent - high.exponent, -5000)),
            high.exponent,
        )._settled()

    def filled(self, number: Number) -> Level:
        """Return a level in which every value is the same number."""
        return Level(number if self.symbolic else np.full_like(self.values, number))

    def times(self, other: Level) -> Level:
        """The product, location by location."""
        return Level(self.values * other.values, self.exponent + other.exponent)._settled()

    def over(self, other: Level) -> Level:
        """The quotient, location by location; 0 / 0 counts as 0."""
        if self.symbolic:
            return Level(self.values / other.values)
        zero = (np.asarray(other.values) == 0) & (np.asarray(self.values) == 0)
        return Level(
            self.values / np.where(zero, 1.0, other.values), self.exponent - other.exponent
        )._settled()

    def mapped(self, linear: Callable[[Any], Any]) -> Level:
        """The image of the values under a linear map."""
        return Level(linear(self.values), self.exponent)._settled()

    def total(self, locations: int) -> Level:
        """The sum over locations, of shape (1,)."""
        return (
            Level(self.values * locations)
            if self.symbolic
            else Level(np.sum(self.values, keepdims=True).reshape(1), self.exponent)
        )

    def _settled(self) -> Level:
        if self.symbolic:
            return self
        size = float(np.max(np.abs(self.values)))
        if size == 0 or not math.isfinite(size):
            return self
        shift = math.frexp(size)[1]
        return (
            self
            if abs(shift) <= FAR
            else Level(np.ldexp(self.values, -shift), self.exponent + shift)
        )

    def plain(self, what: str) -> Any:
        """Return the values as ordinary floats (or the expression).

        Raises: KcalcError beyond double precision; ``what`` names the values in the message.
        """
        if self.symbolic:
            return self.values
        with np.errstate(over="ignore"):
            out = np.ldexp(self.values, max(min(self.exponent, 5000), -5000))
        if not np.all(np.isfinite(out)) or (np.any(self.values) and not np.any(out)):
            raise KcalcError(
                f"{what} is about 1e{self.log10():+.0f}, which is beyond double precision; "
                "rescale the network, or use .log10"
            )
        return out

    def log10(self) -> float:
        """The decimal logarithm of the mean."""
        mean = float(np.mean(self.values))
        return math.log10(mean) + self.exponent * math.log10(2) if mean > 0 else -math.inf


def one_value(level: Level, what: str) -> Any:
    """The mean over locations as a float or an expression.

    Raises: KcalcError beyond double precision.
    """
    if level.symbolic:
        return level.values
    mean = Level(np.mean(level.values, keepdims=True).reshape(1), level.exponent)
    return float(mean.plain(what)[0])


def quotient(one: Level, two: Level) -> Any:
    """The quotient of two scalars, simplified if they are expressions.

    Raises: KcalcError beyond double precision.
    """
    found = one.over(two)
    return sp.simplify(found.values) if one.symbolic else one_value(found, "a ratio of scalings")


@dataclass(frozen=True)
class FloatValues(Keyed[Any]):
    """{node: number}; access converts to float and raises KcalcError beyond double precision."""

    levels: Mapping[Hashable, Level]
    what: str

    @property
    def _entries(self) -> Mapping[Hashable, Level]:
        return self.levels

    def __getitem__(self, node: Hashable) -> Any:
        return one_value(super().__getitem__(node), f"{self.what} at node {node!r}")

    def log10(self, node: Hashable) -> float:
        """The decimal logarithm of one value."""
        return self.levels[node].log10()
