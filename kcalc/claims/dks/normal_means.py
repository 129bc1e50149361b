"""Gaussian means by Gauss-Legendre panels for activations in NumPy, independent of the library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy import optimize

from ..bench import Array
from ..functions import FUNCTIONS, Function, density

REACH = 9.0


@dataclass(frozen=True, eq=False)
class Phi:
    """An activation, its derivative, and the points at which the derivative jumps."""

    values: Function
    slopes: Function
    kinks: tuple[float, ...] = ()

    def transformed(self, alpha: float, beta: float, gamma: float, delta: float) -> Phi:
        """Return gamma (phi(alpha x + beta) + delta), for alpha > 0."""
        return Phi(
            lambda x: gamma * (self.values(alpha * x + beta) + delta),
            lambda x: gamma * alpha * self.slopes(alpha * x + beta),
            tuple((k - beta) / alpha for k in self.kinks),
        )

    def at(self, constants: Any) -> Phi:
        """Return the activation transformed by the constants of a shaped activation."""
        return self.transformed(
            *(getattr(constants, name) for name in ("alpha", "beta", "gamma", "delta"))
        )

    def shaped(self, alpha: float, beta: float) -> Phi:
        """Return phi(alpha x + beta), shifted and scaled to mean 0 and second moment 1 at q = 1."""
        plain = self.transformed(alpha, beta, 1.0, 0.0)
        delta = -plain.mean()
        return self.transformed(
            alpha, beta, plain.transformed(1.0, 0.0, 1.0, delta).q_map(1.0) ** -0.5, delta
        )

    def integral(self, function: Function, q: float = 1.0) -> float:
        """Compute E function(sqrt(q) x)."""
        x, weights = line(tuple(k / np.sqrt(q) for k in self.kinks))
        return float(weights @ function(np.sqrt(q) * x))

    def mean(self, q: float = 1.0) -> float:
        """Compute E phi(x) for x with variance q."""
        return self.integral(self.values, q)

    def q_map(self, q: float = 1.0) -> float:
        """Compute Q(q) = E phi(x)^2 for x with variance q."""
        return self.integral(lambda x: self.values(x) ** 2, q)

    def q_slope(self, q: float = 1.0) -> float:
        """Compute Q'(q) = E[phi phi' x] / q for x with variance q."""
        return self.integral(lambda x: self.values(x) * self.slopes(x) * x, q) / q

    def steepness(self, q: float = 1.0) -> float:
        """Compute E phi'(x)^2 for x with variance q."""
        return self.integral(lambda x: self.slopes(x) ** 2, q)

    def slope(self, q: float = 1.0) -> float:
        """Compute C'(1) = q E phi'^2 / Q."""
        return q * self.steepness(q) / self.q_map(q)

    def moment(self, c: float, q1: float = 1.0, q2: float | None = None) -> float:
        """Compute E[phi(u) phi(v)] with both integrals split at the kinks."""
        q2 = q1 if q2 is None else q2
        return self.pair(self.values, self.values, c, q1, q2)

    def c_map(self, c: float, q1: float = 1.0, q2: float | None = None) -> float:
        """Compute the C map of a combined layer."""
        q2 = q1 if q2 is None else q2
        return self.moment(c, q1, q2) / np.sqrt(self.q_map(q1) * self.q_map(q2))

    def c_slope(self, c: float, q: float = 1.0) -> float:
        """Compute C'(c) at uniform q."""
        return q * self.pair(self.slopes, self.slopes, c, q, q) / self.q_map(q)

    def series(self, count: int) -> Array:
        """Compute the coefficients b_0, ..., b_(count - 1) of C(c) = sum b_n c^n at q = 1.

        They are squared projections onto normalised Hermite polynomials.
        """
        x, weights = line(self.kinks)
        rows, weighted = [np.ones_like(x), x], weights * self.values(x)
        for n in range(1, count - 1):
            rows.append((x * rows[n] - np.sqrt(n) * rows[n - 1]) / np.sqrt(n + 1))
        return (np.array(rows) @ weighted) ** 2 / self.q_map()

    def pair(self, f: Function, g: Function, c: float, q1: float, q2: float) -> float:
        """Compute E[f(u) g(v)] for Gaussians u and v with variances q1, q2 and cosine c.

        The functions f and g have the same kinks as this activation.
        """
        x, weights = line(tuple(k / np.sqrt(q1) for k in self.kinks))
        if abs(c) >= 1:
            if q1 != q2 or self.kinks:
                x, weights = line(
                    tuple(
                        s * k / np.sqrt(q)
                        for k in self.kinks
                        for s, q in ((1.0, q1), (np.sign(c), q2))
                    )
                )
            return float(weights @ (f(np.sqrt(q1) * x) * g(np.sqrt(q2) * np.sign(c) * x)))
        s = np.sqrt((1 - c) * (1 + c))
        moving = [np.clip((k / np.sqrt(q2) - c * x) / s, -REACH, REACH) for k in self.kinks]
        fixed = np.broadcast_to(np.arange(-REACH, REACH + 1), (len(x), int(2 * REACH) + 1))
        edges = np.sort(np.concatenate([fixed, *(m[:, None] for m in moving)], axis=1), axis=1)
        y, inner = panels(edges)
        values = density(y) * g(np.sqrt(q2) * (c * x[:, None] + s * y))
        return float((weights * f(np.sqrt(q1) * x)) @ (inner * values).sum(axis=1))


def root(f: Callable[[float], float], low: float, high: float) -> float:
    """Return the point between ``low`` and ``high`` at which f changes sign."""
    return float(optimize.brentq(f, low, high, xtol=1e-16))  # pyright: ignore[reportArgumentType]


_legendre = lru_cache(maxsize=4)(leggauss)


def panels(edges: Array, nodes: int = 16) -> tuple[Array, Array]:
    """Return Gauss-Legendre nodes and weights for the panels between sorted edges.

    Edges have shape (..., count). Nodes and weights have shape (..., panels * nodes), with
    ``nodes`` nodes in each panel.
    """
    t, w = _legendre(nodes)
    middle, half = (edges[..., 1:] + edges[..., :-1]) / 2, np.diff(edges) / 2
    x = (middle[..., None] + half[..., None] * t).reshape(*edges.shape[:-1], -1)
    return x, (half[..., None] * w).reshape(x.shape)


@lru_cache(maxsize=512)
def line(kinks: tuple[float, ...] = ()) -> tuple[Array, Array]:
    """Return nodes and weights for standard normal means, split at the kinks."""
    inside = [k for k in kinks if -REACH < k < REACH]
    x, weights = panels(np.sort(np.concatenate([np.arange(-REACH, REACH + 1), inside])))
    return x, weights * density(x)


def asymptotic_legendre(n: int) -> tuple[Array, Array]:
    """Return Gauss-Legendre nodes and weights on [-1, 1] for large n, by Tricomi's formula.

    At n = 10^5, relative errors are 1e-10, except near the ends.
    """
    angle = np.pi * (4 * np.arange(n, 0, -1) - 1) / (4 * n + 2)
    x = (1 - 1 / (8 * n**2) + 1 / (8 * n**3)) * np.cos(angle)
    return x, np.pi / (n + 0.5) * np.sqrt(1 - x**2)


SMOOTH_NAMES = ("tanh", "erf", "softplus", "swish", "gelu", "sigmoid", "atan", "asinh", "sin")
KNOWN = {
    name: Phi(f.value, f.slope, f.kinks)
    for name in (*SMOOTH_NAMES, "relu", "selu", "elu", "hard_tanh")
    for f in [FUNCTIONS[name]]
}
"""Activations by their names in kcalc."""
