"""A look at the whole (log alpha, beta) plane: solutions that no branch leads to, and the target nearest to an unreachable one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..activations import Activation
from ..errors import KcalcError
from ..quadrature import Array
from .conditions import System
from .moments import derivatives, grid, moments, rule_for
from .solver import Point, Solution, newton, refined

_SMOOTH = np.arange(-3.0, 2.76, 0.25)  # log alpha; smaller ones belong to branches
_KINKED = np.arange(-6.0, 2.01, 0.25)
_SHIFTS = np.arange(-8.0, 8.01, 0.125)
_PLACES = np.concatenate([np.arange(-8.0, -3.0, 0.5), np.arange(-3.0, 3.01, 0.25), np.arange(3.5, 8.01, 0.5)])  # of a kink, as x
_TRIED = 80  # cells per solve
_COARSE = 1e-11  # moments below this times their scale are rounding


@dataclass(frozen=True)
class Sheet:
    """Moments (variance, excess, turn, tilt, bend) on a curvilinear grid of (log alpha, beta); shape (5, rows, columns)."""

    log_alpha: Array
    beta: Array
    values: Array

    def surfaces(self, system: System) -> tuple[Array, Array]:
        """The first residual and the targeted quantity; nan where they are rounding."""
        variance = self.values[0]
        with np.errstate(all="ignore"):
            first, second = system.surfaces(*self.values)
            good = (variance > 0) & np.isfinite(first) & np.isfinite(second) & (second > _COARSE)
        return np.where(good, first, np.nan), np.where(good, second, np.nan)


@lru_cache(maxsize=64)
def sheets(phi: Activation) -> tuple[Sheet, ...]:
    """A grid of shifts for a smooth activation; for a kinked one, a grid of places x of each kink."""
    if not phi.kinks:
        s, beta = np.meshgrid(_SMOOTH, _SHIFTS, indexing="ij")
        rows = [_row(phi, math.exp(a), _SHIFTS) for a in _SMOOTH]
        return (Sheet(s, beta, np.stack(rows, axis=1)),)
    out = []
    spread = max(1.0, (phi.kink_points[-1] - phi.kink_points[0]) / 2)
    s, place = np.meshgrid(_KINKED + math.log(spread), _PLACES, indexing="ij")
    for kink in phi.kink_points:
        beta = kink - np.exp(s) * place
        values = np.array([_single(phi, float(a), float(b)) for a, b in zip(s.ravel(), beta.ravel(), strict=True)])
        out.append(Sheet(s, beta, values.T.reshape(5, *s.shape)))
    return tuple(out)


def _row(phi: Activation, alpha: float, beta: Array) -> Array:
    """The moments for one alpha and many shifts, on the coarsest grid."""
    rule = grid(0)
    u = alpha * rule.z + beta[:, None]
    try:
        f, g, h = (np.reshape(v, u.shape) for v in derivatives(phi, u.ravel(), 2))
    except KcalcError:
        return np.full((5, beta.size), np.nan)
    return _sums(rule.z, rule.w, f, alpha * g, alpha**2 * h)


def _single(phi: Activation, log_alpha: float, beta: float) -> Array:
    alpha = math.exp(log_alpha)
    rule = rule_for(phi, alpha, beta, 0)
    f, g, h = (phi.numeric(n)(alpha * rule.z + beta) for n in range(3))
    return _sums(rule.z, rule.w, f[None], alpha * g[None], alpha**2 * h[None])[:, 0]


def _sums(x: Array, w: Array, f: Array, g: Array, h: Array) -> Array:
    with np.errstate(all="ignore"):
        centred, slope = f - (f @ w)[:, None], (g @ w)[:, None]
        rest, drift = centred - slope * x, g - slope
        return np.stack([centred**2 @ w, (drift**2 - rest**2) @ w, (centred * (drift * x - rest)) @ w, (g * x) @ w, h**2 @ w])


# -- solutions -------------------------------------------------------------------------------------------------------------------------


def in_cells(system: System) -> Iterator[Solution]:
    """Solutions found by Newton's method from every cell of the scan in which both equations change sign, the smallest |beta| first."""
    starts: list[tuple[float, float, float]] = []
    for sheet in sheets(system.phi):
        first, second = sheet.surfaces(system)
        both = _changes(first) & _changes(second - system.target)
        for i, j in zip(*np.nonzero(both), strict=True):
            s, beta = sheet.log_alpha[i : i + 2, j : j + 2].mean(), sheet.beta[i : i + 2, j : j + 2].mean()
            starts.append((abs(beta), s, beta))
    for _, s, beta in sorted(starts)[:_TRIED]:
        point = newton(system, Point(float(s), float(beta)), limit=25)
        solution = None if point is None else refined(system, point)
        if solution is not None:
            yield solution


