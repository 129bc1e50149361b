"""From conditions to constants: the default solution, all solutions, and what to say when there is none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..activations import Activation
from ..errors import KcalcError, UnreachableTarget
from .conditions import SlopeSystem, System
from .constants import Constants
from .moments import moments, settled
from .scan import in_cells, nearest, sheets
from .solver import Point, Solution, advance, branches, follow, on_branches, refined

SAME = 1e-6
REFERENCE = 2e-3  # the target at which branches of kinked activations are numbered
GRID = np.linspace(-9.0, 9.0, 73)  # log(alpha/beta) of homogeneous activations


def check_shapeable(phi: Activation) -> None:
    """Refuse activations on which no constants can act. Raises: KcalcError saying why."""
    if any(phi.jump_sizes(0)):
        raise KcalcError(
            f"{phi.name} jumps, so that its C map has an infinite slope at 1 whatever the constants; choose a continuous activation"
        )
    if _is_linear(phi):
        raise KcalcError(
            f"{phi.name} is linear (or constant): its C map is the identity whatever the constants; choose a nonlinear activation"
        )


@lru_cache(maxsize=256)
def _anchors(systems: tuple[System, ...]) -> tuple[tuple[int, Solution], ...]:
    """(number of the system, solution) on the scan, the smallest |beta| first; none for activations whose branches start at alpha = 0."""
    if not systems[0].phi.kinks:
        return ()
    found = [(number, solution) for number, system in enumerate(systems) for solution in in_cells(system)]
    return tuple(sorted(found, key=lambda pair: (round(abs(pair[1].beta), 9), -pair[1].beta)))


@lru_cache(maxsize=256)
def _is_linear(phi: Activation) -> bool:
    """Whether phi' keeps one value wherever inputs of ordinary size reach."""
    if any(phi.jump_sizes(1)):
        return False
    side = np.concatenate([np.geomspace(1e-4, 1.0, 120), np.linspace(1.0, 60.0, 400)])
    slopes = phi.numeric(1)(np.concatenate([-side[::-1], side]))
    slopes = slopes[np.isfinite(slopes)]
    return bool(np.ptp(slopes) <= 1e-12 * np.abs(slopes).max())


def solve(systems: Sequence[System]) -> Constants:
    """The default solution of alternative systems of one activation: of the branch whose shift is smallest at alpha = 0, positive first.

    So the constants are continuous in the target. Kinked activations have no such branches: theirs are told apart at the target REFERENCE.
    Where no branch reaches the target, the smallest |beta| found on a scan.
    Raises: UnreachableTarget naming the nearest target that can be reached.
    """
    phi = systems[0].phi
    starts = [(branch, system) for system in systems for branch in branches(system.at(1.0))]
    for branch, system in sorted(starts, key=lambda pair: (round(abs(pair[0].beta), 9), -pair[0].beta)):
        point = follow(system, branch)
        found = None if point is None else refined(system, point)
        if found is not None:
            return constants(phi, system, found)
    for number, start in _anchors(tuple(system.at(REFERENCE) for system in systems)):
        point = advance(systems[number], REFERENCE, Point(start.log_alpha, start.beta))
        found = None if point is None else refined(systems[number], point)
        if found is not None:
            return constants(phi, systems[number], found)
    others = [(solution, system) for system in systems for solution in in_cells(system)]
    if others:
        solution, system = min(others, key=lambda pair: (round(abs(pair[0].beta), 9), -pair[0].beta))
        return constants(phi, system, solution)
    raise UnreachableTarget(unreachable(systems))


def solve_all(systems: Iterable[System]) -> tuple[Constants, ...]:
    """All solutions found, the smallest |beta| first, positive before negative; mirror images name their original."""
    found: list[Constants] = []
    for system in systems:
        for solution in _both(system):
            k = constants(system.phi, system, solution)
            if not any(_close(k, old) for old in found):
                found.append(k)
    found.sort(key=lambda k: (round(abs(k.beta or 0.0), 9), -(k.beta or 0.0)))
    return tuple(found)


