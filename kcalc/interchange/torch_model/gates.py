"""Read parts of arrays: splits, slices and gated linear units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...activations import X, activation
from ..picking import picked
from ..trace import Part, Pointwise, Reshape
from .calls import Call, described, leaves, rule
from .graph_values import Const, PaddedTensor, TensorRef, is_traced
from .shapes import passed
from .unsupported_ops import REASONS

OF_IDS = (
    "the entries that it takes depend on the ids (padding, end of text), so no fixed network "
    "computes it; take the last token, x[:, -1], and pass sequences of the same length"
)

PARTS = "it splits the channels; use a separate layer for each part, which kcalc can read"
SLICE = (
    "it takes a part of the channels or locations; use a separate layer for each part, which kcalc "
    "can read"
)


def _axis(call: Call, rank: int) -> int:
    return int(call["dim"] or 0) % rank


def part(
    call: Call, source: Any, axis: int, places: Sequence[int], what: str, last: bool = False
) -> TensorRef:
    """Read the entries at ``places`` along an axis; if ``last``, drop the axis afterwards."""
    shape = tuple(len(places) if i == axis else n for i, n in enumerate(source.shape))
    told = {"what": what, "reason": PARTS if what == "a split" else SLICE}
    made = call.emit(Part, [call.read(source)], shape=shape, axis=axis, places=places, **told)
    if last:
        return call.emit(Reshape, [made.name], shape=shape[:axis] + shape[axis + 1 :])
    return made


@rule(
    "split", "split_with_sizes", "chunk", "unbind", "tensor_split", "unsafe_split", "unsafe_chunk"
)
def parts(call: Call) -> Any:
    """Read split, chunk, unbind and tensor_split, with one part per resulting array."""
    source = call.operand
    shapes = [described(value)[0] for value in call.node.meta.get("val") or ()]
    axis = _axis(call, len(source.shape))
    if isinstance(source, PaddedTensor | Const) or not shapes:
        return call.unread("a split", PARTS)
    dropped = call.kind.startswith("unbind")
    sizes = [1 if dropped else shape[axis] for shape in shapes]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(
        part(call, source, axis, range(s, s + n), "a split", last=dropped)
        for s, n in zip(starts, sizes, strict=True)
    )


@rule("select")
def selected(call: Call) -> Any:
    """Read select: a single entry along an axis."""
    source = call.operand
    axis = _axis(call, len(source.shape))
    if not isinstance(source, TensorRef):
        return call.unread("one location or channel", PARTS)
    place = int(call["index"]) % source.shape[axis]
    places = range(place, place + 1)
    return part(call, source, axis, places, "one location or channel", last=True)


@rule("slice", "narrow")
def sliced(call: Call) -> Any:
    """Read a slice along an axis."""
    source = call.operand
    if tuple(source.shape) == call.shape:
        return passed(call)
    axis = _axis(call, len(source.shape))
    if not isinstance(source, TensorRef):
        return call.unread("a slice", SLICE)
    size = source.shape[axis]
    if call.kind == "narrow":
        start = int(call["start"]) % size
        return part(call, source, axis, range(start, start + int(call["length"])), "a slice")
    places = range(*slice(call["start"], call["end"], call["step"]).indices(size))
    return part(call, source, axis, places, "a slice")


@rule("index", "index_select", "gather", "take_along_dim")
def indexed(call: Call) -> Any:
    """Read indexing by arrays that picks the same entries along one axis for every example."""
    import torch
    from torch.fx.node import map_aggregate

    source = call.operand
    others = [leaf for key, value in call.args.items() if key != "self" for leaf in leaves(value)]
    places = [leaf for leaf in others if isinstance(leaf, Const)]
    what, reason = REASONS[call.kind]
    if not isinstance(source, TensorRef) or any(map(is_traced, others)):
        return call.unread(what, reason)
    if any(leaf.of_ids for leaf in places):
        return call.unread(what, OF_IDS)
    args, kwargs = call.walker.resolved(call.node)

    def pick(there: Any) -> Any:
        given, named = map_aggregate(
            (args, kwargs),
            lambda leaf: (
                torch.as_tensor(there)
                if isinstance(leaf, TensorRef)
                else getattr(leaf, "tensor", leaf)
            ),
        )
        return call.node.target(*given, **named).numpy()

    found = picked(source.shape, pick)
    if found is None:
        return call.unread(what, reason)
    made = part(call, source, *found, what) if found[0] else source
    if made is source and source.shape == call.shape:
        return passed(call)
    return made if made.shape == call.shape else call.emit(Reshape, [made.name])


@rule("glu")
def gated(call: Call) -> Any:
    """Read F.glu, the product of the first half and the sigmoid of the second half."""
    source = call.operand
    axis = int(call["dim"] if call["dim"] is not None else -1) % len(source.shape)
    if axis == 0 or not isinstance(source, TensorRef):
        return call.unread("a gated linear unit", PARTS)
    half = source.shape[axis] // 2
    value = part(call, source, axis, range(half), "a gated linear unit")
    gate = part(call, source, axis, range(half, 2 * half), "a gated linear unit")
    sigmoid = activation("sigmoid").expr
    opened = call.emit(
        Pointwise, [gate.name], function=lambda x: sigmoid.xreplace({X: x}), label="sigmoid"
    )
    return call.emit(Pointwise, [value.name, opened.name], function=lambda x, y: x * y, label="mul")
