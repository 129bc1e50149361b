"""Limits of repeated steps q -> scale Q(q) + shift.

This module finds the fixed points that q values tend to, for many pairs (scale, shift) at once.

With x = log q and g(x) = log((scale Q + shift)/q), iterates move up where g > 0 and down where g <
0. In ranges in which Q is increasing, they cannot pass a zero of g, so their limit is the next
zero. In ranges in which Q is decreasing, they can pass a zero, so they are computed step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError
from ..foundation.process_state import cached_property
from ..foundation.rootfinding import finite_part
from ..gaussian.expectations.quadrature import Array

SPAN = math.log(1e20)  # the nodes cover q values from 1e-20 to 1e20 times the start
SPACING = 0.1  # spacing of the nodes in log q
PARTS = 4  # number of parts of the interval between two nodes
NEUTRAL = 1e-12  # smaller relative steps of q count as 0
KEPT = 1e-13  # if the first relative step is smaller, q stays at its start
ROUNDING = 2e-15  # rounding error of a relative step
ARRIVED = 1e-9  # relative step at which an iterate counts as a fixed point
BISECTIONS = 50
POLISHED = 1e-8  # after a smaller Newton step in log q, the next step is rounding error
NEWTON_STEPS = 20
FOLLOWED = 100  # largest number of steps
CHUNK = 512  # number of pairs (scale, shift) handled at a time

SETTLED, GROWS, SHRINKS, UNSETTLED = 0, 1, -1, 2

Indices = np.ndarray[Any, np.dtype[np.intp]]


@dataclass(frozen=True)
class QRatioTable:
    """log(Q(q)/q), interpolated between equally spaced nodes in log q around ``start``.

    ``level`` is the function Q.
    """

    level: Callable[[Array], Array]
    start: float

    @cached_property
    def nodes(self) -> Array:
        """Return log q at the nodes where Q is finite and > 0."""
        count = math.ceil(SPAN / SPACING)
        grid = math.log(self.start) + SPACING * np.arange(-count, count + 1)
        return finite_part(self._exact, grid)

    def _exact(self, log_q: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.log(self.level(np.exp(log_q))) - log_q

    @cached_property
    def ratio(self) -> Any:
        """Return the interpolant of log(Q/q)."""
        from scipy.interpolate import make_interp_spline

        if self.nodes.size < 8:
            raise KcalcError("Q is finite at too few q values to find the limit of repeated layers")
        return make_interp_spline(self.nodes, self._exact(self.nodes), k=7)

    @cached_property
    def slope(self) -> Any:
        """Return the derivative of the interpolant."""
        return self.ratio.derivative()

    @cached_property
    def fine(self) -> Array:
        """Return the nodes, and PARTS - 1 points in every interval between them."""
        parts = np.arange(PARTS) / PARTS
        inside = (self.nodes[:-1, None] + np.diff(self.nodes)[:, None] * parts).ravel()
        return np.append(inside, self.nodes[-1])

    @cached_property
    def falls(self) -> Array:
        """Return, for each point of ``fine``, how many earlier intervals have decreasing Q."""
        levels = self.ratio(self.fine) + self.fine
        return np.concatenate([[0], np.cumsum(np.diff(levels) < -NEUTRAL)])


@dataclass(frozen=True)
class QLimits:
    """For every pair, the limit of q (nan if there is none) and the outcome.

    The outcome is SETTLED, GROWS, SHRINKS or UNSETTLED.
    """

    q: Array
    outcome: Indices
    last: Array  # log q of the last iterate


def q_limits(table: QRatioTable, scale: Array, shift: Array) -> QLimits:
    """Find the limits of q -> scale Q(q) + shift from ``table.start``.

    ``scale`` > 0 and ``shift`` >= 0 are one-dimensional arrays.
    """
    parts = [
        _Pairs(table, scale[k : k + CHUNK], shift[k : k + CHUNK]).limits()
        for k in range(0, len(scale), CHUNK)
    ]
    columns = zip(*((part.q, part.outcome, part.last) for part in parts), strict=True)
    return QLimits(*(np.concatenate(column) for column in columns))


class _Pairs:
    """A chunk of pairs (scale, shift)."""

    def __init__(self, table: QRatioTable, scale: Array, shift: Array) -> None:
        self.table, self.scale, self.shift = table, scale, shift
        x = table.fine
        with np.errstate(over="ignore"):
            excess = scale[:, None] * np.exp(table.ratio(x)) + shift[:, None] * np.exp(-x) - 1
        self.sign = np.where(np.abs(excess) <= NEUTRAL, 0, np.sign(excess)).astype(np.int8)

    def limits(self) -> QLimits:
        x = np.full(len(self.scale), math.log(self.table.start))
        outcome = np.full(len(self.scale), UNSETTLED)
        root = np.full(len(self.scale), np.nan)
        everyone = np.arange(len(self.scale))
        kept = np.abs(np.expm1(self.g(x, everyone))) <= KEPT
        outcome[kept], root[kept] = SETTLED, x[kept]
        for _ in range(FOLLOWED):
            pending = np.flatnonzero(outcome == UNSETTLED)
            if not pending.size:
                break
            self._advance(pending, x, outcome, root)
        settled = np.flatnonzero((outcome == SETTLED) & ~kept)
        root[settled] = self._polished(root[settled], settled)
        outcome[settled[np.isnan(root[settled])]] = UNSETTLED
        return QLimits(np.exp(root), outcome, x)

    def _advance(self, pending: Indices, x: Array, outcome: Indices, root: Array) -> None:
        """Settle the pairs whose iterates cannot pass the next fixed point.

        The other pairs advance by one step.
        """
        fine, falls = self.table.fine, self.table.falls
        here = np.clip(x[pending], fine[0], fine[-1])
        g = self.g(here, pending)
        near, far = self._next_change(pending, here, np.sign(g))
        ends = far < 0
        outcome[pending[ends]] = np.sign(g[ends])
        behind = np.searchsorted(fine, here)
        increasing = (falls[far] == falls[behind]) & (
            falls[far] == falls[np.maximum(behind - 1, 0)]
        )
        done = ~ends & (increasing | (np.abs(g) < ARRIVED))
        outcome[pending[done]] = SETTLED
        root[pending[done]] = self._bisected(pending[done], near[done], fine[far[done]])
        moved = ~ends & ~done
        x[pending[moved]] = here[moved] + g[moved]

    def _next_change(self, pairs: Indices, here: Array, way: Array) -> tuple[Array, Indices]:
        """Return (end of the interval of constant sign, index of the first point after it).

        The interval starts at ``here`` and ends at the log q at which the sign changes. If there is
        no such point, the index is -1.
        """
        fine = self.table.fine
        near, far = here.copy(), np.full(len(pairs), -1)
        ups, downs = np.searchsorted(fine, here, "left"), np.searchsorted(fine, here, "right")
        for row, (pair, up, down) in enumerate(zip(pairs, ups, downs, strict=True)):
            signs = self.sign[pair, up:] if way[row] > 0 else self.sign[pair, :down][::-1]
            other = np.flatnonzero(signs == -way[row])
            if way[row] and other.size:
                step, first = (1, up) if way[row] > 0 else (-1, down - 1)
                far[row] = first + step * other[0]
                same = np.flatnonzero(signs[: other[0]] == way[row])
                near[row] = fine[first + step * same[-1]] if same.size else here[row]
        return near, far

    def g(self, x: Array, pairs: Indices) -> Array:
        """Return log((scale Q + shift)/q) from the table."""
        with np.errstate(over="ignore"):
            return np.log(
                self.scale[pairs] * np.exp(self.table.ratio(x)) + self.shift[pairs] * np.exp(-x)
            )

    def _bisected(self, pairs: Indices, near: Array, far: Array) -> Array:
        low, high, sign = near, far, np.sign(far - near)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            before = sign * self.g(middle, pairs) > 0
            low, high = np.where(before, middle, low), np.where(before, high, middle)
        return (low + high) / 2

    def _polished(self, x: Array, pairs: Indices) -> Array:
        """Refine zeros by Newton's method, using Q itself and the slope from the table.

        Return nan if the method does not converge.
        """
        x, unfinished = x.copy(), np.arange(len(x))
        for _ in range(NEWTON_STEPS):
            if not unfinished.size:
                return x
            here, pair = x[unfinished], pairs[unfinished]
            moving = self.scale[pair] * self.table.level(np.exp(here))
            after = moving + self.shift[pair]
            slope = moving / after * (1 + self.table.slope(here)) - 1
            g = np.log(after * np.exp(-here))
            with np.errstate(divide="ignore", invalid="ignore"):
                step = np.where(np.abs(g) <= ROUNDING, 0.0, g / slope)
            x[unfinished] = here - np.clip(step, -SPACING, SPACING)
            unfinished = unfinished[np.abs(step) > POLISHED]
        x[unfinished] = np.nan
        return x


def length_scale(rate: Array) -> Array:
    """Return the length scale -1/log |rate|, in steps.

    A distance that is multiplied by ``rate`` per step shrinks by a factor of e over this many
    steps. The length scale is infinite if the rate is >= 1.
    """
    size = np.abs(rate)
    below = size < 1 - KEPT
    with np.errstate(divide="ignore"):
        scale = -1 / np.log(np.where(below, size, 0.5))
    return np.where(below, scale, np.where(np.isnan(size), np.nan, math.inf))
