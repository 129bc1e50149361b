"""Zero rows, which have no angle; their kernels are functions of the other row's norm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ...foundation.process_state import cached_property
from .options import Kernels
from .plans import ChunkPlan

Array = np.ndarray
Two = tuple[Array, Array]


@dataclass(frozen=True, eq=False)
class WithZeros:
    """A plan for rows, some of which are zero.

    ``plan`` is a plan with other rows in place of the zero rows. ``zero`` contains masks of the
    zero rows and of the zero columns. ``kernels`` contains two arrays (2, n): the kernels
    between a zero row and every row, and between a zero row and every column.
    """

    plan: ChunkPlan
    zero: Two
    kernels: Two

    @property
    def at_once(self) -> int:
        """The number of pairs in a chunk; see :class:`ChunkPlan`."""
        return self.plan.at_once

    @property
    def error_bound(self) -> float:
        """The error bound for the nonzero rows. Kernels of zero rows are exact."""
        return self.plan.error_bound

    @property
    def method(self) -> str:
        """A description of the method."""
        return (
            f"{self.plan.method}; for zero rows, values computed from the norms of the other rows"
        )

    @cached_property
    def fingerprint(self) -> list[float]:
        """Return values that distinguish one plan from another."""
        places = [float(v) for mask in self.zero for v in np.flatnonzero(mask)]
        ends = [float(v) for found in self.kernels for v in found.sum(axis=1)]
        return [*self.plan.fingerprint, *places, *ends]

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
        self.plan.fill(w, upper, rows, columns, near, parts, out)
        for part, values in zip(parts, out, strict=True):
            self.overwrite(part, rows, columns, values)

    def overwrite(self, part: int, rows: slice, columns: slice, values: Array) -> None:
        """Write the kernels of zero rows and columns into a block."""
        above, beside = self.zero[0][rows], self.zero[1][columns]
        values[above] = self.kernels[1][part, columns]
        values[:, beside] = self.kernels[0][part, rows][:, None]

    def cut(self, rows: Array, columns: Array) -> WithZeros:
        """Return the plan for the given rows and columns only."""
        zero = self.zero[0][rows], self.zero[1][columns]
        kernels = self.kernels[0][:, rows], self.kernels[1][:, columns]
        return replace(self, plan=self.plan.cut(rows, columns), zero=zero, kernels=kernels)


def planned(
    kernels: Kernels, left: Array, right: Array, tolerance: float, tabled: bool = False
) -> ChunkPlan:
    """Return the plan for rows with q values ``left`` and ``right``, some of which may be 0.

    Raises KcalcError for zero rows if the kernels depend on angles only. Errors raised by
    ``kernels.plan`` propagate.
    """
    zero = left == 0, right == 0
    if not (zero[0].any() or zero[1].any()):
        return kernels.plan(left, right, tolerance, tabled)
    if kernels.q is not None:
        what, mask = ("X", zero[0]) if zero[0].any() else ("Y", zero[1])
        raise KcalcError(
            f"row {np.flatnonzero(mask)[0]} of {what} is zero, so it has no angle to other rows; "
            "leave it out, or drop q= to take norms into account"
        )
    sizes, places = np.unique(np.concatenate([left, right]), return_inverse=True)
    found = kernels.at_zero(sizes)[:, places]
    positive = sizes[sizes > 0]
    inner = [np.where(q > 0, q, positive[0] if positive.size else 1.0) for q in (left, right)]
    plan = kernels.plan(inner[0], inner[1], tolerance, tabled)
    return WithZeros(plan, zero, (found[:, : len(left)], found[:, len(left) :]))


def unpacked(plan: ChunkPlan) -> tuple[Any, WithZeros | None]:
    """Return the plan of the nonzero rows, and the plan of all rows if some are zero."""
    return (plan.plan, plan) if isinstance(plan, WithZeros) else (plan, None)
