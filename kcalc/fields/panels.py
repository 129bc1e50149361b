"""Functions of the gap u = 1 - c as Chebyshev panels on a logarithmic scale.

The variable is s = -log2 of the distance to the nearer end of [0, 2].

As a function of s, a kernel is equally smooth everywhere, even near c = 1, where it may behave like
a square root or vary on many scales, as for chaotic networks. If a kernel is a power series in c
with coefficients >= 0, its singularities lie at |c| >= 1. In terms of s, these singularities lie
beyond the ends of the range, or at ``|Im s| >= pi / (2 ln 2) = 2.27``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ..foundation.errors import KcalcError
from .chebyshev import points, transform
from .gaps import Gap

Array = np.ndarray
GapFunctions = Callable[[Gap], Array]
"""Maps gaps (n,) to values (functions, n)."""

NODES = 22
CHECKS = np.array([-0.996, -0.83, -0.45, 0.07, 0.53, 0.87, 0.998])
"""check points of panels on [-1, 1]; none of them is a node"""

_LOWER = (0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 20.0, 24.0, 32.0, 48.0, 72.0, 96.0)
_DEEPER = (144.0, 240.0, 432.0, 816.0, 1000.0)
_UPPER = (0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 20.0, 24.0, 32.0, 48.0, 72.0, 96.0)
_ROUNDS = 6
_AROUND = 0.02
_NOISE = 1e-10
"""Relative errors below this, at 1 + c < 2^-24, count as lost digits of 1 + c.

