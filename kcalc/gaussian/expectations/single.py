"""Gaussian expectations of one function: moments, the q derivative of Q, and Hermite coefficients.

All results are float64 and accurate to rounding. Throughout, u = sqrt(q) z with a standard normal
z.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.expectations.quadrature import (
    Array,
    Profile,
    joint_edges,
    neighbour,
    normal_density,
    normal_rule,
    rule,
    split,
    trapezoid,
    z_edges,
)
from kcalc.gaussian.expectations.rough import is_rough

MAX_TERMS = 640
LONGEST = 16384  # terms for fast waves, whose largest coefficients lie beyond MAX_TERMS
_BLOCK = 32
_KEPT = 2**21  # values of Hermite functions cached per grid (16 MB)
# largest share of the variance that a complete series may miss; a block of negligible coefficients
# is not enough, because the coefficients of a fast oscillation may follow it
_MISSING = 1e-12
_PHASE = 9.0  # largest phase, in radians, of a wave within a panel of the mesh
_LARGEST_GRID = {MAX_TERMS: 1600, LONGEST: 3200, 2 * LONGEST: 6400}  # nodes on half of the line
_NEGLIGIBLE = 6e-16  # smaller coefficients, relative to the standard deviation, are rounding errors


def _density(q: float, x: float) -> float:
    """Return the density of u = sqrt(q) z at x."""
    return math.exp(-x * x / (2 * q)) / math.sqrt(2 * math.pi * q)


@lru_cache(maxsize=4096)
def mean(profile: Profile, q: float) -> float:
    """Return E phi(u)."""
    nodes = rule(profile, q)
    return float(nodes.w @ profile.numeric(0)(math.sqrt(q) * nodes.z))


@lru_cache(maxsize=4096)
def second_moment(profile: Profile, q: float) -> float:
    """Return Q(q) = E phi(u)^2.

    Raises KcalcError if the expectation diverges.
    """
    nodes = rule(profile, q)
    return float(nodes.w @ profile.numeric(0)(math.sqrt(q) * nodes.z) ** 2)


@lru_cache(maxsize=4096)
def mean_slope(profile: Profile, q: float) -> float:
    """Return E phi'(u) in the sense of distributions: a jump J of phi at k adds J N(k; 0, q)."""
    nodes = rule(profile, q)
    if is_rough(profile):  # Stein's formula does not need phi'
        values = profile.numeric(0)(math.sqrt(q) * nodes.z)
        return float(nodes.w @ (values * nodes.z)) / math.sqrt(q)
    smooth = float(nodes.w @ profile.numeric(1)(math.sqrt(q) * nodes.z))
    return smooth + sum(
        jump * _density(q, k)
        for k, jump in zip(profile.kink_points, profile.jump_sizes(0), strict=True)
    )


@lru_cache(maxsize=4096)
def q_slope(profile: Profile, q: float) -> float:
    """Return dQ/dq = E[u phi(u) phi'(u)]/q + sum_k k N(k; 0, q) (phi(k+)^2 - phi(k-)^2)/(2q)."""
    nodes = rule(profile, q)
    u = math.sqrt(q) * nodes.z
    if is_rough(profile):
        return float(nodes.w @ (profile.numeric(0)(u) ** 2 * (nodes.z**2 - 1))) / (2 * q)
    smooth = float(nodes.w @ (u * profile.numeric(0)(u) * profile.numeric(1)(u)))
    return (smooth + sum(k * _density(q, k) * jump / 2 for k, jump in _square_jumps(profile))) / q


def _square_jumps(profile: Profile) -> list[tuple[float, float]]:
    """Return (k, phi(k+)^2 - phi(k-)^2) at the points where phi itself jumps."""
    phi, out = profile.numeric(0), []
    for k, jump in zip(profile.kink_points, profile.jump_sizes(0), strict=True):
        if jump:
            right = float(phi(np.array([np.nextafter(k, math.inf)]))[0])
            out.append((k, jump * (2 * right - jump)))
    return out


def pair_moment(phi: Profile, q1: float, psi: Profile, q2: float, sign: int = 1) -> float:
    """Return E[phi(sqrt(q1) z) psi(sign sqrt(q2) z)]."""
    if sign > 0 and phi == psi and q1 == q2:
        return second_moment(phi, q1)
    nodes = normal_rule(split(joint_edges(phi, q1, psi, q2, sign), 1.0))
    return float(
        nodes.w
        @ (phi.numeric(0)(math.sqrt(q1) * nodes.z) * psi.numeric(0)(sign * math.sqrt(q2) * nodes.z))
    )


