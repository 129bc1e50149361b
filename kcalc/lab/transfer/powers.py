"""Sizes as powers of width and depth.

A power is a product of powers of symbols, and powers are compared at large width. A symbol is the
ratio of a size in the larger network to the same size in the base. Widths may grow at different
rates: if one width grows 4 times and another 16 times, the first grows as the square root of the
second. Powers are compared by their degree in the fastest-growing width, taking these rates into
account. In a tie, the power of the depth decides. Degrees that differ by less than 1/10 (because of
rounded widths) count as equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy as sp

Power = Any  # a SymPy product of powers of positive symbols; 0 is smaller than all others

WIDTH = sp.Symbol("n", positive=True)
DEPTH = sp.Symbol("L", positive=True)
ONE = sp.S.One
ZERO = sp.S.Zero
HALF = sp.Rational(1, 2)
ROUNDING = 0.1  # smaller differences between degrees are rounding


@dataclass(frozen=True)
class Order:
    """The order of powers for large widths.

    ``rates`` is {symbol of a width: its degree in the fastest-growing width}. Missing symbols have
    degree 1.
    """

    rates: Mapping[sp.Symbol, float] = field(default_factory=dict)

    def degrees(self, power: Power) -> tuple[Any, Any]:
        """Return (degree in the width, degree in the depth).

        The first is the degree in the fastest-growing width.
        """
        powers = sp.sympify(power).as_powers_dict()
        depth = sp.Rational(powers.pop(DEPTH, 0))
        width = [
            sp.Rational(e) * self.rates.get(base, ONE)
            for base, e in powers.items()
            if base.is_Symbol
        ]
        return sum(width, ZERO), depth

    def grows(self, power: Power) -> bool:
        """Return whether a number of channels grows with the width."""
        return power != 1 and self.degrees(power)[0] > ROUNDING

    def alike(self, one: Power, two: Power) -> bool:
        """Return whether two powers have equal degrees, up to rounding of widths."""
        (width, depth), (other, shallow) = self.degrees(one), self.degrees(two)
        return depth == shallow and abs(width - other) < ROUNDING

    def exceeds(self, one: Power, two: Power) -> bool:
        """Return whether the first power is larger than the second."""
        (width, depth), (other, shallow) = self.degrees(one), self.degrees(two)
        return bool(depth > shallow if abs(width - other) < ROUNDING else width > other)

    def larger(self, *powers: Power) -> Power:
        """Return the largest power, the first one in a tie. Zeros are ignored."""
        found = ZERO
        for power in powers:
            if power != 0 and (found == 0 or self.exceeds(power, found)):
                found = power
        return found

    def smaller(self, *powers: Power) -> Power:
        """Return the smallest power, the first one in a tie."""
        found = powers[0]
        for power in powers[1:]:
            if self.exceeds(found, power):
                found = power
        return found


def order_of(ratios: Mapping[sp.Symbol, float]) -> Order:
    """Return the order of powers for widths with known ratios.

    A width may shrink while others grow, such as the head width if there are more heads. Widths
    that grow count as large.
    """
    logs = {s: math.log(r) for s, r in ratios.items() if s != DEPTH}
    most = max(logs.values(), default=0.0)
    most = most if most > 0 else min(logs.values(), default=0.0)
    return Order({s: log / most for s, log in logs.items()} if len(logs) > 1 else {})


def degrees(power: Power) -> tuple[Any, Any]:
    """Return (degree in the width, degree in the depth).

    The first is the sum of the degrees in all widths.
    """
    return Order().degrees(power)


def width_symbols(ratios: Iterable[Any]) -> dict[Any, Power]:
    """Return {ratio: its power}, which is 1 for a ratio of 1 and a symbol for any other ratio.

    The symbol is ``n`` if there is a single ratio, and otherwise ``n_1``, ``n_2``, ... in ascending
    order.
    """
    others = sorted({r for r in ratios if r != 1})
    if len(others) == 1:
        return {sp.S.One: ONE, others[0]: WIDTH}
    named = {r: sp.Symbol(f"n_{i}", positive=True) for i, r in enumerate(others, 1)}
    return {sp.S.One: ONE, **named}


def value(power: Power, ratios: Mapping[sp.Symbol, Any]) -> Any:
    """Return a power as a float if the ratios of all its symbols are known, otherwise unchanged."""
    found = sp.sympify(power).subs(dict(ratios))
    return found if found.free_symbols else float(found)
