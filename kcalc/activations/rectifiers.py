"""Piecewise linear activations and rectified powers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy as sp

from kcalc.activations.base import Activation, X
from kcalc.activations.registry import register
from kcalc.errors import KcalcError
from kcalc.fields import NUMPY, SYMPY, Field, Number

_ORIGIN = (sp.Integer(0),)


def _bend(field: Field, slope: Number, gap: Number) -> Number:
    """slope / sin(theta): infinite at c = +-1 unless the slope is zero."""
    if field is NUMPY:
        sine = field.sine(gap)
        return np.where(np.asarray(slope) == 0, 0.0, slope / sine)
    return slope / field.sine(gap)


@dataclass(frozen=True, eq=False, repr=False)
class Leaky(Activation):
    """x for x > 0, a x for x < 0 (any real a): relu a = 0, abs a = -1.

    Q(q) = (1+a^2) q/2,  C(c) = c + k (sin t - t cos t) with t = arccos c and k = (1-a)^2/(pi (1+a^2))  [DKS section 3, TAT eq. 9].
    """

    negative_slope: sp.Expr = field(default=sp.Integer(0))
    closed_in_numpy = True

    def _corner(self, field: Field) -> Number:
        a = field.number(self.negative_slope)
        return (1 - a) ** 2 / (field.pi * (1 + a * a))

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return (1 - field.number(self.negative_slope)) * field.sqrt(q / (2 * field.pi))

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        return (1 + field.number(self.negative_slope) ** 2) * q / 2

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return (1 + field.number(self.negative_slope)) * q / q / 2

    def _closed_gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        return gap - self._corner(field) * field.sine_excess(gap)

    def _closed_derivatives(self, gap: Number, q1: Number, q2: Number, field: Field) -> tuple[Number, Number]:
        k = self._corner(field)
        return 1 - k * field.angle(gap), _bend(field, k, gap)


def leaky_relu(negative_slope: Any = 0.01, name: str | None = None) -> Activation:
    """x for x > 0, negative_slope x for x < 0.  Raises KcalcError if the slope is not a number."""
    a = sp.Rational(1, 100) if negative_slope == 0.01 else SYMPY.number(negative_slope)
    if a.free_symbols:
        raise KcalcError(f"leaky_relu: the negative slope {a} is not a number")
    if a == 1:
        return identity
    label = name or ("relu" if a == 0 else f"leaky_relu({a})")
    expr = sp.Max(X, 0) if a == 0 else sp.Abs(X) if a == -1 else sp.Piecewise((a * X, X < 0), (X, True))
    return Leaky(label, expr, _ORIGIN, 1, negative_slope=a)


@dataclass(frozen=True, eq=False, repr=False)
class Relu2(Activation):
    """max(x, 0)^2: Q = 3 q^2/2, C = (3 s c + (pi - t)(1 + 2 c^2))/(3 pi), the arc-cosine kernel of order 2 [Cho and Saul 2009]."""

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return q / 2

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return 2 * field.sqrt(q / (2 * field.pi))

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        return 3 * q**2 / 2

    def _closed_gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        c, t = field.cosine(gap), field.angle(gap)
        return 1 - (3 * c * field.sine(gap) + (field.pi - t) * (1 + 2 * c * c)) / (3 * field.pi)

    def _closed_derivatives(self, gap: Number, q1: Number, q2: Number, field: Field) -> tuple[Number, Number]:
        c, t = field.cosine(gap), field.angle(gap)
        k = 4 / (3 * field.pi)
        return k * (field.sine(gap) + (field.pi - t) * c), k * (field.pi - t)


@dataclass(frozen=True, eq=False, repr=False)
class Step(Activation):
    """(sign(x) + shift)/(1 + |shift|) for shift 0 (sign) or 1 (heaviside): C = 1 - k t with k = 2/pi or 1/pi, at every q."""

    shift: int = 0
    closed_in_numpy = True

    def _corner(self, field: Field) -> Number:
        return (2 - self.shift) / field.pi

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return field.number(0) * q if self.shift == 0 else q / q / 2

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        return q / q / (1 + self.shift)

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return (2 - self.shift) / field.sqrt(2 * field.pi * q)

    def _closed_gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        return self._corner(field) * field.angle(gap)

    def _closed_derivatives(self, gap: Number, q1: Number, q2: Number, field: Field) -> tuple[Number, Number]:
        k, sine = self._corner(field), field.sine(gap)
        return k / sine, k * field.cosine(gap) / sine**3


def _clipped(name: str, expr: sp.Expr, low: Any, high: Any, *aliases: str) -> Activation:
    return register(Activation(name, expr, (SYMPY.number(low), SYMPY.number(high))), *aliases)


identity = register(Leaky("identity", X, (), 1, negative_slope=sp.Integer(1)), "linear")
relu = register(leaky_relu(0, "relu"))
register(leaky_relu(sp.Rational(1, 100), "leaky_relu"), "lrelu")
register(leaky_relu(-1, "abs"))
register(Relu2("relu2", sp.Piecewise((0, X < 0), (X**2, True)), _ORIGIN, 2), "relu_squared", "squared_relu")
register(Step("sign", sp.Piecewise((-1, X < 0), (1, True)), _ORIGIN, 0, shift=0))
register(Step("heaviside", sp.Piecewise((0, X < 0), (1, True)), _ORIGIN, 0, shift=1), "step")
_clipped("hard_tanh", sp.Piecewise((-1, X < -1), (X, X < 1), (1, True)), -1, 1, "hardtanh")
_clipped("relu6", sp.Piecewise((0, X < 0), (X, X < 6), (6, True)), 0, 6)
_clipped("hard_sigmoid", sp.Piecewise((0, X < -3), (X / 6 + sp.Rational(1, 2), X < 3), (1, True)), -3, 3, "hardsigmoid")
_clipped("hard_swish", sp.Piecewise((0, X < -3), (X * (X + 3) / 6, X < 3), (X, True)), -3, 3, "hardswish", "hard_silu")

__all__ = ["Leaky", "Relu2", "Step", "identity", "leaky_relu", "relu"]
