"""Residual streams in separate tensors, such as a list, and the values that read them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from .contractions import Contraction
from .operations import CONTRACTIONS, NORMS, SUMS, VIEWS
from .program import Program, Value
from .roots import contraction_weight
from .stream_states import MOST


@dataclass(frozen=True, eq=False)
class Level:
    """The streams after a sub-layer. Each is the sum of a mixture of streams and a branch.

    For every sum, ``mixtures`` contains the addends from the streams before, and ``branches`` the
    addend from the branch. ``end`` is the output of the branch, and ``partial`` are the sums of
    some of the addends.
    """

    sums: tuple[Value, ...]
    mixtures: tuple[tuple[Value, ...], ...]
    branches: tuple[Value, ...]
    end: Value
    partial: tuple[Value, ...]

    @property
    def skips(self) -> tuple[Value, ...]:
        """Return all addends from the streams before."""
        return tuple(value for mixture in self.mixtures for value in mixture)

    @property
    def ancestors(self) -> int:
        """Return the bit mask of all values from which the streams were computed."""
        return reduce(or_, (value.ancestors for value in self.sums))

    @property
    def mixed_from(self) -> int:
        """Return the bit mask of all values from which the mixtures were computed."""
        return reduce(or_, (value.ancestors for value in self.skips))


def levels_of(program: Program, contractions: Sequence[Contraction]) -> list[Level]:
    """Return the levels of the first group of streams, or an empty list."""
    return next(iter(groups_of(program, contractions)), [])


def groups_of(program: Program, contractions: Sequence[Contraction]) -> list[list[Level]]:
    """Return the sums that add the output of one branch to each of several streams, by group.

    There is one level per sub-layer. All levels of a group have the same number of sums. Each sum
    depends on several streams of the level before, and its mixture carries on at least one of them.
    A group has at least two levels.
    """
    by_value = {c.value.index: c.value for c in contractions if c.fan_in > 1}
    found: dict[int, list[tuple[list[Value], list[Value], Value]]] = {}
    for value in program.values:
        if value.op != "add" or len(value.data) != 2 or value.flavour != "data":
            continue
        for skip, branch in (value.data, value.data[::-1]):
            end = _scaled_from(branch, by_value)
            if end is not None and not skip.depends_on(end):
                partial, mixture = _accumulated(program, value, skip, end)
                found.setdefault(end.index, []).append((partial, mixture, branch))
                break
    groups: list[list[Level]] = []
    for index, found_sums in found.items():
        made = [chain[-1] for chain, *_ in found_sums]
        apart = [
            (*rest, sum_)
            for sum_, (_, *rest) in zip(made, found_sums, strict=True)
            if not any(sum_.depends_on(other) for other in made if other is not sum_)
        ]
        if not 2 <= len(apart) <= MOST:
            continue
        mixtures, branches, sums = zip(*apart, strict=True)
        partial = tuple(value for chain, *_ in found_sums for value in chain[:-1])
        level = Level(sums, tuple(map(tuple, mixtures)), branches, by_value[index], partial)
        group = next((one for one in groups if _follows(level, one[-1].sums)), None)
        if group is None:
            groups.append([level])
        else:
            group.append(level)
    return [group for group in groups if len(group) > 1]


def _follows(level: Level, before: Sequence[Value]) -> bool:
    """Return whether a level continues the streams of another."""
    return (
        len(level.sums) == len(before)
        and all(sum(v.depends_on(old) for old in before) > 1 for v in level.sums)
        and all(any(_carries_on(v, before) for v in m) for m in level.mixtures)
    )


def _accumulated(
    program: Program, value: Value, skip: Value, end: Value
) -> tuple[list[Value], list[Value]]:
    """Return (sums of more and more addends, all addends other than the branch).

    ``value`` is the first sum, of a branch and ``skip``. Only the next sum reads a partial sum, and
    no other addend depends on the branch.
    """
    sums, addends = [value], [skip]
    while len(readers := program.readers.get(value.index, ())) == 1:
        (whole,) = readers
        others = [v for v in whole.data if v is not value]
        if whole.op != "add" or whole.flavour != "data" or len(others) != 1:
            break
        if others[0].depends_on(end) or others[0].tensor.shape != value.tensor.shape:
            break
        addends += others
        sums.append(value := whole)
    return sums, addends


def _carries_on(value: Value, streams: Sequence[Value]) -> bool:
    """Return whether a value reads one of the streams through weighted sums and norms."""
    ends, seen, stack = {v.index for v in streams}, set[int](), [value]
    passed = VIEWS | SUMS | NORMS | CONTRACTIONS - {"convolution"} | {"mul", "div", "true_divide"}
    while stack:
        top = stack.pop()
        if top.index in ends:
            return True
        if top.index in seen:
            continue
        seen.add(top.index)
        weight = contraction_weight(top)
        mixes = weight is None or len(streams) in weight.tensor.shape  # or a layer of a branch
        if top.op in passed and mixes:
            stack += [v for v in top.data if any(v.depends_on(stream) for stream in streams)]
    return False


def _scaled_from(value: Value, by_value: dict[int, Value]) -> Value | None:
    """Return the contraction from which scaling by constants or weights made a value, or None."""
    while value.index not in by_value:
        same = [v for v in value.data if v.tensor.numel() == value.tensor.numel()]
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
