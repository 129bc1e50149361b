"""The jumps of a function and its derivatives at kinks.

A jump is the difference of two one-sided limits. Rounding leaves a residue even if the function is
continuous. The residue depends on the last digits of the rounded numbers, which are the kink and
the float constants. A jump therefore counts only if it is larger than the amount by which it
changes when these numbers change by one unit in the last place. Expressions without floats are
evaluated with enough digits for any jump to count, however small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from kcalc.activations.pieces import X
from kcalc.foundation.errors import KcalcError, glimpse
from kcalc.foundation.process_state import alone, decimal_digits, lambdify
from kcalc.gaussian.expectations.quadrature import Array

_FEW = 20  # jumps are simplified if there are at most this many kinks
_DIGITS = 100
_MOST_BITS = 320
_DOUBLE = 53
_EXACT = 1e-60  # bounds the rounding error of limits in 100 digits, with cancellation
_SHORT = 30  # floats with at most this many bits, such as 0.5, count as exact
_GROWTH = 1.5  # values that grow by more than this towards a kink diverge
_ULPS = 16.0
_ROUNDED = 1e-13  # relative error of limits that come from SymPy
_ENTIRE = (
    *(sp.exp, sp.sin, sp.cos, sp.sinh, sp.cosh, sp.tanh, sp.sech, sp.atan, sp.asinh),
    *(sp.erf, sp.erfc, sp.erfi),
)
_DIFFERENTIATED = 1e-9  # relative error of derivatives from values
# functions known by their values: tolerance relative to the largest value for |x| <= 4
_SHARE = 0.05
_EPS = float(np.finfo(float).eps)


@alone
def side_value(piece: sp.Expr, point: sp.Expr, side: str) -> sp.Expr:
    """Return the one-sided limit of a smooth piece at a kink.

    Raises KcalcError if SymPy finds no limit.
    """
    value = piece.subs(X, point)
    if not value.has(sp.nan, sp.zoo, sp.oo, -sp.oo):
        return value
    try:
        return sp.limit(piece, X, point, side)
    except Exception as error:  # SymPy's limits fail in many ways
        raise KcalcError(f"{glimpse(piece)} has no limit at x = {sp.N(point, 6)}") from error


@alone
def exact_jumps(parts: Sequence[sp.Expr], kinks: Sequence[sp.Expr]) -> tuple[sp.Expr, ...]:
    """Return the right limit minus the left limit at each kink, given the smooth pieces."""
    jumps = (
        side_value(right, k, "+") - side_value(left, k, "-")
        for k, left, right in zip(kinks, parts, parts[1:], strict=False)
    )
    return tuple(sp.simplify(jump) if len(kinks) <= _FEW else jump for jump in jumps)


def rounded_jumps(parts: Sequence[sp.Expr], kinks: Sequence[sp.Expr]) -> tuple[float, ...]:
    """Return the jumps as floats, with rounding residues set to 0.

    Raises KcalcError if a one-sided limit is infinite.
    """
    with decimal_digits(_DIGITS):
        return tuple(
            0.0 if left == right else _jump(left, right, k)
            for k, left, right in zip(kinks, parts, parts[1:], strict=False)
        )


def _jump(left: sp.Expr, right: sp.Expr, kink: sp.Expr) -> float:
    bits = _bits(kink, (left, right))
    (below, its_doubt), (above, other_doubt) = (
        _limit(piece, kink, bits, side) for piece, side in ((left, -1), (right, 1))
    )
    jump = above - below
    # the two sides share the kink and may share constants, so their errors can cancel
    doubts = {k: its_doubt.get(k, 0) - other_doubt.get(k, 0) for k in its_doubt | other_doubt}
    doubt = _ULPS * sum(map(abs, doubts.values())) + _EXACT * max(abs(below), abs(above), 1)
    return float(jump) if abs(jump) > doubt else 0.0


def _bits(kink: sp.Expr, parts: Sequence[sp.Expr]) -> int:
    """Return the number of known bits of a kink: 53 if the kink or a piece contains doubles."""
    floats = _long_floats(kink)
    if not floats:
        return _MOST_BITS
    doubles = [number for number in floats if number._mpf_[3] <= _DOUBLE]
    if doubles or any(_long_floats(part) for part in parts):
        return _DOUBLE
    return min(number._prec for number in floats)


def _long_floats(expr: sp.Expr) -> list[Any]:
    """Return the floats in ``expr`` that have too many bits to count as exact."""
    floats: Any = expr.atoms(sp.Float)
    return sorted((one for one in floats if one._mpf_[3] > _SHORT), key=sp.default_sort_key)


def _limit(piece: sp.Expr, kink: sp.Expr, bits: int, side: int) -> tuple[Any, dict[Any, Any]]:
    """Return (one-sided limit, {rounded number: change in limit per unit in its last place})."""
    point = _point(kink)
    try:
        function, floats = _with_constants(piece)
        numbers = [mpmath.mpf(number._mpf_) for number in floats]
        value = mpmath.mpmathify(function(point, *numbers))
        if _diverges(lambda x: function(x, *numbers), point, side, bits):
            value = mpmath.inf
        changes = dict(_changes(function, point, (kink, bits), (numbers, floats)))
    except (NameError, TypeError, ValueError, ArithmeticError, NotImplementedError):
        found = _finite(side_value(piece, kink, "+" if side > 0 else "-"), kink)
        return found, {(kink, side): _ROUNDED * max(abs(found), 1)}
    _finite(mpmath.re(value), kink)
    return mpmath.re(value), {key: moved - value for key, moved in changes.items()}


@lru_cache(maxsize=1024)
def _with_constants(piece: sp.Expr) -> tuple[Callable[..., Any], tuple[sp.Float, ...]]:
    """Return the piece as an mpmath function of X and of the piece's floats, and these floats."""
    floats = _long_floats(piece)
    names = sp.symbols(f"_f:{len(floats)}")
    expr = piece.xreplace(dict(zip(floats, names, strict=True)))
    return lambdify([X, *names], expr, modules="mpmath"), tuple(floats)


