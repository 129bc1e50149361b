"""Solve the conditions of a shaping method for the constants.

This module finds the default solution and all solutions, and raises errors if there are none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from ..activations import Activation
from ..foundation.errors import KcalcError, UnreachableTarget
from ..foundation.rootfinding import least_between, zero_between
from .conditions import EquationPair, LeastQSlope, OutOfReach, SlopeSystem, slope_text
from .constants import Constants
from .continuation import BranchEnd, follow_branch
from .moments import Moments, converged_moments, rounding
from .solutions import SAME, Solutions
from .solver import (
    ACCEPTED,
    FINEST,
    POLISHED,
    SETTLED,
    NewtonPoint,
    branches,
    by_shift,
    equations_at,
    first_point,
    newton_step,
    refined,
)
from .starting_points import curves, in_cells, sheets

MOST_BRANCHES = 12  # periodic activations have infinitely many branches; follow only these
REFERENCE = 2e-3  # target at which branches of kinked activations are ordered
WANTED = 9  # number of digits of a target in an error
GRID = np.linspace(-9.0, 9.0, 73)  # log(alpha/|beta|) of homogeneous activations
# for homogeneous activations with |beta|/alpha below this, alpha is 1 instead of |beta|
LEAST_SHIFT = math.exp(-9.0)
NEAR = 0.01  # tolerance for log alpha, about the accuracy of the coarser rules
TOUCHES = 1e-10  # a path that ends this close to its target may be a solution
ROUNDED = 1e-9  # smaller shifts count as 0 if Q'(1) is smallest at 0

# a system and its point at the target; without such a point, the end of the path, if found
Way = tuple[EquationPair, NewtonPoint | BranchEnd | None]


def check_shapeable(phi: Activation) -> None:
    """Raise a KcalcError for activations that no constants can shape."""
    if any(phi.jump_sizes(0)):
        raise KcalcError(
            f"{phi.name} jumps, so its C map has an infinite slope at 1 for all constants; choose "
            "a continuous activation"
        )
    check_nonlinear(phi)


def check_nonlinear(phi: Activation) -> None:
    """Raise a KcalcError for linear activations."""
    if _is_linear(phi):
        raise KcalcError(
            f"{phi.name} is linear (or constant): its C map is the identity for all constants; "
            "choose a nonlinear activation"
        )


@lru_cache(maxsize=256)
def _anchors(systems: tuple[EquationPair, ...]) -> tuple[tuple[EquationPair, NewtonPoint], ...]:
    """Return the (system, point) pairs that the scan finds, in order of |beta|.

    They serve as starting points for kinked activations. For other activations, whose branches
    start at alpha = 0, there are no such pairs.
    """
    if not systems[0].phi.kinks:
        return ()
    found = [(k, system) for system in systems for k in in_cells(system)]
    found.sort(key=lambda pair: by_shift(pair[0]))
    return tuple((system, NewtonPoint(math.log(k.alpha or 1), k.beta or 0)) for k, system in found)


@lru_cache(maxsize=256)
def _is_linear(phi: Activation) -> bool:
    """Whether phi' is constant over inputs of ordinary size."""
    if any(phi.jump_sizes(0)) or any(phi.jump_sizes(1)):
        return False
    side = np.concatenate([np.geomspace(1e-4, 1.0, 120), np.linspace(1.0, 60.0, 400)])
    slopes = phi.numeric(1)(np.concatenate([-side[::-1], side]))
    slopes = slopes[np.isfinite(slopes)]
    return bool(np.ptp(slopes) <= 1e-12 * np.abs(slopes).max())


def solve(systems: Sequence[EquationPair]) -> Constants:
    """Return the default solution of alternative systems of equations for one activation.

    The solution lies on the branch with the smallest shift at alpha = 0; positive shifts come
    first.

    The constants are therefore continuous in the target as far as that branch reaches (see
    :func:`default_end`); beyond its fold the next branch is used. Kinked activations have no
    branches at alpha = 0. Their branches are compared at the target REFERENCE, so at much smaller
    targets another solution may have a smaller |beta|. If no branch reaches the target, the result
    is the solution with the smallest |beta| on a scan.

    Raises: UnreachableTarget that names the nearest reachable target.
    """
    ends: list[BranchEnd] = []
    found = _first(_ways(systems), ends)
    if found is None:
        cells = (k for system in systems for k in in_cells(system))
        found = min(cells, key=by_shift, default=None)
    if found is None:
        found = _first(((system, way) for system in systems for way in curves(system)), ends)
    if found is None:
        raise _out_of_reach(systems[0], ends)
    return found


