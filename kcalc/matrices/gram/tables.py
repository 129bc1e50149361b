"""Tables of kernels as functions of the gap.

The NNGP and the tangent kernel share an interval index. Each needs one gather and one Horner pass.

As in :mod:`kcalc.fields.tables.dyadic`, the distance w to c = 1 or c = -1, whichever is nearer, is
divided into octaves, which are divided into equal intervals. The leading bits of w are the index,
and the following bits are the coordinate. Clearly different rows need only a few octaves, which
stay in cache. Near-duplicates, whose gaps come from differences, need up to a thousand octaves,
which are created on demand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from ...fields.chebyshev import points, power_rows, transform
from ...fields.panels import CHECKS, Fitted, GapFunctions, fit, sizes
from ...foundation.errors import KcalcError
from ...foundation.process_state import ALONE, cached_property

Array = np.ndarray

BITS = 9
PARTS = 1 << BITS
NEAR = 2.0**-7
"""Distances below this (c > 0.992) come from differences of rows, not from the Gram matrix."""

_SHIFT = 52 - BITS
_FRACTION, _ONE = (1 << 52) - 1, 1023 << 52
_DEGREES = (3, 4, 6, 8)
_SAMPLES = 24  # Chebyshev points at which an octave is sampled
_TOLERANCE = 3e-14
_SAFETY, _ROUNDING = 4.0, 1e-14
_KEPT = 4
_FEW = 4096  # up to this many gaps are evaluated on the panels if no deep rows exist yet


@dataclass(frozen=True, eq=False)
class OctaveRows:
    """The intervals of ``octaves`` octaves on both sides, as polynomials.

    ``coefficients`` has shape (2, degree + 1, banks * 2 * rows), with the NNGP first and powers in
    ascending order.
    """

    coefficients: Array
    octaves: int
    error: float
    on_device: dict[str, Any] = field(default_factory=dict)

    @property
    def side(self) -> int:
        """The number of rows per side: the intervals, and two rows beyond the ends."""
        return self.octaves * PARTS + 2

    @property
    def first(self) -> int:
        """The offset between the leading bits of w and its row."""
        return ((1023 - self.octaves) << BITS) - 1

    def locate(self, w: Array, upper: Array) -> tuple[Array, Array]:
        """Return (row, coordinate in [-1/2, 1/2)) for distances w <= 1.

        w must be a contiguous float64 array, and it is overwritten. Distances below the last octave
        belong to row 0.
        """
        bits = w.view(np.int64)
        row = bits >> _SHIFT
        row -= self.first
        np.maximum(row, 0, out=row)
        row += upper * np.int64(self.side)
        bits <<= BITS
        bits &= _FRACTION
        bits |= _ONE
        w -= 1.5
        return row, w

    def values(self, part: int, row: Array, t: Array, out: Array, work: Array) -> None:
        """Evaluate NNGP (part 0) or NTK (part 1) by Horner's rule into ``out``."""
        columns = self.coefficients[part]
        np.take(columns[-1], row, mode="clip", out=out)
        for column in columns[-2::-1]:
            out *= t
            np.take(column, row, mode="clip", out=work)
            out += work


