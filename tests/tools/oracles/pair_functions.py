"""The activations without an elementary C map, written out by hand as (phi, phi', phi'') for the
brute-force integrals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from oracles.pair_quadrature import ONE, PI, ZERO, Array, Function, Real

Triple = tuple[Array, ...]


def line_piece(slope: Any, offset: Any = ZERO) -> Any:
    """x -> slope x + offset with its derivatives."""
    return lambda x: (slope * x + offset, slope + 0 * x, 0 * x)


def _tanh(x: Array) -> tuple[Array, Array]:
    """tanh and 1/cosh^2, neither cancelling."""
    e = np.exp(-2 * np.abs(x))
    return np.copysign((1 - e) / (1 + e), x), 4 * e / (1 + e) ** 2


def tanh(x: Array) -> Triple:
    t, s = _tanh(x)
    return t, s, -2 * t * s


def sigmoid(x: Array) -> Triple:
    e = np.exp(-np.abs(x))
    value = np.where(x > 0, ONE, e) / (1 + e)
    slope = e / (1 + e) ** 2
    return value, slope, np.copysign(slope * (1 - e) / (1 + e), -x)


def softplus(x: Array) -> Triple:
    value, slope, _ = sigmoid(x)
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), value, slope


def swish(x: Array) -> Triple:
    value, slope, bend = sigmoid(x)
    return x * value, value + x * slope, 2 * slope + x * bend


def mish(x: Array) -> Triple:
    """x t, t = tanh(log(1 + e^x)) = (w^2 + 2 w)/(w^2 + 2 w + 2), w = e^x."""
    v = np.exp(-np.abs(x))
    right = x > 0
    bottom = np.where(right, 1 + 2 * v + 2 * v * v, v * v + 2 * v + 2)
    t = np.where(right, 1 + 2 * v, v * (v + 2)) / bottom
    rest = np.where(right, 2 * v * v, 2) / bottom * (1 + t)
    value, slope, _ = sigmoid(x)
    first, second = rest * value, rest * (slope - 2 * t * value * value)
    return x * t, t + x * first, 2 * first + x * second


CUBIC = Real("0.044715")


def gelu_tanh(x: Array) -> Triple:
    scale = np.sqrt(2 / PI)
    inner = scale * x * (1 + CUBIC * x * x)
    slope = scale * (1 + 3 * CUBIC * x * x)
    bend = scale * 6 * CUBIC * x
    t, s = _tanh(inner)
    first, second = s * slope, s * (bend - 2 * t * slope * slope)
    return x * (1 + t) / 2, (1 + t + x * first) / 2, first + x * second / 2


def _saturating(alpha: Any, scale: Any, rate: Any = ONE) -> Any:
    """scale alpha (e^(rate x) - 1)."""

    def piece(x: Array) -> Triple:
        y = rate * np.minimum(x, 0)
        e = scale * alpha * np.exp(y)
        return scale * alpha * np.expm1(y), rate * e, rate * rate * e

    return piece


def _exponential(alpha: Any, scale: Any, rate: Any = ONE) -> Function:
    jump = scale * (1 - alpha * rate)
    return Function(
        (_saturating(alpha, scale, rate), line_piece(scale)),
        (0.0,),
        (ZERO,),
        (jump,),
        ((0.0, 1.5),),
    )


def softsign(x: Array) -> Triple:
    bottom = 1 + np.abs(x)
    return x / bottom, 1 / bottom**2, np.copysign(2 / bottom**3, -x)


def atan(x: Array) -> Triple:
    slope = 1 / (1 + x * x)
    return np.arctan(x), slope, -2 * x * slope * slope


def asinh(x: Array) -> Triple:
    slope = 1 / np.sqrt(1 + x * x)
    return np.arcsinh(x), slope, -x * slope**3


def bentid(x: Array) -> Triple:
    root = np.sqrt(x * x + 1)
    return x * x / (2 * (root + 1)) + x, x / (2 * root) + 1, 1 / (2 * root**3)


def squareplus(x: Array) -> Triple:
    root = np.sqrt(x * x + 4)
    larger = (np.abs(x) + root) / 2
    return np.where(x > 0, larger, 1 / larger), (1 + x / root) / 2, 2 / root**3


def logcosh(x: Array) -> Triple:
    """log cosh x = log(1 + 2 sinh^2(x/2)), which is even and keeps its digits at 0."""
    t, s = _tanh(x)
    y = np.abs(x)
    near = np.log1p(2 * np.sinh(np.minimum(y, 1) / 2) ** 2)
    return np.where(y < 1, near, y + np.log1p(np.exp(-2 * y)) - np.log(Real(2))), t, s


def _hard_swish(x: Array) -> Triple:
    return x * (x + 3) / 6, (2 * x + 3) / 6, ONE / 3 + 0 * x


HALF, SIXTH = ONE / 2, ONE / 6
SELU = (Real("1.6732632423543772848170429916717"), Real("1.0507009873554804934193349852946"))

FUNCTIONS: dict[str, Function] = {
    "tanh": Function((tanh,), poles=((0.0, 1.5),)),
    "sigmoid": Function((sigmoid,), poles=((0.0, 3.0),)),
    "softplus": Function((softplus,), poles=((0.0, 3.0),)),
    "swish": Function((swish,), poles=((0.0, 3.0),)),
    "mish": Function((mish,), poles=((0.3, 2.2),)),
    "gelu_tanh": Function((gelu_tanh,), poles=((0.0, 1.5),)),
    "elu": _exponential(ONE, ONE),
    "selu": _exponential(*SELU),
    "celu": _exponential(ONE, ONE),
    "softsign": Function((softsign, softsign), (0.0,), poles=((0.0, 1.0),)),
    "atan": Function((atan,), poles=((0.0, 1.0),)),
    "asinh": Function((asinh,), poles=((0.0, 1.0),)),
    "bentid": Function((bentid,), poles=((0.0, 1.0),)),
    "squareplus": Function((squareplus,), poles=((0.0, 2.0),)),
    "logcosh": Function((logcosh,), poles=((0.0, 1.5),)),
    "hard_tanh": Function(
        (line_piece(ZERO, -ONE), line_piece(ONE), line_piece(ZERO, ONE)),
        (-1.0, 1.0),
        (),
        (ONE, -ONE),
    ),
    "relu6": Function(
        (line_piece(ZERO), line_piece(ONE), line_piece(ZERO, Real(6))), (0.0, 6.0), (), (ONE, -ONE)
    ),
    "hard_sigmoid": Function(
        (line_piece(ZERO), line_piece(SIXTH, HALF), line_piece(ZERO, ONE)),
        (-3.0, 3.0),
        (),
        (SIXTH, -SIXTH),
    ),
    "hard_swish": Function(
        (line_piece(ZERO), _hard_swish, line_piece(ONE)), (-3.0, 3.0), (), (-HALF, -HALF)
    ),
    "hard_shrink": Function(
        (line_piece(ONE), line_piece(ZERO), line_piece(ONE)), (-0.5, 0.5), (HALF, HALF), (-ONE, ONE)
    ),
}
