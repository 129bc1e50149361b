"""The kinks of an activation at which phi or one of its derivatives jumps.

The decision is proven, never guessed.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import sympy as sp

from kcalc.fields.balls import working
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.certified.evaluate import compile_smooth, symbol_of
from kcalc.gaussian.certified.kinks import Crossing, certain_kinks

_BITS = 400


@lru_cache(maxsize=512)
def jumping(phi: Any, order: int) -> tuple[bool, ...]:
    """Return, for each kink of phi's base in order, whether phi^(order) jumps there.

    Raises KcalcError if neither algebra nor 400-bit balls can decide.
    """
    base = phi.base
    pieces = [sp.diff(piece, symbol_of(piece), order) for piece in base.pieces]
    kinks = certain_kinks(base)
    return tuple(
        _jumps(base.name, left, right, kink, where, order)
        for (left, right), kink, where in zip(pairwise(pieces), base.kinks, kinks, strict=True)
    )


def _jumps(name: str, left: Any, right: Any, kink: sp.Expr, where: Any, order: int) -> bool:
    with working(_BITS):
        point = where()
        difference = compile_smooth(left).real(point) - compile_smooth(right).real(point)
        if difference.is_finite() and not difference.contains(0):
            return True
    if not difference.is_finite():
        raise KcalcError(
            f"{name}: derivative {order} is not finite at its kink {kink}, so its Gaussian "
            f"moments are not certified"
        )
    if difference == 0 or (order == 0 and isinstance(where, Crossing)):  # both sides meet there
        return False
    gap = _at(left, kink) - _at(right, kink)
    if gap.has(sp.Float) or sp.simplify(gap) != 0:
        raise KcalcError(f"{name}: it cannot be proven whether derivative {order} jumps at {kink}")
    return False


def _at(piece: Any, kink: sp.Expr) -> Any:
    return piece.subs(dict.fromkeys(piece.free_symbols, kink))


def continuous(phi: Any, order: int = 0) -> bool:
    """Whether phi, phi', ..., phi^(order) have no jumps."""
    return not any(any(jumping(phi, n)) for n in range(order + 1))
