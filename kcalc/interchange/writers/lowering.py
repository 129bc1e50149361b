"""Traverse stable expressions. All writers share this code.

The traversal handles sums, products, powers, functions, and Piecewise expressions with guards.

A writer defines how to write each part of an expression (:class:`LanguageTarget`). If a value is
used only on an interval, a harmless x replaces any x outside the interval, where the value could
overflow or make gradients nan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import sympy as sp

from ...activations import X
from ...fields.expressions import Fold
from ...foundation.errors import KcalcError
from .stable import FUNCTIONS, Expm1, Log1p, compiled

V = TypeVar("V")
UNBOUNDED = (
    sp.exp,
    sp.log,
    sp.tan,
    sp.sinh,
    sp.cosh,
    sp.asin,
    sp.acos,
    sp.acosh,
    sp.atanh,
    Expm1,
    Log1p,
)
SAFE = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
SIGNS: dict[Any, str] = {
    sp.StrictLessThan: "<",
    sp.LessThan: "<=",
    sp.StrictGreaterThan: ">",
    sp.GreaterThan: ">=",
    sp.Equality: "==",
    sp.Unequality: "!=",
}
STEEP = 1e6


class LanguageTarget(Generic[V]):
    """Base class for target languages; each method writes one part of an expression.

    ``V`` is the type that represents a value.
    """

    def number(self, value: float) -> V:
        raise NotImplementedError

    def add(self, terms: list[tuple[int, V]]) -> V:
        """Write the sum of (sign, value) pairs."""
        raise NotImplementedError

    def multiply(self, coefficient: sp.Expr, upper: list[V], lower: list[V]) -> V:
        """Write coefficient * upper / lower."""
        raise NotImplementedError

    def power(self, base: V, exponent: float) -> V:
        raise NotImplementedError

    def exponential(self, base: float, exponent: V) -> V:
        """Write a number to the power of a value."""
        raise NotImplementedError

    def call(self, function: str, *arguments: V) -> V:
        """Write a call to a function, given by a value of ``FUNCTIONS`` or "relu"."""
        raise NotImplementedError

    def least(self, value: V, level: float) -> V:
        """Write the smaller of a value and a number."""
        raise NotImplementedError

    def compare(self, sign: str, left: V, right: V) -> V:
        raise NotImplementedError

    def combine(self, word: str, parts: list[V]) -> V:
        """Join conditions with "and" or "or"."""
        raise NotImplementedError

    def where(self, condition: V, yes: V, no: V) -> V:
        raise NotImplementedError

    def keep(self, value: V) -> V:
        """Store the value under a name, for repeated use."""
        raise NotImplementedError

    def value(self, value: V) -> float | None:
        """Return the number that a value equals, or None if it depends on x."""
        raise NotImplementedError


class Walk(Fold[V]):
    """Writes an expression in ``X`` with a target; ``x`` is the value of ``X``."""

    def __init__(self, target: LanguageTarget[V], x: V) -> None:
        super().__init__(X)
        self.target, self.x = target, x

    def __call__(self, expr: Any) -> V:
        """Write an expression without caching, because x changes inside guards."""
        return self.visit(expr)

    def is_number(self, expr: Any) -> bool:
        return expr.is_number

    def number(self, expr: Any) -> V:
        return self.target.number(float(expr))

    def variable(self, expr: Any) -> V:
        return self.x

    def sum(self, terms: Sequence[Any]) -> V:
        return self.target.add([self._signed(term) for term in ordered(sp.Add(*terms))])

    def _signed(self, term: Any) -> tuple[int, V]:
        number, _ = numeric_part(term)
        return (-1, self(-term)) if number.is_negative else (1, self(term))

    def product(self, factors: Sequence[Any]) -> V:
        number, rest = numeric_part(sp.Mul(*factors))
        upper: list[V] = []
        lower: list[V] = []
        for factor in sp.Mul.make_args(rest):
            base, exponent = factor.as_base_exp()
            if exponent.is_number and exponent.is_negative:
                lower.append(self(base**-exponent))
            else:
                upper.append(self(factor))
        return self.target.multiply(number, upper, lower)

    def power(self, base: Any, exponent: Any) -> V:
        to = self.target
        if base.is_number:
            return to.exponential(float(base), self(exponent))
        if not exponent.is_number:
            raise KcalcError(
                f"{str(base**exponent)[:60]} cannot be exported; a power must have a "
                "constant base or a constant exponent"
            )
        if exponent.is_negative:
            return to.multiply(sp.S.One, [], [self(base**-exponent)])
        return (
            to.call("sqrt", self(base))
            if exponent == sp.S.Half
            else to.power(self(base), float(exponent))
        )

    def function(self, kind: Any, *arguments: Any) -> V:
        return self.target.call(FUNCTIONS[kind], *map(self, arguments))

    # --- corners ----------------------------------------------------------------------------------

    def corner(self, kind: Any, *arguments: Any) -> V:
        to = self.target
        if kind in (sp.Max, sp.Min):
            return self._extreme(kind is sp.Max, arguments)
        u = to.keep(self(arguments[0]))
        below = to.compare("<" if slope(arguments[0]) >= 0 else "<=", u, to.number(0.0))
        if kind is sp.Abs:
            return to.where(below, to.multiply(-sp.S.One, [u], []), u)
        return self._pick(below, to.number(-1.0 if kind is sp.sign else 0.0), to.number(1.0))

    def _extreme(self, most: bool, arguments: Sequence[Any]) -> V:
        """Write Max or Min by comparison.

        At a tie, the gradient is that of one side, not the mean of both sides.
        """
        to = self.target
        parts = sorted(arguments, key=lambda part: (part.is_number, sp.default_sort_key(part)))
        if most and len(parts) == 2 and parts[1] == 0:
            return to.call("relu", self(parts[0]))
        out = self(parts[0])
        for part in parts[1:]:
            out, other = to.keep(out), to.keep(self(part))
            out = to.where(to.compare("<" if most else ">", out, other), other, out)
        return out

    def _pick(self, condition: V, yes: V, no: V) -> V:
        """Write ``where`` for a condition and two values.

        If both values are plain numbers, one is converted to the precision of x, which would
        otherwise be lost.
        """
        to = self.target
        if to.value(yes) is not None and to.value(no) is not None:
            zero = to.multiply(sp.Float(0), [self.x], [])
            yes = zero if to.value(yes) == 0 else to.add([(1, zero), (1, yes)])
        return to.where(condition, yes, no)

    def choice(self, rows: list[tuple[Any, Any]]) -> V:
        conditions = [self(condition) for _, condition in rows[:-1]]
        if rows[-1][1] != sp.true:
            raise KcalcError("a Piecewise must end with a row (value, True) to be exported")
        values = [self._guarded(rows, index, conditions) for index in range(len(rows))]
        out = values[-1]
        for condition, value in zip(conditions[::-1], values[-2::-1], strict=True):
            out = self._pick(condition, value, out)
        return out

    def condition(self, kind: Any, *arguments: Any) -> V:
        if kind in (sp.And, sp.Or):
            parts = sorted(arguments, key=sp.default_sort_key)
            return self.target.combine("and" if kind is sp.And else "or", list(map(self, parts)))
        if kind not in SIGNS:
            raise KcalcError(
                f"the condition {str(kind(*arguments))[:60]} cannot be exported; use <, <=, >, >=, "
                f"and, or"
            )
        sign, (left, right) = SIGNS[kind], arguments
        rising = slope(left - right)
        # at the kink, use the right side
        if rising and sign not in ("==", "!="):
            sign = sign[0] if (sign[0] == "<") == (rising > 0) else sign[0] + "="
        return self.target.compare(sign, self(left), self(right))

    def _guarded(self, rows: list[Any], index: int, conditions: list[V]) -> V:
        """Write the value of a Piecewise row, with a harmless x wherever the row does not apply."""
        to, value, own = self.target, rows[index][0], self.x
        if not needs_guard(value):
            return self(value)
        level = upper_end(rows[0][1]) if index == 0 else None
        if level is not None and is_tame(value, level):
            x = to.least(own, level)
        else:
            safe = to.number(next((point for point in SAFE if is_tame(value, point)), 0.0))
            x = own if index == len(rows) - 1 else to.where(conditions[index], own, safe)
            for before in conditions[:index]:
                x = to.where(before, safe, x)
        self.x = to.keep(x)
        try:
            return self(value)
        finally:
            self.x = own


def ordered(expr: Any) -> list[Any]:
    """Return the terms of a sum in the usual order, but with a positive term first."""
    terms = expr.as_ordered_terms()
    first = next((i for i, term in enumerate(terms) if not numeric_part(term)[0].is_negative), 0)
    return [terms[first], *terms[:first], *terms[first + 1 :]]


def numeric_part(expr: Any) -> tuple[Any, Any]:
    """Return (number, rest) with expr = number * rest."""
    factors = sp.Mul.make_args(expr)
    return sp.Mul(*(f for f in factors if f.is_number)), sp.Mul(
        *(f for f in factors if not f.is_number)
    )


def slope(expr: Any) -> int:
    """Return the sign of the slope of a linear expression in X, or 0 for other expressions."""
    rate = sp.diff(expr, X) if expr.is_polynomial(X) else X
    return 0 if rate.has(X) or rate == 0 else 1 if rate > 0 else -1


def upper_end(condition: Any) -> float | None:
    """Return k if the condition is x < k, else None."""
    if not isinstance(condition, sp.StrictLessThan | sp.LessThan):
        return None
    left: Any = condition.lhs
    right: Any = condition.rhs
    return float(right) if left == X and right.is_number else None


def needs_guard(value: Any) -> bool:
    """Whether an expression can overflow or have an infinite slope at moderate x."""
    powers = (p for p in value.atoms(sp.Pow) if not p.base.is_number)
    steep = any(
        not (p.exp.is_Integer and p.exp.is_positive) and not p.base.is_positive for p in powers
    )
    return steep or value.has(*UNBOUNDED)


def is_tame(value: Any, point: float) -> bool:
    """Whether an expression and its slope are finite at a point."""
    with np.errstate(all="ignore"):
        near = np.asarray(
            compiled(value)(np.array([point - 1e-8, point, point + 1e-8])), dtype=float
        ) + np.zeros(3)
    return bool(np.isfinite(near).all() and abs(near[2] - near[0]) < 2e-8 * STEEP)
