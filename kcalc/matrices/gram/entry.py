"""Compute kernel matrices from data: check arrays, set up the result, and call the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...fields.jax_field import is_jax
from ...foundation.errors import KcalcError
from ...foundation.progress import progress
from .options import Kernels, Options, check_means, check_widths, tolerance
from .outputs import ArrayOutput, FileOutput, places, recorded_block
from .plans import ChunkPlan
from .rows import RowSet
from .stripes import MEMORY, Job, block_rows, run
from .zeros import planned

Array = np.ndarray


def compute(
    kernels: Kernels, X: Any, Y: Any, parts: tuple[int, ...], options: Options
) -> list[Any]:
    """Return the kernels ``parts`` for all pairs of rows of X and Y, one matrix per kernel.

    In ``parts``, 0 means NNGP and 1 means NTK. Y = None means X.

    The result has the array type of the data: NumPy, JAX or dask. Raises KcalcError for data and
    options that cannot be used.
    """
    if _is_dask(X) or _is_dask(Y):
        from .dask_arrays import dask_matrices

        return dask_matrices(kernels, X, Y, parts, options)
    if is_jax(X) or is_jax(Y):
        from .jax_arrays import jax_matrices

        if options.out is not None:
            raise KcalcError(
                'out= is only for NumPy arrays; pass np.asarray(X) (backend="jax" still '
                "computes on the device)"
            )
        options.refuse(
            "block_rows",
            "progress",
            why="JAX matrices are computed by one compiled function; memory= bounds its blocks",
        )
        if options.backend == "numpy":
            raise KcalcError('X is a JAX array; pass np.asarray(X) for backend="numpy"')
        return jax_matrices(kernels, X, Y, parts, options)
    left = RowSet.of(X, "X")
    right = left if Y is None or Y is X else RowSet.of(Y, "Y")
    check_widths(kernels, left.width, right.width)
    for rows, what in ((left, "X"), (right, "Y")):
        check_means(kernels, rows.means, rows.q, what)
    single = left.single and right.single
    on_device = options.backend == "jax" or options.mesh is not None
    plan = planned(kernels, left.q, right.q, tolerance(single), on_device)
    return _filled(left, right, plan, parts, options, single)


def _is_dask(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "dask"


def _filled(
    left: RowSet,
    right: RowSet,
    plan: ChunkPlan,
    parts: tuple[int, ...],
    options: Options,
    single: bool,
) -> list[Array]:
    dtype = options.kind(single)
    targets = None if options.out is None else places(options.out, parts)
    if (
        targets is not None
        and options.dtype is not None
        and any(isinstance(t, np.ndarray) and t.dtype != dtype for t in targets.values())
    ):
        raise KcalcError(
            f"dtype is {dtype}, but out has another dtype; omit dtype, or pass an array of "
            f"dtype {dtype}"
        )
    paths = {part: item for part, item in (targets or {}).items() if isinstance(item, Path)}
    rows = options.block_rows or (recorded_block(paths) if paths else None)
    rows = min(
        rows or block_rows(len(left), len(right), len(parts), options.memory or MEMORY), len(left)
    )
    job = Job(left, right, left is right, plan, parts, rows)
    if paths:
        sink: ArrayOutput | FileOutput = FileOutput.opened(paths, job, dtype)
    else:
        sink = ArrayOutput(_arrays(targets, parts, (len(left), len(right)), dtype))
        _check_apart(list((targets or {}).values()), left, right)
    with progress(_pairs(job), "kernel", "pair", options.progress) as advance:
        if options.backend == "jax" or options.mesh is not None:
            from .jax_arrays import run_jax

            run_jax(job, sink, advance, options.mesh)
        else:
            run(job, sink, advance)
    return [sink.arrays[part] for part in parts]


def _arrays(
    targets: dict[int, Any] | None, parts: tuple[int, ...], shape: tuple[int, int], dtype: np.dtype
) -> dict[int, Array]:
    if targets is None:
        return {part: np.empty(shape, dtype) for part in parts}
    for array in targets.values():
        if array.shape != shape or array.dtype not in (np.float64, np.float32):
            raise KcalcError(
                f"out must be a float array of shape {shape}, got {array.dtype} of shape "
                f"{array.shape}"
            )
        if not array.flags.writeable:
            raise KcalcError("out cannot be written to; open the memmap with mode 'r+' or 'w+'")
    return targets


def _check_apart(targets: list[Array], left: RowSet, right: RowSet) -> None:
    """Raise KcalcError if results would overwrite each other or the data."""
    for k, array in enumerate(targets):
        if any(
            np.may_share_memory(array, other) for other in (*targets[:k], left.rows, right.rows)
        ):
            raise KcalcError(
                "out shares memory with X, Y or the other result; pass separate arrays"
            )


def _pairs(job: Job) -> int:
    """Return the number of kernel values to compute."""
    return sum(
        (rows.stop - rows.start) * (len(job.right) - job.columns(rows).start)
        for rows in job.stripes
    )
