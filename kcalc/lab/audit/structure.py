"""The residual streams and attention layers of a run, and the role of every parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .contractions import Contraction, contractions
from .operations import BIASED, CONTRACTIONS, ELEMENTWISE, NORMS, SOFTMAX, SUMS, TABLES, VIEWS
from .program import Program, Value
from .roots import Roots, is_product
from .separate_streams import Level, groups_of
from .stream_states import State, bits, states

DEEPEST = 40  # maximum number of operations between the product of queries and keys and its softmax


@dataclass(frozen=True, eq=False)
class Merge:
    """A sum that adds a branch to a residual stream.

    ``stream`` is the number of the stream, and ``skip`` and ``branch`` are the addends. ``writers``
    are the contractions that end the branch, and ``normed`` says whether a norm follows them.
    ``inside`` are the contractions of the branch, excluding contractions of other streams that it
    reads. Several streams that one branch writes to count as one stream. If they are in separate
    tensors, ``level`` contains the sums of all of them, and ``value`` is the first sum. If they are
    in one tensor, ``state`` describes it.
    """

    value: Value
    stream: int
    skip: Value
    branch: Value
    writers: tuple[Contraction, ...]
    normed: bool
    inside: tuple[Contraction, ...]
    level: Level | None = None
    state: State | None = None

    @property
    def values(self) -> tuple[Value, ...]:
        """The sums, one for every tensor that contains a stream."""
        return (self.value,) if self.level is None else self.level.sums

    @property
    def skips(self) -> tuple[Value, ...]:
        """The addends from the residual stream, in the order of ``values``."""
        return (self.skip,) if self.level is None else self.level.skips

    @property
    def branches(self) -> tuple[Value, ...]:
        """The addends from the branch, in the order of ``values``."""
        return (self.branch,) if self.level is None else self.level.branches


@dataclass(frozen=True, eq=False)
class Attention:
    """A softmax over a product of two data values, and the weighted mean that uses it.

    ``scores`` are the scores before additive biases and masks, and ``factor`` is the number by
    which they are multiplied afterwards.
    """

    softmax: Value
    scores: Value
    factor: float
    query: Value
    key: Value
    mean: Value | None
    value: Value | None


@dataclass
class Structure:
    """The residual streams, attention and parameter roles of a run.

    ``several`` contains the sums that carry several streams in one tensor, and ``groups`` those of
    each group of streams in separate tensors. At least one of the two is empty.
    """

    program: Program
    roots: Roots
    contractions: list[Contraction]
    merges: list[Merge] = field(default_factory=list)
    attention: list[Attention] = field(default_factory=list)
    roles: dict[str, tuple[str, ...]] = field(default_factory=dict)
    several: list[State] = field(default_factory=list)
    groups: list[list[Level]] = field(default_factory=list)

    @property
    def levels(self) -> list[Level]:
        """Return the levels of the first group."""
        return self.groups[0] if self.groups else []

    def stream_roots(self, value: Value) -> set[int]:
        """Return the roots of a value, or of the argument of an elementwise function."""
        roots = set(self.roots(value))
        for root in tuple(roots):
            known = self.program.values[root]
            if known.op in ELEMENTWISE and known.data:
                roots |= set(self.roots(known.data[0]))
        return roots

    def starts(self) -> set[int]:
        """Return the merges and the values in which streams begin."""
        begun = {r for merge in self.merges for skip in merge.skips for r in self.roots(skip)}
        return begun | {value.index for merge in self.merges for value in merge.values}

    def streams(self) -> list[list[Merge]]:
        """Return the merges of every stream, in order."""
        found: dict[int, list[Merge]] = {}
        for merge in self.merges:
            found.setdefault(merge.stream, []).append(merge)
        return list(found.values())


def structure_of(program: Program, parameters: dict[str, Any]) -> Structure:
    """Find the streams, the attention and the parameter roles of a run."""
    found = Structure(program, Roots(program), contractions(program, parameters))
    _merge_all(found)
    for value in program.values:
        if value.op in SOFTMAX and value.flavour == "data":
            attention = _attention(found, value)
            if attention is not None:
                found.attention.append(attention)
    found.roles = _roles(found)
    return found


def _merge_all(found: Structure) -> None:
    by_value = {c.value.index: c for c in found.contractions}
    mask = 0
    for value in found.program.values:
        if value.op in CONTRACTIONS and value.flavour == "data":
            mask |= 1 << value.index
    merges: dict[int, Merge] = {}
    found.several = states(found.program, found.contractions)
    found.groups = [] if found.several else groups_of(found.program, found.contractions)
    several = {state.value.index: state for state in found.several}
    levels = {level.sums[0].index: level for level in found.levels}
    others = {v.index for level in found.levels for v in (*level.sums[1:], *level.partial)}
    for value in found.program.values:
        if value.op != "add" or len(value.data) != 2 or value.flavour != "data":
            continue
        if value.data[0] is value.data[1] or value.index in others:
            continue
        if value.index in several:
            merge = _of_several(several[value.index], by_value, mask, merges)
        elif value.index in levels:
            merge = _of_level(levels[value.index], by_value, mask, merges)
        else:
            merge = _merge(found, value, by_value, mask, merges)
        if merge is not None:
            found.merges.append(merge)
            for one in merge.values:
                merges[one.index] = merge
                found.roots.stops.add(one.index)
                found.roots.known.pop(one.index, None)


def _merge(
    found: Structure,
    value: Value,
    by_value: dict[int, Contraction],
    mask: int,
    merges: dict[int, Merge],
) -> Merge | None:
    first, second = value.data
    if any(all(is_product(found.program.values[r]) for r in found.roots(v)) for v in value.data):
        return None  # scores plus a position bias
    for skip, branch in ((first, second), (second, first)):
        sources = _sources(found, skip, merges)
        if _through_contraction(found, sources, skip, branch, mask):
            return _made(found, value, skip, branch, by_value, mask, merges)
    for skip, branch in ((first, second), (second, first)):
        if _projected(found, skip, branch, by_value, mask, merges):
            return _made(found, value, skip, branch, by_value, mask, merges)
    return None


def _of_several(
    state: State, by_value: dict[int, Contraction], mask: int, merges: dict[int, Merge]
) -> Merge:
    """Return the merge of a branch with a mixture of several streams, counted as one stream."""
    stream = _stream(state.skip, merges)
    seen = state.skip.ancestors | 1 << state.skip.index
    inside = _several_inside(state.branch, seen, by_value, mask)
    ends = (state.writer,)
    return Merge(state.value, stream, state.skip, state.branch, ends, False, inside, state=state)


def _of_level(
    level: Level, by_value: dict[int, Contraction], mask: int, merges: dict[int, Merge]
) -> Merge:
    """Return the merge of a branch with streams in separate tensors, counted as one stream."""
    writer, skip = by_value[level.end.index], level.skips[0]
    inside = _several_inside(level.end, level.mixed_from, by_value, mask)
    stream, branch = _stream(skip, merges), level.branches[0]
    return Merge(level.sums[0], stream, skip, branch, (writer,), False, inside, level)


def _stream(skip: Value, merges: dict[int, Merge]) -> int:
    """Return the number of the last stream that a mixture reads, or a new number."""
    read = skip.ancestors | 1 << skip.index
    before = (m.stream for i, m in reversed(merges.items()) if read >> i & 1)
    return next(before, 1 + max((m.stream for m in merges.values()), default=-1))


def _several_inside(
    branch: Value, seen: int, by_value: dict[int, Contraction], mask: int
) -> tuple[Contraction, ...]:
    """Return the contractions of a branch, excluding those in the bit mask ``seen``."""
    own = (branch.ancestors | 1 << branch.index) & mask & ~seen
    return tuple(by_value[i] for i in bits(own) if i in by_value and by_value[i].fan_in > 1)


def _sources(found: Structure, skip: Value, merges: dict[int, Merge]) -> set[int]:
    """Return the roots of a stream, including the roots before its last merge."""
    roots = set(found.roots(skip))
    for root in tuple(roots):
        if root in merges:
            roots |= {r for skip in merges[root].skips for r in found.roots(skip)}
    return roots


def _through_contraction(
    found: Structure, sources: Iterable[int], skip: Value, branch: Value, mask: int
) -> bool:
    """Return whether a branch depends on sources through a contraction that the skip lacks."""
    seen = skip.ancestors | 1 << skip.index
    between = (branch.ancestors | 1 << branch.index) & mask & ~seen
    wanted = 0
    for source in sources:
        wanted |= 1 << source
    return any(found.program.values[i].ancestors & wanted for i in bits(between))


def _projected(
    found: Structure,
    skip: Value,
    branch: Value,
    by_value: dict[int, Contraction],
    mask: int,
    merges: dict[int, Merge],
) -> bool:
    """Return whether ``skip`` is a projection of a stream from which ``branch`` was computed.

    The branch must not be linear in the stream, because the sum would then be a sum of two
    projections.
    """
    own = [by_value[root] for root in found.roots(skip) if root in by_value]
    ends = [by_value[root] for root in found.roots(branch) if root in by_value]
    for projection in own:
        sources = _sources(found, projection.data, merges)
        if not _through_contraction(found, sources, projection.data, branch, mask):
            continue
        if ends and all(_nonlinear(found, end, sources, by_value) for end in ends):
            return True
    return False


def _nonlinear(
    found: Structure, end: Contraction, sources: set[int], by_value: dict[int, Contraction]
) -> bool:
    """Return whether a contraction reads a nonlinear function of ``sources``."""
    roots, seen = set(found.roots(end.data)), set()
    while roots:
        root = roots.pop()
        if root in sources or root in seen:
            continue
        seen.add(root)
        if root not in by_value:
            return True
        roots |= set(found.roots(by_value[root].data))
    return False


def _made(
    found: Structure,
    value: Value,
    skip: Value,
    branch: Value,
    by_value: dict[int, Contraction],
    mask: int,
    merges: dict[int, Merge],
) -> Merge:
    ends = {root: normed for root, normed in found.roots(branch).items() if root in by_value}
    before = [merges[root].stream for root in found.stream_roots(skip) if root in merges]
    if not before:
        own = [by_value[root] for root in found.roots(skip) if root in by_value]
        before = [
            merges[r].stream for c in own for r in found.stream_roots(c.data) if r in merges
        ]  # fmt: skip
    stream = before[0] if before else 1 + max((m.stream for m in merges.values()), default=-1)
    writers = tuple(by_value[root] for root in ends)
    made_of = branch.ancestors | 1 << branch.index
    seen = skip.ancestors | 1 << skip.index
    for index, merge in merges.items():
        if merge.stream != stream and made_of >> index & 1:
            # the encoder, from which a decoder computes keys
            seen |= found.program.values[index].ancestors
    inside = tuple(by_value[i] for i in bits(made_of & mask & ~seen) if i in by_value)
    return Merge(value, stream, skip, branch, writers, any(ends.values()), inside)


def _attention(found: Structure, softmax: Value) -> Attention | None:
    """Return the attention that uses a softmax, or None if its input is not a product of data."""
    traced = _scores(softmax.data[0], DEEPEST) if softmax.data else None
    if traced is None:
        return None
    product, scores, factor = traced
    query, key = product.data[:2]
    mean = _mean(found, softmax)
    value = None
    if mean is not None:
        value = next((v for v in mean.data if not v.depends_on(softmax)), None)
    return Attention(softmax, scores, factor, query, key, mean, value)


def _scores(value: Value, left: int) -> tuple[Value, Value, float] | None:
    """Return (product of queries and keys, last value before an additive bias, factor), or None."""
    if is_product(value):
        return value, value, 1.0
    if left == 0 or value.op in NORMS:
        return None
    if value.op not in VIEWS | SUMS | {"mul", "div", "tanh", "where", "masked_fill", "clamp"}:
        return None
    for source in value.data:
        traced = _scores(source, left - 1)
        if traced is not None:
            product, scores, factor = traced
            biased = value.op in SUMS | {"where", "masked_fill"}
            if scores is source and not biased:
                return product, value, factor
            return product, scores, factor * scale_of(value)
    return None


def scale_of(value: Value) -> float:
    """Return the number by which a value multiplies its argument, or 1 for other operations."""
    if value.op not in ("mul", "div", "true_divide"):
        return 1.0
    factors = [float(n) for n in value.numbers if isinstance(n, int | float)]
    single = (v.tensor for v in value.inputs if v.tensor.numel() == 1)
    product = math.prod([*factors, *(float(t) for t in single if not t.is_complex())])
    return product if value.op == "mul" else 1 / product if product else 1.0


def _mean(found: Structure, softmax: Value) -> Value | None:
    """Return the product of a softmax's weights with the values, or None."""
    stack, seen = [softmax], {softmax.index}
    while stack:
        value = stack.pop()
        for reader in found.program.readers.get(value.index, ()):
            if reader.index in seen:
                continue
            seen.add(reader.index)
            if is_product(reader):
                return reader
            if reader.op in VIEWS | {"mul", "div"} and reader.flavour == "data":
                stack.append(reader)
    return None


