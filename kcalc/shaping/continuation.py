"""Arc-length continuation of a branch of solutions.

The continuation follows the curve on which the first of two equations holds, until the curve
reaches a target or turns back.

Solvers that take steps in the target stop before a fold, where the target is extremal. In terms of
arc length, a fold is an ordinary point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..foundation.rootfinding import zero_between
from .conditions import EquationPair
from .solver import NewtonPoint, equations_at, inside

STRIDE = 0.08  # step length
SOLVED = 1  # smallest fineness of the rules used here
STEPS = 240


@dataclass(frozen=True)
class BranchEnd:
    """The last point of a curve, and the target there.

    ``exact`` states whether the target is extremal there. If not, the search ended at this point.
    """

    system: EquationPair
    target: float
    exact: bool
    point: NewtonPoint


@dataclass(frozen=True)
class BranchPoint:
    """A point of the curve, with the target and the direction of the curve there.

    The direction is in (log alpha, beta/unit), and ``rise`` is the derivative of the target in that
    direction.
    """

    point: NewtonPoint
    target: float
    rise: float
    direction: tuple[float, float]
    unit: float


def _place(
    system: EquationPair,
    s: float,
    beta: float,
    like: tuple[float, float] | None,
    across: tuple[float, float] | None,
) -> BranchPoint | None:
    """Return the point on the curve near (s, beta) with the tangent there, or None.

    The search direction is ``across``, by default the gradient. The tangent is oriented like
    ``like``.
    """
    unit = max(1.0, math.exp(s)) if not system.phi.kinks else math.exp(s)
    for _ in range(20):
        found = equations_at(system, s, beta, SOLVED) if inside(s, beta) else None
        if found is None:
            return None
        a, b = found.d_first[0], found.d_first[1] * unit
        size = math.hypot(a, b)
        if size == 0:
            return None
        n = across or (a / size, b / size)
        slope = a * n[0] + b * n[1]
        if slope == 0:
            return None
        step = max(-0.3, min(0.3, -found.first / slope))
        s, beta = s + step * n[0], beta + step * n[1] * unit
        if abs(step) < 1e-11:
            d = (b / size, -a / size)
            if like is not None and d[0] * like[0] + d[1] * like[1] < 0:
                d = (-d[0], -d[1])
            rise = found.d_second[0] * d[0] + found.d_second[1] * unit * d[1]
            return BranchPoint(
                NewtonPoint(s, beta, 0.0, SOLVED), found.second + system.target, rise, d, unit
            )
    return None


def _ahead(system: EquationPair, here: BranchPoint, length: float) -> BranchPoint | None:
    """Return the point of the curve at a given length along the tangent."""
    d = here.direction
    return _place(
        system,
        here.point.log_alpha + length * d[0],
        here.point.beta + length * d[1] * here.unit,
        d,
        (-d[1], d[0]) if length else None,
    )


def follow_branch(system: EquationPair, start: NewtonPoint) -> NewtonPoint | BranchEnd | None:
    """Follow the curve from ``start`` towards the system's target.

    Return the point with that target, the end of the curve, or None if the curve cannot be
    followed.
    """
    here = _place(system, start.log_alpha, start.beta, None, None)
    if here is None or here.target <= 0:
        return None
    sign = 1.0 if system.target > here.target else -1.0  # the target times sign should grow
    if sign * here.rise < 0:
        here = replace(here, rise=-here.rise, direction=(-here.direction[0], -here.direction[1]))
    stride = STRIDE
    for _ in range(STEPS):
        after = _ahead(system, here, stride)
        if after is None:
            stride /= 3
            if stride < STRIDE / 30:
                break
            continue
        if sign * after.rise <= 0 and sign * (after.target - system.target) < 0:
            turn = _zero(system, here, stride, lambda place: place.rise)
            top = None if turn is None else _ahead(system, here, turn)
            if turn is None or top is None:
                return BranchEnd(system, here.target, False, here.point)
            if sign * (top.target - system.target) < 0:
                return BranchEnd(system, top.target, True, top.point)
            after, stride = top, turn
        if sign * (after.target - system.target) >= 0:
            length = _zero(system, here, stride, lambda place: place.target - system.target)
            found = None if length is None else _ahead(system, here, length)
            return None if found is None else found.point
        here = after
    return BranchEnd(system, here.target, False, here.point)


def _zero(
    system: EquationPair, here: BranchPoint, length: float, quantity: Callable[[BranchPoint], float]
) -> float | None:
    """Return the distance along the curve, up to ``length``, at which a quantity vanishes.

    Return None if rounding changes the quantity as much as the curve does, which happens far out in
    a tail.
    """

    def value(t: float) -> float:
        place = _ahead(system, here, t) if t else here
        return math.nan if place is None else quantity(place)

    try:
        return zero_between(value, 0.0, length, 1e-13)
    except ValueError:
        return None
