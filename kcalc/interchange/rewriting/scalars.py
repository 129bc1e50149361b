"""Read features that a model computes from one number per example, such as a time step.

For example, sines and cosines of a time step at fixed frequencies become an input with one channel
per feature. The weights that read this input are the first layer of the network.
"""

from __future__ import annotations

from dataclasses import replace

from ..layout import id_arrays
from ..trace import Entry, Held, Join, Linear, Op, Pass, Pointwise, Reshape, Trace
from .editing import TraceEditor

FEATURES = (
    "the network's input consists of the {1} features that the model computes from {0!r}, which is "
    "one number per example; its q and c refer to these features (q = 1/2 for pairs of sines and "
    "cosines)"
)
FUNCTION = (
    "the network's input is a function of {0!r}, which is one number per example; its q refers to "
    "the function's value"
)


def with_scalars(trace: Trace) -> TraceEditor:
    """Turn features of one number per example into inputs if weights read them."""
    edit = TraceEditor({op.name: op for op in trace.ops}, trace.outputs)
    ids, readers = id_arrays(trace), edit.readers()
    for entry in [op for op in trace.ops if isinstance(op, Entry) and op.name not in ids]:
        if len(entry.shape) != 1 and entry.shape[1:] != (1,):
            continue
        made, ends = _features(trace, entry, readers)
        end = edit.ops[ends[0]] if len(ends) == 1 else entry
        layers = [edit.ops.get(name) for name in readers[end.name]]
        plain = len(end.shape) == 2 and all(
            isinstance(op, Linear) and op.axis == 1 and not op.kernel for op in layers
        )
        if end is entry or not plain or not layers:
            continue
        changed = any(isinstance(edit.ops[name], Pointwise) for name in made)
        text = (FEATURES if end.shape[1] > 1 else FUNCTION) if changed else ""
        edit.ops[entry.name] = replace(
            entry, shape=end.shape, part=True, text=text.format(entry.name, end.shape[1])
        )
        edit.ops[end.name] = end.become(Pass, reads=(entry.name,))
    return edit


def _features(trace: Trace, entry: Op, readers: dict[str, list[str]]) -> tuple[set[str], list[str]]:
    """Return the operations that depend only on ``entry`` and constants, and the last of them."""
    made, fixed = {entry.name}, {op.name for op in trace.ops if isinstance(op, Held)}
    for op in trace.ops:
        alone = isinstance(op, Pointwise | Reshape | Pass | Join)
        if alone and made & set(op.reads) and made | fixed >= set(op.reads):
            made.add(op.name)
    return made, [name for name in made if set(readers[name]) - made]
