"""Proven bounds of an activation and its first two derivatives on an interval or the whole line."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import sympy as sp

from ...activations import Activation
from ...activations.base import X, checked
from ...activations.pieces import smooth_pieces, switch_points
from ...fields.arguments import one_number
from ...fields.balls import working
from ...foundation.errors import KcalcError, glimpse
from ...foundation.printing import Shown
from ...gaussian.certified.enclosures import Piece
from ...gaussian.certified.ranges import above, below
from ...gaussian.certified.suprema import BITS, largest, least, peak

WIDE = 64.0  # on longer intervals the bound of the whole line is tried first
_JUMPING = (sp.sign, sp.Heaviside, sp.Piecewise)


@dataclass(frozen=True)
class ActivationBounds(Shown):
    """Bounds on one interval, inf where nothing is proven.

    ``value`` >= |phi|, ``slope`` >= |phi'|, ``curvature`` >= |phi''|, ``least_slope`` <= |phi'|;
    ``at_zero`` is |phi(0)|. ``curvature`` is a Lipschitz constant of phi', inf if phi' jumps.
    """

    value: float
    slope: float
    curvature: float
    least_slope: float
    at_zero: float


def activation_bounds(phi: Activation, reach: float = math.inf) -> ActivationBounds:
    """Bounds of |phi|, |phi'| and |phi''| on |x| <= reach, by default on all x.

    They are proven by interval arithmetic: on short intervals with Arb balls, on long and infinite
    ones relative to asymptotic scales. The search for the suprema has a budget. Bounds usually
    exceed the suprema by at most 1e-9 (relative); they are valid, but less tight, where the budget
    is used up.

    Parameters
    ----------
    phi : Activation
        a continuous activation given by a formula.
    reach : float, optional
        bounds are wanted for |x| <= reach, by default for all x.

    Returns
    -------
    ActivationBounds

    Raises
    ------
    KcalcError
        For callables, of which nothing can be proven, for activations that jump, which have no
        Lipschitz constant, and for a reach that is negative or no number.

    """
    checked(phi).refuse_numeric_only("proven Lipschitz constant")
    if any(phi.jump_sizes(0)):
        why = "jumps, so it has no Lipschitz constant; use a continuous one"
        raise KcalcError(f"activation {phi.name!r} {why}")
    everywhere = isinstance(reach, float) and reach == math.inf
    wide = math.inf if everywhere else one_number(reach, "reach")
    if wide < 0:
        raise KcalcError(f"reach must be a number >= 0, got {glimpse(reach)}")
    t, at_zero = phi.transformation, abs(float(phi(0.0)))
    if t is None:
        return replace(_bounds(phi, -wide, wide), at_zero=at_zero)
    a, b, scale, shift = map(float, (t.input_scale, t.input_shift, t.output_scale, t.output_shift))
    left, right = sorted((-a * wide + b, a * wide + b))
    own = _bounds(phi.base, below(left), above(right), shift)
    steep = abs(scale * a)
    return ActivationBounds(
        value=above(abs(scale) * own.value),
        slope=above(steep * own.slope),
        curvature=above(steep * abs(a) * own.curvature),
        least_slope=max(0.0, below(steep * own.least_slope)),
        at_zero=at_zero,
    )


@lru_cache(maxsize=4096)
def _bounds(phi: Activation, low: float, high: float, shift: float = 0.0) -> ActivationBounds:
    """The bounds of phi + shift on [low, high]; its value at 0 is left out."""
    pieces = _pieces(phi, low, high)
    goes_on = max(-low, high) > getattr(phi, "reach", math.inf)  # there are more kinks beyond
    bends = zip(phi.kink_points, phi.jump_sizes(1), strict=True)
    has_corner = goes_on or any(jump for kink, jump in bends if low < kink < high)
    may_jump = goes_on and phi.expr.has(*_JUMPING)
    with working(BITS):
        return ActivationBounds(
            value=_largest(phi, pieces, (low, high), 0, shift),
            slope=math.inf if may_jump else _largest(phi, pieces, (low, high), 1),
            curvature=math.inf if has_corner else _largest(phi, pieces, (low, high), 2),
            least_slope=least(pieces, 1),
            at_zero=0.0,
        )


def _largest(
    phi: Activation, pieces: list[Piece], ends: tuple[float, float], order: int, shift: float = 0.0
) -> float:
    """The bound on an interval; on a wide one the whole line's, where it is attained inside."""
    low, high = ends
    if high - low > WIDE:
        bound, place = _peak(phi, order, shift)
        if low <= place <= high:
            return bound
    return largest(pieces, order, shift)


@lru_cache(maxsize=1024)
def _peak(phi: Activation, order: int, shift: float) -> tuple[float, float]:
    """(bound on the whole line, the point where it is attained)."""
    return peak(_pieces(phi, -math.inf, math.inf), order, shift)


def _pieces(phi: Activation, low: float, high: float) -> list[Piece]:
    """The smooth pieces of phi on [low, high], and its whole expression where kinks are unknown."""
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
            pieces.append(Piece(expr, X, (first, left), (last, right)))
    return pieces


def _outwards(exact: Any, place: float, side: int) -> float:
    """The end of a piece as a float, rounded outwards where the exact end is no float."""
    is_float = exact is None or sp.Rational(*place.as_integer_ratio()) == exact
    return place if is_float else below(place) if side < 0 else above(place)
