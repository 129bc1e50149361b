"""Recognise softmax that is written out with exponentials and sums.

The operations are merged into one operation named "softmax". A note can then explain why this
operation is not read.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import sympy as sp

from ...fields.degrees import expandable
from ...foundation.errors import KcalcError
from ..internal_errors import internal_error
from ..trace import NotRead, Op, Pass, Pointwise, Pooling, Reshape, Softmax, Stopped, Transpose

X = sp.Symbol("x", real=True)
TOP = sp.Symbol("top", real=True)
MEAN = sp.Symbol("mean", positive=True)
REASON = "it couples all entries along an axis (attention); kcalc has no rule for it"
FAR = 16  # a written-out softmax has at most this many operations


def with_softmax(ops: dict[str, Op]) -> dict[str, Op]:
    """Replace every written-out softmax or log_softmax with a single operation.

    This operation, a Softmax or a NotRead, replaces the last operation of the written-out softmax
    and takes its name.
    """
    ops = dict(ops)
    for name in list(ops):
        mean = ops[name]
        if not isinstance(mean, Pooling) or mean.kind != "mean" or mean.window is not None:
            continue
        try:
            ops |= _written_out(ops, mean)
        except Exception as error:
            reason = internal_error(error, f"the softmax that may divide by {name!r}")
            ops[name] = mean.become(NotRead, what="a softmax", reason=reason)
    return ops


def _written_out(ops: dict[str, Op], mean: Pooling) -> dict[str, Op]:
    """Return {name: operation} for the softmax that divides by ``mean``, as one operation, or {}.

    The name is that of the last operation of the written-out softmax.
    """
    for base in reversed(_bases(ops, mean.reads[0])):
        found = _search(ops, base, mean)
        if found is not None:
            told = {"reads": (base,), "what": found[1], "reason": REASON}
            one = found[1] == "softmax" and len(mean.axes) == 1
            kind = partial(Softmax, axis=mean.axes[0]) if one else NotRead
            return {found[0]: ops[found[0]].become(kind, **told)}
    return {}


def _bases(ops: dict[str, Op], name: str) -> list[str]:
    """Return operations up to two steps before ``name`` that may be the softmax's argument."""
    found: list[str] = []
    level = [name]
    for _ in range(3):
        level = [
            r
            for n in level
            if isinstance(ops[n], Pointwise | Reshape | Pass | Stopped)
            for r in ops[n].reads
        ]
        found += [r for r in level if ops[r].shape == ops[name].shape and r not in found]
    return found


def _search(ops: dict[str, Op], base: str, mean: Pooling) -> tuple[str, str] | None:
    expr: dict[str, Any] = {base: X}
    names = list(ops)
    start = names.index(base)
    count = sp.Integer(1)
    for axis in mean.axes:
        count *= ops[base].shape[axis]
    wanted = {
        "softmax": [sp.exp(X - TOP) / (count * MEAN), sp.exp(X) / (count * MEAN)],
        "log_softmax": [X - TOP - sp.log(count * MEAN), X - sp.log(count * MEAN)],
    }
    for name in names[start + 1 : start + 1 + FAR]:
        found = _expression(ops, ops[name], expr, mean)
        if found is None:
            continue
        expr[name] = found
        for what, forms in wanted.items():
            if ops[name].shape == ops[base].shape and any(
                sp.expand(found - form, log=True) == 0 for form in forms
            ):
                return name, what
    return None


def _expression(ops: dict[str, Op], op: Op, expr: dict[str, Any], mean: Pooling) -> Any:
    if not op.reads or any(r not in expr for r in op.reads):
        return None
    inner = expr[op.reads[0]]
    if isinstance(op, Pooling) and op.axes == mean.axes and op.window is None:
        if op.kind == "max":
            return TOP if inner == X else None
        return MEAN if inner in (sp.exp(X - TOP), sp.exp(X)) else None
    if isinstance(op, Stopped):  # the subtracted maximum has no gradient anyway
        return inner if inner == TOP else None
    if isinstance(op, Reshape | Pass | Transpose):
        return None if inner.has(X) else inner
    if isinstance(op, Pointwise):
        try:
            found = op.function(*(expr[r] for r in op.reads))
        except (KcalcError, TypeError, ValueError, ArithmeticError):
            return None
        return found if isinstance(found, sp.Expr) and expandable(found) else None
    return None
