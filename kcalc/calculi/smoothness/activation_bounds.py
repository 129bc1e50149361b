"""Proven bounds of an activation and its first two derivatives on an interval, by branch and bound with interval arithmetic.

Cells on which the next derivative has one sign are monotone and bounded by their ends; others are halved until the bound is within 1e-10
(relative) of a value that is attained, or 3000 cells are spent. Beyond |x| = 1e60 nothing is said: a network whose pre-activations are
there has overflowed in all but name.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import sympy as sp

from ...activations import Activation
from ...activations.base import X, checked
from ...activations.pieces import resolve
from ...arguments import one_number
from ...certified.evaluate import compile_smooth
from ...certified.ranges import above, below, span
from ...errors import KcalcError, glimpse
from ...fields.balls import working
from ...printing import Shown

Interval = tuple[float, float]
Enclosure = Callable[[float, float], Interval]
FAR = 1e60
_HUGE = 1e8  # a supremum beyond this over all x is taken for none
_GAP = 1e-10
_CELLS = 3000
_TAIL = (*(2.0**k for k in range(-6, 12)), *(2.0**k for k in (14, 18, 24, 32, 44, 60, 80, 105, 132, 164)))


@dataclass(frozen=True)
class ActivationBounds(Shown):
    """On one interval: ``value`` >= |phi|, ``slope`` >= |phi'|, ``curvature`` >= |phi''|, ``least_slope`` <= |phi'|; inf where nothing is
    proven.

    ``at_zero`` is |phi(0)|. ``curvature`` is the Lipschitz constant of phi', inf where phi' jumps.
    """

    value: float
    slope: float
    curvature: float
    least_slope: float
    at_zero: float


def activation_bounds(phi: Activation, reach: float = math.inf) -> ActivationBounds:
    """Bounds on |x| <= reach, on all x (up to 1e60) for reach = inf.

    Raises: KcalcError for callables (nothing can be proven of them) and for activations that jump, which have no Lipschitz constant.
    """
    checked(phi).refuse_numeric_only("proven Lipschitz constant")
    if any(phi.jump_sizes(0)):
        raise KcalcError(f"activation {phi.name!r} jumps, so it has no Lipschitz constant; use a continuous one")
    wide = FAR if isinstance(reach, float) and reach == math.inf else min(one_number(reach, "reach"), FAR)
    if wide < 0:
        raise KcalcError(f"reach must be a number >= 0, got {glimpse(reach)}")
    t = phi.transformation
    if t is None:
        return _bounds(phi, -wide, wide)
    a, b, scale, shift = (float(v) for v in (t.input_scale, t.input_shift, t.output_scale, t.output_shift))
    ends = sorted((-a * wide + b, a * wide + b))
    own = _bounds(phi.base, max(below(ends[0]), -FAR), min(above(ends[1]), FAR))
    steep = abs(scale * a)
    return ActivationBounds(
        abs(scale) * (own.value + abs(shift)), steep * own.slope, steep * abs(a) * own.curvature, steep * own.least_slope,
        abs(float(phi(0.0))),
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _bounds(phi: Activation, low: float, high: float) -> ActivationBounds:
    smooth = not any(phi.jump_sizes(1))
    value, slope = _size(phi, 0, low, high), _range(phi, 1, low, high)
    curvature = _size(phi, 2, low, high) if smooth and not _singular(phi, low, high) else math.inf
    return ActivationBounds(value, max(abs(slope[0]), abs(slope[1])), curvature, max(0.0, slope[0], -slope[1]), abs(float(phi(0.0))))


def _singular(phi: Activation, low: float, high: float) -> bool:
    """Whether phi'' is unbounded next to a kink, as that of |x|^1.5 is."""
    for kink in phi.kink_points:
        if low <= kink <= high:
            near = [abs(float(phi.numeric(2)(np.asarray(kink + side * 10.0**-k)))) for side in (-1, 1) for k in (8, 12)]
            if not all(map(math.isfinite, near)) or near[1] > 2 * near[0] + 1 or near[3] > 2 * near[2] + 1:
                return True
    return False


def _size(phi: Activation, order: int, low: float, high: float) -> float:
    ends = _range(phi, order, low, high)
    return max(abs(ends[0]), abs(ends[1]))


def _range(phi: Activation, order: int, low: float, high: float) -> Interval:
    """An interval that holds phi^(order)(x) for all x in [low, high] but the kinks; ends beyond 1e8 on the whole line count as inf."""
    edges = [-FAR, *phi.kink_points, FAR]
    found = [
        _expression_range(_piece(phi, order, index), _piece(phi, order + 1, index), max(left, low), min(right, high))
        for index, (left, right) in enumerate(pairwise(edges))
        if max(left, low) <= min(right, high) and right > low and left < high
    ]
    bottom, top = min(r[0] for r in found), max(r[1] for r in found)
    limit = _HUGE if high - low > FAR / 10 else math.inf
    return (bottom if bottom > -limit else -math.inf), (top if top < limit else math.inf)


@lru_cache(maxsize=4096)
def _piece(phi: Activation, order: int, index: int) -> sp.Expr:
    """phi^(order) on the piece of an index, from the form that does not overflow."""
    if not phi.stable:
        return _tidy(phi._piece_derivatives(order)[index])
    last = min(order, len(phi.stable) - 1)
    expr: Any = resolve(phi.stable[last], phi.kinks, index) if phi.kinks else phi.stable[last]
    return sp.diff(expr, X, order - last) if order > last else expr


def _tidy(expr: sp.Expr) -> sp.Expr:
    """An equal expression in which powers that cancel have done so, if it is shorter: intervals know its sign sooner."""
    if not expr.has(sp.Pow) or expr.count_ops() > 80:
        return expr
    found: Any = sp.factor(sp.together(expr))
    return found if found.count_ops() <= expr.count_ops() else expr


def _expression_range(expr: sp.Expr, slope: sp.Expr, low: float, high: float) -> Interval:
    """The range over [low, high] of an expression (in pieces where it is a Piecewise of its own) with the given derivative."""
    if not expr.has(X):
        return span(expr, X, low, high)
    cuts = sorted({c for e in (expr, slope) for c in _own_cuts(e) if low < c < high})
    ranges = [_searched(_resolved(expr, a, b), _resolved(slope, a, b), a, b) for a, b in pairwise([low, *cuts, high])]
    return min(r[0] for r in ranges), max(r[1] for r in ranges)


def _own_cuts(expr: sp.Expr) -> list[float]:
    """Where the branches of Piecewise parts, Abs and sign change, as far as that is a number compared with x."""
    found: list[float] = [0.0] if expr.has(sp.Abs, sp.sign, sp.Heaviside, sp.Max, sp.Min) else []
    for part in expr.atoms(sp.Piecewise):
        for _, condition in part.args:  # type: ignore[misc]
            found += [float(n) for n in condition.atoms(sp.Number) if n.is_finite]
    return found


def _resolved(expr: sp.Expr, low: float, high: float) -> sp.Expr:
    """An expression without Piecewise, Abs and sign, valid between two cuts."""
    middle = sp.Float(
        (low + high) / 2 if abs(low) < FAR and abs(high) < FAR else (low + 1 if abs(high) >= FAR and abs(low) < FAR else high - 1)
    )
    if abs(low) >= FAR and abs(high) >= FAR:
        middle = sp.Float(0)

    def branch(*args: Any) -> Any:
        return next(value for value, condition in args if condition == True or condition.subs(X, middle) == True)  # noqa: E712

    side = sp.Integer(1 if middle >= 0 else -1)
    plain: Any = expr.replace(sp.Piecewise, branch) if expr.has(sp.Piecewise) else expr
    if plain.has(sp.Abs, sp.sign, sp.Heaviside):
        plain = plain.replace(sp.Abs, lambda a: side * a if a == X else sp.Abs(a)).replace(
            sp.sign, lambda a: side if a == X else sp.sign(a)
        )
    return plain


def _searched(expr: sp.Expr, slope: sp.Expr, low: float, high: float) -> Interval:
    if high <= 0 and low < high:  # mirrored: roots of -x, rounded outwards, would leave their domain at 0
        return _searched(expr.subs(X, -X), -slope.subs(X, -X), -high, -low)  # type: ignore[operator]
    tail = [x for x in (*(-t for t in reversed(_TAIL)), 0.0, *_TAIL) if low < x < high]
    cells = list(pairwise([low, *tail, high]))
    f, rise = _enclosure(expr), _enclosure(slope)
    return -_supremum(_negative(f), rise, cells), _supremum(f, rise, cells)


def _negative(f: Enclosure) -> Enclosure:
    def value(a: float, b: float) -> Interval:
        low, high = f(a, b)
        return -high, -low

    return value


def _supremum(f: Enclosure, rise: Enclosure, cells: list[Interval]) -> float:
    """An upper bound of a function over cells, close to its supremum if the search ends well."""
    attained = -math.inf
    heap: list[tuple[float, float, float]] = []
    for a, b in cells:
        bound, seen = _cell(f, rise, a, b)
        attained = max(attained, seen)
        heapq.heappush(heap, (-bound, a, b))
    for _ in range(_CELLS):
        bound, a, b = heap[0]
        if -bound <= attained + _GAP * abs(attained) + 1e-12 or attained > _HUGE:
            break
        middle = _split(a, b)
        if not a < middle < b:
            break
        heapq.heappop(heap)
        for left, right in ((a, middle), (middle, b)):
            own, seen = _cell(f, rise, left, right)
            attained = max(attained, seen)
            heapq.heappush(heap, (-min(own, -bound), left, right))
    return -heap[0][0]


def _split(a: float, b: float) -> float:
    """The middle of a cell, on a logarithmic scale far from 0."""
    if a > 1 and b > 4 * a:
        return math.sqrt(a) * math.sqrt(b)
    if b < -1 and a < 4 * b:
        return -math.sqrt(-a) * math.sqrt(-b)
    return a + (b - a) / 2


def _cell(f: Enclosure, rise: Enclosure, a: float, b: float) -> tuple[float, float]:
    """(upper bound on [a, b], lower bound of a value attained there)."""
    ends = f(a, a), f(b, b)
    attained, top = max(end[0] for end in ends), max(end[1] for end in ends)
    slope = rise(a, b)
    if slope[0] >= 0 or slope[1] <= 0:
        return top, attained
    steep = max(abs(slope[0]), abs(slope[1]))
    centred = above((ends[0][1] + ends[1][1] + steep * (b - a)) / 2)
    return min(f(a, b)[1], centred), attained


def _enclosure(expr: sp.Expr) -> Enclosure:
    """An expression as a function of intervals: by balls, and by intervals of floats where those are not finite."""
    from flint import arb

    try:
        smooth = compile_smooth(expr).real
    except KcalcError:
        return lambda a, b: span(expr, X, a, b)

    @lru_cache(maxsize=1 << 14)
    def value(a: float, b: float) -> Interval:
        with working(80):
            ball = smooth(arb(a) if a == b else arb(a).union(arb(b)))
            if ball.is_finite():
                return below(float(ball.lower())), above(float(ball.upper()))
        return span(expr, X, a, b)

    return value
