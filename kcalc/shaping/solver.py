"""The shaping solver: Newton's method along branches that start at alpha = 0.

All methods use this solver; its derivatives are exact.

The branches of a smooth activation start where the activation is nearly linear: at shifts beta that
are zeros of a polynomial in phi', phi'', phi''', with alpha ~ sqrt(target). From there, each branch
is followed to the target. Other solutions (for kinked activations, or on closed loops) come from a
scan over (log alpha, beta). Every solution is refined until a finer quadrature agrees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..activations import Activation
from ..foundation.errors import KcalcError
from ..foundation.rootfinding import zero_between
from .conditions import EquationPair, Equations
from .constants import Constants
from .moments import is_steep, moments, width

ACCEPTED = 1e-13  # largest residual of the two equations, by a finer rule than the solver's
POLISHED = 5e-15
SETTLED = 1e-7  # after a smaller Newton step, the error is at rounding level
LEAST, LARGEST = -25.0, 8.0  # range of log alpha
# |phi'| below TAIL_RTOL of its maximum over |u| <= TAIL_WINDOW is a tail with few digits
TAIL_WINDOW = 8.0
TAIL_RTOL = 1e-7
FARTHEST = 2e4  # largest |beta|
FINEST = 5
SMALL = 0.02  # the first-order start is good enough up to this target
STRIDE = 4.0  # factor between targets along a branch
SHORTEST = 1.01
# range in which branches are searched
SIGHT = np.concatenate(
    [np.linspace(0.0, 8.0, 321), np.geomspace(1e-4, 0.02, 40), np.geomspace(8.1, 800.0, 120)]
)


@dataclass(frozen=True)
class Branch:
    """The start of a branch of solutions: its shift as alpha -> 0, and |phi'/phi''| there."""

    beta: float
    ratio: float


@dataclass(frozen=True)
class NewtonPoint:
    """The current point of Newton's method, its last step, and the fineness of its rule."""

    log_alpha: float
    beta: float
    moved: float = 0.0
    fineness: int = 0


def newton(
    system: EquationPair, start: NewtonPoint, fineness: int = 0, limit: int = 14
) -> NewtonPoint | None:
    """Run Newton's method from ``start``, with steps clipped to a moderate length.

    Return None if the iteration leaves the domain or does not converge.
    """
    s, beta, moved = start.log_alpha, start.beta, 0.0
    for _ in range(limit):
        found = equations_at(system, s, beta, fineness)
        step = None if found is None else found.step
        if step is None:
            return None
        size = max(abs(step[0]), abs(step[1]))
        clip = min(1.0, 0.7 / max(size, 1e-300))
        s, beta, moved = s + clip * step[0], beta + clip * step[1], moved + clip * size
        if not inside(s, beta):
            return None
        if size < SETTLED:
            return NewtonPoint(s, beta, moved, fineness)
    return None


def inside(s: float, beta: float) -> bool:
    """Whether the search covers log alpha = s and this shift."""
    return LEAST < s < LARGEST and abs(beta) < FARTHEST


def needed(phi: Activation, s: float) -> int:
    """Return the smallest fineness at log alpha = s; features of width 1/alpha need short steps.

    Panels adapt to these features, and homogeneous activations scale with alpha.
    """
    gentle = phi.kinks or phi.degree is not None or (s <= 0 and width(phi) == 1)
    if gentle or is_steep(phi, math.exp(s)):
        return 0
    return max(0, math.ceil((s - math.log(width(phi))) / math.log(2)))


def equations_at(
    system: EquationPair, s: float, beta: float, fineness: int = 0
) -> Equations | None:
    """Return the equations at log alpha = s and a shift, using a rule of at least this fineness.

    Return None if phi(alpha x + beta) is constant, or varies too fast for the rules.
    """
    try:
        m = moments(system.phi, s, beta, max(fineness, needed(system.phi, s)), system.order)
        if not (m.variance > 0 and math.isfinite(m.variance) and m.gradient > 0):
            return None
        found = system.equations(m)
    except (KcalcError, OverflowError, ValueError):
        return None
    return found if all(map(math.isfinite, (*found[:2], *found.d_first))) else None


def refined(system: EquationPair, point: NewtonPoint) -> Constants | None:
    """Return the solution near ``point`` on which rules of increasing fineness agree, or None.

    A solution must be confirmed by a finer rule than the rule that found it. Otherwise, the next
    finer rule is tried.
    """
    least = max(point.fineness, needed(system.phi, point.log_alpha))
    for fineness in range(1 + least, max(FINEST, least + 2) + 1):
        found = equations_at(system, point.log_alpha, point.beta, fineness)
        if found is not None and found.residual <= ACCEPTED:
            return _polished(system, point, found, fineness)
        after = newton(system, point, fineness)
        if after is None:
            return None
        point = after
    return None