def mirrors(found: Sequence[Constants]) -> tuple[tuple[int, int], ...]:
    """(i, j): solution j is solution i under x -> -x or phi -> -phi, with beta of the other sign (odd and even activations)."""
    pairs = []
    for i, one in enumerate(found):
        for j in range(i + 1, len(found)):
            two = found[j]
            numbers = [(abs(getattr(one, name) or 0.0), abs(getattr(two, name) or 0.0)) for name in ("alpha", "beta", "gamma", "delta")]
            if (one.beta or 0.0) * (two.beta or 0.0) < 0 and all(abs(a - b) <= SAME * (1 + a) for a, b in numbers):
                pairs.append((i, j))
    return tuple(pairs)


def _both(system: System) -> Iterator[Solution]:
    yield from on_branches(system)
    yield from in_cells(system)


def _close(one: Constants, two: Constants) -> bool:
    pairs = ((getattr(one, name) or 0.0, getattr(two, name) or 0.0) for name in ("alpha", "beta", "delta"))
    return all(abs(a - b) <= SAME * (1 + abs(a)) for a, b in pairs)


def constants(phi: Activation, system: System, found: Solution) -> Constants:
    """The four constants of a solution."""
    gamma, delta = system.output(found.moments)
    return Constants(phi, found.alpha, found.beta, gamma, delta)


def unreachable(systems: Sequence[System]) -> str:
    """Why there is no solution, with the nearest target for which there is one."""
    system = systems[0]
    wanted = f"no input scale and shift give {system.phi.name} {system.condition} and {system.named(system.target)}"
    found = [(near, other) for other in systems if (near := nearest(other)) is not None]
    if not found:
        return f"{wanted}: {system.condition} alone cannot be met" + system.remedy
    near, other = min(found, key=lambda pair: abs(np.log(pair[0].target / system.target)))
    return f"{wanted}; the nearest that can be reached is {'' if near.exact else 'about '}{other.named(near.target)}"


# -- one constant fewer --------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _profile(phi: Activation, beta: float) -> tuple[float, ...]:
    """C'(1) - 1 over GRID."""
    return tuple(slope_excess(phi, float(s), beta) for s in GRID)


def slope_excess(phi: Activation, log_alpha: float, beta: float, fineness: int = 0) -> float:
    """C'(1) - 1 with C(0) = 0; nan where phi(alpha x + beta) does not vary."""
    try:
        m = moments(phi, log_alpha, beta, fineness)
    except (KcalcError, OverflowError):
        return float("nan")
    return m.excess / m.variance if m.variance > 0 else float("nan")


def solve_scale(phi: Activation, target: float, shifts: Sequence[float] = (1.0, -1.0)) -> Constants:
    """The input scale alone: C'(1) - 1 = target at the first of the given shifts where that is possible, Q'(1) being what it is.

    Raises: UnreachableTarget naming the nearest slope.
    """
    reached: list[float] = []
    for beta in shifts:
        values = np.array(_profile(phi, beta))
        reached.extend(v for v in values.tolist() if v > 1e-12)
        with np.errstate(invalid="ignore"):
            crossings = np.nonzero((values[:-1] - target) * (values[1:] - target) <= 0)[0]
        for i in crossings:
            s = _crossing(phi, target, beta, (float(GRID[i]), float(GRID[i + 1])), (float(values[i]), float(values[i + 1])))
            if s is None:
                continue
            try:
                m = settled(phi, s, beta)
            except KcalcError:
                continue
            if abs(m.excess / m.variance - target) < 1e-13 * max(1.0, target):
                return Constants(phi, float(np.exp(s)), beta, m.variance**-0.5, -m.mean)
    wanted = f"no input scale gives {phi.name} the slope C'(1) = {1 + target:.6g}"
    if not reached:
        raise UnreachableTarget(f"{wanted}; its C map is linear for all of them")
    near = min(reached, key=lambda value: abs(np.log(value / target)))
    raise UnreachableTarget(f"{wanted}; the nearest that can be reached is about C'(1) = {1 + near:.6g}")


