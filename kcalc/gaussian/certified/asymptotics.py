"""Functions of germs, by asymptotic forms of large arguments and series of almost constant ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import sympy as sp

from ...fields.programs import U, coefficients, taylor_program
from .germs import NEAR, Germ
from .ranges import below, function_span, span, times
from .scales import bounds_of
from .taylor import ends


class Germs:
    """Germs on a stretch as numbers of programs."""

    def number(self, expr: Any) -> Any:
        return expr

    def sign(self, u: Germ) -> int:
        low, high = u.lead[1]
        return 1 if low > 0 else -1 if high < 0 else 0

    def joined(self, options: list[Germ]) -> Germ:
        return reduce(Germ.joined, options)

    def power(self, u: Germ, exponent: Any) -> Germ:
        return u.power(exponent)

    def circular(self, u: Germ, argument: Any) -> tuple[Germ, Germ]:
        from flint import arb

        sin, cos = _expanded(sp.sin, u), _expanded(sp.cos, u)
        if sin is not None and cos is not None:
            return sin, cos
        low, high = u.span
        if not high - low < 2 * math.pi:
            return u.within((-1.0, 1.0)), u.within((-1.0, 1.0))
        first, second = arb(low).union(arb(high)).sin_cos()
        return u.within(ends(first)), u.within(ends(second))

    def wave(self, kind: Any, u: Germ, argument: Any) -> Germ:
        return self.circular(u, argument)[kind is sp.cos]

    def function(self, kind: Any, u: Germ) -> Germ:
        if kind in (sp.exp, sp.log):
            return u.exp() if kind is sp.exp else u.log()
        low, high = u.span
        side = 1 if low >= 1 else -1 if high <= -1 else 0
        if side and kind in _FAR:
            return _FAR[kind](self, u * side, side)
        return _expanded(kind, u) or u.within(function_span(kind, (low, high)))

    def outer(self, kind: Any, u: Germ, order: int) -> list[Germ]:
        """The Taylor coefficients of a function at u."""
        return taylor_program(kind, order).run(u, self)


def _expanded(kind: Any, u: Germ) -> Germ | None:
    """f(u) by its Taylor series, where u is a number and little more, and f smooth there."""
    growing, number, small = u.split()
    if growing.exact or max(map(abs, small.span)) > NEAR:
        return None
    parts: list[Any] = [part.xreplace({U: number + U}) for part in coefficients(kind)]
    exact = [part.xreplace({U: sp.S.Zero}).doit() for part in parts]
    if any(part.has(sp.zoo, sp.oo, sp.nan) for part in exact):
        return None
    return small.series(exact, lambda k, d: span(parts[k], U, *d))


# --- functions of u >= 1, and of -u for side = -1 -------------------------------------------------


def _tanh(numbers: Germs, u: Germ, side: int) -> Germ:
    small = (u * -2).exp()
    return (1 - 2 * small * (1 + small).power(sp.S.NegativeOne)) * side


def _sech(numbers: Germs, u: Germ, side: int) -> Germ:
    small = (-u).exp()
    return 2 * small * (1 + small * small).power(sp.S.NegativeOne)


def _hyperbolic(parity: int) -> Callable[[Germs, Germ, int], Germ]:
    """cosh for parity = 1, sinh for -1."""

    def value(numbers: Germs, u: Germ, side: int) -> Germ:
        return (u.exp() + parity * (-u).exp()) * (side if parity < 0 else 1) * sp.S.Half

    return value


def _erfc(numbers: Germs, u: Germ, side: int) -> Germ:
    """e^(-u^2)/(u sqrt pi) times a number in [1 - 1/(2 u^2), 1]."""
    least = u.span[0]
    share = times(bounds_of(1 / sp.sqrt(sp.pi)), (below(1 - 0.5 / least / least), 1.0))
    small = (-(u * u)).exp() * u.power(sp.S.NegativeOne) * u.within(share)
    return small if side > 0 else 2 - small


def _erf(numbers: Germs, u: Germ, side: int) -> Germ:
    return (1 - _erfc(numbers, u, 1)) * side


def _atan(numbers: Germs, u: Germ, side: int) -> Germ:
    return (sp.pi / 2 - numbers.function(sp.atan, u.power(sp.S.NegativeOne))) * side


def _area(shift: int) -> Callable[[Germs, Germ, int], Germ]:
    """asinh for shift = 1, acosh for -1: log(u + sqrt(u^2 + shift))."""

    def value(numbers: Germs, u: Germ, side: int) -> Germ:
        return (u + (u * u + shift).power(sp.S.Half)).log() * side

    return value


_FAR: dict[Any, Callable[[Germs, Germ, int], Germ]] = {
    sp.tanh: _tanh,
    sp.sech: _sech,
    sp.sinh: _hyperbolic(-1),
    sp.cosh: _hyperbolic(1),
    sp.erf: _erf,
    sp.erfc: _erfc,
    sp.atan: _atan,
    sp.asinh: _area(1),
    sp.acosh: _area(-1),
}
