"""Kernels for rows with any norms: one Chebyshev table in the angle and in log q of both rows.

The kernel of two rows is a function F(x, log q1, log q2), with x a coordinate of the gap 1 - c. The
coefficients of its Chebyshev series in x are symmetric functions of q1 and q2 with low rank. The
coefficients of all pairs of rows are therefore products of a factor per row and a factor per
column. Clenshaw's rule sums the series at a cost that does not depend on the network's depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ...fields.chebyshev import points
from ...fields.gaps import Gap
from ...foundation.errors import KcalcError
from ...foundation.process_state import cached_property
from .plans import PairFunction
from .series import LowRank, clenshaw, needed, series
from .tables import AngleTable

Array = np.ndarray

ACCURATE = 4e-11
"""the largest accepted error bound of a table"""

_STEP = 0.25  # ranges of log q are rounded outwards to multiples of this, to cover further data
_OFFSETS = tuple(4.0**k for k in range(2, -14, -1))
_MOST_ANGLES, _MOST_NORMS = 384, 72
_SAFETY, _ROUNDING = 4.0, 1e-14
_PROBES = 48
_PAIRS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class Coordinate:
    """An increasing coordinate x in [-1, 1] of a gap u in [0, 2], for short Chebyshev series in x.

    x is linear in log(u + offset), or in log((u + offset) / (2 - u + offset)) if ``both`` is set. A
    kernel may be singular beyond the ends of [0, 2], at distances of about the offset. As a
    function of x, the kernel is regular on a wide strip.
    """

    offset: float
    both: bool

    @property
    def length(self) -> float:
        """Return log(1 + 2/offset)."""
        return math.log1p(2 / self.offset)

    def __call__(self, w: Any, upper: Any, xp: Any = np) -> Any:
        """Return x at distances w <= 1 from a gap of 0, or from a gap of 2 if ``upper`` is set."""
        if self.both:
            far = xp.log((w + self.offset) / (2 + self.offset - w)) / self.length
            return xp.where(upper, -far, far)
        gap = xp.where(upper, 2 - w, w)
        return xp.log(gap + self.offset) * (2 / self.length) - (
            1 + 2 * math.log(self.offset) / self.length
        )

    def gaps(self, x: Array) -> Gap:
        """Return the gaps at coordinates x."""
        a, span = self.offset, self.length
        if self.both:
            sides = (
                -a * (2 + a) * np.expm1(-span * (1 + t)) / (a + (2 + a) * np.exp(-span * (1 + t)))
                for t in (x, -x)
            )
            return Gap.of(*sides)
        return Gap.of(a * np.expm1(span * (1 + x) / 2), -(2 + a) * np.expm1(-span * (1 - x) / 2))


@dataclass(frozen=True, eq=False)
class NormTable:
    """A table of the NNGP and NTK for pairs of rows with log q in [low, high].

    ``scale`` contains Chebyshev coefficients in log q of log sqrt(NNGP(x, x)); both kernels are
    divided by the exponential of this function. ``parts`` contains the series in x of NNGP and NTK.
    ``error_bound`` bounds |table - kernel| relative to |kernel| or to a hundredth of
    sqrt(K(x, x) K(y, y)), whichever is larger; this bound is 4 times the error measured at random
    pairs. ``evaluations`` is the number of pairs at which the kernels were evaluated.
    """

    coordinate: Coordinate
    low: float
    high: float
    scale: Array
    parts: tuple[LowRank, LowRank]
    evaluations: int
    error_bound: float = 0.0

    def factors(self, part: int, q: Array) -> Array:
        """Return the factors (sum of the ranks, n) for rows with q values ``q`` (n,)."""
        log = self._log(q)
        waves = np.polynomial.chebyshev.chebvander(log, len(self.scale) - 1)
        size = np.exp(waves @ self.scale)
        basis = self.parts[part].basis
        return np.ascontiguousarray((basis @ waves[:, : basis.shape[1]].T) * size)

    def _log(self, q: Array) -> Array:
        return np.clip((2 * np.log(q) - self.low - self.high) / (self.high - self.low), -1, 1)

    def at(self, gap: Gap, q1: Array, q2: Array) -> Array:
        """Return NNGP and NTK for n pairs of rows, with shape (2, n)."""
        flat, rest = np.asarray(gap), np.asarray(gap.rest)
        x = self.coordinate(np.minimum(flat, rest), flat > rest)
        out = np.empty((2, flat.size))
        for part in (0, 1):
            one, two = self.factors(part, q1), self.factors(part, q2)
            products = one * two * self.parts[part].signs[:, None]
            starts = np.cumsum((0, *self.parts[part].ranks))
            sums = np.array([products[a:b].sum(axis=0) for a, b in pairwise(starts)])
            out[part] = np.polynomial.chebyshev.chebval(x, sums, tensor=False)
        return out

    def __repr__(self) -> str:
        return (
            f"NormTable(log q {self.low:g} to {self.high:g}, {len(self.scale)} values, "
            f"{self.evaluations} evaluations, error <= {self.error_bound:.1e})"
        )


def q_range(*q: Array) -> tuple[float, float]:
    """Return the smallest and the largest log q, rounded outwards to multiples of 0.25."""
    low, high = (float(f([f(np.log(v)) for v in q])) for f in (np.min, np.max))
    return math.floor(low / _STEP) * _STEP, max(
        math.ceil(high / _STEP) * _STEP, math.floor(low / _STEP) * _STEP + _STEP
    )


@dataclass(frozen=True)
class NormFunctions:
    """The kernels to tabulate.

    ``pairs`` computes exact (NNGP, NTK) from gaps, q1 and q2 (n,). ``blocks`` does the same with
    broadcasting, like the function of a :class:`.plans.PairPlan`. ``angle`` maps q to the table for
    pairs of rows with that q. ``odd`` has the same meaning as in :func:`.tables.tabulate`.
    """

    pairs: Callable[[Gap, Array, Array], Array]
    blocks: PairFunction
    angle: Callable[[float], AngleTable]
    odd: bool = False

    def own(self, q: Array) -> Array:
        """Return NNGP(x, x) for rows x with the given q values."""
        return self.pairs(Gap.of(np.zeros(q.size), np.full(q.size, 2.0)), q, q)[0]


def tabulate_norms(functions: NormFunctions, low: float, high: float) -> NormTable | None:
    """Return the table for log q in [low, high], or None if no short series suffices."""
    try:
        coordinate, angles = _coordinate(functions.angle(math.exp(high)), functions.odd)
    except (OverflowError, KcalcError):  # kernels at the norms of the rows may still be finite
        return None
    norms = _norm_count(functions, low, high)
    while angles <= _MOST_ANGLES and norms <= _MOST_NORMS:
        found, wants = _tabulated(functions, coordinate, (angles, norms), (low, high))
        if found is None:
            return None
        found = _measured(found, functions.pairs)
        if found.error_bound <= ACCURATE:
            return found
        more = [
            math.ceil(0.6 * n) * 2 if want >= n else n
            for n, want in zip((angles, norms), wants, strict=True)
        ]
        if more == [angles, norms]:
            return None
        angles, norms = more
    return None


def _coordinate(table: AngleTable, odd: bool) -> tuple[Coordinate, int]:
    """Return (coordinate with the shortest series, length) for kernels at one q value.

    The length is even and slightly larger than that of the series.
    """
    best: tuple[Coordinate, int] | None = None
    count = _MOST_ANGLES
    for both in (True,) if odd else (False, True):
        for offset in _OFFSETS:
            coordinate = Coordinate(offset, both)
            gap = coordinate.gaps(points(count))
            flat, rest = np.asarray(gap), np.asarray(gap.rest)
            values = table.at(np.minimum(flat, rest), flat > rest)
            length = max(needed(series(v[None], 1), 1) for v in values)
            if best is None or length < best[1]:
                best = coordinate, length
    assert best is not None
    return best[0], 2 * (best[1] // 2) + 4


def _norm_count(functions: NormFunctions, low: float, high: float) -> int:
    """Return the number of q values needed, judged from kernels with the largest q."""
    spread = high - low
    count = min(_MOST_NORMS, 16 + math.ceil(16 * spread))
    q = np.exp((low + high) / 2 + spread / 2 * points(count))
    gap = np.array([1e-12, 0.01, 0.3, 1.0, 1.9])
    gaps = Gap.of(*(np.tile(side, count)[:, None] for side in (gap, 2 - gap)))
    found = functions.blocks(gaps, np.repeat(q, gap.size)[:, None], np.full((1, 1), math.exp(high)))
    values = np.reshape(found, (2, count, gap.size)) / np.sqrt(functions.own(q))[:, None]
    return needed(series(values, 1), 1) + 1


def _tabulated(
    functions: NormFunctions,
    coordinate: Coordinate,
    counts: tuple[int, int],
    ends: tuple[float, float],
) -> tuple[NormTable | None, tuple[int, int]]:
    """Return the table (or None), and the numbers of significant coefficients in angle and norm."""
    (angles, norms), (low, high) = counts, ends
    q = np.exp((low + high) / 2 + (high - low) / 2 * points(norms))
    gap = coordinate.gaps(points(angles)[angles // 2 if functions.odd else 0 :])
    values = np.empty((2, norms, gap.size, norms))
    step = max(1, _PAIRS_AT_ONCE // (gap.size * norms))
    for start in range(0, norms, step):
        some, others = q[start : start + step], q[: start + step]
        sides = (np.tile(side, some.size)[:, None] for side in (gap, 2 - gap))
        here = Gap.of(*(np.repeat(side, others.size, axis=1) for side in sides))
        found = functions.blocks(here, np.repeat(some, gap.size)[:, None], others[None, :])
        block = np.reshape(found, (2, some.size, gap.size, others.size))
        values[:, start : start + step, :, : others.size] = block
        values[:, : others.size, :, start : start + step] = block.transpose(0, 3, 2, 1)
    evaluations = norms * (norms + 1) // 2 * gap.size + norms
    if functions.odd:
        values = np.concatenate([-values[:, :, ::-1], values], axis=2)
    size = np.sqrt(functions.own(q))
    if not (np.isfinite(values).all() and np.isfinite(size).all() and (size > 0).all()):
        return None, (0, 0)
    grid = np.moveaxis(values, 2, 3) / np.outer(size, size)[..., None]
    found = series(series(series(grid, 3), 2), 1)
    wants = tuple(max(needed(part, axis) for part in found) for axis in (2, 0))
    scale = series(np.log(size), 0)
    parts = LowRank.of(found[0]), LowRank.of(found[1])
    return NormTable(coordinate, low, high, scale, parts, evaluations), wants  # type: ignore[return-value]


def _measured(table: NormTable, pairs: Callable[[Gap, Array, Array], Array]) -> NormTable:
    """Return the table with the error bound that was measured at random pairs.

    Some of the pairs have close angles and q values.
    """
    random = np.random.default_rng(0)
    some = np.exp(np.append(random.uniform(table.low, table.high, 6), (table.low, table.high)))
    some = np.append(some, some[:6] * (1 - 10.0 ** -random.uniform(2, 12, 6)))
    one, two = some[random.integers(0, some.size, (2, _PROBES))]
    one[:8], two[:8] = some[[0, 1, 2, 3, 4, 5, 6, 7]], some[[8, 9, 10, 11, 12, 13, 7, 7]]
    theta = random.uniform(0, np.pi, _PROBES)
    theta[:16] = 10.0 ** -random.uniform(0, 8, 16)
    theta[16:28] = np.pi, np.pi - 1e-3, *[0.0] * 10
    two[20:] = np.where(np.arange(20, _PROBES) % 2, two[20:], one[20:])
    gap = Gap.of(2 * np.sin(theta / 2) ** 2, 2 * np.cos(theta / 2) ** 2)
    found, wanted = table.at(gap, one, two), pairs(gap, one, two)
    zero = Gap.of(np.zeros(_PROBES), np.full(_PROBES, 2.0))
    size = np.sqrt(table.at(zero, one, one) * table.at(zero, two, two))
    size = np.maximum(np.abs(wanted), 1e-2 * size)
    error = np.abs(found - wanted) / np.where(size > 0, size, 1.0)  # the kernel may be 0 everywhere
    return replace(table, error_bound=_SAFETY * float(error.max()) + _ROUNDING)


@dataclass(frozen=True, eq=False)
class NormPlan:
    """Kernels from a :class:`NormTable`, for the angles and q values of rows and columns."""

    table: NormTable
    q: tuple[Array, Array]
    at_once: int = 1 << 14

    @property
    def error_bound(self) -> float:
        """The relative error bound of the table."""
        return self.table.error_bound

    @property
    def method(self) -> str:
        """A description of the method."""
        return (
            "table over the angle between rows and their q values, relative error <= "
            f"{self.error_bound:.0e}"
        )

    @cached_property
    def _factors(self) -> dict[int, tuple[Array, Array]]:
        return {}

    def factors(self, part: int) -> tuple[Array, Array]:
        """Return the factors for rows and for columns; the column factors include the signs."""
        if part not in self._factors:
            one = self.table.factors(part, self.q[0])
            two = one if self.q[1] is self.q[0] else self.table.factors(part, self.q[1])
            self._factors[part] = one, two * self.table.parts[part].signs[:, None]
        return self._factors[part]

    def padded_factors(self, part: int) -> tuple[Array, Array]:
        """Return factors (rows, degrees, rank) and (columns, degrees, rank), padded with 0."""
        one, two = (self.table.parts[part].padded(side) for side in self.factors(part))
        return one, two

    def fill(
        self,
        w: Array,
        upper: Array,
        rows: slice,
        columns: slice,
        near: Array,
        parts: tuple[int, ...],
        out: tuple[Array, ...],
    ) -> None:
        """Fill ``out``; see :meth:`.plans.ChunkPlan.fill`."""
        x = self.table.coordinate(np.clip(w, 0.0, 1.0), upper)
        for part, values in zip(parts, out, strict=True):
            one, two = self.factors(part)
            ranks = self.table.parts[part].ranks
            values[:] = clenshaw(x, ranks, one[:, rows], two[:, columns])

    def cut(self, rows: Array, columns: Array) -> NormPlan:
        """Return the plan restricted to the given rows and columns."""
        return NormPlan(self.table, (self.q[0][rows], self.q[1][columns]))

    @cached_property
    def fingerprint(self) -> list[float]:
        """Return values that distinguish one plan from another."""
        gap = np.array([0.0, 0.01, 0.3, 0.7, 1.0, 1.3, 1.9, 2.0])
        q = np.exp(np.linspace(self.table.low, self.table.high, 8))
        found = self.table.at(Gap.of(gap, 2 - gap), q, q[::-1])
        return [float(v) for v in found.reshape(-1)]
