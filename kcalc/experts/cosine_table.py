"""Interpolate the router statistics W and R as functions of the angle between two tokens.

W and R are smooth functions of the angle theta = arccos(rho), even at theta = 0, where the
probability that the selection changes is proportional to theta. At theta = 0, W equals S_2 and has
a known slope -a. A polynomial through 12 values of ``(S_2 - W - a theta) / theta^2`` therefore
approximates W to about 1e-9 for angles up to pi/2, even below the smallest of the 12 angles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.interpolate import BarycentricInterpolator

from ..fields import NUMPY
from ..fields.jets import Jet, JetField
from ..foundation.errors import KcalcError
from .one_token import squares_and_slopes, swaps
from .scores import SCORES
from .two_tokens import shared, slopes

Array = np.ndarray
NODES = (12, 16, 22)
ACUTE = (0.2, 1.62)  # angles to interpolate; the cost of a value grows like 1/angle
OBTUSE = (1.52, 2.95)
CHECKED = (0.06, 0.52, 0.97)  # test points, as fractions of the interval of angles
TOLERANCE = 5e-9  # allowed error at the test points
FEW = 4  # values that are computed directly before a table is built
DIGITS = 12  # digits of the variance; rounding it avoids a second table


def router_moments(
    experts: int, selected: int, variance: float, score: str, normalise: bool
) -> RouterMoments:
    """Return the cached moments of a router's weights for any two tokens."""
    return _router(experts, selected, float(f"{variance:.{DIGITS}g}"), (score, normalise))


@lru_cache(maxsize=64)
def _router(experts: int, selected: int, variance: float, score: tuple[str, bool]) -> RouterMoments:
    return RouterMoments(experts, selected, math.sqrt(variance), score)


class RouterMoments:
    """Moments of the router weights of one token and of two tokens.

    ``second`` is S_2 and ``slopes`` is R_2, as defined in :func:`kcalc.moe_statistics`.
    """

    def __init__(self, experts: int, selected: int, sigma: float, score: tuple[str, bool]) -> None:
        given, law = (experts, selected, sigma), SCORES[score]
        self.second, self.slopes = squares_and_slopes(*given, law)
        self.selects = selected < experts
        self.even = (not self.selects, not self.selects or 2 * selected < experts)  # at 0, at pi
        # tokens with opposite logits share no expert if at most half of the experts are selected
        opposite = 0.0 if 2 * selected <= experts else None

        def table(value: Callable[..., float], end: float, slope: float | None) -> AngleTable:
            ends = (slope, opposite, self.selects and opposite is None)
            return AngleTable(lambda t: value(*given, math.cos(t), law), end, *ends)

        self._cross = table(shared, self.second, swaps(*given, law))
        self._slopes = table(slopes, self.slopes, None)

    def lost(self, gap: Jet) -> Jet:
        """Return ``1 - W / S_2`` for tokens with cosine ``1 - gap``, as a jet.

        The jet has the same order as ``gap``. The slope is infinite at a gap of 0 if top_k <
        num_experts.
        """
        order = gap.order
        angle = NUMPY.angle(gap.value)
        by_angle = [self._cross.lost(angle, m) / self.second for m in range(order + 1)]
        if not order:
            return Jet((by_angle[0],))
        with np.errstate(all="ignore"):
            found = JetField(NUMPY).angle(gap).compose(by_angle).coefficients
        value, rate = np.asarray(gap.value), gap.coefficients[1]
        for place, even in zip((value == 0, value == 2), self.even, strict=True):
            if not place.any():
                continue
            with np.errstate(all="ignore"):
                first = np.where(rate == 0, 0.0, np.inf * rate)
            if even:  # even in the angle from 0 or pi; gap = angle^2 / 2 or 2 - angle^2 / 2
                first = 2 * self._cross.lost(angle, 2) / self.second * rate * (1 - value)
            ends = (found[0], first, *[np.nan] * (order - 1))
            found = tuple(np.where(place, e, f)[()] for e, f in zip(ends, found, strict=True))
        return Jet(found)

    def slopes_at(self, gap: Any) -> Any:
        """Return R for tokens with cosine ``1 - gap``."""
        return self.slopes - self._slopes.lost(NUMPY.angle(gap))


