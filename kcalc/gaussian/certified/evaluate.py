"""Smooth SymPy expressions as functions of balls.

Balls may be real, or complex with a check of analyticity.

The result for a complex box encloses f on the whole box. It is not finite unless f is analytic on
the whole box, so the error bounds of quadrature rules can rely on it. Functions with branch cuts
are not finite on boxes that touch a cut. log(1 + e^g), log cosh g and 1/(1 + e^g) are rewritten to
avoid needless cuts and overestimation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy as sp

from ...fields.balls import Ball, Numbers
from ...fields.expressions import CORNERED, FUNCTIONS, Known, inside
from ...fields.programs import Program, logistic
from ...foundation.errors import KcalcError, glimpse

Function = Callable[[Any], Any]
Bound = Callable[[], Ball]
"""A number as a ball at the current precision."""


@dataclass(frozen=True, eq=False)
class Smooth:
    """A smooth function on real balls and on complex balls.

    ``complex`` checks that the function is analytic.
    """

    real: Function
    complex: Function
    zero: bool = False  # whether the function is identically 0

    def affine(self, a: Bound, b: Bound, scale: Bound, shift: Bound) -> Smooth:
        """Return the function x -> scale (f(a x + b) + shift)."""

        def changed(inner: Function) -> Function:
            return lambda x: scale() * (inner(a() * x + b()) + shift())

        return Smooth(changed(self.real), changed(self.complex))

    def mirrored(self) -> Smooth:
        """Return the function x -> f(-x)."""
        real, complex_ = self.real, self.complex
        return Smooth(lambda x: real(-x), lambda x: complex_(-x), self.zero)


def symbol_of(expr: sp.Expr) -> Any:
    """Return the symbol of an expression with at most one symbol."""
    return next(iter(expr.free_symbols), sp.Dummy())


@lru_cache(maxsize=1024)
def compile_smooth(expr: sp.Expr) -> Smooth:
    """Return the smooth function of ``expr``, an expression with at most one symbol.

    Raises KcalcError if a function has no certified evaluation; the message names the function.
    """
    if expr.has(*CORNERED):
        raise KcalcError(
            f"{glimpse(expr)} has corners, so it has no certified enclosures as a smooth function"
        )
    symbol = symbol_of(expr)
    real, complex_ = Program([expr], symbol), _Uncut([expr], symbol)
    return Smooth(real.function_of(REAL), complex_.function_of(COMPLEX), expr == 0)


class _Uncut(Program):
    """Programs that run on complex balls, rewritten if the plain form has needless cuts."""

    def function(self, kind: Any, *arguments: Any) -> int:
        (argument,) = arguments
        exponent = logistic(argument) if kind is sp.log else None
        if exponent is not None:
            return self.applied(_softplus, exponent)
        if kind is sp.log and isinstance(argument, sp.cosh):
            return self.applied(_log_cosh, inside(argument))
        return super().function(kind, *arguments)

    def power(self, base: Any, exponent: Any) -> int:
        inner = logistic(base) if exponent == -1 else None
        if inner is not None:  # 1/(1 + e^g) = (1 - tanh(g/2))/2
            return self.applied(lambda g: (1 - (g / 2).tanh()) / 2, inner)
        return super().power(base, exponent)


class _Complex(Numbers):
    """Complex balls; a result is not finite unless the function is analytic on the whole box."""

    def root(self, u: Any) -> Any:
        return u.sqrt(analytic=True)

    def raised(self, u: Any, exponent: Any) -> Any:
        return u.pow(exponent + 0 * u, analytic=True)

    def function(self, kind: Any, u: Any) -> Any:
        known = FUNCTIONS[kind]
        if not known.cuts:
            return getattr(u, known.name)()
        return u.log(analytic=True) if kind is sp.log else _off_cuts(u, known)


REAL, COMPLEX = Numbers(), _Complex()


def _nothing() -> Any:
    from flint import acb, arb

    return acb(arb.nan(), arb.nan())


def _off_cuts(z: Any, known: Known) -> Any:
    """Return the principal branch, which is not finite on boxes that touch a cut."""
    real, imag = z.real, z.imag
    along, across = (imag, real) if known.cuts == "imaginary" else (real, imag)
    clear = real > 1 if known.cuts == "below 1" else abs(along) < 1
    if not clear and across.contains(0):
        return _nothing()
    return _asinh(z) if known.name == "asinh" else getattr(z, known.name)()


def _asinh(z: Any) -> Any:
    """Return asinh away from its cuts.

    Arb's function is finite on wide boxes only in the left half plane.
    """
    if z.real < 0:
        return z.asinh()
    if z.real > 0:
        return -((-z).asinh())
    return (z + (1 + z * z).sqrt(analytic=True)).log(analytic=True)


def _softplus(g: Any) -> Any:
    """Return log(1 + e^g), continued from the real axis to all g except Re g = 0, |Im g| >= pi."""
    from flint import arb

    if g.real > 0:
        return g + (1 + (-g).exp()).log(analytic=True)
    if g.real < 0 or abs(g.imag) < arb.pi():
        return (1 + g.exp()).log(analytic=True)
    return _nothing()


def _log_cosh(g: Any) -> Any:
    """Return log cosh g = log(1 + e^(2g)) - g - log 2."""
    from flint import arb

    if g.real < 0:
        g = -g
    return g + _softplus(-2 * g) - arb(2).log()
