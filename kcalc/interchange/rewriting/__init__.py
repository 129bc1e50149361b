"""What a model writes out in several operations as the one that it is: parts of a layer, normalisation by hand, attention that is fixed.

Everything here is decided by what the operations compute, never by names, and left alone where that cannot be told.
"""

from __future__ import annotations

from dataclasses import replace

from ..trace import Attend, Contract, Entry, Moment, Part, Pooling, Trace
from .editing import Edit
from .mixing import with_mixing
from .moments import with_norms
from .parts import with_parts


def rewritten(trace: Trace) -> tuple[Trace, dict[str, str]]:
    """The trace with all that could be put together, and {new operation: the older one for which it was made}."""
    born: dict[str, str] = {}
    for kinds, rule in (((Part,), with_parts), ((Moment, Pooling), with_norms), ((Attend, Contract), with_mixing)):
        if any(isinstance(op, kinds) for op in trace.ops):
            edit = rule(trace)
            born |= {new: born.get(old, old) for new, old in edit.born.items()}
            trace = _pruned(trace, edit)
    return trace, born


def _pruned(trace: Trace, edit: Edit) -> Trace:
    """The trace without what no output depends on any more, lest weights that nothing reads count as shared."""
    live = edit.reached()
    return replace(trace, ops=tuple(op for name, op in edit.ordered().items() if name in live or isinstance(op, Entry)))


__all__ = ["rewritten"]
