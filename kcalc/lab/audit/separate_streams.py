"""Residual streams in separate tensors, such as a list, and the values that read them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from .contractions import Contraction
from .operations import VIEWS
from .program import Program, Value
from .stream_states import MOST


@dataclass(frozen=True, eq=False)
class Level:
    """The streams after a sub-layer. Each is the sum of a mixture of streams and a branch.

    ``skips`` are the addends that are mixtures, and ``end`` is the output of the branch.
    """

    sums: tuple[Value, ...]
    skips: tuple[Value, ...]
    end: Value

    @property
    def branches(self) -> tuple[Value, ...]:
        """Return the addends that are multiples of the branch's output."""
        pairs = zip(self.sums, self.skips, strict=True)
        return tuple(next(v for v in s.data if v is not skip) for s, skip in pairs)

    @property
    def ancestors(self) -> int:
        """Return the bit mask of all values from which the streams were computed."""
        return reduce(or_, (value.ancestors for value in self.sums))

    @property
    def mixed_from(self) -> int:
        """Return the bit mask of all values from which the mixtures were computed."""
        return reduce(or_, (value.ancestors for value in self.skips))


def levels_of(program: Program, contractions: Sequence[Contraction]) -> list[Level]:
    """Return the sums that add the output of one branch to each of several streams.

    There is one level per sub-layer. All levels have the same number of sums, and each sum reads
    several streams of the level before. The list is empty unless there are at least two such
    sub-layers.
    """
    by_value = {c.value.index: c.value for c in contractions if c.fan_in > 1}
    found: dict[int, list[tuple[Value, Value]]] = {}
    for value in program.values:
        if value.op != "add" or len(value.data) != 2 or value.flavour != "data":
            continue
        for skip, branch in (value.data, value.data[::-1]):
            end = _scaled_from(branch, by_value)
            if end is not None and not skip.depends_on(end):
                found.setdefault(end.index, []).append((value, skip))
                break
    levels: list[Level] = []
    for index, pairs in found.items():
        made = [v for v, _ in pairs]
        apart = [(v, s) for v, s in pairs if not any(v.depends_on(o) for o in made if o is not v)]
        if not 2 <= len(apart) <= MOST:
            continue
        sums, skips = zip(*apart, strict=True)
        before = levels[-1].sums if levels else ()
        mixed = all(sum(v.depends_on(old) for old in before) > 1 for v in sums)
        follows = len(sums) == len(before) and mixed
        if follows or len(levels) < 2:
            levels = [*(levels if follows else ()), Level(sums, skips, by_value[index])]
    return levels if len(levels) > 1 else []


def _scaled_from(value: Value, by_value: dict[int, Value]) -> Value | None:
    """Return the contraction from which scaling by constants or weights made a value, or None."""
    while value.index not in by_value:
        same = [v for v in value.data if v.tensor.shape == value.tensor.shape]
        if value.op not in VIEWS | {"mul", "div"} or len(same) != 1:
            return None
        (value,) = same
    return by_value[value.index]


def sources(program: Program, first: Level) -> Iterator[Value]:
    """Yield the stream-shaped values from which all mixtures of the first level were computed."""
    shape = first.sums[0].tensor.shape
    for value in reversed(program.values[: first.sums[0].index]):
        alike = value.flavour == "data" and value.tensor.shape == shape
        if alike and all(skip.depends_on(value) for skip in first.skips):
            yield value


def passages(program: Program, level: Level, ends: Sequence[Value]) -> list[Value]:
    """Return the values through which every path from the streams of a level to ``ends`` passes.

    Such a value comes after all streams of the level. On these paths, nothing after it reads a
    value before it.
    """
    below = reduce(or_, (end.ancestors | 1 << end.index for end in ends))
    streams = reduce(or_, (1 << value.index for value in level.sums))
    inside = [
        value
        for value in program.values[level.sums[0].index :]
        if below >> value.index & 1 and (value.ancestors | 1 << value.index) & streams
    ]
    last = {value.index: value.index for value in inside}
    for value in inside:
        last.update((read.index, value.index) for read in value.inputs if read.index in last)
    last.update((end.index, len(program.values)) for end in ends if end.index in last)
    found, furthest = [], max((v.index for v in level.sums if v.index in last), default=0)
    for value in inside:
        if furthest <= value.index:
            found.append(value)
        furthest = max(furthest, last[value.index])
    return found
