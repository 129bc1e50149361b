"""E[phi(u) psi(v)] for correlated Gaussians u, v, as a function of their correlation c on all of [-1, 1].

With z the standard normal, u = sqrt(q1) x, v = sqrt(q2) (c x + sqrt(1-c^2) y) and Gamma(c) = E[phi(u) psi(v)]:

* inside, Gamma(c) = sum a_n c^n with a_n the products of Hermite coefficients (Mehler); for smooth functions this serves every c;
* near |c| = 1, where that series is slow, Gamma^(i)(c) = (q1 q2)^(i/2) int N(x) g1(x) g2(x) dx with
  g_j(x) = E phi_j^(i)(sqrt(|c| q_j) x + sqrt((1-|c|) q_j) y), derivatives in the sense of distributions.  These are tabulated in
  theta = arccos |c| by Chebyshev panels, after division by their corner singularity, and 1 - C by integrating C' sin theta.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from kcalc.errors import KcalcError
from kcalc.fields import NUMPY
from kcalc.expectations import hermite, joint_edges, pair_moment, second_moment
from kcalc.quadrature import WINDOW, Array, Profile, gauss_legendre, mesh, normal_density, normal_rule, panel_nodes, split

_STEP = 0.65  # trapezoid step for a standard normal: relative error exp(-2 pi^2/h^2) = 5e-21
ZONE = 0.35  # the end zones are theta < ZONE and pi - theta < ZONE
_TERMS = (14, 24)  # Chebyshev terms tried on a panel before it is bisected
_TOLERANCES = (1e-15, 5e-15)  # of the function's size, for the last coefficients; the noise of the integrals is about 1e-15
_NARROWEST = 1e-7


# --- smoothing -----------------------------------------------------------------------------------------------------------------------


def smoothed(profile: Profile, n: int, centres: Array, sigma: float) -> Array:
    """E phi^(n)(m + sigma y) at each centre m, including what jumps of phi and of its derivatives contribute."""
    total = _smooth_part(profile, n, centres, sigma)
    for order in range(n):
        for k, jump in zip(profile.kink_points, profile.jump_sizes(order), strict=True):
            if jump:
                total += jump * _density_derivative(n - 1 - order, (k - centres) / sigma) / sigma ** (n - order)
    return total


def _density_derivative(n: int, t: Array) -> Array:
    """(-1)^n times the n-th derivative of the standard normal density at t, that is He_n(t) N(t), for n = 0, 1, 2."""
    polynomial = (np.ones_like(t), t, t * t - 1)[n]
    return polynomial * normal_density(t)


def _smooth_part(profile: Profile, n: int, centres: Array, sigma: float) -> Array:
    """The same without the jumps.

    Trapezoid rule where phi is analytic around the window |y| <= WINDOW, Gauss-Legendre on the panels of the mesh where it is not.
    """
    values, reach = profile.numeric(n), float(np.abs(centres).max()) + 10 * sigma
    edges = mesh(profile, 2.0 ** max(4, math.ceil(math.log2(reach))))
    if not profile.kink_points:
        return _full_integral(values, centres, sigma, min(_STEP, float(np.diff(edges).min()) / (5 * sigma)))
    low, high = centres - WINDOW * sigma, centres + WINDOW * sigma
    first, last = np.searchsorted(edges, low, side="right") - 1, np.searchsorted(edges, high, side="left") - 1
    total, whole = np.zeros_like(centres), first == last
    total[whole] = _full_integral(values, centres[whole], sigma, _STEP)
    for panel in range(first.min(), last.max() + 1):
        here = ~whole & (first <= panel) & (panel <= last)
        if here.any():
            ends = np.maximum(low[here], edges[panel]), np.minimum(high[here], edges[panel + 1])
            total[here] += _panel_integral(values, centres[here], sigma, *ends)
    return total


def _full_integral(values: Callable[[Array], Array], m: Array, sigma: float, step: float) -> Array:
    """E f(m + sigma y) by the trapezoid rule, exact to rounding for f analytic around the window."""
    reach = math.floor(WINDOW / step)
    y = np.arange(-reach, reach + 1) * step
    return values(m[:, None] + sigma * y) @ (step * normal_density(y))


def _panel_integral(values: Callable[[Array], Array], m: Array, sigma: float, low: Array, high: Array) -> Array:
    """The part of E f(m + sigma y) with m + sigma y in [low, high], f being smooth there; one interval for each centre."""
    parts = math.ceil(float((high - low).max()) / sigma / (2 * WINDOW / 3))
    unit, weights = panel_nodes(np.linspace(0.0, 1.0, max(parts, 1) + 1))
    x = low[:, None] + (high - low)[:, None] * unit.ravel()
    return (values(x) * normal_density((x - m[:, None]) / sigma)) @ weights.ravel() * (high - low) / sigma


# --- the end zones -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chebyshev:
    """A function on [left, right] by Chebyshev coefficients."""

    left: float
    right: float
    coefficients: Array

    @property
    def tail(self) -> float:
        """The size of the last coefficients: what the panel may be off by."""
        return float(np.abs(self.coefficients[-3:]).max())

    def __call__(self, t: Array) -> Array:
        return np.polynomial.chebyshev.chebval((2 * t - self.left - self.right) / (self.right - self.left), self.coefficients)


def _fit(f: Callable[[Array], Array], left: float, right: float, terms: int) -> Chebyshev:
    angles = (np.arange(terms) + 0.5) * math.pi / terms
    values = f((left + right) / 2 + (right - left) / 2 * np.cos(angles))
    matrix = np.cos(np.outer(np.arange(terms), angles)) * 2 / terms
    matrix[0] /= 2
    return Chebyshev(left, right, matrix @ values)


def tabulate(f: Callable[[Array], Array], left: float, right: float, floor: float = 0.0) -> list[Chebyshev]:
    """Chebyshev panels of f on [left, right], bisected until the last coefficients are rounding; sorted from the left.

    Rounding is judged against the size of f on the whole interval, or ``floor`` if that is larger.
    """
    panel = _fit(f, left, right, _TERMS[0])
    floor = max(floor, float(np.abs(panel.coefficients).max()))
    if panel.tail > _TOLERANCES[0] * floor:
        panel = _fit(f, left, right, _TERMS[1])
    if panel.tail <= _TOLERANCES[1] * floor or right - left < _NARROWEST:
        return [panel]
    middle = (left + right) / 2
    return tabulate(f, left, middle, floor) + tabulate(f, middle, right, floor)


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

    def _touching(self, first: int, second: int) -> bool:
        """Whether a jump in phi^(first) and one in psi^(second) meet on the line u/sqrt(q1) = sign v/sqrt(q2)."""
        for k, jump in zip(self.phi.kink_points, self.phi.jump_sizes(first), strict=True):
            for j, other in zip(self.psi.kink_points, self.psi.jump_sizes(second), strict=True):
                a, b = k / math.sqrt(self.q1), self.sign * j / math.sqrt(self.q2)
                if jump and other and abs(a - b) <= 1e-13 * max(abs(a), abs(b)):
                    return True
        return False

    def _power(self, order: int) -> int:
        """p such that sin(theta)^p Gamma^(order) is regular at theta = 0."""
        if self._touching(0, 0):
            return 2 * order - 1
        return 1 if order == 2 and (self._touching(1, 1) or self._touching(0, 1) or self._touching(1, 0)) else 0

    def _derivative_at(self, order: int, theta: float) -> float:
        """Gamma^(order) at c = sign cos(theta)."""
        far = 2 * math.sin(theta / 2) ** 2
        near = 1 - far
        edges = [joint_edges(self.phi, near * self.q1, self.psi, near * self.q2, self.sign, depth=44.0)]
        grid = math.sqrt(far / near) * np.array([-9.0, -6.0, -3.0, 3.0, 6.0, 9.0])
        edges += [k / math.sqrt(near * self.q1) + grid for k in self.phi.kink_points]
        edges += [self.sign * k / math.sqrt(near * self.q2) + grid for k in self.psi.kink_points]
        low, high = edges[0][0], edges[0][-1]
        nodes = normal_rule(split(np.clip(np.unique(np.concatenate(edges)), low, high), 1.0))
        first = smoothed(self.phi, order, math.sqrt(near * self.q1) * nodes.z, math.sqrt(far * self.q1))
        if self.psi is self.phi and self.q1 == self.q2 and self.sign > 0:
            second = first
        else:
            second = smoothed(self.psi, order, self.sign * math.sqrt(near * self.q2) * nodes.z, math.sqrt(far * self.q2))
        return (self.q1 * self.q2) ** (order / 2) * float(nodes.w @ (first * second))

    def _table(self, order: int) -> list[Chebyshev]:
        power = self._power(order)

        def regular(theta: Array) -> Array:
            return np.array([math.sin(t) ** power * self._derivative_at(order, t) for t in theta])

        return tabulate(
            regular, 0.0, ZONE, math.sqrt(second_moment(self.phi, self.q1) * second_moment(self.psi, self.q2)) if order > 1 else 0.0
        )

    @cached_property
    def _slope_table(self) -> list[Chebyshev]:
        return self._table(1)

    @cached_property
    def _bend_table(self) -> list[Chebyshev]:
        return self._table(2)

    @cached_property
    def _drop_table(self) -> list[Chebyshev]:
        """R with sign (Gamma(sign) - Gamma(c)) = R(theta) (2 sin(theta/2))^(2-p): positive and regular, so relatively accurate."""
        panels, power, total = [], self._power(1), 0.0
        x, w = gauss_legendre(32)
        for source in self._slope_table:
            start = total

            def integral(theta: Array, source: Chebyshev = source) -> Array:
                half = (theta - source.left) / 2
                t = source.left + half[:, None] * (1 + x)
                return half * ((source(t) * np.sin(t) ** (1 - power)) @ w)

            def ratio(theta: Array, start: float = start, integral: Callable[[Array], Array] = integral) -> Array:
                return (start + integral(theta)) / (2 * np.sin(theta / 2)) ** (2 - power)

            panels.append(_fit(ratio, source.left, source.right, source.coefficients.size))
            total += float(integral(np.array([source.right]))[0])
        return panels

    def drop(self, theta: Array) -> Array:
        """Gamma(sign) - Gamma(sign cos theta)."""
        return self.sign * evaluate(self._drop_table, theta) * (2 * np.sin(theta / 2)) ** (2 - self._power(1))

    def derivative(self, order: int, theta: Array) -> Array:
        """Gamma^(order) at c = sign cos(theta), order 1 or 2; infinite at theta = 0 where corners meet."""
        power = self._power(order)
        regular = evaluate(self._slope_table if order == 1 else self._bend_table, theta)
        with np.errstate(divide="ignore"):
            return regular / np.sin(theta) ** power if power else regular


# --- the pair map --------------------------------------------------------------------------------------------------------------------


def _needed(products: Array, size: float) -> int:
    """How many terms of sum a_n c^n matter to its value and first two derivatives anywhere on [-1, 1]."""
    heights = np.abs(products) * np.arange(1, products.size + 1) ** 2
    return int(np.count_nonzero(np.maximum.accumulate(heights[::-1]) > 1e-17 * size))


class PairMap:
    """Gamma(c) = E[phi(sqrt(q1) x) psi(sqrt(q2) (c x + sqrt(1-c^2) y))] and its Taylor coefficients, for any c in [-1, 1]."""

    def __init__(self, phi: Profile, q1: float, psi: Profile, q2: float) -> None:
        self.phi, self.q1, self.psi, self.q2 = phi, q1, psi, q2
        self.same = phi == psi and q1 == q2
        first, second = hermite(phi, q1), hermite(psi, q2)
        terms = min(first.coefficients.size, second.coefficients.size)
        products = first.coefficients[:terms] * second.coefficients[:terms]
        needed = _needed(products, math.sqrt(first.variance * second.variance))
        self.constant = first.mean * second.mean
        self.products = products[:needed]
        self.complete = first.complete or second.complete or needed < terms - 32
        self._tails = (first.tail, second.tail)

    @cached_property
    def at_one(self) -> float:
        """Gamma(1)."""
        return pair_moment(self.phi, self.q1, self.psi, self.q2)

    @cached_property
    def at_minus_one(self) -> float:
        """Gamma(-1)."""
        return pair_moment(self.phi, self.q1, self.psi, self.q2, sign=-1)

    @cached_property
    def _missing(self) -> float:
        """Gamma(1) minus the sum of the series kept; through variances where that avoids a cancellation."""
        if self.complete:
            return 0.0
        if self.same:
            return self._tails[0]
        return self.at_one - self.constant - float(self.products.sum())

    @cached_property
    def _matrix(self) -> Array:
        """Columns: coefficients in c^0, c^1, ... of (Gamma(1) - Gamma(c) - missing)/(1 - c), of Gamma' and of Gamma''/2."""
        n = np.arange(1, self.products.size + 1)
        suffix = np.cumsum(self.products[::-1])[::-1]
        slope = n * self.products
        bend = np.append((n * (n - 1) / 2 * self.products)[1:], 0.0)
        return np.stack([suffix, slope, bend], axis=1)

    @cached_property
    def _upper(self) -> EndZone:
        return EndZone(self.phi, self.q1, self.psi, self.q2, 1)

    @cached_property
    def _lower(self) -> EndZone:
        return EndZone(self.phi, self.q1, self.psi, self.q2, -1)

    def taylor(self, gap: Array, order: int) -> list[Array]:
        """[Gamma(1) - Gamma(c), Gamma'(c), Gamma''(c)/2, ...] up to ``order`` at c = 1 - gap, gap a flat array in [0, 2].

        Raises KcalcError for orders above 2 where the Hermite series cannot deliver them.
        """
        out = [np.empty_like(gap) for _ in range(order + 1)]
        theta, rest = NUMPY.angle(gap), NUMPY.angle(2 - gap)
        upper = np.zeros(gap.shape, dtype=bool) if self.complete else theta < ZONE
        lower = np.zeros(gap.shape, dtype=bool) if self.complete else rest < ZONE
        inside = ~(upper | lower)
        if order > 2 and not inside.all():
            raise KcalcError(
                f"Taylor coefficients of order {order} > 2 of {self.phi.name!r} are available for |c| < {math.cos(ZONE):.2f} only"
            )
        for here, part in ((inside, self._inside), (upper, self._near_one), (lower, self._near_minus_one)):
            if here.any():
                angle = rest[here] if part == self._near_minus_one else theta[here]
                for target, values in zip(out, part(gap[here], angle, order), strict=True):
                    target[here] = values
        return out

    def _near_one(self, gap: Array, theta: Array, order: int) -> list[Array]:
        zone = self._upper
        drop = zone.drop(theta)
        return [drop, *(zone.derivative(i, theta) / i for i in range(1, order + 1))]

    def _near_minus_one(self, gap: Array, theta: Array, order: int) -> list[Array]:
        zone = self._lower
        drop = zone.drop(theta) + (self.at_one - self.at_minus_one)
        return [drop, *(zone.derivative(i, theta) / i for i in range(1, order + 1))]

    def _inside(self, gap: Array, theta: Array, order: int) -> list[Array]:
        c = 1 - gap
        terms = self._terms_needed(float(np.abs(c).max()))
        columns = self._matrix[:terms, : min(order, 2) + 1]
        chunks = [_powers(part, terms) @ columns for part in np.array_split(c, max(1, c.size * terms // 2_000_000))]
        values = np.concatenate(chunks)
        drop = gap * values[:, 0] + self._missing
        return [drop, *(values[:, i] for i in range(1, min(order, 2) + 1)), *(self._coefficient(c, k) for k in range(3, order + 1))]

    def _terms_needed(self, largest: float) -> int:
        if largest >= 0.999 or self.products.size == 0:
            return self.products.size
        return min(self.products.size, 16 + math.ceil(-46 / math.log(max(largest, 1e-6))))

    def _coefficient(self, c: Array, k: int) -> Array:
        """Gamma^(k)(c)/k! = sum_n binom(n, k) a_n c^(n-k)."""
        n = np.arange(k, self.products.size + 1)
        if n.size == 0:
            return np.zeros_like(c)
        binomial = np.cumprod(np.concatenate([[1.0], n[1:] / (n[1:] - k)]))
        terms = binomial * self.products[k - 1 :]
        largest = float(np.abs(c).max())
        bound = binomial[-1] * largest ** (n.size - 1) * math.sqrt(self._tails[0] * self._tails[1]) / max(1 - largest, 1e-3)
        total = _powers(c, n.size) @ terms
        if bound > 1e-13 * max(float(np.abs(terms).max()), 1e-300):
            raise KcalcError(f"Taylor coefficient {k} of {self.phi.name!r} at |c| = {largest:.3f} needs more Hermite terms than are kept")
        return total


def _powers(c: Array, n: int) -> Array:
    """c^0 ... c^(n-1), shape (c.size, n)."""
    out = np.empty((c.size, n))
    if n:
        out[:, 0] = 1.0
        out[:, 1:] = c[:, None]
        np.multiply.accumulate(out, axis=1, out=out)
    return out


@lru_cache(maxsize=512)
def pair_map(phi: Profile, q1: float, psi: Profile, q2: float) -> PairMap:
    """The cached :class:`PairMap` of (phi, q1) and (psi, q2)."""
    return PairMap(phi, q1, psi, q2)
