"""Track the order of the spatial positions in each operation's output.

Transposing height and width, or blocks of them, does not change the distribution of a single
feature map, because its positions are exchangeable. But a sum or product of the transposed and the
original feature map combines different positions of the same random function.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from itertools import combinations
from math import prod
from operator import or_

import numpy as np

from .layout import Shape, keeps_locations
from .trace import (
    Attention,
    Entry,
    Held,
    Join,
    Linear,
    Lookup,
    Mixed,
    NotRead,
    Op,
    Pointwise,
    Pooling,
    Repeat,
    Routed,
    Transpose,
)

# indices of the positions in the source; () for the original order, a name for an order that no
# other operation shares
Order = tuple[int | str, ...]
# operations whose output starts in the original order
FRESH = (
    Entry,
    Linear,
    Lookup,
    Mixed,
    Attention,
    NotRead,
    Routed,
)


def mixed_orders(ops: Sequence[Op], axes: Mapping[str, int | None]) -> set[str]:
    """Find the operations that add or multiply two spatial orderings of one feature map."""
    shapes: dict[str, Shape] = {}
    orders: dict[str, Order] = {}
    sources: dict[str, int] = {}  # bit masks
    found: set[str] = set()
    for number, op in enumerate(ops):
        shapes[op.name] = op.shape
        reads = [name for name in op.reads if sources[name]]
        wide = [
            name for name in reads if orders[name] or prod(_places(shapes[name], axes[name])) > 1
        ]
        # a concatenation does not combine channels with each other
        unlike = len({orders[name] for name in wide}) > 1 and not isinstance(op, Join | NotRead)
        if unlike and any(
            orders[a] != orders[b] and sources[a] & sources[b] for a, b in combinations(wide, 2)
        ):
            found.add(op.name)
        fresh = isinstance(op, FRESH) or axes[op.name] is None or op.name in found
        sources[op.name] = (
            0
            if isinstance(op, Held)
            else 1 << number
            if fresh
            else reduce(or_, map(sources.__getitem__, reads), 0)
        )
        orders[op.name] = (
            ()
            if fresh or not wide
            else _order(op, {orders[name] for name in wide}, axes, shapes[reads[0]])
        )
    return found


def channel_position_mixups(
    ops: Sequence[Op], axes: Mapping[str, int | None], guessed: Collection[str]
) -> set[str]:
    """Find elementwise operations that align channels of one input with positions of another.

    Operations in ``guessed`` are skipped, because their channel axis is uncertain.
    """
    shapes = {op.name: op.shape for op in ops}
    found: set[str] = set()
    for op in ops:
        places = set[int]()  # channel axes, counted from the last axis as in broadcasting
        for name in op.reads if isinstance(op, Pointwise) else ():
            axis = axes[name]
            if axis is not None and shapes[name][axis] > 1 and name not in guessed:
                places.add(axis - len(shapes[name]))
        if len(places) > 1:
            found.add(op.name)
    return found


WINDOWS = (
    "its windows cover locations that the model rearranges with a reshape or a transpose; the "
    "network leaves out this step"
)
ENDS = "the model transposes its spatial axes at the output, but the network does not"


def moved_windows(
    ops: Sequence[Op], axes: Mapping[str, int | None], ends: Mapping[str, str]
) -> dict[str, str]:
    """Return {node: description of how its spatial order differs from the model's order}.

    Networks contain no reshapes or transposes. If a model has some, the spatial order at a node can
    therefore differ from the order in the model.

    ``ends``: {output of the model: node that computes it}.
    """
    shapes: dict[str, Shape] = {}
    orders: dict[str, Order] = {}
    known: dict[str, Shape] = {}  # spatial extents in the network
    ranks: dict[str, int] = {}  # number of spatial axes in the network
    found: dict[str, str] = {}
    for op in ops:
        shapes[op.name], here = op.shape, _places(op.shape, axes[op.name])
        reads = [
            name
            for name in op.reads
            if axes[name] is not None and axes[op.name] is not None and not isinstance(op, NotRead)
        ]
        below = max(reads, key=lambda name: prod(known[name]), default=None)
        slides = (
            prod((*op.kernel, *op.stride)) > 1
            if isinstance(op, Linear)
            else isinstance(op, Pooling) and op.window is not None
        )
        ranks[op.name] = len(here) if below is None else ranks[below]
        if below is not None and slides:
            there = _places(shapes[below], axes[below])
            single = prod(there) == prod(known[below]) == 1 and len(there) == ranks[below]
            if orders[below] or not (single or known[below] == there):
                found[op.name] = WINDOWS
        same = below is not None and not slides and prod(here) == prod(known[below])
        known[op.name] = known[below] if below is not None and same else here
        orders[op.name] = (
            _order(op, {orders[below]}, axes, shapes[below]) if below is not None and same else ()
        )
    return {node: ENDS for output, node in ends.items() if orders[output]} | found


def _places(shape: Shape, axis: int | None) -> Shape:
    return tuple(k for a, k in enumerate(shape) if a not in (0, axis))


def _order(op: Op, before: set[Order], axes: Mapping[str, int | None], shape: Shape) -> Order:
    """Return the spatial order of an operation's output.

    ``before``: the orders of its inputs; ``shape``: the shape of the first input.
    """
    order = next(iter(before))
    if isinstance(op, Pooling) and prod(_places(op.shape, axes[op.name])) == 1:
        return ()
    if len(before) > 1 or (order and isinstance(op, Pooling | Repeat)):
        return (op.name,)
    if not isinstance(op, Transpose) or keeps_locations(op, axes[op.reads[0]]):
        return order
    rest = [a for a in range(len(shape)) if a not in (0, axes[op.reads[0]])]
    places = np.arange(prod(shape[a] for a in rest)).reshape([shape[a] for a in rest])
    moved = places.transpose([rest.index(a) for a in op.order if a in rest]).ravel()
    if order and len(order) != len(moved):
        return (op.name,)
    made = tuple(order[i] for i in moved.tolist()) if order else tuple(moved.tolist())
    return () if made == tuple(range(len(made))) else made
