"""Certified Gamma(c) = E[phi(u) psi(v)] and its Taylor coefficients at any c in [-1, 1].

For |c| up to about 0.9, the coefficients come from Hermite series, with one table for all these c.
For smooth functions, the series is also used beyond 0.9 if it converges fast enough. Otherwise, the
integral is computed on the rotated plane, or in one dimension if c = +-1.

Arguments are balls, and values are computed at their midpoints. The change of Gamma^(k)/k! within
the balls is bounded by sup_n binom(n, k) |c|^(n-k) times norms, and added to the radius of the
result.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import takewhile
from typing import Any

from kcalc.fields.balls import Ball, BallField, working
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.certified.derivatives_at_one import end_derivative
from kcalc.gaussian.certified.hermite import CertifiedHermite, cross_series, hermite, largest
from kcalc.gaussian.certified.jumps import continuous
from kcalc.gaussian.certified.line import certified, expect, log_upper, moment
from kcalc.gaussian.certified.plane import Plane, Tiling

_SPARE = 3  # extra digits
_TERMS_PER_DIGIT = 24
_FIRST_TABLE = 96
_ROUGH = 64  # precision of bounds, in bits


def cross(
    phi: Any, psi: Any, gap: Ball, q1: Ball, q2: Ball, order: int, field: BallField
) -> list[Ball]:
    """Return Gamma^(k)(c)/k! at c = 1 - gap for k = 0 ... order.

    Raises KcalcError for infinite derivatives, for functions that ball arithmetic does not support,
    and for inexact arguments if phi jumps and the change has no known bound.
    """
    from flint import arb

    with field.working():
        same = q1 is q2 or (q1.is_exact() and q2.is_exact() and q1 == q2)
        m1 = arb(q1.mid())
        m2 = m1 if same else arb(q2.mid())
        centre = arb(gap.mid())
        inexact = [not x.is_exact() for x in (gap, q1, q2)]
        if gap.is_exact() and (centre == 0 or centre == 2):
            return _at_end(phi, psi, 1 if centre == 0 else -1, q1, q1 if same else q2, order, field)
        centre = arb(0) if centre < 0 else arb(2) if centre > 2 else centre
        values = list(_exact(phi, psi, _key(centre), _key(m1), _key(m2), order, field))
        if any(inexact):
            values = [v + _movement(phi, psi, gap, q1, q2, k, field) for k, v in enumerate(values)]
        return values


def _key(x: Ball) -> Any:
    return x.man_exp()


def _at_end(
    phi: Any, psi: Any, sign: int, q1: Ball, q2: Ball, order: int, field: BallField
) -> list[Ball]:
    if phi is psi and q1 is q2 and sign > 0:
        values = [moment(phi, "second_moment", q1, field)]
    else:
        second = certified(psi, q2, field)
        factors = [
            (certified(phi, q1, field), q1.sqrt()),
            (second if sign > 0 else second.mirrored(), q2.sqrt()),
        ]
        values = [
            expect(
                factors,
                field.bits,
                what=f"E {phi.name}(u) {psi.name}(v) at c = {sign}, q = {q1.str(6, radius=False)}",
            )
        ]
    return values + [
        end_derivative(phi, psi, q1, q2, sign, k, field) / math.factorial(k)
        for k in range(1, order + 1)
    ]


@lru_cache(maxsize=4096)
def _exact(
    phi: Any, psi: Any, gap_key: Any, key1: Any, key2: Any, order: int, field: BallField
) -> tuple[Ball, ...]:
    """Return Gamma^(k)/k! for k = 0 ... order, at exact arguments with 0 <= gap <= 2."""
    from flint import arb

    gap, q1, q2 = arb(gap_key), arb(key1), arb(key2)
    q2 = q1 if key1 == key2 else q2
    if gap == 0 or gap == 2:
        return tuple(_at_end(phi, psi, 1 if gap == 0 else -1, q1, q2, order, field))
    scale = _log_scale(phi, psi, q1, q2, field)
    found = _by_series(phi, psi, gap, q1, q2, order, scale, field)
    if found is not None:
        return tuple(found)
    if order > 2:
        raise KcalcError(
            f"activation {phi.name} has no certified Taylor coefficients of order {order} > 2 "
            f"near |c| = 1"
        )
    return tuple(_by_plane(phi, psi, gap, q1, q2, order, scale, field))


def _log_scale(phi: Any, psi: Any, q1: Ball, q2: Ball, field: BallField) -> float:
    """Return the log of the allowed error."""
    product = moment(phi, "second_moment", q1, field) * moment(psi, "second_moment", q2, field)
    return log_upper(product) / 2 - (field.digits + _SPARE) * math.log(10)


# --- by Hermite series ----------------------------------------------------------------------------


def _by_series(
    phi: Any, psi: Any, gap: Ball, q1: Ball, q2: Ball, order: int, scale: float, field: BallField
) -> list[Ball] | None:
    """Return the values of the series, or None if no affordable table is accurate enough."""
    c = 1 - gap
    fall = -log_upper(c)
    needed = (field.digits + 6) * math.log(10)
    most = _TERMS_PER_DIGIT * field.digits
    tables = (phi, psi, q1, q2, field)
    if needed <= fall * most * 1.1:
        for terms in _ladder(most):
            if 1.3 * terms * fall >= needed or terms == most:
                found = _series_of(*_pair(*tables, terms), c, order, scale)
                if found is not None:
                    return found
        return None
    if order or phi.base.kinks or psi.base.kinks:
        return None
    first, second = _pair(*tables, _FIRST_TABLE)
    reached = -log_upper(first.rest * second.rest) + (log_upper(first.norm * second.norm))
    for terms in _ladder(most):
        growth = math.sqrt(terms / _FIRST_TABLE)
        if reached * growth + terms * fall >= needed:
            found = _series_of(*_pair(*tables, terms), c, order, scale)
            if found is not None:
                return found
    return None


def _ladder(most: int) -> list[int]:
    """Return table lengths to try, each twice the previous length, up to ``most``."""
    steps = (_FIRST_TABLE << k for k in range(most.bit_length()))
    return [*takewhile(lambda n: n < most, steps), most]


def _pair(
    phi: Any, psi: Any, q1: Ball, q2: Ball, field: BallField, terms: int
) -> tuple[CertifiedHermite, CertifiedHermite]:
    with field.working():
        first = hermite(certified(phi, q1, field), q1, terms, field)
        return first, (
            first
            if phi == psi and q1 is q2
            else hermite(certified(psi, q2, field), q2, terms, field)
        )


def _series_of(
    first: CertifiedHermite, second: CertifiedHermite, c: Ball, order: int, scale: float
) -> list[Ball] | None:
    values = cross_series(first, second, c, order)
    narrow = (
        v.is_finite() and log_upper(v.rad()) <= scale + 2.3 + max(0.0, log_upper(v)) for v in values
    )
    return values if all(narrow) else None


# --- otherwise ------------------------------------------------------------------------------------


def _by_plane(
    phi: Any, psi: Any, gap: Ball, q1: Ball, q2: Ball, order: int, scale: float, field: BallField
) -> list[Ball]:
    """Compute the values on the rotated plane, with v reflected if c < 0."""
    from flint import arb

    negative, near = gap > 1, gap
    if negative:  # exactly 2 - gap, which may have more digits than the field
        digits, exponent = gap.man_exp()
        near = arb((2 * 2 ** -int(exponent) - digits, exponent))
    octave = math.frexp(float(near))[1]
    same = phi == psi and q1 is q2
    given = (phi, psi, _key(q1), _key(q2), same, negative, octave, order, scale, field)
    plane, shared = _plane(near, *given), _tiling(*given)
    return [-v if negative and k % 2 else v for k, v in enumerate(plane.values(shared))]


def _plane(
    near: Ball,
    phi: Any,
    psi: Any,
    key1: Any,
    key2: Any,
    same: bool,
    negative: bool,
    octave: int,
    order: int,
    scale: float,
    field: BallField,
) -> Plane:
    """Return the plane for 1 - |c| = ``near``, a number or a ball in [2^(octave - 1), 2^octave]."""
    from flint import arb

    bits = field.bits + 32 + order * max(0, 1 - octave)
    with working(bits):
        q1, q2 = arb(key1), arb(key2)
        first = (certified(phi, q1, field), q1.sqrt())
        second = first if same else (certified(psi, q2, field), q2.sqrt())
        if negative:
            second = (second[0].mirrored(), second[1])
        return Plane(first, second, near, [scale] * (order + 1), bits, field.digits)


@lru_cache(maxsize=256)
def _tiling(*given: Any) -> Tiling | None:
    """Return one tiling for all 1 - |c| with the same binary exponent, or None."""
    from flint import arb

    top = 2.0 ** given[6]
    with working(_ROUGH):
        near = arb(top * (0.5 - 2**-20)).union(arb(top))
    try:
        return _plane(near, *given).tiling()
    except KcalcError:  # the range is too wide to tell kinks apart, or there are too many cells
        return None


# --- balls as arguments ---------------------------------------------------------------------------


def _movement(phi: Any, psi: Any, gap: Ball, q1: Ball, q2: Ball, k: int, field: BallField) -> Ball:
    """Return a ball around 0 that covers the change in Gamma^(k)/k! over the arguments' radii."""
    from flint import arb

    size = abs(1 - gap)
    size = arb(size.upper()).min(arb(1))
    norms = [
        moment(f, "second_moment", q, field).abs_upper().sqrt() for f, q in ((phi, q1), (psi, q2))
    ]
    total = arb(0)
    if not gap.is_exact():
        total += _rate(phi, psi, size, q1, q2, k, norms, field) * gap.rad()
    for f, q, other in ((phi, q1, norms[1]), (psi, q2, norms[0])):
        if not q.is_exact():
            if not continuous(f):
                raise KcalcError(
                    f"{f.name} jumps, so its C map has no certified bound if q is known only as a "
                    f"ball ({q.str(6)})"
                )
            radial = _norm(f"u {f.name}'(u)", f, q, 1, field, (0, 0, q)) / (2 * q)
            total += largest(size, k, 0) * radial * other * q.rad()
    if not total.is_finite():
        raise KcalcError(
            f"the derivative of order {k} in c of {phi.name} near |c| = 1 is not bounded over "
            "the balls passed as c and q"
        )
    return arb(0, total.abs_upper())


