"""Kernel matrices compiled by JAX.

On a CPU or an accelerator, rows shared out over a mesh, differentiable in the data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ...fields.jax_field import is_jax
from ...foundation.errors import KcalcError
from .options import Kernels, Options, check_means, check_widths, tolerance
from .plans import Plan, TablePlan
from .sinks import ArraySink, FileSink
from .stripes import MEMORY, Job
from .tables import BITS, NEAR, PARTS, AngleTable

Array = np.ndarray


def jax_matrices(
    kernels: Kernels, X: Any, Y: Any, parts: tuple[int, ...], options: Options
) -> list[Any]:
    """As :func:`kcalc.matrices.gram.entry.compute`, for JAX arrays.

    Inside ``jax.grad`` and ``jax.jit`` for kernels of the angle alone.
    """
    import jax
    import jax.numpy as jnp
    from jax.core import Tracer

    given = [X] if Y is None or Y is X else [X, Y]
    given = [value if is_jax(value) else jnp.asarray(value) for value in given]
    for value, what in zip(given, "XY", strict=False):
        _check(value, what)
    check_widths(kernels, given[0].shape[1], given[-1].shape[1])
    single = all(value.dtype != jnp.float64 for value in given)
    dtype = (
        np.dtype(options.dtype)
        if options.dtype is not None
        else np.dtype(np.float32 if single else np.float64)
    )
    traced = any(isinstance(value, Tracer) for value in given)
    table, extras = _traced(kernels, given) if traced else _known(kernels, given, single)
    with jax.enable_x64(True):
        data = [value.astype(jnp.float64) for value in given]
        found = _whole(data[0], data[-1], len(data) == 1, table, extras, parts, options)
        return [value.astype(dtype) for value in found]


def _known(kernels: Kernels, given: list[Any], single: bool) -> tuple[AngleTable, tuple[Any, ...]]:
    """(table, scales and classes of rows and columns) of concrete data."""
    q = [_q(value, what) for value, what in zip(given, "XY", strict=False)]
    for value, level, what in zip(given, q, "XY", strict=False):
        check_means(kernels, np.asarray(value, dtype=np.float64).mean(axis=1), level, what)
    plan = _table_of(kernels.plan(q[0], q[-1], tolerance(single)))
    return plan.table, _extras(plan, len(q[0]), len(q[-1]))


def _traced(kernels: Kernels, given: list[Any]) -> tuple[AngleTable, tuple[Any, ...]]:
    """The same inside a transformation.

    q values count through a power, so that derivatives in X know of norms.
    """
    import jax
    import jax.numpy as jnp

    table, degree = kernels.by_angle()
    with jax.enable_x64(True):
        scales = [(value.astype(jnp.float64) ** 2).mean(axis=1) ** (degree / 2) for value in given]
    return table, (
        scales[0],
        scales[-1],
        *(np.zeros(len(value), np.int64) for value in (given[0], given[-1])),
    )


def _check(value: Any, what: str) -> None:
    import jax.numpy as jnp

    if value.ndim != 2 or 0 in value.shape:
        raise KcalcError(
            f"{what} must be a matrix (rows, features) that is not empty, got shape {value.shape}"
        )
    if not (jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)):
        raise KcalcError(f"{what} must be a matrix of real numbers, got an array of {value.dtype}")


def _q(value: Any, what: str) -> Array:
    """|x|^2/d of the rows as concrete numbers.

    Raises: KcalcError for rows that are zero or not finite.
    """
    q = (np.asarray(value, dtype=np.float64) ** 2).mean(axis=1)
    if not np.isfinite(q).all():
        raise KcalcError(
            f"row {np.flatnonzero(~np.isfinite(q))[0]} of {what} is not finite; every entry must "
            f"be a finite number"
        )
    if not (q > 0).all():
        raise KcalcError(
            f"row {np.flatnonzero(~(q > 0))[0]} of {what} is zero, so it has no angle to the "
            f"others; leave it out"
        )
    return q


def _table_of(plan: Plan) -> TablePlan:
    if isinstance(plan, TablePlan):
        return plan
    raise KcalcError(
        "JAX computes kernels that are functions of the angle; these rows have many different "
        "norms and the network is not homogeneous. "
        'Use backend="numpy" (the general recursion), rescale the rows to one norm, or pass q= to '
        "count angles alone"
    )


def _extras(plan: TablePlan, rows: int, columns: int) -> tuple[Array, Array, Array, Array]:
    """(row scales, column scales, row classes, column classes)."""
    one, two = plan.scale if plan.scale is not None else (np.ones(rows), np.ones(columns))
    first, second = (
        plan.classes
        if plan.classes is not None
        else (np.zeros(rows, np.int64), np.zeros(columns, np.int64))
    )
    return one, two, first, second


def _whole(
    X: Any,
    Y: Any,
    symmetric: bool,
    table: AngleTable,
    extras: tuple[Any, ...],
    parts: tuple[int, ...],
    options: Options,
) -> list[Any]:
    """The matrices at once; JAX arrays of doubles."""
    import jax.numpy as jnp

    ids: Any = np.arange(len(X)) if symmetric else np.full(len(X), -1)
    one, two, first, second = extras
    mesh = options.mesh
    extra = -len(X) % (1 if mesh is None else mesh.size)
    if extra:
        X = jnp.concatenate([X, X[:1].repeat(extra, axis=0)])
        ids, one, first = (jnp.concatenate([v, v[:1].repeat(extra)]) for v in (ids, one, first))
    height = _height(options.memory, len(Y), len(parts))
    found = _compiled(parts, _shape(table), mesh, height)(
        X, Y, ids, one, two, first, second, *_coefficients(table)
    )
    return [value[: len(value) - extra] for value in found]


def run_jax(
    job: Job, sink: ArraySink | FileSink, advance: Callable[[int], None], mesh: Any = None
) -> None:
    """As :func:`.stripes.run`, the stripes computed by JAX over the devices of ``mesh``.

    All have one shape, compiled once.
    """
    import jax
    import jax.numpy as jnp

    plan = _table_of(job.plan)
    table = plan.table
    one, two, first, second = _extras(plan, len(job.left), len(job.right))
    devices = 1 if mesh is None else mesh.size
    height = -(-job.block // devices) * devices
    with jax.enable_x64(True):
        function = _compiled(job.parts, _shape(table), mesh, height)
        right, coefficients = jnp.asarray(job.right.rows), _coefficients(table)
        for k, rows in enumerate(job.stripes):
            if not sink.has(k):
                index = np.minimum(np.arange(rows.start, rows.start + height), rows.stop - 1)
                ids = index if job.symmetric else np.full(height, -1)
                found = function(
                    job.left.rows[index],
                    right,
                    ids,
                    one[index],
                    two,
                    first[index],
                    second,
                    *coefficients,
                )
                for part, values in zip(job.parts, found, strict=True):
                    sink.write(
                        part,
                        rows,
                        slice(0, len(job.right)),
                        np.asarray(values)[: rows.stop - rows.start],
                    )
                sink.finished(k)
            advance((rows.stop - rows.start) * (len(job.right) - job.columns(rows).start))


def _shape(table: AngleTable) -> tuple[int, int]:
    rows = table.all_rows
    return rows.octaves, rows.first


def _coefficients(table: AngleTable) -> tuple[Any, ...]:
    import jax
    import jax.numpy as jnp

    rows = table.all_rows
    if "jax" not in rows.on_device:
        with jax.ensure_compile_time_eval():
            rows.on_device["jax"] = jnp.asarray(rows.coefficients)
    return (rows.on_device["jax"],)


@lru_cache(maxsize=32)
def _compiled(
    parts: tuple[int, ...], shape: tuple[int, int], mesh: Any, height: int
) -> Callable[..., Any]:
    """(X, Y, ids, scales, classes, table) -> matrices.

    ``ids``: the column each row is identical with, or -1; ``height``: rows at once.
    """
    import jax
    from jax.sharding import PartitionSpec

    function = partial(_stacked, parts, shape, height)
    if mesh is None:
        return jax.jit(function)
    mesh = jax.sharding.Mesh(mesh.devices.reshape(-1), ("rows",))
    split, whole = PartitionSpec("rows"), PartitionSpec()
    specs = (split, whole, split, split, whole, split, whole, whole)
    mapped = jax.jit(
        jax.shard_map(
            function, mesh=mesh, in_specs=specs, out_specs=[split] * len(parts), check_vma=False
        )
    )
    places = [jax.sharding.NamedSharding(mesh, spec) for spec in specs]
    return lambda *arguments: mapped(*jax.device_put(arguments, tuple(places)))


def _height(memory: int | None, columns: int, parts: int) -> int:
    """Rows computed at once, a power of two so that few sizes are compiled."""
    fitting = (memory or MEMORY) // (8 * (parts + 3) * columns)
    return 1 << max(3, fitting.bit_length() - 1)


def _stacked(
    parts: tuple[int, ...],
    shape: tuple[int, int],
    height: int,
    X: Any,
    Y: Any,
    ids: Any,
    one: Any,
    two: Any,
    first: Any,
    *rest: Any,
) -> list[Any]:
    """The matrices, ``height`` rows at a time."""
    import jax.numpy as jnp
    from jax import lax

    if len(X) <= height:
        return _block(parts, shape, X, Y, ids, one, two, first, *rest)
    extra = -len(X) % height
    rows = [
        jnp.concatenate([v, v[:1].repeat(extra, axis=0)]).reshape(-1, height, *v.shape[1:])
        for v in (X, ids, one, first)
    ]
    found = lax.map(
        lambda r: _block(parts, shape, r[0], Y, r[1], r[2], two, r[3], *rest), tuple(rows)
    )
    return [values.reshape(-1, len(Y))[: len(X)] for values in found]


def _block(
    parts: tuple[int, ...],
    shape: tuple[int, int],
    X: Any,
    Y: Any,
    ids: Any,
    one: Any,
    two: Any,
    first: Any,
    second: Any,
    table: Any,
) -> list[Any]:
    import jax.numpy as jnp
    from jax import lax

    long, wide = jnp.sqrt((X * X).sum(axis=1)), jnp.sqrt((Y * Y).sum(axis=1))
    cosine = jnp.matmul(X / long[:, None], (Y / wide[:, None]).T, precision=lax.Precision.HIGHEST)
    upper = cosine < 0
    same = ids[:, None] == jnp.arange(len(Y))[None, :]
    w = jnp.where(same, 0.0, 1 - jnp.abs(cosine))
    near = (w < NEAR) & ~same
    w = _sharpened(X, Y, long, wide, w, upper, near)
    high = jnp.maximum(first[:, None], second[None, :])
    low = jnp.minimum(first[:, None], second[None, :])
    side = shape[0] * PARTS + 2
    start = ((high * (high + 1) // 2 + low) * 2 + upper) * side
    return [_lookup()(shape, w, start, table[part]) * one[:, None] * two[None, :] for part in parts]


def _sharpened(X: Any, Y: Any, long: Any, wide: Any, w: Any, upper: Any, near: Any) -> Any:
    """Distances of near pairs by differences: row by row, only rows that have some."""
    import jax.numpy as jnp
    from jax import lax

    def row(arguments: Any) -> Any:
        x, length, distance, opposite, close = arguments

        def exact(_: Any) -> Any:
            ratio = length / wide
            factor = jnp.where(jnp.abs(ratio - 1) <= 1e-6, 1.0, ratio)
            scaled, size = Y * (jnp.where(opposite, -factor, factor))[:, None], wide * factor
            difference, total = x - scaled, x + scaled
            longer = (difference * total).sum(axis=1) / (length + size)
            found = ((difference**2).sum(axis=1) - longer**2) / (2 * length * size)
            return jnp.where(close, jnp.clip(found, 0.0, 1.0), distance)

        return lax.cond(close.any(), exact, lambda _: distance, None)

    return lax.cond(
        near.any(), lambda _: lax.map(row, (X, long, w, upper, near)), lambda _: w, None
    )


@lru_cache(maxsize=1)
def _lookup() -> Callable[..., Any]:
    """The JAX function that evaluates a table at distances w, with a derivative in w.

    It maps (shape, w, first row of the side, columns) to values. The derivative is the slope of the
    polynomials, and 0 where w is 0.
    """
    import jax
    import jax.numpy as jnp
    from jax import lax

    def located(shape: tuple[int, int], w: Any, start: Any) -> tuple[Any, Any, Any]:
        octaves, first = shape
        bits = lax.bitcast_convert_type(w, jnp.int64)
        row = jnp.clip((bits >> (52 - BITS)) - first, 0, octaves * PARTS + 1)
        t = (
            lax.bitcast_convert_type(((bits << BITS) & ((1 << 52) - 1)) | (1023 << 52), jnp.float64)
            - 1.5
        )
        octave = lax.bitcast_convert_type(bits & (2047 << 52), jnp.float64)
        return (
            (row + start).astype(jnp.int32),
            t,
            jnp.where(row > 0, PARTS / jnp.where(row > 0, octave, 1.0), 0.0),
        )

    def columns(table: Any, row: Any) -> list[Any]:
        return [table[k].at[row].get(mode="promise_in_bounds") for k in range(table.shape[0])]

    @partial(jax.custom_jvp, nondiff_argnums=(0,))
    def values(shape: tuple[int, int], w: Any, start: Any, table: Any) -> Any:
        row, t, _ = located(shape, w, start)
        found = columns(table, row)
        out = found[-1]
        for column in found[-2::-1]:
            out = out * t + column
        return out

    @partial(jax.custom_jvp, nondiff_argnums=(0,))
    def slope(shape: tuple[int, int], w: Any, start: Any, table: Any) -> Any:
        row, t, rate = located(shape, w, start)
        found = columns(table, row)
        out = jnp.zeros_like(w)
        for k in range(len(found) - 1, 0, -1):
            out = out * t + k * found[k]
        return out * rate

    @values.defjvp
    def _(shape: tuple[int, int], primals: Any, tangents: Any) -> tuple[Any, Any]:
        return values(shape, *primals), slope(shape, *primals) * tangents[0]

    @slope.defjvp
    def _(shape: tuple[int, int], primals: Any, tangents: Any) -> tuple[Any, Any]:
        raise KcalcError("a tabulated kernel has first derivatives only")

    return values
