"""Certified E[f(r1 z1) g(r2 z2)] for a correlation c >= 0 close to 1, by rotation.

The first two derivatives with respect to c are certified too.

Write z1 = A a + B b and z2 = A a - B b with A = sqrt((1+c)/2), B = sqrt((1-c)/2) and independent
standard normals a and b. In the (a, b) plane, kinks are straight lines. Between two lines, and for
b in an interval in which no two lines cross, the integrand is analytic in b and in the position t
between the lines. There, tensor Gauss-Legendre rules have an error of at most 2 (e_t + e_b), where
e_t and e_b bound the errors of the one-dimensional rules, uniformly over the other variable.
Derivatives with respect to c act on the density: Gamma' = E[f g (He2(a)/(4A^2) - He2(b)/(4B^2))],
and so on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from kcalc.fields.balls import Ball, working
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.certified.evaluate import Smooth
from kcalc.gaussian.certified.growth import Growth, log_sum, radius, tail, whole
from kcalc.gaussian.certified.line import Factor, log_upper, uncertainty, upper
from kcalc.gaussian.certified.ranges import above
from kcalc.gaussian.certified.rules import Slab, best_rule, box, legendre, log_size

_ROUGH = 64  # precision of bounds, in bits
_SHARES = 2048  # cells among which the allowed error is split
_MOST_CELLS = 60_000
_LOG_TWO_PI = 1.8378770664
_STEEP, _TURNED = 3.0, 0.05


@dataclass(frozen=True)
class Line:
    """The line a = place + slope b, on which a factor (``owner`` 0 or 1) switches pieces.

    ``owner`` is -1 if no factor switches pieces there.
    """

    place: Ball
    slope: Ball
    owner: int

    def at(self, b: Ball) -> Ball:
        return self.place + self.slope * b


@dataclass(frozen=True)
class Cell:
    """The region t0 <= t <= t1 between two lines, b0 <= b <= b1, with both factors' pieces."""

    below: Line
    over: Line
    pieces: tuple[Smooth, Smooth]
    b0: Ball
    b1: Ball
    t0: float = 0.0
    t1: float = 1.0

    def halves(self, across_t: bool) -> tuple[Cell, Cell]:
        if across_t:
            middle = (self.t0 + self.t1) / 2
            return replace(self, t1=middle), replace(self, t0=middle)
        from flint import arb

        cut = arb((float(self.b0) + float(self.b1)) / 2)
        return replace(self, b1=cut), replace(self, b0=cut)

    @property
    def affine(self) -> tuple[Ball, Ball, Ball, Ball]:
        """The coefficients (c0, c1, h0, h1) in a = c0 + c1 b + (h0 + h1 b) tau, tau in [-1, 1]."""
        middle, half = (self.t0 + self.t1) / 2, (self.t1 - self.t0) / 2
        rise, turn = self.over.place - self.below.place, self.over.slope - self.below.slope
        return (
            self.below.place + middle * rise,
            self.below.slope + middle * turn,
            half * rise,
            half * turn,
        )


class Tile(NamedTuple):
    """A part of a cell, with the node counts of its rules for t and b.

    ``place`` contains the index of the strip and the index of the cell within it.
    """

    place: tuple[int, int]
    cell: Cell
    n_t: int
    n_b: int


@dataclass(frozen=True)
class Tiling:
    """All tiles of a plane for 1 - c in the ball ``gap``, and the log of their error bound.

    ``layout`` contains the cuts of b and, for every cell between two cuts, the owners of its lines.
    """

    gap: Ball
    reach: float
    layout: tuple[list[tuple[Ball, Ball]], list[list[tuple[int, int]]]]
    tiles: list[Tile]
    error: float


def _owners(strips: list[list[Cell]]) -> list[list[tuple[int, int]]]:
    return [[(cell.below.owner, cell.over.owner) for cell in strip] for strip in strips]