def _first(ways: Iterable[Way], ends: list[BranchEnd]) -> Constants | None:
    """Return the first solution that a path reaches, or None.

    Append the ends of paths that reach no solution to ``ends``.
    """
    for system, found in ways:
        point = found
        if isinstance(found, BranchEnd):
            ends.append(found)
            touches = abs(found.target - system.target) < TOUCHES * system.target
            point = found.point if touches else None
        if isinstance(point, NewtonPoint) and (k := refined(system, point)) is not None:
            return k
    return None


def _ways(systems: Sequence[EquationPair], every: bool = False) -> Iterator[Way]:
    """Yield branches in order of preference: the first MOST_BRANCHES, or all if ``every``.

    Only the first few branches are followed around folds.
    """
    starts = [(branch, system) for system in systems for branch in branches(system.at(1.0))]
    starts.sort(key=lambda pair: by_shift(pair[0]))
    for number, (branch, system) in enumerate(starts if every else starts[:MOST_BRANCHES]):
        begun = first_point(system, branch)
        folds = number < MOST_BRANCHES
        yield system, None if begun is None else _reached(system, *begun, folds=folds)
    # equal functions share the scan, even under different names
    scanned = {system.at(REFERENCE): system for system in systems}
    for anchored, point in _anchors(tuple(scanned)):
        system = scanned[anchored]
        yield system, _reached(system, REFERENCE, point)


def _reached(
    system: EquationPair, target: float, here: NewtonPoint, folds: bool = True
) -> NewtonPoint | BranchEnd | None:
    """Follow a branch from a point to the system's target, or to the end of the branch.

    The target changes in steps along the path. With ``folds``, the path follows the curve itself
    near a fold.
    """
    last, point = newton_step(system, target, here)
    if last == system.target:
        return point
    return (
        (follow_branch(system, point) or BranchEnd(system, last, False, point)) if folds else None
    )


def default_end(systems: Sequence[EquationPair]) -> str | None:
    """Describe where the default branch ends before the target, so that the constants jump.

    Return None if the branch reaches the target or there is no branch.
    """
    _, end = next(_ways(systems), (None, None))
    if not isinstance(end, BranchEnd):
        return None
    return (
        f"the default branch of {end.system.phi.name} ends at "
        f"{'' if end.exact else 'about '}{end.system.named(end.target)}; beyond it the constants "
        "come from another branch, so they jump at this target (see all_solutions)"
    )


def solve_all(systems: Iterable[EquationPair]) -> Solutions:
    """Return all solutions found, in order of |beta|, positive before negative.

    Most solutions are found along branches; the scan finds solutions on closed loops. A mirror
    image names its original.
    """
    found: list[Constants] = []
    for system in systems:
        points = (way for _, way in _ways([system], every=True) if isinstance(way, NewtonPoint))
        for k in chain((refined(system, point) for point in points), in_cells(system)):
            if k is not None and not any(_close(k, old) for old in found):
                found.append(k)
    return Solutions(sorted(found, key=by_shift))


def _close(one: Constants, two: Constants) -> bool:
    pairs = ((getattr(one, name), getattr(two, name)) for name in ("alpha", "beta", "delta"))
    return all(abs(a - b) <= SAME * (1 + abs(a)) for a, b in pairs)


def _out_of_reach(system: EquationPair, ends: Sequence[BranchEnd]) -> UnreachableTarget:
    """Return the error that names the reachable target closest to the system's target."""
    wanted = (
        f"no input scale and shift give {system.phi.name} {system.condition} and "
        f"{system.named(system.target, digits=WANTED)}"
    )
    if not ends:
        return UnreachableTarget(
            f"{wanted}: even {system.condition} cannot be met at any input scale and shift in the "
            "search range"
        ).advising(*system.remedies)
    near = min(ends, key=lambda end: abs(math.log(end.target / system.target)))
    how = (
        "the nearest that can be reached is "
        if near.exact
        else f"the nearest found, at input scale {math.exp(near.point.log_alpha):.4g}, is about "
    )
    above = system.target > near.target
    return OutOfReach(
        f"{wanted}; {how}{system.named(near.target, above)}",
        system.value(near.target),
        above,
        near.exact,
    )


# -- one constant fewer ----------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _profile(phi: Activation, beta: float) -> tuple[float, ...]:
    """Return C'(1) - 1 at every point of GRID."""
    return tuple(slope_excess(phi, float(s), beta) for s in GRID)


