"""Local maps as Chebyshev tables that the page can evaluate.

A raw table contains (1 - C)/(1 - c) as a function of theta = arccos c and log q, as well as
log(Q/q) and mean/sqrt(Q) as functions of log q. The table of an activation shaped by DKS, with psi
= C'(1) at q = 1, contains ((1 - C)/(1 - c) - psi)/(psi - 1) as a function of theta and log(psi -
1). Both functions are smooth up to the ends, so 1 - C keeps its digits near c = 1.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ... import Constants
from ...activations import Activation
from ...fields.chebyshev import clenshaw, fitted, points
from ...foundation.errors import KcalcError
from ...shaping import constants_for

Array = np.ndarray
SIZES = (33, 49, 73, 109, 161)  # numbers of angles to try, in order
SETTLED = 2e-13  # size of the last coefficients of a converged fit, relative to the largest
USELESS = 1e-9
MOST_LEVELS = 81
FLATTEST = 1e-5
FLAT, NEARLY = 2e-9, 1e-8
WIDEST_SCALE = 2.6


@dataclass(frozen=True, eq=False)
class LocalTable:
    """A Chebyshev table of a local map.

    ``ratio`` contains the coefficients, (angles, levels). ``low`` and ``high`` are the bounds of
    the level, which is log q or log(psi - 1). ``error`` is the measured error.

    ``flat`` says whether the ratio and Q/q stay constant below ``low``, to about 1e-9.
    """

    name: str
    low: float
    high: float
    ratio: Array
    size: Array | None
    mean: Array | None
    degree: float | None
    error: float
    flat: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the arrays as little-endian float64 in base64, with the other numbers."""
        out: dict[str, Any] = {
            "name": self.name,
            "lo": self.low,
            "hi": self.high,
            "n": self.ratio.shape[0],
            "m": self.ratio.shape[1],
        }
        out["c"] = packed(self.ratio)
        if self.size is not None and self.mean is not None:
            out |= {"q": self.size.tolist(), "mu": self.mean.tolist()}
        if self.degree is not None:
            out["deg"] = self.degree
        if self.flat:
            out["flat"] = 1
        return out

    def ratio_at(self, theta: Array, level: float) -> Array:
        """Return (1 - C)/(1 - c), or a shaped table's ratio, computed as on the page."""
        t = (
            0.0
            if self.high == self.low
            else (2 * level - self.low - self.high) / (self.high - self.low)
        )
        row = clenshaw(self.ratio.T, np.float64(t))
        return clenshaw(row, 2 * theta / math.pi - 1)


def packed(array: Array) -> str:
    """Return an array as little-endian float64 in base64."""
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f8").tobytes()).decode("ascii")


def angles(n: int) -> tuple[Array, Array]:
    """Return (theta, 1 - cos theta) at the n Chebyshev points of (0, pi)."""
    theta = (points(n) + 1) * math.pi / 2
    return theta, 2 * np.sin(theta / 2) ** 2


def _ratio(phi: Activation, n: int, q: float) -> Array:
    _, gap = angles(n)
    return np.asarray(phi.taylor(gap, q)[0]) / gap


def _angles_needed(phi: Activation, q: float) -> tuple[int, Array]:
    """Return the number of angles that resolve the map, and the map's values there.

    Raises: KcalcError if no number in ``SIZES`` is enough.
    """
    if any(phi.jump_sizes(0)):
        raise KcalcError(f"{phi.name} jumps, so its C map has an infinite slope at c = 1")
    for n in SIZES:
        values = _ratio(phi, n, q)
        found = np.abs(fitted(values))
        if found[-3:].max() <= SETTLED * found.max() or (
            n == SIZES[-1] and found[-3:].max() <= USELESS / 10 * found.max()
        ):
            return n, values
    raise KcalcError(f"the C map of {phi.name} at q = {q:.3g} is too steep to tabulate")


def levels_needed(low: float, high: float, reach: float = math.pi) -> int:
    """Return the number of levels that resolve an analytic function up to rounding errors.

    The function is analytic within ``reach`` of the real axis.
    """
    half = (high - low) / 2
    if half == 0:
        return 1
    rate = math.log((reach + math.hypot(reach, half)) / half)
    return min(max(8, math.ceil(29 / rate) + 2), MOST_LEVELS)


