"""Criteria on how parameters were drawn: INIT-NEVER, -COPY, -ALIKE, -FAN, -TRUNC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .findings import Finding, criterion, named
from .subject import Subject, families

FAN_OFF = 3 / 2
DEEP_CUT = 8.0  # standard deviations


@criterion("INIT-NEVER", "error", "NaN is left where uninitialised memory was filled with it")
def never(subject: Subject) -> Iterator[Finding]:
    """Parameters that no code wrote, or not wholly."""
    names = tuple(
        name
        for name, law in subject.laws.items()
        if law.name == "uninitialised" or law.partly_written
    )
    if names:
        yield Finding(
            "INIT-NEVER",
            "error",
            names,
            f"nothing initialises {named(names)}: what stood in the memory is kept",
            "initialise it where it is made, or in the model's function that draws all weights",
            subject.place(names),
        )


@criterion(
    "INIT-COPY",
    "warning",
    "trainable matrices are equal bit for bit within a draw and differ between two seeds; of a "
    "finished model, or of a builder that sets its own seed: are equal, and their entries are not "
    "correlated with their neighbours",
)
def copies(subject: Subject) -> Iterator[Finding]:
    """Layers that start as copies of one another."""
    groups = _equal_groups(subject)
    if groups and subject.again is not None:
        other = dict(subject.again().named_parameters())
        if all(_equal(p, other.get(name)) for name, p in subject.parameters.items()):
            groups = [g for g in groups if _looks_drawn(subject.parameters[g[0]])]
        else:
            groups = [g for g in groups if not _equal(subject.parameters[g[0]], other.get(g[0]))]
    for names in _joined(groups):
        yield Finding(
            "INIT-COPY",
            "warning",
            names,
            f"{named(names)} start as copies of one another",
            "draw each of them: copy.deepcopy copies weights too, so initialise after copying",
            subject.place(names),
        )


def _equal_groups(subject: Subject) -> list[tuple[str, ...]]:
    """The trainable random matrices that are equal, group by group."""
    marks: dict[Any, list[str]] = {}
    memory: set[int] = set()
    for name, tensor in subject.parameters.items():
        if not tensor.requires_grad or tensor.ndim < 2 or tensor.numel() < 4:
            continue
        law = subject.laws[name]
        if not law.sigma > 0 or tensor.data_ptr() in memory:
            continue
        memory.add(tensor.data_ptr())
        flat = tensor.detach().flatten()
        mark = (
            tuple(tensor.shape),
            float(flat[0]),
            float(flat[-1]),
            float(flat[flat.numel() // 2]),
        )
        marks.setdefault(mark, []).append(name)
    found = []
    for names in marks.values():
        first = subject.parameters[names[0]]
        equal = tuple(n for n in names if _equal(first, subject.parameters[n]))
        if len(equal) > 1 and (subject.again is not None or _looks_drawn(first)):
            found.append(equal)
    return found


def _equal(one: Any, other: Any) -> bool:
    return other is not None and one.shape == other.shape and bool((one == other).all())


def _looks_drawn(tensor: Any) -> bool:
    """Whether neighbours in a matrix are uncorrelated within five standard errors."""
    matrix = tensor.detach().double().flatten(1)
    matrix = matrix - matrix.mean()
    scale = matrix.square().mean()
    for one, other in ((matrix[1:], matrix[:-1]), (matrix[:, 1:], matrix[:, :-1])):
        if one.numel() and abs(float((one * other).mean() / scale)) > 5 / one.numel() ** 0.5:
            return False
    return True


def _joined(groups: list[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Groups of the same modules as one: all weights of copied layers."""
    if groups:
        yield tuple(name for group in groups for name in group)


@criterion(
    "INIT-ALIKE",
    "error",
    "a contracted weight, not zero, has equal rows (one per output), and the rows of its gradient "
    "are equal and not zero",
)
def rows_alike(subject: Subject) -> Iterator[Finding]:
    """Units that start equal and stay so."""
    alike = []
    for name, contraction in subject.contracted.items():
        weight, axes = subject.parameters[name], contraction.axes.get(name)
        gradient = subject.measured.gradients.get(name)
        if axes is None or gradient is None or not bool(gradient.any()) or not bool(weight.any()):
            continue
        if _same_rows(weight.detach(), axes, 0.0) and _same_rows(gradient, axes, 1e-4):
            alike.append(name)
    for names in families(alike).values():
        yield Finding(
            "INIT-ALIKE",
            "error",
            names,
            f"all rows of {named(names)} are equal and get equal gradients: the units stay copies",
            "draw the weights at random",
            subject.place(names),
        )


def _same_rows(tensor: Any, axes: tuple[int, ...], tolerance: float) -> bool:
    """Whether the rows along the output axis are equal, in each stacked matrix."""
    kept = [axis for axis in range(tensor.ndim) if axis not in axes]
    if not kept or tensor.shape[kept[-1]] < 2 or tensor.numel() == 0:
        return False
    rows = tensor.movedim(kept[-1], 0)
    gap = float((rows - rows[:1]).abs().max())
    return gap <= tolerance * float(tensor.abs().max())


@criterion(
    "INIT-FAN",
    "warning",
    "builder alone: the fan that the initialiser used, over that of the contraction in the run, is "
    "outside 2/3 ... 3/2 (fan_in and fan_out each; Xavier: their sum)",
)
def fans(subject: Subject) -> Iterator[Finding]:
    """Fans taken from the wrong axes of a weight."""
    off: dict[str, tuple[str, float, float]] = {}
    for name, contraction in subject.contracted.items():
        used = subject.laws[name].fan
        if used is None or contraction.transposed or subject.parameters[name].ndim < 2:
            continue
        fan_in, fan_out = contraction.fan_in, contraction.fan_out
        size = subject.parameters[name].numel()
        if size < fan_in * fan_out or (
            subject.parameters[name].ndim == 2 and size > fan_in * fan_out
        ):
            continue  # a view with repeated entries, or a slice of fused weights
        true = {"fan_in": fan_in, "fan_out": fan_out}.get(used[0], fan_in + fan_out)
        if not 1 / FAN_OFF <= used[1] / true <= FAN_OFF:
            off[name] = (used[0], used[1], true)
    for names in families(off).values():
        mode, given, true = off[names[0]]
        text = "fan_in + fan_out" if mode == "fan_sum" else mode
        yield Finding(
            "INIT-FAN",
            "warning",
            names,
            f"the initialiser of {named(names)} took {text} = {given:g}; in the run it is {true:g}",
            f"give the fan of the contraction: sigma is {_times(given, true)}",
            subject.place(names),
        )


def _times(given: float, true: float) -> str:
    """In words how far the sigma of one fan is from that of another."""
    ratio = (given / true) ** 0.5
    return f"{ratio:.3g} times too small" if ratio > 1 else f"{1 / ratio:.3g} times too large"


@criterion(
    "INIT-TRUNC",
    "note",
    "builder alone, on request: a truncated normal law is cut beyond 8 sigma, so that nothing is "
    "cut",
    standard=False,
)
def truncation(subject: Subject) -> Iterator[Finding]:
    """Truncated normal laws with bounds that cut nothing."""
    deep = {n: law.cut for n, law in subject.laws.items() if law.cut is not None}
    deep = {name: cut for name, cut in deep.items() if cut > DEEP_CUT}
    for names in families(deep).values():
        yield Finding(
            "INIT-TRUNC",
            "note",
            names,
            f"{named(names)} is cut at {deep[names[0]]:g} sigma, which cuts nothing",
            "the bounds a, b of trunc_normal_ are absolute: give a=-2*std, b=2*std",
            subject.place(names),
        )
