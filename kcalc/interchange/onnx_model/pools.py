"""Read pooling over windows and over whole axes."""

from __future__ import annotations

from collections.abc import Sequence

from ..trace import Pointwise, Pooling, Reshape
from .geometry import window_of
from .graph_values import Made, Node, rule

KINDS = {
    "MaxPool": "max",
    "AveragePool": "mean",
    "GlobalAveragePool": "mean",
    "GlobalMaxPool": "max",
    "ReduceMean": "mean",
    "ReduceMax": "max",
}


@rule("MaxPool", "AveragePool")
def pool(node: Node) -> Made:
    """Read pooling over windows."""
    x, extent = node.value(0), node.wholes("kernel_shape")
    if x.rank < 3 or extent is None:
        raise node.fail(f"its pooling window has size {extent}, but its input has shape {x.shape}")
    if any(d != 1 for d in node.wholes("dilations") or ()):
        return node.unread(
            "dilated pooling", "its windows have gaps, and kcalc has no rule for this"
        )
    found = window_of(node, x.shape[2:], extent)
    if found is None:
        return node.unread("pooling", "its padding is negative")
    axes = tuple(range(2, x.rank))
    padded = any(k for pair in found.padding for k in pair)
    counts = padded and node.op == "AveragePool" and bool(node.whole("count_include_pad"))
    shape = (*x.shape[:2], *found.sizes)
    window = {"window": tuple(extent), "stride": found.stride, "padding": found.padding}
    return node.emit(
        Pooling,
        shape,
        (x,),
        kind=KINDS[node.op],
        axes=axes,
        counts_zeros=counts,
        **window,
    )


@rule("GlobalAveragePool", "GlobalMaxPool")
def whole(node: Node) -> Made:
    """Read pooling over all locations."""
    x = node.value(0)
    if x.rank < 3:
        raise node.fail(f"it pools over locations, but its input of shape {x.shape} has none")
    shape = (*x.shape[:2], *(1,) * (x.rank - 2))
    return node.emit(Pooling, shape, (x,), kind=KINDS[node.op], axes=tuple(range(2, x.rank)))


def reduced_axes(node: Node, rank: int) -> tuple[int, ...] | None:
    """Return the axes of a reduction, or None if they are not constant.

    The result is also None if the reduction does nothing.
    """
    given = node.constants(1, "axes")
    if given is None and node.optional(1) is not None:
        return None
    if not given:
        return () if node.whole("noop_with_empty_axes") else tuple(range(rank))
    return node.axes(given, rank)


def reduced_shape(shape: Sequence[int], axes: Sequence[int], keep: bool) -> tuple[int, ...]:
    """Return the shape after a reduction; ``keep``: whether reduced axes are kept with size 1."""
    return tuple(1 if i in axes else k for i, k in enumerate(shape) if keep or i not in axes)


@rule("ReduceMean", "ReduceMax", "ReduceSum")
def reduce(node: Node) -> Made:
    """Read means, maxima and sums over whole axes."""
    x = node.value(0)
    axes = reduced_axes(node, x.rank)
    if axes is None:
        return None
    if not axes:
        return x
    kept = reduced_shape(x.shape, axes, True)
    fields = {"kind": KINDS.get(node.op, "mean"), "told": "sum" if node.op == "ReduceSum" else ""}
    value = node.emit(Pooling, kept, (x,), x.kind, axes=axes, **fields)
    if node.op == "ReduceSum":
        count = 1
        for axis in axes:
            count *= x.shape[axis]
        value = node.at("count").emit(
            Pointwise,
            kept,
            (value,),
            x.kind,
            function=lambda y: count * y,
            label="mul",
        )
    if not node.whole("keepdims", 1):
        value = node.at("squeeze").emit(
            Reshape, reduced_shape(x.shape, axes, False), (value,), x.kind
        )
    return value
