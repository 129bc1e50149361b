"""Determine the range of elementwise functions, and whether they rely on their input's range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp

from ...activations import Activation, X
from ...fields.expressions import Fold

NARROW = ("acos", "acosh", "asin", "atanh", "acoth", "erfinv", "loggamma", "polygamma")
STRETCH = np.linspace(-30.0, 30.0, 241)
FAR = (150.0, 300.0)
NEARLY_CLOSED = 1e-6  # a gate's smallest value must be below this fraction of its largest value
STEEP = 1e6  # between these points, exponentials grow by more than this factor and powers by less


# -- elementwise functions -------------------------------------------------------------------------


class _Parts(Fold[None]):
    """Visits every part of an expression before its subexpressions."""

    def number(self, expr: Any) -> None:
        return None

    def add(self, first: None, second: None) -> None:
        return None

    multiply = add

    def function(self, kind: Any, *arguments: Any) -> None:
        for part in arguments:
            self(part)


class _Sinks(_Parts):
    """Collects in ``found`` the functions that rely on the range of their input."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, set[Any]]] = []

    def power(self, base: Any, exponent: Any) -> None:
        if not exponent.is_number:
            further = set() if base.is_number else _Reached(BOUNDED)(exponent)
            self.found.append(("a power", _needed(base) | further))
        elif exponent.is_negative:
            self.found.append(("a division", _needed(base)))
        elif exponent.is_integer is not True:
            self.found.append(("a root", _needed(base)))
        super().power(base, exponent)

    def function(self, kind: Any, *arguments: Any) -> None:
        if kind is sp.log:
            self.found.append(("a logarithm", _needed(arguments[0])))
        elif kind.__name__ in NARROW:
            found = _Reached(BOUNDED)(arguments[-1])
            self.found.append((f"the function {kind.__name__}", found))
        super().function(kind, *arguments)


def sinks(expr: Any) -> list[tuple[str, set[Any]]]:
    """Return (name, symbols) for each part of an expression that relies on the symbols' ranges."""
    collected = _Sinks()
    collected(expr)
    return collected.found


def _needed(expr: Any) -> set[Any]:
    """Return the symbols whose range keeps an expression positive; none if it is always positive.

    Expressions that clip values do not count as always positive.
    """
    cut = expr.has(sp.Piecewise, sp.Max, sp.Min)
    always = not cut and (expr.is_positive or _positive_everywhere(expr))
    return set() if always else _Reached(BOUNDED)(expr)


def _positive_everywhere(expr: Any) -> bool:
    """Whether an expression in one symbol is positive at all test points."""
    if len(expr.free_symbols) != 1:
        return False
    (symbol,) = expr.free_symbols
    try:
        return all(_number(expr, {symbol: sp.Float(x)}) > 0 for x in STRETCH[::12])
    except (TypeError, ValueError, ArithmeticError):
        return False


def shown(expr: Any) -> set[Any]:
    """Return the symbols whose range determines the range of an expression.

    Arguments of squares and exponentials do not count, because these are always positive.
    """
    return _Reached((*BOUNDED, sp.Abs, sp.exp, sp.cosh), squares=False)(expr)


class _Reached(Fold[set[Any]]):
    """Collects symbols that are not inside one of the functions ``closed``.

    ``squares``: whether to include symbols inside squares.
    """

    def __init__(self, closed: tuple[type, ...], squares: bool = True) -> None:
        super().__init__()
        self.closed, self.squares = closed, squares

    def number(self, expr: Any) -> set[Any]:
        return set(expr.free_symbols)

    def add(self, first: set[Any], second: set[Any]) -> set[Any]:
        return first | second

    multiply = add

    def power(self, base: Any, exponent: Any) -> set[Any]:
        if not self.squares and exponent.is_number and exponent.is_even:
            return set()
        return self(base) | self(exponent)

    def function(self, kind: Any, *arguments: Any) -> set[Any]:
        if issubclass(kind, self.closed):
            return set()
        return set().union(*map(self, arguments))


