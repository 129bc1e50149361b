"""Compute sums over the weights of a layer in one pass, and find arrays with equal contents."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

TILE = 1 << 16  # number of weights that fit into a processor's cache in double precision
START = 16  # number of leading entries that distinguish most arrays


@dataclass(frozen=True, eq=False)
class WeightStatistics:
    """Sums over the ``fan_in`` weights w of every output, in double precision.

    ``sums``: sum w for every output; ``squares``: sum w^2 for every output; ``top``: the largest
    ``|w|`` of all outputs, nan if a weight is nan.
    """

    sums: np.ndarray
    squares: np.ndarray
    top: float
    fan_in: int

    @property
    def size(self) -> int:
        """Return the number of weights."""
        return len(self.sums) * self.fan_in

    @property
    def mean_square(self) -> float:
        """Return the mean of w^2 over all weights, or 0 if there are none."""
        return float(self.squares.sum()) / max(self.size, 1)


def weight_statistics(weight: np.ndarray) -> WeightStatistics:
    """Return the statistics of weights (outputs, ...), reading memory once, tile by tile."""
    rows = matrix(weight)
    sums, squares, top = np.zeros(len(rows)), np.zeros(len(rows)), 0.0
    for outputs, inputs in tiles(rows):
        raw = rows[outputs, inputs]
        tile = raw.astype(np.float64)
        top = np.maximum(top, np.maximum(raw.max(), -raw.min()))  # propagates nan
        sums[outputs] += tile.sum(axis=1)
        with np.errstate(over="ignore"):  # infinity raises an error later, if the size is needed
            squares[outputs] += np.square(tile, out=tile).sum(axis=1)
    return WeightStatistics(sums, squares, float(top), rows.shape[1])


def absolute_moments(weight: np.ndarray, top: float) -> np.ndarray:
    """Return the sums of ``|w| / top`` and ``(w / top)^4``."""
    rows, found = matrix(weight), np.zeros(2)
    for place in tiles(rows):
        sizes = np.abs(rows[place].astype(np.float64)) / top
        found += sizes.sum(), np.square(np.square(sizes)).sum()
    return found


def matrix(weight: np.ndarray) -> np.ndarray:
    """Return weights (outputs, ...) as a matrix (outputs, fan_in)."""
    return weight.reshape(weight.shape[0], math.prod(weight.shape[1:]))


def tiles(rows: np.ndarray) -> Iterator[tuple[slice, slice]]:
    """Yield contiguous blocks that together cover a matrix, each with at most TILE entries.

    Blocks consist of whole rows, or of whole columns if columns are contiguous.
    """
    height, width = rows.shape
    if not rows.size:
        return
    if abs(rows.strides[0]) < abs(rows.strides[1]):
        down = min(height, TILE)
        across = TILE // down
    else:
        across = min(width, TILE)
        down = TILE // across
    for top in range(0, height, down):
        for left in range(0, width, across):
            yield slice(top, top + down), slice(left, left + across)


class NamesOfArrays:
    """Remembers the first name of each array.

    Only arrays with the same leading entries are compared completely.
    """

    def __init__(self) -> None:
        self._starts: dict[tuple[int, bytes], tuple[np.ndarray, str]] = {}
        self._digests: dict[bytes, str] = {}

    def first_of_rows(self, matrix: np.ndarray, rows: np.ndarray, name: str) -> list[str]:
        """Return, for each given row of a matrix, the first name under which it was seen."""
        starts = np.ascontiguousarray(matrix[rows, :START])
        keys = starts.view(f"V{starts[:1].nbytes}").ravel().tolist() if starts.size else []
        return [self._first(key, matrix[row], name) for key, row in zip(keys, rows, strict=True)]

    def first(self, array: np.ndarray, name: str) -> str:
        """Return the first name of an array with the same bytes, or ``name`` if it is new."""
        return self._first(array.flat[:START].tobytes(), array, name)

    def _first(self, key: bytes, array: np.ndarray, name: str) -> str:
        other, known = self._starts.setdefault((array.nbytes, key), (array, name))
        if other is array:
            return known
        self._digests.setdefault(_digest(other), known)
        return self._digests.setdefault(_digest(array), name)


def _digest(array: np.ndarray) -> bytes:
    flat = np.ascontiguousarray(array).reshape(-1)
    return hashlib.blake2b(flat.view(np.uint8).data, digest_size=16).digest()