def slope_excess(phi: Activation, log_alpha: float, beta: float, fineness: int = 0) -> float:
    """Return C'(1) - 1 with C(0) = 0.

    The result is nan if phi(alpha x + beta) is constant, or varies too fast for the rules.
    """
    found = equations_at(SlopeSystem(phi, 0.0), log_alpha, beta, fineness)
    return math.nan if found is None else found.second


def solve_scale(phi: Activation, target: float, shifts: Sequence[float] = (1.0, -1.0)) -> Constants:
    """Return constants with C'(1) - 1 = target, by choosing only the input scale.

    The result uses the first of ``shifts`` for which this is possible, regardless of Q'(1).

    For homogeneous activations, only beta/alpha matters; if this ratio is near 0, the result has
    alpha = 1 and a small shift.

    Raises: UnreachableTarget that names the nearest slope.
    """
    reached: list[float] = []
    for beta in shifts:
        reached.extend(v for v in _profile(phi, beta) if v > 1e-12)
        for ends in _cells(phi, beta, target):
            found = _crossing(phi, target, beta, ends)
            if found is not None:
                return found
    extremes: list[Extreme] = []
    if phi.degree is not None:
        found = _least_shifts(phi, target)
        if isinstance(found, Constants):
            return found
        extremes.append(found)
    wanted = (
        f"no input scale gives {phi.name} the slope C'(1) = {slope_text(target, digits=WANTED)}"
    )
    if not reached:
        raise UnreachableTarget(f"{wanted}; its C map is linear for all input scales")
    extremes += [_extreme(phi, beta, target) for beta in shifts]
    near = min(extremes, key=lambda found: abs(math.log(found.excess / target)))
    above = target > near.excess
    text = (
        f"{wanted}; the nearest {'that can be reached is' if near.exact else 'found is about'} "
        f"C'(1) = {slope_text(near.excess, above)}"
    )
    raise OutOfReach(text, 1 + near.excess, above, near.exact)


def _standardising(phi: Activation, alpha: float, beta: float, m: Moments) -> Constants:
    """Return the constants that give mean 0 and variance 1 at an input scale and shift."""
    return Constants(phi, alpha, beta, m.variance**-0.5, -m.mean)


class Extreme(NamedTuple):
    """The value of C'(1) - 1 nearest to a target, and log alpha at that point.

    ``exact`` states whether the value is an extremum, rather than the edge of the search range.
    """

    excess: float
    exact: bool
    log_alpha: float


def _cells(phi: Activation, beta: float, target: float) -> Iterator[tuple[float, float]]:
    """Yield pairs of log alpha that bracket a crossing of C'(1) - 1 with the target.

    The points of a pair are neighbours on GRID, or lie on both sides of an extremum between two
    neighbours.
    """
    values = np.array(_profile(phi, beta))
    with np.errstate(invalid="ignore"):
        crossings = np.nonzero((values[:-1] - target) * (values[1:] - target) <= 0)[0]
    for i in crossings:
        yield float(GRID[i]), float(GRID[i + 1])
    if crossings.size:
        return
    top = _extreme(phi, beta, target)
    i = int(np.argmin(np.abs(GRID - top.log_alpha)))
    if top.exact and (top.excess - target) * (values[i] - target) <= 0:
        i = int(np.searchsorted(GRID, top.log_alpha))
        yield float(GRID[i - 1]), top.log_alpha
        yield top.log_alpha, float(GRID[i])


def _extreme(phi: Activation, beta: float, target: float) -> Extreme:
    """Return the value of C'(1) - 1 closest to the target among all input scales at one shift."""
    values = np.array(_profile(phi, beta))
    with np.errstate(invalid="ignore", divide="ignore"):
        miss = np.abs(np.log(np.where(values > 1e-12, values, np.nan) / target))
    if np.isnan(miss).all():
        return Extreme(1e-300, False, 0.0)
    i = int(np.nanargmin(miss))
    if (
        not 0 < i < len(GRID) - 1
        or np.isnan(miss[i - 1 : i + 2]).any()
        or np.ptp(values[i - 1 : i + 2]) < 1e-12 * values[i]
    ):
        return Extreme(float(values[i]), False, float(GRID[i]))
    sign = 1.0 if values[i] > target else -1.0
    place, least = least_between(
        lambda s: sign * slope_excess(phi, float(s), beta, 2), GRID[i - 1], GRID[i + 1]
    )
    inside = GRID[i - 1] + 1e-4 < place < GRID[i + 1] - 1e-4
    return Extreme(sign * least, bool(inside), place)