class Plane:
    """One expectation of two factors on the rotated plane.

    Its arguments are the two factors, 1 - c, and the log of the allowed absolute error for each
    order.
    """

    def __init__(
        self, first: Factor, second: Factor, gap: Ball, allowed: list[float], bits: int, digits: int
    ) -> None:
        self.factors, self.bits, self.allowed, self.gap = (first, second), bits, allowed, gap
        self.order = len(allowed) - 1
        self.A, self.B = (1 - gap / 2).sqrt(), (gap / 2).sqrt()
        self.twins = first[0] is second[0] and first[1] is second[1]
        steep = log_upper(1 / (4 * self.A**2) + 1 / (4 * self.B**2))
        self.weights = [0.0, steep, 2 * steep + 1.1][: self.order + 1]
        self.most = 12 + 4 * math.ceil((digits + max(0.0, self.weights[-1]) / math.log(10)) / 3)
        strictest = min(target - w for target, w in zip(allowed, self.weights, strict=True))
        self.along, self.across = (
            self._bounds((0, 1), self.A),
            self._bounds((0, 1), self.B, scaled=False),
        )
        self.reach = self._radius(strictest)
        for f, r in self.factors:
            f.check_reach(1.42 * self.reach * upper(r))

    # --- neglected parts --------------------------------------------------------------------------

    def _bounds(
        self, which: tuple[int, ...], factor: Ball, scaled: bool = True
    ) -> list[tuple[Growth, float]]:
        """Return the growth bounds of the factors, as functions of a only or of b only.

        (1 + r|Aa + Bb|)^p is bounded by a product, and so is exp(G z^2) if G r^2 is the same for
        both factors.
        """
        chosen = [self.factors[i] for i in which]
        gauss = max(f.growth.gauss * upper(r) ** 2 for f, r in chosen)
        out = [(Growth(power=2.0 * self.order), 1.0)]
        for f, r in chosen:
            growth = (
                f.growth if scaled else replace(f.growth, log_scale=min(0.0, f.growth.log_scale))
            )
            shared = above(gauss / upper(r) ** 2) if gauss else 0.0
            out.append((replace(growth, gauss=shared), above(upper(r) * upper(factor))))
        return out

    def _radius(self, target: float) -> float:
        middle = max(whole(self.along), whole(self.across))
        return max(
            radius(self.along, target - middle - 3), radius(self.across, target - middle - 3)
        )

    def _left_out(self, k: int) -> Ball:
        """Bound the integral outside |a|, |b| <= reach, and the error of saturation."""
        log = self.weights[k] + log_sum(
            tail(self.along, self.reach) + whole(self.across),
            whole(self.along) + tail(self.across, self.reach),
        )
        total = uncertainty(log)
        for i, (f, _) in enumerate(self.factors):
            if f.slack:
                spread = whole(self._bounds((1 - i,), self.A)) + whole(
                    self._bounds((1 - i,), self.B, scaled=False)
                )
                total += uncertainty(self.weights[k] + math.log(f.slack) + spread + 0.1)
        return total

    def _sliver(self, low: Ball, high: Ball, k: int) -> Ball:
        """Return an enclosure of the integral over the strip low <= b <= high.

        The order of the lines is uncertain in this strip.
        """
        width = high - low
        if width <= 0:
            return uncertainty(-math.inf)
        far = max(upper(low), upper(high))
        return uncertainty(
            self.weights[k]
            + whole(self.along)
            + sum(g.at(r * far) for g, r in self.across)
            + log_upper(width)
        )

    # --- geometry ---------------------------------------------------------------------------------

    def _lines(self) -> list[Line]:
        lines, places = [], list[Ball]()
        for owner, (f, r) in enumerate(self.factors):
            slope = self.B / self.A if owner else -self.B / self.A
            # poles near the real axis move with b, and so do the cells
            poles = [] if f.centre is None or not (r > _STEEP and self.B > _TURNED) else [f.centre]
            if not (owner and self.twins):  # lines of equal factors cross at b = 0
                places = [bound() / (r * self.A) for bound in (*f.kinks, *poles)]
            owners = [owner] * len(f.kinks) + [-1] * len(poles)
            lines += [Line(place, slope, own) for place, own in zip(places, owners, strict=True)]
        return lines

    def _cuts(self, lines: list[Line], start: Ball) -> list[tuple[Ball, Ball]]:
        """Return intervals of b that contain all points where two lines cross or a line ends.

        Lines end at |a| = reach. The first and the last interval contain the ends of b's range.
        Intervals that touch are merged.
        """
        from flint import arb

        crossings, ends = [], self._ends()
        for i, one in enumerate(lines):
            for other in [*lines[i + 1 :], *ends]:
                turn = one.slope - other.slope
                if not turn.contains(0):
                    rise = other.place - one.place
                    meet = other.place is one.place or rise == 0
                    crossings.append(arb(0) if meet else rise / turn)
        out = [(start, start)]
        for b in sorted(crossings, key=lambda ball: float(ball.mid())):
            low, high = arb(b.lower()), arb(b.upper())
            if high <= start or low >= self.reach:
                continue
            if low <= out[-1][1]:
                out[-1] = (out[-1][0], out[-1][1].max(high))
            else:
                out.append((low, high))
        end = arb(self.reach)
        if not out[-1][1] < end:  # a crossing at the very end: move the end outwards
            self.reach += 0.0625
            return self._cuts(lines, -arb(self.reach) if start < 0 else start)
        return [*out, (end, end)]

    def _ends(self) -> tuple[Line, Line]:
        from flint import arb

        return Line(arb(-self.reach), arb(0), -1), Line(arb(self.reach), arb(0), -1)

    def _cells(self, lines: list[Line], b0: Ball, b1: Ball) -> Iterable[Cell]:
        """Yield the cells between neighbouring lines for b0 < b < b1."""
        from flint import arb

        middle = arb((float(b0) + float(b1)) / 2)
        if not (b0 < middle < b1):
            middle = (b0 + b1) / 2
        ends = self._ends()
        ordered = sorted(lines, key=lambda line: float(line.at(middle).mid()))
        counts, inside = [0, 0], []
        for line in ordered:
            if line.at(middle) <= -self.reach:
                counts[line.owner] += int(line.owner >= 0)
            elif line.at(middle) < self.reach:
                inside.append(line)
        below = ends[0]
        for line in [*inside, ends[1]]:
            if not line.at(middle) > below.at(middle):
                raise KcalcError("two kinks cannot be distinguished; use more digits")
            f, g = (
                profile.pieces[count]
                for (profile, _), count in zip(self.factors, counts, strict=True)
            )
            if not (f.zero or g.zero):
                yield Cell(below, line, (f, g), b0, b1)
            if line.owner >= 0:
                counts[line.owner] += 1
            below = line

    # --- bounds -----------------------------------------------------------------------------------

    def _log_weight(self, a: Any, b: Any) -> float:
        """Return the log of a bound on the polynomial factors, relative to the allowed error."""
        spread = 2 * (math.log1p(upper(a)) + math.log1p(upper(b)))
        return max(
            w + k * spread - self.allowed[k] + self.allowed[0] for k, w in enumerate(self.weights)
        )

    def _log_integrand(
        self, cell: Cell, affine: tuple[Ball, ...], tau: Any, b: Any, half: Ball
    ) -> float:
        """Return the log of a bound on integrand and Jacobian together, on boxes of tau and b."""
        c0, c1, h0, h1 = affine
        total = 0.0
        for piece, (_, r), s in zip(cell.pieces, self.factors, (self.B, -self.B), strict=True):
            z = self.A * c0 + (self.A * c1 + s) * b + self.A * (h0 + h1 * b) * tau
            size = log_size(piece.complex(r * z))
            if size == math.inf:
                return math.inf
            total += size
        a = c0 + c1 * b + (h0 + h1 * b) * tau
        exponent = _gauss_exponent(a) + _gauss_exponent(b)
        jacobian = log_size((h0 + h1 * b) * half)
        return above(total + exponent + jacobian + self._log_weight(a, b) - _LOG_TWO_PI + 1e-8)

    def _bound_t(self, cell: Cell, cover: Iterable[Slab]) -> float:
        from flint import acb

        affine, half = cell.affine, (cell.b1 - cell.b0) / 2
        parts = _subdivided(cell.b0, cell.b1, 3)
        return _worst(
            self._log_integrand(cell, affine, box(slab), acb(b), half)
            for slab in cover
            for b in parts
        )

    def _bound_b(self, cell: Cell, cover: Iterable[Slab]) -> float:
        from flint import acb, arb

        affine, half, middle = cell.affine, (cell.b1 - cell.b0) / 2, (cell.b0 + cell.b1) / 2
        parts = _subdivided(arb(-1), arb(1), 3)
        return _worst(
            self._log_integrand(cell, affine, acb(tau), middle + half * box(slab), half)
            for slab in cover
            for tau in parts
        )

    def _negligible(self, cell: Cell, share: float) -> float | None:
        """Return the log of a bound on a cell's integral, or None if it is not below ``share``."""
        b = cell.b0.union(cell.b1)
        c0, c1, h0, h1 = cell.affine
        from flint import arb

        half = h0 + h1 * b
        a = c0 + c1 * b + half * arb(0, 1)
        total = sum(
            f.growth.at(upper(r) * upper(self.A * a + s * b))
            for (f, r), s in zip(self.factors, (self.B, -self.B), strict=True)
        )
        size = (
            total
            + _gauss_exponent(a)
            + _gauss_exponent(b)
            + self._log_weight(a, b)
            + log_upper(half * (cell.b1 - cell.b0) * 2)
        )
        return above(size) if size < share else None

    # --- the sum ----------------------------------------------------------------------------------

    def tiling(self) -> Tiling | None:
        """Return cells with rules that are valid for every 1 - c in the ball of the plane.

        Returns None if the ball is so wide that the order of two lines is uncertain somewhere,
        because the strips would then depend on 1 - c.
        """
        with working(self.bits):
            cuts, strips = self._strips()
            if not self.gap.is_exact() and any(low != high for low, high in cuts):
                return None
            tiles, error = list[Tile](), -math.inf
            for i, strip in enumerate(strips):
                for j, cell in enumerate(strip):
                    error = log_sum(error, self._cut_up((i, j), cell, tiles))
        return Tiling(self.gap, self.reach, (cuts, _owners(strips)), tiles, error)

    def _strips(self) -> tuple[list[tuple[Ball, Ball]], list[list[Cell]]]:
        """Return the cuts of b, and the cells between consecutive cuts."""
        from flint import arb

        lines = self._lines()
        cuts = self._cuts(lines, arb(0) if self.twins else arb(-self.reach))
        return cuts, [list(self._cells(lines, b0, b1)) for (_, b0), (b1, _) in pairwise(cuts)]

    def values(self, shared: Tiling | None = None) -> list[Ball]:
        """Return Gamma^(k)(c)/k! for k = 0 ... order.

        ``shared`` is a tiling for a range of 1 - c, which is used if it contains this 1 - c.
        """
        from flint import arb

        tiling = shared if shared is not None and shared.gap.contains(self.gap) else self.tiling()
        if tiling is None:
            raise KcalcError("1 - c is too uncertain for a certified double integral")
        with working(self.bits):
            self.reach = tiling.reach
            cuts, strips = self._strips()
            if (cuts, _owners(strips)) != tiling.layout:
                return self.values()
            totals = [arb(0)] * (self.order + 1)
            for (i, j), cell, n_t, n_b in tiling.tiles:
                place = {"t0": cell.t0, "t1": cell.t1, "b0": cell.b0, "b1": cell.b1}
                self._add(replace(strips[i][j], **place), n_t, n_b, totals)
            for k in range(self.order + 1):
                totals[k] += uncertainty(tiling.error + self.allowed[k] - self.allowed[0])
                for low, high in cuts:
                    totals[k] += self._sliver(low, high, k)
                totals[k] = (2 * totals[k] if self.twins else totals[k]) + self._left_out(k)
                totals[k] /= math.factorial(k)
        return totals

    def _cut_up(self, place: tuple[int, int], first: Cell, tiles: list[Tile]) -> float:
        """Add a cell with its rules to ``tiles``, and bisect it if no rule applies.

        Returns the log of the error bound for order 0.
        """
        share = self.allowed[0] - math.log(4 * _SHARES)
        stack, error, seen = [first], -math.inf, 0
        while stack:
            cell = stack.pop()
            seen += 1
            if seen > _MOST_CELLS:
                (f, r), (g, s) = self.factors
                names = (
                    f"E {f.name}(u) {g.name}(v) at q = {(r * r).str(4, radius=False)}, "
                    f"{(s * s).str(4, radius=False)}"
                )
                raise KcalcError(
                    f"{names}: the certified double integral needs too many cells; use fewer "
                    f"digits or smaller q values"
                )
            with working(_ROUGH):
                small = self._negligible(cell, share)
                if small is not None:
                    error = log_sum(error, small)
                    continue
                rules = self._rules(cell, share)
            if isinstance(rules, bool):
                stack += cell.halves(rules)
                continue
            (n_t, error_t), (n_b, error_b) = rules
            error = log_sum(error, log_sum(error_t, error_b) + 0.7)
            tiles.append(Tile(place, cell, n_t, n_b))
        return error

    def _rules(
        self, cell: Cell, share: float
    ) -> bool | tuple[tuple[int, float], tuple[int, float]]:
        """Return the rules for t and b, or a Boolean if one of them is not accurate enough.

        The cell must then be bisected in t if the result is True, and in b if it is False.
        """
        *_, h0, h1 = cell.affine
        width_b = upper(cell.b1 - cell.b0)
        width_t = 2 * upper(h0 + h1 * cell.b0.union(cell.b1))
        t_first = width_t * float(self.A) >= width_b * float(self.B)
        found: dict[bool, tuple[int, float]] = {}
        for across_t in (t_first, not t_first):
            wide = width_t > 7 if across_t else width_b > 7
            bound = self._bound_t if across_t else self._bound_b
            rule = (
                None
                if wide
                else best_rule(
                    lambda cover, bound=bound: bound(cell, cover), share, self.most, count=6
                )
            )
            if rule is None:
                return across_t
            found[across_t] = rule
        return found[True], found[False]

    def _add(self, cell: Cell, n_t: int, n_b: int, totals: list[Ball]) -> None:
        from flint import arb

        c0, c1, h0, h1 = cell.affine
        middle, half = (cell.b0 + cell.b1) / 2, (cell.b1 - cell.b0) / 2
        (f, g), ((_, r1), (_, r2)) = cell.pieces, self.factors
        rows = legendre(n_t, self.bits)
        norm = half / (2 * arb.pi())
        p, q = 1 / (4 * self.A**2), 1 / (4 * self.B**2)
        for sigma, weight in legendre(n_b, self.bits):
            b = middle + half * sigma
            square, start, step = b * b, c0 + c1 * b, h0 + h1 * b
            along1, along2 = r1 * (self.A * start + self.B * b), r2 * (self.A * start - self.B * b)
            step1, step2 = r1 * self.A * step, r2 * self.A * step
            moments = _moments(
                rows, (f.real, along1, step1), (g.real, along2, step2), start, step, self.order
            )
            factor = weight * norm * step * (-square / 2).exp()
            totals[0] += factor * moments[0]
            if self.order:
                h2 = square - 1
                totals[1] += factor * (p * moments[1] - q * h2 * moments[0])
            if self.order > 1:
                h4 = (square - 6) * square + 3
                totals[2] += factor * (
                    p * p * moments[2] - 2 * p * q * h2 * moments[1] + q * q * h4 * moments[0]
                )


