"""Sizes as powers of width and depth: products of symbols, compared where these are large.

A symbol is the ratio of an extent of the larger network to that of the base. All symbols of widths
go to infinity together, so that the degree of a product decides; where degrees of width are equal,
that of depth does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sympy as sp

Power = Any  # a SymPy product of powers of positive symbols; 0 is smaller than all

WIDTH = sp.Symbol("n", positive=True)
DEPTH = sp.Symbol("L", positive=True)
ONE = sp.S.One
ZERO = sp.S.Zero
HALF = sp.Rational(1, 2)


def degrees(power: Power) -> tuple[Any, Any]:
    """(degree in the width, degree in the depth) of a product of powers."""
    powers = sp.sympify(power).as_powers_dict()
    depth = sp.Rational(powers.pop(DEPTH, 0))
    return sum((sp.Rational(e) for base, e in powers.items() if base.is_Symbol), ZERO), depth


def grows(power: Power) -> bool:
    """Whether a number of channels grows with the width."""
    return power != 1 and degrees(power)[0] > 0


def larger(*powers: Power) -> Power:
    """The largest at large width; the first of those of equal degrees; zeros count for nothing."""
    found = ZERO
    for power in powers:
        if power != 0 and (found == 0 or degrees(power) > degrees(found)):
            found = power
    return found


def smaller(one: Power, two: Power) -> Power:
    """The smaller of two at large width; the first where degrees are equal."""
    return two if degrees(two) < degrees(one) else one


def width_symbols(ratios: Iterable[Any]) -> dict[Any, Power]:
    """{ratio: its power}: 1 for the ratio 1, a symbol each for others.

    The symbol is ``n`` where there is one ratio, else ``n_1``, ``n_2`` ... from the smallest.
    """
    others = sorted({r for r in ratios if r != 1})
    if len(others) == 1:
        return {sp.S.One: ONE, others[0]: WIDTH}
    named = {r: sp.Symbol(f"n_{i}", positive=True) for i, r in enumerate(others, 1)}
    return {sp.S.One: ONE, **named}


def value(power: Power, ratios: Mapping[sp.Symbol, Any]) -> Any:
    """A float where the ratios of all symbols are known, else the product itself."""
    found = sp.sympify(power).subs(dict(ratios))
    return found if found.free_symbols else float(found)
