"""Local maps of activations for rows of different norms: tables in the angle and both log q values.

Let phi have no jumps, and no kinks except possibly at 0. Write u, v for its Gaussian arguments with
variances q1, q2 and cosine cos theta. Then

    1 - C = |w(q1) - w(q2)|^2/2 + sin^2(theta/2) G(theta, q1, q2),    C' = D(theta, q1, q2)

with functions w, G and D that are smooth in theta on [0, pi] and in log q1, log q2. The reason is
that in polar coordinates of the two Gaussians, a kink at 0 is a line through the origin, which
depends on theta but not on q. G and D are Chebyshev series in theta whose coefficients, functions
of q1 and q2, are sums of a few products. G follows from D by
``sin^2(theta/2) G = int_0^theta D sin``, so gaps keep their relative accuracy at arbitrarily small
angles, for equal and unequal norms.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ..activations import Activation
from ..fields import NUMPY
from ..fields.chebyshev import points
from ..fields.jets import Jet
from ..foundation.errors import KcalcError
from ..gaussian.expectations.quadrature import joint_edges, normal_rule, panel_nodes, split
from ..gaussian.expectations.single import hermites
from ..matrices.gram.series import LowRank, needed, series, waves
from .field_maps import FieldMaps

Array = np.ndarray

ACCURATE = 1e-11
"""Largest accepted error of a table, relative to its largest value."""

_ENOUGH = 2e-14
_STEP = 0.5  # ranges of log q are rounded outwards to multiples of this
_MOST_ANGLES, _MOST_NORMS = 192, 80
_REACH = 9.0  # exp(-_REACH^2/2) is below rounding errors
_RULES = (12, 17)  # points per panel, for the tables and for the probes
_INTEGRAL = 160  # points of the integral over the angle


@dataclass(frozen=True, eq=False)
class LocalTable:
    """The maps of ``phi`` for log q in [low, high].

    ``moments``: Chebyshev coefficients in log q of (log Q, E phi / sqrt Q); ``apart``: coefficients
    of w; ``drop`` and ``slope``: coefficients of G and D. ``error``: the error of G and D, relative
    to their largest values, at angles and q values between the nodes.
    """

    phi: Activation
    low: float
    high: float
    moments: Array
    apart: Array
    drop: LowRank
    slope: LowRank
    error: float = math.inf

    def q(self, q: Any, xp: Any = np) -> tuple[Any, Any]:
        """Return (Q, E phi) at an array of q values with shape (n,)."""
        found = self._waves(q, xp) @ self.moments
        size = xp.exp(found[:, 0])
        return size, found[:, 1] * xp.sqrt(size)

    def taylor(self, gap: Any, q1: Any, q2: Any, xp: Any = np) -> tuple[Any, Any]:
        """Return (1 - C, C') for arrays gap (rows, columns), q1 (rows, 1) and q2 (1, columns)."""
        sine = xp.sqrt(xp.asarray(gap) / 2)
        x = xp.arctan2(sine, xp.sqrt(xp.asarray(2 - gap) / 2)) * (4 / math.pi) - 1
        one, two = (self._waves(q, xp) for q in (q1[:, 0], q2[0]))
        value = self.drop.summed(x, one, two, xp) * sine * sine
        for first, second in zip((one @ self.apart).T, (two @ self.apart).T, strict=True):
            value += (first[:, None] - second[None, :]) ** 2 / 2
        return value, self.slope.summed(x, one, two, xp)

    def paired(self, gap: Array, q1: Array, q2: Array) -> tuple[Array, Array]:
        """Return (1 - C, C') of individual pairs; all arrays have shape (n,)."""
        sine = np.sqrt(gap / 2)
        x = np.arctan2(sine, np.sqrt((2 - gap) / 2)) * (4 / math.pi) - 1
        one, two = (self._waves(q, np) for q in (q1, q2))
        apart = (((one - two) @ self.apart) ** 2).sum(axis=1) / 2
        return apart + self.drop.paired(x, one, two) * sine * sine, self.slope.paired(x, one, two)

    def _waves(self, q: Any, xp: Any) -> Any:
        x = (2 * xp.log(q) - self.low - self.high) / (self.high - self.low)
        return waves(x, len(self.apart), xp)


def local_table(
    phi: Activation, low: float, high: float, polar: bool | None = None
) -> LocalTable | None:
    """Return the table of phi for log q in [low, high], or None if no table is accurate.

    ``polar``: True computes expectations by integration in polar coordinates, which resolves only
    features near 0; False computes them from Hermite coefficients. None means True if there are
    kinks.
    """
    if any(phi.kink_points) or any(phi.jump_sizes(0)):
        return None
    try:
        return _best(_PairExpectations(phi, bool(phi.kinks) if polar is None else polar), low, high)
    except KcalcError:  # moments at the ends of the range are beyond double precision
        return None


@dataclass(frozen=True)
class _PairExpectations:
    """A method for computing expected products of two values of phi."""

    phi: Activation
    polar: bool

    def __call__(self, n: int, q: Array, theta: Array, count: int) -> Array | None:
        """Return E phi^(n)(u) phi^(n)(v), n = 0 or 1, as an array with the axes (q, q, theta)."""
        if self.polar:
            scale, function = np.sqrt(q), self.phi.numeric(n)
            found = (_polar(function, scale, float(angle), count) for angle in theta)
            return np.stack(list(found), axis=2)
        coefficients = _hermites(self.phi, tuple(q))
        if coefficients is None:
            return None
        a = coefficients[0]
        orders = np.arange(len(a))
        weights = np.vander(np.cos(theta), len(a), increasing=True)
        if n:
            a, weights = a[1:] * np.sqrt(orders[1:, None]), weights[:, :-1]
        sums = np.stack([(a.T * weight) @ a for weight in weights], axis=2)
        return sums / np.sqrt(np.outer(q, q))[..., None] if n else sums


def _best(pairs: _PairExpectations, low: float, high: float) -> LocalTable | None:
    """Return the first table that is accurate to rounding, or else the best acceptable table."""
    norms = min(_MOST_NORMS, 10 + math.ceil(4 * (high - low)))
    best: LocalTable | None = None
    with np.errstate(all="ignore"):
        angles = _angle_count(pairs, high)
        while angles is not None and norms <= _MOST_NORMS:
            made = _made(pairs, low, high, norms, angles)
            if made is None:
                break
            table, wanted = made
            if table.error <= ACCURATE and (best is None or table.error < best.error / 4):
                best = table
            if table.error <= _ENOUGH or wanted < norms:
                break
            norms = math.ceil(1.5 * norms)
    return best


def _angle_count(pairs: _PairExpectations, high: float) -> int | None:
    """Return the number of angles that the largest q needs, or None if it needs too many."""
    angles, q = 32, np.array([math.exp(high)])
    while angles <= _MOST_ANGLES:
        slope = pairs(1, q, (1 + points(angles)) * (math.pi / 2), _RULES[0])
        if slope is None or not np.isfinite(slope).all():
            return None
        wanted = needed(series(slope, 2), 2)
        if wanted < angles - 2:
            return 2 * (wanted // 2) + 4
        angles = math.ceil(1.5 * angles)
    return None


def _made(
    pairs: _PairExpectations, low: float, high: float, norms: int, angles: int
) -> tuple[LocalTable, int] | None:
    """Return (table, number of norms with significant coefficients), or None if no rule works."""
    q = np.exp((low + high) / 2 + (high - low) / 2 * points(norms))
    shape = _shape(pairs.phi, q)
    slope = pairs(1, q, (1 + points(angles)) * (math.pi / 2), _RULES[0])
    if shape is None or slope is None or not np.isfinite(slope).all():
        return None
    moments, apart, size = shape
    slope *= (np.sqrt(np.outer(q, q)) / np.outer(size, size))[..., None]
    slopes = series(series(series(slope, 2), 1), 0)
    drops = slopes @ _integrals(angles).T
    wanted = max(needed(drops, 0), needed(slopes, 0))
    table = LocalTable(
        pairs.phi, low, high, moments, apart, LowRank.of(drops), LowRank.of(slopes), math.inf
    )
    return replace(table, error=_error(table, pairs)), wanted


def _shape(phi: Any, q: Array) -> tuple[Array, Array, Array] | None:
    """Return (moments, apart, sqrt Q at the nodes q), or None if a rule does not resolve phi."""
    ends = float(q.max()), float(q.min())
    rule = normal_rule(split(joint_edges(phi, ends[0], phi, ends[1], 1), 1.0))
    values = phi.numeric(0)(np.sqrt(q)[:, None] * rule.z)
    power, mean = values**2 @ rule.w, values @ rule.w
    if not (np.isfinite(power).all() and (power > 0).all()):
        return None
    size = np.sqrt(power)
    moments = series(np.stack([np.log(power), mean / size], axis=1), 0)
    shapes = series(values * np.sqrt(rule.w) / size[:, None], 0)
    left, weights, _ = np.linalg.svd(shapes, full_matrices=False)
    keep = weights > 1e-16 * weights[0]
    return moments, left[:, keep] * weights[keep], size


def _integrals(angles: int) -> Array:
    """Return the matrix that maps coefficients of D to those of G."""
    theta = (1 + points(angles)) * (math.pi / 2)
    inner, w = (part[:, 0] for part in panel_nodes(np.stack([0 * theta, theta], axis=1), _INTEGRAL))
    bent = np.sin(inner) * w / np.sin(theta / 2)[:, None] ** 2
    values = waves((inner * (2 / math.pi) - 1).ravel(), angles).reshape(*inner.shape, angles)
    return series(np.einsum("jt,jtk->jk", bent, values), 0)


@lru_cache(maxsize=4)
def _hermites(phi: Any, q: tuple[float, ...]) -> Any:
    """Return Hermite coefficients, cached because other angles and n reuse the same q values."""
    return hermites(phi, np.array(q))


def _polar(f: Any, scale: Array, theta: float, count: int) -> Array:
    """Return E f(s u) f(s' v) for normal u, v with cosine cos theta and all s, s' in ``scale``.

    ``u = r sin t, v = r sin(t + theta)`` where both have the same sign, and otherwise
    ``v = r sin(t - theta)``. The mesh is refined towards the lines u = 0 and v = 0 and towards the
    origin.
    """
    steep = float(scale.max())
    edges = _graded(_REACH, 4 * steep)
    r, weight = _panels([*edges[edges <= _REACH / 2], 0.75 * _REACH, _REACH], count)
    weight = weight * r * np.exp(-(r**2) / 2) / (2 * math.pi)
    total = np.zeros((scale.size, scale.size))
    for length, shift, sign in ((math.pi - theta, theta, 1), (theta, -theta, -1)):
        near = _graded(length, steep * _REACH)
        near = near[near <= length / 2]
        t, w = _panels([*near, *(length - near[-2::-1])], count)
        area = np.outer(w, weight).ravel()
        one = scale[:, None] * np.outer(np.sin(t), r).ravel()
        two = scale[:, None] * np.outer(np.abs(np.sin(t + shift)), r).ravel()
        for side in (1.0, -1.0):
            total += (f(side * one) * area) @ f(side * sign * two).T
    return total


def _graded(length: float, steep: float) -> Array:
    """Return 0 and length / 2^k, ascending; the least positive value is about 1 / steep."""
    count = max(1, math.ceil(math.log2(max(length * steep, 2.0))))
    return np.array([0.0, *(length / 2.0**k for k in range(count, -1, -1))])


def _panels(edges: list[float], count: int) -> tuple[Array, Array]:
    """Return nodes and weights of Gauss-Legendre rules between the edges."""
    x, w = panel_nodes(np.array(edges), count)
    return x.ravel(), w.ravel()


def _error(table: LocalTable, pairs: _PairExpectations) -> float:
    """Return the largest difference from a finer rule at q values and angles between the nodes."""
    random = np.random.default_rng(0)
    q = np.exp(random.uniform(table.low, table.high, 6))
    q[:2] = math.exp(table.low), math.exp(table.high)
    theta = np.append(random.uniform(0, math.pi, 4), (1e-3, math.pi - 1e-3, 0.0))
    size = np.sqrt(table.q(q)[0])
    level = np.outer(size, size)
    truth = [pairs(n, q, theta, _RULES[1]) for n in (0, 1)]
    worst = 0.0
    for k, angle in enumerate(theta):
        gap = np.full((q.size, q.size), 2 * math.sin(angle / 2) ** 2)
        value, slope = table.taylor(gap, q[:, None], q[None, :])
        exact = truth[1][..., k] * np.sqrt(np.outer(q, q)) / level  # type: ignore[index]
        worst = max(
            worst,
            float(np.abs(value - (1 - truth[0][..., k] / level)).max()),  # type: ignore[index]
            float(np.abs(slope - exact).max() / max(1.0, np.abs(exact).max())),
        )
    return worst if math.isfinite(worst) else math.inf


class TabledMaps(FieldMaps):
    """Local maps from one table per call, in the order in which a network requests them.

    Activations without a table use the exact maps of :class:`FieldMaps`.
    """

    def __init__(self, tables: Sequence[LocalTable | None], system: Any = NUMPY) -> None:
        super().__init__(system)
        self._left = deque(tables)
        self._xp: Any = np
        if system is not NUMPY:
            import jax.numpy

            self._xp = jax.numpy

    def q(self, phi: Activation, q: Any) -> tuple[Any, Any]:
        """See :class:`FieldMaps`."""
        table = self._left[0]
        if table is None:
            return super().q(phi, q)
        size, mean = table.q(q.reshape(-1), self._xp)
        return size.reshape(q.shape), mean.reshape(q.shape)

    def gap(self, phi: Activation, gap: Any, q1: Any, q2: Any) -> Any:
        """See :class:`FieldMaps`; the shapes are q1 (rows, 1) and q2 (1, columns)."""
        table = self._left.popleft()
        if table is None:
            return super().gap(phi, gap, q1, q2)
        if table.phi != phi:
            raise AssertionError("the activations were requested in a different order")
        value, slope = table.taylor(gap.value, q1, q2, self._xp)
        return Jet((value, *(slope * first for first in gap.coefficients[1:])))


class RecordedMaps(FieldMaps):
    """Local maps of individual rows, without gaps.

    ``calls`` and ``tables`` are the requested activations and the tables of their pairs. ``known``
    contains existing tables, as {activation: tables}.
    """

    def __init__(self, known: dict[Activation, list[LocalTable]]) -> None:
        super().__init__()
        self.known = known
        self.calls, self.tables = list[Activation](), list[LocalTable | None]()

    def q(self, phi: Activation, q: Any) -> tuple[Any, Any]:
        """See :class:`FieldMaps`."""
        table = self._table(phi, q)
        self.calls.append(phi)
        self.tables.append(table)
        return super().q(phi, q) if table is None else table.q(q)

    def gap(self, phi: Activation, gap: Any, q1: Any, q2: Any) -> Any:
        """Return gaps of 0, because a row is paired with itself."""
        return gap

    def _table(self, phi: Activation, q: Array) -> LocalTable | None:
        if phi.degree is not None:  # closed forms need no table
            return None
        low, high = float(np.log(q.min())), float(np.log(q.max()))
        tables = self.known.setdefault(phi, [])
        for table in tables:
            wide = table.high - table.low <= 4 * (high - low) + 2
            if table.low <= low and high <= table.high and wide:
                return table
        low, high = math.floor(low / _STEP) * _STEP, math.floor(high / _STEP + 1) * _STEP
        made = local_table(phi, low, high)
        if made is not None:
            tables.append(made)
        return made
