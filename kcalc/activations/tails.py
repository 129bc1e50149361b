"""Declared behaviour of activations at infinity, for bounds on the whole line.

A catalogue entry states where its features end; that its expression agrees is tested to 50 digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy as sp

from kcalc.fields.degrees import expandable, poly


@dataclass(frozen=True)
class Tail:
    """Beyond ``start`` phi, phi' and phi'' are each monotone, and these are their limits."""

    start: Any
    value: Any
    slope: Any = 0
    curvature: Any = 0


@dataclass(frozen=True)
class Core:
    """All values of phi, phi' and phi'' are taken on [low, high], but phi ``grows`` beyond."""

    low: Any
    high: Any
    grows: bool = False


Tails = tuple[Tail | None, Tail | None] | Core
"""The tails on the left and on the right, None if none is declared; or a core."""


def tails(start: Any, left: tuple[Any, ...], right: tuple[Any, ...]) -> Tails:
    """Tails beyond -start and start with these limits of phi, phi' (0) and phi'' (0)."""
    return Tail(-start, *left), Tail(start, *right)


def polynomial_tail(expr: sp.Expr, symbol: sp.Symbol, side: int) -> Tail | None:
    """The tail of a polynomial on one side (-1 or 1), None for other expressions.

    No derivative has a zero beyond a bound of the zeros of the first [Cauchy; Gauss and Lucas].
    """
    if not (expr.is_polynomial(symbol) and expandable(expr)):
        return None
    parts = [poly(sp.diff(expr, symbol, order), symbol) for order in range(3)]
    lead, *others = parts[1].all_coeffs()
    zeros = 2 + 2 * max((abs(c / lead) for c in others), default=0) if others else 0
    limits = [p.LC() * (sp.oo * side ** p.degree() if p.degree() > 0 else 1) for p in parts]
    return Tail(side * zeros, *limits)
