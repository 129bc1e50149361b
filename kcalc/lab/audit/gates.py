"""The gates of several residual streams: the weights that mix, read and write streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from .contractions import contractions
from .measuring import evaluating
from .operations import CONTRACTIONS
from .program import Program, Value, run_recorded
from .separate_streams import Level, levels_of, passages, sources
from .stream_states import bits, splits, start_of, states, taken

if TYPE_CHECKING:
    from .subject import Subject

Array = np.ndarray
Kept = dict[int, tuple[Any, Any]]  # {call: (streams before the noise, streams with it)}
TRIED = 40  # number of candidates tried for the value that a branch or the readout reads
LOCATIONS = 4  # number of locations at which gates are compared
CLOSE = 1e-4  # relative error of a fit
SUMS_OFF = 1e-3  # larger deviations of a sum of weights from 1 get a remark


@dataclass
class Gates:
    """The gates at some locations: stream weights in mixtures, branches and the readout.

    For every sub-layer, ``mixing`` contains an array of shape (locations, n, n), and ``read`` and
    ``write`` contain arrays of shape (locations, n). ``readout`` has shape (locations, n).
    """

    count: int
    mixing: list[Array] = field(default_factory=list)
    read: list[Array] = field(default_factory=list)
    write: list[Array] = field(default_factory=list)
    readout: Array | None = None

    def alike(self) -> list[tuple[int, ...]]:
        """Return the sets of streams that can be permuted without changing the gates."""
        nodes = np.concatenate([*self.read, *self.write, self.readout]).T  # type: ignore[list-item]
        pairs = np.concatenate(self.mixing).transpose(1, 2, 0)
        return orbits(nodes, pairs)

    @property
    def sums_off(self) -> float:
        """Return how far row sums are from 1 if column sums are 1, or vice versa; otherwise 0."""
        worst = 0.0
        for mixing in self.mixing:
            off = [float(np.abs(mixing.sum(axis) - 1).max()) for axis in (1, 2)]
            if mixing.min() > -CLOSE and min(off) < SUMS_OFF:
                worst = max(worst, max(off))
        return worst


def orbits(nodes: Array, pairs: Array) -> list[tuple[int, ...]]:
    """Return the orbits of size two or more under permutations that preserve nodes and pairs.

    A permutation s preserves ``nodes`` and ``pairs`` if replacing every index i by s(i) does not
    change them. Their shapes are (n, values) and (n, n, values).
    """
    count, off = len(nodes), 10 * CLOSE
    tolerance = off * np.maximum(np.abs(nodes).max(), 1e-30), off * max(np.abs(pairs).max(), 1e-30)
    same = (np.abs(nodes[:, None] - nodes[None]) <= tolerance[0]).all(-1)

    def fits(images: list[int], new: int) -> bool:
        here = len(images)
        if not same[here, new] or new in images:
            return False
        chosen = [*images, new]
        forth = np.abs(pairs[here, : here + 1] - pairs[new, chosen]) <= tolerance[1]
        back = np.abs(pairs[: here + 1, here] - pairs[chosen, new]) <= tolerance[1]
        return bool(forth.all() and back.all())

    def completed(images: list[int], fixed: dict[int, int]) -> bool:
        here = len(images)
        if here == count:
            return True
        targets = [fixed[here]] if here in fixed else range(count)
        return any(fits(images, t) and completed([*images, t], fixed) for t in targets)

    joined = list(range(count))
    for i, j in combinations(range(count), 2):
        if joined[i] != joined[j] and completed([], {i: j}):
            joined = [joined[i] if label == joined[j] else label for label in joined]
    groups = (tuple(i for i in range(count) if joined[i] == label) for label in set(joined))
    return sorted(group for group in groups if len(group) > 1)


def _fitted(target: Array, basis: Sequence[Array]) -> Array | None:
    """Return the weights of a linear combination of ``basis`` that equals ``target``, or None.

    The shape is (locations, len(basis)). There is a single row if the weights are the same at all
    locations.
    """
    width = target.shape[-1]
    if width >= 2 * len(basis):
        flat = [array.reshape(-1, width) for array in (target, *basis)]
        spread = np.linspace(0, len(flat[0]) - 1, LOCATIONS).astype(int)
        places = zip(*(rows[spread] for rows in flat), strict=True)
        one = [_solved(goal, np.array(rows)) for goal, *rows in places]
        if all(w is not None for w in one):
            return np.array(one)
    flat = np.array([b.reshape(-1)[: 1 << 14] for b in basis])
    weights = _solved(target.reshape(-1)[: 1 << 14], flat)
    return None if weights is None else weights[None]


def _solved(goal: Array, rows: Array) -> Array | None:
    weights = np.linalg.lstsq(rows.T, goal, rcond=None)[0]
    size = np.linalg.norm(goal)
    return weights if size > 0 and np.linalg.norm(rows.T @ weights - goal) <= CLOSE * size else None


def gates_of(subject: Subject) -> Gates | None:
    """Return the gates of a model whose streams start as copies, or None for other models.

    A second run adds noise to the streams after every sub-layer, so that the weights of equal
    streams can be told apart.
    """
    if subject.measured.structure.levels:
        return _of_levels(subject)
    if not subject.measured.structure.several:
        return None
    program, kept = _perturbed(subject)
    return None if program is None else _measured(program, kept)


def _run(subject: Subject, changed: Callable[[int, str, Any], Any] | None = None) -> Program:
    """Run the model again. ``changed`` is an argument of :func:`run_recorded`."""
    model, (args, kwargs) = subject.model, subject.measured.call
    return run_recorded(model, lambda: model(*args, **kwargs), (args, kwargs), changed)


def _with_noise(subject: Subject, places: set[int]) -> tuple[Program, Kept]:
    """Run the model with noise in the results of the given calls."""
    import torch

    kept: Kept = {}
    generator = torch.Generator().manual_seed(0)

    def changed(call: int, name: str, out: Any) -> Any:
        if call not in places:
            return out
        noise = torch.randn(out.shape, generator=generator).to(out)
        noise = noise * out.square().mean().sqrt()
        before = out.detach().clone()
        made = out.add_(noise) if name.endswith("_") else out + noise
        kept[call] = (before, made.detach().clone())
        return made

    return _run(subject, changed), kept


def _perturbed(subject: Subject) -> tuple[Program | None, Kept]:
    """Run a model whose streams share a tensor, with noise in the streams."""
    import torch

    parameters = dict(subject.model.named_parameters())

    def started(program: Program) -> Value | None:
        found = states(program, contractions(program, parameters))
        return start_of(program, found[0]) if found else None

    with evaluating(subject.model), torch.no_grad():
        origin = started(_run(subject))
        if origin is None:
            return None, {}
        start = origin.call
        # noise needs its own memory, which may change the operations after an expansion
        plain = _run(subject, lambda call, _, out: out + 0 if call == start else out)
        found = states(plain, contractions(plain, parameters))
        return _with_noise(subject, {start, *(state.value.call for state in found)})


def _of_levels(subject: Subject) -> Gates | None:
    """Return the gates of streams in separate tensors, or None if the sums have another form.

    The first sub-layer mixes copies of one value, so only the sums of its weights have an effect.
    These sums are added to ``write``.
    """
    import torch

    parameters = dict(subject.model.named_parameters())
    with evaluating(subject.model), torch.no_grad():
        plain = _run(subject)
        found = levels_of(plain, contractions(plain, parameters))
        program, kept = _with_noise(subject, {v.call for level in found for v in level.sums})
    levels = levels_of(program, contractions(program, parameters))
    if not levels or {v.call for level in levels for v in level.sums} != kept.keys():
        return None
    first, gates = levels[0], Gates(len(levels[0].sums))
    for source in islice(sources(program, first), TRIED):
        start = _rows(first, kept, [_array(source.tensor)])
        if start is not None:
            break
    else:
        return None
    gates.write += [start[:, :, 0], start[:, :, 1]]
    for before, level in pairwise(levels):
        streams = [_array(kept[v.call][1]) for v in before.sums]
        read, rows = _passed(program, before, [level.end], streams), _rows(level, kept, streams)
        if read is None or rows is None:
            return None
        gates.read.append(read)
        gates.mixing.append(rows[:, :, :-1])
        gates.write.append(rows[:, :, -1])
    streams = [_array(kept[v.call][1]) for v in levels[-1].sums]
    gates.readout = _passed(program, levels[-1], program.outputs, streams)
    return None if gates.readout is None else gates


def _rows(level: Level, kept: Kept, streams: Sequence[Array]) -> Array | None:
    """Return the weights with which the sums of a level add up streams and the branch, or None.

    The shape is (locations, sums, streams + 1). The last entry of the last axis belongs to the
    branch.
    """
    basis = [*streams, _array(level.end.tensor)]
    rows = [_fitted(_array(kept[value.call][0]), basis) for value in level.sums]
    if any(row is None or len(row) != len(rows[0]) for row in rows):  # type: ignore[arg-type]
        return None
    return np.array(rows).transpose(1, 0, 2)


def _passed(
    program: Program, level: Level, ends: Sequence[Value], streams: Sequence[Array]
) -> Array | None:
    """Return the weights of the last combination of streams that ``ends`` read, or None.

    Every path from the streams to ``ends`` passes through this combination.
    """
    shape = level.sums[0].tensor.shape
    through = [v for v in passages(program, level, ends) if v.tensor.shape == shape]
    fits = (_fitted(_array(value.tensor), streams) for value in reversed(through[:TRIED]))
    return next((weights for weights in fits if weights is not None), None)


def _array(tensor: Any) -> Array:
    return tensor.detach().double().cpu().numpy()


def _measured(program: Program, kept: Kept) -> Gates | None:
    """Compute the gates from a run with noise. Return None if the sums have another form."""
    by_call = {value.call: value for value in program.values if value.call in kept}
    calls = sorted(kept)
    origin = by_call[calls[0]]
    below = max(v.tensor.numel() for v in origin.data)
    count = origin.tensor.numel() // below
    gates = Gates(count)
    for split in splits(origin.tensor.shape, count):
        gates, streams = Gates(count), taken(kept[calls[0]][1], count, split)
        for before, after in pairwise(calls):
            step = _step(program, by_call[before], by_call[after], kept[after], streams)
            if step is None:
                break
            mixing, write, read, streams = step
            gates.mixing.append(mixing)
            gates.write.append(write)
            gates.read.append(read)
        else:
            last = by_call[calls[-1]]
            gates.readout = _read(program, last, None, streams)
            if gates.readout is not None and gates.mixing:
                return gates
    return None


def _step(
    program: Program, before: Value, after: Value, kept: tuple[Any, Any], streams: Array
) -> tuple[Array, Array, Array, Array] | None:
    """Return the gates of one sub-layer and the streams after it, or None.

    The gates are the mixing matrices, the write weights and the read weights, in this order.
    """
    count, size = len(streams), streams[0].size
    skip, branch = after.data
    if branch.depends_on(before) and skip.tensor.numel() != after.tensor.numel():
        skip, branch = branch, skip
    for one, other in ((skip, branch), (branch, skip)):
        own = (other.ancestors | 1 << other.index) & ~(one.ancestors | 1 << one.index)
        outs = [program.values[i] for i in bits(own) if program.values[i].tensor.numel() == size]
        outs = [v for v in outs if v.flavour == "data" and v.index > before.index]
        if not outs or not any(v.op in CONTRACTIONS for v in outs):
            continue
        end = outs[-1]
        made = _array(end.tensor).reshape(streams[0].shape)
        read = _read(program, before, end, streams)
        if read is None:
            continue
        for split in splits(after.tensor.shape, count):
            goals = taken(kept[0], count, split)
            if goals[0].shape[-1] != streams.shape[-1]:
                continue
            rows = [_fitted(goal, [*streams, made]) for goal in goals]
            if all(row is not None and len(row) == len(rows[0]) for row in rows):  # type: ignore[arg-type]
                weights = np.array(rows)  # (to, locations, from)
                mixing = weights[:, :, :count].transpose(1, 0, 2)
                return mixing, weights[:, :, count].T, read, taken(kept[1], count, split)
    return None


def _read(program: Program, before: Value, end: Value | None, streams: Array) -> Array | None:
    """Return the weights with which a sub-layer reads its streams, or None.

    These are the weights of the first combination of streams that has the size of one stream.
    """
    size, tried = streams[0].size, 0
    for value in program.values[before.index + 1 :]:
        if value.flavour != "data" or value.tensor.numel() != size or not value.depends_on(before):
            continue
        if end is not None and not end.depends_on(value):
            continue
        tried += 1
        if tried > TRIED:
            return None
        goal = _array(value.tensor)
        if goal.shape[-1] != streams.shape[-1]:
            continue
        found = _fitted(goal.reshape(streams[0].shape), list(streams))
        if found is not None:
            return found
    return None
