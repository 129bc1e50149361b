"""A branch of solutions, followed by its length.

It is the curve on which the first equation holds, walked to where it meets a target or turns back.

Solvers that step in the target stop short of a fold, where the target is extreme; by length a fold
is an ordinary point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ..foundation.errors import KcalcError
from .conditions import Equations, System
from .moments import moments
from .solver import FARTHEST, LARGEST, LEAST, Point, needed

STRIDE = 0.08  # of length
SOLVED = 1  # the least fineness of the rules used here
STEPS = 240
GOLDEN = (math.sqrt(5) - 1) / 2
FLAT = 1e-8  # of length, at an extreme target: its error is of the order of the square


@dataclass(frozen=True)
class End:
    """The last point of a curve and the target there.

    ``exact``: whether the target is an extremum, and not merely as far as was looked.
    """

    target: float
    exact: bool
    point: Point


@dataclass(frozen=True)
class Place:
    """A point of the curve, its target, and the direction of the curve there.

    The direction is in (log alpha, beta/unit).
    """

    point: Point
    target: float
    direction: tuple[float, float]
    unit: float

    def turned(self) -> Place:
        """The same place, facing the other way."""
        return Place(self.point, self.target, (-self.direction[0], -self.direction[1]), self.unit)


def _at(system: System, s: float, beta: float) -> Equations | None:
    if not (LEAST < s < LARGEST and abs(beta) < FARTHEST):
        return None
    try:
        m = moments(system.phi, s, beta, max(SOLVED, needed(system.phi, s)), system.order)
        found = system.equations(m)
    except (KcalcError, ZeroDivisionError, OverflowError, ValueError):
        return None
    return found if all(map(math.isfinite, (*found[:2], *found.d_first))) else None


def _place(
    system: System,
    s: float,
    beta: float,
    like: tuple[float, float] | None,
    across: tuple[float, float] | None,
) -> Place | None:
    """The place of the curve near (s, beta), or None.

    It is sought in the direction ``across`` (default: that of the gradient), and faces as ``like``
    does.
    """
    unit = max(1.0, math.exp(s)) if not system.phi.kinks else math.exp(s)
    for _ in range(20):
        found = _at(system, s, beta)
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
            facing = like is None or d[0] * like[0] + d[1] * like[1] >= 0
            return Place(
                Point(s, beta), found.second + system.target, d if facing else (-d[0], -d[1]), unit
            )
    return None


def _ahead(system: System, here: Place, length: float) -> Place | None:
    """The place of the curve at a length along the tangent."""
    d = here.direction
    return _place(
        system,
        here.point.log_alpha + length * d[0],
        here.point.beta + length * d[1] * here.unit,
        d,
        (-d[1], d[0]) if length else None,
    )


def walk(system: System, start: Point) -> tuple[Point | None, End | None]:
    """Walk from ``start`` towards the system's target.

    Returns: (the point that has it, None), or (None, the end of the curve); (None, None) where the
    curve cannot be followed at all.
    """
    here = _place(system, start.log_alpha, start.beta, None, None)
    probe = None if here is None else _ahead(system, here, 1e-4)
    if here is None or probe is None or here.target <= 0:
        return None, None
    # targets, times sign, are to grow from here on
    sign = 1.0 if system.target > here.target else -1.0
    if sign * (probe.target - here.target) < 0:
        here = here.turned()
    before, behind, stride = here, 0.0, STRIDE
    for _ in range(STEPS):
        after = _ahead(system, here, stride)
        if after is None:
            stride /= 3
            if stride < STRIDE / 30:
                break
            continue
        if sign * (after.target - system.target) >= 0:
            return _crossing(system, here, stride), None
        if sign * (after.target - here.target) <= 0:
            return _at_turn(system, before, sign, (behind + stride) * 1.05)
        before, behind, here = here, stride, after
    return None, End(here.target, False, here.point)


def _level(system: System, here: Place, length: float) -> float:
    found = _ahead(system, here, length)
    return math.nan if found is None else found.target


def _crossing(system: System, here: Place, length: float) -> Point | None:
    """Where the curve has the target, between ``here`` and a length ahead."""
    from scipy.optimize import brentq

    try:
        root: Any = brentq(
            lambda t: _level(system, here, t) - system.target, 0.0, length, xtol=1e-13
        )
    except (
        ValueError
    ):  # where rounding moves the level as much as the curve does, far out on a tail
        return None
    found = _ahead(system, here, float(root))
    return None if found is None else replace(found.point, fineness=SOLVED)


def _at_turn(
    system: System, here: Place, sign: float, length: float
) -> tuple[Point | None, End | None]:
    """The extremum within a length ahead by golden section.

    Where the extremum passes the target, it is the crossing before it.
    """
    a, b = 0.0, length
    c, d = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
    at_c, at_d = sign * _level(system, here, c), sign * _level(system, here, d)
    while b - a > FLAT:
        if at_c > at_d:
            b, d, at_d = d, c, at_c
            c = b - GOLDEN * (b - a)
            at_c = sign * _level(system, here, c)
        else:
            a, c, at_c = c, d, at_d
            d = a + GOLDEN * (b - a)
            at_d = sign * _level(system, here, d)
    top = _ahead(system, here, (a + b) / 2)
    if top is None:
        return None, End(here.target, False, here.point)
    if sign * (top.target - system.target) >= 0:
        return _crossing(system, here, (a + b) / 2), None
    return None, End(top.target, True, top.point)
