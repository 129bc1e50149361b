"""E[phi(u) psi(v)] near |c| = 1 for functions with infinite first or second derivatives at kinks.

sqrt|x| and |x|^1.5 have derivatives without Gaussian moments, so here derivatives with respect to c
act on the Gaussians. Given the common part of u and v,
``E D^n f(m + s y) = E f(m + s y) He_n(y) / s^n`` in the sense of distributions, including jumps. If
no kink is within reach of y, the expectation of the derivative is computed instead, because it
keeps more digits.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from kcalc.fields.chebyshev import Piecewise, adaptive, on_panels
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.expectations.corners import ZONE, meet
from kcalc.gaussian.expectations.quadrature import (
    WINDOW,
    Array,
    Profile,
    joint_edges,
    normal_density,
    normal_rule,
    panel_nodes,
    rule,
    split,
)

_WIDEST = 2 * WINDOW / 3  # widest panel, in standard deviations
_GRID = np.array([-9.0, -6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0, 9.0])
_UNIT, _WEIGHTS = (part.ravel() for part in panel_nodes(np.array([0.0, 1.0])))
_WHOLE = 1 - 1e-9  # t^-p with p >= 1 has no integral up to 0
_CLOSEST = 1e-13  # least distance of panel edges from a kink, relative to the smoothing
_LEAST = 1e-7  # smallest angle in tables
_FEW = 60  # values computed before a table is made
_DEEPEST = 1000  # panels towards a kink, each half as wide as the previous one
_BITS = 57  # the omitted panels contain less than 2^-_BITS of an integral


def is_rough(profile: Profile) -> bool:
    """Whether a derivative of the function, up to the third, is infinite at a kink."""
    return bool(getattr(profile, "rough", False))


class _Sums(NamedTuple):
    """Means of f He_n and g He_n for n = 0, 1, 2, and the covariance, given the common part."""

    first: list[Array]
    second: list[Array]
    covariance: Array


class RoughZone:
    """Gamma near c = sign, as a function of theta = arccos(sign c)."""

    def __init__(self, phi: Profile, q1: float, psi: Profile, q2: float, sign: int) -> None:
        self.sides = ((phi, math.sqrt(q1)), (psi, sign * math.sqrt(q2)))
        self.sign = sign
        self.edges = joint_edges(phi, q1, psi, q2, sign)
        self._tables: dict[int | None, Piecewise] = {}
        self._asked = 0

    def _kinks(self, side: int) -> Array:
        """Return the kinks of one function on the z axis, in the profile's order."""
        profile, scale = self.sides[side]
        return np.array(profile.kink_points) / scale

    def drop(self, theta: Array, absolute: bool = False) -> Array:
        """Return Gamma(sign) - Gamma(sign cos theta), without cancellation."""
        return self._values(None, theta)

    def derivative(self, order: int, theta: Array) -> Array:
        """Return Gamma' or Gamma'' at c = sign cos(theta), which may be infinite at theta = 0."""
        values = self._values(order, theta)
        end = theta == 0
        if end.any():
            values[end] = self._at_end(order)
        return values

    def infinity(self, order: int) -> float:
        """Return +-inf if Gamma^(order) is infinite at theta = 0, else 0."""
        limit = self._limit(order)
        return limit if limit is not None and math.isinf(limit) else 0.0

    def _limit(self, order: int) -> float | None:
        """Return the limit of Gamma^(order) at theta = 0 if steep kinks meet there, else None.

        The limit is finite if one function is steep above the kink and the other below it.
        """
        one, two = (np.array(profile.strengths(order)) for profile, _ in self.sides)  # type: ignore[attr-defined]
        touching = meet(self._kinks(0)[:, None], self._kinks(1))
        both = (one[:, None] > 0) & (two > 0) & (one[:, None] + two >= _WHOLE)
        if not (touching & both).any():
            return None
        far, near, nearest = (self._over_common(theta, order) for theta in (1e-2, 1e-3, 1e-4))
        if abs(nearest - near) > 0.5 * abs(near - far):  # it grows like a power or a logarithm
            return math.copysign(math.inf, nearest)
        return nearest + (nearest - near) / 99  # the error is proportional to theta^2

    # -- inside ------------------------------------------------------------------------------------

    def _values(self, order: int | None, theta: Array) -> Array:
        """Return the drop or a derivative for each theta, or 0 if theta is 0.

        Many values are read from a table in log theta, because powers of theta are smooth in log
        theta.
        """
        out = np.zeros(theta.shape)
        self._asked += theta.size
        near = (theta > 0) & ((theta < _LEAST) | (self._asked <= _FEW))
        out[near] = [self._over_common(t, order) for t in theta[near].tolist()]
        far = (theta > 0) & ~near
        if far.any():
            out[far] = self._sized(order, self._tabled(order)(np.log(theta[far])), theta[far])
        return out

    def _tabled(self, order: int | None) -> Piecewise:
        if order not in self._tables:
            self._tables[order] = self._table(order)
        return self._tables[order]

    def _table(self, order: int | None) -> Piecewise:
        def regular(logs: Array) -> Array:
            theta = np.exp(logs)
            values = np.array([self._over_common(t, order) for t in theta.ravel().tolist()])
            values = values.reshape(theta.shape)
            if self._alike(order):
                return np.log(values)
            return values * theta ** self._power(order)

        if order is not None:  # derivatives are as smooth as the drop, but noisier
            return on_panels(regular, self._tabled(None).edges)
        return adaptive(regular, math.log(_LEAST), math.log(ZONE), 1.0 if self._alike(order) else 0)

    def _sized(self, order: int | None, found: Array, theta: Array) -> Array:
        return np.exp(found) if self._alike(order) else found / theta ** self._power(order)

    def _alike(self, order: int | None) -> bool:
        """Whether the values are drops for phi = psi, which are positive."""
        return order is None and self.sides[0] == self.sides[1]

    def _power(self, order: int | None) -> float:
        """Return p such that theta^p times the values is bounded, and nonzero for drops."""
        if order is None:
            return -1.0
        tops = (max(profile.strengths(order), default=0.0) for profile, _ in self.sides)  # type: ignore[attr-defined]
        return max(0.0, sum(tops) - 1)

    # -- one value ------------------------------------------------------------------------------

    def _over_common(self, theta: float, order: int | None) -> float:
        """Return the drop (order None) or the derivative at theta > 0."""
        far = 2 * math.sin(theta / 2) ** 2
        near, spread = 1 - far, math.sqrt(far)
        kinks = np.concatenate([self._kinks(0), self._kinks(1)])
        far_off = np.abs(self.edges[:, None] - kinks).min(axis=1) > 3 * spread
        edges = np.concatenate([self.edges[far_off], (kinks[:, None] + spread * _GRID).ravel()])
        low, high = self.edges[0] / math.sqrt(near), self.edges[-1] / math.sqrt(near)
        edges = np.unique(np.clip(edges / math.sqrt(near), low, high))
        outer = normal_rule(split(edges, 1.0))
        sums = self._given(math.sqrt(near) * outer.z, spread, order or 0)
        if order is None:
            return float(outer.w @ sums.covariance)
        product = sums.first[order] * sums.second[order]
        return float(outer.w @ product) / far**order * self.sign**order

    def _given(self, centres: Array, spread: float, order: int) -> _Sums:
        owner, w, weight = self._inner(centres, spread)
        y = (w - centres[owner]) / spread
        weight = weight * normal_density(y) / spread
        polynomials = (y, y * y - 1)

        def mean(values: Array) -> Array:
            out: Any = np.bincount(owner, weight * values, minlength=centres.size)
            return out

        found, raised = [], []
        for side, (profile, scale) in enumerate(self.sides):
            if side and self.sides[0] == self.sides[1]:
                found.append(found[0])
                raised.append(raised[0])
                break
            values = profile.numeric(0)(scale * w) - profile.numeric(0)(scale * centres)[owner]
            means = [mean(values)]
            for n in range(1, order + 1):
                slopes = values * polynomials[n - 1]
                clear = self._clear(side, centres, spread)[owner]
                slopes[clear] = profile.numeric(n)(scale * w[clear]) * (scale * spread) ** n
                means.append(mean(slopes))
            found.append(means)
            raised.append(values)
        covariance = mean(raised[0] * raised[1]) - found[0][0] * found[1][0]
        return _Sums(found[0], found[1], covariance)

    def _clear(self, side: int, centres: Array, spread: float) -> Any:
        """Whether no kink of a function is within reach of a centre."""
        distance = np.abs(centres[:, None] - self._kinks(side)).min(axis=1, initial=np.inf)
        return distance > 1.5 * WINDOW * spread

    def _inner(self, centres: Array, spread: float) -> tuple[Any, Array, Array]:
        """Return (index of the centre, node, weight) for the panels within reach of each centre."""
        kinks = np.concatenate([self._kinks(0), self._kinks(1)])
        apart = np.abs(self.edges[:, None] - kinks).min(axis=1)
        edges = self.edges[(apart == 0) | (apart > _CLOSEST * spread)]
        low, high = centres - WINDOW * spread, centres + WINDOW * spread
        first = np.searchsorted(edges, low, side="right")
        last = np.searchsorted(edges, high, side="left")
        owner, index = _spread(last - first + 1)
        place = first[owner] + index
        inside = edges[np.clip(place, 0, edges.size - 1)]
        stops = np.where(place < last[owner], inside, high[owner])
        before = edges[np.clip(place - 1, 0, edges.size - 1)]
        starts = np.where(index > 0, before, low[owner])
        counts = np.maximum(np.ceil((stops - starts) / (spread * _WIDEST)), 1).astype(int)
        panel, part = _spread(counts)
        width = (stops - starts)[panel] / counts[panel]
        nodes = (starts[panel] + part * width)[:, None] + width[:, None] * _UNIT
        weights = width[:, None] * _WEIGHTS
        return np.repeat(owner[panel], _UNIT.size), nodes.ravel(), weights.ravel()

    # -- the end -----------------------------------------------------------------------------------

    def _at_end(self, order: int) -> float:
        limit = self._limit(order)
        if limit is not None:
            return limit
        strengths = [np.array(profile.strengths(order)) for profile, _ in self.sides]  # type: ignore[attr-defined]
        if any((strength >= 1).any() for strength in strengths):
            names = " and ".join(dict.fromkeys(profile.name for profile, _ in self.sides))
            raise KcalcError(
                f"derivative {order} of the C map of {names} at c = {self.sign} is not "
                "available, because the activations jump or are infinitely steep; use |c| < 1"
            )
        return self.sign**order * self._smooth_product(order, strengths)

    def _smooth_product(self, order: int, strengths: list[Array]) -> float:
        """Return E f^(order) g^(order), with separate panels around the kinks."""
        kinks = [self._kinks(side) for side in (0, 1)]
        places = np.unique(np.concatenate(kinks))
        gaps = np.diff(places)[np.diff(places) > 1e-9]
        reach = min(0.25, float(gaps.min(initial=1.0)) / 2)
        steep = [k[s > 0] for k, s in zip(kinks, strengths, strict=True)]
        total, edges = 0.0, self.edges
        for place in _apart(np.concatenate(steep)):
            if self.edges[0] < place < self.edges[-1]:
                total += self._around(place, reach, order, strengths)
                edges = edges[np.abs(edges - place) >= reach]
                edges = np.unique(np.append(edges, (place - reach, place + reach)))
        fine = np.unique(np.concatenate([edges, (edges[1:] + edges[:-1]) / 2]))
        outer = normal_rule(split(fine, 0.5))
        values = np.ones_like(outer.z)
        for profile, scale in self.sides:
            values = values * profile.numeric(order)(scale * outer.z) * scale**order
        apart = np.abs(outer.z[:, None] - np.concatenate([*steep, [np.inf]])).min(axis=1)
        return total + float(outer.w[apart > reach] @ values[apart > reach])

    def _around(self, place: float, reach: float, order: int, strengths: list[Array]) -> float:
        """Return the part of the integral within ``reach`` of a kink."""
        here = [np.flatnonzero(meet(self._kinks(side), np.array(place))) for side in (0, 1)]
        power = sum(float(s[i].max(initial=0.0)) for s, i in zip(strengths, here, strict=True))
        count = math.ceil(_BITS / (1 - power))
        if count > _DEEPEST:
            raise KcalcError(
                f"a derivative of the C map of {self.sides[0][0].name} at c = {self.sign} almost "
                "diverges; use |c| < 1"
            )
        t, w = (p.ravel() for p in panel_nodes(reach * 0.5 ** np.arange(count, -1.0, -1.0)))
        total = 0.0
        for side in (-1, 1):
            values = np.ones_like(t)
            for (profile, scale), indices in zip(self.sides, here, strict=True):
                turn = side if scale > 0 else -side
                found = (
                    profile.beside(order, int(indices[0]), turn, abs(scale) * t)  # type: ignore[attr-defined]
                    if indices.size
                    else profile.numeric(order)(scale * (place + side * t))
                )
                values = values * found * scale**order
            total += float((w * normal_density(place + side * t)) @ values)
        return total


