"""Read slices, gathers, softmax and products of feature maps, as used in gates and attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...foundation.errors import KcalcError
from ..picking import in_step, picked
from ..trace import Contract, Lookup, Part, Reshape, Softmax
from .folding import evaluated
from .graph_values import FLOAT, INT, Made, Node, Value, constant, rule
from .reasons import reason_for
from .shapes import equal_parts
from .unsupported_shapes import shapes_of

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def part(node: Node, axis: int, places: Sequence[int]) -> Value:
    """Read the entries at ``places`` of the first input along one axis."""
    x = node.value(0)
    shape = [len(places) if i == axis else n for i, n in enumerate(x.shape)]
    what, reason = reason_for(node)
    told = {"axis": axis, "places": places, "what": what, "reason": reason}
    return node.emit(Part, shape, (x,), x.kind, **told)


@rule("Split")
def split(node: Node) -> Made:
    """Read Split into equal parts or into parts of constant sizes."""
    x, count = node.value(0), len(node.outputs)
    axis = node.axis(node.whole("axis"), x.rank)
    sizes = node.constants(1, "split")
    if sizes is None and node.optional(1) is not None:
        return None
    if sizes is None:
        sizes = equal_parts(x.shape[axis], count)
    if len(sizes) != count or sum(sizes) != x.shape[axis] or min(sizes) < 1:
        raise node.fail(
            f"parts of sizes {sizes[:8]} do not add up to the length of axis {axis} of an array "
            f"of shape {x.shape}"
        )
    if count == 1:
        return x
    ends = [sum(sizes[: i + 1]) for i in range(count)]
    return [part(node, axis, range(e - size, e)) for size, e in zip(sizes, ends, strict=True)]


@rule("Slice")
def sliced(node: Node) -> Made:
    """Read Slice with constant bounds axis by axis; a slice of all entries does nothing."""
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
        return x
    if len(cut) != 1 or any(k < 1 for _, _, k in cut.values()):
        return None
    ((axis, span),) = cut.items()
    return part(node, axis, range(*span)) if len(range(*span)) else None


def embedded(node: Node) -> Made:
    """Read Gather of whole rows of a constant table by ids from an input.

    Returns None for other tables and indices.
    """
    table, ids = node.value(0), node.value(1)
    known = (
        table.array is not None
        and table.rank == 2
        and table.kind == FLOAT
        and node.axis(node.whole("axis"), 2) == 0
    )
    if not known or ids.op is None or ids.kind != INT:
        return None
    array = table.numbers
    shape = (*ids.shape, array.shape[1])
    return node.emit(Lookup, shape, (ids,), weight=array, parameter=node.reader.owner(table))


@rule("Gather")
def gathered_along(node: Node) -> Made:
    """Read Gather of constant indices along an axis, or of rows of a table."""
    x, index = node.value(0), node.value(1)
    if x.array is not None:
        return embedded(node)
    if index.array is None or x.rank < 1 or not index.array.size:
        return None
    axis = node.axis(node.whole("axis"), x.rank)
    given, size = index.array.astype(np.int64), x.shape[axis]
    if (beyond := given[(given < -size) | (given >= size)]).size:
        raise node.fail(f"it picks index {beyond[0]} from an axis of length {size}")
    made = part(node, axis, in_step((given % size).ravel().tolist()))
    shape = (*x.shape[:axis], *given.shape, *x.shape[axis + 1 :])
    return made if given.ndim == 1 else node.at("squeeze").emit(Reshape, shape, (made,), x.kind)


@rule("GatherElements", "GatherND")
def gathered(node: Node) -> Made:
    """Read a gather of constant indices that takes the same entries along one axis everywhere."""
    x, index = node.value(0), node.value(1)
    if x.array is not None or index.array is None:
        return None

    def pick(there: np.ndarray) -> np.ndarray:
        given = replace(node, inputs=(constant(there), index))
        found = evaluated(given)[0]
        return np.asarray(found)

    try:
        found = picked(x.shape, pick)
    except KcalcError:  # the array of entry indices exceeds the limits for a file
        found = None
    if found is None:
        return None
    made, (shape, _) = part(node, *found) if found[0] else x, shapes_of(node)[0]
    return made if made.shape == shape else node.at("squeeze").emit(Reshape, shape, (made,), x.kind)


@rule("Softmax")
def softmax(node: Node) -> Made:
    """Read Softmax along one axis. Before opset 13, it merges this and all later axes."""
    x = node.value(0)
    axis = node.axis(node.whole("axis", -1 if node.opset >= 13 else 1), x.rank)
    if node.opset < 13 and axis != x.rank - 1:
        return None
    what, reason = reason_for(node)
    return node.emit(Softmax, x.shape, (x,), x.kind, what=what, reason=reason, axis=axis)


def product(node: Node, what: str, reason: str) -> Made:
    """Read a batched matrix product of two feature maps."""
    x, w = node.value(0), node.value(1)
    batch = LETTERS[: max(x.rank, w.rank) - 2]
    alike = all(a == b for a, b in zip(x.shape[-3::-1], w.shape[-3::-1], strict=False))
    if min(x.rank, w.rank) < 2 or not alike or x.shape[-1] != w.shape[-2]:
        return node.unread(what, reason)
    mine, theirs = batch[len(batch) - x.rank + 2 :], batch[len(batch) - w.rank + 2 :]
    outer = x.shape[:-2] if x.rank >= w.rank else w.shape[:-2]
    terms = f"{mine}xy,{theirs}yz->{batch}xz"
    shape = (*outer, x.shape[-2], w.shape[-1])
    return node.emit(Contract, shape, (x, w), what=what, reason=reason, terms=terms)
