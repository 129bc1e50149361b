"""Local kernel quantities of a transformed activation in 50 digits by rules of their own, from the
four constants alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import mpmath
import sympy as sp

import kcalc as kc

x = sp.Symbol("t", real=True)
DIGITS = 50
AGREED = mpmath.mpf(10) ** -20
REACH = 13


@lru_cache(maxsize=64)
def _functions(phi: kc.Activation) -> list[list[Any]]:
    """phi, phi', phi'' on each piece between the kinks, differentiated and compiled here."""
    from kcalc.activations import X

    pieces = [sp.sympify(piece).xreplace({X: x}) for piece in phi.pieces]
    return [[sp.lambdify(x, sp.diff(piece, x, n), "mpmath") for n in range(3)] for piece in pieces]


def truth(constants: Any, curvature: bool = False) -> dict[str, Any]:
    """{condition: value} at q = 1 of gamma (phi(alpha x + beta) + delta).

    Smooth phi: trapezoid sums, halved until two agree to
    1e-20; kinked phi: tanh-sinh quadrature between the kinks.
    """
    phi = constants.activation
    with mpmath.workdps(DIGITS):
        alpha, beta, gamma, delta = (
            mpmath.mpf(d if v is None else v)
            for v, d in zip(
                (constants.alpha, constants.beta, constants.gamma, constants.delta),
                (1, 0, 1, 0),
                strict=True,
            )
        )
        functions = _functions(phi)

        def terms(t: Any, piece: int) -> list[Any]:
            u = alpha * t + beta
            f = gamma * (functions[piece][0](u) + delta)
            g = gamma * alpha * functions[piece][1](u)
            h = gamma * alpha**2 * functions[piece][2](u) if curvature else mpmath.mpf(0)
            weight = mpmath.exp(-t * t / 2) / mpmath.sqrt(2 * mpmath.pi)
            return [weight * f, weight * f * f, weight * f * g * t, weight * g * g, weight * h * h]

        mean, square, mixed, gradient, bend = (
            _kinked(phi, alpha, beta, terms) if phi.kinks else _smooth(lambda t: terms(t, 0))
        )
        return {
            "Q(1)": square,
            "Q'(1)": mixed,
            "C(0)": mean**2 / square,
            "C'(1)": gradient / square,
            "C''(1)": bend / square,
        }


def _smooth(terms: Any) -> list[Any]:
    step = mpmath.mpf(1) / 4
    count = 4 * REACH
    sums = [
        mpmath.fsum(column)
        for column in zip(*(terms(k * step) for k in range(-count, count + 1)), strict=True)
    ]
    for _ in range(8):
        middle = [
            mpmath.fsum(column)
            for column in zip(
                *(terms((k + mpmath.mpf(1) / 2) * step) for k in range(-count, count)), strict=True
            )
        ]
        fine = [(a + b) / 2 for a, b in zip(sums, middle, strict=True)]
        done = all(
            abs(a - b) * step <= AGREED * (1 + abs(a) * step)
            for a, b in zip(sums, fine, strict=True)
        )
        step, count = step / 2, 2 * count
        sums = [2 * value for value in fine]
        if done:
            break
    return [value * step for value in sums]


def _kinked(phi: Any, alpha: Any, beta: Any, terms: Any) -> list[Any]:
    kinks = [(mpmath.mpf(sp.N(k, DIGITS)) - beta) / alpha for k in phi.kinks]
    edges = [mpmath.mpf(-REACH), *kinks, mpmath.mpf(REACH)]
    totals = [mpmath.mpf(0)] * 5
    nodes = _legendre()
    for piece in range(len(functions_of(phi))):
        low, high = max(edges[piece], -REACH), min(edges[piece + 1], REACH)
        if not low < high:
            continue
        count = max(1, int(mpmath.ceil((high - low) * max(1, alpha))))
        for k in range(count):
            half = (high - low) / (2 * count)
            middle = low + (high - low) * (2 * k + 1) / (2 * count)
            for t, w in nodes:
                totals = [
                    total + half * w * value
                    for total, value in zip(totals, terms(middle + half * t, piece), strict=True)
                ]
    return totals


def functions_of(phi: kc.Activation) -> list[list[Any]]:
    return _functions(phi)


@lru_cache(maxsize=1)
def _legendre(count: int = 20) -> list[tuple[Any, Any]]:
    """Gauss-Legendre nodes from SymPy's own tables."""
    from sympy.integrals.quadrature import gauss_legendre

    nodes, weights = gauss_legendre(count, DIGITS)
    return [(mpmath.mpf(t), mpmath.mpf(w)) for t, w in zip(nodes, weights, strict=True)]
