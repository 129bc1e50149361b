"""Functions made of polynomials times exponentials between kinks, and their Gaussian expectations
in as many digits as wanted.

Under a Gaussian every piece has moments in closed form (erfc and a recurrence). Derivatives in the
mean, the correlation or q fall on the density, as Hermite polynomials: what jumps contribute needs
no rule of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import flint
import numpy as np
from flint import arb, arb_poly

Array = np.ndarray[Any, Any]


@contextmanager
def digits(n: int) -> Iterator[None]:
    before, flint.ctx.dps = flint.ctx.dps, n
    try:
        yield
    finally:
        flint.ctx.dps = before


@dataclass(frozen=True)
class Pieces:
    """sum_j parts[i][j] x^j exp(rates[i] x) on the i-th piece.

    What kcalc.gaussian.expectations asks of a function.
    """

    name: str
    kink_points: tuple[float, ...]
    parts: tuple[tuple[float, ...], ...]
    rates: tuple[float, ...] = ()

    def pieces(self) -> list[tuple[tuple[float, ...], float]]:
        """(coefficients, rate) of every piece."""
        return list(zip(self.parts, self.rates or (0.0,) * len(self.parts), strict=True))

    def _derived(self, n: int) -> list[tuple[np.polynomial.Polynomial, float]]:
        """The n-th derivative of every piece."""
        pieces = [(np.polynomial.Polynomial(p), b) for p, b in self.pieces()]
        for _ in range(n):
            pieces = [(poly.deriv() + rate * poly, rate) for poly, rate in pieces]
        return pieces

    def numeric(self, n: int = 0) -> Callable[[Array], Array]:
        pieces = self._derived(n)

        def values(x: Array) -> Array:
            x = np.asarray(x, dtype=float)
            piece = np.searchsorted(np.array(self.kink_points), x, side="right")
            here = [piece == i for i in range(len(pieces))]
            return np.piecewise(
                x, here, [lambda v, p=p, b=b: p(v) * np.exp(b * v) for p, b in pieces]
            )

        return values

    def jump_sizes(self, n: int) -> tuple[float, ...]:
        sides = zip(self.kink_points, pairwise(self._derived(n)), strict=True)
        return tuple(
            float(right(k) * math.exp(b * k) - left(k) * math.exp(a * k))
            for k, ((left, a), (right, b)) in sides
        )

    def exact(self, x: Any) -> Any:
        """The value at an arb, right-continuous."""
        part, rate = self.pieces()[sum(bool(x >= k) for k in self.kink_points)]
        return arb_poly([arb(a) for a in part])(x) * (arb(rate) * x).exp()


@dataclass(frozen=True)
class Given:
    """A smooth function by its first derivatives."""

    name: str
    derivatives: tuple[Callable[[Array], Array], ...]
    landmarks: tuple[tuple[float, float], ...] = ()
    kink_points: tuple[float, ...] = ()
    numeric_only: bool = False

    def numeric(self, n: int = 0) -> Callable[[Array], Array]:
        return self.derivatives[n]

    def jump_sizes(self, n: int) -> tuple[float, ...]:
        return (0.0,) * len(self.kink_points)


def wave(frequency: float, phase: float) -> Given:
    """cos(w x + phase)."""

    def derivative(n: int, x: Array) -> Array:
        return frequency**n * np.cos(frequency * x + phase + n * math.pi / 2)

    return Given("wave", tuple(partial(derivative, n) for n in range(5)))


def density(z: Any) -> Any:
    return (-z * z / 2).exp() / (2 * arb.pi()).sqrt()


def _share(low: Any, high: Any) -> Any:
    """P(low < z < high), an end of None being infinite."""
    if low is not None and low > 0:  # tails of the other side, whose digits do not cancel
        low, high = None if high is None else -high, -low
    root = arb(2).sqrt()
    ends = arb(0) if low is None else (-low / root).erfc()
    return ((arb(2) if high is None else (-high / root).erfc()) - ends) / 2


def _truncated(low: Any, high: Any, count: int) -> list[Any]:
    """E z^j over low < z < high for j < count."""
    out = [_share(low, high)]
    at_low, at_high = (arb(0) if end is None else density(end) for end in (low, high))
    for j in range(1, count):
        out.append((j - 1) * out[j - 2] + at_low - at_high if j > 1 else at_low - at_high)
        at_low, at_high = (
            part if end is None else part * end for part, end in ((at_low, low), (at_high, high))
        )
    return out


@lru_cache(maxsize=1024)
def hermite(n: int) -> arb_poly:
    """He_n, with whole coefficients."""
    if n < 2:
        return arb_poly([0, 1]) if n else arb_poly([1])
    return arb_poly([0, 1]) * hermite(n - 1) - (n - 1) * hermite(n - 2)


def weighted(f: Pieces, m: Any, sigma: Any, factors: Sequence[arb_poly]) -> list[Any]:
    """E[f(m + sigma y) g(y)] for each polynomial g of ``factors``."""
    m, sigma, totals = arb(m), arb(sigma), [arb(0)] * len(factors)
    ends = [None, *((arb(k) - m) / sigma for k in f.kink_points), None]
    for (low, high), (part, rate) in zip(pairwise(ends), f.pieces(), strict=True):
        b = arb(rate)
        shift = b * sigma  # y = t + shift completes the square
        inside = arb_poly([arb(a) for a in part])(arb_poly([m + sigma * shift, sigma]))
        scale = (b * m + shift * shift / 2).exp()
        moved = [inside * g(arb_poly([shift, 1])) for g in factors]
        moments = _truncated(
            *(None if end is None else end - shift for end in (low, high)), max(map(len, moved))
        )
        for i, g in enumerate(moved):
            terms = zip(g.coeffs(), moments, strict=False)
            totals[i] += scale * sum((a * t for a, t in terms), arb(0))
    return totals


@lru_cache(maxsize=8)
def _legendre(n: int, dps: int) -> list[tuple[Any, Any]]:
    with digits(dps):
        return [arb.legendre_p_root(n, k, weight=True) for k in range(n)]


def _nodes(cuts: list[Any]) -> Iterator[tuple[Any, Any]]:
    """(node, weight) of a rule for Gaussian integrals over the intervals between cuts."""
    for low, high in pairwise(sorted(cuts, key=lambda e: e.mid())):
        middle, half = (low + high) / 2, (high - low) / 2
        for node, weight in _legendre(28, flint.ctx.dps) if half > 0 else ():
            x = middle + half * node
            yield x, half * weight * density(x)


def plane(phi: Pieces, q1: float, psi: Pieces, q2: float, sign: int, theta: float) -> list[Any]:
    """Gamma, Gamma' and Gamma'' at c = sign cos(theta), 0 < theta < pi.

    Over u, of the mean of psi given u.

    With m = c r2 x, v = c r2 x + s r2 y: d/dc = r2 x d/dm - c r2^2 d^2/dm^2 of the mean,
    derivatives in m being Hermite weights.
    """
    t = arb(theta)
    c, s, r1, r2 = sign * t.cos(), t.sin(), arb(q1).sqrt(), arb(q2).sqrt()
    edges = {float(k / r1) for k in phi.kink_points} | {float(x) for x in range(-14, 15, 2)}
    for k in psi.kink_points:
        edges |= {float(k / (c * r2) + i * s) for i in range(-16, 17, 2)}
    kinks = [arb(k) / r1 for k in phi.kink_points]
    cuts = [*(arb(e) for e in edges if all(abs(e - float(k)) > 1e-30 for k in kinks)), *kinks]
    totals = [arb(0)] * 3
    factors = [hermite(n) for n in range(5)]
    for x, weight in _nodes(cuts):
        outer = weight * phi.exact(r1 * x)
        means = weighted(psi, c * r2 * x, s * r2, factors)
        m = [mean / (s * r2) ** n for n, mean in enumerate(means)]
        v, w = r2 * x, c * r2**2
        slope = v * m[1] - w * m[2]
        bend = v**2 * m[2] - 2 * w * v * m[3] + w**2 * m[4] - r2**2 * m[2]
        for i, part in enumerate((m[0], slope, bend)):
            totals[i] += outer * part
    return totals


def at_end(phi: Pieces, q1: float, psi: Pieces, q2: float, sign: int) -> Any:
    """E[phi(r1 x) psi(sign r2 x)]."""
    r1, r2 = arb(q1).sqrt(), sign * arb(q2).sqrt()
    points = [
        *(arb(x) for x in range(-14, 15)),
        *(k / r1 for k in phi.kink_points),
        *(k / r2 for k in psi.kink_points),
    ]
    values = (weight * phi.exact(r1 * x) * psi.exact(r2 * x) for x, weight in _nodes(points))
    return sum(values, arb(0))


STEPS = Pieces("steps", (-0.5, 0.75), ((-0.5, 0.25), (0.5,), (-0.25, 1.0)))
BENT = Pieces("bent", (-0.5, 1.0), ((0.5, 0.0, 1.0), (0.375, -0.75), (-0.875, 0.5)))
MIXED = Pieces("mixed", (0.25, 1.5), ((0.25, -0.5, 0.0, 0.125), (-0.5, 0.5, 0.25), (-0.3125, 0.75)))
MIRROR = Pieces("mirror", (-0.75, 0.5), ((1.5, 1.0), (-0.1875, -1.25), (-0.5, 0.125, 0.5)))
ELU = Pieces("elu", (0.0,), ((1.0,), (1.0, 1.5)), (1.0, 0.0))
STEP = Pieces("step", (0.5,), ((-0.25,), (1.0,)))
