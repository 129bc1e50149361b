"""Elementwise operations as SymPy expressions of their inputs.

Consecutive operations combine into one activation, or into terms of a sum or factors of a product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp

from ..activations import Activation, X, activation, celu, names
from ..activations.registry import entered
from ..fields.degrees import check_degree, expandable
from ..foundation.errors import KcalcError
from .trace import Held

# significant digits to which a literal must match a decimal number to be replaced by it
SHORT = 7
LARGEST = 400  # operations allowed in one expression
SINGLE = 3e-7  # relative change from rounding a few literals to single precision
PROBES = np.linspace(-7, 7, 57)
_SELU_SCALE = sp.Float("1.0507009873554804934193349852946", 32)
_SELU_ALPHA = sp.Float("1.6732632423543772848170429916717", 32)
_ROOTS = [sp.sqrt(n) for n in (2, 3, sp.pi, 2 * sp.pi, sp.pi / 2)]
_FAMOUS = [
    *_ROOTS,
    *(1 / root for root in _ROOTS),
    2 / sp.sqrt(sp.pi),
    sp.pi,
    2 * sp.pi,
    sp.pi / 2,
    1 / sp.pi,
    2 / sp.pi,
    sp.E,
    sp.log(2),
    1 / sp.log(2),
    _SELU_SCALE,
    _SELU_ALPHA,
    _SELU_SCALE * _SELU_ALPHA,
    *(sp.Rational(n, d) for d in (3, 6, 7, 9, 12) for n in range(1, d)),
]
FAMOUS = tuple((float(value), value) for value in _FAMOUS)


class Still(sp.Function):
    """The identity function with gradient 0 in backpropagation."""

    is_real = True

    @classmethod
    def eval(cls, value: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the argument itself if it is a number or already stopped."""
        return value if value.is_number or isinstance(value, Still) else None


def released(expr: Any) -> Any:
    """Return an expression without its gradient stops."""
    return expr.replace(Still, lambda inner: inner)


def slope_of(expr: Any) -> Any:
    """Return the derivative that backpropagation computes, which treats stops as constants."""
    stops = {stop: sp.Dummy(real=True) for stop in expr.atoms(Still)}
    outer = [stop for stop in stops if not any(stop in s.args[0].atoms(Still) for s in stops)]
    derivative = sp.diff(expr.xreplace({stop: stops[stop] for stop in outer}), X)
    return released(derivative.xreplace({stops[stop]: stop for stop in outer}))


@dataclass(frozen=True)
class Unary:
    """An expression in X, where X is the output of node ``source``.

    If ``source`` is None, the expression is a number. ``home``: the label for a node that is made
    from the expression.
    """

    source: str | None
    expr: Any
    home: str


@dataclass(frozen=True, eq=False)
class Constant:
    """An array that depends on no input."""

    held: Held

    @property
    def number(self) -> Any:
        """Return the common value of the entries, or None if they differ or the array is empty."""
        value = self.held.value
        if value.size == 0 or not (value == value.flat[0]).all():
            return None
        return exact_number(value.flat[0].item(), value.dtype)

    def value_axes(self, shape: Sequence[int]) -> set[int]:
        """Return the axes of ``shape`` along which the array varies if broadcast to it."""
        mine = self.held.value.shape
        padded = (1,) * (len(shape) - len(mine)) + tuple(mine)
        return {axis for axis, size in enumerate(padded) if size != 1}

    def along(self, shape: Sequence[int], axis: int | None) -> bool:
        """Whether the array, broadcast to ``shape``, is constant along all axes except ``axis``."""
        mine = self.held.value.shape
        if axis is None or len(mine) > len(shape):
            return False
        padded = (1,) * (len(shape) - len(mine)) + tuple(mine)
        return all(k == 1 or i == axis for i, k in enumerate(padded)) and padded[axis] in (
            1,
            shape[axis],
        )


@dataclass(frozen=True)
class Unusable:
    """An operation that kcalc could not read and that did not become a node."""

    reason: str


def exact_number(value: Any, dtype: Any = np.float64) -> Any:
    """Return the exact number that a literal clearly represents, else a float.

    Short decimals become rationals, even if they were rounded to single precision. Rounded values
    of sqrt(2), pi and similar constants become these constants.
    """
    if isinstance(value, bool | int):
        return sp.Integer(int(value))
    number = float(value)
    if not math.isfinite(number):
        raise KcalcError(f"the constant {value} in the model is not finite")
    single = np.dtype(dtype).itemsize <= 4 if np.issubdtype(np.dtype(dtype), np.floating) else False
    return _exact_number(number, single or (number != 0 and float(np.float32(number)) == number))


