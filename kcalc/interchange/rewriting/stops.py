"""Handle gradient stops when operations are combined.

A stop inside operations that are combined into one, such as a normalisation, changes the gradient
but not the values. A mark after the combined operation records the stop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..trace import (
    Attend,
    Contract,
    Copies,
    Drop,
    Held,
    Masked,
    Moment,
    Op,
    Part,
    Pass,
    Pointwise,
    Pooling,
    Repeat,
    Reshape,
    Softmax,
    Stopped,
    Trace,
    Transpose,
    needed,
)
from .editing import TraceEditor

MOVES = (Pass, Reshape, Transpose, Part, Copies, Repeat)
ON_SCORES = (*MOVES, Softmax, Masked, Drop, Pointwise)
INSIDE = "{}, with a gradient stop inside it,"


def with_stops_first(trace: Trace) -> TraceEditor:
    """Move stops to places where they do not hide layers, heads and attention.

    If a stop follows operations that only rearrange entries and that nothing else reads, the stop
    moves before these operations. A stop on attention scores or weights becomes two stops, on
    queries and keys. A stop on the result of attention moves after the operations that join heads.
    """
    edit = TraceEditor({op.name: op for op in trace.ops}, trace.outputs)
    waiting = [op.name for op in trace.ops if isinstance(op, Stopped) and not op.unknown]
    for name in waiting:  # the loop below appends stops on queries and keys
        readers = edit.readers()
        above = _above(edit, readers, name)
        first = edit.ops[above[-1]].reads[0] if above else edit.ops[name].reads[0]
        source = edit.ops[first]
        scores = _scores(edit, readers, name)
        if scores:
            waiting += _stopped_inputs(edit, scores)
            edit.ops[name] = edit.ops[name].become(Pass)
        elif isinstance(source, Attend | Contract):
            _move_down(edit, readers, name)
        elif above:
            _insert(edit, edit.ops[name], first, above[-1])
            edit.ops[name] = edit.ops[name].become(Pass)
    return edit


def _above(edit: TraceEditor, readers: Mapping[str, list[str]], name: str) -> list[str]:
    """Return the operations before a stop that only rearrange its input, starting with the last."""
    found, here = list[str](), edit.ops[name].reads[0]
    while isinstance(edit.ops[here], MOVES) and len(readers[here]) == 1:
        found.append(here)
        here = edit.ops[here].reads[0]
    return found


def _insert(edit: TraceEditor, stop: Op, read: str, reader: str) -> str:
    """Insert a stop between the operations ``read`` and ``reader``, and return its name."""
    made = edit.names(stop.name)
    edit.add(replace(stop, name=made, shape=edit.ops[read].shape, reads=(read,)), stop)
    old = edit.ops[reader]
    edit.ops[reader] = replace(old, reads=tuple(made if r == read else r for r in old.reads))
    return made


def _scores(edit: TraceEditor, readers: Mapping[str, list[str]], name: str) -> Op | None:
    """Return the product of queries and keys before a stop, possibly with a softmax, or None."""
    here, softmax = edit.ops[edit.ops[name].reads[0]], False
    while isinstance(here, ON_SCORES) and len(readers[here.name]) == 1 and _one(edit, here):
        softmax = softmax or isinstance(here, Softmax)
        here = edit.ops[_one(edit, here)]
    if not isinstance(here, Contract) or len(readers[here.name]) != 1:
        return None
    if any(isinstance(edit.ops[read], Held) for read in here.reads):
        return None
    below = name
    while not softmax and len(readers[below]) == 1 and readers[below][0]:
        below = readers[below][0]
        if not isinstance(edit.ops[below], ON_SCORES):
            break
        softmax = isinstance(edit.ops[below], Softmax)
    return here if softmax else None


def _one(edit: TraceEditor, op: Op) -> str:
    """Return the only nonconstant input of an operation, or "" if there are several."""
    read = [name for name in op.reads if not isinstance(edit.ops[name], Held)]
    return read[0] if len(read) == 1 else ""


def _stopped_inputs(edit: TraceEditor, op: Op) -> list[str]:
    """Insert stops at the two inputs of a product, and return their names."""
    stop = op.become(Stopped, name="stop")
    return [_insert(edit, stop, read, op.name) for read in dict.fromkeys(op.reads)]


def _move_down(edit: TraceEditor, readers: Mapping[str, list[str]], name: str) -> None:
    """Move a stop after the following operations that only rearrange entries."""
    last = name
    while len(readers[last]) == 1 and isinstance(edit.ops.get(readers[last][0]), MOVES):
        last = readers[last][0]
    if last == name:
        return
    stop = edit.ops[name]
    made = edit.names(stop.name)
    for other, reader in list(edit.ops.items()):
        if last in reader.reads:
            reads = tuple(made if r == last else r for r in reader.reads)
            edit.ops[other] = replace(reader, reads=reads)
    edit.outputs = tuple(made if end == last else end for end in edit.outputs)
    edit.add(replace(stop, name=made, shape=edit.ops[last].shape, reads=(last,)), stop)
    edit.ops[name] = stop.become(Pass)


def loosened(trace: Trace) -> Trace:
    """Return the trace without stops on statistics, which may be part of a normalisation."""
    ops = {op.name: op for op in trace.ops}
    return replace(
        trace,
        ops=tuple(
            op.become(Pass) if isinstance(op, Stopped) and _statistic(ops, op) else op
            for op in trace.ops
        ),
    )


def _statistic(ops: Mapping[str, Op], stop: Op) -> Op | None:
    """Return the mean, maximum or moment from which a stop's input is computed elementwise."""
    waiting = [stop]
    while waiting:
        here = waiting.pop()
        if isinstance(here, Pooling | Moment):
            return here
        if here is stop or isinstance(here, (*MOVES, Pointwise)):
            waiting += [ops[read] for read in here.reads]
    return None


def tightened(before: Trace, after: Trace) -> Trace:
    """Restore the stops in the rewritten trace, and mark operations with stops inside.

    ``before``: the trace with all stops. A stop on the maximum that softmax subtracts needs no
    mark, because the gradient does not depend on it.
    """
    ops, old = {op.name: op for op in after.ops}, {op.name: op for op in before.ops}
    live = needed(old, before.outputs)
    marked: list[str] = []
    for stop in before.ops:
        if not isinstance(stop, Stopped) or stop.name not in live:
            continue
        if isinstance(there := ops.get(stop.name), Pass):
            ops[stop.name] = there.become(Stopped, unknown=stop.unknown)
        elif there is None:
            made = _statistic(old, stop)
            if not (isinstance(made, Pooling) and made.kind == "max"):
                marked += _survivors(old, ops, stop.name)
    for name in dict.fromkeys(marked):
        _mark(ops, name)
    edit = TraceEditor(ops, [f"{end}{MARK}" if end in marked else end for end in after.outputs])
    return replace(after, ops=tuple(edit.ordered().values()), outputs=edit.outputs)


MARK = ".own_gradient"


def _mark(ops: dict[str, Op], name: str) -> None:
    """Insert a mark of an unknown gradient after an operation."""
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
    """Yield the first remaining operations after a removed operation."""
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
