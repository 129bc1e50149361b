"""Test that a model treats examples separately, by tracing it with two batch sizes.

With one example, ``h + h[:1]`` equals ``2 h`` and ``h * len(h)`` equals ``h``. With two or more
examples, the results differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import sympy as sp

from ..foundation.errors import KcalcError
from .internal_errors import INTERNAL, internal_error
from .trace import Entry, Held, NotRead, Op, Part, Pointwise, Trace

# fields that do not affect the computed values
NAMES = ("name", "shape", "reads", "source", "parameter", "bias_parameter", "compute")
COUNTED = "it depends on the batch size, so it is not a function of individual examples"
ALONE = "the model takes only one example at a time, so kcalc cannot test whether it mixes examples"
FIXED = (
    "the model takes only batches of {}, so kcalc cannot test whether it depends on the batch size"
)
Traced = Callable[[int], Trace]
Alike = Callable[[int], bool]


def of_batches(size: int, traced: Traced, alike: Alike | None = None, cheap: bool = True) -> Trace:
    """Trace a model with ``size`` examples, and drop operations that depend on the batch size.

    ``traced(n)`` returns the trace for n examples, or raises KcalcError if the model does not
    accept n examples. ``alike(n)`` is an optional quick check that the model runs the same
    operations for n and n + 1 examples; without it, the two traces are compared. ``cheap``: whether
    tracing is fast. If not, the trace for two examples is also used for one example.
    """
    if size > 1:
        return _compared(traced(size), size, traced, alike)
    two = _of_two(traced)
    if two is None:
        one = traced(1)
        return replace(one, remarks=(*one.remarks, ALONE))
    if cheap and not _counted(one := traced(1), two):
        return one
    return _compared(two, 2, traced, alike)


def _compared(trace: Trace, count: int, traced: Traced, alike: Alike | None) -> Trace:
    """Drop the operations of a trace that change when one example is added."""
    try:
        if alike is not None and alike(count):
            return trace
        other = traced(count + 1)
    except KcalcError:
        other = None
    except Exception as error:
        told = internal_error(error, f"the comparison with {count + 1} examples")
        return replace(trace, remarks=(*trace.remarks, told, FIXED.format(count)))
    if other is None or (_emits(trace, count) and not _emits(other, count + 1)):
        return replace(trace, remarks=(*trace.remarks, FIXED.format(count)))
    counted, reason = _counted(trace, other), _failed(trace, other)
    ops = (_unread(op, reason) if op.name in counted else op for op in trace.ops)
    return replace(trace, ops=tuple(ops)) if counted else trace


def _of_two(traced: Traced) -> Trace | None:
    """Trace the model with two examples, or return None if it rejects or merges them."""
    try:
        trace = traced(2)
    except KcalcError:
        return None
    return None if _emits(trace, 1) else trace


def _emits(trace: Trace, count: int) -> bool:
    """Whether the first axis of some output has ``count`` entries."""
    return any(op.shape[:1] == (count,) for op in trace.ops if op.name in trace.outputs)


def _unread(op: Op, reason: str) -> NotRead:
    return op.become(NotRead, what="the number of examples", reason=reason)


def _failed(trace: Trace, other: Trace) -> str:
    """Return why the operations of two traces differ: an internal error, or the batch size."""
    here, there = ({op.reason for op in t.ops if isinstance(op, NotRead)} for t in (trace, other))
    return next((reason for reason in sorted(there - here) if INTERNAL in reason), COUNTED)


def _counted(trace: Trace, other: Trace) -> set[str]:
    """Find operations that depend on the batch size.

    If the graphs differ, return all outputs.
    """
    graphs = [[(type(op), op.name, op.reads) for op in found.ops] for found in (trace, other)]
    if graphs[0] != graphs[1]:
        return set(trace.outputs)
    pairs = [pair for pair in zip(trace.ops, other.ops, strict=True) if type(pair[0]) is not Entry]
    unlike = {a.name for a, b in pairs if not _same(a, b)}
    held = {op.name for op in trace.ops if isinstance(op, Held)} & unlike
    return unlike - held | {op.name for op in trace.ops if held & set(op.reads)}


def _same(a: Any, b: Any) -> bool:
    """Whether two operations, or two fields of operations, are equivalent.

    Arrays with different shapes count as equivalent, because one of their axes is the batch axis
    and no rule reads such arrays. A ``Part`` along the first axis needs no check: if it selects
    examples, it is never read; otherwise it belongs to an array whose entries are compared anyway.
    """
    if isinstance(a, Part) and a.axis == 0:
        return True
    if isinstance(a, Op):
        plain = isinstance(a, Pointwise) and _expression(a) == _expression(b)
        skipped = (*NAMES, "function") if plain else NAMES
        names = [f.name for f in fields(a) if f.name not in skipped]
        return all(_same(getattr(a, name), getattr(b, name, None)) for name in names)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a is b or a.shape != b.shape or np.array_equal(a, b, equal_nan=True)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _expression(op: Any) -> Any:
    try:
        return op.function(*sp.symbols(f"y:{len(op.reads)}", real=True))
    except Exception:  # kcalc does not read operations without a SymPy expression
        return None
