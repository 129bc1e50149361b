"""Truncated Gaussian moments.

These moments give E phi, E phi^2 and E phi' for every activation whose pieces are sums of x^n
e^(rate x). Such activations include all piecewise polynomials (hard_tanh, relu6, hard_swish,
hard_shrink, ...), elu, selu and celu, and many sums, affine transformations and compositions of
them.

On a piece from a to b, u = sqrt(q) z has the density N(x; 0, q). Completing the square gives:

    M_0 = e^(rate^2 q/2) P(a < u + rate q < b),
    M_n = rate q M_(n-1) + (n-1) q M_(n-2) - q [x^(n-1) e^(rate x) N(x; 0, q)]_a^b.

C has no such form. With a kink away from 0, E[phi(u) phi(v)] contains bivariate normal
probabilities, which are not elementary (one corner gives Owen's T function), so C is integrated.
In NumPy, all moments are integrated numerically, because these formulas cancel for small and for
large q.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import sympy as sp
from sympy.functions.elementary.hyperbolic import HyperbolicFunction

from kcalc.activations.pieces import X
from kcalc.fields import SYMPY, Field, Number, mpmath_field
from kcalc.fields.degrees import expandable
from kcalc.fields.expressions import rational

Terms = dict[tuple[int, sp.Expr], sp.Expr]
"""{(n, rate): coefficient}, for the sum of all coefficient * x^n e^(rate x)."""

_MOST = 64  # the highest power of x
_GUARD = (15, 45, 105, 225, 465)  # extra digits tried in mpmath until two agree
_MPMATH = type(mpmath_field(30))


def mean(phi: Any, q: Number, field: Field) -> Number | None:
    """Return E phi(u), or None unless the pieces of phi are sums of x^n e^(rate x)."""
    parts = pieces(phi, field is not SYMPY)
    return None if parts is None else _evaluate(phi, parts, (), q, field)


def second_moment(phi: Any, q: Number, field: Field) -> Number | None:
    """Return E phi(u)^2, or None unless the pieces of phi are sums of x^n e^(rate x)."""
    parts = pieces(phi, field is not SYMPY)
    return (
        None
        if parts is None
        else _evaluate(phi, tuple(_product(part, part) for part in parts), (), q, field)
    )


def mean_slope(phi: Any, q: Number, field: Field) -> Number | None:
    """Return E phi'(u), in which each jump of phi is weighted by the density at its kink.

    The result is None unless the pieces of phi are sums of x^n e^(rate x).
    """
    parts = pieces(phi, field is not SYMPY)
    if parts is None:
        return None
    if field is SYMPY:
        jumps = tuple((kink, jump) for kink, jump in phi.jumps(0) if jump != 0)
    else:
        jumps = tuple(_exact_jumps(phi, parts))
    return _evaluate(phi, tuple(_derivative(part) for part in parts), jumps, q, field)


# --- pieces as sums of x^n e^(rate x) -------------------------------------------------------------


@lru_cache(maxsize=1024)
def pieces(phi: Any, exact: bool = True) -> tuple[Terms, ...] | None:
    """Return the pieces of phi as sums of x^n e^(rate x), or None if a piece has another form.

    With ``exact``, floats are converted to exact fractions, so expanding does not round.
    """
    found = tuple(map(_terms, _exact_pieces(phi) if exact else phi.pieces))
    return None if any(part is None for part in found) else found  # type: ignore[return-value]


def _exact_pieces(phi: Any) -> tuple[sp.Expr, ...]:
    """Return the pieces with floats converted to fractions.

    For a transformed activation they are derived from the original, because the transformed pieces
    already contain rounded products of constants.
    """
    constants = phi.transformation
    if constants is None:
        return tuple(map(rational, phi.pieces))
    a, b = rational(constants.input_scale), rational(constants.input_shift)
    scale, shift = rational(constants.output_scale), rational(constants.output_shift)
    parts = phi.base.pieces[::-1] if a.is_negative else phi.base.pieces
    return tuple(scale * (rational(part).xreplace({X: a * X + b}) + shift) for part in parts)


def _terms(piece: sp.Expr) -> Terms | None:
    if not expandable(piece):
        return None
    if any(
        not isinstance(f, sp.exp | HyperbolicFunction) for f in piece.atoms(sp.Function) if f.has(X)
    ):
        return None
    if any(not _is_power(p) for p in piece.atoms(sp.Pow) if p.has(X)):
        return None
    out: Terms = defaultdict(lambda: sp.Integer(0))
    for term in sp.Add.make_args(
        sp.expand(piece.rewrite(sp.exp) if piece.has(HyperbolicFunction) else piece)
    ):
        factors = _factors(term) if term != 0 else (term, 0, term)
        if factors is None:
            return None
        coefficient, power, rate = factors
        out[power, rate] += coefficient
    return {key: coefficient for key, coefficient in out.items() if coefficient != 0}


def _is_power(p: sp.Basic) -> bool:
    exponent = p.args[1]
    return exponent.has(X) or (exponent.is_Integer and 0 < int(exponent) <= _MOST)  # type: ignore[arg-type]


def _factors(term: sp.Expr) -> tuple[sp.Expr, int, sp.Expr] | None:
    """Return (coefficient, n, rate) of coefficient x^n e^(rate x), or None."""
    coefficient, dependent = term.as_independent(X, as_Add=False)
    power, rate = 0, sp.Integer(0)
    for factor in sp.Mul.make_args(dependent):
        base, exponent = factor.as_base_exp()
        if base == X and exponent.is_Integer and 0 < int(exponent) <= _MOST:
            power += int(exponent)
            continue
        if (
            base.has(X)
            or not exponent.is_polynomial(X)
            or sp.Poly(exponent, X).degree() != 1
            or not base.is_positive
        ):
            if factor != 1:
                return None
            continue
        rate += sp.diff(exponent, X) * sp.log(base)
        coefficient *= base ** exponent.subs(X, 0)
    return (coefficient, power, rate) if coefficient.is_real and rate.is_real else None


def _product(first: Terms, second: Terms) -> Terms:
    out: Terms = defaultdict(lambda: sp.Integer(0))
    for (n, a), x in first.items():
        for (m, b), y in second.items():
            out[n + m, a + b] += x * y
    return out


def _derivative(part: Terms) -> Terms:
    out: Terms = defaultdict(lambda: sp.Integer(0))
    for (n, rate), x in part.items():
        if n:
            out[n - 1, rate] += n * x
        if rate != 0:
            out[n, rate] += rate * x
    return out


def _exact_jumps(phi: Any, parts: tuple[Terms, ...]) -> list[tuple[sp.Expr, sp.Expr]]:
    """Return the (kink, jump) pairs, with jumps computed from exact fractions.

    Pieces do not quite meet at a rounded kink; the jumps include this difference.
    """
    values = []
    for kink, left, right in zip(phi.kinks, parts, parts[1:], strict=False):
        at = rational(kink)
        change = sp.Add(
            *(
                sign * x * at**n * sp.exp(rate * at)
                for sign, part in ((1, right), (-1, left))
                for (n, rate), x in part.items()
            )
        )
        values.append((kink, change))
    return [(kink, change) for kink, change in values if change != 0]


# --- their expectations ---------------------------------------------------------------------------


def _evaluate(
    phi: Any,
    parts: tuple[Terms, ...],
    jumps: tuple[tuple[sp.Expr, sp.Expr], ...],
    q: Number,
    field: Field,
) -> Number:
    """Return the sum of the moments of all pieces, plus each jump multiplied by the density."""

    def total(q: Number, field: Field) -> Number:
        ends: list[Any] = [None, *phi.kinks, None]
        out = 0 * q
        for part, a, b in zip(parts, ends, ends[1:], strict=False):
            for rate in {rate: None for _, rate in part}:
                moments = _moments(
                    a, b, rate, max(n for n, other in part if other == rate), q, field
                )
                for n, moment in enumerate(moments):
                    if (n, rate) in part:
                        out = out + field.number(part[n, rate]) * moment
        for kink, jump in jumps:
            out = out + field.number(jump) * _density(field.number(kink), sp.Integer(0), q, field)
        return out

    if field is SYMPY:
        return _tidy(total(q, field))
    return _steady(total, q, field) if isinstance(field, _MPMATH) else total(q, field)


def _moments(
    a: sp.Expr | None, b: sp.Expr | None, rate: sp.Expr, top: int, q: Number, field: Field
) -> list[Number]:
    """Return M_0 ... M_top for the piece from a to b; None means infinity."""
    slope = field.number(rate)
    out = [field.exp(slope * slope * q / 2) * _probability(a, b, rate, q, field)]
    ends = [(sign, field.number(end)) for sign, end in ((1, b), (-1, a)) if end is not None]
    for n in range(1, top + 1):
        value = slope * q * out[n - 1] + ((n - 1) * q * out[n - 2] if n > 1 else 0)
        for sign, end in ends:
            value = value - sign * q * (end ** (n - 1) if n > 1 else 1) * _density(
                end, rate, q, field
            )
        out.append(value)
    return out


def _density(x: Number, rate: sp.Expr, q: Number, field: Field) -> Number:
    """Return e^(rate x) N(x; 0, q)."""
    return field.exp(field.number(rate) * x - x * x / (2 * q)) / field.sqrt(2 * field.pi * q)


def _probability(
    a: sp.Expr | None, b: sp.Expr | None, rate: sp.Expr, q: Number, field: Field
) -> Number:
    """Return P(a < u < b) for a normal u with mean rate q and variance q.

    The probability is computed as a difference of tail probabilities, lower tails for rate > 0, so
    that no digits cancel.
    """

    def scaled(end: sp.Expr) -> Number:
        return (field.number(end) - field.number(rate) * q) / field.sqrt(2 * q)

    if a is None and b is None:
        return q / q
    if b is None:
        return field.erfc(scaled(a)) / 2  # type: ignore[arg-type]
    if a is None:
        return field.erfc(-scaled(b)) / 2
    if rate == 0 and float(a) <= 0 <= float(b):
        return (field.erf(scaled(b)) - field.erf(scaled(a))) / 2
    if float(rate) > 0 or (rate == 0 and float(b) < 0):
        return (field.erfc(-scaled(b)) - field.erfc(-scaled(a))) / 2
    return (field.erfc(scaled(a)) - field.erfc(scaled(b))) / 2


def _tidy(expr: sp.Expr) -> sp.Expr:
    """Collect the terms of ``expr`` by their factors erf, erfc and exp."""
    expanded = sp.expand(expr, power_base=False)
    groups: dict[sp.Expr, sp.Expr] = defaultdict(lambda: sp.Integer(0))
    for term in sp.Add.make_args(expanded):
        special = [f for f in sp.Mul.make_args(term) if isinstance(f, sp.erf | sp.erfc | sp.exp)]
        groups[sp.Mul(*special)] += term / sp.Mul(*special)
    return sp.Add(
        *(sp.factor_terms(coefficient) * special for special, coefficient in groups.items())
    )


def _steady(total: Callable[[Number, Field], Number], q: Number, field: Field) -> Number:
    """Evaluate ``total`` in mpmath, adding digits until two evaluations agree.

    An exact zero never passes this test and is returned as a tiny number.
    """
    digits, before = field.digits, None  # type: ignore[attr-defined]
    for guard in _GUARD:
        wide = mpmath_field(digits + guard)
        value = total(wide.number(q), wide)
        if before is not None and abs(value - before) <= abs(value) * wide.number(10) ** (
            -digits - 2
        ):
            break
        before = value
    return field.number(value)
