"""From conditions to constants.

The default solution, all solutions, and the errors where there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..activations import Activation
from ..foundation.errors import KcalcError, UnreachableTarget
from .conditions import OutOfReach, SlopeSystem, System, slope_text
from .constants import Constants
from .curve import End, walk
from .moments import Moments, converged_moments, moments, rounding
from .scan import in_cells, nearest, sheets
from .solutions import SAME, Solutions
from .solver import (
    ACCEPTED,
    FINEST,
    LARGEST,
    LEAST,
    POLISHED,
    Point,
    Solution,
    advanced,
    begin,
    branches,
    by_shift,
    needed,
    refined,
)

MOST_BRANCHES = 12  # that are followed: periodic activations repeat theirs without end
REFERENCE = 2e-3  # the target at which branches of kinked activations are numbered
WANTED = 9  # digits of a target that is refused
GRID = np.linspace(-9.0, 9.0, 73)  # log(alpha/|beta|) of homogeneous activations
# For homogeneous activations with |beta|/alpha below this, alpha is 1 instead of |beta|.
LEAST_SHIFT = math.exp(-9.0)


def check_shapeable(phi: Activation) -> None:
    """Refuse activations on which no constants can act. Raises: KcalcError saying why."""
    if any(phi.jump_sizes(0)):
        raise KcalcError(
            f"{phi.name} jumps, so that its C map has an infinite slope at 1 whatever the "
            f"constants; choose a continuous activation"
        )
    check_nonlinear(phi)


def check_nonlinear(phi: Activation) -> None:
    """Refuse linear activations. Raises: KcalcError saying why."""
    if _is_linear(phi):
        raise KcalcError(
            f"{phi.name} is linear (or constant): its C map is the identity whatever the "
            f"constants; choose a nonlinear activation"
        )


@lru_cache(maxsize=256)
def _anchors(systems: tuple[System, ...]) -> tuple[tuple[int, Solution], ...]:
    """(number of the system, solution) on the scan, the smallest |beta| first.

    None for activations whose branches start at alpha = 0.
    """
    if not systems[0].phi.kinks:
        return ()
    found = [
        (number, solution) for number, system in enumerate(systems) for solution in in_cells(system)
    ]
    return tuple(sorted(found, key=lambda pair: by_shift(pair[1])))


@lru_cache(maxsize=256)
def _is_linear(phi: Activation) -> bool:
    """Whether phi' keeps one value wherever inputs of ordinary size reach."""
    if any(phi.jump_sizes(0)) or any(phi.jump_sizes(1)):
        return False
    side = np.concatenate([np.geomspace(1e-4, 1.0, 120), np.linspace(1.0, 60.0, 400)])
    slopes = phi.numeric(1)(np.concatenate([-side[::-1], side]))
    slopes = slopes[np.isfinite(slopes)]
    return bool(np.ptp(slopes) <= 1e-12 * np.abs(slopes).max())


def solve(systems: Sequence[System]) -> Constants:
    """The default solution of alternative systems of one activation.

    It is that of the branch whose shift is smallest at alpha = 0, positive first.

    So the constants are continuous in the target as far as that branch reaches (see
    :func:`default_end`); beyond its fold the next branch serves. Kinked activations have no
    branches at alpha = 0: theirs are told apart at the target REFERENCE, so that at much smaller
    targets another solution may have a smaller |beta|. Where no branch reaches the target, the
    smallest |beta| found on a scan.
    Raises: UnreachableTarget naming the nearest target that can be reached.
    """
    ends: list[tuple[End, System]] = []
    for system, point, end in _ways(systems):
        ends += [] if end is None else [(end, system)]
        found = None if point is None else refined(system, point)
        if found is not None:
            return constants(systems[0].phi, system, found)
    others = [(solution, system) for system in systems for solution in in_cells(system)]
    if others:
        solution, system = min(others, key=lambda pair: by_shift(pair[0]))
        return constants(systems[0].phi, system, solution)
    return _last_resort(systems, ends)


def _ways(
    systems: Sequence[System], every: bool = False
) -> Iterator[tuple[System, Point | None, End | None]]:
    """Branches in the order of preference: the first MOST_BRANCHES, or ``every`` one.

    Each is (its system, its point at the target, or else its end where that was found). Those
    beyond the first few are not followed around folds.
    """
    starts = [(branch, system) for system in systems for branch in branches(system.at(1.0))]
    starts.sort(key=lambda pair: by_shift(pair[0]))
    for number, (branch, system) in enumerate(starts if every else starts[:MOST_BRANCHES]):
        begun = begin(system, branch)
        if begun is None:
            yield system, None, None
        else:
            yield system, *_reached(system, *begun, folds=number < MOST_BRANCHES)
    for number, start in _anchors(tuple(system.at(REFERENCE) for system in systems)):
        yield (
            systems[number],
            *_reached(systems[number], REFERENCE, Point(start.log_alpha, start.beta)),
        )


