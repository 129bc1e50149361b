"""Certified one-dimensional Gaussian expectations.

Every smooth piece is integrated by ``acb.integral``, and the tails have a proven bound.

The expectations are E[w(z) prod_i f_i(r_i z)] for a standard normal z, a polynomial w and one or
two piecewise smooth functions f_i. The r_i are balls, so an uncertain q is enclosed automatically.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from kcalc.fields.balls import Ball, BallField, working
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.certified.activation import CertifiedActivation, certified_within
from kcalc.gaussian.certified.evaluate import Smooth
from kcalc.gaussian.certified.growth import Growth, check_moment, radius, tail, whole
from kcalc.gaussian.certified.ranges import above

EXTRA = 24  # working bits beyond those of the field
_DEEPER = 35.0  # nats by which the growth bound may safely exceed the integral
Factor = tuple[CertifiedActivation, Ball]


@dataclass(frozen=True)
class Break:
    """An interval of the z axis in which some factors switch pieces.

    The interval is usually a single point up to rounding.
    """

    low: Ball
    high: Ball
    changes: tuple[int, ...]  # the factor index of each kink


def uncertainty(log_bound: float) -> Ball:
    """Return the ball [0 +/- exp(log_bound)]."""
    from flint import arb

    if log_bound == -math.inf:
        return arb(0)
    return arb(0, (arb(log_bound).exp() * (1 + arb(2) ** -20)).upper())


def log_upper(x: Ball) -> float:
    """Return a float above log |x|."""
    size = x.abs_upper()
    return -math.inf if size == 0 else above(float(size.log().upper()))


def upper(x: Ball) -> float:
    """Return a float above |x|."""
    return above(float(x.abs_upper()))


def growths(factors: Sequence[Factor]) -> list[tuple[Growth, float]]:
    """Return the growth bounds of the factors with the scales of their arguments."""
    return [(f.growth, upper(r)) for f, r in factors]


def breaks(factors: Sequence[Factor]) -> list[Break]:
    """Return the positions on the z axis at which factors switch pieces, in order.

    Indistinguishable positions are merged.
    """
    from flint import arb

    points = [(kink() / r, index) for index, (f, r) in enumerate(factors) for kink in f.kinks]
    points.sort(key=lambda point: float(point[0].mid()))
    out: list[Break] = []
    for ball, index in points:
        low, high = arb(ball.lower()), arb(ball.upper())
        if out and not low > out[-1].high:
            last = out.pop()
            out.append(Break(last.low.min(low), last.high.max(high), (*last.changes, index)))
        else:
            out.append(Break(low, high, (index,)))
    return out


def expect(
    factors: Sequence[Factor],
    bits: int,
    weight: Sequence[Ball] = (1,),
    what: str = "the expectation",
) -> Ball:
    """Return E[w(z) prod f_i(r_i z)], to about ``bits`` bits relative to the growth bounds.

    w = sum_k weight[k] z^k.

    Raises KcalcError if the expectation is not proven to converge or the integral is not finite.
    """
    from flint import arb

    bounds, degree = growths(factors), len(weight) - 1
    check_moment(bounds, what)
    with working(bits + EXTRA):
        size = math.log(sum(upper(0 * factors[0][1] + w) for w in weight) or 1.0)
        target = whole(bounds, degree) - bits * math.log(2) - _DEEPER
        places = breaks(factors)
        reach = clear_of(places, radius(bounds, target, degree))
        for f, r in factors:
            f.check_reach(reach * upper(r))
        total = uncertainty(size + tail(bounds, reach, degree)) + _slack(factors, size, degree)
        inside = [place for place in places if -reach < place.low and place.high < reach]
        total += _integrated(factors, inside, reach, bits, weight, arb(target).exp())
        for place in inside:
            total += _sliver(bounds, place, size, degree)
    if not total.is_finite():
        raise KcalcError(
            f"{what} is infinite or has no certified integral; use a smaller q, c away from -1 "
            "and 1, or another number of digits, or omit ball to compute in double precision"
        )
    return total


def clear_of(places: Sequence[Break], reach: float) -> float:
    """Return a number slightly above ``reach``; neither it nor its negative is a break."""
    while any(
        not (abs(p.low) < reach and abs(p.high) < reach) and not (p.low > reach or p.high < -reach)
        for p in places
    ):
        reach += 0.0625
        if reach > 1e5:
            raise KcalcError(
                "q is too uncertain, or kinks are too close together, to certify a result"
            )
    return reach


def _slack(factors: Sequence[Factor], size: float, degree: int) -> Ball:
    total = uncertainty(-math.inf)
    for index, (f, _) in enumerate(factors):
        if f.slack:
            others = [(g.growth, upper(r)) for k, (g, r) in enumerate(factors) if k != index]
            spread = max(whole(others, degree), whole(others, 0)) + 0.7
            total += uncertainty(size + math.log(f.slack) + spread + 0.01)
    return total


def _sliver(bounds: Sequence[tuple[Growth, float]], place: Break, size: float, degree: int) -> Ball:
    """Return an enclosure of the integral over a break whose position is uncertain."""
    width = place.high - place.low
    if width == 0:
        return uncertainty(-math.inf)
    far = max(upper(place.low), upper(place.high))
    return uncertainty(
        size
        + sum(g.at(r * far) for g, r in bounds)
        + degree * math.log(max(1.0, far))
        + log_upper(width)
    )


def _integrated(
    factors: Sequence[Factor],
    places: list[Break],
    reach: float,
    bits: int,
    weight: Sequence[Ball],
    floor: Ball,
) -> Ball:
    """Return the sum of the integrals between the breaks."""
    from flint import acb, arb

    counts = [sum(1 for kink in f.kinks if kink() / r <= -reach) for f, r in factors]
    ends = [
        (arb(-reach), arb(-reach)),
        *((p.low, p.high) for p in places),
        (arb(reach), arb(reach)),
    ]
    total = arb(0)
    for number, ((_, left), (right, _)) in enumerate(pairwise(ends)):
        if number:
            for index in places[number - 1].changes:
                counts[index] += 1
        pieces = [f.pieces[count] for (f, _), count in zip(factors, counts, strict=True)]
        if any(piece.zero for piece in pieces):
            continue
        function = _integrand(pieces, [r for _, r in factors], weight)
        total += acb.integral(function, left, right, rel_tol=arb(2) ** -bits, abs_tol=floor).real
    return total


def _integrand(
    pieces: list[Smooth], scales: list[Ball], weight: Sequence[Ball]
) -> Callable[[Any, bool], Any]:
    from flint import acb, arb

    twins = len(pieces) == 2 and pieces[0] is pieces[1] and scales[0] is scales[1]
    norm, half = acb(1 / (2 * arb.pi()).sqrt()), acb(-0.5)  # mixed products are slower
    factors = [(piece.complex, acb(r)) for piece, r in zip(pieces, scales, strict=True)]

    def function(z: Any, _: bool) -> Any:
        value = (half * z * z).exp() * norm
        if len(weight) > 1:
            polynomial = weight[-1] + 0 * z
            for coefficient in reversed(weight[:-1]):
                polynomial = polynomial * z + coefficient
            value = value * polynomial
        if twins:
            f, r = factors[0]
            once = f(r * z)
            return value * once * once
        for f, r in factors:
            value = value * f(r * z)
        return value

    return function


# --- the quantities -------------------------------------------------------------------------------


def certified(phi: Any, q: Ball, field: BallField, order: int = 0) -> CertifiedActivation:
    """Return phi with bounds that are proven on the range of integration at this q.

    If ``order`` > 0, return the derivative of that order away from kinks.
    """
    return certified_within(
        phi,
        order,
        float(math.ceil(upper(q.sqrt()) * (40 + 4 * math.sqrt(field.digits)))),
        field.digits,
    )


def moment(phi: Any, quantity: str, q: Ball, field: BallField) -> Ball:
    """Return ``quantity`` of phi at q.

    The quantities are "mean" (E phi), "second_moment" (E phi^2), "mean_slope" (E[phi z]/sqrt q,
    which is E phi' with jumps included) and "q_slope" (E[phi^2 (z^2 - 1)]/(2q), which is dQ/dq).
    Raises KcalcError if the quantity diverges or q <= 0.
    """
    positive(q)
    return _moment(phi, quantity, q.mid().man_exp(), q.rad().man_exp(), field)


def positive(q: Ball) -> Ball:
    """Return q if it is certainly positive; raise KcalcError otherwise."""
    if not q > 0:
        raise KcalcError(f"a q value is a mean square and must be provably > 0, got {q.str(8)}")
    return q


@lru_cache(maxsize=1024)
def _moment(phi: Any, quantity: str, mid: Any, rad: Any, field: BallField) -> Ball:
    from flint import arb

    with field.working():
        q = arb(mid, arb(rad))
        one = (certified(phi, q, field), q.sqrt())
        factors = [one] if quantity in ("mean", "mean_slope") else [one, one]
        weights: dict[str, list[Ball]] = {
            "mean": [arb(1)],
            "second_moment": [arb(1)],
            "mean_slope": [arb(0), 1 / one[1]],
            "q_slope": [-1 / (2 * q), arb(0), 1 / (2 * q)],
        }
        return expect(
            factors,
            field.bits,
            weights[quantity],
            f"{quantity} of {phi.name} at q = {q.str(6, radius=False)}",
        )