def _roles(found: Structure) -> dict[str, tuple[str, ...]]:
    roles: dict[str, dict[str, None]] = {}

    def add(names: Iterable[str], *given: str) -> None:
        for name in names:
            roles.setdefault(name, {}).update(dict.fromkeys(given))

    starts = found.starts()
    ends = {root for value in found.program.outputs for root in found.stream_roots(value)}
    for contraction in found.contractions:
        add(contraction.parameters, *_contraction_roles(found, contraction, starts, ends))
    for value in found.program.values:
        for name, role in _elementwise_roles(value):
            add((name,), role)
    for name, given in roles.items():
        if len(given) > 1:
            given.pop("hidden", None)
        roles[name] = given
    return {name: tuple(given) for name, given in roles.items()}


def _contraction_roles(
    found: Structure, contraction: Contraction, starts: set[int], ends: set[int]
) -> list[str]:
    index, out = contraction.value.index, []
    below = found.stream_roots(contraction.data)
    if below & starts:
        out.append("reads")
    for attention in found.attention:
        for role in ("query", "key", "value"):
            operand = getattr(attention, role)
            if operand is not None and index in found.roots(operand):
                out.append(role)
        if attention.mean is not None and attention.mean.index in below:
            out.append("output")
    if any(contraction in merge.writers for merge in found.merges):
        out.append("writes")
    if index in ends:
        out.append("readout")
    if index in starts and all(found.program.values[root].op == "input" for root in below):
        out.append("embedding")
    return list(dict.fromkeys(out)) or ["hidden"]


def _elementwise_roles(value: Value) -> Iterable[tuple[str, str]]:
    """Yield (parameter, role) for parameters that a value reads outside of contractions."""
    if value.flavour != "data":
        return
    weights = [(i, v) for i, v in enumerate(value.inputs) if v.flavour == "weight"]
    for place, weight in weights:
        role = _role_at(value, place)
        if role is not None:
            for name in weight.weights:
                yield name, role


def _role_at(value: Value, place: int) -> str | None:
    if value.op in TABLES and place == 0:
        return "embedding" if value.ids else "positions"
    if value.op in NORMS:
        return "gain" if place == 1 else "bias"
    if value.op in BIASED:
        return "bias" if place == 0 else None
    if value.op in ("convolution", "linear"):
        return "bias" if place == 2 else None
    if value.op in CONTRACTIONS:
        return None
    if value.op in ("mul", "div"):
        return "gain"
    if value.op in SUMS:
        long = sum(size > 1 for size in value.inputs[place].tensor.shape) > 1
        return "positions" if long else "bias"
    return "token" if value.op in ("cat", "stack", "where") else "other"
