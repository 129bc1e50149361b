"""Find the channel axis of every traced array, and follow it through reshapes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from .trace import (  # fmt: skip
    CAST,
    Attention,
    Drop,
    Entry,
    Held,
    Join,
    Linear,
    Lookup,
    Mixed,
    Normalise,
    NotRead,
    Op,
    Part,
    Pass,
    Pointwise,
    Pooling,
    Prefixed,
    Reorder,
    Repeat,
    Reshape,
    Routed,
    Shuffle,
    Stopped,
    Trace,
    Transpose,
)

KEEPING = (Drop, Pass, Stopped, Reorder, Repeat, Shuffle, Normalise, Join, Mixed, Prefixed, Routed)
Shape = tuple[int, ...]


def channel_axes(trace: Trace) -> dict[str, int | None]:
    """Return {operation: channel axis of its output}.

    The axis is None for arrays that depend on no input, and for arrays whose channels were merged
    with other axes.

    The channel axis of an input is the axis on which its first weights or normalisation act. If
    there are none, it is 1 for vectors and otherwise follows the framework's convention.
    """
    by_name = {op.name: op for op in trace.ops}
    wanted = _wanted(trace, by_name)
    ids = id_arrays(trace)
    found: dict[str, int | None] = dict.fromkeys(ids)
    for op in (op for op in trace.ops if op.name not in ids):
        found[op.name] = _forward(op, by_name, found, wanted, trace.channel_axis)
    return found


def id_arrays(trace: Trace) -> set[str]:
    """Return the arrays of ids that are used for table lookups. These arrays have no channels."""
    found: set[str] = set()
    entered: set[str] = set()  # integers stored as floats are ids if they are an input
    for op in trace.ops:
        moved = isinstance(op, Pass | Reshape | Part) or is_cast(op)
        if isinstance(op, Entry) or (moved and entered.issuperset(op.reads)):
            entered.add(op.name)
    for op in reversed(trace.ops):
        passes = isinstance(op, Pass | Reshape) or op.name in entered
        if isinstance(op, Lookup) or (op.name in found and passes):
            found |= set(op.reads)
    return found


def is_cast(op: Op) -> bool:
    """Whether an operation casts an array, perhaps floats that are ids, to another type."""
    return getattr(op, "what", "") == CAST or (isinstance(op, Pointwise) and op.label == "cast")


def guessed_axes(trace: Trace, found: Mapping[str, int | None]) -> set[str]:
    """Return the operations whose channel axis follows only from the framework's convention.

    No weights or normalisation determine it.
    """
    by_name = {op.name: op for op in trace.ops}
    wanted = _wanted(trace, by_name)
    out: set[str] = set()
    for op in trace.ops:
        read = next((name for name in op.reads if found[name] is not None), None)
        if (
            isinstance(op, Entry)
            or read is None
            or (isinstance(op, NotRead) and not isinstance(op, Part | Prefixed))
        ):
            guess = (
                len(op.shape) > 2
                and op.name not in wanted
                and not isinstance(op, Held | Linear | Lookup | Attention)
            )
        elif isinstance(op, Linear):
            guess = read in out and found[read] != op.axis
        elif isinstance(op, Normalise) and normalised_axis(op, len(op.shape)) == found[read]:
            guess = False
        else:
            guess = read in out
        if guess:
            out.add(op.name)
    return out


def _wanted(trace: Trace, by_name: dict[str, Op]) -> dict[str, int]:
    """Return {operation: the axis on which its first reader expects channels}.

    The axes are found by going backwards from the end of the trace.
    """
    wanted: dict[str, int] = {}
    for op in reversed(trace.ops):
        for name in op.reads:
            axis = _expected(op, by_name[name].shape, wanted.get(op.name))
            if axis is not None and 0 <= axis < len(by_name[name].shape):
                wanted[name] = axis
    return wanted


def _expected(op: Op, shape: Shape, axis: int | None) -> int | None:
    """Return the channel axis of an operation's input, given the channel axis of its output.

    ``shape``: the shape of the input.
    """
    if isinstance(op, Linear | Attention):
        return op.axis
    if isinstance(op, Normalise):
        told = normalised_axis(op, len(shape))
        return axis if told is None else told
    if axis is None:
        return None
    if isinstance(op, KEEPING) or (isinstance(op, Part) and len(op.shape) == len(shape)):
        return axis
    if isinstance(op, Pointwise):
        return axis - (len(op.shape) - len(shape))
    if isinstance(op, Transpose):
        return op.order[axis]
    if isinstance(op, Pooling):
        kept = (
            [i for i in range(len(shape)) if i not in op.axes]
            if len(op.shape) < len(shape)
            else list(range(len(shape)))
        )
        return kept[axis] if axis < len(kept) else None
    if isinstance(op, Reshape):
        back = reshaped_axis(op.shape, shape, axis)
        return back[1] if back is not None and back[0] == "kept" else None
    return None


def normalised_axis(op: Normalise, rank: int) -> int | None:
    """Return the channel axis implied by the axes of a normalisation."""
    if op.kind in ("layer", "rms") and len(op.axes) == 1:
        return op.axes[0]
    rest = [axis for axis in range(rank) if axis not in op.axes]
    return rest[0] if op.kind == "batch" and len(rest) == 1 else None


def _forward(
    op: Op, by_name: dict[str, Op], found: dict[str, int | None], wanted: dict[str, int], habit: int
) -> int | None:
    rank = len(op.shape)
    if isinstance(op, Held):
        return None
    if isinstance(op, Lookup):
        return rank - 1
    if isinstance(op, Attention):
        return op.axis
    if isinstance(op, Linear):
        along = found[op.reads[0]]  # the channel axis stays if the weights act on another axis
        return (
            op.out_axis
            if along is None or along == op.axis or op.kernel or op.axis != op.out_axis
            else along
        )
    if isinstance(op, Entry) or not op.reads:
        return wanted.get(op.name, _habit(rank, habit))
    if isinstance(op, Part | Prefixed) and (kept := found[op.reads[0]]) is not None:
        return kept
    if isinstance(op, NotRead):
        if rank > 3 and op.name not in wanted and all(found[name] is None for name in op.reads):
            return None  # heads: the channels are spread over two axes
        return wanted.get(op.name, _habit(rank, habit))
    if isinstance(op, Pointwise):
        axes = [
            axis + rank - len(by_name[name].shape)
            for name in op.reads
            if (axis := found[name]) is not None
        ]
        return wanted[op.name] if wanted.get(op.name) in axes else next(iter(axes), None)
    axis, shape = found[op.reads[0]], by_name[op.reads[0]].shape
    if axis is None:
        return None
    if isinstance(op, Transpose):
        return op.order.index(axis)
    if isinstance(op, Pooling) and rank < len(shape):
        return None if axis in op.axes else axis - sum(a < axis for a in op.axes)
    if isinstance(op, Reshape):
        if adds_channels(op, by_name[op.reads[0]], wanted.get(op.name)):
            return wanted[op.name]
        if opened(shape, op.shape, axis) and wanted.get(op.name) == 1:
            return 1
        there = reshaped_axis(shape, op.shape, axis)
        return None if there is None else there[1]
    return axis


def adds_channels(op: Op, source: Op, axis: int | None) -> bool:
    """Whether a reshape adds a channel axis to an input of greyscale images.

    Greyscale images are arrays (examples, height, width).
    """
    return (
        isinstance(op, Reshape)
        and isinstance(source, Entry)
        and axis is not None
        and op.shape[axis] == 1
        and len(op.shape) > 2
    )


def opened(before: Shape, after: Shape, axis: int | None) -> bool:
    """Whether a reshape splits the channels of vectors into positions: (n, c l) -> (n, c, l)."""
    return (
        axis == 1
        and len(before) == 2 < len(after)
        and before[0] == after[0]
        and prod(after[2:]) > 1
    )


def _habit(rank: int, habit: int) -> int | None:
    if rank <= 1:
        return None
    return 1 if rank == 2 else habit % rank


def reshaped_axis(before: Shape, after: Shape, axis: int) -> tuple[str, int] | None:
    """Follow the channel axis through a reshape.

    Returns: ("kept", new axis), or ("merged", new axis) if spatial axes were merged with the
    channels.

    Returns None if channels were split, or merged with the examples.
    """
    for group, out in _groups(before, after):
        if axis not in group:
            continue
        others = prod(before[i] for i in group if i != axis)
        wide = [i for i in out if after[i] != 1]
        if others == 1 and len(wide) <= 1:
            return "kept", wide[0] if wide else out[min(group.index(axis), len(out) - 1)]
        if others == 1 or len(wide) > 1 or (0 in group and before[0] != 1):
            return None
        return "merged", wide[0]
    return None


def _groups(before: Shape, after: Shape) -> list[tuple[list[int], list[int]]]:
    """Return the finest split of both shapes into consecutive groups with equal products.

    Axes of size 1 at the ends join the last group.
    """
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) and j < len(after):
        left, right = [i], [j]
        size, other = before[i], after[j]
        i, j = i + 1, j + 1
        while size != other:
            if size < other:
                if i == len(before):
                    return []
                size *= before[i]
                left.append(i)
                i += 1
            else:
                if j == len(after):
                    return []
                other *= after[j]
                right.append(j)
                j += 1
        runs.append((left, right))
    if runs:
        runs[-1][0].extend(range(i, len(before)))
        runs[-1][1].extend(range(j, len(after)))
    return runs


def keeps_locations(op: Transpose, axis: int | None) -> bool:
    """Whether a transpose keeps the order of all axes except the channel axis."""
    rest = [a for a in op.order if a != axis]
    return rest == sorted(rest)
