"""Gaussian expectations of one function: moments, the q derivative of Q, and Hermite coefficients.

Everything here is float64 with errors at rounding level; u = sqrt(q) z with z standard normal throughout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kcalc.errors import KcalcError
from kcalc.expectations.quadrature import DEPTH, Array, Profile, Rule, normal_density, normal_rule, rule, split, z_edges

MAX_TERMS = 640
_BLOCK = 32
_MISSING = 1e-12  # of the variance: a fast oscillation hides behind a block of zeros, but not from Parseval
_HIGHEST = 30  # sqrt(MAX_TERMS) and a little: the highest frequency in h_n(z) exp(-z^2/4)
_PHASE = 9.0  # a panel of the mesh, a polynomial of degree 19 to rounding, holds no wave of more radians
_LARGEST_GRID = 1600  # nodes on half the line
_NEGLIGIBLE = 6e-16  # beside the standard deviation: coefficients below are rounding


def _density(q: float, x: float) -> float:
    """The density of u = sqrt(q) z at x."""
    return math.exp(-x * x / (2 * q)) / math.sqrt(2 * math.pi * q)


@lru_cache(maxsize=4096)
def mean(profile: Profile, q: float) -> float:
    """E phi(u)."""
    nodes = rule(profile, q)
    return float(nodes.w @ profile.numeric(0)(math.sqrt(q) * nodes.z))


@lru_cache(maxsize=4096)
def second_moment(profile: Profile, q: float) -> float:
    """Q(q) = E phi(u)^2.  Raises KcalcError where it diverges."""
    nodes = rule(profile, q)
    return float(nodes.w @ profile.numeric(0)(math.sqrt(q) * nodes.z) ** 2)


@lru_cache(maxsize=4096)
def mean_slope(profile: Profile, q: float) -> float:
    """E phi'(u), phi' in the sense of distributions: a jump J of phi at k adds J N(k; 0, q)."""
    nodes = rule(profile, q)
    smooth = float(nodes.w @ profile.numeric(1)(math.sqrt(q) * nodes.z))
    return smooth + sum(jump * _density(q, k) for k, jump in zip(profile.kink_points, profile.jump_sizes(0), strict=True))


@lru_cache(maxsize=4096)
def q_slope(profile: Profile, q: float) -> float:
    """dQ/dq = E[u phi(u) phi'(u)]/q + sum_k k N(k; 0, q) (phi(k+)^2 - phi(k-)^2)/(2q)."""
    nodes = rule(profile, q)
    u = math.sqrt(q) * nodes.z
    smooth = float(nodes.w @ (u * profile.numeric(0)(u) * profile.numeric(1)(u)))
    return (smooth + sum(k * _density(q, k) * jump / 2 for k, jump in _square_jumps(profile))) / q


def _square_jumps(profile: Profile) -> list[tuple[float, float]]:
    """(k, phi(k+)^2 - phi(k-)^2) at the points where phi itself jumps."""
    phi, out = profile.numeric(0), []
    for k, jump in zip(profile.kink_points, profile.jump_sizes(0), strict=True):
        if jump:
            right = float(phi(np.array([np.nextafter(k, math.inf)]))[0])
            out.append((k, jump * (2 * right - jump)))
    return out


def pair_moment(phi: Profile, q1: float, psi: Profile, q2: float, sign: int = 1) -> float:
    """E[phi(sqrt(q1) z) psi(sign sqrt(q2) z)]."""
    if sign > 0 and phi == psi and q1 == q2:
        return second_moment(phi, q1)
    nodes = normal_rule(split(joint_edges(phi, q1, psi, q2, sign), 1.0))
    return float(nodes.w @ (phi.numeric(0)(math.sqrt(q1) * nodes.z) * psi.numeric(0)(sign * math.sqrt(q2) * nodes.z)))


def pair_distance(profile: Profile, q1: float, q2: float) -> float:
    """1 - C(1, q1, q2) = E(phi(sqrt(q1) z)/sqrt(Q1) - phi(sqrt(q2) z)/sqrt(Q2))^2/2, never negative and small without cancellation."""
    nodes = normal_rule(split(joint_edges(profile, q1, profile, q2, 1), 1.0))
    first, second = (profile.numeric(0)(math.sqrt(q) * nodes.z) / math.sqrt(second_moment(profile, q)) for q in (q1, q2))
    return float(nodes.w @ (first - second) ** 2) / 2


def joint_edges(phi: Profile, q1: float, psi: Profile, q2: float, sign: int, depth: float = DEPTH) -> Array:
    """The edges of both meshes on the z axis, the second reflected for sign = -1, over the wider of the two ranges."""
    first, second = z_edges(phi, q1, depth), z_edges(psi, q2, depth)
    return np.unique(np.concatenate([first, second if sign > 0 else -second]))


class _Grid:
    """The trapezoid rule z = 0, +-h, ... +-reach for a standard normal, and the Hermite functions on its half z >= 0."""

    def __init__(self, step: float, reach: int) -> None:
        self.half: Array = np.arange(round(reach / step) + 1) * np.float64(step)
        z: Array = np.concatenate([-self.half[:0:-1], self.half])
        self.nodes = Rule(z, step * normal_density(z))
        self._decay = step / math.sqrt(2 * math.pi) * np.exp(-(self.half**2) / 4)
        self._decay[0] /= 2  # the node 0 is in both halves
        waves = np.arange(0, _HIGHEST + 1, 5)[:, None] * z
        self.probes = np.concatenate([np.cos(waves), np.sin(waves[1:]), z[None, :]])
        self._blocks: tuple[Array, ...] = ()

    def _functions(self, block: int) -> Array:
        """h_n(z) exp(-z^2/4) for the n of a block, n = 1 first."""
        blocks = self._blocks  # never changed in place: threads share the grid
        while len(blocks) <= block:
            blocks = (*blocks, self._after(blocks))
        if len(blocks) > len(self._blocks):
            self._blocks = blocks
        return blocks[block]

    def _after(self, blocks: tuple[Array, ...]) -> Array:
        rows = np.empty((_BLOCK, self.half.size))
        last = blocks[-1][-2:] if blocks else np.stack([np.zeros_like(self.half), np.exp(-(self.half**2) / 4)])
        previous, current = last
        for row in range(_BLOCK):
            n = len(blocks) * _BLOCK + row
            previous, current = current, (self.half * current - math.sqrt(n) * previous) / math.sqrt(n + 1)
            rows[row] = current
        return rows

    def projections(self, values: Array) -> Iterator[Array]:
        """E[f(z) h_n(z)] for n = 1, 2, ... in blocks, f given at the nodes: even and odd parts apart, on half the line."""
        right, left = values[self.half.size - 1 :], values[self.half.size - 1 :: -1]
        odd, even = (right - left) * self._decay, (right + left) * self._decay
        neither = np.zeros(_BLOCK // 2)
        for block in range(MAX_TERMS // _BLOCK):
            rows, out = self._functions(block), np.empty(_BLOCK)
            out[0::2] = rows[0::2] @ odd if odd.any() else neither
            out[1::2] = rows[1::2] @ even if even.any() else neither
            yield out


@lru_cache(maxsize=16)
def _kept_grid(step: float, reach: int) -> _Grid:
    return _Grid(step, reach)


def _grid(profile: Profile, q: float) -> tuple[_Grid, Array] | None:
    """A grid on which sums over phi(sqrt(q) .) are exact to rounding, and phi there; None for kinks and for narrow features.

    The trapezoid errors of a step h are the square of those of 2h, so it is enough that the sums over the even nodes and over the odd
    ones agree to 1e-10, for phi^2 and for phi times waves of every frequency that the Hermite functions have: no wave of phi comes back
    as a slower one.  The first step resolves what the narrowest panel of the mesh may hold.  That the whole agrees with the panels shows
    that nothing narrow was stepped over.
    """
    if profile.kink_points:
        return None
    edges = z_edges(profile, q)
    reach, truth = 2 * math.ceil(max(-edges[0], edges[-1]) / 2), second_moment(profile, q)
    narrowest = float(np.diff(edges)[1:-1].min()) if edges.size > 3 else 1.0
    step = 2.0 ** math.floor(math.log2(min(0.125, 2 * math.pi / (_PHASE / narrowest + _HIGHEST))))
    while reach / step <= _LARGEST_GRID:
        grid = _kept_grid(step, reach)
        values = profile.numeric(0)(math.sqrt(q) * grid.nodes.z)
        terms = grid.nodes.w * values
        whole, half = grid.probes @ terms, 2 * (grid.probes[:, ::2] @ terms[::2])
        square, half_square = float(terms @ values), 2 * float(terms[::2] @ values[::2])
        agrees = np.abs(whole - half).max() <= 1e-10 * math.sqrt(truth) and abs(square - half_square) <= 1e-10 * truth
        if agrees and abs(square - truth) <= 4e-15 * truth:
            return grid, values
        step /= 2
    return None


@dataclass(frozen=True)
class Hermite:
    """phi(sqrt(q) z) = mean + sum_{n>=1} a_n h_n(z), h_n the orthonormal Hermite polynomials.

    ``complete`` says that the terms left out are rounding; else the series was cut at MAX_TERMS.
    """

    mean: float
    variance: float
    coefficients: Array  # a_1, a_2, ...
    complete: bool

    @property
    def tail(self) -> float:
        """sum of a_n^2 over the terms left out (an upper bound up to rounding)."""
        return 0.0 if self.complete else max(self.variance - float(self.coefficients @ self.coefficients), 0.0)


@lru_cache(maxsize=1024)
def hermite(profile: Profile, q: float) -> Hermite:
    """Hermite coefficients of phi(sqrt(q) .), computed on phi - E phi so that small ones keep their relative accuracy.

    Functions without kinks are sampled on an equidistant grid, whose Hermite functions are kept from one q to the next.
    Raises: KcalcError where the variance, or a square on the way to it, is beyond double precision.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        sampled = _grid(profile, q)
        nodes = rule(profile, q) if sampled is None else sampled[0].nodes
        values = profile.numeric(0)(math.sqrt(q) * nodes.z) if sampled is None else sampled[1]
        average = float(nodes.w @ values)
        centred = values - average
        variance = float(nodes.w @ centred**2)
    if not math.isfinite(variance):
        raise KcalcError(f"activation {profile.name!r}: a moment at q = {q:g} is beyond double precision")
    if sampled is None:
        half = np.exp(-(nodes.z**2) / 4)
        blocks = _recurrence(nodes.z, half, np.where(half > 1e-150, nodes.w / np.maximum(half, 1e-150), 0.0) * centred)
    else:
        blocks = sampled[0].projections(centred)
    coefficients, complete = _collect(blocks, math.sqrt(variance))
    return Hermite(average, variance, coefficients, complete)


def _recurrence(z: Array, half: Array, weighted: Array) -> Iterator[Array]:
    """sum_j weighted_j h_n(z_j) half_j for n = 1, 2, ... in blocks.

    The recurrence runs on Hermite functions h_n(z) exp(-z^2/4) (``half`` being the exponential), which stay bounded.
    """
    functions = np.empty((_BLOCK, z.size))
    previous, current = np.zeros_like(z), half
    for start in range(0, MAX_TERMS, _BLOCK):
        for row in range(_BLOCK):
            n = start + row
            previous, current = current, (z * current - math.sqrt(n) * previous) / math.sqrt(n + 1)
            functions[row] = current
        yield functions @ weighted


def _collect(blocks: Iterable[Array], size: float) -> tuple[Array, bool]:
    """The coefficients until a block of them is negligible beside ``size``, and whether that happened."""
    kept: list[Array] = []
    found = 0.0
    for block in blocks:
        kept.append(block)
        found += float(block @ block)
        if np.abs(block).max() <= _NEGLIGIBLE * size and size * size - found <= _MISSING * size * size:
            return _trimmed(np.concatenate(kept), size), True
    return np.concatenate(kept), False


def _trimmed(coefficients: Array, size: float) -> Array:
    kept = np.nonzero(np.abs(coefficients) > _NEGLIGIBLE * size)[0]
    return coefficients[: kept[-1] + 1 if kept.size else 0]