def _reached(
    system: System, target: float, here: Point, folds: bool = True
) -> tuple[Point | None, End | None]:
    """Go from a point of a branch to the system's target.

    The way leads in steps of the target, and near a fold, with ``folds``, along the curve.
    """
    last, point = advanced(system, target, here)
    if last == system.target:
        return point, None
    if not folds:
        return None, None
    found, end = walk(system, point)
    if found is not None:
        return found, None
    return None, End(last, False, point) if end is None else end


def default_end(systems: Sequence[System], found: Constants) -> str | None:
    """None where ``found`` lies on the default branch.

    Else it says in words where that branch ends, so that the constants jump there.
    """
    for system, point, end in _ways(systems):
        if point is not None and abs((found.beta or 0.0) - point.beta) <= SAME * (
            1 + abs(point.beta)
        ):
            return None
        if end is not None:
            return (
                f"the default branch of {system.phi.name} ends at "
                f"{'' if end.exact else 'about '}{system.named(end.target)}; beyond it "
                "the constants are those of another branch, so that they jump as the target "
                "passes there (see all_solutions)"
            )
        return None
    return None


def solve_all(systems: Iterable[System]) -> Solutions:
    """All solutions found, the smallest |beta| first, positive before negative.

    Mirror images name their original.
    """
    found: list[Constants] = []
    for system in systems:
        for solution in _both(system):
            k = constants(system.phi, system, solution)
            if not any(_close(k, old) for old in found):
                found.append(k)
    return Solutions(sorted(found, key=by_shift))


def _both(system: System) -> Iterator[Solution]:
    """Solutions by branches and by the scan, which finds loops that no branch leads to."""
    points = (point for _, point, _ in _ways([system], every=True) if point is not None)
    yield from (solution for point in points if (solution := refined(system, point)) is not None)
    yield from in_cells(system)


def _close(one: Constants, two: Constants) -> bool:
    pairs = (
        (getattr(one, name) or 0.0, getattr(two, name) or 0.0)
        for name in ("alpha", "beta", "delta")
    )
    return all(abs(a - b) <= SAME * (1 + abs(a)) for a, b in pairs)


def constants(phi: Activation, system: System, found: Solution) -> Constants:
    """The four constants of a solution."""
    gamma, delta = system.output(found.moments)
    return Constants(phi, found.alpha, found.beta, gamma, delta)


def _last_resort(systems: Sequence[System], ends: list[tuple[End, System]]) -> Constants:
    """A solution on a curve of the scan.

    Raises: UnreachableTarget with the nearest target for which there is one.
    """
    system = systems[0]
    wanted = (
        f"no input scale and shift give {system.phi.name} {system.condition} and "
        f"{system.named(system.target, digits=WANTED)}"
    )
    for other in systems:
        point, end = nearest(other)
        found = None if point is None else refined(other, point)
        if found is not None:
            return constants(system.phi, other, found)
        ends = ends if end is None else [*ends, (end, other)]
    if not ends:
        raise UnreachableTarget(
            f"{wanted}: {system.condition} alone cannot be met, at any input scale and shift of a "
            f"scan" + system.remedy
        )
    near, other = min(ends, key=lambda pair: abs(math.log(pair[0].target / system.target)))
    how = (
        "the nearest that can be reached is "
        if near.exact
        else f"the nearest found, at input scale {math.exp(near.point.log_alpha):.4g}, is about "
    )
    above = system.target > near.target
    raise OutOfReach(
        f"{wanted}; {how}{other.named(near.target, above)}", other.value(near.target), above
    )


# -- one constant fewer ----------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _profile(phi: Activation, beta: float) -> tuple[float, ...]:
    """C'(1) - 1 over GRID."""
    return tuple(slope_excess(phi, float(s), beta) for s in GRID)


def slope_excess(phi: Activation, log_alpha: float, beta: float, fineness: int = 0) -> float:
    """C'(1) - 1 with C(0) = 0, or nan.

    It is nan where phi(alpha x + beta) does not vary, or varies too fast for the rules.
    """
    try:
        m = moments(phi, log_alpha, beta, max(fineness, _needed(phi, log_alpha)))
    except (KcalcError, OverflowError):
        return float("nan")
    return m.excess / m.variance if m.variance > 0 else float("nan")


def _needed(phi: Activation, log_alpha: float) -> int:
    return needed(phi, log_alpha) if phi.degree is None else 0  # homogeneous ones scale with alpha


