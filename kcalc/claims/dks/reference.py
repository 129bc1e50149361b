"""Local maps that are independent of the library, from NumPy functions and Gauss-Legendre rules."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from math import factorial, pi, sqrt

import numpy as np

from ..bench import Array
from ..functions import FUNCTIONS, Function, density
from .normal_means import panels

_REACH = 14.0  # in standard deviations


@lru_cache(maxsize=256)
def line(kinks: tuple[float, ...] = (), panel: float = 0.5) -> tuple[Array, Array]:
    """Return nodes and weights on [-14, 14] in panels of length <= ``panel``, cut at ``kinks``."""
    inner = sorted({k for k in kinks if abs(k) < _REACH})
    edges = [
        np.linspace(left, right, max(1, math.ceil((right - left) / panel)), endpoint=False)
        for left, right in pairwise([-_REACH, *inner, _REACH])
    ]
    return panels(np.append(np.concatenate(edges), _REACH), 14)


def scaled(kinks: tuple[float, ...], q: float) -> tuple[float, ...]:
    """Return the kinks of z -> phi(sqrt(q) z)."""
    return tuple(k / sqrt(q) for k in kinks)


def mean(f: Function, q: float = 1.0, kinks: tuple[float, ...] = ()) -> float:
    """Compute E f(sqrt q z)."""
    z, w = line(scaled(kinks, q))
    return float(w @ (density(z) * f(sqrt(q) * z)))


def pair(
    f: Function,
    q1: float,
    g: Function,
    q2: float,
    c: float,
    f_kinks: tuple[float, ...] = (),
    g_kinks: tuple[float, ...] = (),
) -> float:
    """Compute E f(u) g(v) from the joint density, for variances q1, q2 and |c| <= 0.97."""
    panel = min(1.0, 2.5 * sqrt(1 - c * c))
    x, w = line(scaled(f_kinks, q1), panel)
    y, v = line(scaled(g_kinks, q2), panel)
    keep, kept = np.abs(x) < 10.5, np.abs(y) < 10.5
    x, w, y, v = x[keep], w[keep], y[kept], v[kept]
    s2 = 1 - c * c
    joint = np.exp(-(x[:, None] ** 2 - 2 * c * x[:, None] * y + y**2) / (2 * s2)) / (
        2 * pi * sqrt(s2)
    )
    return float((w * f(sqrt(q1) * x)) @ joint @ (v * g(sqrt(q2) * y)))


def second_moment(name: str, q: float = 1.0) -> float:
    """Compute Q(q) = E phi(sqrt q z)^2."""
    phi = FUNCTIONS[name]
    return mean(lambda u: phi.value(u) ** 2, q, phi.kinks)


def steepness(name: str, q: float = 1.0) -> float:
    """Compute E phi'(sqrt q z)^2."""
    phi = FUNCTIONS[name]
    return mean(lambda u: phi.slope(u) ** 2, q, phi.kinks)


def gamma(name: str, c: float, q1: float = 1.0, q2: float | None = None) -> float:
    """Compute Gamma(c, q1, q2) = E phi(u) phi(v)."""
    phi = FUNCTIONS[name]
    return pair(phi.value, q1, phi.value, q1 if q2 is None else q2, c, phi.kinks, phi.kinks)


def cosine(name: str, c: float, q1: float = 1.0, q2: float | None = None) -> float:
    """Compute C(c, q1, q2)."""
    second = q1 if q2 is None else q2
    return gamma(name, c, q1, second) / sqrt(second_moment(name, q1) * second_moment(name, second))


def layer(name: str, covariance: Array) -> Array:
    """Compute the 2 x 2 covariance of phi(W x) for a wide layer from that of x, for |c| < 1."""
    q1, q2 = covariance[0, 0], covariance[1, 1]
    m = gamma(name, covariance[0, 1] / sqrt(q1 * q2), q1, q2)
    return np.array([[second_moment(name, q1), m], [m, second_moment(name, q2)]])


def hermite_polynomials(z: Array, count: int) -> Array:
    """Return the monic Hermite polynomials He_0(z) ... He_(count-1)(z), one per row."""
    rows = [np.ones_like(z), z]
    for n in range(1, count - 1):
        rows.append(z * rows[n] - n * rows[n - 1])
    return np.array(rows[:count])


def power_series(name: str, count: int, q: float = 1.0) -> Array:
    """Compute the coefficients of C(c) = sum b_n c^n, b_n = E[phi(sqrt q z) He_n(z)]^2 / (n! Q)."""
    phi = FUNCTIONS[name]
    z, w = line(scaled(phi.kinks, q))
    projected = hermite_polynomials(z, count) @ (w * density(z) * phi.value(sqrt(q) * z))
    return (
        projected**2
        / np.array([factorial(n) for n in range(count)], dtype=float)
        / second_moment(name, q)
    )