@lru_cache(maxsize=64)
def raw_table(phi: Activation, low: float, high: float, allowed: float = USELESS) -> LocalTable:
    """Return the table of an activation for q values in [low, high], with errors up to ``allowed``.

    Raises: KcalcError if the map has no such table.
    """
    if phi.degree is not None:
        n, values = _angles_needed(phi, 1.0)
        size, mean = float(phi.second_moment(1.0)), float(phi.mean(1.0))
        table = LocalTable(
            phi.name,
            0.0,
            0.0,
            _trimmed(fitted(values)[:, None]),
            np.array([size]),
            np.array([mean / math.sqrt(size)]),
            float(phi.degree),
            0.0,
        )
        return _measured(table, phi, (1.0,), allowed)
    bottom, top = math.log(low), math.log(high)
    n, _ = _angles_needed(phi, high)
    level = (bottom + top) / 2 + (top - bottom) / 2 * points(levels_needed(bottom, top))
    sizes = np.exp(level)
    ratio = np.stack([_ratio(phi, n, float(q)) for q in sizes], axis=1)
    second = np.array([float(phi.second_moment(float(q))) for q in sizes])
    means = np.array([float(phi.mean(float(q))) for q in sizes])
    table = LocalTable(
        phi.name,
        bottom,
        top,
        _trimmed(fitted(fitted(ratio), axis=1)),
        fitted(np.log(second / sizes)),
        fitted(means / np.sqrt(second)),
        None,
        0.0,
    )
    found = _measured(
        table, phi, [math.exp(bottom + f * (top - bottom)) for f in (0.02, 0.37, 0.81)], allowed
    )
    return replace(found, flat=low <= FLAT and _is_flat(found, phi))


def _is_flat(table: LocalTable, phi: Activation) -> bool:
    """Return whether an activation is practically linear below the lower end of the table."""
    theta, deep = np.array([0.01, 1.0, 2.5]), math.exp(table.low) * 1e-3
    gap = 2 * np.sin(theta / 2) ** 2
    apart = np.abs(table.ratio_at(theta, table.low) - phi.taylor(gap, deep)[0] / gap).max()
    size = abs(
        float(phi.second_moment(deep))
        / deep
        / (float(phi.second_moment(math.exp(table.low))) / math.exp(table.low))
        - 1
    )
    return bool(apart < NEARLY and size < NEARLY)


def _measured(table: LocalTable, phi: Activation, sizes: Any, allowed: float) -> LocalTable:
    theta = np.array([0.003, 0.3, 1.1, 2.0, 3.0])
    gap = 2 * np.sin(theta / 2) ** 2
    worst = 0.0
    for q in sizes:
        worst = max(
            worst,
            float(np.max(np.abs(table.ratio_at(theta, math.log(q)) - phi.taylor(gap, q)[0] / gap))),
        )
    return _accepted(table, worst, allowed)


def _accepted(table: LocalTable, error: float, allowed: float = USELESS) -> LocalTable:
    if not error <= allowed:
        raise KcalcError(
            f"the maps of {table.name} cannot be tabulated to an accuracy of {allowed:g} (the "
            f"error is {error:.1e})"
        )
    return replace(table, error=error)


def _trimmed(matrix: Array) -> Array:
    """Drop trailing rows and columns that are only rounding error."""
    size = np.abs(matrix)
    floor = 1e-15 * size.max()
    rows = int(np.max(np.nonzero(size.max(axis=1) > floor)[0], initial=0)) + 1
    columns = int(np.max(np.nonzero(size.max(axis=0) > floor)[0], initial=0)) + 1
    return matrix[:rows, :columns]


