"""Channels that reshapes and transpositions put in another order, as a channel shuffle does."""

from __future__ import annotations

from math import prod

import numpy as np

from ..trace import Op, Pass, Reorder, Reshape, Trace, Transpose
from .editing import Edit

LARGEST = 2**24  # numbers in an array whose places are followed one by one


def with_orders(trace: Trace) -> Edit:
    """The operations with a reshape, a transposition and a reshape as one :class:`Reorder`.

    Where together they change nothing but the order of the entries along one axis.
    """
    edit = Edit({op.name: op for op in trace.ops}, trace.outputs)

    def before(op: Op) -> Op:
        """The operation that an operation reads, past those that change nothing."""
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
        for axis, count in enumerate(origin.shape):
            line = np.moveaxis(moved, axis, 0).reshape(count, -1)[:, 0]
            order = line // prod(origin.shape[axis + 1 :])
            if axis and order.max() < count and (places.take(order, axis) == moved).all():
                told = {"name": last.name, "shape": last.shape, "source": last.source}
                given = {"axis": axis, "order": tuple(order.tolist())}
                edit.ops[last.name] = Reorder(**told, reads=(origin.name,), **given)
                break
    return edit
