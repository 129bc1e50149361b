"""Activations made of others: affine transformations, compositions, linear combinations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy as sp

from kcalc.activations.base import Activation
from kcalc.activations.pieces import X, crossings, real_roots
from kcalc.activations.transformation import Transformation, short
from kcalc.errors import KcalcError
from kcalc.fields import SYMPY, Field, Number
from kcalc.quadrature import Array

__all__ = ["Combination", "Composed", "Transformed", "combine", "compose", "transform"]

_FLAT = np.linspace(-30.0, 30.0, 601)


@dataclass(frozen=True, eq=False, repr=False)
class Transformed(Activation):
    """An affine transformation of ``original``; closed forms survive as long as the input is not shifted."""

    original: Activation = field(default=None)  # type: ignore[assignment]
    constants: Transformation = field(default=None)  # type: ignore[assignment]

    @property
    def base(self) -> Activation:
        return self.original

    @property
    def transformation(self) -> Transformation:
        return self.constants

    @property
    def closed_in_numpy(self) -> bool:  # type: ignore[override]
        return self.original.closed_in_numpy and self.constants.output_shift == self.constants.input_shift == 0

    def _find_jumps(self, n: int) -> tuple[float, ...]:
        """Those of the original, scaled: transformed kinks are rounded, so that the two sides would seem to jump."""
        a, scale = float(self.constants.input_scale), float(self.constants.output_scale)
        jumps = [scale * a**n * jump for jump in self.original.jump_sizes(n)]
        return tuple(jumps) if a > 0 else tuple(-jump for jump in reversed(jumps))

    def _compile(self, n: int) -> Callable[[Array], Array]:
        inner, t = self.original.numeric(n), self.constants
        a, b, scale, shift = float(t.input_scale), float(t.input_shift), float(t.output_scale), float(t.output_shift)
        factor = scale * a**n
        return (lambda x: factor * (inner(a * x + b) + shift)) if n == 0 else (lambda x: factor * inner(a * x + b))

    def _constants(self, number_field: Field) -> tuple[Number, Number, Number, Number]:
        """(a^2, a, scale, shift) in the field, |a| for the input scale where only its square counts."""
        a, scale, shift = (
            number_field.number(v) for v in (self.constants.input_scale, self.constants.output_scale, self.constants.output_shift)
        )
        return a * a, a, scale, shift

    def _unshifted(self) -> bool:
        return self.constants.input_shift == 0

    def _closed_mean(self, q: Number, field: Field) -> Number | None:
        square, _, scale, shift = self._constants(field)
        if not self._unshifted():
            return super()._closed_mean(q, field)
        inner = self.original._closed_mean(square * q, field)
        return None if inner is None else scale * (inner * 1 + shift)

    def _closed_mean_slope(self, q: Number, field: Field) -> Number | None:
        square, a, scale, _ = self._constants(field)
        if not self._unshifted():
            return super()._closed_mean_slope(q, field)
        inner = self.original._closed_mean_slope(square * q, field)
        return None if inner is None else scale * a * inner

    def _closed_second_moment(self, q: Number, field: Field) -> Number | None:
        square, _, scale, shift = self._constants(field)
        if not self._unshifted():
            return super()._closed_second_moment(q, field)
        inner = self.original._closed_second_moment(square * q, field)
        if inner is None or shift == 0:
            return None if inner is None else scale**2 * inner
        mean = self.original._closed_mean(square * q, field)
        return None if mean is None else scale**2 * (inner + 2 * shift * mean + shift**2)

    def _ratio(self, q1: Number, q2: Number, field: Field) -> tuple[Number, Number] | None:
        """(r, s) with Gamma/norm = r C_original + s, from output shifts."""
        square, _, _, shift = self._constants(field)
        first, second = (self.original._closed_second_moment(square * q, field) for q in (q1, q2))
        one, two = (self.original._closed_mean(square * q, field) for q in (q1, q2))
        if first is None or second is None or one is None or two is None:
            return None
        norm = field.sqrt((first + 2 * shift * one + shift**2) * (second + 2 * shift * two + shift**2))
        return field.sqrt(first * second) / norm, (shift * (one + two) + shift**2) / norm

    def _closed_gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number | None:
        square = self._constants(field)[0]
        inner = self.original._closed_gap(gap, square * q1, square * q2, field) if self._unshifted() else None
        if inner is None or self.constants.output_shift == 0:
            return inner
        ratio = self._ratio(q1, q2, field)
        return None if ratio is None else 1 - ratio[0] * (1 - inner) - ratio[1]

    def _closed_derivatives(self, gap: Number, q1: Number, q2: Number, field: Field) -> tuple[Number, Number] | None:
        square = self._constants(field)[0]
        inner = self.original._closed_derivatives(gap, square * q1, square * q2, field) if self._unshifted() else None
        if inner is None or self.constants.output_shift == 0:
            return inner
        ratio = self._ratio(q1, q2, field)
        return None if ratio is None else (ratio[0] * inner[0], ratio[0] * inner[1])


def transform(activation: Activation, constants: Transformation) -> Activation:
    """``activation`` under ``constants``; transformations of transformations are merged."""
    if constants.input_scale == 0 or constants.output_scale == 0:
        raise KcalcError("input_scale and output_scale must not be zero: the activation would be constant")
    for value in (constants.input_scale, constants.input_shift, constants.output_scale, constants.output_shift):
        if value.free_symbols:
            raise KcalcError(f"{value} is not a number: an activation's constants must be numbers")
        if not abs(value) < 1e150:
            raise KcalcError(f"{str(value)[:40]} is too large for a constant of an activation")
    before = activation.transformation
    base = activation.base
    if before is not None:
        constants = constants.after(before)
    if constants.is_identity:
        return base
    a, b, scale, shift = constants.input_scale, constants.input_shift, constants.output_scale, constants.output_shift
    kinks = sorted(((k - b) / a for k in base.kinks), key=float)
    return Transformed(
        name=constants.label(base.name),
        expr=scale * (base.expr.xreplace({X: a * X + b}) + shift),
        kinks=tuple(kinks),
        degree=base.degree if b == shift == 0 else None,
        original=base,
        constants=constants,
    )


@dataclass(frozen=True, eq=False, repr=False)
class Composed(Activation):
    """outer(inner(x)); derivatives by Faa di Bruno from those of the two."""

    outer: Activation = field(default=None)  # type: ignore[assignment]
    inner: Activation = field(default=None)  # type: ignore[assignment]

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


def _activation(phi: Any) -> Activation:
    if not isinstance(phi, Activation):
        raise KcalcError(f"{str(phi)[:60]!r} is not an activation: make one of it with kc.activation(...)")
    return phi


def _preimages(inner: Activation, level: sp.Expr) -> list[Any]:
    """The points where ``inner`` crosses ``level``."""
    if inner.expr.is_polynomial(X):
        return real_roots(inner.expr - level)
    value, target = inner.numeric(0), float(level)
    return [SYMPY.number(point) for point in crossings(lambda x: value(x) - target)]


def compose(outer: Activation, inner: Activation) -> Activation:
    """The activation outer(inner(x)).  Raises KcalcError unless both are activations."""
    inner = _activation(inner)
    points = list(inner.kinks)
    for level, jump in zip(outer.kinks, outer.jump_sizes(0), strict=True):
        points += _preimages(inner, level)
        if jump and np.any(np.convolve(inner.numeric(0)(_FLAT) == float(level), [1, 1]) > 1):
            raise KcalcError(f"{inner.name} is constant {level} on an interval, and {outer.name} jumps there: its value is not defined")
    kinks: list[sp.Expr] = []
    for point in sorted(points, key=float):
        if not kinks or abs(float(point - kinks[-1])) > 1e-14 * (1 + abs(float(point))):
            kinks.append(point)
    degree = None if outer.degree is None or inner.degree is None else outer.degree * inner.degree
    expr: Any = outer.expr.xreplace({X: inner.expr})
    return Composed(f"{outer.name}({inner.name})", expr, tuple(kinks), degree, outer=outer, inner=inner)


@dataclass(frozen=True, eq=False, repr=False)
class Combination(Activation):
    """sum_k coefficient_k phi_k(input_scale_k x)."""

    terms: tuple[tuple[sp.Expr, Activation, sp.Expr], ...] = ()

    def _compile(self, n: int) -> Callable[[Array], Array]:
        parts = [(float(c) * float(s) ** n, phi.numeric(n), float(s)) for c, phi, s in self.terms]
        return lambda x: np.sum([factor * function(scale * x) for factor, function, scale in parts], axis=0)


def combine(terms: Iterable[tuple[Any, Activation, Any]], name: str | None = None) -> Activation:
    """The activation sum_k coefficient_k phi_k(input_scale_k x) of (coefficient, activation, input scale) triples.

    Raises KcalcError for no terms, zero scales and constants that are not numbers.
    """
    try:
        triples = [(c, phi, s) for c, phi, s in terms]
    except (TypeError, ValueError) as error:
        raise KcalcError("combine takes triples (coefficient, activation, input_scale)") from error
    parts = tuple((SYMPY.number(c), _activation(phi), SYMPY.number(s)) for c, phi, s in triples)
    if not parts:
        raise KcalcError("combine needs at least one (coefficient, activation, input_scale)")
    if any(s == 0 or s.free_symbols or c.free_symbols for c, _, s in parts):
        raise KcalcError("combine needs numbers for coefficients and non-zero numbers for input scales")
    kinks = sorted({k / s for _, phi, s in parts for k in phi.kinks}, key=float)
    expr = sp.Add(*(c * phi.expr.xreplace({X: s * X}) for c, phi, s in parts))
    degrees = {phi.degree for _, phi, _ in parts}
    label = name or " + ".join(f"{short(c)}*{phi.name}" + ("" if s == 1 else f"[{short(s)}x]") for c, phi, s in parts)
    return Combination(label, expr, tuple(kinks), degrees.pop() if len(degrees) == 1 else None, terms=parts)
