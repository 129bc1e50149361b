"""Gaussian expectations of one function: moments, their q derivative, and Hermite coefficients.

Everything here is float64 with errors at rounding level; u = sqrt(q) z with z standard normal throughout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from kcalc.quadrature import DEPTH, Array, Profile, normal_rule, rule, split, z_edges

MAX_TERMS = 640
_BLOCK = 32
_MISSING = 1e-12  # of the variance: a fast oscillation hides behind a block of zeros, but not from Parseval
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


@lru_cache(maxsize=4096)
def moment_series(profile: Profile, power: int, q: float, order: int) -> tuple[float, ...]:
    """Taylor coefficients in q of E phi(u)^power."""
    nodes = rule(profile, q)
    return _q_series(profile.numeric(0)(math.sqrt(q) * nodes.z) ** power, nodes, q, order)


@lru_cache(maxsize=4096)
def product_series(phi: Profile, psi: Profile, q: float, order: int) -> tuple[float, ...]:
    """Taylor coefficients in q of E[phi(u) psi(u)]."""
    nodes = normal_rule(split(joint_edges(phi, q, psi, q, 1), 1.0))
    u = math.sqrt(q) * nodes.z
    return _q_series(phi.numeric(0)(u) * psi.numeric(0)(u), nodes, q, order)


@lru_cache(maxsize=4096)
def slope_series(profile: Profile, q: float, order: int) -> tuple[float, ...]:
    """Taylor coefficients in q of E phi'(u), by E[phi' He_n(z)] = E[phi He_(n+1)(z)] / sqrt(q)."""
    nodes = rule(profile, q)
    values = profile.numeric(0)(math.sqrt(q) * nodes.z)
    return _q_series(values / math.sqrt(q), nodes, q, order, first=1)


def _q_series(values: Array, nodes: Any, q: float, order: int, first: int = 0) -> tuple[float, ...]:
    """E[f(u) He_(2k + first)(z)] / ((2q)^k k!) for k = 0 ... order, f given at the nodes.

    The derivatives in q fall on the Gaussian, so that kinks and jumps of f need no care.
    """
    weighted = nodes.w * values
    previous, current, out = np.zeros_like(nodes.z), np.ones_like(nodes.z), []
    for n in range(2 * order + first + 1):
        k, odd = divmod(n - first, 2)
        if k >= 0 and not odd:
            out.append(float(weighted @ current) / ((2 * q) ** k * math.factorial(k)))
        previous, current = current, nodes.z * current - n * previous
    return tuple(out)


def pair_moment(phi: Profile, q1: float, psi: Profile, q2: float, sign: int = 1) -> float:
    """E[phi(sqrt(q1) z) psi(sign sqrt(q2) z)]."""
    if sign > 0 and phi == psi and q1 == q2:
        return second_moment(phi, q1)
    nodes = normal_rule(split(joint_edges(phi, q1, psi, q2, sign), 1.0))
    return float(nodes.w @ (phi.numeric(0)(math.sqrt(q1) * nodes.z) * psi.numeric(0)(sign * math.sqrt(q2) * nodes.z)))


def joint_edges(phi: Profile, q1: float, psi: Profile, q2: float, sign: int, depth: float = DEPTH) -> Array:
    """The edges of both meshes on the z axis, the second reflected for sign = -1, over the wider of the two ranges."""
    first, second = z_edges(phi, q1, depth), z_edges(psi, q2, depth)
    return np.unique(np.concatenate([first, second if sign > 0 else -second]))


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

    The recurrence runs on Hermite functions h_n(z) exp(-z^2/4), which stay bounded.
    """
    nodes = rule(profile, q)
    values = profile.numeric(0)(math.sqrt(q) * nodes.z)
    average = float(nodes.w @ values)
    centred = values - average
    variance = float(nodes.w @ centred**2)
    half = np.exp(-(nodes.z**2) / 4)
    weighted = np.where(half > 1e-150, nodes.w / np.maximum(half, 1e-150), 0.0) * centred
    coefficients, complete = _project(nodes.z, half, weighted, math.sqrt(variance))
    return Hermite(average, variance, coefficients, complete)


def _project(z: Array, half: Array, weighted: Array, size: float) -> tuple[Array, bool]:
    """a_n = sum_j weighted_j h_n(z_j) half_j for n = 1, 2, ... until a block of them is negligible beside ``size``."""
    previous, current = np.zeros_like(z), half
    functions = np.empty((_BLOCK, z.size))
    blocks: list[Array] = []
    found = 0.0
    for start in range(0, MAX_TERMS, _BLOCK):
        for row in range(_BLOCK):
            n = start + row
            previous, current = current, (z * current - math.sqrt(n) * previous) / math.sqrt(n + 1)
            functions[row] = current
        blocks.append(functions @ weighted)
        found += float(blocks[-1] @ blocks[-1])
        if np.abs(blocks[-1]).max() <= _NEGLIGIBLE * size and size * size - found <= _MISSING * size * size:
            return _trimmed(np.concatenate(blocks), size), True
    return np.concatenate(blocks), False


def _trimmed(coefficients: Array, size: float) -> Array:
    kept = np.nonzero(np.abs(coefficients) > _NEGLIGIBLE * size)[0]
    return coefficients[: kept[-1] + 1 if kept.size else 0]
