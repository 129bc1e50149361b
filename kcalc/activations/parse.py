"""What a user may call an activation: a registered name, an Activation, or a SymPy expression in one symbol."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import sympy as sp

from kcalc.activations.base import Activation, X
from kcalc.activations.pieces import compile_pieces, resolve, switch_points
from kcalc.activations.polynomial import polynomial
from kcalc.activations.registry import by_name, same_function
from kcalc.errors import KcalcError
from kcalc.fields import SYMPY
from kcalc.quadrature import mesh, z_range

_PROBES = np.concatenate([np.linspace(-30, 30, 121), [-1e3, -1e2, 1e2, 1e3], np.geomspace(1e-6, 20, 15)])


def activation(spec: Any, name: str | None = None, kinks: Iterable[Any] | None = None) -> Activation:
    """The activation that ``spec`` describes.

    spec: a registered name or alias ("tanh", "silu"; any case), an :class:`Activation`, or a SymPy expression in exactly one symbol.
    name: what to call it.  kinks: points where it or a derivative jumps; found from Piecewise, Abs, Max, Min, Heaviside and sign if None.

    Raises KcalcError for unknown names (with the nearest ones), several symbols, functions that are not real and finite on the whole line,
    vanish, or have no Gaussian second moment at any reasonable q.
    """
    if isinstance(spec, Activation):
        return spec if name is None else replace(spec, name=name)
    if isinstance(spec, str):
        found = by_name(spec)
        return found if name is None else replace(found, name=name)
    if isinstance(spec, bool | int | float):
        spec = SYMPY.number(spec)
    if not isinstance(spec, sp.Expr):
        raise KcalcError(
            f"cannot make an activation of a {type(spec).__name__}: give a name, a SymPy expression in one symbol, or an Activation"
        )
    return _from_expression(spec, name, kinks)


def _from_expression(spec: sp.Expr, name: str | None, kinks: Iterable[Any] | None) -> Activation:
    symbols = spec.free_symbols
    if len(symbols) > 1:
        names = ", ".join(sorted(str(symbol) for symbol in symbols))
        raise KcalcError(f"an activation is a function of one symbol, but {str(spec)[:80]} has {names}: substitute numbers for the others")
    given: Any = spec
    expr = given.xreplace(dict.fromkeys(symbols, X))
    if expr.atoms(sp.Function) and any(isinstance(f, sp.core.function.AppliedUndef) for f in expr.atoms(sp.Function)):
        raise KcalcError(f"{str(spec)[:80]} contains an undefined function")
    if expr.has(sp.floor, sp.ceiling, sp.frac, sp.DiracDelta):
        raise KcalcError(f"{str(spec)[:80]} jumps infinitely often or is not a function: an activation has finitely many kinks")
    if expr == 0:
        raise KcalcError("the zero function is no activation: it has no C map")
    label = name or str(expr)[:40]
    if expr.is_polynomial(X):
        candidate: Activation = polynomial(expr, label)
    else:
        points = switch_points(expr) if kinks is None else tuple(sorted({SYMPY.number(k) for k in kinks}, key=float))
        candidate = Activation(label, expr, _confirmed(expr, points) if kinks is None else points)
    _check(candidate)
    known = same_function(candidate)
    if known is not None:
        return known if name is None else replace(known, name=name)
    return candidate


def _confirmed(expr: sp.Expr, points: tuple[sp.Expr, ...]) -> tuple[sp.Expr, ...]:
    """The candidate points where the expression really changes."""
    pieces = [resolve(expr, points, index) for index in range(len(points) + 1)]
    return tuple(k for k, left, right in zip(points, pieces, pieces[1:], strict=False) if left != right)


def _check(candidate: Activation) -> None:
    """Refuse what is not a real function with Gaussian moments."""
    with np.errstate(all="ignore"):
        probes = np.concatenate([_PROBES, [c + w * step for c, w in candidate.landmarks for step in (-1.0, 0.5)]])
        values = compile_pieces(candidate.pieces, candidate.kink_points)(probes)
        direct = compile_pieces((candidate.expr,), ())(probes)
        apart = np.abs(values - direct) > 1e-9 * (1 + np.abs(direct))
    differing = np.isfinite(direct) & apart & ~np.isin(probes, candidate.kink_points)
    if differing.any():
        raise KcalcError(
            f"activation {candidate.name!r} switches at a point that is not among its kinks (seen at x = {probes[differing][0]:.4g})"
        )
    if np.isnan(values).any():
        where = probes[np.isnan(values)][0]
        raise KcalcError(f"activation {candidate.name!r} has no real value at x = {where:g}: it must be real on the whole line")
    near = np.abs(probes) < 1
    if np.isinf(values[near]).any():
        raise KcalcError(f"activation {candidate.name!r} is infinite at x = {probes[near][np.isinf(values[near])][0]:g}")
    if not values[np.isfinite(values)].any():
        raise KcalcError(f"activation {candidate.name!r} vanishes: a constant activation must at least not be zero")
    _check_growth(candidate)
    z_range(candidate, 0.01)
    mesh(candidate, 16.0)


def _check_growth(candidate: Activation) -> None:
    """Refuse growth faster than exp(a x^2) for every a, as of exp(x^4): no Gaussian is narrow enough for it."""
    points = np.array([3.0, 5.0])
    with np.errstate(all="ignore"):
        for side in (1, -1):
            slow, fast = np.log(np.abs(candidate.numeric(0)(side * points))) / points**2
            if fast > 1 and fast > 1.2 * max(slow, 0.0):
                raise KcalcError(f"activation {candidate.name!r} grows too fast: E[phi(sqrt(q) z)^2] diverges for every q > 0")
