"""Find parameters that a run reads but that get no gradient, and the operations that cut them off.

A parameter is cut off if it is missing from the gradient graph of the result and of values that the
model keeps in attributes (such as an auxiliary loss). Parameters that the run never reads do not
count as cut off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...foundation.families import family
from .operations import DATALESS, SUMS
from .program import Program, Value
from .reaching import leaf_of, leaves_of_gradients, numeric
from .roots import contraction_weight
from .structure import Structure

ALIKE = 0.5  # least cosine between the weights of a teacher and its student
SOME = 2**14  # number of entries compared
SHAPES = DATALESS - {"argmax", "argsort", "floor", "bernoulli", "_local_scalar_dense"}
"""Operations that read only the shape of an array."""

# contractions that must follow a value; with fewer, a head or a pooler may read it
DEEP, DEEPER = 2, 3


@dataclass(frozen=True)
class Cut:
    """Parameters cut off by one kind of operation, and the line of its first occurrence.

    ``kind`` is "detached", "number" (conversion to a Python number), "choice" (positions or
    comparisons) or "dropped" (a discarded result). It is "taught" for teachers and target networks,
    which are detached on purpose.
    """

    kind: str
    names: tuple[str, ...]
    place: str = ""


def cuts(
    structure: Structure,
    trainable: dict[str, Any],
    gradients: dict[str, Any],
    training: Callable[[], Any],
) -> list[Cut]:
    """Find the parameters that are cut off, and the reasons.

    ``gradients`` is {parameter: gradient of the objective, or None}. It is needed because the
    gradient graph of a scripted module does not show which parameters the module uses. ``training``
    returns the program of a run in training mode, or None if that run fails.
    """
    program = structure.program
    linked = leaves_of_gradients(program)
    linked |= {id(p): p for name, p in trainable.items() if gradients[name] is not None}
    unlinked = [name for name, p in trainable.items() if id(p) not in linked]
    ends = _ends(program)
    found: dict[str, dict[str, str]] = {}
    dropped = {}
    for name in unlinked:
        leaf = leaf_of(program, name)
        known = None if leaf is None else _cut(program, leaf, ends)
        if known is not None:
            found.setdefault(known[0], {})[name] = known[1]
        elif leaf is not None and program.readers.get(leaf.index):
            dropped[name] = leaf
    taught = _taught({n: trainable[n] for n in found.get("detached", ())}, trainable, linked)
    if taught:
        found["taught"] = {name: found["detached"].pop(name) for name in taught}
    if "choice" in found and all(_balances(structure, n, trainable) for n in found["choice"]):
        del found["choice"]
    found["dropped"] = _dropped(structure, dropped, trainable)
    asked = any(lines for kind, lines in found.items() if kind != "taught")
    again = training() if asked else None
    found = {
        kind: {n: line for n, line in lines.items() if _stays(again, n, kind)}
        for kind, lines in found.items()
    }
    return [
        Cut(kind, tuple(lines), next((line for line in lines.values() if line), ""))
        for kind, lines in found.items()
        if lines
    ]


def _balances(structure: Structure, name: str, trainable: dict[str, Any]) -> bool:
    """Return whether a parameter is a scalar or a vector that is only added to data.

    A bias that balances the load of experts is such a vector. The scores to which it is added get
    their gradient on another path.
    """
    program = structure.program
    leaf = leaf_of(program, name)
    if leaf is None or trainable[name].ndim > 1:
        return False
    return all(r.op in SUMS and r.data for r in program.readers.get(leaf.index, ()))


@dataclass(frozen=True)
class _Ends:
    """The indices of the results, and {index: line} for values that became Python numbers."""

    results: frozenset[int]
    numbers: dict[int, str]


def _ends(program: Program) -> _Ends:
    results = frozenset(v.index for v in (*program.outputs, *program.kept))
    return _Ends(results, {value.index: line for value, line in program.numbers})


def _cut(program: Program, leaf: Value, ends: _Ends) -> tuple[str, str] | None:
    """Return (kind, line) of the obstacle between a parameter and the result, or None.

    None means that nothing cuts the parameter off.
    """
    before = _behind(program, leaf, numeric)
    found = _first(before, ends.results)
    if found is not None:
        path = _path(before, found)
        return "detached", next((v.place for v in path if not v.tensor.requires_grad), "")
    found = _first(before, ends.numbers)
    if found is not None:
        return "number", ends.numbers[found]
    before = _behind(program, leaf, lambda _: True)
    found = _first(before, ends.results | ends.numbers.keys())
    if found is not None:
        return "choice", next((v.place for v in _path(before, found) if not numeric(v)), "")
    return None


def _behind(
    program: Program, leaf: Value, passes: Callable[[Value], bool]
) -> dict[int, tuple[Value, int]]:
    """Return {index of a value computed from a leaf: (the value, the index of its predecessor)}."""
    before: dict[int, tuple[Value, int]] = {leaf.index: (leaf, -1)}
    queue = [leaf]
    for value in queue:
        for reader in program.readers.get(value.index, ()):
            if reader.index not in before and reader.op not in SHAPES and passes(reader):
                before[reader.index] = (reader, value.index)
                queue.append(reader)
    return before


def _first(before: dict[int, Any], ends: Iterable[int]) -> int | None:
    return min((end for end in ends if end in before), default=None)


def _path(before: dict[int, tuple[Value, int]], end: int) -> list[Value]:
    """Return the values on the path from a leaf (excluded) to an end."""
    found = []
    while end >= 0:
        value, end = before[end]
        found.append(value)
    return found[-2::-1] if len(found) > 1 else found


def _taught(
    cut: dict[str, Any], trainable: dict[str, Any], linked: dict[int, Any]
) -> tuple[str, ...]:
    """Return the parameters of teachers and target networks: detached copies of trained ones.

    A matrix is a copy if its cosine with a trained matrix of the same shape and last name exceeds
    one half. The other parameters of its module, and of the enclosing modules, are also copies if
    the original has them.
    """
    pairs: set[tuple[str, str]] = set()
    for name, tensor in cut.items():
        if tensor.ndim < 2:
            continue
        for other, twin in trainable.items():
            if id(twin) in linked and twin.shape == tensor.shape and _alike(tensor, twin):
                pairs.update(_prefixes(name, other))
    return tuple(
        name
        for name, tensor in cut.items()
        if any(
            name.startswith(one)
            and (twin := trainable.get(other + name[len(one) :])) is not None
            and id(twin) in linked
            and (tensor.ndim < 2 or _alike(tensor, twin))
            for one, other in pairs
        )
    )


def _alike(one: Any, other: Any) -> bool:
    """Return whether two matrices are correlated, which constant matrices never are."""
    every = 1 + one.numel() // SOME
    a, b = (t.detach().flatten()[::every].double() for t in (one, other))
    product, sizes = float(a @ b), float(a.norm() * b.norm())
    return product > ALIKE * sizes and bool((a != a[0]).any())


def _prefixes(one: str, other: str) -> list[tuple[str, str]]:
    """Return all pairs of different prefixes after which two names are the same.

    The prefixes end with a dot or are empty.
    """
    first, second = one.split("."), other.split(".")
    found = []
    while first and second and first[-1] == second[-1]:
        first.pop()
        second.pop()
        found.append((".".join([*first, ""]), ".".join([*second, ""])))
    return [pair for pair in found if pair[0] != pair[1]]


def _dropped(
    structure: Structure, leaves: dict[str, Value], trainable: dict[str, Any]
) -> dict[str, str]:
    """Return {parameter: line} of layers in the middle of a network whose result is discarded.

    If a sum is discarded, its layers and the layers that they read are discarded too. The sum must
    read several blocks, and at least two more contractions must follow its data; with fewer, the
    layers may be heads. For single layers other than norms, at least three more contractions must
    follow, because poolers can sit next to heads with two layers. The last of several layers is
    exempt if the others are used, such as the edge update after the last block.
    """
    program = structure.program
    if not leaves:
        return {}
    depths = _depths(program)
    alive = set(depths)
    entry: dict[int, int] = {}
    for value in program.values:
        if value.index not in alive and value.flavour == "data":
            known = [depths.get(v.index, entry.get(v.index, 0)) for v in value.data]
            entry[value.index] = max(known, default=0)
    for merge in structure.merges:
        for value, branch in zip(merge.values, merge.branches, strict=True):
            if value.index in entry:
                entry |= {i: DEEPER for i in entry if branch.ancestors >> i & 1}
                entry[branch.index] = DEEPER
    found: dict[str, str] = {}
    single: set[str] = set()
    for name, leaf in leaves.items():
        read = [v for v, _ in _behind(program, leaf, lambda _: True).values()]
        deep = [v for v in read if entry.get(v.index, 0) >= DEEP]
        if deep:
            found[name] = min(deep, key=lambda v: v.index).place
            if max(entry[v.index] for v in deep) < DEEPER or trainable[name].ndim < 2:
                single.add(name)  # also the last norm of a backbone whose layers are read
    members: dict[str, list[str]] = {}
    for name in trainable:
        if (leaf := leaf_of(program, name)) is not None and program.readers.get(leaf.index):
            members.setdefault(family(name), []).append(name)
    spared = {
        names[-1]
        for names in members.values()
        if len(names) > 1 and names[-1] in found and not any(n in found for n in names[:-1])
    }
    lost = Counter(family(name) for name in found)
    spared |= {name for name in single if lost[family(name)] == 1}
    return {name: line for name, line in found.items() if name not in spared}


def _depths(program: Program) -> dict[int, int]:
    """Return {index: the largest number of contractions with weights on a path to the result}."""
    depths = {value.index: 0 for value in (*program.outputs, *program.kept)}
    for value in reversed(program.values):
        if value.index not in depths:
            continue
        step = depths[value.index] + (contraction_weight(value) is not None)
        for source in value.inputs:
            further = step if source.flavour == "data" else depths[value.index]
            depths[source.index] = max(further, depths.get(source.index, 0))
    return depths


def _stays(again: Program | None, name: str, kind: str) -> bool:
    """Return whether a parameter is also cut off in training mode.

    If there is no run in training mode, choices and discarded values are ignored: they may belong
    to an object detector or to auxiliary heads.
    """
    if kind == "taught":
        return True
    leaf = None if again is None else leaf_of(again, name)
    if again is None or leaf is None:
        return kind in ("detached", "number")
    if kind == "dropped":
        return not any(end.depends_on(leaf) for end in (*again.outputs, *again.kept))
    return id(leaf.tensor) not in leaves_of_gradients(again)
