"""E[phi(u) psi(v)] for correlated Gaussians u, v, as a function of their correlation c.

Here u = sqrt(q1) x and v = sqrt(q2) (c x + sqrt(1-c^2) y), with c in [-1, 1]. By Mehler's formula,
Gamma(c) = E[phi(u) psi(v)] = sum a_n c^n, where a_n is the product of the n-th Hermite coefficients
of the two functions. For smooth functions the series works for every c. For other functions,
special rules replace it near |c| = 1.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from kcalc.fields import NUMPY
from kcalc.foundation.errors import KcalcError
from kcalc.foundation.process_state import cached_property
from kcalc.gaussian.expectations.near_unit_correlation import ZONE, EndZone
from kcalc.gaussian.expectations.quadrature import Array, Profile
from kcalc.gaussian.expectations.rough import RoughZone, is_rough
from kcalc.gaussian.expectations.single import hermite, hermites, pair_moment

_SPARE = 64
_AT_ONCE = 8192  # pairs per step; their arrays stay in cache
_NEGLECTED = 6e-16  # smaller Hermite coefficients, relative to the function's size, are unknown


def _needed(products: Array, size: float) -> int:
    """Return the number of terms of sum a_n c^n that matter on [-1, 1].

    Terms matter if they change the value or the first two derivatives.
    """
    heights = np.abs(products) * np.arange(1, products.size + 1) ** 2
    return int(np.count_nonzero(np.maximum.accumulate(heights[::-1]) > 1e-17 * size))


class PairMap:
    """Gamma(c) = E[phi(sqrt(q1) x) psi(sqrt(q2) (c x + sqrt(1-c^2) y))] for c in [-1, 1].

    It computes Taylor coefficients at any such c.
    """

    def __init__(self, phi: Profile, q1: float, psi: Profile, q2: float) -> None:
        self.phi, self.q1, self.psi, self.q2 = phi, q1, psi, q2
        self.same = phi == psi and q1 == q2
        first, second = hermite(phi, q1), hermite(psi, q2)
        terms = min(first.coefficients.size, second.coefficients.size)
        products = first.coefficients[:terms] * second.coefficients[:terms]
        size = math.sqrt(first.variance) * math.sqrt(second.variance)
        needed = _needed(products, size)
        self.constant = first.mean * second.mean
        self.products = products[:needed]
        self._all = (
            products,
            size,
            np.abs(first.coefficients[:terms]),
            np.abs(second.coefficients[:terms]),
        )
        self._tails = tuple(
            found.tail + float(found.coefficients[terms:] @ found.coefficients[terms:])
            for found in (first, second)
        )
        ends = any(found.complete and found.coefficients.size == terms for found in (first, second))
        nothing_hidden = math.sqrt(self._tails[0]) * math.sqrt(self._tails[1]) <= 1e-13 * size
        self.complete = ends or (needed < terms - 32 and nothing_hidden)

    @cached_property
    def at_one(self) -> float:
        """Gamma(1)."""
        return pair_moment(self.phi, self.q1, self.psi, self.q2)

    @cached_property
    def at_minus_one(self) -> float:
        """Gamma(-1)."""
        return pair_moment(self.phi, self.q1, self.psi, self.q2, sign=-1)

    @cached_property
    def whole(self) -> float:
        """Gamma(1) as the sum of the series.

        Using this sum makes Gamma(1) - Gamma(c) and Gamma(c) consistent to the last digit.
        """
        return self.constant + float(self.products.sum()) + self._missing

    @cached_property
    def _missing(self) -> float:
        """Gamma(1) minus the sum of the kept terms.

        The difference is computed from variances if that avoids cancellation.
        """
        if self.complete:
            return 0.0
        if self.same:
            return self._tails[0]
        return self.at_one - self.constant - float(self.products.sum())

    @cached_property
    def _matrix(self) -> Array:
        """Coefficients of three power series in c, one series per column.

        The series are (Gamma(1) - Gamma(c) - missing)/(1 - c), Gamma' and Gamma''/2.
        """
        if self.products.size == 0:
            return np.zeros((0, 3))
        n = np.arange(1, self.products.size + 1)
        suffix = np.cumsum(self.products[::-1])[::-1]
        slope = n * self.products
        bend = np.append((n * (n - 1) / 2 * self.products)[1:], 0.0)
        return np.stack([suffix, slope, bend], axis=1)

    @cached_property
    def _upper(self) -> EndZone | RoughZone:
        return self._end_zone(1)

    @cached_property
    def _lower(self) -> EndZone | RoughZone:
        return self._end_zone(-1)

    def _end_zone(self, sign: int) -> EndZone | RoughZone:
        kind = RoughZone if is_rough(self.phi) or is_rough(self.psi) else EndZone
        return kind(self.phi, self.q1, self.psi, self.q2, sign)

    def taylor(
        self, gap: Array, order: int, absolute: bool = False, rest: Array | None = None
    ) -> list[Array]:
        """Return [Gamma(1) - Gamma(c), Gamma'(c), Gamma''(c)/2, ...] up to ``order``, c = 1 - gap.

        ``gap`` is a flat array of values in [0, 2], and ``rest`` is 1 + c if it is known more
        accurately than 2 - gap. The first result keeps its relative accuracy near c = 1, unless
        ``absolute`` is set, which costs less if there are few points.

        Raises KcalcError for orders above 2 if the Hermite series cannot provide them.
        """
        if self.complete and not (order and self.phi.kink_points and self.psi.kink_points):
            return self._inside(gap, order)
        out = [np.empty_like(gap) for _ in range(order + 1)]
        theta, beyond = NUMPY.angle(gap), NUMPY.angle(2 - gap if rest is None else rest)
        upper = np.zeros(gap.shape, dtype=bool) if self.complete else theta < ZONE
        lower = np.zeros(gap.shape, dtype=bool) if self.complete else beyond < ZONE
        inside = ~(upper | lower)
        if order > 2 and not inside.all():
            raise KcalcError(
                f"activation {self.phi.name!r} has Taylor coefficients of order {order} > 2 only "
                f"for |c| < {math.cos(ZONE):.2f}"
            )
        parts: list[list[Array]] = []
        if inside.any():
            parts.append(self._inside(gap[inside], order))
        if upper.any():
            parts.append(self._zone(self._upper, theta[upper], order, absolute))
        if lower.any():
            parts.append(self._zone(self._lower, beyond[lower], order, True))
            parts[-1][0] += self.at_one - self.at_minus_one
        for here, part in zip(
            (where for where in (inside, upper, lower) if where.any()), parts, strict=True
        ):
            for target, values in zip(out, part, strict=True):
                target[here] = values
        if self.complete and order and self.phi.kink_points and self.psi.kink_points:
            self._mark_infinite(out, gap == 0, self._upper)
            self._mark_infinite(out, beyond == 0, self._lower)
        return out

    @staticmethod
    def _mark_infinite(out: list[Array], here: Any, zone: EndZone | RoughZone) -> None:
        """Add infinity to the derivatives at c = +-1 that are infinite.

        The jumps that make a derivative infinite may have weights below rounding.
        """
        if here.any():
            for order in range(1, min(len(out), 3)):
                out[order][here] += zone.infinity(order)

    @staticmethod
    def _zone(zone: EndZone | RoughZone, theta: Array, order: int, absolute: bool) -> list[Array]:
        return [
            zone.drop(theta, absolute),
            *(zone.derivative(i, theta) / i for i in range(1, order + 1)),
        ]

    def _inside(self, gap: Array, order: int) -> list[Array]:
        c = 1 - gap
        terms = self._terms_needed(float(np.abs(c).max()))
        columns = self._matrix[:terms, : min(order, 2) + 1]
        parts = (
            np.array_split(c, c.size * terms // 2_000_000) if c.size * terms > 4_000_000 else [c]
        )
        values = np.concatenate(
            [np.vander(part, terms, increasing=True) @ columns for part in parts]
        )
        drop = gap * values[:, 0] + self._missing
        return [
            drop,
            *(values[:, i] for i in range(1, min(order, 2) + 1)),
            *(self._coefficient(c, k) for k in range(3, order + 1)),
        ]

    def _terms_needed(self, largest: float) -> int:
        if largest >= 0.999 or self.products.size == 0:
            return self.products.size
        return min(self.products.size, 16 + math.ceil(-46 / math.log(max(largest, 1e-6))))

    def _coefficient(self, c: Array, k: int) -> Array:
        """Return Gamma^(k)(c)/k! = sum_n binom(n, k) a_n c^(n-k).

        The rounding errors of the coefficients are relative to the size of the functions, and high
        derivatives amplify them. Raises KcalcError if the error of C^(k) may exceed 1e-10 max(1,
        |C^(k)|).
        """
        products, size, first, second = self._all
        largest = float(np.abs(c).max())
        # terms after the kept terms may be nonzero
        n = np.arange(k, max(products.size, k) + 1 + 3 * _SPARE)
        logs = np.concatenate([[0.0], np.cumsum(np.log(n[1:] / (n[1:] - k)))]) + (n - k) * math.log(
            max(largest, 1e-300)
        )
        doubt = np.full(n.size, _NEGLECTED**2 * size)
        kept = max(products.size + 1 - k, 0)
        doubt[:kept] += (
            math.sqrt(size) * _NEGLECTED * (first + second) + 1e-15 * np.abs(products)
        )[k - 1 :] / 2
        if not self.complete:
            doubt[kept:] = math.sqrt(self._tails[0]) * math.sqrt(self._tails[1])
        binomial = np.exp(
            np.minimum(logs[:kept] - (n[:kept] - k) * math.log(max(largest, 1e-300)), 700.0)
        )
        total = np.vander(c, kept, increasing=True) @ (binomial * products[k - 1 :])
        error = math.exp(math.lgamma(k + 1)) * float(np.exp(np.minimum(logs, 700.0)) @ doubt) / size
        height = math.exp(math.lgamma(k + 1)) * float(np.abs(total).max()) / size
        if not error <= 1e-10 * max(1.0, height):
            raise KcalcError(
                f"derivative {k} of the C map of {self.phi.name!r} at |c| = {largest:.3f} needs "
                "more digits than double precision provides; choose a lower order or a smaller |c|"
            )
        return total


def smooth_taylor(phi: Profile, q1: Array, q2: Array, gap: Array, order: int) -> list[Array] | None:
    """Return [1 - C(c), C'(c), C''(c)/2] up to ``order`` <= 2, for pairs with any q values.

    Here psi = phi, and C is Gamma / sqrt(Q(q1) Q(q2)). If alpha and alpha' are the Hermite
    coefficients at q1 and q2, divided by sqrt(Q), then 1 - C = |alpha - alpha'|^2/2 + sum_n alpha_n
    alpha'_n (1 - c^n).

    The results are arrays with the shape of ``gap`` (n,). Returns None if the Hermite series are
    too long.
    """
    distinct, which = np.unique(np.concatenate([q1, q2]), return_inverse=True)
    found = hermites(phi, distinct)
    if found is None or not found[1].all():
        return None
    columns = found[0] / np.sqrt(found[1] + found[0][0] ** 2)
    out = np.zeros((order + 1, gap.size))
    for start in range(0, gap.size, _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        _horner(columns, which[: gap.size][here], which[gap.size :][here], gap[here], out[:, here])
    return list(out)


def _horner(columns: Array, i: Any, j: Any, gap: Array, out: Array) -> None:
    """Write the Taylor coefficients for pairs of columns i and j into ``out`` (order + 1, n)."""
    c, apart, suffix, drop = 1 - gap, *np.zeros((3, gap.size))
    values = np.zeros((len(out), gap.size))  # the polynomial, its slope, half its curvature
    for row in columns[::-1]:
        first, second = row[i], row[j]
        product = first * second
        first -= second
        first *= first
        apart += first
        drop *= c
        drop += suffix
        suffix += product
        for k in range(len(out) - 1, -1, -1):
            values[k] *= c
            values[k] += values[k - 1] if k else product
    out[0] = apart / 2 + gap * drop
    out[1:] = values[1:]


@lru_cache(maxsize=512)
def pair_map(phi: Profile, q1: float, psi: Profile, q2: float) -> PairMap:
    """Return the cached :class:`PairMap` for (phi, q1) and (psi, q2)."""
    return PairMap(phi, q1, psi, q2)
