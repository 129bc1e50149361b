"""Recognise channel permutations written as reshapes and transposes, as in a channel shuffle."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from ..layout import channel_axes
from ..trace import Op, Pass, Reorder, Reshape, Trace, Transpose
from .editing import TraceEditor

LARGEST = 2**24  # arrays with more entries are not tested


def with_orders(trace: Trace) -> TraceEditor:
    """Replace a reshape, a transpose and another reshape with one :class:`Reorder`.

    Together, the three operations must only permute the channels.
    """
    edit = TraceEditor({op.name: op for op in trace.ops}, trace.outputs)

    def before(op: Op) -> Op:
        """Return the operation before ``op``, skipping operations that change nothing."""
        read = edit.ops[op.reads[0]]
        return before(read) if isinstance(read, Pass) and read.reads else read

    for last in [op for op in trace.ops if isinstance(op, Reshape)]:
        turn = before(last)
        if not isinstance(turn, Transpose) or not isinstance(first := before(turn), Reshape):
            continue
        origin = edit.ops[first.reads[0]]
        if origin.shape != last.shape or prod(last.shape) > LARGEST:
            continue
        places = np.arange(prod(origin.shape)).reshape(origin.shape)
        moved = places.reshape(first.shape).transpose(turn.order).reshape(last.shape)
        axis = channel_axes(replace(trace, ops=tuple(edit.ops.values())))[origin.name]
        if axis is None:
            continue
        line = np.moveaxis(moved, axis, 0).reshape(last.shape[axis], -1)[:, 0]
        order = line // prod(origin.shape[axis + 1 :]) % last.shape[axis]
        if (np.diff(order) != 1).any() and (places.take(order, axis) == moved).all():
            given = {"axis": axis, "order": tuple(order.tolist())}
            edit.ops[last.name] = last.become(Reorder, reads=(origin.name,), **given)
    return edit