@dataclass(frozen=True, eq=False, repr=False)
class AngleTable:
    """Kernels as functions of the gap u = 1 - c.

    There are ``banks`` pairs of q values, with NNGP and NTK for each.

    ``error_bound`` bounds |table - kernel| relative to |kernel|, or to a hundredth of the NNGP at
    equal inputs if that is larger (near a zero, relative to a fraction of the values around it).
    The bound is 4 times the error measured between nodes, plus rounding. ``evaluations`` is the
    number of gaps at which the exact kernels were evaluated. ``factor`` multiplies the fitted
    functions.
    """

    fitted: Fitted
    banks: int
    factor: float = 1.0
    _rows: dict[int, OctaveRows] = field(default_factory=dict)
    _scaled: dict[float, AngleTable] = field(default_factory=dict)

    @cached_property
    def error_bound(self) -> float:
        """The relative error bound; see the class."""
        return _SAFETY * max(self.near_rows.error, float(self.fitted.error.max())) + _ROUNDING

    @property
    def evaluations(self) -> int:
        """The number of exact evaluations; see the class."""
        return self.fitted.evaluations

    @property
    def near_rows(self) -> OctaveRows:
        """The rows of the octaves down to ``NEAR``."""
        return self._made(round(-math.log2(NEAR)) + 1)

    @property
    def all_rows(self) -> OctaveRows:
        """The rows of all octaves."""
        return self._made(int(max(self.fitted.lower.edges[-1], self.fitted.upper.edges[-1])))

    def _made(self, octaves: int) -> OctaveRows:
        if octaves not in self._rows:
            self._rows[octaves] = _rows(self.fitted, self.banks, octaves, self.factor)
        return self._rows[octaves]

    def at(self, w: Array, upper: Array, bank: Array | int = 0) -> Array:
        """Return NNGP and NTK, with shape (2, n), at n arbitrary distances w <= 1.

        The distances are from c = 1, or from c = -1 if ``upper`` is set.
        """
        if w.size <= _FEW:
            with np.errstate(divide="ignore"):
                found = self.fitted.at(-np.log2(np.maximum(w, 0.0)), upper) * self.factor
            index = 2 * np.broadcast_to(bank, w.shape)
            return np.stack([found[index, np.arange(w.size)], found[index + 1, np.arange(w.size)]])
        rows = self.all_rows
        row, t = rows.locate(np.array(w), upper)
        row += 2 * rows.side * np.asarray(bank)
        out, work = np.empty((2, w.size)), np.empty(w.size)
        for part in (0, 1):
            rows.values(part, row, t, out[part], work)
        return out

    def every_bank(self, w: Array, upper: Array) -> Array:
        """Return the values of all banks, (banks, 2, n); see :meth:`at`."""
        out = np.empty((2 * self.banks, w.size))
        for start in range(0, w.size, _FEW):
            here = slice(start, start + _FEW)
            with np.errstate(divide="ignore"):
                out[:, here] = (
                    self.fitted.at(-np.log2(np.maximum(w[here], 0.0)), upper[here]) * self.factor
                )
        return out.reshape(self.banks, 2, w.size)

    def at_gap(self, gap: Any, bank: int = 0) -> tuple[Array, Array]:
        """Return (NNGP, NTK) at gaps in [0, 2], in any shape."""
        gap = np.asarray(gap, dtype=float)
        if not np.all((gap >= 0) & (gap <= 2)):
            raise KcalcError("a gap, 1 - c, must be in [0, 2]")
        flat = gap.reshape(-1)
        out = self.at(np.minimum(flat, 2 - flat), flat > 1, bank)
        return out[0].reshape(gap.shape), out[1].reshape(gap.shape)

    def scaled(self, factor: float) -> AngleTable:
        """Return the table of ``factor`` times the kernels.

        The last few tables are cached with their rows.
        """
        if factor == 1:
            return self
        with ALONE:
            if factor not in self._scaled:
                while len(self._scaled) >= _KEPT:
                    self._scaled.pop(next(iter(self._scaled)))
                self._scaled[factor] = AngleTable(self.fitted, self.banks, self.factor * factor)
            return self._scaled[factor]

    @cached_property
    def fingerprint(self) -> list[float]:
        """Return some values that are equal for equal kernels, up to rounding."""
        probes = np.array([0.0, 0.01, 0.3, 0.7, 1.0, 1.3, 1.9, 2.0])
        return [
            float(v)
            for bank in range(self.banks)
            for part in self.at_gap(probes, bank)
            for v in part
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {
            "fitted": self.fitted,
            "banks": self.banks,
            "factor": self.factor,
            "_rows": {},
            "_scaled": {},
        }

    def __repr__(self) -> str:
        return f"AngleTable({self.evaluations} evaluations, error <= {self.error_bound:.1e})"


def tabulate(function: GapFunctions, banks: int = 1, odd: bool = False) -> AngleTable:
    """Return the table of ``function``, which maps gaps (n,) to kernels (2 * banks, n).

    The kernels are the NNGP and the NTK of each bank.

    ``odd`` means that the kernels belong to an odd network, with NNGP(-c) = -NNGP(c), and likewise
    for the NTK. c < 0 is then not evaluated. Raises KcalcError if the function is not finite.
    """
    return AngleTable(
        fit(function, _TOLERANCE, _floor, -np.ones(2 * banks) if odd else None), banks
    )


def _floor(end: Array) -> Array:
    """Return a hundredth of the NNGP at c = 1, the smallest scale for relative errors.

    A smaller NNGP is computed from 1 - u, whose absolute error does not decrease any further.
    """
    return 1e-2 * np.repeat(np.abs(end[::2]), 2)


def _rows(fitted: Fitted, banks: int, octaves: int, factor: float) -> OctaveRows:
    """Return the rows of the lowest degree that adds little to the error of the panels."""
    best: OctaveRows | None = None
    for degree in _DEGREES:
        sides = [_side_columns(side, octaves, degree) for side in (fitted.lower, fitted.upper)]
        shaped = (
            np.concatenate(sides, axis=2).reshape(banks, 2, degree + 1, -1).transpose(1, 2, 0, 3)
        )
        plain = OctaveRows(np.ascontiguousarray(shaped).reshape(2, degree + 1, -1), octaves, 0.0)
        error = _missed(plain, fitted)
        if best is None or error < best.error / 2:
            best = OctaveRows(
                plain.coefficients if factor == 1 else plain.coefficients * factor, octaves, error
            )
        if error <= _TOLERANCE:
            break
    assert best is not None
    return best


def _missed(rows: OctaveRows, fitted: Fitted) -> float:
    s, upper, values = fitted.checks
    size = sizes(values.reshape(len(values), -1, CHECKS.size)).reshape(values.shape)
    size = np.maximum(size, _floor(fitted.lower.end)[:, None])
    here = s <= rows.octaves
    row, t = rows.locate(np.exp2(-s[here]), upper[here])
    out, work, worst = np.empty(row.size), np.empty(row.size), 0.0
    for k, (value, scale) in enumerate(zip(values[:, here], size[:, here], strict=True)):
        rows.values(k % 2, row + 2 * rows.side * (k // 2), t, out, work)
        worst = max(worst, float((np.abs(out - value) / scale).max()))
    return worst


def _side_columns(side: Callable[[Array], Array], octaves: int, degree: int) -> Array:
    """Return coefficients (functions, degree + 1, rows) for one side."""
    nodes = (3 + points(_SAMPLES)) / 2  # nodes in [1, 2)
    s = np.arange(octaves, 0, -1.0)[:, None] - np.log2(nodes)
    values = side(np.concatenate([s.ravel(), [np.inf, 0.0]]))
    inside = values[:, :-2].reshape(-1, _SAMPLES)
    out = np.zeros((len(values), degree + 1, octaves * PARTS + 2))
    out[:, 0, 0], out[:, 0, -1] = values[:, -2], values[:, -1]
    matrix = _conversion(degree)
    # use einsum instead of BLAS, whose threads cost more than such a small product
    for k in range(degree + 1):
        out[:, k, 1:-1] = np.einsum("im,mp->ip", inside, matrix[k]).reshape(len(values), -1)
    return out


@lru_cache(maxsize=4)
def _conversion(degree: int) -> Array:
    """Return the matrix from values at an octave's Chebyshev points to coefficients.

    Its shape is (degree + 1, SAMPLES, PARTS), for coefficient k in the coordinate t of a part.
    """
    rows = power_rows(_SAMPLES, PARTS, degree)
    return np.ascontiguousarray(np.einsum("nm,npk->kmp", transform(_SAMPLES), rows))
