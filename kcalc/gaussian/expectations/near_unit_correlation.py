"""Tables of E[phi(u) psi(v)] as a function of theta = arccos |c|, for |c| near 1.

The Hermite series converges slowly there.

Gamma^(i)(c) = (q1 q2)^(i/2) E[phi^(i)(u) psi^(i)(v)] with derivatives in the sense of
distributions. Write u = sqrt(q1) (sqrt|c| x + sqrt(1-|c|) y), and v in the same way with an
independent y. Given the common part x, the two factors are independent, and each is smoothed by a
narrow Gaussian. Divided by its corner singularity, the result is regular in theta. 1 - C is the
integral of C' sin theta, which keeps its relative accuracy.
"""

from __future__ import annotations

import math

import numpy as np

from kcalc.fields.chebyshev import Piecewise, adaptive, on_panels
from kcalc.foundation.process_state import cached_property
from kcalc.gaussian.expectations.corners import ZONE, Corners, Jumps, meet
from kcalc.gaussian.expectations.quadrature import (
    Array,
    Profile,
    Rule,
    joint_edges,
    normal_rule,
    panel_nodes,
    split,
)
from kcalc.gaussian.expectations.single import hermite, pair_moment, second_moment
from kcalc.gaussian.expectations.smoothing import smoothed, variance

_FEW = 60  # points evaluated directly before building a table
_LARGE = 30.0  # for larger q values, a table is costly
CLOSE = 1e-4  # for smaller theta, the drop of one function is the integral of its slope