def _apart(places: Array) -> list[float]:
    """Return the values, sorted and without duplicates up to rounding."""
    out: list[float] = []
    for place in np.sort(places).tolist():
        if not out or not meet(np.array(place), np.array(out[-1])):
            out.append(place)
    return out


def _spread(counts: Any) -> tuple[Any, Any]:
    """Return all (i, k) with 0 <= k < counts[i], as two arrays of integers."""
    owner = np.repeat(np.arange(counts.size), counts)
    start = np.repeat(np.cumsum(counts) - counts, counts)
    return owner, np.arange(counts.sum()) - start


def steep_square(profile: Profile, q: float) -> float:
    """Return E phi'(sqrt(q) z)^2, which may be infinite, for an infinitely steep function."""
    return float(RoughZone(profile, q, profile, q, 1).derivative(1, np.zeros(1))[0]) / q


@lru_cache(maxsize=4096)
def slope_square(profile: Profile, q: float) -> float:
    """Return E phi'(u)^2; infinite if phi jumps."""
    if is_rough(profile):
        return steep_square(profile, q)
    if any(profile.jump_sizes(0)):
        return math.inf
    nodes = rule(profile, q)
    return float(nodes.w @ profile.numeric(1)(math.sqrt(q) * nodes.z) ** 2)


__all__ = ["RoughZone", "is_rough", "slope_square", "steep_square"]