BOUNDED = (sp.tanh, sp.erf, sp.erfc, sp.sin, sp.cos, sp.atan, sp.sign)


def explodes(expr: Any, symbol: Any) -> bool:
    """Whether an expression grows exponentially in a symbol."""
    if not expr.has(sp.exp, sp.sinh, sp.cosh):
        return False
    others = dict.fromkeys(expr.free_symbols - {symbol}, sp.Float(1))
    try:
        return any(
            abs(_number(expr, others | {symbol: sp.Float(sign * FAR[1])}))
            > STEEP * max(1.0, abs(_number(expr, others | {symbol: sp.Float(sign * FAR[0])})))
            for sign in (1, -1)
        )
    except (TypeError, ValueError, ArithmeticError):
        return False


def _number(expr: Any, values: Mapping[Any, Any]) -> Any:
    return sp.Float(expr.xreplace(values).evalf())


class _Multiplied(_Parts):
    """Collects in ``found`` the symbols of every product."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[set[Any]] = []

    def product(self, factors: Sequence[Any]) -> None:
        self.found.append(set().union(*(factor.free_symbols for factor in factors)))
        super().product(factors)


def multiplies(expr: Any, symbol: Any) -> bool:
    """Whether a symbol of an expression is multiplied by other symbols."""
    products = _Multiplied()
    products(expr)
    return any(
        symbol in found and any(str(other).startswith("y") for other in found - {symbol})
        for found in products.found
    )


# -- activations -----------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def values_of(phi: Activation) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(phi(STRETCH), dtype=float)


@lru_cache(maxsize=1024)
def explosive(phi: Activation) -> bool:
    """Whether an activation grows exponentially."""
    with np.errstate(all="ignore"):
        near, far = (np.abs(np.asarray(phi(np.array([x, -x])), dtype=float)) for x in FAR)
    return bool((~(far <= STEEP * np.maximum(near, 1.0)) & ~np.isnan(far)).any())


@lru_cache(maxsize=1024)
def power(phi: Activation) -> str:
    """Return the name of a function in phi that relies on its input's range, or ""."""
    if explosive(phi):
        return "an exponential"
    return next((why for why, inside in sinks(phi.expr) if X in inside), "")


def positive(phi: Activation) -> bool:
    """Whether an activation has no negative values and is positive around 0, unlike ReLU."""
    values = values_of(phi)
    return bool((values >= 0).all() and (values[np.abs(STRETCH) <= 1] > 0).all())


def is_gate(phi: Activation) -> bool:
    """Whether an activation is bounded, positive and comes close to 0, like the sigmoid."""
    values = values_of(phi)
    return positive(phi) and bounded(phi) and bool(values.min() < NEARLY_CLOSED * values.max())


@lru_cache(maxsize=1024)
def bounded(phi: Activation) -> bool:
    """Whether an activation is bounded."""
    with np.errstate(all="ignore"):
        ends = np.abs(np.asarray(phi(np.array([-FAR[1], FAR[1]])), dtype=float))
    return bool((ends <= 1.01 * np.abs(values_of(phi)).max()).all())


def ranged(phi: Activation) -> bool:
    """Whether an activation can determine the range of an output.

    Such an activation is positive, or bounded on both sides. ReLU and similar functions, which are
    0 on a half line, do not count, because models use them in hidden layers.
    """
    return positive(phi) or (bounded(phi) and bool(values_of(phi)[STRETCH < 0].any()))


def hands_on(phi: Activation) -> bool:
    """Whether an activation returns its input, possibly clipped."""
    values = values_of(phi)
    even = np.array_equal(values, values[::-1])
    return not even and all(
        piece.is_polynomial(X) and sp.Poly(piece, X).degree() <= 1 for piece in phi.pieces
    )
