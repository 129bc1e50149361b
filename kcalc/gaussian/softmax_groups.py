"""Moments of two softmax rows over exchangeable tokens and one special token.

The scores of n exchangeable tokens are ``a_j, b_j``, independent over j, with the same variances
and covariance for all j. The scores of the special token, ``a_0, b_0``, have different variances
and a different covariance. With the powers ``p_j`` and ``q_j`` of the weights of token j:

    E prod_j A_j^(p_j) B_j^(q_j) = int int prod_j phi_(p_j q_j)(u, w) du dw / ((P - 1)! (Q - 1)!)
    phi_pq(u, w) = E (e^(u + a))^p (e^(w + b))^q exp(-e^(u + a) - e^(w + b))

where P and Q are the sums of the powers, at least 1 and here at most 2. The integrals are trapezoid
sums, which converge exponentially as the step decreases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

Array = np.ndarray
STEP = 0.28  # step in the logarithms u, w: errors of exp(-pi^2 / STEP)
REACH = 8.6  # Gaussians are cut off at this many standard deviations
DEEP = 27.0  # the grid starts this far below -log(number of tokens)
KEPT = 1 << 12
Powers = tuple[int, int, int]


class ScorePair(NamedTuple):
    """The variances of two scores, and their covariance."""

    first: float
    second: float
    joint: float


@lru_cache(KEPT)
def moments(tokens: int, alike: ScorePair, other: ScorePair) -> Mapping[Powers | str, float]:
    """Return the moments of rows A, B over ``tokens`` exchangeable tokens and the special token 0.

    Returns {(a, b, s): E A_0^a B_0^b S^s} for ``a + s <= 2`` and ``b + s <= 2``, where
    ``S = sum_j A_j B_j`` runs over the exchangeable tokens. The keys "AAB" and "ABB" give
    ``E sum_j A_j^2 B_j`` and ``E sum_j A_j B_j^2``.
    """
    n, pairs = tokens, (alike, other)
    grids = [_grid(n, max(math.sqrt(pair[k]) for pair in pairs)) for k in (0, 1)]
    one, zero = (_table(pair, grids) for pair in pairs)
    powers = {k: one[0, 0] ** (n - k) if n >= k else np.zeros_like(one[0, 0]) for k in (0, 1, 2)}

    def total(*factors: Array) -> float:
        made = factors[0].copy()
        for factor in factors[1:]:
            made *= factor
        return float(made.sum()) * STEP**2

    found: dict[Powers | str, float] = {(0, 0, 0): 1.0}
    for a, b in ((1, 1), (1, 2), (2, 1), (2, 2)):
        found[a, b, 0] = total(zero[a, b], powers[0])
    for a in (1, 2):
        found[a, 0, 0] = found[a, 1, 0] + n * total(zero[a, 0], one[0, 1], powers[1])
        found[0, a, 0] = found[1, a, 0] + n * total(zero[0, a], one[1, 0], powers[1])
    for a, b in ((0, 0), (0, 1), (1, 0), (1, 1)):
        found[a, b, 1] = n * total(zero[a, b], one[1, 1], powers[1])
    found[0, 0, 2] = n * total(zero[0, 0], one[2, 2], powers[1])
    found[0, 0, 2] += n * (n - 1) * total(zero[0, 0], one[1, 1], one[1, 1], powers[2])
    found["AAB"] = n * total(zero[0, 0], one[2, 1], powers[1])
    found["ABB"] = n * total(zero[0, 0], one[1, 2], powers[1])
    return found


def _grid(tokens: int, deviation: float) -> Array:
    """Return the grid in u or w; beyond it the integrands are negligible."""
    low = -math.log(tokens + 1) - DEEP - min(deviation**2, 8 * deviation)
    high = 4 + REACH * deviation
    return np.arange(low, high + STEP, STEP)


def _table(pair: ScorePair, grids: list[Array]) -> dict[tuple[int, int], Array]:
    """Return {(p, q): phi_pq} on the two grids, p and q up to 2."""
    deviations = math.sqrt(pair.first), math.sqrt(pair.second)
    bound = deviations[0] * deviations[1]
    cosine = max(-1.0, min(1.0, pair.joint / bound)) if bound else 0.0
    common = [deviation * math.sqrt(abs(cosine)) for deviation in deviations]
    own = [deviation * math.sqrt(1 - abs(cosine)) for deviation in deviations]
    z, weights = _normal(max(common))
    sides = [
        _smoothed(grid[:, None] + sign * shared * z, rest)
        for grid, sign, shared, rest in zip(
            grids, (1, math.copysign(1, cosine)), common, own, strict=True
        )
    ]
    return {(p, q): (sides[0][p] * weights) @ sides[1][q].T for p in range(3) for q in range(3)}


def _smoothed(points: Array, deviation: float) -> list[Array]:
    """Return ``E x^p e^(-x)`` with ``x = e^(y + deviation z)``, at points y and for p = 0, 1, 2."""
    nodes, weights = _normal(deviation)
    out = [np.zeros(points.shape) for _ in range(3)]
    for node, weight in zip(nodes, weights, strict=True):
        x = np.exp(np.minimum(points + deviation * node, 40.0))
        part = weight * np.exp(-x)
        for p in range(3):
            out[p] += part
            part = part * x
    return out


def _normal(deviation: float) -> tuple[Array, Array]:
    """Return nodes and weights for a standard normal, fine enough to be scaled by ``deviation``."""
    if deviation == 0:
        return np.zeros(1), np.ones(1)
    step = min(0.5, STEP / deviation)
    nodes = np.arange(-math.ceil(REACH / step), math.ceil(REACH / step) + 1) * step
    weights = np.exp(-(nodes**2) / 2)
    return nodes, weights / weights.sum()