The lost digits change values by at most the size of these errors.
"""


_POINTS, _FIT = points(NODES), transform(NODES)
_AT_CHECKS = np.cos(np.arange(NODES)[:, None] * np.arccos(CHECKS))


def gaps_at(s: Array, upper: Array) -> Gap:
    """Return the gaps at distances 2^-s from 0, or from 2 if ``upper`` is set."""
    near = np.exp2(-s)
    far = 2 - near
    return Gap.of(np.where(upper, far, near), np.where(upper, near, far))


@dataclass(frozen=True, eq=False)
class PanelSide:
    """Functions on one side of [0, 2], as Chebyshev panels in s.

    ``edges`` (panels + 1,) are the edges of the panels, with s ascending from 0. ``coefficients``
    has shape (functions, panels, NODES).

    Beyond the last edge, the functions are constant, with the values ``end`` (functions,).
    """

    edges: Array
    coefficients: Array
    end: Array

    def __call__(self, s: Array) -> Array:
        """Return values (functions, n) at s >= 0."""
        panel = np.clip(np.searchsorted(self.edges, s, side="right") - 1, 0, len(self.edges) - 2)
        low, high = self.edges[panel], self.edges[panel + 1]
        x, beyond = (2 * s - low - high) / (high - low), s > self.edges[-1]
        waves = np.cos(np.arccos(np.clip(x, -1, 1))[:, None] * np.arange(NODES))
        out = np.einsum("fnk,nk->fn", np.take(self.coefficients, panel, axis=1), waves)
        out[:, beyond] = self.end[:, None]
        return out


@dataclass(frozen=True, eq=False)
class Fitted:
    """Functions of the gap, fitted on both sides.

    ``error`` (functions,) is the largest relative error at the check points.
    """

    lower: PanelSide
    upper: PanelSide
    error: Array
    evaluations: int
    checks: tuple[Array, Array, Array]
    """(s, upper, values) of all check points in accepted panels, used to measure tables made later.
    """

    def at(self, s: Array, upper: Array) -> Array:
        """Return the values at s on the upper or lower side, with shape (functions, n)."""
        out = np.empty((len(self.error), s.size))
        out[:, ~upper], out[:, upper] = self.lower(s[~upper]), self.upper(s[upper])
        return out


@dataclass(frozen=True)
class _Panel:
    low: float
    high: float
    upper: bool
    error: float = np.inf
    coefficients: Array | None = None
    checked: tuple[Array, Array] | None = None
    parent: _Panel | None = None

    def points(self) -> Array:
        return (self.low + self.high) / 2 + (self.high - self.low) / 2 * np.concatenate(
            [_POINTS, CHECKS]
        )

    def halves(self) -> list[_Panel]:
        middle = (self.low + self.high) / 2
        return [
            _Panel(self.low, middle, self.upper, parent=self),
            _Panel(middle, self.high, self.upper, parent=self),
        ]


def fit(
    function: GapFunctions,
    tolerance: float,
    floor: Callable[[Array], Array],
    symmetric: Array | None = None,
) -> Fitted:
    """Fit ``function`` by Chebyshev panels, bisected until the tolerance is met.

    At the check points, the error must be at most ``tolerance`` times the value or the floor,
    whichever is larger.

    ``floor`` maps the values at u = 0 (functions,) to the floors (functions,). ``symmetric``
    contains signs (functions,) with f(2 - u) = sign f(u). The upper side is then reflected instead
    of evaluated. Raises KcalcError if the function is not finite.
    """
    waiting = [
        _Panel(a, b, side)
        for side, edges in ((False, _LOWER), (True, _UPPER))
        for a, b in pairwise(edges)
    ]
    if symmetric is not None:
        waiting = [panel for panel in waiting if not panel.upper]
    probes = np.array([np.inf, *(float(s) for s in (_LOWER[-1], *_DEEPER)), np.inf])
    sides = np.arange(probes.size) == probes.size - 1
    done: list[_Panel] = []
    ends = level = None
    count = rounds = 0
    while waiting:
        rounds += 1
        s, upper = _points(waiting)
        first = ends is None
        if first:
            s, upper = np.concatenate([s, probes]), np.concatenate([upper, sides])
        values = _evaluated(function, s, upper)
        count += s.size
        if first:
            values, probed = values[:, : -probes.size], values[:, -probes.size :]
            ends, level = (probed[:, 0], probed[:, -1]), floor(probed[:, 0])
            deeper = _deeper(probed[:, 1:-1], ends[0], level)
        assert level is not None and ends is not None
        waiting, finished = _split_converged(waiting, values, tolerance, level, rounds == _ROUNDS)
        done += finished
        if first:
            waiting += deeper
    assert ends is not None and level is not None
    lower = _side([p for p in done if not p.upper], ends[0])
    upper_side = (
        replace(
            lower,
            coefficients=lower.coefficients * symmetric[:, None, None],
            end=lower.end * symmetric,
        )
        if symmetric is not None
        else _side([p for p in done if p.upper], ends[1])
    )
    error = np.max([_relative(p, level) for p in done], axis=0)
    s = np.concatenate([p.checked[0] for p in done if p.checked])
    flags = np.concatenate([np.full(CHECKS.size, p.upper) for p in done if p.checked])
    values = np.concatenate([p.checked[1] for p in done if p.checked], axis=1)
    return Fitted(lower, upper_side, error, count, (s, flags, values))


def _points(panels: Sequence[_Panel]) -> tuple[Array, Array]:
    width = NODES + CHECKS.size
    return np.concatenate([p.points() for p in panels]), np.repeat([p.upper for p in panels], width)


def _evaluated(function: GapFunctions, s: Array, upper: Array) -> Array:
    gap = gaps_at(s, upper)
    values = np.asarray(function(gap), dtype=float)
    if not np.isfinite(values).all():
        bad = np.asarray(gap)[~np.isfinite(values).all(axis=0)][0]
        raise KcalcError(
            f"the kernel exceeds double precision at c = {1 - bad:.17g}; reduce sigma_w or the "
            "depth"
        )
    return values


def _deeper(probed: Array, end: Array, level: Array) -> list[_Panel]:
    """Return panels below 2^-96, as far as the functions still differ from their end values."""
    edges = (_LOWER[-1], *_DEEPER)
    size = np.maximum(np.abs(end), level)[:, None]
    moving = (np.abs(probed - end[:, None]) > 2e-14 * size).any(axis=0)
    last = int(np.flatnonzero(moving).max()) + 1 if moving.any() else 0
    return [_Panel(a, b, False) for a, b in pairwise(edges[: last + 1])]


def _split_converged(
    panels: Sequence[_Panel], values: Array, tolerance: float, level: Array, last: bool
) -> tuple[list[_Panel], list[_Panel]]:
    """Return (panels to refine, converged panels), given the values at all points of ``panels``."""
    waiting: list[_Panel] = []
    finished: list[_Panel] = []
    pieces = values.reshape(len(values), len(panels), NODES + CHECKS.size)
    fitted = pieces[..., :NODES] @ _FIT.T
    missed = np.abs(fitted @ _AT_CHECKS - pieces[..., NODES:])
    size = np.maximum(sizes(pieces[..., NODES:]), level[:, None, None])
    errors = (missed / size).max(axis=(0, 2))
    for i, panel in enumerate(panels):
        checked = (panel.points()[NODES:], pieces[:, i, NODES:])
        taken = replace(
            panel, error=float(errors[i]), coefficients=fitted[:, i], checked=checked, parent=None
        )
        helped = panel.parent is None or errors[i] < panel.parent.error / 2
        lost = panel.upper and panel.low >= 24 and errors[i] <= _NOISE
        if last or errors[i] <= tolerance or lost or (not helped and errors[i] < 1e-9):
            finished.append(taken)
        else:
            waiting += [
                replace(half, parent=replace(taken, checked=None, coefficients=None))
                for half in taken.halves()
            ]
    return waiting, finished


def _side(panels: Sequence[_Panel], end: Array) -> PanelSide:
    ordered = sorted(panels, key=lambda p: p.low)
    edges = np.array([*(p.low for p in ordered), ordered[-1].high])
    return PanelSide(edges, np.stack([np.asarray(p.coefficients) for p in ordered], axis=1), end)


def sizes(values: Array) -> Array:
    """Return the scale for relative errors at the check points of a panel (..., checks).

    The scale is the value itself or, near a zero, a fraction of the largest value.
    """
    size = np.abs(values)
    return np.maximum(size, _AROUND * size.max(axis=-1, keepdims=True))


def _relative(panel: _Panel, level: Array) -> Array:
    assert panel.checked is not None and panel.coefficients is not None
    found = panel.coefficients @ _AT_CHECKS
    size = np.maximum(sizes(panel.checked[1]), level[:, None])
    return (np.abs(found - panel.checked[1]) / size).max(axis=1)