def _diverges(values: Callable[[Any], Any], point: Any, side: int, bits: int) -> bool:
    """Whether the values diverge towards the kink, which is known to ``bits`` bits."""
    far, near = _towards(values, point, side, bits)
    return bool(near > _GROWTH * far)


def _distances(bits: int) -> tuple[int, int]:
    """Return the exponents (base 10) of two small distances from a kink, well above its error."""
    return (-8, -12) if bits <= _DOUBLE else (-20, -40)


def _towards(values: Callable[[Any], Any], point: Any, side: int, bits: int) -> tuple[Any, Any]:
    """Return a function's absolute values at the larger and the smaller distance from a kink."""
    far, near = (
        abs(values(point + side * (1 + abs(point)) * mpmath.mpf(10) ** power))
        for power in _distances(bits)
    )
    return far, near


def _point(kink: sp.Expr) -> Any:
    return mpmath.mpf(sp.Float(sp.N(kink, _DIGITS), _DIGITS)._mpf_)


def _changes(
    function: Callable[..., Any],
    point: Any,
    kink: tuple[sp.Expr, int],
    constants: tuple[Sequence[Any], Sequence[sp.Float]],
) -> Iterator[tuple[Any, Any]]:
    """Yield (rounded number, value after changing that number by one unit in the last place)."""
    numbers, floats = constants
    yield kink[0], function(point * (1 + mpmath.ldexp(1, -kink[1])), *numbers)
    for index, number in enumerate(floats):
        moved = list(numbers)
        moved[index] *= 1 + mpmath.ldexp(1, -number._prec)
        yield number, function(point, *moved)


