"""Kernels of rows of many norms: tables in the angle at a few q values, interpolated in log q."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ...fields.gaps import Gap
from .plans import LevelPlan
from .tables import AngleTable

Array = np.ndarray

COUNTS = ((0.25, 6), (0.5, 8), (1.0, 10), (2.0, 14), (4.0, 20))
"""(greatest range of log q, number of q values tried first)."""
MOST_LEVELS = 28
ACCURATE = 1e-12  # greatest relative error at the test pairs
STEP = 0.25
_PROBES = 24
_SAFETY = 4.0


class SmoothKernels(Protocol):
    """Kernels by table and by the general recursion."""

    def tabled(self, qs: tuple[float, ...]) -> AngleTable: ...
    def pairs(self, gap: Gap, q1: Array, q2: Array) -> Array: ...


def levelled(kernels: SmoothKernels, left: Array, right: Array) -> LevelPlan | None:
    """The plan for rows of q values ``left`` and ``right`` by interpolation in log q, or None.

    None: at random test pairs, its difference from the general recursion exceeds 1e-12 of the
    kernel (of a hundredth of the greatest kernel, where that is larger).
    """
    logs = (np.log(left), np.log(right))
    # rounded outwards, so that tables serve further data
    low = np.floor(min(map(np.min, logs)) / STEP) * STEP
    high = np.ceil(max(map(np.max, logs)) / STEP) * STEP
    middle, half = (high + low) / 2, (high - low) / 2
    probes = _probes(left, right)
    wanted = kernels.pairs(*probes)
    for count in _counts(high - low):
        nodes = np.cos((np.arange(count) + 0.5) * np.pi / count)
        table = kernels.tabled(tuple(float(q) for q in np.exp(middle + half * nodes)))
        weights = [_weights(nodes, (log - middle) / half) for log in logs]
        plan = LevelPlan(table, (weights[0], weights[1]), 0.0)
        error = _error(plan, nodes, (middle, half), probes, wanted)
        if error <= ACCURATE:
            return LevelPlan(table, (weights[0], weights[1]), _SAFETY * error + table.error_bound)
    return None


def _counts(spread: float) -> list[int]:
    first = next((count for width, count in COUNTS if spread <= width), None)
    return (
        []
        if first is None
        else [n for n in (first, round(1.4 * first), 2 * first) if n <= MOST_LEVELS]
    )


def _weights(nodes: Array, at: Array) -> Array:
    """Lagrange polynomials of the Chebyshev nodes at the points ``at``, (points, nodes)."""
    count = len(nodes)
    signs = (-1.0) ** np.arange(count) * np.sin((np.arange(count) + 0.5) * np.pi / count)
    apart = at[:, None] - nodes
    hit = np.abs(apart) < 1e-15
    terms = signs / np.where(hit, 1.0, apart)
    terms = np.where(hit.any(axis=1, keepdims=True), hit, terms)
    return terms / terms.sum(axis=1, keepdims=True)


def _probes(left: Array, right: Array) -> tuple[Gap, Array, Array]:
    """Gaps and q values of random test pairs, with the extreme q values and angles 0 and pi."""
    random = np.random.default_rng(0)
    one, two = random.choice(left, _PROBES), random.choice(right, _PROBES)
    one[:3], two[:3] = (left.min(), left.max(), left.max()), (right.min(), right.max(), right.min())
    theta = random.uniform(0, np.pi, _PROBES)
    theta[3:7] = (0.0, 1e-3, 0.1, np.pi)
    return Gap.of(2 * np.sin(theta / 2) ** 2, 2 * np.cos(theta / 2) ** 2), one, two


def _error(
    plan: LevelPlan,
    nodes: Array,
    scale: tuple[float, float],
    probes: tuple[Gap, Array, Array],
    wanted: Array,
) -> float:
    gap, one, two = probes
    first, second = (_weights(nodes, (np.log(q) - scale[0]) / scale[1]) for q in (one, two))
    flat = np.asarray(gap)
    every = plan.table.every_bank(np.minimum(flat, 2 - flat), flat > 1)
    found, bank = np.zeros_like(wanted), 0
    for i in range(len(nodes)):
        for j in range(i + 1):
            share = first[:, i] * second[:, j]
            found += every[bank] * (share if i == j else share + first[:, j] * second[:, i])
            bank += 1
    size: Any = np.maximum(np.abs(wanted), 1e-2 * np.abs(wanted).max(axis=1, keepdims=True))
    return float((np.abs(found - wanted) / np.where(size > 0, size, 1.0)).max())
