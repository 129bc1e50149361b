"""Simplify ids that a model looks up in tables, and inputs that a model slices.

Functions that do not change any id of the table, such as ``where(i < 0, i + V, i)``, are dropped.
A column of ids, or a slice of an input's channels, becomes a separate input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import sympy as sp

from ...foundation.process_state import lambdify
from ..layout import id_arrays, is_cast
from ..trace import Entry, Linear, Lookup, NotRead, Op, Part, Pass, Pointwise, Reshape, Trace
from .editing import TraceEditor, span

ID = sp.Symbol("i", real=True)


def with_ids(trace: Trace) -> TraceEditor:
    """Let embeddings read the ids directly if no operation in between changes them."""
    edit = TraceEditor({op.name: op for op in trace.ops}, trace.outputs)
    for op in trace.ops:
        if isinstance(op, Lookup):
            edit.ops[op.name] = replace(op, reads=(_ids(edit, op),))
    return edit


def with_columns(trace: Trace) -> TraceEditor:
    """Turn slices of an input (examples, channels) into separate inputs.

    Slices of ids may overlap. Other slices must not overlap, and nothing else may read the input.
    """
    edit = TraceEditor({op.name: op for op in trace.ops}, trace.outputs)
    ids, readers = id_arrays(trace), edit.readers()
    for entry in [op for op in trace.ops if isinstance(op, Entry) and len(op.shape) == 2]:
        read = list(readers[entry.name])
        passing = [entry.name]
        while passed := [name for name in read if _casts(edit.ops.get(name))]:
            read.remove(passed[0])
            read += readers[passed[0]]
            passing.append(passed[0])
        parts = [op for name in read if isinstance(op := edit.ops.get(name), Part)]
        whole = [name for name in read if edit.ops.get(name) not in parts]
        columns = {part.name: part.places for part in parts}
        taken = [i for column in set(columns.values()) for i in column]
        layered = any(isinstance(op, Linear) for op in trace.ops)
        alone = layered and not whole and len(taken) == len(set(taken))
        looked_up = all(isinstance(edit.ops.get(n), Lookup) or n in ids for n in read)
        cast: set[str] = set()
        for op in (edit.ops[name] for name in passing[1:]):
            if not isinstance(op, Pass) or not cast.isdisjoint(op.reads):
                cast.add(op.name)
        kept = all(part.name in ids for part in parts if not cast.isdisjoint(part.reads))
        if not ((alone and kept) or looked_up) or any(part.axis != 1 for part in parts):
            continue
        made: dict[Sequence[int], str] = {}
        for part in parts:
            column = columns[part.name]
            if column not in made:
                made[column] = edit.add(_input(edit, entry, column), entry)
            edit.ops[part.name] = part.become(Pass, reads=(made[column],))
        for name in passing if parts and not whole else ():
            del edit.ops[name]
    return edit


def _casts(op: Op | None) -> bool:
    """Whether an operation returns ids unchanged, possibly as floats."""
    if isinstance(op, Pointwise):
        return is_cast(op) and len(op.reads) == 1 and _keeps(op.function(ID), 16)
    return isinstance(op, Pass) or (op is not None and is_cast(op))


def _input(edit: TraceEditor, entry: Op, column: Sequence[int]) -> Entry:
    """Return a new input that contains some channels of ``entry``."""
    name = edit.names(f"{entry.name}[{span(tuple(column))}]")
    return entry.become(Entry, name=name, shape=(entry.shape[0], len(column)), part=True)


def _ids(edit: TraceEditor, op: Lookup) -> str:
    """Return the array of ids from which an embedding's indices are computed."""
    name = op.reads[0]
    sources: set[str] = set()
    value = _expression(edit, name, sources)
    if value is None or len(sources) != 1 or not _keeps(value, len(op.weight)):
        return name
    source, shape = edit.ops[sources.pop()], edit.ops[name].shape
    if source.shape == shape or op.bag > 1 or prod(source.shape) != prod(shape):
        return source.name if source.shape == shape or op.bag > 1 else name
    name = edit.names(f"{source.name}.reshape")
    return edit.add(op.become(Reshape, name=name, shape=shape, reads=(source.name,)), op)


def _expression(edit: TraceEditor, name: str, sources: set[str]) -> Any:
    """Return an array of ids as an expression of earlier arrays, which are added to ``sources``.

    Returns None if the array is not an elementwise function of earlier arrays.
    """
    op = edit.ops[name]
    if not isinstance(op, Pointwise | Reshape) and not _casts(op):
        sources.add(name)
        return ID
    below: set[str] = set()
    parts = [_expression(edit, read, below) for read in op.reads]
    if isinstance(op, NotRead) and not all(isinstance(edit.ops[n], Entry) for n in below):
        below, parts = {name}, [ID]
    sources |= below
    if any(part is None for part in parts) or not isinstance(op, Pointwise):
        return parts[0]
    try:
        return op.function(*parts)
    except Exception:  # functions without a plain expression are not followed
        return None


def _keeps(value: Any, count: int) -> bool:
    """Whether a function of X returns each id 0, ..., count - 1 unchanged."""
    ids = np.arange(count, dtype=float)
    try:
        return value == ID or np.array_equal(lambdify([ID], value, ["scipy", "numpy"])(ids), ids)
    except Exception:  # a relation, or a function without numerical values
        return False
