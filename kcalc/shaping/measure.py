"""Local kernel quantities of an activation at q = 1 in 30 digits.

They are computed by a quadrature that no solver uses.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from ..activations import Activation, X
from ..foundation.process_state import decimal_digits, lambdify

DIGITS = 30
REACH = 13  # exp(-13^2 / 2) = 2e-37
# |x| of kinks, beyond which all of phi may lie, between which the panels reach out with them
FAR = (
    6,
    40,
)
NODES = 24
# how many of the last Legendre coefficients, of degree < NODES, are looked at: where they are below
# RESOLVED on a panel, the error of the quadrature is their square
LAST = 3
RESOLVED = 1e-13
DEEPEST, MOST = 40, 1500  # bisections of a panel, and panels


@lru_cache(maxsize=256)
def local_values(phi: Activation) -> dict[str, Any]:
    """Q(1), Q'(1), C(0), C'(1), C''(1) and the mean of phi at q = 1, as mpmath numbers.

    Gauss-Legendre panels of width 1, split at the kinks and wherever ``phi`` is steep. Where phi
    jumps, C'(1) is infinite, and Q'(1) = E[phi phi' x] is E[phi^2 (x^2 - 1)]/2, which has the
    jumps' part. Callables give double precision.
    """
    with decimal_digits(DIGITS + 5):
        jumps, smooth = any(phi.jump_sizes(0)), not any(phi.jump_sizes(0) + phi.jump_sizes(1))
        value, slope, second = (
            _sampled(phi)
            if phi.numeric_only
            else (_function(phi.expr if n == 0 else phi.derivative_expr(n)) for n in range(3))
        )
        reach = max(
            (
                math.ceil(math.hypot(REACH, k))
                for k in map(abs, phi.kink_points)
                if FAR[0] < k < FAR[1]
            ),
            default=REACH,
        )
        edges = _bisected(
            phi,
            sorted(
                {mpmath.mpf(k) for k in range(-reach, reach + 1)}
                | {_exact(k) for k in phi.kinks if abs(k) < reach}
            ),
        )
        mean = square = gradient = mixed = bend = mpmath.mpf(0)
        nodes = _legendre(NODES)
        for low, high in pairwise(edges):
            half, middle = (high - low) / 2, (high + low) / 2
            for t, w in nodes:
                x = middle + half * t
                weight = half * w * mpmath.npdf(x)
                f, g = value(x), slope(x)
                mean += weight * f
                square += weight * f * f
                gradient += weight * g * g
                mixed += weight * (f * f * (x * x - 1) / 2 if jumps else f * g * x)
                bend += weight * second(x) ** 2 if smooth else 0
        return {
            "E phi": mean,
            "Q(1)": square,
            "Q'(1)": mixed,
            "C(0)": mean * mean / square,
            "C'(1)": mpmath.inf if jumps else gradient / square,
            "C''(1)": bend / square if smooth else mpmath.inf,
        }


@np.errstate(all="ignore")
def _bisected(phi: Activation, edges: list[Any]) -> list[Any]:
    """The edges of panels, bisected until phi and phi' are polynomials on each panel.

    They are polynomials to about 15 digits of E phi^2 and E phi'^2.
    """
    t, w = np.polynomial.legendre.leggauss(NODES)
    rows = np.polynomial.legendre.legvander(t, NODES - 1) * w[:, None] * (np.arange(NODES) + 0.5)
    sizes, open_panels = np.zeros(2), list(pairwise(edges))
    done: list[Any] = [edges[0]]
    for _ in range(DEEPEST):
        low, high = (np.array([float(panel[i]) for panel in open_panels]) for i in (0, 1))
        x = ((low + high) / 2)[:, None] + ((high - low) / 2)[:, None] * t
        density = np.exp(-(x**2) / 2)
        values = [
            np.asarray(phi.numeric(n)(x.ravel())).reshape(x.shape) * np.sqrt(density)
            for n in (0, 1)
        ]
        sizes = np.maximum(sizes, [np.sqrt(np.nanmax((v * v) @ w * (high - low))) for v in values])
        bad = np.zeros(low.size, dtype=bool)
        for v, size, order in zip(values, sizes, (0, 1), strict=True):
            last = np.abs(v @ rows[:, -LAST:]).max(axis=1) * np.sqrt(high - low)
            noise = 4e-16 * np.abs(
                x * phi.numeric(order + 1)(x.ravel()).reshape(x.shape) * np.sqrt(density)
            ).max(axis=1)
            bad |= last > RESOLVED * size + noise * np.sqrt(high - low)
        if len(done) + 2 * int(bad.sum()) > MOST:
            bad[:] = False
        done += [panel[1] for panel, again in zip(open_panels, bad, strict=True) if not again]
        halves = [
            (a, (a + b) / 2, b) for (a, b), again in zip(open_panels, bad, strict=True) if again
        ]
        if not halves:
            break
        open_panels = [panel for a, m, b in halves for panel in ((a, m), (m, b))]
    else:
        done += [panel[1] for panel in open_panels]
    return sorted(done)


def _sampled(phi: Activation) -> tuple[Any, ...]:
    """phi and two derivatives from double precision, for callables."""

    def numbers(function: Any) -> Any:
        return lambda x: mpmath.mpf(float(function(np.array([float(x)]))[0]))

    return tuple(numbers(phi.numeric(n)) for n in range(3))


def _exact(value: Any) -> Any:
    return mpmath.mpf(sp.Float(sp.N(value, DIGITS + 5), DIGITS + 5)._mpf_)


def _function(expr: sp.Expr) -> Any:
    return lambdify(X, expr, "mpmath")


@lru_cache(maxsize=4)
def _legendre(count: int) -> list[tuple[Any, Any]]:
    """Nodes and weights of Gauss-Legendre quadrature on [-1, 1].

    The nodes are found by Newton's method from the Chebyshev guess.
    """
    out = []
    with decimal_digits(DIGITS + 10):
        for k in range(count):
            x = mpmath.cos(
                mpmath.pi * (mpmath.mpf(k) + mpmath.mpf(3) / 4) / (count + mpmath.mpf(1) / 2)
            )
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
