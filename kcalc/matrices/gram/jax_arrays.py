"""Kernel matrices compiled by JAX.

The compiled functions run on a CPU or an accelerator, distribute rows over a mesh, and can be
differentiated with respect to the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ...fields.jax_field import is_jax, jax_field
from ...foundation.errors import KcalcError
from .norms import Coordinate, NormPlan
from .options import Kernels, Options, check_means, check_widths, tolerance
from .outputs import ArrayOutput, FileOutput
from .plans import ChunkPlan, PairPlan, TablePlan
from .series import scanned
from .stripes import MEMORY, Job
from .tables import BITS, NEAR, PARTS, AngleTable
from .zeros import WithZeros, planned, unpacked

Array = np.ndarray


def jax_matrices(
    kernels: Kernels, X: Any, Y: Any, parts: tuple[int, ...], options: Options
) -> list[Any]:
    """Compute kernel matrices of JAX arrays; see :func:`kcalc.matrices.gram.entry.compute`.

    Inside ``jax.grad`` and ``jax.jit``, only kernels that depend on the angle are supported.
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
    dtype = options.kind(single)
    traced = any(isinstance(value, Tracer) for value in given)
    if traced:
        shares, zeros = _traced(kernels, given, parts), None
    else:
        shares, zeros = _known(kernels, given, single, parts)
    with jax.enable_x64(True):
        data = [_without_zeros(value.astype(jnp.float64)) for value in given]
        found = _whole(data[0], data[-1], len(data) == 1, shares, options)
        if zeros is not None:
            found = [_overwritten(zeros, k, value) for k, value in zip(parts, found, strict=True)]
        return [value.astype(dtype) for value in found]


def _without_zeros(value: Any) -> Any:
    """Return the rows, with rows of ones in place of zero rows, which have no angle."""
    import jax.numpy as jnp

    return jnp.where((value == 0).all(axis=1)[:, None], 1.0, value)


def _overwritten(zeros: WithZeros, part: int, values: Any) -> Any:
    """Return the matrix with the kernels of zero rows and columns filled in."""
    import jax.numpy as jnp

    (above, beside), (one, two) = zeros.zero, zeros.kernels
    values = jnp.where(above[:, None], two[part][None, :], values)
    return jnp.where(beside[None, :], one[part][:, None], values)