def _finite(value: Any, kink: sp.Expr) -> float:
    try:
        number = float(value)
    except (TypeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise KcalcError(
            f"a derivative of the activation has no finite real limit at the kink x = "
            f"{sp.N(kink, 6)}"
        )
    return number


# --- infinite derivatives -------------------------------------------------------------------------


def may_be_rough(piece: sp.Expr) -> bool:
    """Whether a piece contains a function that may have infinite slope, such as a root."""
    powers = (p for p in piece.atoms(sp.Pow) if p.base.has(X) and not p.exp.is_integer)
    others: Any = piece.atoms(sp.Function)
    return any(powers) or any(f.has(X) and not isinstance(f, _ENTIRE) for f in others)


def steepness(parts: Sequence[sp.Expr], kinks: Sequence[sp.Expr]) -> tuple[float, ...]:
    """Return, for each kink k, the largest p for which a piece grows as |x - k|^-p, or 0."""
    with decimal_digits(_DIGITS):
        return tuple(
            max(_growth(left, k, -1), _growth(right, k, 1))
            for k, left, right in zip(kinks, parts, parts[1:], strict=False)
        )


def _growth(piece: sp.Expr, kink: sp.Expr, side: int) -> float:
    point, bits = _point(kink), _bits(kink, (piece,))
    try:
        function, floats = _with_constants(piece)
        numbers = [mpmath.mpf(number._mpf_) for number in floats]
        far, near = _towards(lambda x: function(x, *numbers), point, side, bits)
        if not near > _GROWTH * far:
            return 0.0
        first, second = _distances(bits)
        return float(mpmath.log10(near / far)) / (first - second)
    except (NameError, TypeError, ValueError, ArithmeticError, NotImplementedError):
        return 0.0


def beside(piece: sp.Expr, kink: sp.Expr, side: int, distances: Any) -> Array:
    """Return the values of a piece at kink + side * distances, accurate at any distance."""
    function, floats = _with_constants(piece)
    out = []
    for distance in np.asarray(distances, dtype=float).tolist():
        with decimal_digits(_DIGITS - min(0, math.floor(math.log10(distance)))):
            numbers = [mpmath.mpf(number._mpf_) for number in floats]
            x = mpmath.mpf(sp.Float(kink.evalf(mpmath.mp.dps), mpmath.mp.dps)._mpf_)
            out.append(float(mpmath.re(function(x + side * mpmath.mpf(distance), *numbers))))
    return np.array(out)


# --- functions given by values --------------------------------------------------------------


def sampled_jumps(profile: Any, n: int) -> tuple[float, ...]:
    """Return the jumps of phi^(n) at the kinks of a function known only through its values.

    Each one-sided limit is extrapolated from a point one step away, using the next derivative.
    Jumps that may be residues of rounding or numerical differentiation count as 0.
    """
    k = np.array(profile.kink_points)
    step = 1e-8 * (1 + np.abs(k))

    def beside(m: int, sign: int, distance: Array) -> Array:
        return profile.numeric(m)(k + sign * distance)

    below, above = (beside(n, s, step) - s * step * beside(n + 1, s, step) for s in (-1, 1))
    half = np.full(k.shape, 0.5)
    slopes = [np.abs(beside(n + 1, s, step)) for s in (-1, 1)]
    bends = [np.abs(beside(n + 1, s, 2 * step) - beside(n + 1, s, step)) for s in (-1, 1)]
    around = [np.abs(beside(m, s, d)) for m in range(n + 1) for s in (-1, 1) for d in (step, half)]
    size = _SHARE * np.abs(profile.numeric(0)(np.linspace(-4.0, 4.0, 65))).max()
    doubt = (
        (_DIFFERENTIATED if n else _ULPS * _EPS) * np.maximum(np.max(around, axis=0), size)
        + _ULPS * _EPS * np.abs(k) * np.max(slopes, axis=0)
        + step * np.max(bends, axis=0)
    )
    jumps = np.where(np.abs(above - below) > doubt, above - below, 0.0)
    return tuple(float(jump) for jump in jumps)
