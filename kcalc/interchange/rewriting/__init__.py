"""Recognise layers that a model writes out as several operations.

The module covers parts of layers, normalisation, multi-head attention, and attention with fixed
weights. All decisions depend on the computed functions, never on names. Operations that compute an
unknown function stay unchanged.
"""

from __future__ import annotations

from dataclasses import replace

from ...foundation.errors import KcalcError
from ..internal_errors import internal_error
from ..trace import (
    Attend,
    Contract,
    Entry,
    Linear,
    Lookup,
    Moment,
    Part,
    Pooling,
    Stopped,
    Trace,
    Transpose,
    needed,
)
from .editing import TraceEditor
from .heads import with_heads
from .ids import with_columns, with_ids
from .mixing import with_mixing
from .norms import with_norms
from .orders import with_orders
from .scalars import with_scalars
from .split_layers import MOVES, with_parts
from .stops import loosened, tightened, with_stops_first


def rewritten(trace: Trace) -> tuple[Trace, dict[str, str]]:
    """Return the rewritten trace, and {new operation: original operation it was made for}."""
    if any(isinstance(op, Stopped) for op in trace.ops):
        before = _pruned(trace, with_stops_first(trace))
        after, born = _rewritten(loosened(before))
        return tightened(before, after), born
    return _rewritten(trace)


def _rewritten(trace: Trace) -> tuple[Trace, dict[str, str]]:
    born: dict[str, str] = {}
    trace = _with_readers_aside(trace)
    attends = any(isinstance(op, Attend | Contract) for op in trace.ops)
    rules = [
        ((Part,), with_parts),
        ((Moment, Pooling), with_norms),
        ((Attend, Contract), with_mixing),
    ]
    if attends:  # attention first, because reading its heads slices its layers
        rules = [((Moment, Pooling), with_norms), ((Attend, Contract), with_heads), *rules]
    for kinds, rule in [
        ((Part,), with_columns),
        ((Lookup,), with_ids),
        ((Entry,), with_scalars),
        ((Transpose,), with_orders),
        *rules,
    ]:
        if any(isinstance(op, kinds) for op in trace.ops):
            try:
                edit = rule(trace)
                made = _pruned(trace, edit)
            except KcalcError:
                raise
            except Exception as error:  # the operations stay unchanged
                told = internal_error(error, f"the rewriting rule {rule.__name__}")
                trace = replace(trace, remarks=(*trace.remarks, told))
                continue
            born |= {new: born.get(old, old) for new, old in edit.born.items()}
            trace = made
    return trace, born


def _with_readers_aside(trace: Trace) -> Trace:
    """Mark layers whose output is also read by operations that no output needs."""
    ops = {op.name: op for op in trace.ops}
    live = needed(ops, trace.outputs)
    used: set[str] = set()  # operations that no output needs, except unused slices
    for op in reversed(trace.ops):
        if op.name not in live and (op.name in used or not isinstance(op, MOVES)):
            used |= {op.name, *op.reads}
    waiting = [*(used - live), *(r for name in used - live for r in ops[name].reads)]
    found: set[str] = set()
    while waiting:
        op = ops[waiting.pop()]
        if isinstance(op, Linear):
            found.add(op.name)
        elif isinstance(op, MOVES):
            waiting += op.reads
    marked = (
        replace(op, aside=True) if isinstance(op, Linear) and op.name in found else op
        for op in trace.ops
    )
    return replace(trace, ops=tuple(marked)) if found else trace


def _pruned(trace: Trace, edit: TraceEditor) -> Trace:
    """Return the trace without operations that no output needs.

    Without this step, unused weights of such operations would count as shared.
    """
    live = edit.reached()
    return replace(
        trace,
        ops=tuple(
            op for name, op in edit.ordered().items() if name in live or isinstance(op, Entry)
        ),
    )


__all__ = ["rewritten"]
