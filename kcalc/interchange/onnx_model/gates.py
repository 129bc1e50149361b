"""Operators of gates and attention: parts of arrays, softmax, products of feature maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..trace import Contract, Part, Reshape, Softmax
from .attention import embedded
from .graph_values import Node, Value
from .reasons import reason_for
from .shapes import equal_parts

if TYPE_CHECKING:
    from .context import Context

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def part(
    reader: Context, node: Node, label: str, axis: int, start: int, stop: int, step: int = 1
) -> Value:
    """A part of the first input along one axis."""
    x = node.value(0)
    shape = [len(range(start, stop, step)) if i == axis else n for i, n in enumerate(x.shape)]
    what, reason = reason_for(node)
    span = {"axis": axis, "start": start, "stop": stop, "step": step}
    return reader.emit(Part, node, label, shape, (x,), x.kind, what=what, reason=reason, **span)


def split(reader: Context, node: Node, label: str) -> Sequence[Value] | None:
    """Split, into equal parts or parts of constant sizes."""
    x, count = node.value(0), len(node.outputs)
    axis = node.axis(node.whole("axis"), x.rank)
    sizes = node.constants(1, "split")
    if sizes is None and node.optional(1) is not None:
        return None
    if sizes is None:
        sizes = equal_parts(x.shape[axis], count)
    if len(sizes) != count or sum(sizes) != x.shape[axis] or min(sizes) < 1:
        raise node.fail(
            f"parts of sizes {sizes[:8]} do not make up axis {axis} of an array of shape {x.shape}"
        )
    if count == 1:
        return [x]
    ends = [sum(sizes[: i + 1]) for i in range(count)]
    return [
        part(reader, node, label, axis, end - size, end)
        for size, end in zip(sizes, ends, strict=True)
    ]


def sliced(reader: Context, node: Node, label: str) -> Sequence[Value] | None:
    """Slice with constant places: nothing where it takes everything, else parts axis by axis."""
    x = node.value(0)
    starts, ends = node.constants(1, "starts"), node.constants(2, "ends")
    axes, steps = node.constants(3, "axes"), node.constants(4, "steps")
    unknown = (node.optional(3) is not None and axes is None) or (
        node.optional(4) is not None and steps is None
    )
    if starts is None or ends is None or unknown or len(starts) != len(ends):
        return None
    places = tuple(range(len(starts))) if axes is None else tuple(a % x.rank for a in axes)
    node.axes(axes or (), x.rank)
    strides = steps or (1,) * len(starts)
    spans = {
        a: slice(s, e, k).indices(x.shape[a])
        for a, s, e, k in zip(places, starts, ends, strides, strict=True)
    }
    cut = {a: span for a, span in spans.items() if span != (0, x.shape[a], 1)}
    if not cut:
        return [x]
    if len(cut) != 1 or any(k < 1 for _, _, k in cut.values()):
        return None
    ((axis, span),) = cut.items()
    return [part(reader, node, label, axis, *span)] if len(range(*span)) else None


def picked(reader: Context, node: Node, label: str) -> Sequence[Value] | None:
    """Gather of one constant place along an axis, or of rows of a table."""
    x, index = node.value(0), node.value(1)
    if x.array is not None:
        return embedded(reader, node, label)
    if index.number is None or index.rank or x.rank < 1:
        return None
    axis = node.axis(node.whole("axis"), x.rank)
    place = int(index.number)
    if not -x.shape[axis] <= place < x.shape[axis]:
        raise node.fail(f"it picks place {place} of an axis of {x.shape[axis]}")
    place %= x.shape[axis]
    made = part(reader, node, label, axis, place, place + 1)
    return [
        reader.emit(
            Reshape,
            node,
            f"{label}.squeeze",
            [n for i, n in enumerate(x.shape) if i != axis],
            (made,),
            x.kind,
        )
    ]


def softmax(reader: Context, node: Node, label: str) -> Sequence[Value] | None:
    """Softmax along one axis; before opset 13 it took all axes from that one on as one."""
    x = node.value(0)
    axis = node.axis(node.whole("axis", -1 if node.opset >= 13 else 1), x.rank)
    if node.opset < 13 and axis != x.rank - 1:
        return None
    what, reason = reason_for(node)
    return [
        reader.emit(
            Softmax, node, label, x.shape, (x,), x.kind, what=what, reason=reason, axis=axis
        )
    ]


def product(reader: Context, node: Node, label: str, what: str, reason: str) -> Sequence[Value]:
    """A product of two arrays of matrices."""
    x, w = node.value(0), node.value(1)
    batch = LETTERS[: max(x.rank, w.rank) - 2]
    alike = all(a == b for a, b in zip(x.shape[-3::-1], w.shape[-3::-1], strict=False))
    if min(x.rank, w.rank) < 2 or not alike or x.shape[-1] != w.shape[-2]:
        return reader.unread(node, label, what, reason)
    mine, theirs = batch[len(batch) - x.rank + 2 :], batch[len(batch) - w.rank + 2 :]
    outer = x.shape[:-2] if x.rank >= w.rank else w.shape[:-2]
    terms = f"{mine}xy,{theirs}yz->{batch}xz"
    shape = (*outer, x.shape[-2], w.shape[-1])
    return [
        reader.emit(Contract, node, label, shape, (x, w), what=what, reason=reason, terms=terms)
    ]


RULES = {
    ("", "Split"): split,
    ("", "Slice"): sliced,
    ("", "Gather"): picked,
    ("", "Softmax"): softmax,
}