def _changes(values: Array) -> Any:
    corners = np.stack([values[:-1, :-1], values[1:, :-1], values[:-1, 1:], values[1:, 1:]])
    return (corners.min(axis=0) <= 0) & (corners.max(axis=0) >= 0)


# -- the nearest reachable target ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nearest:
    """The reachable target nearest to the one asked for; ``exact`` unless it is read off the grid only."""

    target: float
    exact: bool
    point: Point


def nearest(system: System) -> Nearest | None:
    """The target nearest to the system's on the curve where the first equation holds; None where it holds nowhere on the grid."""
    best: tuple[float, float, Point] | None = None
    for sheet in sheets(system.phi):
        for level, s, beta in _crossings(sheet, system):
            distance = abs(math.log(level / system.target))
            if best is None or distance < best[0]:
                best = distance, level, Point(s, beta)
    if best is None:
        return None
    sharp = _sharpened(system, best[2])
    return Nearest(best[1], False, best[2]) if sharp is None else sharp


def _crossings(sheet: Sheet, system: System) -> Iterator[tuple[float, float, float]]:
    """(target, log alpha, beta) where grid edges along beta cross the zero set of the first equation."""
    first, second = sheet.surfaces(system)
    low, high = first[:, :-1], first[:, 1:]
    for i, j in zip(*np.nonzero(low * high < 0), strict=True):
        share = low[i, j] / (low[i, j] - high[i, j])
        mix: Any = lambda v, i=i, j=j, share=share: float(v[i, j] * (1 - share) + v[i, j + 1] * share)  # noqa: E731
        yield mix(second), mix(sheet.log_alpha), mix(sheet.beta)


def _sharpened(system: System, start: Point) -> Nearest | None:
    """The extreme target on the curve near ``start``; None where the curve runs on to the edge of the search."""
    from scipy.optimize import minimize_scalar

    place = {"beta": start.beta}

    def level(s: float) -> float:
        beta = place["beta"]
        for _ in range(25):
            m = moments(system.phi, s, beta, 1, system.order)
            first, second, (_, slope), _ = system.equations(m)
            step = max(-0.3, min(0.3, -first / slope))
            beta += step
            if abs(step) < 1e-11:
                place["beta"] = beta
                return second + system.target
        return math.nan

    try:
        here = level(start.log_alpha)
        sign = 1.0 if here > system.target else -1.0
        found: Any = minimize_scalar(
            lambda s: sign * level(float(s)),
            bounds=(start.log_alpha - 0.4, start.log_alpha + 0.4), method="bounded", options={"xatol": 1e-6},
        )  # fmt: skip
    except (KcalcError, ZeroDivisionError, OverflowError):
        return None
    if not math.isfinite(found.fun):
        return Nearest(here, False, Point(start.log_alpha, start.beta)) if math.isfinite(here) else None
    if abs(found.x - start.log_alpha) > 0.399:
        return Nearest(float(sign * found.fun), False, Point(float(found.x), place["beta"]))
    return Nearest(float(sign * found.fun), True, Point(float(found.x), place["beta"]))
