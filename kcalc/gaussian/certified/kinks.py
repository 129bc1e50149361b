"""Kinks as balls.

Symbolic kinks are exact. A float counts as exact only if that can be proven. Otherwise it is
refined, or an error is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import sympy as sp

from kcalc.fields.balls import Ball, enclose, working
from kcalc.fields.expressions import rational, switches
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.certified.evaluate import Smooth, compile_smooth

_ROOM = 2.0**-38  # relative tolerance between a numeric kink and the true one


@lru_cache(maxsize=512)
def certain_kinks(phi: Any) -> tuple[Callable[[], Ball], ...]:
    """Return the kinks of an activation as functions that return balls at the current precision.

    Raises KcalcError if the function jumps at a kink that was found numerically, because its exact
    position is unknown.
    """
    return tuple(
        _certain(phi, kink, pair)
        for kink, pair in zip(phi.kinks, pairwise(phi.pieces), strict=True)
    )


def _certain(phi: Any, kink: sp.Expr, sides: tuple[sp.Expr, sp.Expr]) -> Callable[[], Ball]:
    if not kink.has(sp.Float) or _switches_exactly(phi.expr, kink):
        return partial(enclose, kink)
    left, right = (compile_smooth(side) for side in sides)
    with working(200):
        difference = left.real(enclose(kink)) - right.real(enclose(kink))
        if difference.is_exact() and difference == 0:
            return partial(enclose, kink)
    root = Crossing(left, right, sides, float(kink))
    with working(100):
        if root.bracketed():
            return root
    raise KcalcError(
        f"{phi.name}: the kink near x = {float(kink):.6g} is known only to double precision, and "
        "the pieces on its two sides do not cross near it; pass the exact kink in kinks=[...]"
    )


def _switches_exactly(expr: sp.Expr, kink: sp.Expr) -> bool:
    """Whether some Piecewise, Heaviside or sign switches at the exact binary value of the kink."""
    point = rational(kink)
    for level in switches(expr):
        symbols = level.free_symbols
        if (
            len(symbols) == 1
            and level.is_polynomial()
            and rational(level).subs(symbols.pop(), point) == 0
        ):
            return True
    return False


class Crossing:
    """The point near ``start`` where two smooth pieces of a continuous function meet.

    It is found by the interval Newton method.
    """

    def __init__(
        self, left: Smooth, right: Smooth, sides: tuple[sp.Expr, sp.Expr], start: float
    ) -> None:
        self.left, self.right, self.start = left, right, start
        difference: Any = sides[0] - sides[1]
        self.slope = (
            compile_smooth(sp.diff(difference, difference.free_symbols.pop()))
            if difference.free_symbols
            else None
        )

    def _interval(self) -> Ball:
        from flint import arb

        return arb(self.start, _ROOM * max(abs(self.start), 1e-3))

    def _newton(self, around: Ball) -> Ball:
        from flint import arb

        middle = arb(around.mid())
        assert self.slope is not None
        return middle - (self.left.real(middle) - self.right.real(middle)) / self.slope.real(around)

    def bracketed(self) -> bool:
        """Whether the interval Newton step proves exactly one crossing near the start."""
        if self.slope is None:
            return False
        around = self._interval()
        step = self._newton(around)
        return bool(step.is_finite() and around.contains(step))

    def __call__(self) -> Ball:
        around = self._interval()
        while True:
            better = around.intersection(self._newton(around))
            if not better.rad() < around.rad() * 0.5:
                return better
            around = better
