"""Declared behaviour of activations at infinity, for bounds on the whole line.

A catalogue entry declares where the tails of its activation begin. The tests check these
declarations against the activation's expression to 50 digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy as sp

from kcalc.fields.degrees import expandable, poly


@dataclass(frozen=True)
class Tail:
    """The behaviour of phi beyond ``start``: phi, phi' and phi'' are monotone with given limits."""

    start: Any
    value: Any
    slope: Any = 0
    curvature: Any = 0


@dataclass(frozen=True)
class Core:
    """An interval [low, high] on which phi, phi' and phi'' take all their values.

    If ``grows`` is True, this holds for phi' and phi'' only: phi grows beyond the interval.
    """

    low: Any
    high: Any
    grows: bool = False


Tails = tuple[Tail | None, Tail | None] | Core
"""The left and right tails (None for an undeclared tail), or a core."""


def tails(start: Any, left: tuple[Any, ...], right: tuple[Any, ...]) -> Tails:
    """Return the tails below -start and above start.

    ``left`` and ``right`` contain the limits of phi, phi' and phi''. The last two default to 0.
    """
    return Tail(-start, *left), Tail(start, *right)


def polynomial_tail(expr: sp.Expr, symbol: sp.Symbol, side: int) -> Tail | None:
    """Return the tail of a polynomial on one side (-1 or 1); None for other expressions.

    Beyond a bound for the zeros of the first derivative, no higher derivative has a zero either
    [Cauchy; Gauss and Lucas].
    """
    if not (expr.is_polynomial(symbol) and expandable(expr)):
        return None
    parts = [poly(sp.diff(expr, symbol, order), symbol) for order in range(3)]
    lead, *others = parts[1].all_coeffs()
    zeros = 2 + 2 * max((abs(c / lead) for c in others), default=0) if others else 0
    limits = [p.LC() * (sp.oo * side ** p.degree() if p.degree() > 0 else 1) for p in parts]
    return Tail(side * zeros, *limits)
