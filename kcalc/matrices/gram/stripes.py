"""Compute kernel matrices in stripes of rows.

Each stripe takes four steps: the Gram matrix, distances, differences for near-duplicates, and
kernels from a plan.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from ...foundation.errors import KcalcError
from .plans import ChunkPlan
from .rows import RowSet, cluster_distances, distances
from .tables import NEAR

Array = np.ndarray

MEMORY = 1 << 29
"""the default work space in bytes"""

_CROWDED = 1 / 16  # with a larger share of near pairs, a block is recomputed as a whole
_CENTRES = 6
_THREADS = min(os.cpu_count() or 1, 16)


class MatrixOutput(Protocol):
    """The destination of a matrix.

    ``direct`` returns an array in which the result can be computed, if there is one. ``write``
    stores a block of one kernel, ``finished`` marks a stripe as complete, and ``has`` tells whether
    a stripe was complete before.
    """

    def direct(self, part: int) -> Array | None: ...
    def write(self, part: int, rows: slice, columns: slice, values: Array) -> None: ...
    def finished(self, stripe: int) -> None: ...
    def has(self, stripe: int) -> bool: ...


@dataclass(frozen=True)
class Job:
    """The kernels ``parts`` (0 for NNGP, 1 for NTK) of all pairs of rows.

    ``symmetric`` means that ``right`` is ``left``, so that only half of the pairs are computed.
    """

    left: RowSet
    right: RowSet
    symmetric: bool
    plan: ChunkPlan
    parts: tuple[int, ...]
    block: int

    @property
    def stripes(self) -> list[slice]:
        """Return the rows of each stripe."""
        return [
            slice(start, min(start + self.block, len(self.left)))
            for start in range(0, len(self.left), self.block)
        ]

    def columns(self, rows: slice) -> slice:
        """Return the columns computed in a stripe."""
        return slice(rows.start if self.symmetric else 0, len(self.right))


def block_rows(rows: int, columns: int, parts: int, memory: int) -> int:
    """Return the number of rows whose Gram matrix and kernels fit into ``memory`` bytes."""
    return int(max(1, min(rows, memory // (8 * (parts + 1) * columns))))


def run(job: Job, sink: MatrixOutput, advance: Callable[[int], None]) -> None:
    """Fill ``sink`` stripe by stripe. ``advance`` receives the number of pairs done."""
    direct = [sink.direct(part) if job.block >= len(job.left) else None for part in job.parts]
    space = np.empty((1 + sum(place is None for place in direct)) * job.block * len(job.right))
    with ThreadPoolExecutor(_THREADS) as pool:
        for k, rows in enumerate(job.stripes):
            columns = job.columns(rows)
            height, width = rows.stop - rows.start, columns.stop - columns.start
            if not sink.has(k):
                buffers = iter(
                    space[: space.size // (height * width) * height * width].reshape(
                        -1, height, width
                    )
                )
                cosines = next(buffers)
                values = [next(buffers) if place is None else place for place in direct]
                np.matmul(job.left.unit[rows], job.right.unit[columns].T, out=cosines)
                piece = partial(_piece, job, cosines, values, rows, columns)
                list(pool.map(piece, *zip(*_pieces(job, height, width), strict=True)))
                list(pool.map(partial(_moved, job, sink, rows, columns), job.parts, values))
                sink.finished(k)
            advance(height * width)


def _pieces(job: Job, height: int, width: int) -> Iterator[tuple[slice, slice]]:
    """Yield (rows, columns) of the pieces of a stripe, each small enough for the cache.

    If the matrix is symmetric, only pieces on and above the diagonal are yielded.
    """
    tall = max(1, min(job.plan.at_once // width, height))
    for top in range(0, height, tall):
        start = top if job.symmetric else 0
        wide = max(tall, job.plan.at_once // tall)
        for left in range(start, width, wide):
            yield slice(top, min(top + tall, height)), slice(left, min(left + wide, width))


def _piece(
    job: Job,
    cosines: Array,
    values: list[Array],
    rows: slice,
    columns: slice,
    down: slice,
    across: slice,
) -> None:
    """Compute the kernels of one piece of a stripe, and of its mirror image in the stripe."""
    here = cosines[down, across]
    upper = np.signbit(here)
    w = np.ascontiguousarray(np.abs(here))
    np.subtract(1.0, w, out=w)
    these = slice(rows.start + down.start, rows.start + down.stop)
    those = slice(columns.start + across.start, columns.start + across.stop)
    near = sharpened(job, w, upper, these, those) if w.min() < NEAR else np.zeros(0, dtype=np.intp)
    out = tuple(np.empty(w.shape) for _ in values)
    with np.errstate(over="ignore"):  # checked below
        job.plan.fill(w, np.ascontiguousarray(upper), these, those, near, job.parts, out)
    for place, part in zip(values, out, strict=True):
        _check_finite(part)
        if job.symmetric and across.start == down.start:
            corner = part[:, : len(part)]
            below = np.tril_indices(len(corner), -1)
            corner[below] = corner.T[below]
        place[down, across] = part
        low, high = max(down.stop, across.start), min(across.stop, len(cosines))
        if job.symmetric and high > low:
            place[low:high, down] = part[:, low - across.start : high - across.start].T


def _check_finite(values: Array) -> None:
    with np.errstate(over="ignore"):
        # checking the sum first is faster
        if np.isfinite(values.sum()) or np.isfinite(values).all():
            return
    raise KcalcError(
        "kernel values exceed the range of double precision; reduce sigma_w, the depth or "
        "the norms of the rows"
    )


def _moved(
    job: Job, sink: MatrixOutput, rows: slice, columns: slice, part: int, values: Array
) -> None:
    """Write a stripe to its position in the matrix and, transposed, to the mirrored position."""
    try:
        with np.errstate(over="raise"):
            if values is not sink.direct(part):
                sink.write(part, rows, columns, values)
            if job.symmetric and columns.stop > rows.stop:
                beyond = slice(rows.stop, columns.stop)
                sink.write(part, beyond, rows, values[:, rows.stop - columns.start :].T)
    except FloatingPointError:
        raise KcalcError(
            "kernel values exceed the range of single precision; use dtype=float, or reduce "
            "the norms of the rows"
        ) from None


def sharpened(job: Job, w: Array, upper: Array, rows: slice, columns: slice) -> Array:
    """Replace distances below NEAR, which are inaccurate in the Gram matrix, by exact distances.

    Returns the flat indices of the replaced distances, without the diagonal.
    """
    flat = w.reshape(-1)
    near = np.flatnonzero(flat < NEAR)
    if job.symmetric:
        i, j = np.divmod(near, w.shape[1])
        same = i + rows.start == j + columns.start
        flat[near[same]] = 0.0
        near = near[~same]
    if not near.size:
        return near
    waiting = near
    if near.size > _CROWDED * flat.size and len(w) > 1:
        open_pairs = np.zeros(w.shape, dtype=bool)
        open_pairs.reshape(-1)[near] = True
        for _ in range(_CENTRES):
            better, found = cluster_distances(job.left, job.right, rows, columns, open_pairs, upper)
            count = int(found.sum())
            w[found] = better[found]
            open_pairs &= ~found
            if count < 0.1 * open_pairs.sum() or not open_pairs.any():
                break
        waiting = np.flatnonzero(open_pairs.reshape(-1))
    i, j = np.divmod(waiting, w.shape[1])
    i, j = i + rows.start, j + columns.start
    flat[waiting] = distances(job.left, job.right, i, j, upper.reshape(-1)[waiting])
    return near