def _crossing(phi: Activation, target: float, beta: float, ends: tuple[float, float], values: tuple[float, float]) -> float | None:
    """log alpha between two grid points at which C'(1) - 1 lies on either side of the target: by Newton's method, else by Brent's."""
    from scipy.optimize import brentq

    share = math.log(max(target, 1e-300) / max(values[0], 1e-300)) / math.log(max(values[1], 1e-300) / max(values[0], 1e-300) or 2.0)
    share = share if 0 < share < 1 else 0.5
    s = scale_for(SlopeSystem(phi, target), ends[0] + share * (ends[1] - ends[0]), beta)
    if s is not None and ends[0] <= s <= ends[1]:
        return s
    miss = [slope_excess(phi, end, beta, 1) - target for end in ends]
    if not miss[0] * miss[1] <= 0:
        return None
    return float(brentq(lambda t: slope_excess(phi, t, beta, 1) - target, *ends, xtol=1e-16, rtol=1e-15))  # pyright: ignore[reportArgumentType]


# -- the least Q'(1) -------------------------------------------------------------------------------------------------------------------


def solve_least(phi: Activation, target: float) -> Constants:
    """C'(1) - 1 = target with the least Q'(1), among all input scales and shifts in reach.

    Raises: UnreachableTarget where no scale and shift give the slope.
    """
    from scipy.optimize import minimize_scalar

    system = SlopeSystem(phi, target)
    best: tuple[float, float, float] | None = None
    for sheet in sheets(phi):
        turn, level = sheet.surfaces(system)
        for i, j in zip(*np.nonzero((level[:-1] - target) * (level[1:] - target) <= 0), strict=True):
            if np.isfinite(turn[i : i + 2, j]).all():
                value = float(turn[i : i + 2, j].mean())
                if best is None or value < best[0]:
                    best = value, float(sheet.log_alpha[i : i + 2, j].mean()), float(sheet.beta[i : i + 2, j].mean())
    if best is None:
        raise UnreachableTarget(f"no input scale and shift within reach give {phi.name} the slope C'(1) = {1 + target:.6g}")
    place = {"s": best[1]}

    def q_slope(beta: float) -> float:
        s = scale_for(system, place["s"], beta)
        if s is None:
            return float("inf")
        place["s"] = s
        m = moments(phi, s, beta, 1)
        return m.turn / m.variance

    width = 0.5 * min(1.0, float(np.exp(best[1])) if phi.kinks else 1.0)
    found: Any = minimize_scalar(q_slope, bounds=(best[2] - width, best[2] + width), method="bounded", options={"xatol": 1e-9})
    beta = 0.0 if abs(found.x) < 1e-6 and q_slope(0.0) <= found.fun + 1e-15 else float(found.x)  # the minimum of an odd or even function
    s = scale_for(system, place["s"], beta, 2)
    if s is None:
        raise UnreachableTarget(
            f"the least Q'(1) of {phi.name} at the slope C'(1) = {1 + target:.6g} is not attained; give q_slope a number"
        )
    m = moments(phi, s, beta, 2)
    return Constants(phi, float(np.exp(s)), beta, m.variance**-0.5, -m.mean)


def scale_for(system: SlopeSystem, s: float, beta: float, fineness: int = 1) -> float | None:
    """log alpha with C'(1) - 1 = target at a given shift, by Newton's method from ``s``."""
    for _ in range(30):
        try:
            equations = system.equations(moments(system.phi, s, beta, fineness))
        except (KcalcError, OverflowError, ZeroDivisionError):
            return None
        if not equations.d_second[0]:
            return None
        step = -equations.second / equations.d_second[0]
        s += max(-0.5, min(0.5, step))
        if abs(step) < 1e-10:
            return s
        if not -25 < s < 4:
            return None
    return None
