"""Certified Hermite coefficients a_n(q) = E[phi(sqrt q z) h_n(z)], with orthonormal h_n.

The coefficients determine C maps for every c at once: Gamma^(k)(c)/k! = sum_n binom(n, k) a_n b_n
c^(n-k). The terms after N are at most sup_n binom(n, k) |c|^(n-k) times the norms of the remainders
after N + 1 terms.

All a_n come from one composite Gauss-Legendre rule. Mehler's formula bounds |h_n| in the complex
plane. The recurrence amplifies radii by about 1.7^n, so it is run with extra bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from kcalc.fields.balls import Ball, BallField, working
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.certified.activation import CertifiedActivation
from kcalc.gaussian.certified.growth import log_sum, radius, tail
from kcalc.gaussian.certified.line import (
    Factor,
    breaks,
    clear_of,
    expect,
    growths,
    log_upper,
    uncertainty,
    upper,
)
from kcalc.gaussian.certified.ranges import above
from kcalc.gaussian.certified.rules import Slab, best_rule, box, legendre, log_size

_ROUGH = 64  # precision of bounds, in bits
_LOSS = 0.68  # bits lost per step of the recurrence
_WIDEST = 4.0


@dataclass(frozen=True, eq=False)
class CertifiedHermite:
    """The series phi(sqrt q z) = sum_n a_n h_n(z), up to an error with L2 norm ``cut``.

    The coefficients a_n are known for n <= N, where N is the length minus 1.
    """

    coefficients: tuple[Ball, ...]
    second_moment: Ball
    cut: Ball  # >= the L2 norm of the neglected parts (tails, saturation)
    rest: Ball  # >= the L2 norm of the terms after N

    @property
    def norm(self) -> Ball:
        """An upper bound on the L2 norm."""
        return self.second_moment.abs_upper().sqrt().upper()

    def coefficient(self, n: int) -> Ball:
        """Return a ball that contains a_n of phi itself: its radius includes the error ``cut``."""
        return self.coefficients[n] + uncertainty(log_upper(self.cut))


def cross_series(
    first: CertifiedHermite, second: CertifiedHermite, c: Ball, order: int
) -> list[Ball]:
    """Return the Taylor coefficients Gamma^(k)(c)/k!, k = 0 ... order, for |c| < 1.

    Order 0 is also available at c = +-1. The two tables must have the same length.
    """
    from flint import arb

    products = [a * b for a, b in zip(first.coefficients, second.coefficients, strict=True)]
    missed = first.cut * second.norm + second.cut * first.norm + first.cut * second.cut
    left_out = first.rest * second.rest
    size, out = arb(c.abs_upper()), []
    powers = [arb(1)]
    for _ in range(len(products)):
        powers.append(powers[-1] * c)
    for k in range(order + 1):
        total = arb(0)
        for n in range(k, len(products)):
            total += (
                (products[n] * math.comb(n, k)) * powers[n - k] if k else products[n] * powers[n]
            )
        everywhere, later = largest(size, k, 0), largest(size, k, len(products))
        out.append(total + arb(0, 1) * (missed * everywhere + left_out * later).abs_upper())
    return out


def largest(c: Ball, k: int, first: int) -> Ball:
    """Return sup binom(n, k) c^(n-k) over n >= first; the terms rise while n + 1 < k/(1 - c)."""
    from flint import arb

    if k == 0:
        return c**first if first else arb(1)
    if not c < 1:
        return arb.pos_inf()
    top = int(float((k / (1 - c)).upper())) + 1
    n = max(first, k)
    if top <= n:
        return math.comb(n, k) * c ** (n - k)
    with_room = arb(math.comb(top + 1, k)) * c ** max(top - 1 - k, 0)
    return with_room.max(math.comb(n, k) * c ** (n - k))


# --- the table ------------------------------------------------------------------------------------


def hermite(
    profile: CertifiedActivation, q: Ball, terms: int, field: BallField
) -> CertifiedHermite:
    """Return the coefficients a_0 ... a_terms of phi(sqrt q z) for an exact q.

    Their absolute errors are about 10^-(digits + 6) times the norm of phi(sqrt q z).
    """
    return _table(profile, q.mid().man_exp(), terms, field)


@lru_cache(maxsize=64)
def _table(profile: CertifiedActivation, q: Any, terms: int, field: BallField) -> CertifiedHermite:
    from flint import arb

    bits = field.bits + 24
    fine = bits + math.ceil(_LOSS * terms) + 32
    with working(fine):
        r = arb(q).sqrt()
        what = f"E phi^2 of {profile.name} at q = {arb(q).str(6, radius=False)}"
        factor = (profile, r)
        moment = expect([factor, factor], field.bits, what=what)
        scale = log_upper(moment) / 2 - (field.digits + 6) * math.log(10)
        bounds = growths([factor])
        twice = [*bounds, *bounds]
        reach = clear_of(breaks([factor]), radius(twice, 2 * scale - 1))
        profile.check_reach(reach * upper(r))
        cut = uncertainty(tail(twice, reach) / 2) + arb(profile.slack * (1 + 1e-9))
        panels, error = _panels(factor, reach, terms, scale - 1, field)
        even, odd, squares = _nodes(factor, panels, fine)
        sums = _projected(even, squares, terms, 0), _projected(odd, squares, terms, 1)
    with working(bits):
        found = [
            sums[n % 2][n // 2] / arb(n).fac().sqrt() + uncertainty(error) for n in range(terms + 1)
        ]
        left = arb((moment - sum(a * a for a in found)).upper())
        if not left.is_finite():
            raise KcalcError(
                f"the Hermite coefficients of {profile.name} lost all digits; use a smaller q, or "
                f"another number of digits"
            )
        rest = left.max(arb(0)).sqrt() + cut
        return CertifiedHermite(tuple(found), moment, arb(cut.abs_upper()), arb(rest.abs_upper()))


Panel = tuple[Ball, Ball, int, Any, Any]
"""Ends, number of nodes, and the pieces at z and at -z."""


def _panels(
    factor: Factor, reach: float, terms: int, log_allowed: float, field: BallField
) -> tuple[list[Panel], float]:
    """Return panels on [0, reach] whose rules integrate f(r z) h_n and f(-r z) h_n, n <= terms.

    Also return the log of the sum of their errors.
    """
    profile, r = factor
    most, out, total = 12 + 4 * math.ceil(field.digits / 3), [], -math.inf
    share = log_allowed - math.log(64)
    for left, right, ahead, behind in _pieces(profile, r, reach):
        if ahead.zero and behind.zero:
            continue
        stack = [(left, right)]
        while stack:
            a, b = stack.pop()
            rule = None
            if float(b - a) < _WIDEST:
                with working(_ROUGH):
                    rule = best_rule(
                        lambda cover, a=a, b=b, f=ahead, g=behind: _bound(
                            cover, a, b, f, g, r, terms
                        ),
                        share,
                        most,
                    )
            if rule is None:
                middle = _between(a, b)
                stack += [(middle, b), (a, middle)]
                if len(out) + len(stack) > 4000 or float(b - a) < 1e-9:
                    size = (r * r).str(4, radius=False)
                    raise KcalcError(
                        f"{profile.name} at q = {size} varies too fast for certified Hermite "
                        "coefficients; use a smaller q or fewer digits, or omit ball to compute "
                        "in double precision"
                    )
                continue
            out.append((a, b, rule[0], ahead, behind))
            total = log_sum(total, rule[1])
    return out, total


def _between(a: Ball, b: Ball) -> Ball:
    """Return an exact number near the middle of a and b."""
    from flint import arb

    return arb((float(a) + float(b)) / 2)


def _pieces(
    profile: CertifiedActivation, r: Ball, reach: float
) -> list[tuple[Ball, Ball, Any, Any]]:
    """Cut [0, reach] at |kinks|/r, and return the ends of each part with its pieces at z and -z."""
    from flint import arb

    cuts: list[Ball] = [arb(0)]
    for point in sorted((abs(k() / r) for k in profile.kinks), key=float):
        if point == 0 or point > reach:
            continue
        if point.contains(0):
            raise KcalcError(
                f"{profile.name}: a kink cannot be distinguished from 0; use more digits"
            )
        if point.overlaps(cuts[-1]):
            cuts[-1] = cuts[-1].union(point)
        else:
            cuts.append(point)
    cuts.append(arb(reach))
    out = []
    for a, b in pairwise(cuts):
        middle = _between(a, b) * r
        out.append((a, b, profile.piece_at(middle), profile.piece_at(-middle)))
    return out


def _bound(
    cover: Iterable[Slab], a: Ball, b: Ball, ahead: Any, behind: Any, r: Ball, terms: int
) -> float:
    """Return the log of a bound on the integrand of the Hermite coefficients on one panel.

    The integrand is (|f(r z)| + |f(-r z)|) |h_n(z)| exp(-z^2/2)/sqrt(2 pi) (b - a)/2, n <= terms,
    on z = middle + half w.
    """
    middle, half = (a + b) / 2, (b - a) / 2
    worst = -math.inf
    for slab in cover:
        z = middle + half * box(slab)
        sizes = [
            log_size(piece.complex(s * r * z))
            for piece, s in ((ahead, 1), (behind, -1))
            if not piece.zero
        ]
        if not all(size < math.inf for size in sizes):
            return math.inf
        x = sorted((abs(float(z.real.lower())), abs(float(z.real.upper()))))
        nearest = 0.0 if z.real.contains(0) else x[0] * (1 - 1e-12)
        height = above(float(z.imag.abs_upper()))
        worst = max(
            worst,
            max(sizes) + 0.7 + (height**2 - nearest**2) / 2 + _mehler(above(x[1]), height, terms),
        )
    return above(worst + float(half.log().upper()) - 0.9 + 1e-9)


def _mehler(x: float, y: float, n: int) -> float:
    """Return the log of a bound on |h_k(x + i y)| for k <= n.

    The bound follows from sum_k |h_k|^2 s^k = exp(s x^2/(1+s) + s y^2/(1-s))/sqrt(1 - s^2).
    """
    best = math.inf
    centre = y / math.sqrt(n + 1)
    for factor in (0.6, 1.0, 1.6):
        away = min(0.9, max(centre * factor, 0.5 / (n + 1)))
        s = 1 - away
        value = (
            s * x * x / (1 + s) + s * y * y / away - n * math.log(s) - math.log(away * (1 + s)) / 2
        ) / 2
        best = min(best, value)
    return above(best + 1e-9)


def _nodes(
    factor: Factor, panels: list[Panel], bits: int
) -> tuple[list[Ball], list[Ball], list[Ball]]:
    """Return the weights for even n, the weights for odd n, and z^2, at every node z.

    Let w be the weight of the quadrature rule and N the normal density. The weights are
    w N(z) (f(r z) + f(-r z)) for even n and w N(z) (f(r z) - f(-r z)) z for odd n.
    """
    from flint import arb

    _, r = factor
    norm = 1 / (2 * arb.pi()).sqrt()
    even, odd, squares = [], [], []
    for a, b, n, ahead, behind in panels:
        middle, half = (a + b) / 2, (b - a) / 2
        for x, w in legendre(n, bits):
            z = middle + half * x
            square = z * z
            weight = w * half * norm * (-square / 2).exp()
            f, g = (
                arb(0) if piece.zero else weight * piece.real(s * r * z)
                for piece, s in ((ahead, 1), (behind, -1))
            )
            even.append(f + g)
            odd.append((f - g) * z)
            squares.append(square)
    return even, odd, squares


def _projected(weights: list[Ball], squares: list[Ball], terms: int, start: int) -> list[Ball]:
    """Compute sum_j weights_j He_n(z_j) / (z_j if odd) for n = start, start + 2, ....

    The recurrence is He_(n+2) = (z^2 - 2n - 1) He_n - n (n-1) He_(n-2).
    """
    from flint import arb

    current, previous = weights, [w * 0 for w in weights]
    out = [sum(current, arb(0))]
    for n in range(start, terms - 1, 2):
        shift, factor = 2 * n + 1, n * (n - 1)
        previous, current = (
            current,
            [
                (y - shift) * g - factor * h
                for y, g, h in zip(squares, current, previous, strict=True)
            ],
        )
        out.append(sum(current, arb(0)))
    return out