class EndZone:
    """Gamma near c = sign: a function of theta = arccos(sign c) in [0, ZONE]."""

    def __init__(self, phi: Profile, q1: float, psi: Profile, q2: float, sign: int) -> None:
        self.phi, self.q1, self.psi, self.q2, self.sign = phi, q1, psi, q2, sign
        self._asked = 0

    def _touching(self, first: int, second: int) -> bool:
        """Whether a jump of phi^(first) and a jump of psi^(second) meet.

        They meet if u/sqrt(q1) = sign v/sqrt(q2) at the jumps.
        """
        a = Jumps.of(self.phi, self.q1, first).standard
        b = Jumps.of(self.psi, self.q2, second).standard
        return bool(meet(a[:, None], self.sign * b).any())

    def _power(self, order: int) -> int:
        """Return p such that sin(theta)^p Gamma^(order) is regular at theta = 0."""
        if self._touching(0, 0):
            return 2 * order - 1
        return (
            1
            if order == 2 and (self._touching(1, 1) or self._touching(0, 1) or self._touching(1, 0))
            else 0
        )

    def _derivative_at(self, order: int, theta: float) -> float:
        """Return Gamma^(order) at c = sign cos(theta).

        The smooth parts are integrated. The delta functions in both derivatives are added by
        conditioning on the kinks.
        """
        far = 2 * math.sin(theta / 2) ** 2
        smooth = self._smooth_product(order, far)
        if order == 0:
            return smooth
        jumps = Corners(self.phi, self.q1, self.psi, self.q2, self.sign, far)
        return (self.q1 * self.q2) ** (order / 2) * (smooth + jumps.total(order, self._symmetric))

    @property
    def _at_large_q(self) -> bool:
        """Whether q is so large that a table costs far more than a few values."""
        return self._symmetric and self.sign > 0 and self.q1 > _LARGE

    def _variance(self, theta: float) -> float:
        """Return the drop for one function, the mean of its variance given the common part.

        The variance is computed without cancellation.
        """
        far = 2 * math.sin(theta / 2) ** 2
        near, z = 1 - far, self._outer_rule(far)
        centres = math.sqrt(near * self.q1) * z.z
        return float(z.w @ variance(self.phi, centres, math.sqrt(far * self.q1)))

    @property
    def _symmetric(self) -> bool:
        return self.phi is self.psi and self.q1 == self.q2

    def _smooth_product(self, order: int, far: float) -> float:
        near, z = 1 - far, self._outer_rule(far)
        first = smoothed(self.phi, order, math.sqrt(near * self.q1) * z.z, math.sqrt(far * self.q1))
        if self._symmetric and self.sign > 0:
            return float(z.w @ first**2)
        second = smoothed(
            self.psi, order, self.sign * math.sqrt(near * self.q2) * z.z, math.sqrt(far * self.q2)
        )
        return float(z.w @ (first * second))

    def _outer_rule(self, far: float) -> Rule:
        """Return panels for both functions, graded around the images of kinks.

        Panels near a kink are about as wide as the smoothing.
        """
        near = 1 - far
        base = joint_edges(
            self.phi, near * self.q1, self.psi, near * self.q2, self.sign, depth=44.0
        )
        grid = math.sqrt(far / near) * np.array([-9.0, -6.0, -3.0, 3.0, 6.0, 9.0])
        graded = [k / math.sqrt(near * self.q1) + grid for k in self.phi.kink_points]
        graded += [self.sign * k / math.sqrt(near * self.q2) + grid for k in self.psi.kink_points]
        edges = np.unique(np.clip(np.concatenate([base, *graded]), base[0], base[-1]))
        return normal_rule(split(edges, 1.0))

    @cached_property
    def _end(self) -> float:
        """Gamma(sign)."""
        return pair_moment(self.phi, self.q1, self.psi, self.q2, self.sign)

    def _table(self, order: int) -> Piecewise:
        power = self._power(order)

        def regular(theta: Array) -> Array:
            return np.array([math.sin(t) ** power * self._derivative_at(order, t) for t in theta])

        # a slope that consists of rounding errors has no scale, as for an odd and an even function
        least = (
            0.02
            * math.sqrt(hermite(self.phi, self.q1).variance)
            * math.sqrt(hermite(self.psi, self.q2).variance)
        )
        floor = (
            math.sqrt(second_moment(self.phi, self.q1))
            * math.sqrt(second_moment(self.psi, self.q2))
            if order > 1
            else least
        )
        jumps = any(self.phi.jump_sizes(0)) or any(self.psi.jump_sizes(0))
        return adaptive(regular, 0.0, ZONE, floor, noise=1e-15 if order > 1 and jumps else 0.0)

    @cached_property
    def _slope_table(self) -> Piecewise:
        return self._table(1)

    @cached_property
    def _bend_table(self) -> Piecewise:
        return self._table(2)

    @cached_property
    def _drop_table(self) -> Piecewise:
        """A table of R in sign (Gamma(sign) - Gamma(c)) = R(theta) (2 sin(theta/2))^(2-p).

        R is positive and regular, so its relative error is small.
        """
        slopes, power = self._slope_table, self._power(1)

        def integral(start: Array, theta: Array) -> Array:
            t, w = (part[:, 0] for part in panel_nodes(np.stack([start, theta], axis=1), 32))
            return np.sum(slopes(t) * np.sin(t) ** (1 - power) * w, axis=1)

        edges = slopes.edges
        below = np.append(0.0, np.cumsum(integral(edges[:-1], edges[1:])))

        def ratio(theta: Array) -> Array:
            panel = np.searchsorted(edges, theta) - 1
            total = below[panel] + integral(edges[panel], theta)
            return total / (2 * np.sin(theta / 2)) ** (2 - power)

        return on_panels(ratio, edges)

    def _few(self, table: str, count: int) -> bool:
        """Whether to evaluate ``count`` points directly.

        Curves and root finders need many points, for which a table is faster.
        """
        if table in self.__dict__ or self._asked + count > _FEW:
            return False
        self._asked += count
        return True

    def drop(self, theta: Array, absolute: bool = False) -> Array:
        """Return the drop Gamma(sign) - Gamma(sign cos theta).

        The relative error of the drop is small, unless ``absolute`` is set or sign = -1.

        For one function at two q values, 1 - C does not vanish at c = 1, and the error is small
        relative to 1 - C. For theta >= CLOSE, a plain difference is accurate enough.
        """
        if not theta.any():
            return np.zeros(theta.shape)
        two_levels = self.phi is self.psi and self.q1 != self.q2
        integrated = two_levels and not absolute and self.sign > 0
        single = absolute or self.sign < 0 or two_levels
        single = single or (self._at_large_q and bool(np.all((theta == 0) | (theta >= CLOSE))))
        if single and self._few("_drop_table", theta.size):
            return np.array([self._single_drop(t, integrated and t < CLOSE) for t in theta])
        return self.sign * self._drop_table(theta) * (2 * np.sin(theta / 2)) ** (2 - self._power(1))

    def _single_drop(self, theta: float, integrated: bool) -> float:
        if not theta:
            return 0.0
        if self._symmetric and self.sign > 0:
            return self._variance(theta)
        if not integrated:
            return self._end - self._derivative_at(0, theta)
        kinks = np.abs(np.array(self.phi.kink_points)) * abs(
            1 / math.sqrt(self.q1) - 1 / math.sqrt(self.q2)
        )
        turns = np.outer(
            kinks, [0.2, 0.6, 2.0, 10.0]
        ).ravel()  # angles comparable to the distance between the corners for the two q values
        edges = np.unique([0.0, *turns[(turns > 0) & (turns < theta)], theta])
        points, weights = (part.ravel() for part in panel_nodes(edges, 12))
        slopes = [self._derivative_at(1, t) * math.sin(t) for t in points.tolist()]
        return float(weights @ slopes)

    def derivative(self, order: int, theta: Array) -> Array:
        """Return Gamma^(order) at c = sign cos(theta) for order 1 or 2.

        The derivative is infinite at theta = 0 if corners meet.
        """
        power = self._power(order)
        if (theta.all() or not power) and self._few(
            "_slope_table" if order == 1 else "_bend_table", theta.size
        ):
            return np.array([self._derivative_at(order, t) for t in theta])
        regular = (self._slope_table if order == 1 else self._bend_table)(theta)
        if not power:
            return regular
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(
                theta == 0, np.inf * self._sign_at_end(order), regular / np.sin(theta) ** power
            )

    def infinity(self, order: int) -> float:
        """Return +-inf if Gamma^(order) is infinite at theta = 0, else 0."""
        return math.inf * self._sign_at_end(order) if self._power(order) else 0.0

    def _sign_at_end(self, order: int) -> float:
        """Return the sign of an infinite derivative at theta = 0, from its leading term.

        The computed sum does not show the sign if jumps far from 0 have weights below rounding.
        """
        first = 0 if self._touching(0, 0) else order - 1
        one, two = Jumps.of(self.phi, self.q1, first), Jumps.of(self.psi, self.q2, first)
        touching = meet(one.standard[:, None], self.sign * two.standard)
        if not touching.any():
            table = self._slope_table if order == 1 else self._bend_table
            return float(np.sign(table(np.zeros(1))[0]))
        depth = np.where(touching, -(one.standard[:, None] ** 2) / 2, -np.inf)
        total = np.sum(one.sizes[:, None] * two.sizes * np.exp(depth - depth.max()))
        return float(np.sign(total)) * (self.sign if order == 2 and first == 0 else 1)
