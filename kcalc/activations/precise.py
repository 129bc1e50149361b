"""Local kernel quantities in mpmath numbers, for activations without closed forms.

The results are the midpoints of certified balls. The balls are computed with enough digits that
their radii are below the last digit of the field.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath

from kcalc.fields import Field, Number
from kcalc.fields.balls import Ball, BallField, ball_field, exact_mpf
from kcalc.foundation.errors import KcalcError

_SPARE = (3, 15, 45, 105, 225, 465)  # extra digits, tried in turn
_MOST = 1000  # largest number of digits of the balls
_ZERO = 12  # a ball around 0 counts as 0 if its radius is this many digits below the field's last


def midpoints(
    read: Callable[[BallField], tuple[Ball, ...]], field: Field, positive: bool, what: str
) -> tuple[Number, ...]:
    """Return the midpoints of the balls that ``read`` computes, as numbers of an mpmath field.

    Digits are added until every ball is narrow enough. ``positive`` is True if the first value is
    known to be nonzero; its ball is then too wide if it contains 0. Other balls around 0 count as 0
    if their radius is at most 10^-12 of the field's last digit. Raises KcalcError if 1000 digits
    are not enough. Errors raised by ``read`` propagate.
    """
    digits: int = field.digits  # type: ignore[attr-defined]
    for spare in _SPARE:
        if digits + spare > _MOST:
            break
        balls = read(ball_field(digits + spare))
        allowed = [
            _narrow(ball, digits, positive and place == 0) for place, ball in enumerate(balls)
        ]
        if all(allowed):
            return tuple(field.number(_number(ball)) for ball in balls)
    raise KcalcError(
        f"{what} cannot be certified to {digits} digits; ask for fewer digits, or omit the field "
        f"to compute in double precision"
    )


def _narrow(ball: Ball, digits: int, positive: bool) -> bool:
    radius = exact_mpf(ball.rad())
    if not positive and bool(ball.contains(0)) and radius <= mpmath.mpf(10) ** -(digits + _ZERO):
        return True
    return radius <= mpmath.mpf(10) ** -digits * abs(exact_mpf(ball.mid()))


def _number(ball: Ball) -> Any:
    """Return the midpoint of a ball, or 0 if the ball contains 0."""
    return mpmath.mpf(0) if ball.contains(0) else exact_mpf(ball.mid())
