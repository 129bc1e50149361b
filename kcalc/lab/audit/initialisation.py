"""Criteria for how parameters were drawn: INIT-NEVER, -COPY, -ALIKE, -FAN, -TRUNC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .contractions import Contraction
from .findings import Finding, criterion, forms, named
from .groups import ignored_groups
from .operations import CONTRACTIONS, NORMS
from .roots import contraction_weight
from .subject import Subject, families

FAN_OFF = 3 / 2
MOST = 3  # number of sets of copies listed in a message
DEEP_CUT = 8.0  # in standard deviations


@criterion(
    "INIT-NEVER",
    "error",
    "a parameter still contains NaN, with which the audit fills uninitialised memory",
)
def never(subject: Subject) -> Iterator[Finding]:
    """Report parameters that were never written, or only partly."""
    names = tuple(
        name
        for name, law in subject.laws.items()
        if law.name == "uninitialised" or law.partly_written
    )
    whole = tuple(n for n in names if subject.laws[n].name == "uninitialised")
    partly = tuple(n for n in names if n not in whole)
    for members, text in ((whole, ""), (partly, _gap(subject, partly))):
        if members:
            yield Finding(
                "INIT-NEVER",
                "error",
                members,
                f"nothing initialises {text}{named(members)}, so the values are arbitrary memory "
                "contents",
                "initialise it where it is created, or in the function that draws all "
                "weights of the model",
                subject.laws[members[0]].made or subject.place(members),
            )


def _gap(subject: Subject, names: tuple[str, ...]) -> str:
    """Return a phrase that says how many entries of the parameters are unwritten."""
    if not names:
        return ""
    tensors = [subject.original.get_parameter(name) for name in names]
    unwritten = sum(int(tensor.isnan().sum()) for tensor in tensors)
    return f"{unwritten} of the {sum(tensor.numel() for tensor in tensors)} entries of "


@criterion(
    "INIT-COPY",
    "warning",
    "random trainable matrices, or the matrices in a stack, are bitwise equal. They count as "
    "random if a second draw with another seed, in which torch.manual_seed has no effect, gives "
    "different values. In a finished model, they count as random if neighbouring entries are "
    "uncorrelated",
)
def copies(subject: Subject) -> Iterator[Finding]:
    """Report layers that start as copies of each other."""
    groups, stacked = _equal_groups(subject), _equal_slices(subject)
    if (groups or stacked) and subject.again is not None:
        other = dict(subject.again().named_parameters())
        if all(_equal(p, other.get(name)) for name, p in subject.parameters.items()):
            groups = [g for g in groups if _looks_drawn(subject.parameters[g[0]])]
            stacked = [n for n in stacked if _looks_drawn(subject.parameters[n][0])]
        else:
            groups = [g for g in groups if not _equal(subject.parameters[g[0]], other.get(g[0]))]
            stacked = [n for n in stacked if not _equal(subject.parameters[n], other.get(n))]
    if groups:
        names = tuple(name for group in groups for name in group)
        sets = "; ".join(" = ".join(forms(group)) for group in groups[:MOST])
        more = f"; and {len(groups) - MOST} more" if len(groups) > MOST else ""
        yield Finding(
            "INIT-COPY",
            "warning",
            names,
            f"these parameters start as copies of one another: {sets}{more}",
            "initialise the layers after copying them, because copy.deepcopy also copies weights",
            subject.place(names),
        )
    for members in families(stacked).values():
        count = len(subject.parameters[members[0]])
        yield Finding(
            "INIT-COPY",
            "warning",
            members,
            f"the {count} matrices stacked in {named(members)} start as copies of one another",
            "draw the whole stack at once, because repeat and expand copy a single draw",
            subject.place(members),
        )


def _equal_slices(subject: Subject) -> list[str]:
    """Return the trainable stacks of equal matrices that a product reads."""
    return [
        name
        for name, contraction in subject.contracted.items()
        if (p := subject.parameters[name]).requires_grad
        and p.ndim > 2
        and len(p) > 1
        and p[0].numel() >= 4
        and contraction.value.op != "convolution"
        and float(p[0].float().std()) > 0
        and _equal(p, p[:1].expand_as(p))
        and (subject.again is not None or _looks_drawn(p[0]))
    ]


def _equal_groups(subject: Subject) -> list[tuple[str, ...]]:
    """Return groups of equal trainable random matrices."""
    marks: dict[Any, list[str]] = {}
    memory: set[int] = set()
    spared = {n for cut in subject.measured.cuts if cut.kind == "taught" for n in cut.names}
    spared.update(subject.gates)  # sub-layers may mix their streams in the same way
    for name, tensor in subject.parameters.items():
        if name in spared or not tensor.requires_grad or tensor.ndim < 2 or tensor.numel() < 4:
            continue
        law = subject.laws[name]
        if not law.sigma > 0 or tensor.data_ptr() in memory:
            continue
        memory.add(tensor.data_ptr())
        flat = tensor.detach().flatten()
        mark = (
            tuple(tensor.shape),
            flat[0].item(),
            flat[-1].item(),
            flat[flat.numel() // 2].item(),
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
    """Return whether neighbouring entries of a matrix are uncorrelated within five standard errors.

    A matrix whose entries are mostly equal, such as an identity, does not look random.
    """
    matrix = tensor.detach().double().flatten(1)
    if float((matrix == matrix.median()).double().mean()) > 0.5:
        return False
    matrix = matrix - matrix.mean()
    scale = matrix.square().mean()
    for one, other in ((matrix[1:], matrix[:-1]), (matrix[:, 1:], matrix[:, :-1])):
        if one.numel() and abs(float((one * other).mean() / scale)) > 5 / one.numel() ** 0.5:
            return False
    return True


@criterion(
    "INIT-ALIKE",
    "error",
    "all rows (one per output) of a nonzero weight in a contraction are equal, and all rows of its "
    "gradient are equal and nonzero",
)
def rows_alike(subject: Subject) -> Iterator[Finding]:
    """Report weights whose units start equal and stay equal."""
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
            f"all rows of {named(names)} are equal and receive equal gradients, so the units "
            "stay copies of each other",
            "draw the weights at random",
            subject.place(names),
        )


def _same_rows(tensor: Any, axes: tuple[int, ...], tolerance: float) -> bool:
    """Return whether the rows along the output axis are equal in every stacked matrix."""
    kept = [axis for axis in range(tensor.ndim) if axis not in axes]
    if not kept or tensor.shape[kept[-1]] < 2 or tensor.numel() == 0:
        return False
    rows = tensor.movedim(kept[-1], 0)
    gap = float((rows - rows[:1]).abs().max())
    return gap <= tolerance * float(tensor.abs().max())


@criterion(
    "INIT-FAN",
    "warning or note",
    "builders only: the fan that the initialiser used, divided by the fan of the contraction in "
    "the run, is outside 2/3 ... 3/2. fan_in is compared with fan_in, and Xavier's fan_in + "
    "fan_out with the same sum. fan_out may match either fan, because PyTorch's fan_out is the "
    "contraction's fan_in for x @ w. A grouped weight that your code draws directly is reported if "
    "its sigma follows from a fan that counts all groups. It is a note if a norm follows and hides "
    "the scale",
)
def fans(subject: Subject) -> Iterator[Finding]:
    """Report sigmas whose fan was computed from the wrong axes of a weight."""
    off: dict[tuple[str, str], dict[str, tuple[str, float, float]]] = {}
    for name, contraction in subject.contracted.items():
        wrong = _wrong_fan(subject, name, contraction)
        if wrong is not None:
            where = subject.laws[name].place or next(iter(families([name])))
            severity = "note" if _normed(subject, contraction) else "warning"
            off.setdefault((severity, where), {})[name] = wrong
    for (severity, _), members in off.items():
        names = tuple(members)
        yield Finding(
            "INIT-FAN",
            severity,
            names,
            "the initialiser used a fan that differs from the fan of the contraction: "
            + _fans(members),
            "use the fan of the contraction that the model computes; for grouped layers, "
            "use the fan of one group",
            subject.place(names),
        )


def _wrong_fan(
    subject: Subject, name: str, contraction: Contraction
) -> tuple[str, float, float] | None:
    """Return (mode, fan used, true fan) for a weight, or None if the fan used is right."""
    used = subject.laws[name].fan
    if contraction.transposed or subject.parameters[name].ndim < 2:
        return None
    if _multiplied(name, contraction):
        return None
    if used is None:
        return ignored_groups(subject, name)
    fan_in, fan_out = contraction.fan_in, contraction.fan_out
    size = subject.parameters[name].numel()
    if size < contraction.entries or (
        subject.parameters[name].ndim == 2 and size > contraction.entries
    ):
        return None  # a view with repeated entries, or a slice of fused weights
    outs = [fan_out]
    if subject.parameters[name].ndim > 2 and contraction.value.op != "convolution":
        # an einsum may read a stack as one matrix
        outs.append(fan_out // len(subject.parameters[name]))
    right = {"fan_in": [fan_in], "fan_out": [*outs, fan_in]}.get(
        used[0], [fan_in + out for out in outs]
    )
    if any(1 / FAN_OFF <= used[1] / true <= FAN_OFF for true in right):
        return None
    return used[0], used[1], right[0]


def _multiplied(name: str, contraction: Contraction) -> bool:
    """Return whether the weight is a product of two parameters, as for learnt queries."""
    stack, seen = [contraction_weight(contraction.value)], set()
    while stack:
        value = stack.pop()
        if value is not None and name in value.weights and value.index not in seen:
            if value.op in CONTRACTIONS:
                return True
            seen.add(value.index)
            stack += value.inputs
    return False


def _normed(subject: Subject, contraction: Contraction) -> bool:
    """Return whether a norm directly follows a contraction and hides its scale."""
    readers = subject.measured.structure.program.readers.get(contraction.value.index, [])
    return bool(readers) and all(reader.op in NORMS for reader in readers)


def _fans(members: dict[str, tuple[str, float, float]]) -> str:
    """Describe which fans were used, grouping similar weights."""
    alike: dict[tuple[str, float, float], list[str]] = {}
    for name, fan in members.items():
        alike.setdefault(fan, []).append(name)
    texts = []
    for (mode, given, true), names in list(alike.items())[:MOST]:
        text = "fan_in + fan_out" if mode == "fan_sum" else mode
        texts.append(
            f"{named(names)} {text} = {given:g}, but in the run it is {true:g}, so sigma is "
            f"{_times(given, true)}"
        )
    more = sum(map(len, list(alike.values())[MOST:]))
    return "; ".join(texts) + (f"; and {more} more" if more else "")


def _times(given: float, true: float) -> str:
    """Describe how far a sigma is off because of a wrong fan."""
    ratio = (given / true) ** 0.5
    return f"{ratio:.3g} times too small" if ratio > 1 else f"{1 / ratio:.3g} times too large"


@criterion(
    "INIT-TRUNC",
    "note",
    "builders only, on request: a truncated normal distribution is cut off beyond 8 sigma, which "
    "has no effect",
    standard=False,
)
def truncation(subject: Subject) -> Iterator[Finding]:
    """Report truncated normal distributions whose bounds have no effect."""
    deep = {n: law.cut for n, law in subject.laws.items() if law.cut is not None}
    deep = {name: cut for name, cut in deep.items() if cut > DEEP_CUT}
    for names in families(deep).values():
        yield Finding(
            "INIT-TRUNC",
            "note",
            names,
            f"{named(names)} is truncated at {deep[names[0]]:g} sigma, which has no effect",
            "the bounds a, b of trunc_normal_ are absolute; pass a=-2*std, b=2*std",
            subject.place(names),
        )
