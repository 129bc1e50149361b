"""Piecewise linear activations: rectifiers, sign, and functions with kinks away from 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy as sp

from kcalc.activations.base import Activation, X
from kcalc.activations.closed import Closed, diverging
from kcalc.activations.parameters import label, named, positive, real
from kcalc.activations.registry import register
from kcalc.fields import SYMPY, Field, Number
from kcalc.foundation.errors import KcalcError

_ORIGIN = (sp.Integer(0),)


@dataclass(frozen=True, eq=False, repr=False)
class Leaky(Closed):
    """The activation b x for x > 0 and a x for x < 0, with any real a and b that are not both 0.

    For example, relu has a = 0, b = 1, and abs has a = -1, b = 1.

    At every q1, q2, Q(q) = (a^2 + b^2) q/2 and C(c) = c + k (sin t - t cos t) with t = arccos c and
    k = (b-a)^2/(pi (a^2+b^2)) [DKS sec. 12.1, TAT eq. 9].
    """

    negative_slope: sp.Expr = field(default=sp.Integer(0))
    positive_slope: sp.Expr = field(default=sp.Integer(1))

    def _slopes(self, field: Field) -> tuple[Number, Number]:
        return field.number(self.negative_slope), field.number(self.positive_slope)

    def _substituted(self, values: Mapping[Any, Any]) -> Activation:
        return abrelu(self.negative_slope.subs(values), self.positive_slope.subs(values))

    def _corner(self, field: Field) -> Number:
        a, b = self._slopes(field)
        return (b - a) ** 2 / (field.pi * (a * a + b * b))

    def _closed_mean(self, q: Number, field: Field) -> Number:
        a, b = self._slopes(field)
        return (b - a) * field.sqrt(q / (2 * field.pi))

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        a, b = self._slopes(field)
        return (a**2 + b**2) * q / 2

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        a, b = self._slopes(field)
        return (a + b) * q / q / 2

    def _cosine(self, c: sp.Expr, q1: sp.Expr, q2: sp.Expr) -> sp.Expr:
        if self.negative_slope * self.positive_slope == 0:
            return (sp.sqrt(1 - c**2) + (sp.pi - sp.acos(c)) * c) / sp.pi
        return c + self._corner(SYMPY) * (sp.sqrt(1 - c**2) - c * sp.acos(c))

    def _gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        return gap - self._corner(field) * field.sine_excess(gap)

    def _closed_derivatives(
        self, gap: Number, q1: Number, q2: Number, field: Field
    ) -> tuple[Number, Number]:
        k = self._corner(field)
        slope = 1 - k * field.angle(gap)
        return slope, 0 * gap if self.negative_slope == self.positive_slope else diverging(
            k, field.sine(gap), field
        )


def abrelu(a: Any, b: Any, name: str | None = None) -> Activation:
    """Return the ABReLU: a x for x < 0 and b x for x >= 0.

    Parameters
    ----------
    a
        The slope for x < 0, a number or a real SymPy expression.
    b
        The slope for x >= 0, a number or a real SymPy expression.
    name
        The printed name; None derives one.

    Returns
    -------
    Activation
        The piecewise linear activation with these two slopes.

    Raises
    ------
    KcalcError
        If a or b is not real, or if both are 0.

    """
    left, right = real("abrelu", "a", a, True), real("abrelu", "b", b, True)
    if left == right == 0:
        raise KcalcError(
            "abrelu: a = b = 0 gives the zero function, which has no C map; use at least one "
            "nonzero slope"
        )
    title = named(name, f"abrelu({label(left)},{label(right)})")
    if left == right:
        return (
            identity
            if right == 1
            else Leaky(title, right * X, (), 1, negative_slope=left, positive_slope=right)
        )
    if right == 1:
        return leaky_relu(left, name)
    return Leaky(
        title,
        sp.Piecewise((left * X, X < 0), (right * X, True)),
        _ORIGIN,
        1,
        negative_slope=left,
        positive_slope=right,
    )


def leaky_relu(negative_slope: Any = 0.01, name: str | None = None) -> Activation:
    """Return the leaky ReLU: x for x > 0 and negative_slope x for x < 0.

    Parameters
    ----------
    negative_slope
        The slope for x < 0, a number or a real SymPy expression.
    name
        The printed name; None derives one.

    Returns
    -------
    Activation
        The leaky ReLU with this negative slope.

    Raises
    ------
    KcalcError
        If ``negative_slope`` is not real.

    """
    default = isinstance(negative_slope, float) and negative_slope == 0.01
    a = (
        sp.Rational(1, 100)
        if default
        else real("leaky_relu", "negative_slope", negative_slope, True)
    )
    if a == 1:
        return identity
    title = named(name, "relu" if a == 0 else f"leaky_relu({label(a)})")
    expr = (
        sp.Max(X, 0)
        if a == 0
        else sp.Abs(X)
        if a == -1
        else sp.Piecewise((a * X, X < 0), (X, True))
    )
    return Leaky(title, expr, _ORIGIN, 1, negative_slope=a)


def trelu(negative_slope: Any) -> Activation:
    """Return the Tailored ReLU, a leaky ReLU scaled such that Q(q) = q.

    The activation is x for x > 0 and negative_slope x for x < 0, both multiplied by
    sqrt(2/(1 + negative_slope^2)).

    Parameters
    ----------
    negative_slope
        The slope for x < 0 before scaling: a number, or a real SymPy expression, whose symbols
        then appear in the formulas.

    Returns
    -------
    Activation
        The tailored ReLU with this negative slope.

    Raises
    ------
    KcalcError
        If ``negative_slope`` is not real.

    References
    ----------
    [TAT eq. 8]

    """
    a = real("trelu", "negative_slope", negative_slope, True)
    return leaky_relu(a).transformed(output_scale=sp.sqrt(2 / (1 + a**2)))


@dataclass(frozen=True, eq=False, repr=False)
class Sign(Closed):
    """The activation that is -1 for x < 0 and 1 for x >= 0.

    Q = 1 and C = 1 - 2 t/pi = (2/pi) asin c with t = arccos c, at every q1, q2.
    """

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return 0 * q

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        return q / q

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return 2 / field.sqrt(2 * field.pi * q)

    def _cosine(self, c: sp.Expr, q1: sp.Expr, q2: sp.Expr) -> sp.Expr:
        return 2 * sp.asin(c) / sp.pi

    def _gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        return 2 * field.angle(gap) / field.pi

    def _closed_derivatives(
        self, gap: Number, q1: Number, q2: Number, field: Field
    ) -> tuple[Number, Number]:
        k, sine = 2 / field.pi, field.sine(gap)
        return diverging(k, sine, field), diverging(k * field.cosine(gap), sine**3, field)


def _clipped(
    name: str, expr: sp.Expr, low: Any, high: Any, *aliases: str, source: str
) -> Activation:
    return register(
        Activation(name, expr, (SYMPY.number(low), SYMPY.number(high))), *aliases, source=source
    )


def hard_shrink(threshold: Any = 0.5, name: str | None = None) -> Activation:
    """Return hard shrinkage: x for |x| > threshold, else 0.

    The function is right-continuous at its jumps. Q is computed from truncated moments. C involves
    the bivariate normal CDF and is computed by numerical integration.

    Parameters
    ----------
    threshold
        A number > 0.
    name
        The printed name; None derives one.

    Returns
    -------
    Activation
        The hard shrinkage with this threshold.

    Raises
    ------
    KcalcError
        Unless threshold is a positive number.

    """
    t = positive("hard_shrink", "threshold", threshold)
    return Activation(
        named(name, f"hard_shrink({label(t)})"),
        sp.Piecewise((X, -t > X), (0, t > X), (X, True)),
        (-t, t),
    )


identity = register(
    Leaky("identity", X, (), 1, negative_slope=sp.Integer(1)),
    "linear",
    source="linear networks; Saxe, McClelland, Ganguli 2014",
)
relu = register(
    leaky_relu(0, "relu"), source="Fukushima 1969; Nair, Hinton 2010; kernel: Cho, Saul 2009"
)
register(leaky_relu(sp.Rational(1, 100), "leaky_relu"), "lrelu", source="Maas, Hannun, Ng 2013")
register(leaky_relu(-1, "abs"), source="Jarrett, Kavukcuoglu, Ranzato, LeCun 2009")
register(
    abrelu(sp.Rational(-1, 2), sp.Rational(3, 2), "abrelu"),
    source="two slopes as in PReLU: He, Zhang, Ren, Sun 2015",
)
register(
    Sign("sign", sp.Piecewise((-1, X < 0), (1, True)), _ORIGIN, 0),
    source="Rosenblatt 1958; kernel: Sheppard 1899",
)
_clipped(
    "hard_tanh",
    sp.Piecewise((-1, X < -1), (X, X < 1), (1, True)),
    -1,
    1,
    "hardtanh",
    source="Collobert 2004",
)
_clipped("relu6", sp.Piecewise((0, X < 0), (X, X < 6), (6, True)), 0, 6, source="Krizhevsky 2010")
_clipped(
    "hard_sigmoid",
    sp.Piecewise((0, X < -3), (X / 6 + sp.Rational(1, 2), X < 3), (1, True)),
    -3,
    3,
    "hardsigmoid",
    source="Courbariaux, Bengio, David 2015; slope 1/6: Howard et al. 2019",
)
_clipped(
    "hard_swish",
    sp.Piecewise((0, X < -3), (X * (X + 3) / 6, X < 3), (X, True)),
    -3,
    3,
    "hardswish",
    "hard_silu",
    source="Howard et al. 2019 (MobileNetV3)",
)
register(
    hard_shrink(name="hard_shrink"),
    "hardshrink",
    source="hard thresholding; Donoho, Johnstone 1994",
)

__all__ = ["Leaky", "Sign", "abrelu", "hard_shrink", "identity", "leaky_relu", "relu", "trelu"]