def _polished(
    system: EquationPair, point: NewtonPoint, found: Equations, fineness: int
) -> Constants:
    """Return the constants at a point, after another Newton step if that gains digits."""
    s, beta = point.log_alpha, point.beta
    step = None if found.residual <= POLISHED else found.step
    after = step and equations_at(system, s + step[0], beta + step[1], fineness)
    if step and after and after.residual < found.residual:
        s, beta, found = s + step[0], beta + step[1], after
    return Constants(system.phi, math.exp(s), beta, *system.output(found.moments))


def by_shift(point: Any) -> tuple[float, float]:
    """Return a sort key for points: the smallest |beta| first, positive before negative.

    ``point`` is an object with a ``beta``; None counts as 0.
    """
    beta = point.beta or 0.0
    return round(abs(beta), 9), -beta


# -- branches --------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def branches(system: EquationPair) -> tuple[Branch, ...]:
    """Return the branches of the system, for any target.

    The branch with the smallest |beta| comes first, positive before negative.
    """
    phi = system.phi
    kinks = np.array(phi.kink_points)
    grid = np.unique(
        np.concatenate([SIGHT + 1e-6, 1e-6 - SIGHT, *(kinks[:, None] + np.array([-1e-6, 1e-6]))])
    )

    def level(beta: float) -> float:
        return float(system.limit(*(float(phi.numeric(n)(np.array([beta]))[0]) for n in (1, 2, 3))))

    one, two, three = (phi.numeric(n)(grid) for n in (1, 2, 3))
    with np.errstate(all="ignore"):
        value = system.limit(one, two, three)
        crossing = (np.sign(value[:-1]) * np.sign(value[1:]) < 0) & (
            np.abs(two[:-1]) > 1e-6 * np.abs(one[:-1])
        )
        near = np.abs(one[np.abs(grid) <= TAIL_WINDOW])
        crossing &= np.abs(one[:-1]) > TAIL_RTOL * near[np.isfinite(near)].max(initial=0.0)
    found = []
    for i in np.nonzero(crossing)[0]:
        if np.any((kinks > grid[i]) & (kinks < grid[i + 1])):
            continue
        xtol = 1e-14 * (1 + abs(grid[i]))
        beta = zero_between(level, grid[i], grid[i + 1], xtol, disp=False)
        slopes = [float(phi.numeric(n)(np.array([beta]))[0]) for n in (1, 2)]
        if slopes[0] and abs(slopes[1]) > 1e-7 * abs(slopes[0]):
            found.append(Branch(beta, abs(slopes[0] / slopes[1])))
    return tuple(sorted(found, key=by_shift))


def first_point(system: EquationPair, branch: Branch) -> tuple[float, NewtonPoint] | None:
    """Return (a small target, the branch's point at that target)."""
    target = min(SMALL, system.target)
    here = _started(system, branch, target)
    # kinks or strong curvature nearby: start closer to the limit
    while here is None and target > 1e-9:
        target /= 30
        here = _started(system, branch, target)
    return None if here is None else (target, here)


def newton_step(
    system: EquationPair, target: float, here: NewtonPoint
) -> tuple[float, NewtonPoint]:
    """Return the last (target, point) on the path from a point to the system's target."""
    before: tuple[float, NewtonPoint] | None = None
    stride = STRIDE
    while target != system.target:
        ahead = system.target > target
        goal = min(target * stride, system.target) if ahead else max(target / stride, system.target)
        after = newton(system.at(goal), _predicted(before, (target, here), goal), limit=7)
        if after is not None and after.moved < 0.35:
            before, target, here = (target, here), goal, after
            stride = min(stride * 1.5, STRIDE)
            continue
        stride = math.sqrt(stride)
        if stride < SHORTEST:
            break
    return target, here


def _started(system: EquationPair, branch: Branch, target: float) -> NewtonPoint | None:
    there = system.at(target)
    start = NewtonPoint(math.log(there.first_scale(branch.ratio)), branch.beta)
    point = newton(there, start, limit=10)
    return point if point is not None and point.moved < 0.8 else None


def _predicted(
    before: tuple[float, NewtonPoint] | None, here: tuple[float, NewtonPoint], goal: float
) -> NewtonPoint:
    """Extrapolate along the secant through the last two points, in the log of the target."""
    target, point = here
    step = math.log(goal / target)
    if before is None:
        return NewtonPoint(point.log_alpha + step / 2, point.beta)
    share = step / math.log(target / before[0])
    old = before[1]
    return NewtonPoint(
        point.log_alpha + share * (point.log_alpha - old.log_alpha),
        point.beta + share * (point.beta - old.beta),
    )
