"""Several written-out operations as one.

Parts of a layer, normalisation by hand, attention in heads, attention that is fixed.

Everything here is decided by the functions of the operations, never by names, and left alone where
these are not known.
"""

from __future__ import annotations

from dataclasses import replace

from ...foundation.errors import KcalcError
from ..internal_errors import internal_error
from ..trace import (
    Attend,
    Contract,
    Entry,
    Lookup,
    Moment,
    Part,
    Pooling,
    Stopped,
    Trace,
    Transpose,
)
from .editing import Edit
from .heads import with_heads
from .ids import with_columns, with_ids
from .mixing import with_mixing
from .norms import with_norms
from .orders import with_orders
from .output_parts import with_parts
from .scalars import with_scalars
from .stops import loosened, tightened, with_stops_first


def rewritten(trace: Trace) -> tuple[Trace, dict[str, str]]:
    """(the trace after all rewriting rules, {new operation: the older one it was made for})."""
    if any(isinstance(op, Stopped) for op in trace.ops):
        before = _pruned(trace, with_stops_first(trace))
        after, born = _rewritten(loosened(before))
        return tightened(before, after), born
    return _rewritten(trace)


def _rewritten(trace: Trace) -> tuple[Trace, dict[str, str]]:
    born: dict[str, str] = {}
    attends = any(isinstance(op, Attend | Contract) for op in trace.ops)
    rules = [
        ((Part,), with_parts),
        ((Moment, Pooling), with_norms),
        ((Attend, Contract), with_mixing),
    ]
    if attends:  # whose parts of layers are cut with their heads
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
            except Exception as error:  # the operations stay as they are, with their own reasons
                told = internal_error(error, f"the rewriting rule {rule.__name__}")
                trace = replace(trace, remarks=(*trace.remarks, told))
                continue
            born |= {new: born.get(old, old) for new, old in edit.born.items()}
            trace = made
    return trace, born


def _pruned(trace: Trace, edit: Edit) -> Trace:
    """The trace without operations that no output depends on.

    Their unread weights would otherwise count as shared.
    """
    live = edit.reached()
    return replace(
        trace,
        ops=tuple(
            op for name, op in edit.ordered().items() if name in live or isinstance(op, Entry)
        ),
    )


__all__ = ["rewritten"]