def _least_shifts(phi: Activation, target: float) -> Constants | Extreme:
    """Return the constants of a homogeneous activation with alpha = 1, or an extreme.

    The shift has |beta| <= LEAST_SHIFT; :func:`_extreme` finds the extreme.
    """

    def miss(beta: float) -> float:
        return slope_excess(phi, 0.0, beta, 1) - target

    ends = (-LEAST_SHIFT, LEAST_SHIFT)
    turns = [least_between(f, *ends, 1e-12)[0] for f in (miss, lambda beta: -miss(beta))]
    places = sorted({*ends, 0.0, *turns}, reverse=True)
    misses = dict(zip(places, map(miss, places), strict=True))
    crossed = [pair for pair in pairwise(places) if misses[pair[0]] * misses[pair[1]] < 0]
    roots = [zero_between(miss, *pair, 1e-20) for pair in crossed]
    for beta in (0.0, *roots, *places):
        if abs(miss(beta)) <= (POLISHED if beta == 0 else ACCEPTED) * max(1.0, target):
            return _standardising(phi, 1.0, beta, converged_moments(phi, 0.0, beta))
    near = min(places, key=lambda beta: abs(misses[beta]))
    return Extreme(target + misses[near], abs(near) < 0.999 * LEAST_SHIFT, 0.0)


def _crossing(
    phi: Activation, target: float, beta: float, ends: tuple[float, float]
) -> Constants | None:
    """Return the constants with C'(1) - 1 = target, with log alpha between two given values.

    The result uses the first quadrature rule that a finer rule confirms.
    """
    for fineness in range(1, FINEST + 1):
        s = _scale(SlopeSystem(phi, target), beta, ends, fineness)
        if s is None:
            return None
        try:
            m = converged_moments(phi, s, beta)
        except KcalcError:
            return None
        allowed = ACCEPTED * rounding(phi, s, beta) * max(1.0, target)
        if abs(m.excess / m.variance - target) < allowed:
            return _standardising(phi, math.exp(s), beta, m)
    return None


def _scale(
    system: SlopeSystem, beta: float, ends: tuple[float, float], fineness: int
) -> float | None:
    """Find log alpha by Newton's method on log(C'(1) - 1), with Brent's method as a fallback."""
    s = sum(ends) / 2
    for _ in range(8):
        found = equations_at(system, s, beta, fineness)
        excess = 0.0 if found is None else found.second + system.target
        if found is None or excess <= 0 or not found.d_second[0]:
            break
        step = -math.log(excess / system.target) * excess / found.d_second[0]
        s += step
        if not ends[0] <= s <= ends[1]:
            break
        if abs(step) < SETTLED:
            return s

    def miss(s: float) -> float:
        return slope_excess(system.phi, s, beta, fineness) - system.target

    if not miss(ends[0]) * miss(ends[1]) <= 0:
        return None
    return zero_between(miss, *ends, 1e-16, rtol=1e-15)


# -- the least Q'(1) -------------------------------------------------------------------------------


def solve_least(phi: Activation, target: float) -> Constants:
    """Return constants with C'(1) - 1 = target and the smallest Q'(1) within the search range.

    The search follows the curve of constant slope, starting from the smallest Q'(1) on the scan.

    Raises: UnreachableTarget if no scale and shift give the slope, or if Q'(1) has no minimum.
    """
    starts: list[tuple[float, float, float]] = []
    for sheet in sheets(phi):
        turn, level = sheet.surfaces(SlopeSystem(phi, target))
        crossed = (level[:-1] - target) * (level[1:] - target) <= 0
        middle = [(values[:-1] + values[1:]) / 2 for values in (turn, sheet.log_alpha, sheet.beta)]
        crossed &= np.isfinite(middle[0])
        starts += zip(*(values[crossed] for values in middle), strict=True)
    if not starts:
        raise UnreachableTarget(
            f"no input scale and shift in the search range give {phi.name} the slope C'(1) = "
            f"{1 + target:.6g}"
        )
    _, s, beta = min(starts)
    end = follow_branch(LeastQSlope(phi, target), NewtonPoint(float(s), float(beta)))
    found = None
    if isinstance(end, BranchEnd) and end.exact:
        s, beta = end.point.log_alpha, end.point.beta
        beta = 0.0 if abs(beta) < ROUNDED else beta  # odd and even functions
        found = _crossing(phi, target, beta, (s - NEAR, s + NEAR))
    if found is None:
        raise UnreachableTarget(
            f"Q'(1) of {phi.name} has no minimum at C'(1) = {slope_text(target)}; pass a number "
            "as q_slope"
        )
    return found