def _moments(
    rows: Any,
    first: tuple[Any, Ball, Ball],
    second: tuple[Any, Ball, Ball],
    start: Ball,
    step: Ball,
    order: int,
) -> list[Ball]:
    """Return the integrals over tau of f g exp(-a^2/2) He_(2k)(a), k = 0 ... order."""
    from flint import arb

    (f, f0, f1), (g, g0, g1) = first, second
    sums = [arb(0)] * (order + 1)
    for tau, weight in rows:
        a = start + step * tau
        square = a * a
        value = weight * f(f0 + f1 * tau) * g(g0 + g1 * tau) * (square / -2).exp()
        sums[0] += value
        if order:
            sums[1] += value * (square - 1)
        if order > 1:
            sums[2] += value * ((square - 6) * square + 3)
    return sums


def _gauss_exponent(z: Any) -> float:
    """Return an upper bound on -Re z^2/2."""
    real = z.real
    nearest = (
        0.0
        if real.contains(0)
        else min(abs(float(real.lower())), abs(float(real.upper()))) * (1 - 1e-12)
    )
    return above((upper(z.imag) ** 2 - nearest**2) / 2)


def _subdivided(low: Ball, high: Ball, count: int) -> list[Ball]:
    cuts = [low + (high - low) * k / count for k in range(count + 1)]
    return [a.union(b) for a, b in pairwise(cuts)]


def _worst(sizes: Iterable[float]) -> float:
    worst = -math.inf
    for size in sizes:
        if size == math.inf:
            return math.inf
        worst = max(worst, size)
    return worst
