"""E[phi(u) psi(v)] near |c| = 1, where its Hermite series is slow: tables in theta = arccos |c|.

Gamma^(i)(c) = (q1 q2)^(i/2) E[phi^(i)(u) psi^(i)(v)] with derivatives in the sense of
distributions. Given the common part x of u and v (u = sqrt(q1) (sqrt|c| x + sqrt(1-|c|) y), v alike
with its own y) the two factors are independent and smoothed by a narrow Gaussian. The result,
divided by its corner singularity, is regular in theta; 1 - C is the integral of C' sin theta and
keeps relative accuracy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kcalc.foundation.errors import KcalcError
from kcalc.foundation.process_state import cached_property
from kcalc.gaussian.expectations.corners import Corners, Jumps, meet
from kcalc.gaussian.expectations.quadrature import (
    Array,
    Profile,
    Rule,
    gauss_legendre,
    is_noise,
    normal_rule,
    split,
)
from kcalc.gaussian.expectations.single import hermite, joint_edges, pair_moment, second_moment
from kcalc.gaussian.expectations.smoothing import smoothed

ZONE = 0.35  # the end zones are theta < ZONE and pi - theta < ZONE
_TERMS = (14, 24)  # Chebyshev terms tried on a panel before it is bisected
# The last coefficients of a panel may be these parts of the function's size: with the first, 14
# terms are enough; with the second, 24. The noise of the integrals is about 1e-15.
_TOLERANCES = (1e-15, 5e-15)
_NARROWEST = 1e-13
_FEW = 60  # points evaluated directly before a table is made
CLOSE = 1e-4  # below, the drop of one function at two q values is integrated from its slope
_MOST = 400  # panels of an end zone


@dataclass(frozen=True)
class Chebyshev:
    """A function on [left, right] by Chebyshev coefficients."""

    left: float
    right: float
    coefficients: Array

    @property
    def tail(self) -> float:
        """The size of the last coefficients, an estimate of the panel's error."""
        return float(np.abs(self.coefficients[-3:]).max())

    def __call__(self, t: Array) -> Array:
        return np.polynomial.chebyshev.chebval(  # pyright: ignore[reportReturnType]
            (2 * t - self.left - self.right) / (self.right - self.left), self.coefficients
        )


def _fit(f: Callable[[Array], Array], left: float, right: float, terms: int) -> Chebyshev:
    angles = (np.arange(terms) + 0.5) * math.pi / terms
    values = f((left + right) / 2 + (right - left) / 2 * np.cos(angles))
    matrix = np.cos(np.outer(np.arange(terms), angles)) * 2 / terms
    matrix[0] /= 2
    return Chebyshev(left, right, matrix @ values)


def tabulate(
    f: Callable[[Array], Array], left: float, right: float, floor: float = 0.0, noise: float = 0.0
) -> list[Chebyshev]:
    """Chebyshev panels of f on [left, right], bisected until the last coefficients are rounding.

    The panels are sorted from the left.

    Rounding is judged against the size of f on the whole interval, or ``floor`` if that is larger,
    and is allowed to grow like noise/t. Two kinks that nearly meet are resolved in as many
    bisections as their distance asks for. Raises KcalcError for too many panels.
    """
    done: list[Chebyshev] = []
    waiting = [(left, right)]
    while waiting:
        low, high = waiting.pop()
        panel = _fit(f, low, high, _TERMS[0])
        floor = max(floor, float(np.abs(panel.coefficients).max()))
        if panel.tail > _TOLERANCES[0] * floor:
            panel = _fit(f, low, high, _TERMS[1])
        allowed = _TOLERANCES[1] + noise / max(low, 1e-3 * high)
        if (
            panel.tail <= allowed * floor
            or is_noise(np.abs(panel.coefficients[-8:]), floor)
            or high - low < _NARROWEST
        ):
            done.append(panel)
        elif len(done) + len(waiting) >= _MOST:
            raise KcalcError(
                "the C map near |c| = 1 cannot be tabulated: the activation has too many or too "
                "close kinks or jumps"
            )
        else:
            middle = (low + high) / 2
            waiting += [(middle, high), (low, middle)]
    return done


def evaluate(panels: list[Chebyshev], t: Array) -> Array:
    """The tabulated function at the points t (each within the tabulated range)."""
    out = np.empty_like(t)
    which = np.clip(np.searchsorted([panel.right for panel in panels], t), 0, len(panels) - 1)
    for index in np.unique(which):
        here = which == index
        out[here] = panels[index](t[here])
    return out


