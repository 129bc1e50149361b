"""Scan the whole (log alpha, beta) plane.

The scan finds solutions that are on no branch, and the reachable target nearest to an unreachable
one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..activations import Activation
from ..foundation.errors import KcalcError
from ..gaussian.expectations.quadrature import Array, mesh
from .conditions import EquationPair
from .constants import Constants
from .continuation import BranchEnd, follow_branch
from .moments import NEAR, derivatives, grid, is_steep, rule_for, width
from .solver import NewtonPoint, needed, newton, refined

_SMOOTH = np.arange(-3.0, 2.76, 0.25)  # log alpha; branches cover smaller values
_KINKED = np.arange(-6.0, 2.01, 0.25)
_SHIFTS = np.arange(-8.0, 8.01, 0.125)
# values of log alpha at which smooth activations are close to steps or ramps
_FAR = np.arange(2.5, 8.0, 0.5)
# values of x at which the scan places a kink
_PLACES = np.concatenate(
    [np.arange(-8.0, -3.0, 0.5), np.arange(-3.0, 3.01, 0.25), np.arange(3.5, 8.01, 0.5)]
)
_TRIED = 80  # largest number of cells per solve
_STEEP = np.arange(-3.0, 8.0, 0.5)  # log of alpha divided by the width of a narrow feature
_FEATURES = 3
_WALKS = 4  # for an unreachable target, follow the curve from this many points
_COARSE = 1e-11  # moments below this times their scale are rounding errors


@dataclass(frozen=True)
class MomentGrid:
    """The moments (variance, excess, turn, tilt, bend) on a grid of (log alpha, beta).

    The grid is curvilinear, and the array of moments has shape (5, rows, columns).
    """

    log_alpha: Array
    beta: Array
    values: Array

    def surfaces(self, system: EquationPair) -> tuple[Array, Array]:
        """Return the first residual and the target quantity; nan where rounding dominates."""
        variance = self.values[0]
        with np.errstate(all="ignore"):
            first, second = system.surfaces(*self.values)
            good = (variance > 0) & np.isfinite(first) & np.isfinite(second) & (second > _COARSE)
        return np.where(good, first, np.nan), np.where(good, second, np.nan)


@lru_cache(maxsize=64)
def sheets(phi: Activation) -> tuple[MomentGrid, ...]:
    """Return the grids on which an activation is scanned.

    A smooth activation has a grid of shifts, and grids around the points at which it bends most. A
    kinked activation has one grid per kink, on which the kink lies at many positions x.
    """
    if not phi.kinks:
        s, beta = np.meshgrid(_SMOOTH, _SHIFTS, indexing="ij")
        rows = [_row(phi, math.exp(a), _SHIFTS) for a in _SMOOTH]
        near = MomentGrid(s, beta, np.stack(rows, axis=1))
        scale = math.log(width(phi))
        return (
            near,
            *(_about(phi, c, _FAR if scale == 0 else scale + _STEEP) for c in _centres(phi)),
        )
    spread = max(1.0, (phi.kink_points[-1] - phi.kink_points[0]) / 2)
    return tuple(_about(phi, kink, _KINKED + math.log(spread)) for kink in phi.kink_points)


def _about(phi: Activation, centre: float, log_alpha: Array) -> MomentGrid:
    """Return a grid on which the point ``centre`` of phi lies at many positions x."""
    s, place = np.meshgrid(log_alpha, _PLACES, indexing="ij")
    beta = centre - np.exp(s) * place
    values = np.array(
        [_single(phi, float(a), float(b)) for a, b in zip(s.ravel(), beta.ravel(), strict=True)]
    )
    return MomentGrid(s, beta, values.T.reshape(5, *s.shape))


def _centres(phi: Activation) -> tuple[float, ...]:
    """Return the points at which a smooth activation bends most: 0, or several narrow features."""
    if width(phi) == 1:
        return (0.0,)
    edges = mesh(phi, NEAR)
    middle, across = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    narrow = middle[across <= 1.01 * across.min()]
    groups = np.split(narrow, np.nonzero(np.diff(narrow) > 64 * across.min())[0] + 1)
    return tuple(float(group.mean()) for group in groups[:_FEATURES])


@np.errstate(all="ignore")
def _row(phi: Activation, alpha: float, beta: Array) -> Array:
    """Return the moments for one alpha and many shifts, on the coarsest grid that resolves phi."""
    if is_steep(phi, alpha):
        return np.array([_single(phi, math.log(alpha), float(b)) for b in beta]).T
    rule = grid(needed(phi, math.log(alpha)))
    u = alpha * rule.z + beta[:, None]
    try:
        f, g, h = (np.reshape(v, u.shape) for v in derivatives(phi, u.ravel(), 2))
    except KcalcError:
        return np.full((5, beta.size), np.nan)
    return _sums(rule.z, rule.w, f, alpha * g, alpha**2 * h)


@np.errstate(all="ignore")
def _single(phi: Activation, log_alpha: float, beta: float) -> Array:
    alpha = math.exp(log_alpha)
    try:
        rule = rule_for(phi, alpha, beta, 0)
        f, g, h = derivatives(phi, alpha * rule.z + beta, 2)
    except KcalcError:
        return np.full(5, np.nan)
    return _sums(rule.z, rule.w, f[None], alpha * g[None], alpha**2 * h[None])[:, 0]


def _sums(x: Array, w: Array, f: Array, g: Array, h: Array) -> Array:
    with np.errstate(all="ignore"):
        centred, slope = f - (f @ w)[:, None], (g @ w)[:, None]
        rest, drift = centred - slope * x, g - slope
        return np.stack(
            [
                centred**2 @ w,
                (drift**2 - rest**2) @ w,
                (centred * (drift * x - rest)) @ w,
                (g * x) @ w,
                h**2 @ w,
            ]
        )


# -- solutions -------------------------------------------------------------------------------------


def in_cells(system: EquationPair) -> Iterator[Constants]:
    """Yield solutions found by Newton's method from cells of the scan, in order of |beta|.

    The starting cells are those in which both equations change sign.
    """
    starts: list[tuple[float, float, float]] = []
    for sheet in sheets(system.phi):
        first, second = sheet.surfaces(system)
        both = _changes(first) & _changes(second - system.target)
        for i, j in zip(*np.nonzero(both), strict=True):
            s = sheet.log_alpha[i : i + 2, j : j + 2].mean()
            beta = sheet.beta[i : i + 2, j : j + 2].mean()
            starts.append((abs(beta), s, beta))
    for _, s, beta in sorted(starts)[:_TRIED]:
        point = newton(system, NewtonPoint(float(s), float(beta)), limit=25)
        found = None if point is None else refined(system, point)
        if found is not None:
            yield found


def _changes(values: Array) -> Any:
    corners = np.stack([values[:-1, :-1], values[1:, :-1], values[:-1, 1:], values[1:, 1:]])
    return (corners.min(axis=0) <= 0) & (corners.max(axis=0) >= 0)


# -- curves of the scan ----------------------------------------------------------------------------


def curves(system: EquationPair) -> Iterator[NewtonPoint | BranchEnd]:
    """Yield the curves on which the first equation holds, in order of their distance to the target.

    Each curve is represented by a point with the target, or by its end on the path to the target.
    """
    places = [place for sheet in sheets(system.phi) for place in _crossings(sheet, system)]
    tried: list[tuple[float, float]] = []
    for level, s, beta in sorted(places, key=lambda place: abs(math.log(place[0] / system.target))):
        if any(abs(s - a) < 1.0 and abs(beta - b) < 1.0 for a, b in tried):
            continue
        if len(tried) == _WALKS:
            return
        tried.append((s, beta))
        start = NewtonPoint(s, beta)
        yield follow_branch(system, start) or BranchEnd(system, level, False, start)


def _crossings(sheet: MomentGrid, system: EquationPair) -> Iterator[tuple[float, float, float]]:
    """Yield (target, log alpha, beta) at zeros of the first equation on grid edges.

    Only grid edges along beta are searched.
    """
    first, second = sheet.surfaces(system)
    low, high = first[:, :-1], first[:, 1:]
    for i, j in zip(*np.nonzero(np.sign(low) * np.sign(high) < 0), strict=True):
        share = low[i, j] / (low[i, j] - high[i, j])
        mix: Any = lambda v, i=i, j=j, share=share: float(  # noqa: E731
            v[i, j] * (1 - share) + v[i, j + 1] * share
        )
        yield mix(second), mix(sheet.log_alpha), mix(sheet.beta)
