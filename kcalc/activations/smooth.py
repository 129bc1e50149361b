"""Unbounded smooth (or nearly smooth) activations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp
from scipy.special import ndtr

from kcalc.activations.base import Activation, X
from kcalc.activations.closed import ClosedKernel
from kcalc.activations.parameters import label, named, positive, real
from kcalc.activations.registry import register
from kcalc.activations.sigmoids import sigmoid
from kcalc.activations.tails import Tail, tails
from kcalc.fields import SYMPY, Field, Number
from kcalc.foundation.errors import KcalcError
from kcalc.foundation.plain_arguments import text
from kcalc.gaussian.expectations.quadrature import Array, normal_density

_ORIGIN = (sp.Integer(0),)
_RECTIFIED = (0,), (sp.oo, 1)  # limits of value and slope at -oo and +oo
_TANH_CUBIC = sp.sqrt(2 / sp.pi) * (X + sp.Rational(44715, 10**6) * X**3)


@dataclass(frozen=True, eq=False, repr=False)
class Gelu(ClosedKernel):
    """The exact GELU, x P(z < x).

    With r = sqrt(q1 q2), P = (1+q1)(1+q2) and D = P - c^2 r^2,
    2 pi Gamma/r = c (pi/2 + asin(c r/sqrt P)) + (r/P) (sqrt D + c^2/sqrt D).
    This follows from Stein's formula, applied twice to u v Phi(u) Phi(v), and agrees with
    [Tsuchida et al. 2021].
    """

    def _compile(self, n: int) -> Callable[[Array], Array]:
        if n == 0:  # ndtr keeps its digits for large negative x, where 1 + erf cancels
            return lambda x: np.asarray(x) * ndtr(x)
        if n == 1:
            return lambda x: ndtr(x) + np.asarray(x) * normal_density(np.asarray(x))
        return super()._compile(n)

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return q / field.sqrt(2 * field.pi * (1 + q))

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return q / q / 2

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        if field is SYMPY:
            return q / 4 + (
                q * sp.asin(q / (1 + q)) + 2 * q**2 / ((1 + q) * sp.sqrt(1 + 2 * q))
            ) / (2 * sp.pi)
        return self._top(q, q, field)

    def _cosine(self, c: sp.Expr, q1: sp.Expr, q2: sp.Expr) -> sp.Expr:
        first, second = (
            sp.pi - sp.acos(q / (1 + q)) + 2 * q / ((1 + q) * sp.sqrt(1 + 2 * q)) for q in (q1, q2)
        )
        root = sp.sqrt(q1 * q2)
        product = (1 + q1) ** 2 if q1 == q2 else (1 + q1) * (1 + q2)
        rest = product - c**2 * root**2
        gamma = c * (sp.pi - sp.acos(c * root / sp.sqrt(product))) + root * (rest + c**2) / (
            product * sp.sqrt(rest)
        )
        return gamma / (first if q1 == q2 else sp.sqrt(first * second))

    def _top(self, q1: Number, q2: Number, field: Field) -> Number:
        root, at_one = q1 if q1 is q2 else field.sqrt(q1 * q2), field.sqrt(1 + (q1 + q2))
        tail = root * (at_one + 1 / at_one) / (1 + q1) / (1 + q2)
        return root * (field.pi / 2 + field.atan(root / at_one) + tail) / (2 * field.pi)

    def _rest(self, gap: Number, q1: Number, q2: Number) -> Number:
        """Return D, defined in the class docstring, without cancellation."""
        return 1 + (q1 + q2) + q1 * q2 * gap * (2 - gap)

    def _drop(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        root = field.sqrt(q1 * q2)
        at_one = field.sqrt(1 + (q1 + q2))
        here = field.sqrt(self._rest(gap, q1, q2))
        turn = 2 * field.atan(root * gap / (at_one + here)) + gap * (
            field.pi / 2 + field.atan(root * field.cosine(gap) / here)
        )
        tail = gap * (2 - gap) * (1 / here - q1 * q2 * (1 - 1 / (at_one * here)) / (at_one + here))
        return root * (turn + root * tail / ((1 + q1) * (1 + q2))) / (2 * field.pi)

    def _slopes(self, gap: Number, q1: Number, q2: Number, field: Field) -> tuple[Number, Number]:
        root = field.sqrt(q1 * q2)
        c = field.cosine(gap)
        rest = self._rest(gap, q1, q2)
        total = q1 + q2
        here, k = field.sqrt(rest), c * root
        turn = field.pi / 2 + field.atan(k / here)
        slope = turn + k / here * ((2 + total) / ((1 + q1) * (1 + q2)) + 1 / rest)
        bend = root / here * (1 + (3 + total) / rest + 3 * k * k / rest**2)
        return root * slope / (2 * field.pi), root * bend / (2 * field.pi)


def exponential_linear(name: str, alpha: Any = 1, scale: Any = 1) -> Activation:
    """Return an ELU or SELU: scale * (x for x > 0, alpha (e^x - 1) for x < 0).

    Q is computed from truncated moments.

    Parameters
    ----------
    name
        The printed name.
    alpha
        A real number. The limit at minus infinity is ``-alpha * scale``.
    scale
        A real number other than 0.

    Returns
    -------
    Activation
        The ELU with this alpha and scale.

    Raises
    ------
    KcalcError
        If alpha or scale is not a real number, or if scale = 0.

    References
    ----------
    [Klambauer et al. 2017]

    """
    a, s = real(text(name, "an activation's name"), "alpha", alpha), real(name, "scale", scale)
    if s == 0:
        raise KcalcError(f"{name}: scale = 0 gives the zero function; use a nonzero scale")
    expr = sp.Piecewise((s * a * (sp.exp(X) - 1), X < 0), (s * X, True))
    return Activation(name, expr, _ORIGIN, tails=(Tail(0, -s * a), None))


def celu(alpha: Any = 1, name: str | None = None) -> Activation:
    """Return the CELU: x for x > 0, alpha (e^(x/alpha) - 1) for x < 0; differentiable at 0.

    The registered "celu" has alpha = 1, the default in PyTorch, JAX and ONNX. It is the same
    function as elu.

    Parameters
    ----------
    alpha
        A number > 0. The limit at minus infinity is ``-alpha``.
    name
        The printed name; None derives one.

    Returns
    -------
    Activation
        The CELU with this alpha.

    Raises
    ------
    KcalcError
        Unless alpha is a positive number.

    """
    a = positive("celu", "alpha", alpha)
    return Activation(
        named(name, f"celu({label(a)})"),
        sp.Piecewise((a * (sp.exp(X / a) - 1), X < 0), (X, True)),
        _ORIGIN,
        tails=(Tail(0, -a), None),
    )


def _mish_stable() -> sp.Expr:
    """Return x (w^2 + 2w)/(w^2 + 2w + 2) with w = e^x.

    For x > 0, numerator and denominator are divided by w^2, so that they do not overflow.
    """
    w, v = sp.exp(X), sp.exp(-X)
    return sp.Piecewise(
        (X * w * (w + 2) / (w * (w + 2) + 2), X < 0),
        (X * (1 + 2 * v) / (1 + 2 * v + 2 * v**2), True),
    )


def _gelu_tanh_stable() -> tuple[sp.Expr, ...]:
    """Return phi and its first three derivatives, written with 1/cosh^2.

    1 - tanh^2 would cancel for large |x|, and sinh would overflow.
    """
    tanh, slope = sp.tanh(_TANH_CUBIC), sp.cosh(_TANH_CUBIC) ** -2
    share = sigmoid(2 * _TANH_CUBIC)
    t1, t2, t3 = (sp.diff(_TANH_CUBIC, X, n) for n in (1, 2, 3))
    return (
        X * share,
        share + X * t1 * slope / 2,
        slope * (t1 + X * (t2 / 2 - t1**2 * tanh)),
        slope
        * (
            3 * t2 / 2
            - 3 * t1**2 * tanh
            + X * (t3 / 2 - 3 * t1 * t2 * tanh + t1**3 * (2 * tanh**2 - slope))
        ),
    )


_SOFTPLUS = sp.Piecewise((sp.log(1 + sp.exp(X)), X < 0), (X + sp.log(1 + sp.exp(-X)), True))
_LOGCOSH = sp.Piecewise(
    (-X + sp.log(1 + sp.exp(2 * X)) - sp.log(2), X < -1),
    (sp.log(1 + 2 * sp.sinh(X / 2) ** 2), X < 1),
    (X + sp.log(1 + sp.exp(-2 * X)) - sp.log(2), True),
)
_SELU_ALPHA = sp.Float("1.6732632423543772848170429916717", 32)
_SELU_SCALE = sp.Float("1.0507009873554804934193349852946", 32)

register(
    Activation(
        "softplus",
        sp.log(1 + sp.exp(X)),
        stable=(_SOFTPLUS, sigmoid(X)),
        tails=tails(0, *_RECTIFIED),
    ),
    source="Dugas, Bengio, Belisle, Nadeau, Garcia 2001",
)
register(
    Activation(
        "swish", X / (1 + sp.exp(-X)), stable=(X * sigmoid(X),), tails=tails(6, *_RECTIFIED)
    ),
    "silu",
    source="Elfwing, Uchibe, Doya 2018; Ramachandran, Zoph, Le 2017",
)
register(
    Gelu("gelu", X * (1 + sp.erf(X / sp.sqrt(2))) / 2, tails=tails(2, *_RECTIFIED)),
    "gelu_exact",
    source="Hendrycks, Gimpel 2016; kernel: Tsuchida et al. 2021",
)
register(
    Activation(
        "gelu_tanh",
        X * (1 + sp.tanh(_TANH_CUBIC)) / 2,
        stable=_gelu_tanh_stable(),
        tails=tails(4, *_RECTIFIED),
    ),
    "gelu_approximate",
    source="Hendrycks, Gimpel 2016",
)
register(
    Activation(
        "mish",
        X * sp.tanh(sp.log(1 + sp.exp(X))),
        stable=(_mish_stable(),),
        tails=tails(6, *_RECTIFIED),
    ),
    source="Misra 2019",
)
register(exponential_linear("elu"), source="Clevert, Unterthiner, Hochreiter 2016")
register(
    exponential_linear("selu", _SELU_ALPHA, _SELU_SCALE),
    source="Klambauer, Unterthiner, Mayr, Hochreiter 2017",
)
register(celu(1, "celu"), source="Barron 2017; alpha = 1, which is elu")
register(
    Activation("asinh", sp.asinh(X), tails=tails(1, (-sp.oo,), (sp.oo,))),
    "arcsinh",
    source="Burbidge, Magee, Robb 1988 (as a transformation)",
)
register(
    Activation(
        "bentid",
        (sp.sqrt(X**2 + 1) - 1) / 2 + X,
        tails=tails(0, (-sp.oo, sp.Rational(1, 2)), (sp.oo, sp.Rational(3, 2))),
    ),
    "bent_identity",
    source="folklore; a relative of squareplus",
)
register(
    Activation("squareplus", (X + sp.sqrt(X**2 + 4)) / 2, tails=tails(0, *_RECTIFIED)),
    source="Barron 2021",
)
register(
    Activation(
        "logcosh",
        sp.log(sp.cosh(X)),
        stable=(_LOGCOSH, sp.tanh(X)),
        tails=tails(0, (sp.oo, -1), (sp.oo, 1)),
    ),
    "log_cosh",
    source="Hyvarinen 1999 (contrast function)",
)
