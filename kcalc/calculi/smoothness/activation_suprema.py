"""Bounds on an activation and its first two derivatives, on an interval or the whole line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import sympy as sp

from ...activations import Activation
from ...activations.base import X, checked
from ...activations.pieces import smooth_pieces, switch_points
from ...activations.tails import Core, Tail, Tails, polynomial_tail
from ...fields.arguments import one_number
from ...fields.balls import working
from ...foundation.errors import KcalcError, glimpse
from ...foundation.printing import Shown
from ...gaussian.certified.enclosures import SmoothPiece
from ...gaussian.certified.ranges import Interval, above, below, constant, hull, meet, plus
from ...gaussian.certified.suprema import BITS, largest, least

_JUMPING = (sp.sign, sp.Heaviside, sp.Piecewise)
_UNKNOWN = (
    "the behaviour of {} at infinity is not declared, so no bound on the whole line is known; "
    "pass reach="
)
_Parts = tuple[list[SmoothPiece], list[list[Interval]]]


@dataclass(frozen=True)
class ActivationBounds(Shown):
    """Bounds on one interval; inf if nothing is proven.

    Attributes
    ----------
    value
        An upper bound on |phi|.
    slope
        An upper bound on |phi'|.
    curvature
        An upper bound on |phi''| and a Lipschitz constant of phi'; inf if phi' jumps.
    least_slope
        A lower bound on |phi'|.
    at_zero
        |phi(0)|.
    note
        Advice if the behaviour of phi at infinity is unknown.

    """

    hidden = ("note",)

    value: float
    slope: float
    curvature: float
    least_slope: float
    at_zero: float
    note: str = ""

    def _below(self) -> Sequence[str]:
        return (self.note,) if self.note else ()


def activation_bounds(phi: Activation, reach: float = math.inf) -> ActivationBounds:
    """Bound |phi|, |phi'| and |phi''| on |x| <= reach, by default on the whole line.

    On a finite interval, the bounds are proven by ball arithmetic. On the whole line, they are
    proven for piecewise polynomials. For other catalogue activations, they rely on declared
    behaviour at infinity. All of this also holds for activations that a shaping method has scaled
    and shifted. For all other activations, the bounds on the whole line are infinite, and ``note``
    recommends ``reach``.

    The search for the suprema has a budget. Bounds usually exceed the suprema by a relative error
    of at most 1e-9. If the budget runs out, they are still valid but less tight.

    Parameters
    ----------
    phi : Activation
        A continuous activation given by a formula.
    reach : float, optional
        Compute bounds for |x| <= reach, by default for all x.

    Returns
    -------
    ActivationBounds
        The bounds; infinite if nothing is proven.

    Raises
    ------
    KcalcError
        For plain callables, because nothing can be proven about them; for activations that jump,
        because they have no Lipschitz constant; and for a reach that is not a number >= 0.

    """
    checked(phi).refuse_numeric_only("proven Lipschitz constant")
    if any(phi.jump_sizes(0)):
        why = "jumps, so it has no Lipschitz constant; use a continuous activation"
        raise KcalcError(f"activation {phi.name!r} {why}")
    everywhere = isinstance(reach, float) and reach == math.inf
    wide = math.inf if everywhere else one_number(reach, "reach")
    if wide < 0:
        raise KcalcError(f"reach must be a number >= 0, got {glimpse(reach)}")
    t, at_zero = phi.transformation, abs(float(phi(0.0)))
    if t is None:
        return replace(_bounds(phi, phi.tails, -wide, wide), at_zero=at_zero)
    a, b, scale, shift = map(float, (t.input_scale, t.input_shift, t.output_scale, t.output_shift))
    left, right = sorted((-a * wide + b, a * wide + b))
    own = _bounds(phi.base, phi.base.tails, below(left), above(right), shift)
    steep = abs(scale * a)
    return ActivationBounds(
        value=above(abs(scale) * own.value),
        slope=above(steep * own.slope),
        curvature=above(steep * abs(a) * own.curvature),
        least_slope=max(0.0, below(steep * own.least_slope)),
        at_zero=at_zero,
        note=own.note,
    )


@lru_cache(maxsize=4096)
def _bounds(
    phi: Activation, tails: Tails, low: float, high: float, shift: float = 0.0
) -> ActivationBounds:
    """Compute bounds on phi + shift over [low, high], without the value at 0."""
    near = whole = (low, high)
    if isinstance(tails, Core):
        core = below(float(tails.low)), above(float(tails.high))
        near = core if low <= core[0] and core[1] <= high else near
        whole, tails = whole if tails.grows else near, (None, None)
    goes_on = max(-low, high) > getattr(phi, "reach", math.inf)  # there are more kinks further out
    bends = zip(phi.kink_points, phi.jump_sizes(1), strict=True)
    has_corner = goes_on or any(jump for kink, jump in bends if low < kink < high)
    may_jump = goes_on and phi.expr.has(*_JUMPING)
    with working(BITS):
        parts, all_parts = _parts(phi, tails, *near), _parts(phi, tails, *whole)
        is_known = all(map(math.isfinite, (end for p in parts[0] for end in (p.low, p.high))))
        return ActivationBounds(
            value=_largest(all_parts, 0, shift),
            slope=math.inf if may_jump else _largest(parts, 1),
            curvature=math.inf if has_corner else _largest(parts, 2),
            least_slope=_least(parts, 1),
            at_zero=0.0,
            note="" if is_known else _UNKNOWN.format(phi.name),
        )


def _largest(parts: _Parts, order: int, shift: float = 0.0) -> float:
    """Return an upper bound on |phi^(order) + shift|."""
    pieces, ranges = parts
    ends = [plus(values[order], (shift, shift)) for values in ranges]
    inside = [largest(pieces, order, shift)] if pieces else []
    return max([*inside, *(max(-low, high) for low, high in ends)])


def _least(parts: _Parts, order: int) -> float:
    """Return a lower bound on |phi^(order)|."""
    pieces, ranges = parts
    inside = [least(pieces, order)] if pieces else []
    return min([*inside, *(max(0.0, low, -high) for low, high in (v[order] for v in ranges))])


def _parts(phi: Activation, tails: Any, low: float, high: float) -> _Parts:
    """Return the pieces of phi between its tails, and the ranges of phi, phi', phi'' on these."""
    pieces, ranges = _pieces(phi, low, high), []
    for side, declared in zip((-1, 1), tails, strict=True):
        piece = pieces[0 if side < 0 else -1]
        tail = declared or polynomial_tail(piece.expr, X, side)
        near, far = (piece.high, piece.low) if side < 0 else (piece.low, piece.high)
        start = near if tail is None else side * max(side * near, above(side * float(tail.start)))
        if tail is None or side * far <= side * start:
            continue
        ranges.append(_tail_ranges(piece, start, far, tail))
        pieces.remove(piece)
        if start != near:
            ends = (start, near) if side < 0 else (near, start)
            pieces.insert(0 if side < 0 else len(pieces), SmoothPiece(piece.expr, X, *ends))
    return pieces, ranges