@lru_cache(maxsize=4096)
def _exact_number(number: float, single: bool) -> Any:
    for close, exact in FAMOUS:
        for sign in (1, -1):
            if math.isclose(number, sign * close, rel_tol=1.3e-7 if single else 1e-15):
                return sign * exact
    texts = [repr(number)] + ([str(np.float32(number))] if single else [])
    for text in texts:
        if len(text.split("e")[0].replace("-", "").replace(".", "").strip("0")) <= SHORT:
            return sp.Rational(text)
    return sp.Float(number)


def simplified(expr: Any) -> Any:
    """Return an expression with literals replaced by the numbers that they represent."""
    if not isinstance(expr, sp.Basic):
        return exact_number(expr) if not isinstance(expr, bool) else sp.Integer(int(expr))
    floats = expr.atoms(sp.Float)
    return (
        expr.xreplace({f: exact_number(float(f)) for f in floats if f._prec <= 53})
        if floats
        else expr
    )


def as_number(number: Any) -> Any:
    """Return a SymPy number as a Python number."""
    return int(number) if number.is_Integer else float(number)


@lru_cache(maxsize=4096)
def recognised(expr: Any) -> Activation:
    """Return the activation for an expression in X.

    If it differs from a registered activation only by the rounding of literals to single precision,
    return the registered one.

    Raises: KcalcError if the expression is not an activation.
    """
    check_degree(expr)
    try:
        found = activation(expr)
    except KcalcError:
        short = sp.count_ops(expr) < 60 and expandable(expr)
        simpler = sp.simplify(expr) if short else expr
        if simpler == expr:
            raise
        found = activation(simpler)
    if found.name in names():
        return found
    if expr.has(sp.Float):
        return _registered(found) or _celu(found) or found
    other = found
    with suppress(KcalcError):  # over a common denominator exp(-x^2) may overflow
        other = activation(sp.gcd_terms(expr))  # x (t/2 + 1/2) is x (t + 1)/2
    return other if other.name in names() else _celu(found) or found


def _registered(phi: Activation) -> Activation | None:
    values = phi(PROBES)
    for known in entered():
        with np.errstate(all="ignore"):
            if np.allclose(known(PROBES), values, rtol=SINGLE, atol=SINGLE):
                return known
    return None


def _celu(phi: Activation) -> Activation | None:
    """Return ``celu(alpha)`` if phi equals it for some alpha, else None.

    Different frameworks define CELU by different expressions, so alpha is taken from the second
    derivative to the left of 0.
    """
    if phi.kinks != (0,) or phi.pieces[1] != X or not phi.pieces[0].has(sp.exp):
        return None
    bend: Any = sp.diff(phi.pieces[0], X, 2).subs(X, 0)
    if bend.is_positive is not True:
        return None
    family = celu(1 / bend)
    return family if sp.expand(phi.pieces[0] - family.pieces[0]) == 0 else None


def linear_factor(expr: Any) -> Any:
    """Return c if the expression is c X, else None."""
    c = expr.coeff(X, 1) if expr.is_Add or expr.is_Mul or expr == X else None
    return (
        c
        if c is not None and c.is_number and expandable(expr) and sp.expand(expr - c * X) == 0
        else None
    )


def is_affine(expr: Any) -> bool:
    """Whether the expression is c X + d."""
    return bool(expr.is_polynomial(X) and expandable(expr)) and int(sp.Poly(expr, X).degree()) <= 1


def combination(expr: Any, symbols: Sequence[sp.Symbol]) -> tuple[str, Any] | None:
    """Classify an expression in several symbols as a sum, a product or an extreme.

    Returns: ("sum", weights) for a homogeneous linear expression, ("product", factor) for a
    multiple of the product of all symbols, ("extreme", 1) for the maximum of two symbols,
    ("extreme", -1) for their minimum, and None for other expressions.
    """
    if not isinstance(expr, sp.Expr):
        return None
    if len(symbols) == 2 and expr in (sp.Max(*symbols), sp.Min(*symbols)):
        return "extreme", 1 if expr == sp.Max(*symbols) else -1
    if not expandable(expr):
        return None
    try:
        terms = sp.Poly(expr, *symbols).terms()
    except (sp.PolynomialError, sp.polys.polyerrors.CoercionFailed):
        return None
    if all(sum(powers) == 1 for powers, _ in terms):
        weights = {powers.index(1): c for powers, c in terms}
        return "sum", [weights.get(i, sp.Integer(0)) for i in range(len(symbols))]
    if len(terms) == 1 and all(p == 1 for p in terms[0][0]):
        return "product", terms[0][1]
    return None
