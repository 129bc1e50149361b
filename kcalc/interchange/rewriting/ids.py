"""Token ids as a model looks them up.

Functions that keep every id of the table, as ``where(i < 0, i + V, i)``, are left out.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import sympy as sp

from ...foundation.process_state import lambdify
from ..trace import Lookup, Pass, Pointwise, Reshape, Trace
from .editing import Edit

ID = sp.Symbol("i", real=True)


def with_ids(trace: Trace) -> Edit:
    """The operations, embeddings reading the ids themselves where nothing between changes them."""
    edit = Edit({op.name: op for op in trace.ops}, trace.outputs)
    for op in trace.ops:
        if isinstance(op, Lookup):
            edit.ops[op.name] = replace(op, reads=(_ids(edit, op),))
    return edit


def _ids(edit: Edit, op: Lookup) -> str:
    """The array of ids that an embedding looks up."""
    name = op.reads[0]
    sources: set[str] = set()
    value = _expression(edit, name, sources)
    if value is None or len(sources) != 1 or not _keeps(value, len(op.weight)):
        return name
    source, shape = edit.ops[sources.pop()], edit.ops[name].shape
    if source.shape == shape or prod(source.shape) != prod(shape):
        return source.name if source.shape == shape else name
    return edit.add(
        Reshape(
            name=edit.names(f"{source.name}.reshape"),
            shape=shape,
            reads=(source.name,),
            source=op.source,
        ),
        op,
    )


def _expression(edit: Edit, name: str, sources: set[str]) -> Any:
    """An id as a function of that of the arrays ``sources`` above, which are added here.

    None where it is no elementwise function.
    """
    op = edit.ops[name]
    if not isinstance(op, Pointwise | Pass | Reshape):
        sources.add(name)
        return ID
    parts = [_expression(edit, read, sources) for read in op.reads]
    if any(part is None for part in parts) or not isinstance(op, Pointwise):
        return parts[0]
    try:
        return op.function(*parts)
    except Exception:  # a function that has no plain expression is not followed
        return None


def _keeps(value: Any, count: int) -> bool:
    """Whether a function returns each of the ids 0 ... count - 1."""
    ids = np.arange(count, dtype=float)
    try:
        return value == ID or np.array_equal(lambdify([ID], value, ["scipy", "numpy"])(ids), ids)
    except Exception:  # a relation, or a function without numbers
        return False
