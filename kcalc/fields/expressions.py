"""The only traversal of SymPy expressions: a fold with one method per kind of subexpression.

A number system, a bound, an estimate or a code generator defines sums, products, powers and
functions in its methods. The fold computes the value of an expression from the values of its
subexpressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from math import inf, pi
from typing import Any, Generic, TypeVar

import sympy as sp
from sympy.core.relational import Relational

V = TypeVar("V")

CORNERED = (sp.Abs, sp.Max, sp.Min, sp.sign, sp.Heaviside, sp.Piecewise)
ELEMENTARY = (
    *("exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("asinh", "acosh", "atanh", "erf", "erfc"),
)
"""SymPy's names for the functions that files and frameworks use."""
RISING, FALLING, EVEN, OTHER = 1, -1, 0, None


@dataclass(frozen=True)
class Known:
    """Facts about a function of one variable that number systems need.

    ``name`` is the name of the corresponding method of Arb balls, and of the function in ``math``
    if it exists there. ``trend`` tells whether the function rises or falls on its real domain (for
    an even function, in |u|). ``bounds`` are proven bounds on its real values. ``cuts`` tells where
    its principal branch is not analytic, except at poles.
    """

    name: str
    trend: int | None = OTHER
    bounds: tuple[float, float] = (-inf, inf)
    cuts: str = ""


_RIGHT = pi / 2 + 1e-15  # slightly more than a right angle
FUNCTIONS: dict[Any, Known] = {
    sp.exp: Known("exp", RISING, (0, inf)),
    sp.log: Known("log", RISING, cuts="negative"),
    sp.sin: Known("sin", OTHER, (-1, 1)),
    sp.cos: Known("cos", OTHER, (-1, 1)),
    sp.sinc: Known("sinc", OTHER, (-1, 1)),
    **{kind: Known(kind.__name__) for kind in (sp.tan, sp.cot, sp.sec, sp.csc, sp.coth, sp.csch)},
    sp.sinh: Known("sinh", RISING),
    sp.cosh: Known("cosh", EVEN, (1, inf)),
    sp.tanh: Known("tanh", RISING, (-1, 1)),
    sp.sech: Known("sech", EVEN, (0, 1)),
    sp.asin: Known("asin", RISING, (-_RIGHT, _RIGHT), "real"),
    sp.acos: Known("acos", FALLING, (0, 2 * _RIGHT), "real"),
    sp.atan: Known("atan", RISING, (-_RIGHT, _RIGHT), "imaginary"),
    sp.asinh: Known("asinh", RISING, cuts="imaginary"),
    sp.acosh: Known("acosh", RISING, (0, inf), "below 1"),
    sp.atanh: Known("atanh", RISING, cuts="real"),
    sp.erf: Known("erf", RISING, (-1, 1)),
    sp.erfc: Known("erfc", FALLING, (0, 2)),
    sp.erfi: Known("erfi", RISING),
    sp.gamma: Known("gamma"),
}
"""The functions that have enclosures."""