class AngleTable:
    """Interpolate ``f(0) - f(theta)`` with polynomials, for an expensive function f.

    ``end`` is f(0); ``slope`` is -f'(0) and ``opposite`` is f(pi), or None if unknown. If
    ``bounded`` is true, angles near pi raise an error.
    """

    def __init__(
        self,
        function: Callable[[float], float],
        end: float,
        slope: float | None,
        opposite: float | None,
        bounded: bool,
    ) -> None:
        self.bounded = bounded
        self.function = lru_cache(maxsize=None)(function)
        self.end, self.slope, self.opposite = end, slope, opposite
        self._parts: dict[bool, _Polynomial] = {}
        self._known: set[float] = set()

    def lost(self, angles: Any, derivative: int = 0) -> Any:
        """Return ``f(0) - f`` at angles in [0, pi], or a Taylor coefficient of it.

        Raises: KcalcError if a polynomial is not accurate enough.
        """
        angles = np.asarray(angles, dtype=float)
        if self.bounded and np.any(angles > OBTUSE[1]):
            raise KcalcError(
                f"the weights of two tokens with a cosine below {math.cos(OBTUSE[1]):.3f} are not "
                "available if more than half of the experts are selected; use larger cosines"
            )
        if derivative == 0 and self._few(angles):
            return self._one_by_one(angles)
        flat, obtuse = angles.ravel(), angles.ravel() > np.pi / 2
        out = np.zeros_like(flat)
        for side in (False, True):
            if np.any(obtuse == side):
                out[obtuse == side] = self._part(side)(flat[obtuse == side], derivative)
        return out.reshape(angles.shape)[()]

    def _few(self, angles: Array) -> bool:
        """Whether to compute values directly: for few angles that are not too close to 0 or pi."""
        ends = (0.0, np.pi if self.opposite is not None else 0.0)
        new = {float(a) for a in np.unique(angles) if a not in ends}
        inside = all(ACUTE[0] <= a <= OBTUSE[1] for a in new)
        if not inside or len(new | self._known) > FEW:
            return all(a in self._known for a in new)
        self._known |= new
        return True

    def _one_by_one(self, angles: Array) -> Any:
        known = {0.0: self.end} | ({} if self.opposite is None else {np.pi: self.opposite})
        values = [
            self.end - (known[a] if a in known else self.function(a))
            for a in map(float, angles.ravel())
        ]
        return np.array(values).reshape(angles.shape)[()]

    def _part(self, obtuse: bool) -> _Polynomial:
        if obtuse not in self._parts:
            self._parts[obtuse] = self._built(obtuse)
        return self._parts[obtuse]

    def _built(self, obtuse: bool) -> _Polynomial:
        """Fit polynomials of increasing degree until one is accurate at the test points."""
        low, high = OBTUSE if obtuse else ACUTE
        checked = [low + share * (high - low) for share in CHECKED]
        worst = math.inf
        for count in NODES:
            made = _Polynomial(self, obtuse, count)
            errors = [made(np.array([t]))[0] - (self.end - self.function(t)) for t in checked]
            worst = max(map(abs, errors))
            if worst <= TOLERANCE:
                return made
        raise KcalcError(
            "interpolating the router statistics in the cosine between two tokens has an error of "
            f"{worst:.1g}, which is too large; lower the variance of the logits"
        )


class _Polynomial:
    """Polynomial for ``f(0) - f(theta)`` on one side of pi/2."""

    def __init__(self, table: AngleTable, obtuse: bool, count: int) -> None:
        low, high = OBTUSE if obtuse else ACUTE
        nodes = np.cos(np.pi * (np.arange(count) + 0.5) / count)
        at = (low + high) / 2 + (high - low) / 2 * nodes
        lost = table.end - np.array([table.function(float(t)) for t in at])
        self.slope, self.power = table.slope, 0
        if obtuse:
            if table.opposite is not None:
                at, lost = np.append(at, np.pi), np.append(lost, table.end - table.opposite)
            self.slope = None
        elif table.slope is None:
            lost, self.power = lost / at, 1
        else:
            lost, self.power = (lost - table.slope * at) / at**2, 2
        self.curve = BarycentricInterpolator(at, lost)

    def __call__(self, angles: Array, derivative: int = 0) -> Array:
        """Return the Taylor coefficient of order ``derivative``; by default the value."""
        orders = range(derivative + 1)
        inner = [
            self.curve(angles) if m == 0 else self.curve.derivative(angles, m) / math.factorial(m)
            for m in orders
        ]
        total = np.zeros_like(angles)
        for m in orders:  # Leibniz rule with theta^power
            if derivative - m <= self.power:
                power = self.power - derivative + m
                weight = math.comb(self.power, derivative - m)
                total = total + weight * angles**power * inner[m]
        if self.slope is not None and derivative < 2:
            total = total + self.slope * (angles if derivative == 0 else 1)
        return total
