"""Enclosures of a smooth expression and its derivatives on an interval."""

from __future__ import annotations

import math
import sys
from typing import Any

import sympy as sp

from ...fields.expressions import CORNERED, rational
from ...fields.jets import Jet
from ...fields.programs import Derivable
from ...foundation.errors import KcalcError
from .intervals import Jets, Range
from .ranges import ALL, Interval, above, below

ORDER = 2  # the highest derivative that is bounded
_CHEAPEST, _DEAREST = 10, 50  # steps charged per evaluation, and the most that is added
_JETS = Jets(ORDER + 1)


class SmoothPiece:
    """A smooth expression in one symbol on an interval.

    ``steps`` counts the operations. No enclosures are known on an infinite interval.
    """

    def __init__(self, expr: sp.Expr, symbol: sp.Symbol, low: float, high: float) -> None:
        self.low, self.high = low, high
        self.expr = rational(expr)
        self.is_cornered = self.expr.has(*CORNERED)
        self.steps = 0
        self._known: dict[tuple[float, float], list[Interval]] = {}
        try:
            self._program: Any = Derivable([self.expr], symbol)
        except KcalcError:  # nothing is known about one of its functions
            self._program = None

    def derivatives(self, a: float, b: float) -> list[Interval]:
        """Return enclosures of f, f', f'' and f''' on [a, b], or ALL if nothing is known."""
        from flint import arb

        if (a, b) not in self._known:
            found = [ALL] * (ORDER + 2)
            if self._program is not None and math.isfinite(a) and math.isfinite(b):
                self.steps += _CHEAPEST + min(len(self._program.steps), _DEAREST)
                x = Jet.variable(Range(arb(a), arb(b)), ORDER + 1)
                (jet,) = self._program.run(x, _JETS)
                found = [_floats(c * math.factorial(k)) for k, c in enumerate(jet.coefficients)]
            self._known[a, b] = found
        return self._known[a, b]


def _floats(found: Range) -> Interval:
    """Return the ends of a range as floats, rounded outwards."""
    low, high = below(float(found.low)), above(float(found.high))
    return min(low, sys.float_info.max), max(high, -sys.float_info.max)
