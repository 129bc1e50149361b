"""Closed forms of the terms that jumps of phi and phi' add to derivatives of Gamma(c).

With Gamma(c) = E[phi(u) psi(v)], Gamma^(n) = (q1 q2)^(n/2) E[D^n phi(u) D^n psi(v)], with D^n phi
in the sense of distributions. D^n phi is smooth between kinks and has a delta function at each jump
of phi^(n-1). For n = 2, it also has the derivative of a delta function at each jump of phi. If a
singular term is multiplied by the smooth part of the other function, the expectation is computed by
conditioning on the kink. For two singular terms, it is a value of the joint density or of one of
its derivatives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kcalc.foundation.process_state import cached_property
from kcalc.gaussian.expectations.quadrature import Array, Profile, normal_density
from kcalc.gaussian.expectations.smoothing import smoothed

ZONE = 0.35  # near |c| = 1: arccos |c| < ZONE


@dataclass(frozen=True)
class Jumps:
    """The points k where phi^(n) jumps, the points k/sqrt q, and the sizes of the jumps.

    Points more than 40 standard deviations from 0 are omitted.
    """

    points: Array
    standard: Array
    sizes: Array

    @classmethod
    def of(cls, profile: Profile, q: float, n: int) -> Jumps:
        points, sizes = np.array(profile.kink_points), np.array(profile.jump_sizes(n))
        standard = points / math.sqrt(q)
        kept = (sizes != 0) & (np.abs(standard) < 40)
        return cls(points[kept], standard[kept], sizes[kept])

    @property
    def any(self) -> bool:
        return bool(self.points.size)


def meet(a: Array, b: Array) -> NDArray[np.bool_]:
    """Whether two points are the same up to rounding."""
    return np.abs(a - b) <= 1e-13 * np.maximum(np.abs(a), np.abs(b))


@dataclass(frozen=True)
class Corners:
    """The contributions of the jumps of phi at q1 and psi at q2, for c = sign (1 - far).

    ``far`` is positive, or 0 if no two jumps meet.
    """

    phi: Profile
    q1: float
    psi: Profile
    q2: float
    sign: int
    far: float

    def total(self, order: int, symmetric: bool) -> float:
        """Return E[D^n phi D^n psi] minus the expectation of the smooth parts.

        ``symmetric`` states whether both functions and both q values are the same.
        """
        other = self if symmetric else self.turned
        total = (
            self._deltas(order)
            + (self._deltas(order) if symmetric else other._deltas(order))
            + self._pairs(order - 1, order - 1, 0)
        )
        if order == 2 and (
            Jumps.of(self.phi, self.q1, 0).any or Jumps.of(self.psi, self.q2, 0).any
        ):
            one = self._dipoles() + self._pairs(0, 1, 1)
            total += (
                one
                + (one if symmetric else other._dipoles() + other._pairs(0, 1, 1))
                + self._pairs(0, 0, 2)
            )
        return total

    @cached_property
    def turned(self) -> Corners:
        """The contributions with u and v exchanged."""
        return Corners(self.psi, self.q2, self.phi, self.q1, self.sign, self.far)

    @property
    def _slope(self) -> float:
        """The derivative d E[v | u]/du."""
        return self.sign * (1 - self.far) * math.sqrt(self.q2 / self.q1)

    @property
    def _spread(self) -> float:
        """The standard deviation of v given u."""
        return math.sqrt(self.q2 * self.far * (2 - self.far))

    def _deltas(self, order: int) -> float:
        """Return sum_k J_k N(k; 0, q1) E[psi^(order)(v) | u = k]; phi^(order-1) has jumps J_k."""
        jumps = Jumps.of(self.phi, self.q1, order - 1)
        if not jumps.any:
            return 0.0
        weights = jumps.sizes * normal_density(jumps.standard) / math.sqrt(self.q1)
        return float(weights @ smoothed(self.psi, order, self._slope * jumps.points, self._spread))

    def _dipoles(self) -> float:
        """Return the contribution of the delta-function derivatives at the jumps J_k of phi.

        The contribution is sum_k J_k N(k; 0, q1) (k/q1 E[psi''(v) | u = k] - d E[psi''(v) | u =
        k]/du).
        """
        jumps = Jumps.of(self.phi, self.q1, 0)
        if not jumps.any:
            return 0.0
        weights = jumps.sizes * normal_density(jumps.standard) / math.sqrt(self.q1)
        centres = self._slope * jumps.points
        rate = smoothed(self.psi, 3, centres, self._spread)
        bends = Jumps.of(self.psi, self.q2, 2)
        if bends.any and self._spread:
            apart = self._conditional(jumps, bends)
            rate = rate + normal_density(apart) @ bends.sizes / self._spread
        return float(
            weights
            @ (
                jumps.points / self.q1 * smoothed(self.psi, 2, centres, self._spread)
                - self._slope * rate
            )
        )

    def _conditional(self, first: Jumps, second: Jumps) -> Array:
        """Return (j - E[v | u = k])/spread for every pair of points.

        The quotient is computed without cancellation for points that meet.
        """
        square = self.far * (2 - self.far)
        return (
            self._difference(second, first) + self.sign * self.far * first.standard[:, None]
        ) / math.sqrt(square)

    def _difference(self, second: Jumps, first: Jumps) -> Array:
        """Return j/sqrt q2 - sign k/sqrt q1 (rows k, columns j).

        For equal kinks, the difference is computed from q1 - q2. It is 0 if the points meet.
        """
        a, b = first.standard[:, None], second.standard
        equal = first.points[:, None] == self.sign * second.points
        root1, root2 = math.sqrt(self.q1), math.sqrt(self.q2)
        near = second.points * (self.q1 - self.q2) / (root1 * root2 * (root1 + root2))
        return np.where(meet(b, self.sign * a), 0.0, np.where(equal, near, b - self.sign * a))

    def _pairs(self, first: int, second: int, dipoles: int) -> float:
        """Return the sum over pairs of jumps, sum_kj J_k J_j times a density or its derivative.

        The factor is the density p of (u, v) at (k, j), -dp/du for one dipole (of phi), or d^2p/du
        dv for two dipoles.
        """
        one, two = Jumps.of(self.phi, self.q1, first), Jumps.of(self.psi, self.q2, second)
        square = self.far * (2 - self.far)
        if not (square and one.any and two.any):
            return 0.0  # far = 0: no two points meet, or the caller handles the infinite limit
        a, b = one.standard[:, None], self.sign * two.standard
        apart = self.sign * self._difference(two, one)  # b - a
        density = np.exp(-(apart**2 + 2 * a * b * self.far) / (2 * square)) / (
            2 * math.pi * math.sqrt(self.q1) * math.sqrt(self.q2) * math.sqrt(square)
        )
        if dipoles:
            # (a - (1-far) b)/s^2, (b - (1-far) a)/s^2
            pull = (self.far * b - apart) / square
            push = (apart + self.far * a) / square
            extra = (
                self.sign * (pull * push + (1 - self.far) / square) / math.sqrt(self.q2)
                if dipoles == 2
                else pull
            )
            density = density * extra / math.sqrt(self.q1)
        return float(one.sizes @ density @ two.sizes)


__all__ = ["Corners", "Jumps", "meet"]