class EndZone:
    """Gamma near c = sign: a function of theta = arccos(sign c) in [0, ZONE]."""

    def __init__(self, phi: Profile, q1: float, psi: Profile, q2: float, sign: int) -> None:
        self.phi, self.q1, self.psi, self.q2, self.sign = phi, q1, psi, q2, sign
        self._asked = 0

    def _touching(self, first: int, second: int) -> bool:
        """Whether a jump in phi^(first) and one in psi^(second) meet.

        They meet on the line u/sqrt(q1) = sign v/sqrt(q2).
        """
        a = Jumps.of(self.phi, self.q1, first).standard
        b = Jumps.of(self.psi, self.q2, second).standard
        return bool(meet(a[:, None], self.sign * b).any())

    def _power(self, order: int) -> int:
        """p such that sin(theta)^p Gamma^(order) is regular at theta = 0."""
        if self._touching(0, 0):
            return 2 * order - 1
        return (
            1
            if order == 2 and (self._touching(1, 1) or self._touching(0, 1) or self._touching(1, 0))
            else 0
        )

    def _derivative_at(self, order: int, theta: float) -> float:
        """Gamma^(order) at c = sign cos(theta).

        It is that of the smoothed functions; the deltas of both are added by conditioning on their
        kinks.
        """
        far = 2 * math.sin(theta / 2) ** 2
        smooth = self._smooth_product(order, far)
        if order == 0:
            return smooth
        jumps = Corners(self.phi, self.q1, self.psi, self.q2, self.sign, far)
        return (self.q1 * self.q2) ** (order / 2) * (smooth + jumps.total(order, self._symmetric))

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
        """Panels for both functions, graded around the images of kinks.

        The grading has the width of the smoothing.
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

    def _table(self, order: int) -> list[Chebyshev]:
        power = self._power(order)

        def regular(theta: Array) -> Array:
            return np.array([math.sin(t) ** power * self._derivative_at(order, t) for t in theta])

        # A slope that is rounding throughout, as of an odd function with an even one, has no size
        # of its own to be judged against.
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
        return tabulate(regular, 0.0, ZONE, floor, noise=1e-15 if order > 1 and jumps else 0.0)

    @cached_property
    def _slope_table(self) -> list[Chebyshev]:
        return self._table(1)

    @cached_property
    def _bend_table(self) -> list[Chebyshev]:
        return self._table(2)

    @cached_property
    def _drop_table(self) -> list[Chebyshev]:
        """R with sign (Gamma(sign) - Gamma(c)) = R(theta) (2 sin(theta/2))^(2-p).

        Positive and regular, so relatively accurate.
        """
        panels, power, total = [], self._power(1), 0.0
        x, w = gauss_legendre(32)
        for source in self._slope_table:
            start = total

            def integral(theta: Array, source: Chebyshev = source) -> Array:
                half = (theta - source.left) / 2
                t = source.left + half[:, None] * (1 + x)
                return half * ((source(t) * np.sin(t) ** (1 - power)) @ w)

            def ratio(
                theta: Array, start: float = start, integral: Callable[[Array], Array] = integral
            ) -> Array:
                return (start + integral(theta)) / (2 * np.sin(theta / 2)) ** (2 - power)

            panels.append(_fit(ratio, source.left, source.right, source.coefficients.size))
            total += float(integral(np.array([source.right]))[0])
        return panels

    def _few(self, table: str, count: int) -> bool:
        """Whether to evaluate so many points directly.

        Tables are for the curves and root finders that ask for many.
        """
        if table in self.__dict__ or self._asked + count > _FEW:
            return False
        self._asked += count
        return True

    def drop(self, theta: Array, absolute: bool = False) -> Array:
        """The drop Gamma(sign) - Gamma(sign cos theta).

        It is relatively accurate unless ``absolute`` or at sign = -1.

        For one function at two q values it is accurate beside the gap that their distance leaves,
        which for theta >= CLOSE needs no care.
        """
        if not theta.any():
            return np.zeros(theta.shape)
        two_levels = self.phi is self.psi and self.q1 != self.q2
        integrated = two_levels and not absolute and self.sign > 0
        if (absolute or self.sign < 0 or two_levels) and self._few("_drop_table", theta.size):
            return np.array([self._single_drop(t, integrated and t < CLOSE) for t in theta])
        return (
            self.sign
            * evaluate(self._drop_table, theta)
            * (2 * np.sin(theta / 2)) ** (2 - self._power(1))
        )

    def _single_drop(self, theta: float, integrated: bool) -> float:
        if not theta:
            return 0.0
        if not integrated:
            return self._end - self._derivative_at(0, theta)
        kinks = np.abs(np.array(self.phi.kink_points)) * abs(
            1 / math.sqrt(self.q1) - 1 / math.sqrt(self.q2)
        )
        turns = np.outer(
            kinks, [0.2, 0.6, 2.0, 10.0]
        ).ravel()  # where the corners of both levels come into sight
        edges = np.unique([0.0, *turns[(turns > 0) & (turns < theta)], theta])
        x, w = gauss_legendre(12)
        total = 0.0
        for left, right in itertools.pairwise(edges):
            t = left + (right - left) / 2 * (1 + x)
            total += (
                (right - left)
                / 2
                * float(w @ [self._derivative_at(1, float(v)) * math.sin(v) for v in t])
            )
        return total

    def derivative(self, order: int, theta: Array) -> Array:
        """Gamma^(order) at c = sign cos(theta), order 1 or 2.

        Infinite at theta = 0 where corners meet.
        """
        power = self._power(order)
        if (theta.all() or not power) and self._few(
            "_slope_table" if order == 1 else "_bend_table", theta.size
        ):
            return np.array([self._derivative_at(order, t) for t in theta])
        regular = evaluate(self._slope_table if order == 1 else self._bend_table, theta)
        if not power:
            return regular
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(
                theta == 0, np.inf * self._sign_at_end(order), regular / np.sin(theta) ** power
            )

    def infinity(self, order: int) -> float:
        """+-inf where Gamma^(order) is infinite at theta = 0, else 0."""
        return math.inf * self._sign_at_end(order) if self._power(order) else 0.0

    def _sign_at_end(self, order: int) -> float:
        """The sign of an infinite derivative at theta = 0, by its leading term.

        The leading term is needed because a jump far out has a weight below rounding.
        """
        first = 0 if self._touching(0, 0) else order - 1
        one, two = Jumps.of(self.phi, self.q1, first), Jumps.of(self.psi, self.q2, first)
        touching = meet(one.standard[:, None], self.sign * two.standard)
        if not touching.any():
            return float(
                np.sign(
                    evaluate(self._slope_table if order == 1 else self._bend_table, np.zeros(1))[0]
                )
            )
        depth = np.where(touching, -(one.standard[:, None] ** 2) / 2, -np.inf)
        total = np.sum(one.sizes[:, None] * two.sizes * np.exp(depth - depth.max()))
        return float(np.sign(total)) * (self.sign if order == 2 and first == 0 else 1)
