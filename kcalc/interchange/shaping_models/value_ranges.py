"""The ranges of the values of elementwise functions, and what relies on the range of its input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp

from ...activations import Activation, X

NARROW = ("acos", "acosh", "asin", "atanh", "acoth", "erfinv", "loggamma", "polygamma")
STRETCH = np.linspace(-30.0, 30.0, 241)
FAR = (150.0, 300.0)
NEARLY_CLOSED = 1e-6  # the least value of a gate, in parts of its largest
STEEP = 1e6  # how much more than any power of use an exponential grows between these


# -- elementwise functions -------------------------------------------------------------------------


def sinks(expr: Any) -> Iterator[tuple[str, set[Any]]]:
    """(what it is, the symbols whose range it needs) of the parts of an expression."""
    for part in sp.preorder_traversal(expr):
        if isinstance(part, sp.log):
            yield "a logarithm", _needed(part.args[0])
        elif isinstance(part, sp.Pow) and part.base is not sp.E:
            base, power = part.as_base_exp()
            if power.is_number and power.is_negative:
                yield "a division", _needed(base)
            elif not power.is_number or power.is_integer is not True:
                yield "a root" if power.is_number else "a power", _needed(base)
        elif (name := type(part).__name__) in NARROW:
            yield f"the function {name}", _reached(part.args[-1], BOUNDED)


def _needed(expr: Any) -> set[Any]:
    """The symbols whose range keeps an expression positive; none of one that always is.

    An expression that cuts values off is a guard at the ends of their range, and no range itself.
    """
    cut = expr.has(sp.Piecewise, sp.Max, sp.Min)
    always = not cut and (expr.is_positive or _positive_everywhere(expr))
    return set() if always else _reached(expr, BOUNDED)


def _positive_everywhere(expr: Any) -> bool:
    """Whether an expression in one symbol is positive at all points that are tried."""
    if len(expr.free_symbols) != 1:
        return False
    (symbol,) = expr.free_symbols
    try:
        return all(_number(expr, {symbol: sp.Float(x)}) > 0 for x in STRETCH[::12])
    except (TypeError, ValueError, ArithmeticError):
        return False


def shown(expr: Any) -> set[Any]:
    """The symbols of whose range that of an expression is made.

    Squares and exponentials are positive whatever they are of.
    """
    return _reached(expr, (*BOUNDED, sp.Abs, sp.exp, sp.cosh), squares=False)


def _reached(expr: Any, closed: tuple[type, ...], squares: bool = True) -> set[Any]:
    """The symbols outside of some functions, and of squares unless these count."""
    if isinstance(expr, sp.Symbol):
        return {expr}
    squared = isinstance(expr, sp.Pow) and expr.exp.is_number and expr.exp.is_even
    if expr.is_number or expr.is_Boolean or isinstance(expr, closed) or (squared and not squares):
        return set()
    return set().union(*(_reached(part, closed, squares) for part in expr.args))


BOUNDED = (sp.tanh, sp.erf, sp.erfc, sp.sin, sp.cos, sp.atan, sp.sign)


def explodes(expr: Any, symbol: Any) -> bool:
    """Whether an expression grows as an exponential in one of its symbols."""
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


def multiplies(expr: Any, symbol: Any) -> bool:
    """Whether one symbol of an expression is a factor of others."""
    return any(
        isinstance(part, sp.Mul)
        and part.has(symbol)
        and any(str(other).startswith("y") for other in part.free_symbols - {symbol})
        for part in sp.preorder_traversal(expr)
    )


# -- activations -----------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def values_of(phi: Activation) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(phi(STRETCH), dtype=float)


@lru_cache(maxsize=1024)
def explosive(phi: Activation) -> bool:
    """Whether an activation grows as an exponential."""
    with np.errstate(all="ignore"):
        near, far = (np.abs(np.asarray(phi(np.array([x, -x])), dtype=float)) for x in FAR)
    return bool((~(far <= STEEP * np.maximum(near, 1.0)) & ~np.isnan(far)).any())


@lru_cache(maxsize=1024)
def power(phi: Activation) -> str:
    """What an activation does that relies on the range of its input; "" for nearly all."""
    if explosive(phi):
        return "an exponential"
    return next((why for why, inside in sinks(phi.expr) if X in inside), "")


def positive(phi: Activation) -> bool:
    """Whether an activation has no values below 0, and is not 0 in the middle, as relu is."""
    values = values_of(phi)
    return bool((values >= 0).all() and (values[np.abs(STRETCH) <= 1] > 0).all())


def is_gate(phi: Activation) -> bool:
    """Whether the values of an activation lie between 0 and a bound, as those of a sigmoid."""
    values = values_of(phi)
    return positive(phi) and bounded(phi) and bool(values.min() < NEARLY_CLOSED * values.max())


@lru_cache(maxsize=1024)
def bounded(phi: Activation) -> bool:
    """Whether an activation is bounded."""
    with np.errstate(all="ignore"):
        ends = np.abs(np.asarray(phi(np.array([-FAR[1], FAR[1]])), dtype=float))
    return bool((ends <= 1.01 * np.abs(values_of(phi)).max()).all())


def ranged(phi: Activation) -> bool:
    """Whether an activation gives outputs a range: it is positive, or has bounds on both sides.

    relu and its kin, with a half line where they are 0, do not count: they are hidden layers.
    """
    return positive(phi) or (bounded(phi) and bool(values_of(phi)[STRETCH < 0].any()))


def hands_on(phi: Activation) -> bool:
    """Whether an activation hands the values that it reads on, cut off at most."""
    values = values_of(phi)
    even = np.array_equal(values, values[::-1])
    return not even and all(
        piece.is_polynomial(X) and sp.Poly(piece, X).degree() <= 1 for piece in phi.pieces
    )
