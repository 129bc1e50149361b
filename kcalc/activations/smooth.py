"""Unbounded smooth (or nearly smooth) activations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import sympy as sp

from kcalc.activations.base import Activation, X
from kcalc.activations.registry import register
from kcalc.errors import KcalcError
from kcalc.fields import SYMPY, Field, Number

_ORIGIN = (sp.Integer(0),)
_SIGMOID = (1 + sp.tanh(X / 2)) / 2
_TANH_CUBIC = sp.sqrt(2 / sp.pi) * (X + sp.Rational(44715, 10**6) * X**3)


def _normal_tail(x: Number, field: Field) -> Number:
    """P(z > x) for a standard normal z."""
    return (1 - field.erf(x / field.sqrt(field.number(2)))) / 2


@dataclass(frozen=True, eq=False, repr=False)
class Gelu(Activation):
    """x P(z < x), exact.  With k = c sqrt(q1 q2), D = (1+q1)(1+q2) - k^2,

    Gamma = k/4 + k asin(k/sqrt((1+q1)(1+q2)))/(2 pi) + (q1 q2 + k^2/(1+q1) + k^2/(1+q2) - k^2)/(2 pi sqrt D),
    by Stein's formula applied twice to u v Phi(u) Phi(v)  [agrees with Tsuchida et al. 2021].
    """

    def _gamma(self, k: Number, q1: Number, q2: Number, field: Field) -> Number:
        product = (1 + q1) * (1 + q2)
        angle = field.asin(k / field.sqrt(product))
        tail = (q1 * q2 + k**2 * (1 / (1 + q1) + 1 / (1 + q2) - 1)) / field.sqrt(product - k**2)
        return k / 4 + (k * angle + tail) / (2 * field.pi)

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return q / field.sqrt(2 * field.pi * (1 + q))

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return q / q / 2

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        return self._gamma(q, q, q, field)

    def _closed_gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        norm = field.sqrt(self._gamma(q1, q1, q1, field) * self._gamma(q2, q2, q2, field))
        return 1 - self._gamma(field.cosine(gap) * field.sqrt(q1 * q2), q1, q2, field) / norm


@dataclass(frozen=True, eq=False, repr=False)
class ExponentialLinear(Activation):
    """scale * (x for x > 0, alpha (e^x - 1) for x < 0): elu and selu.

    Q = scale^2 (q/2 + alpha^2 (e^(2q) P(z>2s) - 2 e^(q/2) P(z>s) + 1/2)) with s = sqrt q  [Klambauer et al. 2017].
    """

    alpha: sp.Expr = field(default=sp.Integer(1))
    scale: sp.Expr = field(default=sp.Integer(1))

    def _closed_mean(self, q: Number, field: Field) -> Number:
        alpha, scale, s = field.number(self.alpha), field.number(self.scale), field.sqrt(q)
        negative = field.exp(q / 2) * _normal_tail(s, field) - field.number(sp.Rational(1, 2))
        return scale * (s / field.sqrt(2 * field.pi) + alpha * negative)

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        alpha, scale, s = field.number(self.alpha), field.number(self.scale), field.sqrt(q)
        negative = field.exp(2 * q) * _normal_tail(2 * s, field) - 2 * field.exp(q / 2) * _normal_tail(s, field)
        return scale**2 * (q / 2 + alpha**2 * (negative + field.number(sp.Rational(1, 2))))


def exponential_linear(name: str, alpha: Any = 1, scale: Any = 1) -> Activation:
    """elu with the given negative saturation ``alpha`` and output ``scale``.  Raises KcalcError if they are not numbers."""
    a, s = SYMPY.number(alpha), SYMPY.number(scale)
    expr = sp.Piecewise((s * a * (sp.exp(X) - 1), X < 0), (s * X, True))
    return ExponentialLinear(name, expr, _ORIGIN, alpha=a, scale=s)


def celu(alpha: Any = 1) -> Activation:
    """x for x > 0, alpha (e^(x/alpha) - 1) for x < 0; differentiable at 0.  Raises KcalcError unless alpha > 0."""
    a = SYMPY.number(alpha)
    if not a > 0:
        raise KcalcError(f"celu: alpha = {alpha} must be positive")
    return Activation(f"celu({a})", sp.Piecewise((a * (sp.exp(X / a) - 1), X < 0), (X, True)), _ORIGIN)


def _mish_stable() -> sp.Expr:
    """x (w^2 + 2w)/(w^2 + 2w + 2), w = e^x, divided by w^2 for x > 0."""
    w, v = sp.exp(X), sp.exp(-X)
    return sp.Piecewise((X * w * (w + 2) / (w * (w + 2) + 2), X < 0), (X * (1 + 2 * v) / (1 + 2 * v + 2 * v**2), True))


def _gelu_tanh_stable() -> tuple[sp.Expr, ...]:
    """phi and three derivatives through 1/cosh^2, which keeps its digits where 1 - tanh^2 cancels; sinh overflows and is avoided."""
    t = _TANH_CUBIC
    out = [X * (1 + sp.tanh(t)) / 2, (1 + sp.tanh(t)) / 2 + X * sp.diff(t, X) / (2 * sp.cosh(t) ** 2)]
    for _ in range(2):
        derivative = sp.diff(out[-1], X).replace(sp.sinh, lambda a: sp.tanh(a) * sp.cosh(a))
        out.append(derivative.subs(1 - sp.tanh(t) ** 2, sp.cosh(t) ** -2))
    return tuple(out)


_SOFTPLUS = sp.Piecewise((sp.log(1 + sp.exp(X)), X < 0), (X + sp.log(1 + sp.exp(-X)), True))
_LOGCOSH = sp.Piecewise((-X + sp.log(1 + sp.exp(2 * X)), X < 0), (X + sp.log(1 + sp.exp(-2 * X)), True)) - sp.log(2)
_SELU_ALPHA, _SELU_SCALE = sp.Float("1.6732632423543772848170429916717", 32), sp.Float("1.0507009873554804934193349852946", 32)

register(Activation("softplus", sp.log(1 + sp.exp(X)), stable=(_SOFTPLUS, _SIGMOID)))
register(Activation("swish", X / (1 + sp.exp(-X)), stable=(X * _SIGMOID,)), "silu")
register(Gelu("gelu", X * (1 + sp.erf(X / sp.sqrt(2))) / 2), "gelu_exact")
register(Activation("gelu_tanh", X * (1 + sp.tanh(_TANH_CUBIC)) / 2, stable=_gelu_tanh_stable()), "gelu_approximate")
register(Activation("mish", X * sp.tanh(sp.log(1 + sp.exp(X))), stable=(_mish_stable(),)))
register(exponential_linear("elu"))
register(exponential_linear("selu", _SELU_ALPHA, _SELU_SCALE))
register(Activation("celu", sp.Piecewise((2 * (sp.exp(X / 2) - 1), X < 0), (X, True)), _ORIGIN))
register(Activation("asinh", sp.asinh(X)), "arcsinh")
register(Activation("bentid", (sp.sqrt(X**2 + 1) - 1) / 2 + X), "bent_identity")
register(Activation("squareplus", (X + sp.sqrt(X**2 + 4)) / 2))
register(Activation("logcosh", sp.log(sp.cosh(X)), stable=(_LOGCOSH, sp.tanh(X))), "log_cosh")
