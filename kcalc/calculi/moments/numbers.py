"""The two number systems of exact moments.

The systems are 128-bit balls, which neither overflow nor lose digits, and SymPy expressions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import sympy as sp

from ...fields import SYMPY
from ...fields.balls import ball_field, working

Number = Any
BITS = 128
READABLE = 10**9
_BALLS = ball_field(30)


class Numeric:
    """128-bit Arb balls, with 38 digits and unbounded exponents."""

    def number(self, value: Any) -> Number:
        """Convert a number to a ball."""
        return _BALLS.number(value)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Set the precision within a ``with`` block."""
        with working(BITS):
            yield


class Symbolic:
    """SymPy expressions."""

    def number(self, value: Any) -> Number:
        """Return a number as an exact expression, or as a float if its denominator is large."""
        if isinstance(value, Fraction) and value.denominator > READABLE:
            return sp.Float(float(value))
        return SYMPY.number(value)


def is_symbolic(*values: Any) -> bool:
    """Whether some value contains SymPy symbols."""
    return any(isinstance(v, sp.Basic) and bool(v.free_symbols) for v in values)
