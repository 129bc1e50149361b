"""Gaussian expectations at any number of digits by rules that share nothing with kcalc.

Smooth functions, written out over Arb numbers, are integrated by the trapezoid rule on the line and
over the plane, with Gamma' and Gamma'' from the derivatives of the bivariate density (Plackett:
d/dc N2 = d^2/dx dw N2); functions homogeneous on both sides of 0 over the angle; pieces between
kinks by Gauss-Legendre panels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import flint
import mpmath
import sympy as sp
from flint import arb

STEP, REACH = 0.17, 14.0


@contextmanager
def digits(n: int) -> Iterator[None]:
    before, flint.ctx.dps = flint.ctx.dps, n
    try:
        with mpmath.workdps(n):
            yield
    finally:
        flint.ctx.dps = before


def mp(x: Any) -> Any:
    """A SymPy rational, an arb or a number as an mpmath number."""
    if isinstance(x, arb):
        return mpmath.mpf(x.mid().str(mpmath.mp.dps, radius=False))
    return (
        mpmath.mpf(Fraction(str(x)).numerator) / Fraction(str(x)).denominator
        if isinstance(x, sp.Rational)
        else mpmath.mpf(x)
    )


def exact(x: Any) -> arb:
    fraction = Fraction(str(sp.Rational(x)))
    return arb(fraction.numerator) / fraction.denominator


def line(f: Callable[[Any], Any], q: Any) -> tuple[Any, Any, Any]:
    """E f(u), E f(u)^2 and E f'(u) = E[f(u) z]/sqrt q."""
    z = [arb(STEP) / 2 * k for k in range(-240, 241)]
    root, totals = exact(q).sqrt(), [arb(0)] * 3
    for x in z:
        value, weight = f(root * x), (-x * x / 2).exp()
        totals = [
            t + weight * part
            for t, part in zip(totals, (value, value * value, value * x / root), strict=True)
        ]
    return tuple(t * arb(STEP) / 2 / (2 * arb.pi()).sqrt() for t in totals)  # type: ignore[return-value]


def plane(f: Callable[[Any], Any], c: Any, q1: Any, q2: Any) -> tuple[Any, Any, Any]:
    """Gamma, Gamma' and Gamma'' at c in (-1, 1)."""
    c, r1, r2 = exact(c), exact(q1).sqrt(), exact(q2).sqrt()
    square = 1 - c * c
    s, n = square.sqrt(), math.ceil(REACH / STEP)
    z = [arb(STEP) * k for k in range(-n, n + 1)]
    weights = [(-x * x / 2).exp() * arb(STEP) / (2 * arb.pi()).sqrt() for x in z]
    totals = [arb(0)] * 3
    for x, wx in zip(z, weights, strict=True):
        outer, inner = wx * f(r1 * x), [arb(0)] * 3
        for y, wy in zip(z, weights, strict=True):
            a, b = x - c * y / s, y / s
            first = a * b + c / square
            second = (
                1 / square**2
                + c * c / square**2
                - (a * a + b * b) / square
                + 2 * c / square * a * b
                + first * first
            )
            value = wy * f(r2 * (c * x + s * y))
            inner = [inner[0] + value, inner[1] + value * first, inner[2] + value * second]
        totals = [total + outer * part for total, part in zip(totals, inner, strict=True)]
    return tuple(totals)  # type: ignore[return-value]


def exactly(expr: Any) -> Any:
    """Floats as the fractions they are."""
    return sp.sympify(expr).xreplace(
        {number: sp.Rational(number) for number in sp.sympify(expr).atoms(sp.Float)}
    )


def moments(phi: Any, symbol: sp.Symbol, q: Any) -> tuple[Any, Any, Any]:
    """E phi, E phi^2, E[phi z]/sqrt q by quadrature of the pieces."""
    pieces = [sp.lambdify(symbol, exactly(piece), "mpmath") for piece in phi.pieces]
    kinks = [
        mpmath.mpf(str(sp.N(exactly(k), mpmath.mp.dps + 5))) / mpmath.sqrt(mp(q)) for k in phi.kinks
    ]
    reach = 14 + 3 * mpmath.sqrt(mp(q))
    totals, root = [mpmath.mpf(0)] * 3, mpmath.sqrt(mp(q))
    for f, low, high in zip(pieces, [-reach, *kinks], [*kinks, reach], strict=True):
        cuts = mpmath.linspace(low, high, max(2, int((high - low) / 3) + 2))
        for n, part in enumerate(
            (
                lambda z, f=f: f(root * z),
                lambda z, f=f: f(root * z) ** 2,
                lambda z, f=f: f(root * z) * z / root,
            )
        ):
            totals[n] += (
                mpmath.quad(
                    lambda z, part=part: part(z) * mpmath.npdf(z), cuts, method="gauss-legendre"
                )
                if high > low
                else 0
            )
    return tuple(totals)  # type: ignore[return-value]
