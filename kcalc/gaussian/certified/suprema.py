"""Proven extreme values of derivatives of smooth pieces on intervals, by branch and bound.

Each cell is bounded by the values at its ends if the next derivative has one sign, and otherwise by
the mean value theorem. Cells are split until the bound is within 1e-9 (relative) of an attained
value, or until the budget is spent. The bound is valid in either case.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .enclosures import SmoothPiece
from .ranges import Interval, above, hull, meet, plus

BITS = 80  # precision of the ends of intervals, set by the caller
_GAP = 1e-9
_PATIENCE = 1e7  # factor by which the gap grows while the second half of the budget is spent
_NOTHING = 1e-18  # values below this count as 0
_STEPS = 24_000  # budget of one search
_GRID = [2.0**k for k in range(-6, 7)]
_NARROWEST = 1e-40  # a function without a bound on such a narrow cell is unbounded


@dataclass(order=True)
class _Cell:
    """A part [a, b] of a piece.

    ``rank`` is the bound on this part. The cell with the smallest bound is split next.
    """

    rank: float
    a: float
    b: float
    piece: int


class _Search:
    """A search for the supremum (sign -1) or infimum (1) of |f^(order) + shift| over pieces."""

    def __init__(self, pieces: Sequence[SmoothPiece], order: int, sign: int, shift: float) -> None:
        self.pieces, self.order, self.sign, self.shift = pieces, order, sign, shift
        self.start = sum(piece.steps for piece in pieces)
        self.attained = math.inf if sign > 0 else 0.0
        self.heap: list[_Cell] = []

    def run(self) -> float:
        """Run the search and return the bound."""
        for index, piece in enumerate(self.pieces):
            for a, b in pairwise(_cuts(piece)):
                self._push(_Cell(-math.inf, a, b, index))
        while self._spent() < 1 and not self._settled(self.heap[0].rank):
            cell = heapq.heappop(self.heap)
            middle = _middle(cell.a, cell.b)
            narrow = math.isinf(cell.rank) and cell.b - cell.a < _NARROWEST
            if narrow or not cell.a < middle < cell.b:
                heapq.heappush(self.heap, cell)
                break
            for a, b in ((cell.a, middle), (middle, cell.b)):
                self._push(_Cell(cell.rank, a, b, cell.piece))
        return self.sign * self.heap[0].rank

    def _spent(self) -> float:
        """Return the share of the budget that is spent."""
        return (sum(piece.steps for piece in self.pieces) - self.start) / _STEPS

    def _settled(self, rank: float) -> bool:
        """Whether a cell with this bound can no longer change the result."""
        if math.isinf(self.attained):
            return False
        gap = _GAP * _PATIENCE ** max(0.0, 2 * self._spent() - 1)
        return rank >= self.sign * self.attained - gap * self.attained - _NOTHING

    def _push(self, cell: _Cell) -> None:
        """Bound a cell and add it to the heap.

        Before the call, its ``rank`` is the bound for the larger cell that contains it.
        """
        low, high = self._values(self.pieces[cell.piece], cell.a, cell.b)
        rank = -max(abs(low), abs(high)) if self.sign < 0 else max(0.0, low, -high)
        cell.rank = max(cell.rank, rank)
        heapq.heappush(self.heap, cell)

    def _moved(self, values: Interval) -> Interval:
        return plus(values, (self.shift, self.shift)) if self.shift else values

    def _values(self, piece: SmoothPiece, a: float, b: float) -> Interval:
        """Return an enclosure of f^(order) + shift on [a, b]."""
        values, rise = piece.derivatives(a, b)[self.order : self.order + 2]
        left, right = self._ends(piece, a, b)
        if piece.is_cornered:
            return self._moved(values)
        if rise[0] >= 0 or rise[1] <= 0:
            return meet(self._moved(values), hull(left, right))
        half = above(max(-rise[0], rise[1]) * (b - a) / 2)
        middle = plus(left, right)
        return meet(self._moved(values), plus((middle[0] / 2, middle[1] / 2), (-half, half)))

    def _ends(self, piece: SmoothPiece, a: float, b: float) -> tuple[Interval, Interval]:
        """Return the values at both ends, and update ``attained``.

        The values at the ends are attained, and so is 0 if their signs differ.
        """
        left, right = (self._moved(piece.derivatives(x, x)[self.order]) for x in (a, b))
        if self.sign < 0:
            self.attained = max(self.attained, *(max(low, -high) for low, high in (left, right)))
        elif left[1] < 0 < right[0] or right[1] < 0 < left[0]:
            self.attained = 0.0
        else:
            self.attained = min(self.attained, *(max(-low, high) for low, high in (left, right)))
        return left, right


def _cuts(piece: SmoothPiece) -> list[float]:
    """Return the ends of the first cells, at powers of 2."""
    inside = (x for x in (*(-t for t in _GRID), 0.0, *_GRID) if piece.low < x < piece.high)
    return [piece.low, *sorted(inside), piece.high]


def _middle(a: float, b: float) -> float:
    """Return the middle of a cell, on a log scale far from 0; inf or nan if an end is infinite."""
    if a > 0 and b > 4 * a:
        return math.sqrt(a) * math.sqrt(b)
    if b < 0 and a < 4 * b:
        return -math.sqrt(-a) * math.sqrt(-b)
    return a + (b - a) / 2


def largest(pieces: Sequence[SmoothPiece], order: int, shift: float = 0.0) -> float:
    """Return an upper bound on |f^(order) + shift| over pieces, inf if none is proven.

    The bound is close to the supremum if the search ends within its budget.
    """
    return _Search(pieces, order, -1, shift).run()


def least(pieces: Sequence[SmoothPiece], order: int) -> float:
    """Return a lower bound on |f^(order)| over pieces, near the infimum if the budget suffices."""
    return _Search(pieces, order, 1, 0.0).run()
