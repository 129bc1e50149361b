"""The kinks and derivatives of composed activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import sympy as sp

from kcalc.activations.pieces import X, crossings, real_roots
from kcalc.activations.piecewise_function import PiecewiseFunction
from kcalc.fields import SYMPY
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.expectations.quadrature import Array

_FLAT = np.linspace(-30.0, 30.0, 601)


def chain_rule(
    outer: PiecewiseFunction, inner: PiecewiseFunction, n: int
) -> Callable[[Array], Array]:
    """Return the derivative of order n <= 3 of outer(inner(x)), by Faa di Bruno's formula."""
    f = [outer.numeric(k) for k in range(n + 1)]
    g = [inner.numeric(k) for k in range(n + 1)]

    def values(x: Array) -> Array:
        inside = g[0](x)
        if n == 0:
            return f[0](inside)
        d = g[1](x)
        if n == 1:
            return f[1](inside) * d
        if n == 2:
            return f[2](inside) * d**2 + f[1](inside) * g[2](x)
        return f[3](inside) * d**3 + 3 * f[2](inside) * d * g[2](x) + f[1](inside) * g[3](x)

    return values


def _preimages(inner: PiecewiseFunction, level: sp.Expr) -> list[Any]:
    """Return the points where ``inner`` crosses ``level``."""
    if inner.expr.is_polynomial(X):
        return real_roots(inner.expr - level)
    value, target = inner.numeric(0), float(level)
    return [SYMPY.number(point) for point in crossings(lambda x: value(x) - target)]


def composed_kinks(outer: PiecewiseFunction, inner: PiecewiseFunction) -> tuple[sp.Expr, ...]:
    """Return the sorted kinks of outer(inner(x)).

    Raises KcalcError if the value of the composition is undefined on an interval.
    """
    points = list(inner.kinks)
    for level, jump in zip(outer.kinks, outer.jump_sizes(0), strict=True):
        points += _preimages(inner, level)
        if jump and np.any(np.convolve(inner.numeric(0)(_FLAT) == float(level), [1, 1]) > 1):
            raise KcalcError(
                f"{inner.name} has the constant value {level} on an interval, and {outer.name} "
                f"jumps at {level}, so the composition has no defined value on that interval"
            )
    kinks: list[sp.Expr] = []
    for point in sorted(points, key=float):
        if not kinks or abs(float(point - kinks[-1])) > 1e-14 * (1 + abs(float(point))):
            kinks.append(point)
    return tuple(kinks)
