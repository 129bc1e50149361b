"""Kernel matrices as lazy dask arrays.

One plan covers all rows. The scheduler then computes block by block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from .options import Kernels, Options, check_means, check_widths, tolerance
from .outputs import ArrayOutput
from .plans import ChunkPlan, TablePlan
from .rows import RowSet
from .stripes import MEMORY, Job, block_rows, run
from .zeros import planned, unpacked

Array = np.ndarray


def dask_matrices(
    kernels: Kernels, X: Any, Y: Any, parts: tuple[int, ...], options: Options
) -> list[Any]:
    """Compute kernel matrices lazily; see :func:`kcalc.matrices.gram.entry.compute`.

    X and Y are cut into blocks of rows. At least one of them is a dask array.
    """
    import dask
    import dask.array as da

    if options.out is not None or options.mesh is not None or options.backend is not None:
        raise KcalcError(
            "dask arrays are computed by dask, which does not support out, mesh or backend; "
            "omit them, and store the result with dask"
        )
    options.refuse(
        "block_rows",
        "progress",
        why="dask chooses its own blocks; rechunk X, and use dask's progress bar",
    )
    left = _rows(X, "X")
    right = left if Y is None or Y is X else _rows(Y, "Y")
    check_widths(kernels, left.shape[1], right.shape[1])
    single = left.dtype == np.float32 and right.dtype == np.float32
    dtype = options.kind(single)
    squares = [(rows.astype(np.float64) ** 2).mean(axis=1) for rows in (left, right)]
    means = (
        [rows.astype(np.float64).mean(axis=1) for rows in (left, right)]
        if kernels.centred
        else [None, None]
    )
    plan = dask.delayed(_plan, pure=False)(kernels, *squares, *means, tolerance(single))  # pyright: ignore[reportPrivateImportUsage]
    cut = [_starts(rows) for rows in (left, right)]
    both = da.blockwise(
        _block,
        "pij",
        left,
        "ik",
        right,
        "jk",
        cut[0],
        "i",
        cut[1],
        "j",
        plan=plan,
        parts=parts,
        dtype=dtype,
        kind=dtype,
        memory=options.memory,
        new_axes={"p": len(parts)},
        concatenate=True,
        meta=np.empty((0, 0, 0), dtype),
    )
    return [both[k] for k in range(len(parts))]


def _rows(data: Any, what: str) -> Any:
    import dask.array as da

    if not isinstance(data, da.Array):
        data = da.from_array(
            RowSet.of(data, what).rows if np.asarray(data).dtype != np.float32 else np.asarray(data)
        )
    if data.ndim != 2 or 0 in data.shape:
        raise KcalcError(
            f"{what} must be a non-empty array (rows, features), got shape {data.shape}"
        )
    if data.dtype.kind not in "iuf":
        raise KcalcError(f"{what} must be a matrix of real numbers, got an array of {data.dtype}")
    if any(np.isnan(size) for size in data.shape):
        raise KcalcError(
            f"{what} has blocks of unknown size; call {what}.compute_chunk_sizes() first"
        )
    return data.rechunk({1: -1})  # pyright: ignore[reportArgumentType]


def _starts(rows: Any) -> Any:
    """Return the row indices as a dask array with the same blocks as ``rows``."""
    import dask.array as da

    return da.arange(rows.shape[0], chunks=(rows.chunks[0],))  # pyright: ignore[reportArgumentType]


def _plan(
    kernels: Kernels,
    left: Array,
    right: Array,
    mean1: Array | None,
    mean2: Array | None,
    equal: float,
) -> ChunkPlan:
    for q, means, what in ((left, mean1, "X"), (right, mean2, "Y")):
        if not np.isfinite(q).all():
            raise KcalcError(
                f"row {np.flatnonzero(~np.isfinite(q))[0]} of the data must contain only "
                "finite numbers; remove infinite and nan entries"
            )
        if means is not None:
            check_means(kernels, means, q, what)
    plan = planned(kernels, left, right, equal)
    inner, _ = unpacked(plan)
    if isinstance(inner, TablePlan):
        _ = inner.table.near_rows  # computed once here instead of by every worker
    return plan


def _block(
    X: Array,
    Y: Array,
    these: Array,
    those: Array,
    plan: ChunkPlan,
    parts: tuple[int, ...],
    kind: np.dtype,
    memory: int | None,
) -> Array:
    left, right = RowSet.of(X, "X"), RowSet.of(Y, "Y")
    out = np.empty((len(parts), len(left), len(right)), kind)
    rows = block_rows(len(left), len(right), len(parts), memory or MEMORY)
    job = Job(left, right, False, plan.cut(these, those), parts, rows)
    run(job, ArrayOutput({part: out[k] for k, part in enumerate(parts)}), lambda _: None)
    return out
