"""Activations in NumPy, independent of the library, listed by their names in kcalc."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log, pi, sqrt
from typing import Any

import numpy as np
from scipy import special

from .bench import Array

Function = Callable[[Array], Array]

SELU = (1.0507009873554804934193349852946, 1.6732632423543772848170429916717)


@dataclass(frozen=True)
class Plain:
    """An activation: phi is ``value``, phi' is ``slope``, and phi'' is ``bend``."""

    value: Function
    slope: Function
    kinks: tuple[float, ...] = ()
    bend: Any = None

    @property
    def smooth(self) -> bool:
        """Whether the function has no kinks."""
        return not self.kinks


def density(x: Array) -> Array:
    """Compute the standard normal density."""
    return np.exp(-(x**2) / 2) / sqrt(2 * pi)


def _step(x: Array) -> Array:
    return (x > 0).astype(float)


def _logistic_slope(x: Array) -> Array:
    return special.expit(x) * special.expit(-x)


def _logistic_bend(x: Array) -> Array:
    return _logistic_slope(x) * (1 - 2 * special.expit(x))


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


FUNCTIONS: dict[str, Plain] = {
    "tanh": Plain(
        np.tanh,
        lambda x: 1 - np.tanh(x) ** 2,
        bend=lambda x: -2 * np.tanh(x) * (1 - np.tanh(x) ** 2),
    ),
    "erf": Plain(
        special.erf,
        lambda x: 2 / sqrt(pi) * np.exp(-(x**2)),
        bend=lambda x: -4 / sqrt(pi) * x * np.exp(-(x**2)),
    ),
    "gelu": Plain(
        lambda x: x * special.ndtr(x),
        lambda x: special.ndtr(x) + x * density(x),
        bend=lambda x: (2 - x**2) * density(x),
    ),
    "swish": Plain(
        lambda x: x * special.expit(x),
        lambda x: special.expit(x) + x * _logistic_slope(x),
        bend=lambda x: 2 * _logistic_slope(x) + x * _logistic_bend(x),
    ),
    "softplus": Plain(_softplus, special.expit, bend=_logistic_slope),
    "sigmoid": Plain(special.expit, _logistic_slope, bend=_logistic_bend),
    "sin": Plain(np.sin, np.cos, bend=lambda x: -np.sin(x)),
    "cos": Plain(np.cos, lambda x: -np.sin(x), bend=lambda x: -np.cos(x)),
    "atan": Plain(np.arctan, lambda x: 1 / (1 + x**2), bend=lambda x: -2 * x / (1 + x**2) ** 2),
    "asinh": Plain(
        np.arcsinh, lambda x: 1 / np.sqrt(1 + x**2), bend=lambda x: -x * (1 + x**2) ** -1.5
    ),
    "gaussian": Plain(
        lambda x: np.exp(-(x**2)),
        lambda x: -2 * x * np.exp(-(x**2)),
        bend=lambda x: (4 * x**2 - 2) * np.exp(-(x**2)),
    ),
    "mish": Plain(
        lambda x: x * np.tanh(_softplus(x)),
        lambda x: np.tanh(_softplus(x)) + x * special.expit(x) / np.cosh(_softplus(x)) ** 2,
    ),
    "logcosh": Plain(lambda x: np.logaddexp(x, -x) - log(2), np.tanh),
    "squareplus": Plain(
        lambda x: (x + np.sqrt(x**2 + 4)) / 2, lambda x: (1 + x / np.sqrt(x**2 + 4)) / 2
    ),
    "probit": Plain(special.ndtr, density),
    "exp": Plain(np.exp, np.exp, bend=np.exp),
    "square": Plain(lambda x: x**2, lambda x: 2 * x),
    "cube": Plain(lambda x: x**3, lambda x: 3 * x**2),
    "relu": Plain(lambda x: np.maximum(x, 0), _step, (0.0,)),
    "leaky_relu": Plain(
        lambda x: np.maximum(x, 0.01 * x), lambda x: np.where(x > 0, 1.0, 0.01), (0.0,)
    ),
    "elu": Plain(
        lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
        lambda x: np.exp(np.minimum(x, 0)),
        (0.0,),
    ),
    "celu": Plain(
        lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
        lambda x: np.exp(np.minimum(x, 0)),
        (0.0,),
    ),
    "selu": Plain(
        lambda x: SELU[0] * np.where(x > 0, x, SELU[1] * np.expm1(np.minimum(x, 0))),
        lambda x: SELU[0] * np.where(x > 0, 1.0, SELU[1] * np.exp(np.minimum(x, 0))),
        (0.0,),
    ),
    "abs": Plain(np.abs, np.sign, (0.0,)),
    "relu2": Plain(lambda x: np.maximum(x, 0) ** 2, lambda x: 2 * np.maximum(x, 0), (0.0,)),
    "hard_tanh": Plain(
        lambda x: np.clip(x, -1, 1), lambda x: (np.abs(x) < 1).astype(float), (-1.0, 1.0)
    ),
    "relu6": Plain(
        lambda x: np.clip(x, 0, 6), lambda x: ((x > 0) & (x < 6)).astype(float), (0.0, 6.0)
    ),
    "softsign": Plain(lambda x: x / (1 + np.abs(x)), lambda x: 1 / (1 + np.abs(x)) ** 2, (0.0,)),
}


def relu_map(c: Any) -> Any:
    """Evaluate the C map of ReLU."""
    root = np.sqrt(np.maximum((1 - c) * (1 + c), 0))
    return root / pi + c * relu_slope(c)


def relu_slope(c: Any) -> Any:
    """Evaluate the derivative of the C map of ReLU."""
    return 1 - np.arccos(np.clip(c, -1, 1)) / pi
