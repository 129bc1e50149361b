"""Read gathers: rows of tables (embeddings), fixed entries, and nearest upsampling."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ..picking import picked
from ..trace import Prefixed, Repeat
from .jaxpr_values import KnownArray, Ref, Value, made_shape
from .moving import dropped, part_of
from .reader import JaxReader, rule

PICKED = (
    "it picks entries by index; kcalc reads this only if it is nearest-neighbour upsampling or a "
    "table lookup with ids from an input"
)


@rule("gather")
def _gather(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    """Read a gather that is an embedding, a fixed selection or nearest upsampling.

    Selections and upsampling are recognised by gathering from an array of entry indices. Other
    gathers are not read.
    """
    source, places = values[0], values[1]
    if isinstance(source, KnownArray) and isinstance(places, Ref):
        found = _looked_up(reader, eqn, source, places)
    elif isinstance(source, Ref) and isinstance(places, KnownArray):
        alike = len(eqn.outvars[0].aval.shape) == len(source.shape)
        found = _repeated(reader, eqn, source, places) if alike else None
        found = _taken(reader, eqn, source, places) if found is None else found
    else:
        found = None
    return reader.not_read("gather", PICKED) if found is None else [found]


def _looked_up(reader: JaxReader, eqn: Any, table: KnownArray, places: Ref) -> Ref | None:
    """Read a lookup of whole rows of a matrix, one id per row."""
    numbers, shape = eqn.params["dimension_numbers"], made_shape(eqn)
    start = tuple(numbers.start_index_map)
    if table.array.ndim != 2 or start not in ((0,), (0, 1)) or numbers.operand_batching_dims:
        return None
    if tuple(eqn.params["slice_sizes"]) != (1, table.shape[1]) or not np.issubdtype(
        table.array.dtype, np.floating
    ):
        return None
    kept = 2 - len(numbers.collapsed_slice_dims)
    if (
        tuple(numbers.offset_dims) != tuple(range(len(shape) - kept, len(shape)))
        or 1 in numbers.collapsed_slice_dims
    ):
        return None
    ids = _ids(reader, places, len(start))
    if ids is None or len(ids.shape) < 1:
        return None
    ids = reader.plain(ids)
    made = reader.lookup(table, (*ids.shape, table.shape[1]), ids.name)
    return made if made.shape == shape else reader.reshaped(made, shape, "expand")


def _ids(reader: JaxReader, places: Ref, columns: int) -> Ref | None:
    """Return the ids in an index array (..., columns) whose other columns are 0."""
    last = len(places.shape) - 1
    if columns == 1:
        return dropped(reader, places, [last])
    op = reader.ops[places.name]
    if (
        not isinstance(op, Prefixed)
        or op.axis != places.order[last]
        or not op.behind
        or np.any(op.value)
    ):
        return None
    first = reader.ops[op.reads[0]]
    if first.shape[op.axis] != 1 or prod(first.shape) * columns != prod(places.shape):
        return None
    shape = (*places.shape[:last], 1)
    return dropped(reader, Ref(first.name, places.order, shape), [last])


def _taken(reader: JaxReader, eqn: Any, ref: Ref, places: KnownArray) -> Ref | None:
    """Read a selection of fixed entries along one axis, the same for every example."""
    import jax.numpy as jnp

    def pick(there: np.ndarray) -> np.ndarray:
        given = jnp.asarray(there, jnp.float32), jnp.asarray(places.array)
        return np.asarray(eqn.primitive.bind(*given, **eqn.params))

    found = picked(ref.shape, pick)
    if found is None:
        return None
    ref, shape = reader.spread(ref), made_shape(eqn)
    made = part_of(reader, ref, *found, PICKED) if found[0] else ref
    return made if made.shape == shape else reader.reshaped(made, shape, "index")


def _repeated(reader: JaxReader, eqn: Any, ref: Ref, places: KnownArray) -> Ref | None:
    """Read a gather that repeats every location."""
    import jax.numpy as jnp

    shape = made_shape(eqn)
    if any(after % before for before, after in zip(ref.shape, shape, strict=True)):
        return None
    entries = jnp.arange(prod(ref.shape)).reshape(ref.shape)
    wanted = np.asarray(entries)
    for axis, (before, after) in enumerate(zip(ref.shape, shape, strict=True)):
        wanted = np.repeat(wanted, after // before, axis=axis)
    if not np.array_equal(
        np.asarray(eqn.primitive.bind(entries, jnp.asarray(places.array), **eqn.params)), wanted
    ):
        return None
    ref = reader.spread(ref)
    wide = replace(ref, shape=shape)
    base = reader.base_shape(wide)
    return replace(wide, name=reader.add(Repeat, "upsample", base, [ref.name]))
