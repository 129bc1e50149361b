"""E[phi(u) phi(v)] and its first two derivatives in c by brute force in 80-bit numbers, for any c
in [-1, 1].

u = sqrt(q1) (A a + B b), v = sqrt(q2) (A a - B b) with independent normals a, b, A = sqrt((1+c)/2),
B = sqrt((1-c)/2); c < 0 is reflected onto c > 0. The inner a range is split where u or v meets a
kink (a line in b), the outer one where two such lines cross; panels are graded around the complex
singularities of phi. Derivatives in c fall on phi:

    Gamma^(i) = (q1 q2)^(i/2) E[phi^(i)(u) phi^(i)(v)],

phi', phi'' being distributions: what jumps of phi and phi' contribute is added in closed form (two
deltas) or as a one-dimensional integral (a delta and a smooth function). Nothing here comes from
kcalc. Needs a machine whose long double has 64 bits of mantissa.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from flint import arb, ctx

Array = np.ndarray[Any, Any]
Real = np.longdouble
PI = Real("3.14159265358979323846264338327950288")
INFINITY = Real("inf")
ZERO, ONE = Real(0), Real(1)
REACH = 10.5
WIDEST = 3.0  # a panel in z on which exp(-z^2/2) is resolved by any rule used here
GRADES = (0.6, 2.0, 5.5, 14.0, 36.0, 90.0, 225.0)  # panel ends around a singularity at distance 1
BLOCK = 40_000  # nodes at once: what fits the cache


@dataclass(frozen=True)
class Function:
    """phi with phi', phi'' on each smooth piece.

    pieces: one function x -> (phi, phi', phi'') for each interval between kinks. jumps0, jumps1: of
    phi and of phi' at each kink. poles: (x0, d): a complex singularity (or fast growth) of some
    piece at x0 + i d.
    """

    pieces: tuple[Callable[[Array], tuple[Array, ...]], ...]
    kinks: tuple[float, ...] = ()
    jumps0: tuple[Any, ...] = ()
    jumps1: tuple[Any, ...] = ()
    poles: tuple[tuple[float, float], ...] = ()

    def __call__(self, x: Array) -> tuple[Array, ...]:
        if not self.kinks:
            return self.pieces[0](x)
        conditions = [x < k for k in self.kinks]
        parts = [piece(x) for piece in self.pieces]
        return tuple(
            np.select(conditions, [part[i] for part in parts[:-1]], parts[-1][i]) for i in range(3)
        )

    def centres(self) -> list[tuple[float, float]]:
        """Kinks (distance 0) and poles."""
        return [*((k, 0.0) for k in self.kinks), *self.poles]

    def jumps(self, order: int) -> tuple[Any, ...]:
        found = self.jumps1 if order else self.jumps0
        return found or (ZERO,) * len(self.kinks)

    def reflected(self) -> Function:
        """x -> phi(-x)."""

        def flip(
            piece: Callable[[Array], tuple[Array, ...]],
        ) -> Callable[[Array], tuple[Array, ...]]:
            def mirrored(x: Array) -> tuple[Array, ...]:
                f, slope, bend = piece(-x)
                return f, -slope, bend

            return mirrored

        return Function(
            tuple(flip(piece) for piece in self.pieces[::-1]),
            tuple(-k for k in self.kinks[::-1]),
            tuple(-j for j in self.jumps0[::-1]),
            tuple(self.jumps1[::-1]),
            tuple((-x, d) for x, d in self.poles),
        )


@lru_cache(maxsize=8)
def legendre(n: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on [-1, 1] to the last bit of a long double."""
    before, ctx.prec = ctx.prec, 160
    try:
        pairs = [arb.legendre_p_root(n, k, weight=True) for k in range(n)]
        x, w = ([Real(arb(pair[i].mid()).str(30, radius=False)) for pair in pairs] for i in (0, 1))
    finally:
        ctx.prec = before
    return np.array(x, dtype=Real), np.array(w, dtype=Real)


def density(x: Any) -> Any:
    return np.exp(-x * x / 2) / np.sqrt(2 * PI)


def fixed_edges(reach: float = REACH) -> list[float]:
    parts = math.ceil(2 * reach / WIDEST)
    return [-reach + 2 * reach * i / parts for i in range(parts + 1)]


def graded(distance: float) -> list[float]:
    """Panel ends around a singularity at ``distance`` from the axis, until ordinary panels are fine
    enough.
    """
    if not distance:
        return [0.0]
    return [
        sign * grade * distance
        for grade in GRADES
        for sign in (1, -1)
        if grade * distance < 2 * REACH
    ]


def panels(edges: Array, n: int) -> tuple[Array, Array]:
    """Nodes and weights on the panels between sorted edges along the last axis.

    shapes (..., panels * n).
    """
    x, w = legendre(n)
    middle, half = (edges[..., 1:] + edges[..., :-1]) / 2, (edges[..., 1:] - edges[..., :-1]) / 2
    shape = (*edges.shape[:-1], -1)
    return (middle[..., None] + half[..., None] * x).reshape(shape), (half[..., None] * w).reshape(
        shape
    )


def line(edges: list[Any], n: int, reach: float = REACH) -> tuple[Array, Array]:
    """Normal-weighted rule on [-reach, reach] split at ``edges``."""
    every = np.sort(
        np.array([*fixed_edges(reach), *(e for e in edges if abs(e) < reach)], dtype=Real)
    )
    x, w = panels(every, n)
    return x, w * density(x)


@dataclass(frozen=True)
class Pair:
    """phi(u), psi(v) with variances q1, q2 and correlation 1 - gap in [0, 1]."""

    phi: Function
    psi: Function
    q1: Any
    q2: Any
    gap: Any
    nodes: int = 20

    @property
    def r1(self) -> Any:
        return np.sqrt(self.q1)

    @property
    def r2(self) -> Any:
        return np.sqrt(self.q2)

    @property
    def c(self) -> Any:
        return 1 - self.gap

    @property
    def sine(self) -> Any:
        return np.sqrt(self.gap * (2 - self.gap))

    @property
    def halves(self) -> tuple[Any, Any]:
        return np.sqrt(1 - self.gap / 2), np.sqrt(self.gap / 2)

    # --- E[phi^(i)(u) psi^(i)(v)] away from the kinks ---------------------------------------------

    def _outer(self) -> tuple[Array, Array]:
        _, B = self.halves
        if B == 0:
            return np.zeros(1, dtype=Real), np.ones(1, dtype=Real)
        edges: list[Any] = []
        for x1, d1 in self.phi.centres():
            for x2, d2 in self.psi.centres():
                centre = (x1 / self.r1 - x2 / self.r2) / (2 * B)
                if abs(centre) < 3 * REACH:
                    edges += [
                        centre + offset
                        for offset in graded(float((d1 / self.r1 + d2 / self.r2) / (2 * B)))
                    ]
        return line(edges, self.nodes)

    def _inner_edges(self, b: Array) -> Array:
        A, B = self.halves
        columns = [np.broadcast_to(Real(e), b.shape) for e in fixed_edges()]
        for function, root, side in ((self.phi, self.r1, -1), (self.psi, self.r2, 1)):
            for x, d in function.centres():
                centre = (x / root + side * B * b) / A
                columns += [centre + Real(offset) for offset in graded(float(d / root / A))]
        return np.sort(np.clip(np.stack(columns, axis=1), -REACH, REACH), axis=1)

    def smooth(self, orders: tuple[int, ...]) -> list[Any]:
        """E[phi^(i)(u) psi^(i)(v)] for i in orders, without what jumps add."""
        A, B = self.halves
        b, wb = self._outer()
        edges = self._inner_edges(b)
        rows = max(1, BLOCK // (edges.shape[1] * self.nodes))
        parts: list[list[Any]] = [[] for _ in orders]
        for start in range(0, b.size, rows):
            here = slice(start, start + rows)
            a, wa = panels(edges[here], self.nodes)
            wa = wa * density(a) * wb[here, None]
            common, difference = A * a, (B * b[here])[:, None]
            f = self.phi(self.r1 * (common + difference))
            g = self.psi(self.r2 * (common - difference))
            for part, i in zip(parts, orders, strict=True):
                part.append((wa * f[i] * g[i]).sum())
        return [np.sum(np.array(part)) for part in parts]

    # --- deltas -----------------------------------------------------------------------------------

    def swapped(self) -> Pair:
        return replace(self, phi=self.psi, psi=self.phi, q1=self.q2, q2=self.q1)

    def conditional(self, at: float, order: int) -> Any:
        """E[psi^(order)(v) | u = at], smooth part."""
        mean, spread = self.c * at * self.r2 / self.r1, self.r2 * self.sine
        if spread == 0:
            return np.mean(
                [
                    self.psi(np.array([mean * (1 + side * Real(1e-18))], dtype=Real))[order][0]
                    for side in (1, -1)
                ]
            )
        edges: list[Any] = []
        for x, d in self.psi.centres():
            edges += [(x - mean) / spread + offset for offset in graded(float(d / spread))]
        y, w = line(edges, self.nodes)
        return (w * self.psi(mean + spread * y)[order]).sum()

    def single_delta(self, order: int) -> Any:
        """Jumps of phi^(order-1) against the smooth part of psi^(order)."""
        total = ZERO
        for k, jump in zip(self.phi.kinks, self.phi.jumps(order - 1), strict=True):
            if jump:
                total += jump * density(k / self.r1) / self.r1 * self.conditional(k, order)
        return total

    def double_delta(self, order: int) -> Any:
        """E of sum_j j_jk delta^(j)(u - k) times the same of v.

        The bivariate density's derivatives, j < order.
        """
        total = ZERO
        for index1, k1 in enumerate(self.phi.kinks):
            for index2, k2 in enumerate(self.psi.kinks):
                for i in range(order):
                    for j in range(order):
                        weight = (
                            self.phi.jumps(order - 1 - i)[index1]
                            * self.psi.jumps(order - 1 - j)[index2]
                        )
                        if weight:
                            total += weight * self._density(k1, k2, i, j)
        return total

    def _density(self, x: float, y: float, i: int, j: int) -> Any:
        """(-d/dx)^i (-d/dy)^j of the density of (u, v), i, j <= 1.

        Infinite on the diagonal of c = 1.
        """
        X, Y = x / self.r1, y / self.r2
        if self.sine == 0:
            return ZERO if X != Y else INFINITY if i == j else np.sign(X) * INFINITY
        square = self.sine**2
        value = np.exp(-((X - Y) ** 2 + 2 * self.gap * X * Y) / (2 * square)) / (
            2 * PI * self.r1 * self.r2 * self.sine
        )
        along, across = (X - Y + self.gap * Y) / square, (Y - X + self.gap * X) / square
        if i and j:
            return value * (along * across + self.c / square) / (self.r1 * self.r2)
        return value * (along / self.r1 if i else across / self.r2 if j else ONE)

    def gamma(self, orders: tuple[int, ...]) -> list[Any]:
        """d^i/dc^i E[phi(u) psi(v)] for i in orders, each at most 2.

        Jumps of phi itself are taken for phi'' = 0 between them (hard shrink), where delta' meets
        nothing smooth.
        """
        found = self.smooth(orders)
        for index, i in enumerate(orders):
            if i:
                deltas = (
                    self.single_delta(i) + self.swapped().single_delta(i) + self.double_delta(i)
                )
                found[index] = (self.r1 * self.r2) ** i * (found[index] + deltas)
        return found


def gammas(
    phi: Function,
    c: Any,
    q1: Any,
    q2: Any,
    orders: tuple[int, ...] = (0, 1, 2),
    gap: Any = None,
    nodes: int = 24,
) -> list[Any]:
    """[Gamma^(i)(c) for i in orders].

    Give ``gap`` = 1 - c for c > 0 known better than to its last bit.
    """
    if c >= 0:
        return Pair(phi, phi, Real(q1), Real(q2), 1 - Real(c) if gap is None else gap, nodes).gamma(
            orders
        )
    found = Pair(phi, phi.reflected(), Real(q1), Real(q2), 1 + Real(c), nodes).gamma(orders)
    return [-value if i == 1 else value for value, i in zip(found, orders, strict=True)]


def one_dimensional(phi: Function, q: Any, nodes: int = 24) -> list[Any]:
    """E phi, Q = E phi^2, E phi' = E[phi z]/sqrt q and dQ/dq = E[phi^2 (z^2 - 1)]/(2q).

    By parts, no phi' needed.
    """
    q = Real(q)
    root = np.sqrt(q)
    edges = [x / root + offset for x, d in phi.centres() for offset in graded(float(d / root))]
    z, w = line(edges, nodes, REACH + 1)
    f = phi(root * z)[0]
    return [
        (w * f).sum(),
        (w * f * f).sum(),
        (w * f * z).sum() / root,
        (w * f * f * (z * z - 1)).sum() / (2 * q),
    ]


def _angle_panels(angle: float) -> tuple[tuple[float, ...], int]:
    """Fractions and nodes of the panels that end at ``angle``.

    C'(cos t) varies on the scale of a tenth at q = 100.
    """
    if angle < 5e-3:
        return (0, 1), 5 if angle < 5e-4 else 12
    return ((0, 0.3, 1), 16) if angle < 5e-2 else ((0, 0.1, 0.25, 0.5, 1), 20)


def small_gaps(phi: Function, q: Any, angles: list[float], nodes: int = 20) -> list[Any]:
    """1 - C(cos t) at q1 = q2 = q for growing angles t, as the integral of C'(cos t) sin t.

    No cancellation.
    """
    second = one_dimensional(phi, q)[1]
    total, start, out = ZERO, ZERO, []
    for angle in angles:
        parts, order = _angle_panels(angle)
        for low, high in pairwise([start + (Real(angle) - start) * part for part in parts]):
            x, w = legendre(order)
            for t, weight in zip(
                (low + high) / 2 + (high - low) / 2 * x, (high - low) / 2 * w, strict=True
            ):
                slope = gammas(phi, ONE, q, q, (1,), gap=2 * np.sin(t / 2) ** 2, nodes=nodes)[0]
                total += weight * np.sin(t) * slope
        start = Real(angle)
        out.append(total / second)
    return out