def solve_scale(phi: Activation, target: float, shifts: Sequence[float] = (1.0, -1.0)) -> Constants:
    """Constants with C'(1) - 1 = target, by the input scale alone.

    The first of the given shifts at which that is possible is taken, without a condition on Q'(1).

    Homogeneous activations have beta/alpha alone to choose: 0 and values near it are met with alpha
    = 1 and a small shift.
    Raises: UnreachableTarget naming the nearest slope.
    """
    reached: list[float] = []
    for beta in shifts:
        reached.extend(v for v in _profile(phi, beta) if v > 1e-12)
        for ends, values in _cells(phi, beta, target):
            s = _crossing(phi, target, beta, ends, values)
            if s is None:
                continue
            try:
                m = converged_moments(phi, s, beta)
            except KcalcError:
                continue
            if abs(m.excess / m.variance - target) < ACCEPTED * rounding(phi, s, beta) * max(
                1.0, target
            ):
                return _standardising(phi, math.exp(s), beta, m)
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
        raise UnreachableTarget(f"{wanted}; its C map is linear for all of them")
    extremes += [_extreme(phi, beta, target) for beta in shifts]
    near = min(extremes, key=lambda found: abs(math.log(found.excess / target)))
    above = target > near.excess
    text = (
        f"{wanted}; the nearest {'that can be reached is' if near.exact else 'found is about'} "
        f"C'(1) = {slope_text(near.excess, above)}"
    )
    raise OutOfReach(text, 1 + near.excess, above)


def _standardising(phi: Activation, alpha: float, beta: float, m: Moments) -> Constants:
    """The constants at an input scale and shift that give mean 0 and variance 1."""
    return Constants(phi, alpha, beta, m.variance**-0.5, -m.mean)


class Extreme(NamedTuple):
    """The C'(1) - 1 nearest to a target, and log alpha there.

    Also whether it is an extremum, and not the edge of the search.
    """

    excess: float
    exact: bool
    log_alpha: float


# two values of log alpha, and C'(1) - 1 at each
Cell = tuple[tuple[float, float], tuple[float, float]]


def _cells(phi: Activation, beta: float, target: float) -> Iterator[Cell]:
    """Where C'(1) - 1 crosses the target.

    The crossing is between points of GRID, or else on both sides of an extremum between two of
    them.
    """
    values = np.array(_profile(phi, beta))
    with np.errstate(invalid="ignore"):
        crossings = np.nonzero((values[:-1] - target) * (values[1:] - target) <= 0)[0]
    for i in crossings:
        yield (float(GRID[i]), float(GRID[i + 1])), (float(values[i]), float(values[i + 1]))
    if crossings.size:
        return
    top = _extreme(phi, beta, target)
    i = int(np.argmin(np.abs(GRID - top.log_alpha)))
    if top.exact and (top.excess - target) * (values[i] - target) <= 0:
        i = int(np.searchsorted(GRID, top.log_alpha))
        yield (float(GRID[i - 1]), top.log_alpha), (float(values[i - 1]), top.excess)
        yield (top.log_alpha, float(GRID[i])), (top.excess, float(values[i]))


def _extreme(phi: Activation, beta: float, target: float) -> Extreme:
    """The extreme at a given shift."""
    from scipy.optimize import minimize_scalar

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
    found: Any = minimize_scalar(
        lambda s: sign * slope_excess(phi, float(s), beta, 2),
        bounds=(GRID[i - 1], GRID[i + 1]),
        method="bounded",
        options={"xatol": 1e-8},
    )
    inside = GRID[i - 1] + 1e-4 < found.x < GRID[i + 1] - 1e-4
    return Extreme(float(sign * found.fun), bool(inside), float(found.x))


def _least_shifts(phi: Activation, target: float) -> Constants | Extreme:
    """The constants of a homogeneous activation with alpha = 1, or an extreme.

    The shift has |beta| <= LEAST_SHIFT; the extreme is as in :func:`_extreme`.
    """
    from scipy.optimize import brentq, minimize_scalar

    def miss(beta: float) -> float:
        return slope_excess(phi, 0.0, beta, 1) - target

    span = {"bounds": (-LEAST_SHIFT, LEAST_SHIFT), "method": "bounded", "options": {"xatol": 1e-12}}
    turns: list[Any] = [
        minimize_scalar(lambda beta, sign=sign: sign * miss(beta), **span) for sign in (1.0, -1.0)
    ]
    places = sorted(
        {LEAST_SHIFT, 0.0, -LEAST_SHIFT, *(float(turn.x) for turn in turns)}, reverse=True
    )
    misses = dict(zip(places, map(miss, places), strict=True))
    crossed = [pair for pair in pairwise(places) if misses[pair[0]] * misses[pair[1]] < 0]
    roots = [float(brentq(miss, *pair, xtol=1e-20)) for pair in crossed]  # pyright: ignore[reportArgumentType]
    for beta in (0.0, *roots, *places):
        if abs(miss(beta)) <= (POLISHED if beta == 0 else ACCEPTED) * max(1.0, target):
            return _standardising(phi, 1.0, beta, converged_moments(phi, 0.0, beta))
    near = min(places, key=lambda beta: abs(misses[beta]))
    return Extreme(target + misses[near], abs(near) < 0.999 * LEAST_SHIFT, 0.0)