def pair_distance(profile: Profile, q1: float, q2: float) -> float:
    """Return 1 - C(1, q1, q2), never negative, and accurate if it is small.

    The value is E(phi(sqrt(q1) z)/sqrt(Q1) - phi(sqrt(q2) z)/sqrt(Q2))^2/2.
    """
    nodes = normal_rule(split(joint_edges(profile, q1, profile, q2, 1), 1.0))
    first, second = (
        profile.numeric(0)(math.sqrt(q) * nodes.z) / math.sqrt(second_moment(profile, q))
        for q in (q1, q2)
    )
    return float(nodes.w @ (first - second) ** 2) / 2


def _highest(terms: int) -> int:
    """Return a bound, about sqrt(terms), on the frequencies in h_n(z) exp(-z^2/4), n <= terms."""
    return 5 * math.ceil(math.sqrt(terms) / 5)


def _after(z: Array, last: Array, start: int) -> Array:
    """Return the block of h_n(z) exp(-z^2/4) from n = start + 1, given the two values before."""
    rows = np.empty((_BLOCK, z.size))
    previous, current = last
    for row in range(_BLOCK):
        n = start + row
        previous, current = current, (z * current - math.sqrt(n) * previous) / math.sqrt(n + 1)
        rows[row] = current
    return rows


