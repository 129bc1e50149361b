"""Accurate evaluation of smooth expressions near 0.

Evaluated directly, ``exp(x) - 1``, ``log(1 + x)`` and ``x - tanh(x)`` lose digits near 0.

Expressions are rewritten with expm1 and log1p where this helps. If the values near 0 are still
inaccurate, compared with an evaluation in many digits, a Taylor series replaces them there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from kcalc.fields.expressions import Rewriting, inside
from kcalc.foundation.process_state import alone, decimal_digits, lambdify

Array = np.ndarray

PROBES = (1e-3, 1e-6, -1e-3, -1e-6)
KEPT = 1e-13  # largest relative error at the probes at which an expression is kept
LARGE = 1e-2  # cancellation is harmless if the value at 0 is larger than this
ORDER, DIGITS = 36, 60
RADII = (0.25, 0.1, 0.03, 0.01)
NOISE = 1e-25  # smaller Taylor coefficients are zeros with rounding errors


@dataclass(frozen=True)
class NearZero:
    """A Taylor polynomial, accurate for ``|x| < radius``."""

    radius: float
    coefficients: tuple[float, ...]

    def __call__(self, x: Any) -> Any:
        """Evaluate the polynomial at NumPy or JAX arrays by Horner's rule."""
        total = x * 0 + self.coefficients[-1]
        for coefficient in self.coefficients[-2::-1]:
            total = total * x + coefficient
        return total


def kept(piece: sp.Expr) -> sp.Expr:
    """Rewrite the expression with expm1 and log1p if possible."""
    return _Kept()(piece)


class _Kept(Rewriting):
    """Rewriter that introduces expm1 and log1p.

    Branches that express the same function in two ways to avoid overflow remain separate.
    """

    def visit(self, expr: Any) -> Any:
        return super().visit(expr) if expr.has(sp.exp, sp.log) else expr

    def function(self, kind: Any, *arguments: Any) -> Any:
        from sympy.codegen.cfunctions import log1p

        written = super().function(kind, *arguments)
        less = inside(written) - 1 if isinstance(written, sp.log) else None
        return log1p(less) if less is not None and less.as_coeff_Add()[0] == 0 else written

    def sum(self, terms: Sequence[Any]) -> Any:
        from sympy.codegen.cfunctions import expm1

        total = super().sum(terms)
        number, rest = total.as_coeff_Add()
        for term in sp.Add.make_args(rest) if number != 0 else ():
            if _is_exponential(term, -number):
                exponential: Any = expm1(inside(term.as_coeff_Mul()[1]))
                return rest - term - number * exponential
        return total


def _is_exponential(term: Any, coefficient: Any) -> bool:
    found, rest = term.as_coeff_Mul()
    return isinstance(rest, sp.exp) and found == coefficient


@alone
def near_zero(piece: sp.Expr, function: Callable[[Array], Array]) -> NearZero | None:
    """Return the Taylor series of ``piece`` if its float evaluation loses digits near 0.

    ``function`` evaluates ``piece`` in floats. Returns None if this evaluation is accurate near 0,
    or if ``piece`` has no Taylor series there.
    """
    if len(piece.free_symbols) != 1 or piece.is_polynomial(*piece.free_symbols):
        return None
    found = function(np.array(PROBES))
    if not np.isfinite(found).all() or np.abs(found).min() > LARGE:
        return None
    exact = lambdify(list(piece.free_symbols), piece, modules="mpmath")
    try:
        with decimal_digits(DIGITS):
            if all(
                _close(value, exact(mpmath.mpf(point)), KEPT)
                for value, point in zip(found.tolist(), PROBES, strict=True)
            ):
                return None
            return _series(exact)
    except (TypeError, ValueError, ArithmeticError, NotImplementedError, mpmath.mp.NoConvergence):
        return None


def _series(exact: Callable[[Any], Any]) -> NearZero | None:
    taylor = [float(mpmath.re(a)) for a in mpmath.taylor(exact, 0, ORDER)]
    coefficients = tuple(0.0 if abs(a) < NOISE else a for a in taylor)
    for radius in RADII:
        found = NearZero(radius, coefficients)
        points = [sign * radius * part for sign in (1, -1) for part in (1, 0.6, 0.01)]
        if all(_close(found(point), exact(mpmath.mpf(point)), 1e-15) for point in points):
            return found
    return None


def _close(value: float, exact: Any, tolerance: float) -> bool:
    return abs(mpmath.mpf(value) - exact) <= tolerance * abs(exact)