def _rate(
    phi: Any, psi: Any, c: Ball, q1: Ball, q2: Ball, k: int, norms: list[Ball], field: BallField
) -> Ball:
    """Return a bound on Gamma^(k+1)/k! over the ball.

    Let m be such that phi^(m-1) and psi^(m-1) are continuous, and j = k + 1 - m. Then Gamma^(k+1)
    is (q1 q2)^(m/2) times derivative j of E[phi^(m)(u) psi^(m)(v)]. That derivative is at most j!
    sup_n binom(n, j) |c|^(n-j) times the norms of phi^(m) and psi^(m).
    """
    m = 0
    while m <= k and continuous(phi, m) and continuous(psi, m):
        m += 1
    if m:
        norms = [
            _norm(f"derivative {m} of {f.name}", f, q, m, field) for f, q in ((phi, q1), (psi, q2))
        ]
    j = k + 1 - m
    return (
        norms[0]
        * norms[1]
        * (q1 * q2).sqrt() ** m
        * largest(c, j, 0)
        * math.factorial(j)
        / math.factorial(k)
    )


def _norm(
    what: str, phi: Any, q: Ball, order: int, field: BallField, weight: tuple[Any, ...] = (1,)
) -> Ball:
    """Return a bound on sqrt(E w(z) phi^(order)(u)^2); ``weight`` lists w's coefficients."""
    factor = (certified(phi, q, field, order), q.sqrt())
    text = f"E ({what})^2 at q = {q.str(6, radius=False)}"
    return expect([factor, factor], field.bits, weight, text).abs_upper().sqrt()