class _Grid:
    """The trapezoid rule at z = 0, +-h, ..., +-reach for a standard normal.

    The grid also provides the Hermite functions at the nodes z >= 0.
    """

    def __init__(self, step: float, reach: int, terms: int) -> None:
        self.nodes = trapezoid(step, round(reach / step))
        z = self.nodes.z
        self.half: Array = z[z.size // 2 :]
        self.terms = terms
        self._decay = step / math.sqrt(2 * math.pi) * np.exp(-(self.half**2) / 4)
        self._decay[0] /= 2  # the node 0 is in both halves
        waves = np.arange(0, _highest(terms) + 1, 5)[:, None] * z
        self.probes = np.concatenate([np.cos(waves), np.sin(waves[1:]), z[None, :]])
        self._blocks: tuple[Array, ...] = ()

    def _functions(self) -> Iterator[Array]:
        """Yield h_n(z) exp(-z^2/4) in blocks of n, from n = 1; cache the first _KEPT values."""
        last = np.stack([np.zeros_like(self.half), np.exp(-(self.half**2) / 4)])
        for block in range(self.terms // _BLOCK):
            blocks = self._blocks  # never changed in place: threads share the grid
            rows = blocks[block] if block < len(blocks) else _after(self.half, last, block * _BLOCK)
            if block == len(blocks) < _KEPT // rows.size:
                self._blocks = (*blocks, rows)
            last = rows[-2:]
            yield rows

    def projections(self, values: Array) -> Iterator[Array]:
        """Yield E[f(z) h_n(z)] for n = 1, 2, ... in blocks, from the values of f at the nodes.

        The nodes are the first axis of ``values``. Even and odd parts are projected separately, on
        half of the line.
        """
        right, left = values[self.half.size - 1 :], values[self.half.size - 1 :: -1]
        parts = [((right + s * left).T * self._decay).T for s in (-1, 1)]
        there = [(start, part) for start, part in enumerate(parts) if part.any()]
        for rows in self._functions():
            out = np.zeros((_BLOCK, *values.shape[1:]))
            for start, part in there:
                out[start::2] = rows[start::2] @ part
            yield out


@lru_cache(maxsize=16)
def _kept_grid(step: float, reach: int, terms: int) -> _Grid:
    return _Grid(step, reach, terms)


def grid_for(profile: Profile, q: float, terms: int = MAX_TERMS) -> _Grid | None:
    """Return a grid on which sums over phi(sqrt(q) .) are exact to rounding, or None.

    A grid that resolves phi(sqrt(q) .) also resolves it at smaller q. Grids are therefore checked
    at the top of a range of q, and at q itself only if that check fails.
    """
    if profile.kink_points:
        return None
    try:
        found = _checked_grid(profile, _range_top(q), terms)
    except KcalcError:  # moments diverge, or overflow, at the top
        found = None
    return _checked_grid(profile, neighbour(profile, q), terms) if found is None else found


def _range_top(q: float) -> float:
    """Return the smallest power of 2^(1/4) that is at least q, up to rounding."""
    top = 2.0 ** (math.ceil(4 * math.log2(q)) / 4)
    return max(top, q)


@lru_cache(maxsize=1024)
def _checked_grid(profile: Profile, q: float, terms: int) -> _Grid | None:
    """Return the grid with the largest step that passes all checks at q, or None.

    The result is None for functions with narrow features.

    The trapezoid error at step h is the square of the error at step 2h. It is therefore enough that
    the sums over all nodes and over even nodes agree to 1e-10, for phi^2 and for phi times waves of
    every frequency of the Hermite functions. Then no wave of phi is aliased. The first step
    resolves the fastest wave that fits into the narrowest panel of the mesh, unless that needs too
    many nodes. A shifted grid and the panels must give the same E phi^2, so no narrow feature and
    no wave at the frequency of the grid is missed.
    """
    edges = z_edges(profile, q)
    reach, truth = 2 * math.ceil(max(-edges[0], edges[-1]) / 2), second_moment(profile, q)
    narrowest = float(np.diff(edges)[1:-1].min()) if edges.size > 3 else 1.0
    step = 2.0 ** math.floor(
        math.log2(min(0.125, 2 * math.pi / (_PHASE / narrowest + _highest(terms))))
    )
    step = max(step, 2.0 ** math.ceil(math.log2(reach / _LARGEST_GRID[terms])))
    while reach / step <= _LARGEST_GRID[terms]:
        grid = _kept_grid(step, reach, terms)
        values = profile.numeric(0)(math.sqrt(q) * grid.nodes.z)
        products = grid.nodes.w * values
        whole, half = grid.probes @ products, 2 * (grid.probes[:, ::2] @ products[::2])
        square, half_square = float(products @ values), 2 * float(products[::2] @ values[::2])
        agrees = (
            np.abs(whole - half).max() <= 1e-10 * math.sqrt(truth)
            and abs(square - half_square) <= 1e-10 * truth
        )
        if (
            agrees
            and max(abs(square - truth), abs(_shifted(profile, q, grid.nodes.z) - truth))
            <= 4e-15 * truth
        ):
            return grid
        step /= 2
    return None


def _shifted(profile: Profile, q: float, z: Array) -> float:
    """Return E phi(u)^2 with the nodes shifted by an irrational fraction of their step.

    A wave at the frequency of the grid has a different phase at the shifted nodes.
    """
    step = float(z[1] - z[0])
    moved = z + step * (math.sqrt(5) - 1) / 2
    return step * float(normal_density(moved) @ profile.numeric(0)(math.sqrt(q) * moved) ** 2)


@dataclass(frozen=True)
class Hermite:
    """The series phi(sqrt(q) z) = mean + sum_{n>=1} a_n h_n(z) in orthonormal Hermite polynomials.

    ``complete`` is True if the omitted terms are at the level of rounding errors. If not, the
    series was cut at MAX_TERMS.
    """

    mean: float
    variance: float
    coefficients: Array  # a_1, a_2, ...
    complete: bool

    @property
    def tail(self) -> float:
        """The sum of a_n^2 over the omitted terms (an upper bound, up to rounding)."""
        return (
            0.0
            if self.complete
            else max(self.variance - float(self.coefficients @ self.coefficients), 0.0)
        )


@lru_cache(maxsize=1024)
def hermite(profile: Profile, q: float) -> Hermite:
    """Compute the Hermite coefficients of phi(sqrt(q) .).

    The coefficients are computed from phi - E phi, so small coefficients keep their relative
    accuracy.

    Functions without kinks are sampled on an equidistant grid, which caches its Hermite functions
    for other q. At most MAX_TERMS coefficients are computed, or LONGEST if that completes the
    series of a smooth function.

    Raises KcalcError if the variance, or a square that it needs, overflows double precision.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        grid = grid_for(profile, q)
        nodes = rule(profile, q) if grid is None else grid.nodes
        values = profile.numeric(0)(math.sqrt(q) * nodes.z)
        average = float(nodes.w @ values)
        centred = values - average
        variance = float(nodes.w @ centred**2)
    if not math.isfinite(variance):
        raise KcalcError(
            f"a Gaussian moment of activation {profile.name!r} is beyond double precision at q = "
            f"{q:g}"
        )
    if grid is None:
        half = np.exp(-(nodes.z**2) / 4)
        blocks = _recurrence(
            nodes.z,
            half,
            np.where(half > 1e-150, nodes.w / np.maximum(half, 1e-150), 0.0) * centred,
        )
    else:
        blocks = grid.projections(centred)
    found = Hermite(average, variance, *_collect(blocks, math.sqrt(variance)))
    if found.complete or profile.kink_points or not _goes_on(found):
        return found
    finer = grid_for(profile, q, LONGEST)
    if finer is None:
        return found
    values = profile.numeric(0)(math.sqrt(q) * finer.nodes.z)
    longer = Hermite(
        average, variance, *_collect(finer.projections(values - average), math.sqrt(variance))
    )
    return longer if longer.complete else found


def sampled(profile: Profile, q: Array, terms: int = MAX_TERMS) -> tuple[_Grid, Array] | None:
    """Return (grid, values): phi(sqrt(q) z) at the nodes of a grid for many q.

    The values have the shape (n, nodes). The grid for the largest q is used, because a grid that
    resolves phi(sqrt(q) .) also resolves it at smaller q. Returns None if there is no such grid.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        grid = grid_for(profile, float(q.max()), terms)
        if grid is None:
            return None
        values = profile.numeric(0)(np.sqrt(q)[:, None] * grid.nodes.z)
        squares = grid.nodes.w * values**2
    whole, half = squares.sum(axis=1), 2 * squares[:, ::2].sum(axis=1)
    return (grid, values) if np.all(np.abs(whole - half) <= 1e-10 * whole) else None


def hermites(profile: Profile, q: Array) -> tuple[Array, Array] | None:
    """Return (alpha, variances) of a smooth function at many q.

    ``alpha`` (terms, n) contains the means in row 0 and the coefficients a_k in row k. The series
    ends when further terms matter neither for E phi(u) phi(v) nor for its first two derivatives in
    c. Returns None for functions with kinks or narrow features, and if the series is too long.
    """
    for terms in _LARGEST_GRID:
        found = sampled(profile, q, terms)
        if found is None:
            return None
        grid, values = found
        means = values @ grid.nodes.w
        centred = values - means[:, None]
        variances = centred**2 @ grid.nodes.w
        kept, total = [means[None, :]], np.zeros(q.size)
        for block in grid.projections(centred.T):
            kept.append(block)
            total += (block**2).sum(axis=0)
            heights = np.abs(block).max(axis=0) * (len(kept) * _BLOCK)
            if np.all((heights**2 <= 1e-17 * variances) & (variances - total <= 1e-14 * variances)):
                return np.concatenate(kept), variances
    return None


def _goes_on(found: Hermite) -> bool:
    """Whether more terms matter for kernels and may complete a truncated series.

    This is true for waves: their coefficients grow before they decay, or much of their variance
    lies beyond the cut. It is also true if another 2 MAX_TERMS terms would complete the series at
    the decay rate of the last quarter. Terms matter if n^2 a_n^2 is above rounding.
    """
    sizes = np.maximum(np.abs(found.coefficients), np.finfo(float).tiny) / math.sqrt(found.variance)
    middle, later, last = (
        float(sizes[start:][:_BLOCK].max())
        for start in (MAX_TERMS // 2, 3 * MAX_TERMS // 4, -_BLOCK)
    )
    if found.tail > 0.1 * found.variance or (last >= middle and last > _NEGLIGIBLE):
        return True
    return (last * MAX_TERMS) ** 2 > 1e-17 and math.log(last / _NEGLIGIBLE) <= 8 * math.log(
        later / last
    )


def _recurrence(z: Array, half: Array, weighted: Array) -> Iterator[Array]:
    """Yield sum_j weighted_j h_n(z_j) half_j for n = 1, 2, ... in blocks.

    ``half`` is exp(-z^2/4). The recurrence computes the Hermite functions h_n(z) exp(-z^2/4), which
    stay bounded.
    """
    last = np.stack([np.zeros_like(z), half])
    for start in range(0, MAX_TERMS, _BLOCK):
        rows = _after(z, last, start)
        last = rows[-2:]
        yield rows @ weighted


def _collect(blocks: Iterable[Array], size: float) -> tuple[Array, bool]:
    """Return the coefficients up to the first negligible block, and whether such a block exists.

    Blocks are compared with ``size``, the standard deviation.
    """
    kept: list[Array] = []
    found = 0.0
    for block in blocks:
        kept.append(block)
        found += float(block @ block)
        if (
            np.abs(block).max() <= _NEGLIGIBLE * size
            and size * size - found <= _MISSING * size * size
        ):
            return _trimmed(np.concatenate(kept), size), True
    return np.concatenate(kept), False


def _trimmed(coefficients: Array, size: float) -> Array:
    kept = np.nonzero(np.abs(coefficients) > _NEGLIGIBLE * size)[0]
    return coefficients[: kept[-1] + 1 if kept.size else 0]
