"""Bounds on the size of expanded expressions, computed before any expansion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb, inf
from typing import Any

import sympy as sp

from ..foundation.errors import KcalcError
from .expressions import Fold

MOST_DEGREE = 200  # Gaussian moments of powers beyond 150 exceed double precision
MOST_POWERS = 10_000  # for powers of functions, as in sin(x)^2000
MOST_TERMS = 2000  # expressions with more terms are not expanded
Counts = tuple[float, float]


class Degrees(Fold[Counts]):
    """Bounds on the degrees of expressions, in their symbols and in functions of the symbols.

    The degrees of sums, products, powers (including noninteger powers), functions with corners and
    piecewise expressions follow from the degrees of their operands. Any other function, and any
    fraction, has degree 0 in the symbols and counts as degree 1 in functions. ``greatest`` is the
    largest degree of all subexpressions, including arguments of functions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.greatest: Counts = 0.0, 0.0

    def visit(self, expr: Any) -> Counts:
        found = super().visit(expr)
        self.greatest = _largest([self.greatest, found])
        return found

    def number(self, expr: Any) -> Counts:
        found = float(isinstance(expr, sp.Symbol))
        return found, found

    def sum(self, terms: Sequence[Any]) -> Counts:
        return _largest(map(self, terms))

    def multiply(self, first: Counts, second: Counts) -> Counts:
        return first[0] + second[0], first[1] + second[1]

    def power(self, base: Any, exponent: Any) -> Counts:
        (symbols, functions), size = self(base), _size(exponent)
        self(exponent)
        if exponent.is_negative:  # fractions are not expanded
            return 0.0, functions and functions * size
        return symbols and symbols * size, functions and functions * size

    def corner(self, kind: Any, *arguments: Any) -> Counts:
        found = self.sum(arguments)
        return (0.0, 1.0) if kind in (sp.sign, sp.Heaviside) else found

    def choice(self, rows: list[tuple[Any, Any]]) -> Counts:
        return _largest(self.sum(row) for row in rows)

    def function(self, kind: Any, *arguments: Any) -> Counts:
        for argument in arguments:
            self(argument)
        return 0.0, 1.0


def _largest(counts: Iterable[Counts]) -> Counts:
    symbols, functions = zip(*counts, strict=True)
    return max(symbols), max(functions)


def check_degree(expr: Any, degrees: Degrees | None = None) -> None:
    """Raise KcalcError if the degree of an expression, or of a subexpression, is too high.

    ``degrees`` contains bounds that are already known for subexpressions.
    """
    degrees = Degrees() if degrees is None else degrees
    degrees(expr)
    for found, most in zip(degrees.greatest, (MOST_DEGREE, MOST_POWERS), strict=True):
        if found > most:
            size = f"{found:.0f}" if found < 1e15 else "1e15 or more"
            raise KcalcError(
                f"the expression has a power of degree {size}, but the maximum is {most}, because "
                f"Gaussian moments of powers beyond {MOST_DEGREE} exceed double precision. Use a "
                "smaller exponent, or pass a Python function of a NumPy array"
            )


class Terms(Fold[float]):
    """An upper bound on the number of terms in expanded expressions."""

    def number(self, expr: Any) -> float:
        return 1.0

    def power(self, base: Any, exponent: Any) -> float:
        terms = self(base)
        if not (exponent.is_Integer and exponent.is_positive) or terms == 1:
            return 1.0
        if _size(exponent) * terms > 1e6:
            return inf
        return float(comb(int(exponent) + int(terms) - 1, int(exponent)))

    def function(self, kind: Any, *arguments: Any) -> float:
        """Return 1, or inf if an argument (which is expanded too) has too many terms."""
        return 1.0 if all(self(argument) <= MOST_TERMS for argument in arguments) else inf


def expandable(expr: Any) -> bool:
    """Whether an expression has at most ``MOST_TERMS`` terms after expansion."""
    return Terms()(expr) <= MOST_TERMS


class _Polynomials(Fold[Any]):
    """Combine polynomials by sums, products and powers."""

    def number(self, expr: Any) -> Any:
        return sp.Poly(expr, self.symbol)

    def power(self, base: Any, exponent: Any) -> Any:
        return self(base) ** int(exponent)


def poly(expr: Any, symbol: Any) -> sp.Poly:
    """Return a polynomial expression as a SymPy polynomial in one symbol.

    Powers of long sums are computed as powers of SymPy polynomials, because ``sp.Poly`` would first
    expand them term by term.
    """
    return sp.Poly(expr, symbol) if expandable(expr) else _Polynomials(symbol)(expr)


def _size(exponent: Any) -> float:
    """Return the absolute value of an exponent, or 1 if it is not a number."""
    if not exponent.is_number:
        return 1.0
    try:
        return abs(complex(exponent))
    except OverflowError:
        return inf
    except (TypeError, ValueError):
        return 1.0


__all__ = ["MOST_DEGREE", "Degrees", "check_degree", "expandable", "poly"]