def _crossing(
    phi: Activation,
    target: float,
    beta: float,
    ends: tuple[float, float],
    values: tuple[float, float],
) -> float | None:
    """log alpha between two grid points at which C'(1) - 1 lies on either side of the target.

    It is found by Newton's method, else by Brent's.
    """
    from scipy.optimize import brentq

    share = math.log(max(target, 1e-300) / max(values[0], 1e-300)) / math.log(
        max(values[1], 1e-300) / max(values[0], 1e-300) or 2.0
    )
    share = share if 0 < share < 1 else 0.5
    s = scale_for(SlopeSystem(phi, target), ends[0] + share * (ends[1] - ends[0]), beta)
    if s is not None and ends[0] <= s <= ends[1]:
        return s
    miss = [slope_excess(phi, end, beta, 1) - target for end in ends]
    if not miss[0] * miss[1] <= 0:
        return None
    root: Any = brentq(
        lambda t: slope_excess(phi, t, beta, 1) - target, *ends, xtol=1e-16, rtol=np.float64(1e-15)
    )
    return float(root)


# -- the least Q'(1) -------------------------------------------------------------------------------


def solve_least(phi: Activation, target: float) -> Constants:
    """C'(1) - 1 = target with the least Q'(1), among all input scales and shifts in reach.

    Raises: UnreachableTarget where no scale and shift give the slope.
    """
    from scipy.optimize import minimize_scalar

    system = SlopeSystem(phi, target)
    best: tuple[float, float, float] | None = None
    for sheet in sheets(phi):
        turn, level = sheet.surfaces(system)
        for i, j in zip(
            *np.nonzero((level[:-1] - target) * (level[1:] - target) <= 0), strict=True
        ):
            if np.isfinite(turn[i : i + 2, j]).all():
                value = float(turn[i : i + 2, j].mean())
                if best is None or value < best[0]:
                    best = (
                        value,
                        float(sheet.log_alpha[i : i + 2, j].mean()),
                        float(sheet.beta[i : i + 2, j].mean()),
                    )
    if best is None:
        raise UnreachableTarget(
            f"no input scale and shift within reach give {phi.name} the slope C'(1) = "
            f"{1 + target:.6g}"
        )
    place = {"s": best[1]}

    def q_slope(beta: float) -> float:
        s = scale_for(system, place["s"], beta)
        if s is None:
            return float("inf")
        place["s"] = s
        m = moments(phi, s, beta, 1)
        return m.turn / m.variance

    width = 0.5 * min(1.0, float(np.exp(best[1])) if phi.kinks else 1.0)
    found: Any = minimize_scalar(
        q_slope,
        bounds=(best[2] - width, best[2] + width),
        method="bounded",
        options={"xatol": 1e-9},
    )
    # the minimum of an odd or even function
    beta = 0.0 if abs(found.x) < 1e-6 and q_slope(0.0) <= found.fun + 1e-15 else float(found.x)
    for fineness in range(2, FINEST + 1):
        s = scale_for(system, place["s"], beta, fineness)
        if s is None:
            break
        # a finer rule than the one that solved
        m = moments(phi, s, beta, max(fineness, _needed(phi, s)) + 1)
        if abs(m.excess / m.variance - target) <= ACCEPTED * max(1.0, target):
            return _standardising(phi, math.exp(s), beta, m)
    raise UnreachableTarget(
        f"the least Q'(1) of {phi.name} at the slope C'(1) = {slope_text(target)} is not "
        f"attained; give q_slope a number"
    )


def scale_for(system: SlopeSystem, s: float, beta: float, fineness: int = 1) -> float | None:
    """log alpha with C'(1) - 1 = target at a given shift, by Newton's method from ``s``."""
    for _ in range(30):
        try:
            equations = system.equations(
                moments(system.phi, s, beta, max(fineness, _needed(system.phi, s)))
            )
        except (KcalcError, OverflowError, ZeroDivisionError):
            return None
        if not equations.d_second[0]:
            return None
        step = -equations.second / equations.d_second[0]
        s += max(-0.5, min(0.5, step))
        if abs(step) < 1e-10:
            return s
        if not LEAST < s < LARGEST:
            return None
    return None
