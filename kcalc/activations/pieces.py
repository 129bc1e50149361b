"""A SymPy expression in one real symbol as smooth pieces between kinks, and its fast numeric form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import sympy as sp

from kcalc.errors import KcalcError
from kcalc.fields import SYMPY
from kcalc.quadrature import Array

X = sp.Symbol("x", real=True)
"""The one canonical symbol of every activation."""

_CORNERED = (sp.Piecewise, sp.Abs, sp.Max, sp.Min, sp.Heaviside, sp.sign)
_SPECIAL = (sp.erf, sp.erfc, sp.erfi, sp.gamma, sp.loggamma, sp.besselj, sp.Si, sp.Ci, sp.LambertW)


def switch_points(expr: sp.Expr) -> tuple[sp.Expr, ...]:
    """Sorted points where a Piecewise, Abs, Max, Min, Heaviside or sign in ``expr`` switches: the candidates for kinks."""
    points: set[sp.Expr] = set()
    for part in expr.atoms(*_CORNERED):
        for level in _switches(part):
            points.update(_real_roots(level))
    return tuple(sorted(points, key=float))


def _switches(part: sp.Basic) -> list[sp.Expr]:
    """The expressions whose zeros are where ``part`` switches."""
    if isinstance(part, sp.Piecewise):
        relations = {relation for _, condition in part.args for relation in condition.atoms(sp.core.relational.Relational)}  # type: ignore[misc]
        return [relation.lhs - relation.rhs for relation in relations]
    if isinstance(part, sp.Max | sp.Min):
        return [a - b for a, b in combinations(part.args, 2)]  # type: ignore[operator]
    return [part.args[0]]  # type: ignore[list-item]


def _real_roots(expr: sp.Expr) -> list[sp.Expr]:
    """The real zeros of ``expr`` in X, exact where SymPy finds them, else bracketed between samples."""
    if not expr.has(X):
        return []
    if expr.has(*_CORNERED):
        inner = switch_points(expr)
        roots = [root for index in range(len(inner) + 1) for root in _roots_between(resolve(expr, inner, index), inner, index)]
        return [*roots, *inner]
    if expr.is_polynomial(X):
        return list(sp.real_roots(sp.Poly(expr, X)))  # pyright: ignore[reportReturnType]
    return [SYMPY.number(root) for root in crossings(_compile(expr))]


def crossings(f: Callable[[Array], Array]) -> list[float]:
    """The zeros of f where it changes sign, and its isolated zeros on the sampling grid (|x| from 1e-6 to 1e3, and 0)."""
    from scipy.optimize import brentq

    side = np.geomspace(1e-6, 1e3, 3000)
    x = np.concatenate([-side[::-1], [0.0], side])
    heights = f(x)
    zero = heights == 0
    found = [float(point) for point in x[zero & ~np.roll(zero, 1) & ~np.roll(zero, -1)]]
    for i in np.nonzero(heights[:-1] * heights[1:] < 0)[0]:
        found.append(float(brentq(lambda point: float(f(np.array([point]))[0]), x[i], x[i + 1], xtol=1e-300, rtol=1e-15)))  # type: ignore[arg-type]
    return found


def _roots_between(expr: sp.Expr, points: Sequence[sp.Expr], index: int) -> list[sp.Expr]:
    low = float(points[index - 1]) if index else -np.inf
    high = float(points[index]) if index < len(points) else np.inf
    return [root for root in _real_roots(expr) if low < float(root) < high]


def _between(points: Sequence[sp.Expr], index: int) -> sp.Expr:
    """A point inside the index-th interval that ``points`` cut the line into."""
    if not points:
        return sp.Integer(0)
    if index == 0:
        return points[0] - 1
    if index == len(points):
        return points[-1] + 1
    return (points[index - 1] + points[index]) / 2


def resolve(expr: sp.Expr, points: Sequence[sp.Expr], index: int) -> sp.Expr:
    """The smooth expression that ``expr`` is on the index-th interval between ``points``."""
    inside = _between(points, index)

    def at(value: Any) -> float:
        return float(value.subs(X, inside))

    def chosen(*arguments: Any) -> sp.Expr:
        for value, condition in arguments:
            if condition == sp.true or condition.subs(X, inside) == sp.true:
                return value
        raise KcalcError(f"the activation is not defined at x = {sp.N(inside, 5)}")

    def step(low: Any) -> Callable[..., sp.Expr]:
        return lambda argument, *_: sp.Integer(1) if at(argument) > 0 else sp.Integer(low)

    for kind, choice in (
        (sp.Abs, lambda argument: argument if at(argument) > 0 else -argument),
        (sp.Max, lambda *arguments: max(arguments, key=at)),
        (sp.Min, lambda *arguments: min(arguments, key=at)),
        (sp.sign, step(-1)),
        (sp.Heaviside, step(0)),
        (sp.Piecewise, chosen),
    ):
        expr = expr.replace(kind, choice)  # type: ignore[assignment]
    return expr


def side_value(piece: sp.Expr, point: sp.Expr, side: str) -> sp.Expr:
    """The one-sided limit of a smooth piece at a kink."""
    value = piece.subs(X, point)
    return sp.limit(piece, X, point, side) if value.has(sp.nan, sp.zoo, sp.oo, -sp.oo) else value


def compile_pieces(pieces: Sequence[sp.Expr], kinks: Sequence[float]) -> Callable[[Array], Array]:
    """x -> the piece of its interval at x, vectorised; right-continuous at kinks.  Overflows are computed again in mpmath.

    Raises KcalcError for functions that have no numeric form.
    """
    compiled = [_compile(piece) for piece in pieces]
    if len(compiled) == 1:
        return compiled[0]
    edges = np.array(kinks, dtype=float)

    def values(x: Array) -> Array:
        x = np.asarray(x, dtype=float)
        if x.size == 0:
            return np.zeros_like(x)
        first, last = np.searchsorted(edges, (x.min(), x.max()), side="right")
        if first == last:
            return compiled[first](x)
        out = np.empty_like(x)
        which = np.searchsorted(edges, x, side="right")
        for index in range(first, last + 1):
            here = which == index
            out[here] = compiled[index](x[here])
        return out

    return values


def _compile(piece: sp.Expr) -> Callable[[Array], Array]:
    """A smooth expression as a NumPy function."""
    try:
        function = sp.lambdify([X], piece, modules=["scipy", "numpy"] if piece.has(*_SPECIAL) else "numpy", cse=True)
    except NotImplementedError as error:
        raise KcalcError(f"{piece} cannot be evaluated numerically") from error

    def values(x: Array) -> Array:
        x = np.asarray(x, dtype=float)
        with np.errstate(all="ignore"):
            out = _real(np.asarray(function(x)))
        out = np.array(np.broadcast_to(out, x.shape), dtype=float)
        broken = ~np.isfinite(out)
        if broken.any():
            out[broken] = [_exact_value(piece, point) for point in x[broken]]
        return out

    return values


def _real(values: Any) -> Any:
    return np.where(np.imag(values) == 0, np.real(values), np.nan) if np.iscomplexobj(values) else values


def _exact_value(piece: sp.Expr, point: float) -> float:
    """``piece`` at ``point`` without overflow in between; nan where it is not real."""
    if not np.isfinite(point):
        return float("nan")
    try:
        at: Any = piece.xreplace({X: sp.Float(point, 40)})
        value = at.evalf(30)
        return float(value) if value.is_real else (float("inf") if value == sp.oo else float("nan"))
    except (TypeError, ValueError, ZeroDivisionError):
        return float("nan")
    except OverflowError:
        return float("inf")
