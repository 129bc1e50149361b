"""Local maps in a ball field: closed forms if possible, else certified integrals.

Closed forms that lose digits to cancellation are evaluated with more digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kcalc.fields.balls import Ball, BallField, ball_field
from kcalc.foundation.errors import KcalcError
from kcalc.foundation.plain_arguments import whole
from kcalc.gaussian.certified.cross import cross
from kcalc.gaussian.certified.hermite import hermite
from kcalc.gaussian.certified.line import certified, moment, positive

_DEEPER = (1, 2, 4)  # multiples of the digits at which a closed form is tried
_MOST_DIGITS = 1000
WHAT = "a certified enclosure"
_COARSE = 1e-6  # a closed form wider than this is compared with the integral


def moment_ball(
    phi: Any, quantity: str, closed: Callable[[Any, Any], Any], q: Ball, field: BallField
) -> Ball:
    """Return ``quantity`` ("mean", "second_moment", "mean_slope", "q_slope") of phi at q as a ball.

    Raises KcalcError if q is not certainly positive, if the expectation diverges, or if growth is
    not proven.
    """
    phi.refuse_symbols(WHAT)
    q = positive(field.number(q))
    found = _closed(lambda deeper: _as_tuple(closed(q, deeper)), [q], field)
    return _better(found, lambda: (moment(phi, quantity, q, field),), field)[0]


def taylor_balls(
    phi: Any, gap: Ball, q1: Ball, q2: Ball, order: int, field: BallField
) -> tuple[Ball, ...]:
    """Return (1 - C, C', C''/2, ...) at c = 1 - gap as balls.

    Raises KcalcError for c outside [-1, 1] and for infinite derivatives.
    """
    phi.refuse_symbols(WHAT)
    same = q1 is q2
    gap, q1 = _clipped(field.number(gap), field), positive(field.number(q1))
    q2 = q1 if same else positive(field.number(q2))
    found = _closed(
        lambda deeper: phi._closed_taylor(gap, q1, q2, order, deeper), [gap, q1, q2], field
    )
    return _better(found, lambda: _integrated(phi, gap, q1, q2, order, field), field)


def hermite_coefficients(phi: Any, q: Any, count: int, field: BallField) -> tuple[Ball, ...]:
    """Return a_0 ... a_(count-1) of the series phi(sqrt q z) = sum_n a_n h_n(z), for an exact q.

    h_n are the orthonormal Hermite polynomials.
    """
    q = positive(field.number(q))
    if not q.is_exact():
        raise KcalcError(
            "Hermite coefficients need an exact q (an integer, a fraction with denominator 2^k, "
            "or a float)"
        )
    count = whole(count, "count, a number of coefficients,", 1, 4000)
    with field.working():
        table = hermite(certified(phi, q, field), q, max(count - 1, 16), field)
        return tuple(table.coefficient(n) for n in range(count))


# --- arguments ------------------------------------------------------------------------------------


def _clipped(gap: Ball, field: BallField) -> Ball:
    """Return the part of the ball inside [0, 2], rounded slightly outwards.

    Raises KcalcError if there is no such part.
    """
    from flint import arb

    if gap >= 0 and gap <= 2:
        return gap
    if gap < 0 or gap > 2:
        raise KcalcError(f"a c value is a cosine and must be in [-1, 1], got {(1 - gap).str(12)}")
    with field.working():
        return arb(gap.lower()).max(arb(0)).union(arb(gap.upper()).min(arb(2)))


def _as_tuple(value: Any) -> tuple[Any, ...] | None:
    return None if value is None else (value,)


# --- closed forms and integrals -------------------------------------------------------------------


def _closed(
    read: Callable[[BallField], tuple[Any, ...] | None], given: list[Ball], field: BallField
) -> tuple[Ball, ...] | None:
    """Evaluate the closed form at the field's precision, or a higher one if balls are too wide.

    Returns None if there is no closed form.
    """
    best: tuple[Ball, ...] | None = None
    for factor in _DEEPER if all(x.is_exact() for x in given) else _DEEPER[:2]:
        deeper = ball_field(min(field.digits * factor, _MOST_DIGITS))
        try:
            with deeper.working():
                values = read(deeper)
                values = (
                    None
                    if values is None
                    else tuple(
                        value if hasattr(value, "rad") else deeper.number(value) for value in values
                    )
                )
        except KcalcError:
            continue
        if values is None:
            return None
        best = values if best is None else _narrower(best, values)
        if _width(best) <= 10.0 ** -(field.digits + 2):
            break
    return best


def _width(values: tuple[Ball, ...]) -> float:
    """Return the largest radius, relative to midpoints above 1.

    The result is infinite if a ball is not finite.
    """
    if not all(value.is_finite() for value in values):
        return float("inf")
    return max(float(value.rad()) / max(1.0, float(abs(value.mid()))) for value in values)


def _narrower(one: tuple[Ball, ...], other: tuple[Ball, ...]) -> tuple[Ball, ...]:
    return one if _width(one) <= _width(other) else other


def _better(
    found: tuple[Ball, ...] | None, integrate: Callable[[], tuple[Ball, ...]], field: BallField
) -> tuple[Ball, ...]:
    """Return the balls ``found`` from the closed form if they are narrow.

    Otherwise, return the narrower of these balls and the certified integral, or whichever exists.
    The result is rounded to the field's precision.
    """
    if found is None or _width(found) > _COARSE:
        try:
            integral = integrate()
        except KcalcError:
            if found is None or _width(found) == float("inf"):
                raise
        else:
            found = integral if found is None else _narrower(found, integral)
    with field.working():
        return tuple(+value for value in found)  # type: ignore[union-attr]


def _integrated(
    phi: Any, gap: Ball, q1: Ball, q2: Ball, order: int, field: BallField
) -> tuple[Ball, ...]:
    from flint import arb

    same = q1 is q2 or (q1.is_exact() and q2.is_exact() and q1 == q2)
    values = cross(phi, phi, gap, q1, q1 if same else q2, order, field)
    with field.working():
        first = phi.second_moment(q1, field)
        norm = first if same else (first * phi.second_moment(q2, field)).sqrt()
        if not norm > 0:
            raise KcalcError(
                f"activation {phi.name!r} is not proven to have E phi^2 > 0, so it has no "
                f"certified C map"
            )
        drop = arb(0) if same and gap == 0 else 1 - values[0] / norm
        return (drop, *(value / norm for value in values[1:]))
