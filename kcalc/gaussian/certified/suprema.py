"""Proven extreme values of derivatives of smooth pieces, by branch and bound.

Balls bound short cells: by the ends where the next derivative has one sign, else by the mean value
theorem. Where they say little, as on long and infinite cells, germs bound the derivative relative
to asymptotic scales. Cells are split until the bound is within 1e-9 (relative) of a value that is
attained, or the budget is spent; the bound holds in either case.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .enclosures import Piece
from .phases import TURN
from .ranges import ALL, Interval, above, hull, meet, plus

BITS = 80  # of the balls, set by the caller
_GAP = 1e-9
_PATIENCE = 1e7  # by how much the gap grows while the second half of the budget is spent
_NOTHING = 1e-18  # values below it count as 0
_STEPS, _PRODUCTS = 16_000, 10_000  # of balls and of germs that one search may spend
_SAMPLES = 100
_START, _FARTHEST = 64.0, 1e100  # between which infinite cells are split
_NARROWEST = 1e-40  # cell on which a function without a bound is taken to be unbounded
_TURNS = (0.0, TURN + 1e-9)
_FEW = 8.0  # turns: cells of fewer are split in x alone


@dataclass(order=True)
class _Cell:
    """Part of a piece: x in [a, b], and the phase of its waves in ``angle``.

    ``rank``: the bound, as a number of which the smallest is split next. ``depth``: how often it
    was split. ``wait``: the depth from which germs, far slower than balls, are tried again.
    """

    rank: float
    a: float
    b: float
    piece: int
    depth: int = 0
    wait: int = 0
    angle: Interval | None = None


class _Search:
    """A search for the supremum (sign -1) or infimum (1) of |f^(order) + shift| over pieces."""

    def __init__(self, pieces: Sequence[Piece], order: int, sign: int, shift: float) -> None:
        self.order, self.sign, self.shift = order, sign, shift
        self.pieces = [piece.reduced(order, shift) for piece in pieces]
        self.attained = math.inf if sign > 0 else 0.0
        self.place = math.nan  # where
        self.heap: list[_Cell] = []
        self.seen: set[tuple[float, float, int]] = set()

    def run(self) -> float:
        """The bound."""
        cells: list[_Cell] = []
        for index, piece in enumerate(self.pieces):
            cells += [_Cell(-math.inf, a, b, index) for a, b in pairwise(piece.cuts())]
        for cell in cells:
            for a, b in pairwise(_samples(cell.a, cell.b)):
                self._ends(self.pieces[cell.piece], a, b)
        for cell in cells:
            self._push(cell)
        while self._spent() < 1 and not self._settled(self.heap[0].rank):
            cell = heapq.heappop(self.heap)
            parts = self._split(cell)
            if not parts:
                heapq.heappush(self.heap, cell)
                break
            for a, b, angle in parts:
                self._push(_Cell(cell.rank, a, b, cell.piece, cell.depth + 1, cell.wait, angle))
        return self.sign * self.heap[0].rank

    def _spent(self) -> float:
        """The share of the budget that is spent."""
        steps = sum(piece.steps for piece in self.pieces)
        return max(steps / _STEPS, sum(piece.products for piece in self.pieces) / _PRODUCTS)

    def _settled(self, rank: float) -> bool:
        """Whether a cell of this bound can change the result no more."""
        if math.isinf(self.attained):
            return False
        gap = _GAP * _PATIENCE ** max(0.0, 2 * self._spent() - 1)
        return rank >= self.sign * self.attained - gap * self.attained - _NOTHING

    def _push(self, cell: _Cell) -> None:
        """Bound a cell, of which ``rank`` is known from the one that it is part of."""
        place = cell.a, cell.b, cell.piece
        if cell.angle is None and place in self.seen:
            return
        self.seen.add(place)
        self._bound(cell)
        heapq.heappush(self.heap, cell)

    def _rank(self, values: Interval) -> float:
        """The bound of |values| as one that smaller ones go before."""
        low, high = values
        return -max(abs(low), abs(high)) if self.sign < 0 else max(0.0, low, -high)

    def _moved(self, values: Interval) -> Interval:
        return plus(values, (self.shift, self.shift)) if self.shift else values

    def _bound(self, cell: _Cell) -> None:
        """Improve the rank of a cell."""
        a, b, piece = cell.a, cell.b, self.pieces[cell.piece]
        if math.isfinite(a) and math.isfinite(b):
            cell.rank = max(cell.rank, self._rank(self._by_balls(piece, a, b)))
        is_early = cell.angle is None and cell.depth < cell.wait and math.isfinite(cell.rank)
        if is_early or self._settled(cell.rank):
            return
        values = piece.stretched(a, b, self.order, cell.angle)
        if values == ALL:
            return
        found = max(cell.rank, self._rank(self._moved(values)))
        helped = self._excess(found) < self._excess(cell.rank) / 2
        cell.rank, cell.wait = found, cell.depth + (1 if helped else 3)

    def _excess(self, rank: float) -> float:
        """The difference of a bound and the largest value found."""
        return self.sign * self.attained - rank

    def _by_balls(self, piece: Piece, a: float, b: float) -> Interval:
        values, rise = piece.derivatives(a, b)[self.order : self.order + 2]
        left, right = self._ends(piece, a, b)
        if piece.is_cornered:
            return self._moved(values)
        if rise[0] >= 0 or rise[1] <= 0:
            return meet(self._moved(values), hull(left, right))
        half = above(max(-rise[0], rise[1]) * (b - a) / 2)
        middle = plus(left, right)
        return meet(self._moved(values), plus((middle[0] / 2, middle[1] / 2), (-half, half)))

    def _ends(self, piece: Piece, a: float, b: float) -> tuple[Interval, Interval]:
        """The values at both ends, which are attained; between two of different signs 0 is."""
        left, right = (self._moved(self._at(piece, x)) for x in (a, b))
        if self.sign < 0:
            for x, (low, high) in ((a, left), (b, right)):
                if max(low, -high) > self.attained:
                    self.attained, self.place = max(low, -high), x
        elif left[1] < 0 < right[0] or right[1] < 0 < left[0]:
            self.attained = 0.0
        else:
            sizes = [max(-low, high) for low, high in (left, right)]
            self.attained = min(self.attained, *sizes)
        return left, right

    def _at(self, piece: Piece, x: float) -> Interval:
        """The value at x, by germs where balls overflow."""
        found = piece.derivatives(x, x)[self.order]
        overflows = math.isinf(found[1] - found[0]) and math.isfinite(x) and abs(x) > _START
        return piece.stretched(x, x, self.order, None) if overflows else found

    def _split(self, cell: _Cell) -> list[tuple[float, float, Interval | None]]:
        """The parts of a cell; none where it is not worth it."""
        a, b, piece = cell.a, cell.b, self.pieces[cell.piece]
        turns = piece.phases.turns(a, b, piece.balls)
        if turns > _FEW and self._depends_on_phase(cell, piece):
            low, high = cell.angle or _TURNS
            middle = (low + high) / 2
            return [(a, b, (low, middle)), (a, b, (middle, high))]
        if math.isinf(a) or math.isinf(b):
            edge = min(abs(a), abs(b))
            if edge > _FARTHEST:
                return []
            middle = math.copysign(max(edge * edge, _START), a if math.isinf(b) else b)
        else:
            middle = _middle(a, b)
        if not a < middle < b or (math.isinf(cell.rank) and b - a < _NARROWEST):
            return []
        return [(x, y, cell.angle if turns > _FEW else None) for x, y in ((a, middle), (middle, b))]

    def _depends_on_phase(self, cell: _Cell, piece: Piece) -> bool:
        """Whether the phase of its waves, not its length, makes the bound of a cell large."""
        if math.isinf(cell.rank) or cell.angle is None:
            return math.isfinite(cell.rank)
        middle = (cell.angle[0] + cell.angle[1]) / 2
        values = piece.stretched(cell.a, cell.b, self.order, (middle, middle))
        fixed = self._rank(self._moved(values))
        return fixed - cell.rank > self._excess(cell.rank) / 2


def _samples(a: float, b: float) -> list[float]:
    """Points of a cell whose values are taken notice of before the search."""
    if math.isinf(a) and math.isinf(b):
        return [-_START, 0.0, _START]
    if math.isinf(b):
        return [a + 0.37 * k for k in range(_SAMPLES)]
    if math.isinf(a):
        return [b - 0.37 * k for k in range(_SAMPLES)]
    return [a, b]


def _middle(a: float, b: float) -> float:
    """The middle of a cell, on a logarithmic scale far from 0."""
    if a > 0 and b > 4 * a:
        return math.sqrt(a) * math.sqrt(b)
    if b < 0 and a < 4 * b:
        return -math.sqrt(-a) * math.sqrt(-b)
    return a + (b - a) / 2


def largest(pieces: Sequence[Piece], order: int, shift: float = 0.0) -> float:
    """An upper bound of |f^(order) + shift| over pieces, inf where none is proven.

    It is close to the supremum if the search ends within its budget.
    """
    return _Search(pieces, order, -1, shift).run()


def peak(pieces: Sequence[Piece], order: int, shift: float = 0.0) -> tuple[float, float]:
    """The bound of :func:`largest`, and an x where |f^(order) + shift| comes within 1e-9 of it.

    The place is nan where the search ended before.
    """
    search = _Search(pieces, order, -1, shift)
    bound = search.run()
    return bound, search.place if bound <= search.attained * (1 + 2 * _GAP) else math.nan


def least(pieces: Sequence[Piece], order: int) -> float:
    """A lower bound of |f^(order)| over pieces, close to the infimum if the budget suffices."""
    return _Search(pieces, order, 1, 0.0).run()
