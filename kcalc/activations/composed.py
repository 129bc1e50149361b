"""Activations of activations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy as sp

from kcalc.activations.base import Activation, X, checked
from kcalc.activations.jax_function import JaxFunction, differentiated, jax_function
from kcalc.activations.pieces import crossings, real_roots
from kcalc.fields import SYMPY
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.expectations.quadrature import Array

_FLAT = np.linspace(-30.0, 30.0, 601)


@dataclass(frozen=True, eq=False, repr=False)
class Composed(Activation):
    """outer(inner(x)); derivatives by Faa di Bruno from those of the two."""

    outer: Activation = field(default=None)  # type: ignore[assignment]
    inner: Activation = field(default=None)  # type: ignore[assignment]

    def jax_values(self, n: int) -> JaxFunction:
        outer, first = jax_function(self.outer), jax_function(self.inner)
        return differentiated(lambda x: outer(first(x)), n)

    def _compile(self, n: int) -> Callable[[Array], Array]:
        if n > 3:
            return super()._compile(n)
        f = [self.outer.numeric(k) for k in range(n + 1)]
        g = [self.inner.numeric(k) for k in range(n + 1)]

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


def _preimages(inner: Activation, level: sp.Expr) -> list[Any]:
    """The points where ``inner`` crosses ``level``."""
    if inner.expr.is_polynomial(X):
        return real_roots(inner.expr - level)
    value, target = inner.numeric(0), float(level)
    return [SYMPY.number(point) for point in crossings(lambda x: value(x) - target)]


def compose(outer: Activation, inner: Activation) -> Activation:
    """The activation outer(inner(x)).  Raises KcalcError unless both are activations."""
    inner = checked(inner)
    for phi in (outer, inner):
        phi.refuse_symbols("a composition")
    points = list(inner.kinks)
    for level, jump in zip(outer.kinks, outer.jump_sizes(0), strict=True):
        points += _preimages(inner, level)
        if jump and np.any(np.convolve(inner.numeric(0)(_FLAT) == float(level), [1, 1]) > 1):
            raise KcalcError(
                f"{inner.name} is constant {level} on an interval, and {outer.name} jumps there: "
                f"its value is not defined"
            )
    kinks: list[sp.Expr] = []
    for point in sorted(points, key=float):
        if not kinks or abs(float(point - kinks[-1])) > 1e-14 * (1 + abs(float(point))):
            kinks.append(point)
    degree = None if outer.degree is None or inner.degree is None else outer.degree * inner.degree
    expr: Any = outer.expr.xreplace({X: inner.expr})
    return Composed(
        f"{outer.name}({inner.name})", expr, tuple(kinks), degree, outer=outer, inner=inner
    )
