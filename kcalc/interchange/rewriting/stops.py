"""Stops of gradients while operations are put together.

A stop stands right behind what makes the numbers, so that heads and layouts are found behind it.
Inside of a normalisation or another function that becomes one operation, the values are those of
the function, and its gradient is another one: a mark behind it says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..trace import (
    Copies,
    Moment,
    Op,
    Part,
    Pass,
    Pointwise,
    Pooling,
    Repeat,
    Reshape,
    Stopped,
    Trace,
    Transpose,
    needed,
)
from .editing import Edit

MOVES = (Pass, Reshape, Transpose, Part, Copies, Repeat)
INSIDE = "{}, with a stop of gradients inside of it,"


def with_stops_first(trace: Trace) -> Edit:
    """Stops before the operations that only move numbers, where these have no other readers."""
    edit = Edit({op.name: op for op in trace.ops}, trace.outputs)
    readers = edit.readers()
    for name in list(edit.ops):
        stop = edit.ops[name]
        if not isinstance(stop, Stopped) or stop.unknown:
            continue
        first, moved = stop.reads[0], list[str]()
        while isinstance(edit.ops[first], MOVES) and len(readers[first]) == 1:
            moved.append(first)
            first = edit.ops[first].reads[0]
        if not moved:
            continue
        made = edit.names(name)
        edit.add(replace(stop, name=made, shape=edit.ops[first].shape, reads=(first,)), stop)
        edit.ops[moved[-1]] = replace(edit.ops[moved[-1]], reads=(made,))
        edit.ops[name] = stop.become(Pass)
    return edit


def loosened(trace: Trace) -> Trace:
    """The trace without stops of statistics, which may be those inside of a normalisation."""
    ops = {op.name: op for op in trace.ops}
    return replace(
        trace,
        ops=tuple(
            op.become(Pass) if isinstance(op, Stopped) and _statistic(ops, op) else op
            for op in trace.ops
        ),
    )


def _statistic(ops: Mapping[str, Op], stop: Op) -> Op | None:
    """The mean, maximum or moment that a stop reads through elementwise functions, if it does."""
    waiting = [stop]
    while waiting:
        here = waiting.pop()
        if isinstance(here, Pooling | Moment):
            return here
        if here is stop or isinstance(here, (*MOVES, Pointwise)):
            waiting += [ops[read] for read in here.reads]
    return None


def tightened(before: Trace, after: Trace) -> Trace:
    """The trace after all rewriting, with stops where they were, and marks of those inside.

    ``before``: the trace with all of its stops. The gradient of a softmax does not depend on the
    maximum that is taken off, so a stop of that is no mark.
    """
    ops, old = {op.name: op for op in after.ops}, {op.name: op for op in before.ops}
    live = needed(old, before.outputs)
    marked: dict[str, str] = {}
    for stop in before.ops:
        if not isinstance(stop, Stopped) or stop.name not in live:
            continue
        if isinstance(there := ops.get(stop.name), Pass):
            ops[stop.name] = there.become(Stopped, unknown=stop.unknown)
        elif there is None:
            made = _statistic(old, stop)
            if not (isinstance(made, Pooling) and made.kind == "max"):
                marked |= dict.fromkeys(_survivors(old, ops, stop.name))
    for name in marked:
        _mark(ops, name)
    edit = Edit(ops, [f"{end}{MARK}" if end in marked else end for end in after.outputs])
    return replace(after, ops=tuple(edit.ordered().values()), outputs=edit.outputs)


MARK = ".own_gradient"


def _mark(ops: dict[str, Op], name: str) -> None:
    """A mark of an unknown gradient between an operation and its readers."""
    op = ops[name]
    mark = op.become(
        Stopped,
        name=f"{name}{MARK}",
        reads=(name,),
        unknown=INSIDE.format(f"the function that ends at {name!r}"),
    )
    for other, reader in ops.items():
        if name in reader.reads:
            reads = tuple(mark.name if read == name else read for read in reader.reads)
            ops[other] = replace(reader, reads=reads)
    ops[mark.name] = mark


def _survivors(old: Mapping[str, Op], ops: Mapping[str, Op], name: str) -> Iterator[str]:
    """The first operations behind one that is gone which are still there."""
    readers: dict[str, list[str]] = {}
    for op in old.values():
        for read in op.reads:
            readers.setdefault(read, []).append(op.name)
    waiting, seen = [name], {name}
    while waiting:
        for reader in readers.get(waiting.pop(), ()):
            if reader in ops:
                yield reader
            elif reader not in seen:
                seen.add(reader)
                waiting.append(reader)