# -- shaped ----------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def shaped_table(phi: Activation, low: float, high: float) -> tuple[LocalTable, Array]:
    """Return the table of an activation shaped by DKS, with a table of its constants.

    The table covers psi - 1 from ``low`` to ``high``, or to the largest value that the activation
    reaches.

    The second result contains the Chebyshev coefficients of the constants (log alpha, beta, log
    gamma, delta) over log(psi - 1), with shape (4, levels).

    Raises: KcalcError if there is no such table.
    """
    bottom, top = math.log(max(low, FLATTEST)), math.log(high)
    top, phi_top = _reach(phi, bottom, top)
    n, _ = _angles_needed(phi_top, 1.0)
    level = (bottom + top) / 2 + (top - bottom) / 2 * points(shaped_levels(bottom, top))
    solved = [constants_for(phi, 1 + math.exp(x)) for x in level]
    excess = np.exp(level)
    try:
        return _shaped(
            phi,
            bottom,
            top,
            solved,
            np.stack([_by_grid(phi, k, n, x) for k, x in zip(solved, excess, strict=True)], axis=1),
        )
    except KcalcError:  # a kink or a sharp bend: the grid is not accurate enough
        _, u = angles(n)
        return _shaped(
            phi,
            bottom,
            top,
            solved,
            np.stack(
                [_over(k.transformed, u, x) for k, x in zip(solved, excess, strict=True)], axis=1
            ),
        )


def _shaped(
    phi: Activation, bottom: float, top: float, solved: list[Constants], ratio: Array
) -> tuple[LocalTable, Array]:
    matrix = fitted(fitted(ratio), axis=1)
    given = [
        [math.log(k.alpha or 1), k.beta or 0.0, math.log(k.gamma or 1), k.delta or 0.0]
        for k in solved
    ]
    table = LocalTable(phi.name, bottom, top, _trimmed(matrix), None, None, None, 0.0)
    theta, worst = np.array([0.3, 1.1, 2.0, 3.0]), 0.0
    gap = 2 * np.sin(theta / 2) ** 2
    for f in (0.03, 0.45, 0.9):
        x = bottom + f * (top - bottom)
        wanted = _over(constants_for(phi, 1 + math.exp(x)).transformed, gap, math.exp(x))
        worst = max(worst, float(np.max(np.abs(table.ratio_at(theta, x) - wanted))))
    return _accepted(table, worst), fitted(np.array(given)).T


def _by_grid(phi: Activation, k: Constants, n: int, excess: float) -> Array:
    """Return ((1 - C)/(1 - c) - psi)/excess by the trapezoid rule.

    This uses 1 - C = E (f(u) - f(v))^2 / 2 with u, v = cos(theta/2) x +- sin(theta/2) y.
    """
    theta, gap = angles(n)
    x = np.linspace(-8.75, 8.75, 71)
    weight = np.exp(-(x**2) / 2) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    half, function = x >= 0, phi.numeric(0)
    y, across = x[half], np.where(x[half] > 0, 2.0, 1.0) * weight[half]
    out = np.empty(n)
    for i in range(n):
        along = (k.alpha or 1) * math.cos(theta[i] / 2) * x[:, None] + (k.beta or 0)
        aside = (k.alpha or 1) * math.sin(theta[i] / 2) * y
        out[i] = weight @ ((function(along + aside) - function(along - aside)) ** 2) @ across
    return ((k.gamma or 1) ** 2 * out / 2 / gap - 1 - excess) / excess


def shaped_levels(bottom: float, top: float) -> int:
    """Return the number of values of log(psi - 1) that represent a shaped table to about 1e-11."""
    half = max((top - bottom) / 2, 0.1)
    return min(max(7, math.ceil(24 / math.log((2.2 + math.hypot(2.2, half)) / half))), 25)


def _reach(phi: Activation, bottom: float, top: float) -> tuple[float, Activation]:
    """Return the largest reachable log(psi - 1), at most ``top``, and its activation.

    The value comes from a bisection and is approximate.
    """
    found = _within_reach(phi, top)
    if found is not None:
        return top, found
    low, found = bottom, _within_reach(phi, bottom)
    for _ in range(7):
        middle = (low + top) / 2
        there = _within_reach(phi, middle)
        if there is None:
            top = middle
        else:
            low, found = middle, there
    if found is None or low == bottom:
        raise KcalcError(f"{phi.name} reaches only slopes close to 1")
    return low, found


def _within_reach(phi: Activation, level: float) -> Activation | None:
    """Return the activation at log(psi - 1) = ``level``.

    Return None if there is none, or if its input scale is so large that tables are slow.
    """
    try:
        k = constants_for(phi, 1 + math.exp(level))
    except KcalcError:
        return None
    return k.transformed if (k.alpha or 1.0) <= WIDEST_SCALE else None


def _over(shaped: Activation, gap: Array, excess: float) -> Array:
    return (np.asarray(shaped.taylor(gap, 1.0)[0]) / gap - 1 - excess) / excess
