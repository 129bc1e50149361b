"""Estimate the cost of using an expression from a file as an activation.

The estimate is made before the expression is differentiated or evaluated.
"""

from __future__ import annotations

import cmath
from collections.abc import Callable, Sequence
from typing import Any

import sympy as sp

from ..activations import X
from ..fields.expressions import ELEMENTARY, Fold
from ..foundation.errors import KcalcError

MOST = 1500  # number of terms; each takes about half a millisecond
POINTS = (-30.0, -2.0, 0.3, 2.0, 30.0)
Sizes = tuple[int, int, int]
COMPLEX: dict[Any, Callable[..., complex]] = {
    **{getattr(sp, n): getattr(cmath, n) for n in ELEMENTARY if hasattr(cmath, n)},
    sp.Abs: lambda z: complex(abs(z)),
    sp.Pow: lambda a, b: a**b,
}


def check_effort(expr: Any, where: str) -> None:
    """Reject an expression if its first two derivatives have too many terms.

    Also reject expressions that have no real value at one of a few test points.

    Raises: KcalcError in both cases.
    """
    if sum(TermCounts()(expr)) > MOST:
        raise KcalcError(
            f"{where}: the expression is too complicated for an activation, because its "
            "derivatives have too many terms"
        )
    for point in POINTS:
        value = value_at(expr, point)
        if value is not None and abs(value.imag) > 1e-6 * abs(value):
            raise KcalcError(
                f"{where}: the expression has no real value at x = {point:g}, but an activation "
                "must be real on the whole line"
            )


class TermCounts(Fold[Sizes]):
    """The numbers of terms in an expression and in its first and second derivatives.

    The derivatives are counted before simplification.
    """

    def number(self, expr: Any) -> Sizes:
        return 1, int(bool(expr.free_symbols)), 0

    def sum(self, terms: Sequence[Any]) -> Sizes:
        return _together([self(term) for term in terms])

    def multiply(self, first: Sizes, second: Sizes) -> Sizes:
        return _product(first, second)

    def corner(self, kind: Any, *arguments: Any) -> Sizes:
        return self.sum(arguments) if kind in (sp.Max, sp.Min) else self.function(kind, *arguments)

    def condition(self, kind: Any, *arguments: Any) -> Sizes:
        return self.sum(arguments) if arguments else (1, 0, 0)

    def choice(self, rows: list[tuple[Any, Any]]) -> Sizes:
        s0, s1, s2 = _together([self.sum(row) for row in rows])
        return s0 + len(rows) ** 2 // 8, s1, s2

    def function(self, kind: Any, *arguments: Any) -> Sizes:
        s0, s1, s2 = self.sum(arguments)
        return (s0, s0 + s1, 2 * (s0 + s1) + s2) if s1 else (s0, 0, 0)


def _together(parts: list[Sizes]) -> Sizes:
    s0, s1, s2 = (sum(sizes) for sizes in zip(*parts, strict=True))
    return s0 + 1, s1, s2


def _product(f: Sizes, g: Sizes) -> Sizes:
    first = (f[1] + g[0] if f[1] else 0) + (f[0] + g[1] if g[1] else 0)
    second = (
        (f[2] + g[0] if f[2] else 0)
        + (f[0] + g[2] if g[2] else 0)
        + (2 * (f[1] + g[1]) if f[1] and g[1] else 0)
    )
    return f[0] + g[0], first, second


class PointValues(Fold[complex]):
    """Evaluates expressions at a point in double precision.

    Raises ArithmeticError, TypeError, ValueError or KeyError if a value overflows or a function has
    no entry in this module's tables.
    """

    def __init__(self, point: float) -> None:
        super().__init__(X)
        self.point = point

    def is_number(self, expr: Any) -> bool:
        return not expr.args

    def variable(self, expr: Any) -> complex:
        return complex(self.point)

    def number(self, expr: Any) -> complex:
        return complex(expr)

    def visit(self, expr: Any) -> complex:
        found = super().visit(expr)
        if not cmath.isfinite(found) and expr.args:
            raise OverflowError
        return found

    def function(self, kind: Any, *arguments: Any) -> complex:
        return complex(COMPLEX[kind](*map(self, arguments)))


def value_at(expr: Any, point: float) -> complex | None:
    """Return the value of an expression at a point, or None if it cannot be evaluated."""
    try:
        return PointValues(point)(expr)
    except (TypeError, ValueError, ArithmeticError, KeyError):
        return None
