"""Chains of layers: atoms from dimension counts, and equal layers by the S-transform.

For a chain of free square factors, the S-transform of J^T J is the product of the S-transforms of
the factors. A layer whose squared slopes d^2 have the distribution mu and whose weights have
variance s has S_layer(m) = S_W(m) S_mu(m). Here S_W is 1 / (s (1 + m)) for Gaussian weights and 1 /
s for orthogonal weights, and S_mu(m) = chi (1 + m) / m, where chi is the inverse of psi_mu(y) = E y
d^2 / (1 - y d^2). At psi = m = psi_mu(y), z = (1 + m) / (m S(m)^L) is therefore a function of the
single variable y [Pennington et al. 2018].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..foundation.process_state import cached_property
from .dyson import Slopes, check_mean
from .groups import Grouped, Weights
from .spectrum import Edge

Array = Any
ROUNDED = 1e-12  # smaller fractions are rounding errors


def links_of(network: Grouped, slopes: Any) -> list[tuple[Weights, Slopes]] | None:
    """Return [(weights, slopes after the weights)] along a chain, or None for other networks.

    Slopes that act on the input before the first weights are not included.
    """
    if any(len(g.sources) != 1 or len(g.sinks) != 1 for g in network.groups):
        return None
    after = {
        g.sources[0]: (g.sinks[0][0], law) for g, law in zip(network.groups, slopes, strict=True)
    }
    by_read = {edge.reads: edge for edge in network.weights}
    if len(after) != len(network.groups) or len(by_read) != len(network.weights):
        return None
    sink, _ = after[network.start]
    found = []
    while sink != network.end:
        edge = by_read[sink]
        sink, law = after[edge.node]
        found.append((edge, law))
    return found if len(found) == len(network.weights) else None


def chain_of(
    network: Grouped, slopes: Sequence[Slopes]
) -> tuple[list[tuple[Weights, Slopes]], Slopes] | None:
    """Return (:func:`links_of`, slopes that act on the input), or None if there is no chain."""
    links = links_of(network, slopes)
    if links is None:
        return None
    first = next(k for k, g in enumerate(network.groups) if g.sources[0] == network.start)
    return links, slopes[first]


def zero_mass(links: list[tuple[Weights, Slopes]], first: Slopes) -> float:
    """Return the fraction of input channels that a chain maps to 0: 1 minus its smallest rank."""
    width, rank = 1.0, _rank(first)
    for edge, law in links:
        width *= edge.ratio
        rank = min(rank, width * _rank(law))
    lost = 1 - rank
    return lost if lost > ROUNDED else 0.0


def _rank(law: Slopes) -> float:
    return float(law.shares[law.values[:, 0, 0] != 0].sum())


def atoms(links: list[tuple[Weights, Slopes]], first: Slopes) -> dict[float, float]:
    """Return {s^2 > 0: the fraction of input channels with this value} for a chain.

    Subspaces of dimensions k and l in general position intersect in k + l - n dimensions. The same
    count gives the number of equal singular values that remain after multiplication by a free
    factor. Gaussian weights have no equal singular values.
    """
    found = _levels(first)
    width = 1.0  # relative to the width of the input
    for edge, law in links:
        if not edge.orthogonal:
            return {}
        size = edge.variance * max(1.0, edge.ratio)
        lost = max(0.0, 1 - edge.ratio) * width  # a wide-to-narrow layer is a projection
        width *= edge.ratio
        found = {x * size: k - lost for x, k in found.items() if k - lost > ROUNDED}
        merged: dict[float, float] = {}
        for x, k in found.items():
            for level, share in _levels(law).items():
                both = k + share * width - width
                if both > ROUNDED:
                    merged[x * level] = merged.get(x * level, 0.0) + both
        found = merged
    return dict(sorted(found.items()))


def _levels(law: Slopes) -> dict[float, float]:
    """Return {d^2 > 0: its probability}."""
    found: dict[float, float] = {}
    for d, share in zip(law.values[law.flat, 0, 0], law.shares[law.flat], strict=True):
        if d != 0:
            level = float(f"{d * d:.12g}")
            found[level] = found.get(level, 0.0) + float(share)
    return found


def equal_layers(
    links: list[tuple[Weights, Slopes]], first: Slopes, vanishing: bool
) -> EqualLayers | None:
    """Return the chain if it has equal layers, up to constant slopes, or None if it does not."""
    if any(edge.ratio != 1 for edge, _ in links) or len(first.shares) > 1:
        return None
    log_scale = 2 * math.log(abs(first.values[0, 0, 0]) or math.nan)
    laws: list[Slopes] = []
    for edge, law in links:
        log_scale += math.log(edge.variance)
        if len(law.shares) == 1 and law.values[0, 0, 0] != 0:
            log_scale += 2 * math.log(abs(law.values[0, 0, 0]))
        else:
            laws.append(law)
    if not laws:
        laws = [Slopes(np.ones((1, 1, 1)), np.ones(1), np.ones(1, bool))]
    if not math.isfinite(log_scale) or not all(_alike(law, laws[0]) for law in laws):
        return None
    gaussian = sum(not edge.orthogonal for edge, _ in links)
    return EqualLayers(len(laws), gaussian, log_scale, laws[0], vanishing)


def _alike(one: Slopes, other: Slopes) -> bool:
    return one.values.shape == other.values.shape and all(
        np.allclose(a, b, rtol=1e-12, atol=1e-14)
        for a, b in ((one.values, other.values), (one.shares, other.shares))
    )


class EqualLayers:
    """A square chain with ``count`` equal slope distributions and ``gaussian`` Gaussian weights.

    ``log_scale`` is the logarithm of the product of all variances and constant slopes. ``mean`` is
    E s^2. With m = psi_mu(y), log z = (1 + gaussian - count) log(1 + m) + (count - 1) log m - count
    log y + log_scale.
    """

    def __init__(
        self, count: int, gaussian: int, log_scale: float, slopes: Slopes, vanishing: bool
    ) -> None:
        self.count, self.gaussian, self.log_scale = count, gaussian, log_scale
        self.vanishing = vanishing
        self.squares, self.shares = slopes.values[:, 0, 0] ** 2, slopes.shares
        with np.errstate(all="ignore"):
            size = log_scale + count * np.log(self.shares @ self.squares)
            self.mean = check_mean(float(np.exp(size)))

    def psi(self, y: Any) -> tuple[Any, Any]:
        """Return psi_mu(y) and its derivative."""
        one = 1 / (1 - y * self.squares)
        return self.shares @ (y * self.squares * one), self.shares @ (self.squares * one * one)

    def log_z(self, y: Any) -> tuple[Any, Any]:
        """Return log z at y, continuous in the lower half-plane, and d log z / dy."""
        m, slope = self.psi(y)
        outer = 1 + self.gaussian - self.count
        value = (
            outer * np.log(1 + m)
            + (self.count - 1) * np.log(m)
            - self.count * np.log(y)
            + self.log_scale
        )
        return value, (outer / (1 + m) + (self.count - 1) / m) * slope - self.count / y

    @cached_property
    def top(self) -> Edge:
        """The largest s^2: the minimum of z over 0 < y < 1 / max d^2."""
        from scipy.optimize import brentq

        end = 1 / float(self.squares.max())
        high = end * (1 - 1e-11)
        if self.log_z(high)[1] < 0:  # z decreases up to psi = infinity
            mass = 1 - self.count * float(self.shares[self.squares < (1 - 1e-12) / end].sum())
            size = self.log_scale - self.count * math.log(end)
            return Edge(math.exp(size), 0.0, max(mass, 0.0))
        y: Any = brentq(lambda y: self.log_z(y)[1] * y, end * 1e-9, high, xtol=1e-16 * end)
        z, h = math.exp(self.log_z(y)[0]), 1e-4 * min(y, end - y)
        bend = (self.log_z(y + h)[1] - self.log_z(y - h)[1]) / (2 * h)
        return Edge(z, z * bend / self.psi(y)[1] ** 2, 0.0)

    @property
    def zero_mass(self) -> float:
        """The fraction of singular values that are 0."""
        return float(self.shares[self.squares == 0].sum())

    @cached_property
    def bottom(self) -> Edge:
        """The smallest s^2: the maximum of z over y > 1 / min d^2, where psi < -1."""
        from scipy.optimize import minimize_scalar

        least = float(self.squares.min())
        if self.gaussian or self.vanishing or least == 0:
            return Edge(0.0, 0.0, self.zero_mass)

        def log_z(share: float) -> float:
            y = 1 / (least * share)
            m, _ = self.psi(y)
            return float(
                (1 - self.count) * (math.log(-1 - m) - math.log(-m))
                - self.count * math.log(y)
                + self.log_scale
            )

        end = self.log_scale + self.count * math.log(least)
        found: Any = minimize_scalar(
            lambda share: -log_z(share),
            bounds=(0.0, 1.0),
            method="bounded",
            options={"xatol": 1e-12},
        )
        return Edge(math.exp(max(-float(found.fun), end)), 0.0, 0.0)

    def density(self, points: Array) -> Array:
        """Return the density of s^2 at points > 0, excluding atoms."""
        out = np.zeros(points.size)
        y = 0.0
        for k in np.argsort(points)[::-1]:
            x = float(points[k])
            if x >= self.top.z:
                continue
            y = self._reached(x, y)
            m = self.psi(y)[0]
            out[k] = max(0.0, -m.imag) / (math.pi * x)
        return out

    def _reached(self, x: float, y: Any) -> Any:
        """Return y with z(y) = x on the real axis, continued from large z or from an earlier y."""
        if y:
            found = self._newton(y, math.log(x))
            if found is not None and abs(found - y) < 0.2 * abs(y) and found.imag < -1e-9 * abs(y):
                return found
        log_far = math.log(self.top.z) + 7
        log_here = math.log(x)
        angle = 1j * math.atan(1.0)
        y = 1e-3 / self.squares.max() * np.exp(-angle)
        y = self._path(y, self.log_z(y)[0], log_far + angle)
        y = self._path(y, log_far + angle, log_here + angle)
        return self._path(y, log_here + angle, log_here)

    def _path(self, y: Any, start: Any, end: Any) -> Any:
        """Continue y(log z) along a line; at an edge, stop as close to it as possible."""
        done, step = 0.0, 0.25
        while done < 1:
            share = min(1.0, done + step)
            slope = self.log_z(y)[1]
            guess = y + (share - done) * (end - start) / slope
            found = self._newton(guess, start + share * (end - start))
            if found is None or abs(found - y) > 0.3 * abs(y):
                step /= 2
                if step < 1e-7:
                    return y
                continue
            y, done, step = found, share, 1.5 * step
        return y

    def _newton(self, y: Any, target: Any) -> Any:
        for _ in range(12):
            value, slope = self.log_z(y)
            move = (value - target) / slope
            y = y - move
            if not np.isfinite(y) or y.imag > 1e-9 * abs(y):
                return None
            if abs(move) < 1e-14 * abs(y):
                return y
        return y if abs(move) < 1e-10 * abs(y) else None

    def moments(self, count: int) -> Array:
        """Return E s^2, ..., E s^(2 count), by reversion of the power series of psi."""
        n = count + 1
        powers = np.array([self.shares @ self.squares**k for k in range(1, n)])
        chi = _reverted(np.concatenate([[0.0], powers / powers[0] ** np.arange(1, n)]))
        # chi_mu(m) = chi(m) / powers[0]; w(m) = chi_total
        ratio = _power(chi[1:], self.count, count)
        outer = _power(np.array([1.0, 1.0]), self.count - self.gaussian - 1, count)
        whole = np.convolve(ratio, outer)[:count]
        found = _reverted(np.concatenate([[0.0], whole]))
        return found[1:] * self.mean ** np.arange(1.0, n)


def _power(series: Array, exponent: int, terms: int) -> Array:
    """Return the first terms of a power of a series that starts with 1."""
    a = np.zeros(terms)
    a[: min(terms, len(series))] = series[:terms]
    out = np.zeros(terms)
    out[0] = 1.0
    for k in range(1, terms):
        i = np.arange(1, k + 1)
        out[k] = np.sum((exponent * i - (k - i)) * a[i] * out[k - i]) / k
    return out


def _reverted(series: Array) -> Array:
    """Return the inverse of the series x + a_2 x^2 + ..., by Lagrange's formula."""
    n = len(series)
    out = np.zeros(n)
    for k in range(1, n):
        out[k] = _power(series[1:], -k, n)[k - 1] / k
    return out