class Fold(Generic[V]):
    """Evaluate expressions in one symbol, each distinct subexpression once.

    Subclasses have a method for each kind of subexpression: ``number``, ``variable``, ``sum``,
    ``product``, ``power``, ``function``, ``corner``, ``choice``. The methods receive expressions;
    ``self(expression)`` returns the value of an expression. If the fold has no symbol, numerical
    expressions are decomposed too.
    """

    def __init__(self, symbol: Any = None) -> None:
        self.symbol = symbol
        self.known: dict[Any, V] = {}

    def __call__(self, expr: Any) -> V:
        """Return the value of an expression."""
        if not expr.args:  # equal numbers of different kinds, such as 2 and 2.0, are distinct
            return self.visit(expr)
        if expr not in self.known:
            self.known[expr] = self.visit(expr)
        return self.known[expr]

    def is_number(self, expr: Any) -> bool:
        """Whether this fold treats an expression as a number."""
        return not expr.args if self.symbol is None else not expr.has(self.symbol)

    def visit(self, expr: Any) -> V:
        """Compute the value of an expression that is not cached."""
        kind, parts = type(expr), expr.args
        if expr == self.symbol:
            return self.variable(expr)
        if not isinstance(expr, sp.Expr):
            return self.condition(kind, *parts)
        if self.is_number(expr):
            return self.number(expr)
        if isinstance(expr, sp.Add | sp.Mul):
            return (self.sum if isinstance(expr, sp.Add) else self.product)(parts)
        if isinstance(expr, sp.Pow):
            return self.power(*parts)
        if isinstance(expr, sp.Piecewise):
            return self.choice([row.args for row in parts])
        return (self.corner if isinstance(expr, CORNERED) else self.function)(kind, *parts)

    def number(self, expr: Any) -> V:
        """Return the value of a number."""
        raise NotImplementedError

    def variable(self, expr: Any) -> V:
        """Return the value of the symbol."""
        return self.number(expr)

    def sum(self, terms: Sequence[Any]) -> V:
        """Return the value of a sum."""
        return reduce(self.add, map(self, terms))

    def product(self, factors: Sequence[Any]) -> V:
        """Return the value of a product."""
        return reduce(self.multiply, map(self, factors))

    def add(self, first: Any, second: Any) -> V:
        """Return the sum of two values."""
        return first + second

    def multiply(self, first: Any, second: Any) -> V:
        """Return the product of two values."""
        return first * second

    def power(self, base: Any, exponent: Any) -> V:
        """Return the value of a power."""
        return self.function(sp.Pow, base, exponent)

    def function(self, kind: Any, *arguments: Any) -> V:
        """Return the value of a function."""
        raise NotImplementedError

    def corner(self, kind: Any, *arguments: Any) -> V:
        """Return the value of Abs, sign, Heaviside (only its first argument counts), Max or Min."""
        return self.function(kind, *arguments)

    def condition(self, kind: Any, *arguments: Any) -> V:
        """Return the value of a comparison, or of And, Or or Not."""
        return self.function(kind, *arguments)

    def choice(self, rows: list[tuple[Any, Any]]) -> V:
        """Return the value of a Piecewise with rows (expression, condition)."""
        return self.function(sp.Piecewise, *(part for row in rows for part in row))


class Rewriting(Fold[Any]):
    """A fold that returns expressions unchanged unless a subclass overrides a method."""

    def number(self, expr: Any) -> Any:
        return expr

    def sum(self, terms: Sequence[Any]) -> Any:
        return sp.Add(*map(self, terms))

    def product(self, factors: Sequence[Any]) -> Any:
        return sp.Mul(*map(self, factors))

    def power(self, base: Any, exponent: Any) -> Any:
        return sp.Pow(self(base), self(exponent))

    def function(self, kind: Any, *arguments: Any) -> Any:
        return kind(*map(self, arguments))

    def choice(self, rows: list[tuple[Any, Any]]) -> Any:
        return sp.Piecewise(*((self(value), when) for value, when in rows), evaluate=False)


def inside(function: Any) -> Any:
    """Return the argument of a function of one variable."""
    return function.args[0]


def switches(expr: Any) -> list[Any]:
    """Return the expressions at whose zeros a corner function in ``expr`` changes branch."""
    found: list[Any] = []
    for part in expr.atoms(*CORNERED):
        arguments: Any = part.args
        if isinstance(part, sp.Piecewise):
            comparisons = {r for _, when in arguments for r in when.atoms(Relational)}
            found += [comparison.lhs - comparison.rhs for comparison in comparisons]
        elif isinstance(part, sp.Max | sp.Min):
            found += [a - b for a, b in combinations(arguments, 2)]
        else:
            found.append(arguments[0])
    return found


def factors(expr: Any) -> Sequence[Any]:
    """Return the expressions whose zeros make a product or power zero: the factors, or the base."""
    if isinstance(expr, sp.Mul):
        return expr.args
    return expr.args[:1] if isinstance(expr, sp.Pow) else (expr,)


def rational(expr: Any) -> Any:
    """Return ``expr`` with floats replaced by exact fractions."""
    return expr.xreplace({number: sp.Rational(number) for number in expr.atoms(sp.Float)})
