"""Plans for the kernels of a chunk of pairs.

A plan uses tables, or the general recursion in (c, q1, q2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ...fields.gaps import Gap
from ...foundation.process_state import cached_property
from .tables import AngleTable

Array = np.ndarray
PairFunction = Callable[[Gap, Array, Array], Any]
"""Maps gaps (rows, columns), q1 (rows, 1) and q2 (1, columns) to two matrices."""

_PAIRS_AT_ONCE = 1 << 17
_TABLE_AT_ONCE = 1 << 15


class ChunkPlan(Protocol):
    """A method to compute the kernels of a chunk of pairs.

    ``at_once`` is the number of pairs in a chunk, and ``error_bound`` is relative. ``method`` is a
    description for users. ``fingerprint`` contains values that distinguish one plan from another.
    """

    @property
    def at_once(self) -> int: ...
    @property
    def error_bound(self) -> float: ...
    @property
    def method(self) -> str: ...
    @property
    def fingerprint(self) -> Any: ...
    def fill(
        self,
        w: Array,
        upper: Array,
        rows: slice,
        columns: slice,
        near: Array,
        parts: tuple[int, ...],
        out: tuple[Array, ...],
    ) -> None:
        """Fill ``out`` with kernels at distances w (rows, columns) from c = 1, or -1 if ``upper``.

        w is overwritten.

        ``near`` contains the flat indices of the pairs with w < NEAR.
        """
        ...

    def cut(self, rows: Array, columns: Array) -> ChunkPlan:
        """Return the plan for the given rows and columns only."""
        ...


@dataclass(frozen=True, eq=False)
class TablePlan:
    """Kernels from a table.

    ``classes`` contains an index for the q value of each row and each column. ``scale`` contains a
    factor for each row and each column.
    """

    table: AngleTable
    classes: tuple[Array, Array] | None = None
    scale: tuple[Array, Array] | None = None
    at_once: int = _TABLE_AT_ONCE

    @property
    def error_bound(self) -> float:
        """The relative error bound of the table."""
        return self.table.error_bound

    @property
    def method(self) -> str:
        """A description of the method."""
        return f"table over the angle between rows, relative error <= {self.error_bound:.0e}"

    def fill(
        self,
        w: Array,
        upper: Array,
        rows: slice,
        columns: slice,
        near: Array,
        parts: tuple[int, ...],
        out: tuple[Array, ...],
    ) -> None:
        """Fill ``out``; see :meth:`ChunkPlan.fill`."""
        flat, sides = w.reshape(-1), upper.reshape(-1)
        bank = None if self.classes is None else self._banks(rows, columns)
        special = None
        if near.size:
            special = self.table.at(flat[near], sides[near], 0 if bank is None else bank[near])
        tabled = self.table.near_rows
        row, t = tabled.locate(flat, sides)
        if bank is not None:
            row += 2 * tabled.side * bank
        work = np.empty(flat.size)
        for part, values in zip(parts, out, strict=True):
            filled = values.reshape(-1)
            tabled.values(part, row, t, filled, work)
            if special is not None:
                filled[near] = special[part]
            if self.scale is not None:
                values *= self.scale[0][rows, None]
                values *= self.scale[1][None, columns]

    def cut(self, rows: Array, columns: Array) -> TablePlan:
        """Return the plan for the given rows and columns only."""
        classes, scale = (
            None if pair is None else (pair[0][rows], pair[1][columns])
            for pair in (self.classes, self.scale)
        )
        return TablePlan(self.table, classes, scale)

    def _banks(self, rows: slice, columns: slice) -> Array:
        assert self.classes is not None
        one, two = self.classes[0][rows, None], self.classes[1][None, columns]
        high, low = np.maximum(one, two), np.minimum(one, two)
        return (high * (high + 1) // 2 + low).reshape(-1)

    @cached_property
    def fingerprint(self) -> list[float]:
        """Return values that distinguish one plan from another."""
        return [*self.table.fingerprint, *(() if self.scale is None else _summary(self.scale))]


@dataclass(frozen=True, eq=False)
class PairPlan:
    """Kernels from a recursion through the layers at every pair.

    ``traced`` is the function for JAX arrays, if there is one. Its last argument is the number
    system.
    """

    function: PairFunction
    q: tuple[Array, Array]
    at_once: int = _PAIRS_AT_ONCE
    error_bound: float = 0.0
    method: str = "recursion through the layers for every pair of rows"
    traced: Callable[..., Any] | None = None

    def fill(
        self,
        w: Array,
        upper: Array,
        rows: slice,
        columns: slice,
        near: Array,
        parts: tuple[int, ...],
        out: tuple[Array, ...],
    ) -> None:
        """Fill ``out``; see :meth:`ChunkPlan.fill`."""
        near_, far = np.clip(w, 0.0, 1.0), 2 - np.clip(w, 0.0, 1.0)
        gap = Gap.of(np.where(upper, far, near_), np.where(upper, near_, far))
        found = self.function(gap, self.q[0][rows, None], self.q[1][None, columns])
        for part, values in zip(parts, out, strict=True):
            values[:] = found[part]

    def cut(self, rows: Array, columns: Array) -> PairPlan:
        """Return the plan for the given rows and columns only."""
        return replace(self, q=(self.q[0][rows], self.q[1][columns]))

    @cached_property
    def fingerprint(self) -> list[float]:
        """Return values that distinguish one plan from another."""
        gap = np.array([[0.0, 0.01, 0.3], [0.7, 1.0, 1.3], [1.6, 1.9, 2.0]])
        one, two = (np.quantile(q, (0.0, 0.5, 1.0)) for q in self.q)
        found = self.function(Gap.of(gap, 2 - gap), one[:, None], two[None, :])
        return [*(float(v) for v in np.asarray(found).reshape(-1)), *_summary(self.q)]


def _summary(pair: tuple[Array, Array]) -> list[float]:
    """Return two sums for each of two positive arrays; one sum depends on the order of entries."""
    return [
        float(v @ weights)
        for v in pair
        for weights in (np.ones(len(v)), np.arange(1.0, len(v) + 1))
    ]