def _tail_ranges(piece: SmoothPiece, start: float, far: float, tail: Tail) -> list[Interval]:
    """The ranges of phi, phi' and phi'' between the start of a tail and ``far``."""
    ranges = []
    limits = (_limit(tail.value), _limit(tail.slope), _limit(tail.curvature))
    firsts, lasts = piece.derivatives(start, start), piece.derivatives(far, far)
    for first, last, limit in zip(firsts, lasts, limits, strict=False):
        ranges.append(hull(first, meet(last, hull(first, limit))))
    return ranges


def _limit(value: Any) -> Interval:
    return (float(value), float(value)) if value in (sp.oo, -sp.oo) else constant(sp.sympify(value))


def _pieces(phi: Activation, low: float, high: float) -> list[SmoothPiece]:
    """Return the smooth pieces of phi on [low, high].

    Where kinks are unknown, the piece is the whole expression of phi.
    """
    reach = getattr(phi, "reach", math.inf)
    switches = {point for piece in phi.pieces for point in switch_points(piece)}
    points = sorted({*phi.kinks, *switches}, key=float)
    kinks = [point for point in points if -reach < float(point) < reach]
    exprs = phi.pieces
    if len(kinks) != len(phi.kinks):
        exprs = smooth_pieces(phi.expr, kinks)
    places = [-reach, *map(float, kinks), reach]
    found = list(zip(exprs, pairwise([None, *kinks, None]), pairwise(places), strict=True))
    found += [(phi.expr, (None, None), side) for side in ((-math.inf, -reach), (reach, math.inf))]
    pieces = []
    for expr, (first, last), (a, b) in found:
        if max(a, low) < min(b, high) or (low == high and a <= low <= b):
            left, right = max(_outwards(first, a, -1), low), min(_outwards(last, b, 1), high)
            pieces.append(SmoothPiece(expr, X, left, right))
    return sorted(pieces, key=lambda piece: (piece.low, piece.high))


def _outwards(exact: Any, place: float, side: int) -> float:
    """Convert the endpoint of a piece to a float, rounded outwards unless it is exact."""
    is_float = exact is None or sp.Rational(*place.as_integer_ratio()) == exact
    return place if is_float else below(place) if side < 0 else above(place)