@dataclass(frozen=True)
class _Lookup:
    """Kernels from an :class:`.tables.AngleTable`, with the same ``octaves`` and ``first``."""

    parts: tuple[int, ...]
    octaves: int
    first: int

    def __call__(self, w: Any, upper: Any, rows: Any, columns: Any, whole: Any) -> list[Any]:
        """Return the kernels at distances w of c from 1, or from -1 if ``upper`` is set.

        ``rows`` and ``columns`` contain (scales, classes), and ``whole`` contains (table,).
        """
        import jax.numpy as jnp

        (one, first), (two, second), (table,) = rows, columns, whole
        high = jnp.maximum(first[:, None], second[None, :])
        low = jnp.minimum(first[:, None], second[None, :])
        side = self.octaves * PARTS + 2
        start = ((high * (high + 1) // 2 + low) * 2 + upper) * side
        shape = (self.octaves, self.first)
        return [
            _lookup()(shape, w, start, table[part]) * one[:, None] * two[None, :]
            for part in self.parts
        ]


@dataclass(frozen=True)
class _Clenshaw:
    """Kernels from a :class:`.norms.NormTable`."""

    coordinate: Coordinate

    def __call__(self, w: Any, upper: Any, rows: Any, columns: Any, whole: Any) -> list[Any]:
        """Return the kernels at distances w of c from 1, or from -1 if ``upper`` is set.

        ``rows`` and ``columns`` contain factors (n, degrees, rank), one array for each kernel.
        """
        import jax.numpy as jnp

        x = self.coordinate(w, upper, jnp)

        sides = [(jnp.moveaxis(v, 1, 0) for v in pair) for pair in zip(rows, columns, strict=True)]
        return [scanned(x, *pair) for pair in sides]


@dataclass(frozen=True)
class _Layers:
    """Kernels from the recursion ``traced`` of a :class:`.plans.PairPlan`."""

    traced: Callable[..., Any]
    parts: tuple[int, ...]

    def __call__(self, w: Any, upper: Any, rows: Any, columns: Any, whole: Any) -> list[Any]:
        """Return the kernels at distances w of c from 1, or from -1 if ``upper`` is set.

        ``rows`` and ``columns`` contain (q,).
        """
        import jax.numpy as jnp

        gap = jnp.where(upper, 2 - w, w)
        found = self.traced(gap, rows[0][:, None], columns[0][None, :], jax_field())
        return [found[part] for part in self.parts]


@dataclass(frozen=True, eq=False)
class _Shares:
    """A plan for the kernels, in the form that the compiled function takes.

    ``program`` maps (w, upper, rows, columns, whole) to the kernels of a block. ``rows`` and
    ``columns`` are arrays with one entry per row and per column of the matrices. ``whole`` contains
    further arrays of the program.
    """

    program: _Lookup | _Clenshaw | _Layers
    rows: tuple[Any, ...]
    columns: tuple[Any, ...]
    whole: tuple[Any, ...]
    parts: int


def _known(
    kernels: Kernels, given: list[Any], single: bool, parts: tuple[int, ...]
) -> tuple[_Shares, WithZeros | None]:
    """Return the arrays for concrete data, and the plan for zero rows if there are any."""
    q = [_q(value, what) for value, what in zip(given, "XY", strict=False)]
    for value, level, what in zip(given, q, "XY", strict=False):
        check_means(kernels, np.asarray(value, dtype=np.float64).mean(axis=1), level, what)
    plan, zeros = unpacked(planned(kernels, q[0], q[-1], tolerance(single), True))
    return _shares(plan, parts, len(q[0]), len(q[-1])), zeros


def _traced(kernels: Kernels, given: list[Any], parts: tuple[int, ...]) -> _Shares:
    """Return the arrays for data inside a JAX transformation.

    The kernels are multiplied by a power of the q values, so derivatives with respect to X account
    for the norms of the rows.
    """
    import jax
    import jax.numpy as jnp

    table, degree = kernels.by_angle()
    with jax.enable_x64(True):
        sizes = [(value.astype(jnp.float64) ** 2).mean(axis=1) for value in given]
        scales = [
            # the kernel with a zero row is 0, except for degree 0
            jnp.where(q > 0, jnp.where(q > 0, q, 1.0) ** (degree / 2), 0.0 if degree else jnp.nan)
            for q in sizes
        ]
    rows, columns = ((scales[k], np.zeros(len(given[k]), np.int64)) for k in (0, -1))
    return _Shares(_lookup_of(table, parts), rows, columns, _coefficients(table), len(parts))


def _check(value: Any, what: str) -> None:
    import jax.numpy as jnp

    if value.ndim != 2 or 0 in value.shape:
        raise KcalcError(
            f"{what} must be a non-empty matrix (rows, features), got shape {value.shape}"
        )
    if not (jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)):
        raise KcalcError(f"{what} must be a matrix of real numbers, got an array of {value.dtype}")


def _q(value: Any, what: str) -> Array:
    """Return |x|^2/d of the rows as concrete numbers.

    Raises KcalcError for rows that are not finite.
    """
    q = (np.asarray(value, dtype=np.float64) ** 2).mean(axis=1)
    if not np.isfinite(q).all():
        raise KcalcError(
            f"row {np.flatnonzero(~np.isfinite(q))[0]} of {what} must contain only finite numbers; "
            "remove infinite and nan entries"
        )
    return q


def _shares(plan: ChunkPlan, parts: tuple[int, ...], rows: int, columns: int) -> _Shares:
    if isinstance(plan, NormPlan):
        factors = [plan.padded_factors(part) for part in parts]
        first, second = (tuple(pair[k] for pair in factors) for k in (0, 1))
        return _Shares(_Clenshaw(plan.table.coordinate), first, second, (), len(parts))
    if isinstance(plan, TablePlan):
        scale = plan.scale if plan.scale is not None else (np.ones(rows), np.ones(columns))
        classes = (
            plan.classes
            if plan.classes is not None
            else (np.zeros(rows, np.int64), np.zeros(columns, np.int64))
        )
        first, second = zip(scale, classes, strict=True)
        table = plan.table
        return _Shares(_lookup_of(table, parts), first, second, _coefficients(table), len(parts))
    if isinstance(plan, PairPlan) and plan.traced is not None:
        return _Shares(_Layers(plan.traced, parts), (plan.q[0],), (plan.q[1],), (), len(parts))
    raise KcalcError(
        "JAX computes kernels from tables, but these rows have many different norms, and no table "
        'covers the way in which this network\'s kernel depends on them. Use backend="numpy" '
        "(the general recursion), rescale the rows to one norm, or pass q= to compare only angles"
    )


def _whole(X: Any, Y: Any, symmetric: bool, shares: _Shares, options: Options) -> list[Any]:
    """Return the matrices in one piece, as JAX arrays of doubles."""
    import jax.numpy as jnp

    ids: Any = np.arange(len(X)) if symmetric else np.full(len(X), -1)
    rows, mesh = shares.rows, options.mesh
    extra = -len(X) % (1 if mesh is None else mesh.size)
    if extra:
        X, ids, *rows = (
            jnp.concatenate([v, v[:1].repeat(extra, axis=0)])
            for v in map(jnp.asarray, (X, ids, *rows))
        )
    height = _height(options.memory, len(Y), shares.parts)
    found = _compiled(shares.program, mesh, height, shares.parts)(
        X, Y, ids, tuple(rows), shares.columns, shares.whole
    )
    return [value[: len(value) - extra] for value in found]


def run_jax(
    job: Job, sink: ArrayOutput | FileOutput, advance: Callable[[int], None], mesh: Any = None
) -> None:
    """Fill ``sink`` like :func:`.stripes.run`, with JAX on the devices of ``mesh``.

    All stripes have the same shape, so the function is compiled once.
    """
    import jax
    import jax.numpy as jnp

    devices = 1 if mesh is None else mesh.size
    height = -(-job.block // devices) * devices
    with jax.enable_x64(True):
        plan, zeros = unpacked(job.plan)
        shares = _shares(plan, job.parts, len(job.left), len(job.right))
        function = _compiled(shares.program, mesh, height, len(job.parts))
        right = jnp.asarray(job.right.rows)
        for k, rows in enumerate(job.stripes):
            if not sink.has(k):
                index = np.minimum(np.arange(rows.start, rows.start + height), rows.stop - 1)
                ids = index if job.symmetric else np.full(height, -1)
                found = function(
                    job.left.rows[index],
                    right,
                    ids,
                    tuple(values[index] for values in shares.rows),
                    shares.columns,
                    shares.whole,
                )
                columns = slice(0, len(job.right))
                for part, values in zip(job.parts, found, strict=True):
                    block = np.array(values)[: rows.stop - rows.start]
                    if zeros is not None:
                        zeros.overwrite(part, rows, columns, block)
                    sink.write(part, rows, columns, block)
                sink.finished(k)
            advance((rows.stop - rows.start) * (len(job.right) - job.columns(rows).start))


def _lookup_of(table: AngleTable, parts: tuple[int, ...]) -> _Lookup:
    return _Lookup(parts, table.all_rows.octaves, table.all_rows.first)


def _coefficients(table: AngleTable) -> tuple[Any, ...]:
    import jax
    import jax.numpy as jnp

    rows = table.all_rows
    if "jax" not in rows.on_device:
        with jax.ensure_compile_time_eval(), jax.enable_x64(True):
            rows.on_device["jax"] = jnp.asarray(rows.coefficients)
    return (rows.on_device["jax"],)


@lru_cache(maxsize=32)
def _compiled(
    program: _Lookup | _Clenshaw | _Layers, mesh: Any, height: int, parts: int
) -> Callable[..., Any]:
    """Return the compiled function (X, Y, ids, rows, columns, whole) -> matrices.

    For each row, ``ids`` contains the column that is identical to it, or -1. ``height`` is the
    number of rows computed at once. See :class:`_Shares`.
    """
    import jax
    from jax.sharding import PartitionSpec

    function = partial(_stacked, program, height)
    if mesh is None:
        return jax.jit(function)
    mesh = jax.sharding.Mesh(mesh.devices.reshape(-1), ("rows",))
    split, whole = PartitionSpec("rows"), PartitionSpec()
    specs = (split, whole, split, split, whole, whole)
    mapped = jax.jit(
        jax.shard_map(
            function, mesh=mesh, in_specs=specs, out_specs=[split] * parts, check_vma=False
        )
    )
    places = [jax.sharding.NamedSharding(mesh, spec) for spec in specs]
    return lambda *arguments: mapped(
        *(jax.device_put(value, place) for value, place in zip(arguments, places, strict=True))
    )


def _height(memory: int | None, columns: int, parts: int) -> int:
    """Return the number of rows computed at once, a power of two so that few sizes are compiled."""
    fitting = (memory or MEMORY) // (8 * (parts + 3) * columns)
    return 1 << max(3, fitting.bit_length() - 1)


def _stacked(
    program: Any, height: int, X: Any, Y: Any, ids: Any, rows: Any, columns: Any, whole: Any
) -> list[Any]:
    """Return the matrices, computed ``height`` rows at a time."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def block(some: Any) -> list[Any]:
        x, names, own = some
        w, upper = _distances(x, Y, names)
        return program(w, upper, own, columns, whole)

    if len(X) <= height:
        return block((X, ids, rows))
    extra = -len(X) % height
    cut = jax.tree.map(
        lambda v: jnp.concatenate([v, v[:1].repeat(extra, axis=0)]).reshape(
            -1, height, *v.shape[1:]
        ),
        (X, ids, rows),
    )
    return [values.reshape(-1, len(Y))[: len(X)] for values in lax.map(block, cut)]


def _distances(X: Any, Y: Any, ids: Any) -> tuple[Any, Any]:
    """Return (w, upper): distances of c from 1, or from -1 if ``upper`` is set."""
    import jax.numpy as jnp
    from jax import lax

    long, wide = jnp.sqrt((X * X).sum(axis=1)), jnp.sqrt((Y * Y).sum(axis=1))
    cosine = jnp.matmul(X / long[:, None], (Y / wide[:, None]).T, precision=lax.Precision.HIGHEST)
    upper = cosine < 0
    same = ids[:, None] == jnp.arange(len(Y))[None, :]
    w = jnp.where(same, 0.0, 1 - jnp.abs(cosine))
    return _sharpened(X, Y, long, wide, w, upper, (w < NEAR) & ~same), upper


def _sharpened(X: Any, Y: Any, long: Any, wide: Any, w: Any, upper: Any, near: Any) -> Any:
    """Compute the distances of near pairs from differences of the data, one row at a time."""
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
    """Return a differentiable JAX function that evaluates a table at distances w.

    The function maps (shape, w, first row of the side, columns) to values. The derivative is the
    slope of the polynomials, and it is 0 at w = 0.
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
        raise KcalcError(
            "a tabulated kernel has only first derivatives; differentiate it only once"
        )

    return values
