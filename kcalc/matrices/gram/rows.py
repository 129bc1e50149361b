"""Checked rows of a data matrix, with their norms and the distances between near-duplicates.

Distances between near-duplicates are computed from differences of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...fields.arguments import raw_array
from ...foundation.errors import KcalcError
from ...foundation.process_state import cached_property

Array = np.ndarray

_SMALLEST, _LARGEST = 1e-145, 1e145
_FEW = 1 << 19  # number of entries gathered at once
_ALIKE = 1e-6  # norms that differ by less are not rescaled
_SPLIT = 2.0**27 + 1
_CLOSE = 0.01  # relative to the distance from the centre; closer pairs lose digits


@dataclass(frozen=True, eq=False)
class RowSet:
    """The rows x_i of a float64 matrix (n, d), with their norms |x_i| and unit rows x_i / |x_i|.

    ``single`` states whether the data had single precision. ``zero`` is a mask of the zero rows;
    ``rows`` and ``norms`` contain another row in place of each zero row; see :mod:`.zeros`.
    """

    rows: Array
    norms: Array
    single: bool
    zero: Array

    @classmethod
    def of(cls, data: Any, what: str = "X") -> RowSet:
        """Create a RowSet from a data matrix.

        Raises KcalcError unless ``data`` is a matrix of finite real numbers.
        """
        array = real_matrix(data, what)
        rows = np.ascontiguousarray(array, dtype=np.float64)
        with np.errstate(over="ignore", under="ignore"):
            norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        if not np.isfinite(norms).all() and not np.isfinite(rows).all():
            i, j = np.argwhere(~np.isfinite(rows))[0]
            raise KcalcError(
                f"{what}[{i}, {j}] is {rows[i, j]}; every entry must be a finite number"
            )
        zero = np.zeros(len(rows), dtype=bool)
        if not norms.all():
            zero[:] = ~rows.any(axis=1)
        bad = np.flatnonzero(~zero & ~((norms > _SMALLEST) & (norms < _LARGEST)))
        if bad.size:
            i = bad[0]
            raise KcalcError(
                f"row {i} of {what} has a norm outside [{_SMALLEST}, {_LARGEST}]; rescale the data"
            )
        if zero.any():
            stand_in = np.ones(rows.shape[1]) if zero.all() else rows[~zero][0]
            rows = np.where(zero[:, None], stand_in, rows)
            norms = np.where(zero, np.sqrt(stand_in @ stand_in), norms)
        return cls(rows, norms, array.dtype == np.float32, zero)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        """The number of features d."""
        return self.rows.shape[1]

    @cached_property
    def unit(self) -> Array:
        """The unit rows x_i / |x_i|."""
        return self.rows / self.norms[:, None]

    @property
    def q(self) -> Array:
        """|x_i|^2 / d, which is 0 for a zero row."""
        return np.where(self.zero, 0.0, self.norms**2 / self.width)

    @property
    def means(self) -> Array:
        """The mean of every row."""
        return np.where(self.zero, 0.0, self.rows.mean(axis=1))


def real_matrix(data: Any, what: str) -> Array:
    """Return ``data`` as a NumPy matrix of real numbers, with integers as float64.

    Raises KcalcError for anything else.
    """
    array = raw_array(data, what)
    if np.ma.is_masked(data):
        raise KcalcError(f"{what} has masked entries; leave those rows out, or fill them in")
    if array.dtype.kind not in "iuf":
        raise KcalcError(f"{what} must be a matrix of real numbers, got an array of {array.dtype}")
    if array.ndim != 2:
        raise KcalcError(
            f"{what} must have two axes, (rows, features), got shape {array.shape}; pass one "
            "example as X[None, :]"
        )
    if 0 in array.shape:
        raise KcalcError(f"{what} must not be empty, got shape {array.shape}")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def distances(left: RowSet, right: RowSet, i: Array, j: Array, upper: Array) -> Array:
    """Return w = 1 - c for the pairs (i, j), or w = 1 + c for pairs with ``upper``.

    The values are computed from differences of rows, or from sums for pairs with ``upper``.

    The formula is ``(|x - y|^2 - (|x| - |y|)^2) / (2 |x| |y|)``.

    The relative accuracy is full even for close rows, and equal rows give exactly 0. Rows with
    different norms are rescaled by an exact product.
    """
    out = np.empty(i.size)
    step = max(1, _FEW // left.width)
    for start in range(0, i.size, step):
        part = slice(start, start + step)
        a, b = left.rows[i[part]], right.rows[j[part]]
        ratio = left.norms[i[part]] / right.norms[j[part]]
        alike = np.abs(ratio - 1) <= _ALIKE
        factor = np.where(upper[part], -1.0, 1.0) * np.where(alike, 1.0, ratio)
        scaled, rest = (
            _product(b, factor[:, None]) if not alike.all() else (b * factor[:, None], 0.0)
        )
        difference = (a - scaled) - rest
        one, two = left.norms[i[part]], right.norms[j[part]] * np.abs(factor)
        square = np.einsum("ij,ij->i", difference, difference)
        longer = np.einsum("ij,ij->i", difference, a + scaled) / (one + two)
        out[part] = (square - longer**2) / (2 * one * two)
    return np.clip(out, 0.0, 1.0)


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a b as an unevaluated sum of two doubles [Dekker 1971]."""
    product = a * b
    high_a, high_b = (x * _SPLIT - (x * _SPLIT - x) for x in (a, b))
    low_a, low_b = a - high_a, b - high_b
    return product, low_a * low_b - (
        ((product - high_a * high_b) - low_a * high_b) - high_a * low_b
    )


def cluster_distances(
    left: RowSet, right: RowSet, rows: slice, columns: slice, near: Array, upper: Array
) -> tuple[Array, Array]:
    """Return (w, found): distances in a block with many near pairs, and where they are accurate.

    The distances are computed from the Gram matrix of the rows relative to one row, the centre.

    ``found`` marks the pairs in ``near`` whose rows are close to the centre (or its negative) and
    not much closer to each other. Only for these pairs is w accurate.
    """
    i, j = np.unravel_index(int(near.argmax()), near.shape)
    centre = left.rows[rows][i]
    length = left.norms[rows][i]
    a, from_a, more_a = _about(left.rows[rows], centre)
    sign = -1.0 if upper[i, j] else 1.0
    b, from_b, more_b = _about(sign * right.rows[columns], centre)
    close = (from_a[:, None] < 0.1 * length**2) & (from_b[None, :] < 0.1 * length**2)
    square = from_a[:, None] + from_b[None, :] - 2 * (a @ b.T)
    one, two = left.norms[rows][:, None], right.norms[columns][None, :]
    across = square - ((more_a[:, None] - more_b[None, :]) / (one + two)) ** 2
    found = (
        near
        & close
        & (upper == (sign < 0))
        & (across > _CLOSE * np.maximum(from_a[:, None], from_b[None, :]))
    )
    return np.clip(across / (2 * one * two), 0.0, 1.0), found


def _about(rows: Array, centre: Array) -> tuple[Array, Array, Array]:
    """Return (x - r, |x - r|^2, |x|^2 - |r|^2) for the rows x and the centre r."""
    moved = rows - centre
    return moved, np.einsum("ij,ij->i", moved, moved), np.einsum("ij,ij->i", moved, rows + centre)
