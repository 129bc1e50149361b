"""Local kernel quantities of an activation at q = 1 in 30 digits, by a quadrature that no solver uses."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from ..activations import Activation, X

DIGITS = 30
REACH = 13  # exp(-13^2 / 2) = 2e-37


@lru_cache(maxsize=256)
def local_values(phi: Activation) -> dict[str, Any]:
    """Q(1), Q'(1), C(0), C'(1), C''(1) and the mean of phi at q = 1, as mpmath numbers.

    Gauss-Legendre panels of width 1 (less for steep inputs), split at the kinks; ``phi`` must be continuous. Callables give
    double precision.
    """
    with mpmath.workdps(DIGITS + 5):
        smooth = not any(phi.jump_sizes(1))
        value, slope, second = (
            _sampled(phi) if phi.numeric_only else (_function(phi.expr if n == 0 else phi.derivative_expr(n)) for n in range(3))
        )
        steps = 1 if phi.transformation is None else min(max(math.ceil(abs(float(phi.transformation.input_scale))), 1), 64)
        edges = sorted(
            {mpmath.mpf(k) / steps for k in range(-REACH * steps, REACH * steps + 1)}
            | {_exact(k) for k in phi.kinks if abs(float(k)) < REACH}
        )
        mean = square = gradient = mixed = bend = mpmath.mpf(0)
        nodes = _legendre(24)
        for low, high in pairwise(edges):
            half, middle = (high - low) / 2, (high + low) / 2
            for t, w in nodes:
                x = middle + half * t
                weight = half * w * mpmath.npdf(x)
                f, g = value(x), slope(x)
                mean += weight * f
                square += weight * f * f
                gradient += weight * g * g
                mixed += weight * f * g * x
                bend += weight * second(x) ** 2 if smooth else 0
        return {
            "E phi": mean,
            "Q(1)": square,
            "Q'(1)": mixed,
            "C(0)": mean * mean / square,
            "C'(1)": gradient / square,
            "C''(1)": bend / square if smooth else mpmath.inf,
        }


def _sampled(phi: Activation) -> tuple[Any, ...]:
    """phi and two derivatives from double precision, for callables."""

    def numbers(function: Any) -> Any:
        return lambda x: mpmath.mpf(float(function(np.array([float(x)]))[0]))

    return tuple(numbers(phi.numeric(n)) for n in range(3))


def _exact(value: Any) -> Any:
    return mpmath.mpf(sp.Float(sp.N(value, DIGITS + 5), DIGITS + 5)._mpf_)


def _function(expr: sp.Expr) -> Any:
    return sp.lambdify(X, expr, "mpmath")


@lru_cache(maxsize=4)
def _legendre(count: int) -> list[tuple[Any, Any]]:
    """Nodes and weights of Gauss-Legendre quadrature on [-1, 1], by Newton from the Chebyshev guess."""
    out = []
    with mpmath.workdps(DIGITS + 10):
        for k in range(count):
            x = mpmath.cos(mpmath.pi * (mpmath.mpf(k) + mpmath.mpf(3) / 4) / (count + mpmath.mpf(1) / 2))
            derivative = mpmath.mpf(1)
            for _ in range(8):
                value, derivative = _legendre_value(count, x)
                x -= value / derivative
            out.append((x, 2 / ((1 - x * x) * derivative**2)))
    return out


def _legendre_value(count: int, x: Any) -> tuple[Any, Any]:
    low, high = mpmath.mpf(1), x
    for k in range(1, count):
        low, high = high, ((2 * k + 1) * x * high - k * low) / (k + 1)
    return high, count * (x * high - low) / (x * x - 1)
