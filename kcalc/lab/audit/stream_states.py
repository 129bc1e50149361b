"""Sums that carry several residual streams in one tensor, as in hyper-connections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .contractions import Contraction
from .operations import VIEWS
from .program import Program, Value

Array = np.ndarray
Split = tuple[int, bool]
MOST = 16  # the maximum number of streams
EXACT = 1e-6  # relative difference up to which slices count as copies


@dataclass(frozen=True, eq=False)
class State:
    """The streams after a sub-layer: the sum of a mixture of streams and a branch.

    ``count`` is the number of streams, ``skip`` and ``branch`` are the addends, and ``writer`` is
    the contraction that ends the branch. ``split`` is (axis of the streams, whether they vary
    fastest along it), or None.
    """

    value: Value
    count: int
    skip: Value
    branch: Value
    writer: Contraction
    split: Split | None = None


def state_of(value: Value, by_value: dict[int, Contraction], mask: int) -> State | None:
    """Return the streams that a sum produces, or None if it produces a single stream.

    ``mask`` selects the contractions in ``by_value``.
    """
    if value.op != "add" or len(value.data) != 2 or value.data[0] is value.data[1]:
        return None
    size = value.tensor.numel()
    for skip, branch in (value.data, value.data[::-1]):
        if skip.tensor.numel() != size:
            continue
        own = (branch.ancestors | 1 << branch.index) & ~(skip.ancestors | 1 << skip.index) & mask
        while own:
            last = own.bit_length() - 1
            own ^= 1 << last
            found = by_value[last]
            if found.fan_in < 2:  # a product with the weights of the streams
                continue
            count, rest = divmod(size, max(found.value.tensor.numel(), 1))
            if rest == 0 and 2 <= count <= MOST:
                return State(value, count, skip, branch, found)
            break
    return None


def states(program: Program, contractions: Sequence[Contraction]) -> list[State]:
    """Return all sums that produce several streams, in order, if the streams start as copies."""
    by_value = {c.value.index: c for c in contractions}
    mask = sum(1 << index for index in by_value)
    found = [s for v in program.values if (s := state_of(v, by_value, mask)) is not None]
    origin = start_of(program, found[0]) if found else None
    split = next(iter(copies(origin.content, found[0].count)), None) if origin is not None else None
    if origin is None or split is None:
        return []
    first, shape = found[0], origin.tensor.shape
    return [
        replace(s, split=split if s.value.tensor.shape == shape else None)
        for s in found
        if s.count == first.count and s.skip.depends_on(origin)
    ]


def start_of(program: Program, first: State) -> Value | None:
    """Return the value in which the streams begin, an expansion of a smaller value, or None."""
    size = first.value.tensor.numel()
    for value in reversed(program.values[: first.skip.index + 1]):
        if not first.skip.depends_on(value) or value.flavour != "data":
            continue
        below = [v.tensor.numel() for v in value.data]
        if value.tensor.numel() == size and below and max(below) < size:
            return value if value.op in VIEWS | {"add", "mul"} else None
    return None


def splits(shape: Sequence[int], count: int) -> Iterator[Split]:
    """Yield the possible pairs (axis of the streams, whether streams vary fastest along it)."""
    for axis, size in enumerate(shape):
        if size % count == 0:
            yield axis, False
            if size != count:
                yield axis, True


def taken(tensor: Any, count: int, split: Split) -> Array:
    """Return a tensor as an array (streams, ..., channels)."""
    axis, fastest = split
    shape = list(tensor.shape)
    parts = [shape[axis] // count, count] if fastest else [count, shape[axis] // count]
    array = tensor.detach().double().cpu().numpy().reshape(shape[:axis] + parts + shape[axis + 1 :])
    return np.moveaxis(array, axis + fastest, 0)


def copies(tensor: Any, count: int) -> list[Split]:
    """Return the splits for which the slices of a tensor are copies of each other."""
    found = []
    for split in splits(tensor.shape, count):
        slices = taken(tensor, count, split)
        if np.abs(slices - slices[:1]).max() <= EXACT * np.abs(slices).max() > 0:
            found.append(split)
    return found


def bits(mask: int) -> Iterator[int]:
    """Yield the positions of the set bits of a mask, in order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
