"""Combine a layer and the bias added to its output into one operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import sympy as sp

from ..trace import Held, Linear, Op, Pass, Pointwise
from .editing import TraceEditor


def join_biases(edit: TraceEditor) -> None:
    """Replace ``Linear + array`` with one Linear if the array is a bias.

    The array must have one entry per output channel, and nothing else may read the Linear.
    """
    readers = edit.readers()
    for name in list(edit.ops):
        op = edit.ops[name] = _without_zeros(edit, edit.ops[name])
        found = bias_added(edit.ops, op)
        if found is None or len(readers[found[0].name]) != 1:
            continue
        layer, held = found
        bias = np.broadcast_to(np.asarray(held.value).reshape(-1), (layer.shape[layer.out_axis],))
        own = {"bias_parameter": held.parameter, "bias_trained": held.trained}
        made = replace(layer, bias=np.array(bias), **own)
        if op.name in edit.outputs:
            edit.ops[op.name] = replace(made, name=op.name)
            continue
        del edit.ops[layer.name]
        edit.ops[op.name] = replace(made, name=op.name)
        edit.rename(op.name, layer.name)


def _without_zeros(edit: TraceEditor, op: Op) -> Op:
    """Simplify the sum of an array and zeros.

    The zeros are biases that a model adds after it splits heads.
    """
    if not isinstance(op, Pointwise) or op.label != "add" or len(op.reads) != 2:
        return op
    x, y = sp.symbols("x y", real=True)
    for kept, other in (op.reads, op.reads[::-1]):
        held = edit.ops[other]
        if (
            isinstance(held, Held)
            and not np.any(held.value)
            and edit.ops[kept].shape == op.shape
            and op.function(x, y) == x + y
        ):
            return (
                op if isinstance(edit.ops[kept], Linear | Held) else op.become(Pass, reads=(kept,))
            )
    return op


def bias_added(ops: Mapping[str, Op], op: Op) -> tuple[Linear, Held] | None:
    """Return the layer and the bias that an operation adds, or None."""
    if not isinstance(op, Pointwise) or op.label != "add" or len(op.reads) != 2:
        return None
    read = [ops[name] for name in op.reads]
    layer = next((o for o in read if isinstance(o, Linear)), None)
    held = next((o for o in read if isinstance(o, Held)), None)
    if layer is None or held is None or layer.bias is not None or op.shape != layer.shape:
        return None
    x, y = sp.symbols("x y", real=True)
    shape = (1,) * (len(op.shape) - len(held.value.shape)) + tuple(held.value.shape)
    along = len(shape) == len(op.shape) and all(
        n == 1 or axis == layer.out_axis for axis, n in enumerate(shape)
    )
    return (layer, held) if along and op.function(x, y) == x + y else None
