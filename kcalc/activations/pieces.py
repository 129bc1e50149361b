"""A SymPy expression in one real symbol as smooth pieces between kinks, and its fast numeric form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sympy as sp

from kcalc.errors import KcalcError
from kcalc.quadrature import Array

X = sp.Symbol("x", real=True)
"""The one canonical symbol of every activation."""

_CORNERED = (sp.Abs, sp.Max, sp.Min, sp.Heaviside, sp.sign)
_SPECIAL = (sp.erf, sp.erfc, sp.erfi, sp.gamma, sp.loggamma, sp.besselj, sp.Si, sp.Ci, sp.LambertW)


def piecewise(expr: sp.Expr) -> sp.Expr:
    """``expr`` with Abs, Max, Min, Heaviside and sign written as Piecewise."""
    return expr.rewrite(sp.Piecewise) if expr.has(*_CORNERED) else expr  # type: ignore[return-value]


def switch_points(expr: sp.Expr) -> tuple[sp.Expr, ...]:
    """Sorted points where a condition of ``expr`` changes: the candidates for kinks.

    Raises KcalcError where a condition cannot be solved (declare kinks=[...] then).
    """
    points: set[sp.Expr] = set()
    for part in piecewise(expr).atoms(sp.Piecewise):
        for _, condition in part.args:  # type: ignore[misc]
            for relation in condition.atoms(sp.core.relational.Relational):
                points.update(_real_roots(relation.lhs - relation.rhs))
    return tuple(sorted(points, key=float))


def _real_roots(expr: sp.Expr) -> list[sp.Expr]:
    """The real zeros of ``expr`` in X."""
    if not expr.has(X):
        return []
    if expr.has(*_CORNERED, sp.Piecewise):
        inner = switch_points(expr)
        roots = [root for index in range(len(inner) + 1) for root in _roots_between(resolve(expr, inner, index), inner, index)]
        return [*roots, *inner]
    try:
        if expr.is_polynomial(X):
            return [sp.simplify(root) for root in sp.real_roots(sp.Poly(expr, X))]
        solution = sp.solveset(expr, X, sp.S.Reals)
    except (NotImplementedError, sp.PolynomialError, ValueError, TypeError):
        solution = None
    if isinstance(solution, sp.FiniteSet):
        return [root for root in solution if root.is_real]
    if solution is sp.S.EmptySet:
        return []
    raise KcalcError(f"cannot solve {expr} = 0 for the points where the activation switches: give them as kinks=[...]")


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

    def chosen(*arguments: Any) -> sp.Expr:
        for value, condition in arguments:
            if condition == sp.true or condition.subs(X, inside) == sp.true:
                return value
        raise KcalcError(f"the activation is not defined at x = {sp.N(inside, 5)}")

    return piecewise(expr).replace(sp.Piecewise, chosen)  # type: ignore[return-value]


def side_value(piece: sp.Expr, point: sp.Expr, side: str) -> sp.Expr:
    """The one-sided limit of a smooth piece at a kink."""
    value = piece.subs(X, point)
    return sp.limit(piece, X, point, side) if value.has(sp.nan, sp.zoo, sp.oo, -sp.oo) else value


def compile_pieces(pieces: Sequence[sp.Expr], kinks: Sequence[float]) -> Callable[[Array], Array]:
    """x -> the piece of its interval at x, vectorised; right-continuous at kinks.  Overflows are computed again in mpmath."""
    special = any(piece.has(*_SPECIAL) for piece in pieces)
    compiled = sp.lambdify([X], list(pieces), modules=["scipy", "numpy"] if special else "numpy", cse=True)
    edges = np.array(kinks, dtype=float)

    def values(x: Array) -> Array:
        x = np.asarray(x, dtype=float)
        with np.errstate(all="ignore"):
            parts = compiled(x)
        if edges.size:
            out = np.choose(np.searchsorted(edges, x, side="right"), [np.broadcast_to(_real(part), x.shape) for part in parts])
        else:
            out = np.array(np.broadcast_to(_real(parts[0]), x.shape))
        broken = ~np.isfinite(out)
        if broken.any():
            out = np.array(out)
            out[broken] = [_exact_value(pieces[np.searchsorted(edges, point, side="right")], point) for point in x[broken]]
        return out

    return values


def _real(values: Any) -> Any:
    return np.where(np.imag(values) == 0, np.real(values), np.nan) if np.iscomplexobj(values) else values


def _exact_value(piece: sp.Expr, point: float) -> float:
    """``piece`` at ``point`` without overflow in between; nan where it is not real."""
    if not np.isfinite(point):
        return float("nan")
    try:
        value = piece.xreplace({X: sp.Float(point, 40)}).evalf(30)
        return float(value) if value.is_real else (float("inf") if value == sp.oo else float("nan"))
    except (TypeError, ValueError, ZeroDivisionError):
        return float("nan")
    except OverflowError:
        return float("inf")
