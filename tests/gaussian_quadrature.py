"""Gaussian expectations at any number of digits by rules that share nothing with kcalc.

Pieces between kinks are integrated by Gauss-Legendre panels.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath
import sympy as sp
from flint import arb


def mp(x: Any) -> Any:
    """A SymPy rational, an arb or a number as an mpmath number."""
    if isinstance(x, arb):
        return mpmath.mpf(x.mid().str(mpmath.mp.dps, radius=False))
    if isinstance(x, sp.Rational):
        return mpmath.mpf(Fraction(str(x)).numerator) / Fraction(str(x)).denominator
    return mpmath.mpf(x)


def exactly(expr: Any) -> Any:
    """Floats as the fractions they are."""
    expr = sp.sympify(expr)
    return expr.xreplace({number: sp.Rational(number) for number in expr.atoms(sp.Float)})


def moments(phi: Any, symbol: sp.Symbol, q: Any) -> list[Any]:
    """E phi, E phi^2, E[phi z]/sqrt q by quadrature of the pieces."""
    pieces = [sp.lambdify(symbol, exactly(piece), "mpmath") for piece in phi.pieces]
    root, digits = mpmath.sqrt(mp(q)), mpmath.mp.dps + 5
    kinks = [mpmath.mpf(str(sp.N(exactly(k), digits))) / root for k in phi.kinks]
    reach, totals = 14 + 3 * root, [mpmath.mpf(0)] * 3
    for f, low, high in zip(pieces, [-reach, *kinks], [*kinks, reach], strict=True):
        if high <= low:
            continue
        cuts = mpmath.linspace(low, high, max(2, int((high - low) / 3) + 2))
        for n, part in enumerate(
            (lambda z, y: y, lambda z, y: y**2, lambda z, y: y * z / root),
        ):

            def weighted(z: Any, f: Any = f, part: Any = part) -> Any:
                return part(z, f(root * z)) * mpmath.npdf(z)

            totals[n] += mpmath.quad(weighted, cuts, method="gauss-legendre")
    return totals
