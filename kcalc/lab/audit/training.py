"""Criteria for the first steps of training: gradients, loss, attention, and inf or NaN."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .contractions import Contraction
from .findings import Finding, criterion, named
from .operations import NORMS, ROOT_FUNCTIONS, VIEWS
from .roots import contraction_weight, is_product
from .structure import Attention, Merge, Structure, scale_of
from .subject import Subject

TARGETS = 256
CUTS = {
    "detached": (
        "its values reach the result only through detach() or no_grad()",
        "remove the detach; if this is intended, set requires_grad=False",
    ),
    "number": (
        "its values reach the result as Python numbers, by item(), tolist() or numpy()",
        "compute with the tensor itself; if this is intended, set requires_grad=False",
    ),
    "choice": (
        "its values reach the result only through a choice (argmax, a comparison)",
        "multiply the choice by its softmax probability, or use a straight-through gradient",
    ),
    "dropped": (
        "its result is discarded, in this run and in training mode",
        "check whether a later line overwrites it, or whether it is a residual sum that "
        "nothing reads",
    ),
}
"""Messages and fixes, by the kind of operation that cuts off a parameter."""
GRADIENTS = 50.0
VANISHED, EXPLODED = 1e-9, 1e5


@criterion(
    "GRAD-DEAD",
    "error or warning",
    "the gradient is exactly zero in 4 steps of gradient descent on different inputs (by then, "
    "LoRA, and zero writers with a zero readout, have a gradient). It is a warning if a matrix's "
    "gradient is only rounding error, or if no gradient path leads from a trainable parameter to "
    "the result",
)
def dead(subject: Subject) -> Iterator[Finding]:
    """Yield parameters that training cannot change."""
    measured, idle = subject.measured, subject.idle
    for severity, members, text, fix in (
        (
            "error",
            measured.dead,
            "is exactly zero in 4 steps",
            "check which factor of the gradient is zero, such as a weight or gain before or after "
            "the parameter, or a ReLU that is never active",
        ),
        (
            "warning",
            measured.rounded,
            "is only rounding error in 4 steps, and vanishes in 64-bit arithmetic",
            "check what cancels the gradient, such as a weight divided by itself, values that are "
            "equal for all keys, or residual streams that stay equal",
        ),
    ):
        names = tuple(n for n in members if n not in idle)  # a remark names these instead
        if names:
            message = f"the gradient of {named(names)} {text}"
            zeros = _zeros(subject, names) if severity == "error" else ()
            if zeros:
                message += f"; of these, {named(zeros)} start{'s' * (len(zeros) == 1)} at zero"
            place = subject.place(zeros or names)
            yield Finding("GRAD-DEAD", severity, names, message, fix, place)
    for cut in measured.cuts:
        if cut.kind == "taught":
            continue
        text, fix = CUTS[cut.kind]
        message = f"the gradient of {named(cut.names)} is missing: {text}"
        place = cut.place or subject.place(cut.names)
        yield Finding("GRAD-DEAD", "warning", cut.names, message, fix, place)


def _zeros(subject: Subject, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the weights and gains among some parameters that start at zero."""
    return tuple(
        name
        for name in names
        if "bias" not in subject.roles.get(name, ()) and not subject.parameters[name].any()
    )


@criterion(
    "LOSS-START",
    "warning or error",
    "the cross entropy, averaged over all labels and at least 256 pairs of a row and a label, is "
    "above ln V + 1.5 (warning) or 2 ln V + 1 (error)",
)
def loss_start(subject: Subject) -> Iterator[Finding]:
    """Yield logits that are too large at the start."""
    aim = subject.measured.objective
    if aim.logits is None or not math.isfinite(aim.expected):
        return
    classes = aim.logits.shape[-1]
    uniform = math.log(classes)
    if aim.logits.numel() < TARGETS or aim.expected <= uniform + 1.5:
        return
    severity = "error" if aim.expected > 2 * uniform + 1 else "warning"
    names = tuple(n for n, roles in subject.roles.items() if "readout" in roles)
    rms = float(aim.logits.detach().float().square().mean().sqrt())
    yield Finding(
        "LOSS-START",
        severity,
        names,
        f"the loss starts at {aim.expected:.3g}, but ln {classes} is only {uniform:.3g}, because "
        f"the logits have rms {rms:.3g}",
        "scale down the readout, or the embedding tied to it; with a logit rms below 1, the loss "
        "starts near ln V",
        subject.place(names),
    )


@dataclass(frozen=True)
class Scores:
    """The variance over keys of an attention layer's scores, and the mean of ln T over its rows."""

    variance: float
    log_keys: float


def scores(attention: Attention) -> Scores | None:
    """Return the variance of the scores, without additive biases and masked keys.

    Rows with fewer than half of the largest number of keys are left out. The result is None if a
    row has only one key.
    """
    weights = attention.softmax.content.detach().float()
    values = attention.scores.content.detach().float()
    if attention.scores.op == "baddbmm" or values.numel() != weights.numel():
        return None
    values = values.reshape(weights.shape)
    seen = weights > 0
    count = seen.sum(-1)
    rows = (count >= 2) & (count >= count.max() / 2)
    if not bool(rows.any()):
        return None
    kept = values.where(seen, 0.0)
    mean = kept.sum(-1) / count.clamp(min=1)
    variance = ((kept - mean[..., None]).square() * seen).sum(-1) / count.clamp(min=1)
    size = float(variance[rows].mean()) * attention.factor**2
    return Scores(size, float(count[rows].float().log().mean()))


@criterion(
    "ATT-FROZEN",
    "warning or error",
    "the variance of the attention scores over the keys, without additive biases and masks, is "
    "above ln T (warning) or 2 ln T (error)",
)
def frozen(subject: Subject) -> Iterator[Finding]:
    """Yield attention layers that start out concentrated on single keys."""
    structure = subject.measured.structure
    for severity, low, high in (("error", 2.0, math.inf), ("warning", 1.0, 2.0)):
        found: dict[str, tuple[Scores, tuple[str, ...]]] = {}
        divided = True
        for attention in structure.attention:
            known = scores(attention)
            if known is None or not low < known.variance / known.log_keys <= high:
                continue
            names = tuple(
                name
                for contraction in structure.contractions
                for name in contraction.parameters
                for operand in (attention.query, attention.key)
                if contraction.value.index in structure.roots(operand)
            )
            module = attention.softmax.module or "the model"
            found[module] = (known, tuple(dict.fromkeys(names)))
            divided = divided and _is_divided(attention)
        if found:
            known, _ = max(found.values(), key=lambda item: item[0].variance)
            names = tuple(dict.fromkeys(n for _, names in found.values() for n in names))
            places = named(list(found))
            yield Finding(
                "ATT-FROZEN",
                severity,
                names,
                f"the scores of {places} have a variance of {known.variance:.3g} over the keys, "
                f"but ln T is {known.log_keys:.3g}, so the softmax starts out concentrated on "
                "individual keys",
                ("" if divided else "divide the scores by the square root of the head size, or ")
                + "initialise queries and keys with a smaller sigma",
                subject.place(names),
            )


def _is_divided(attention: Attention) -> bool:
    """Return whether scores, queries or keys are multiplied by a factor below 1."""
    stack = [attention.scores]
    while stack:
        value = stack.pop()
        if contraction_weight(value) is not None:
            continue
        if 0 < abs(scale_of(value) * attention.factor) < 1:
            return True
        if is_product(value) or value.op in VIEWS | {"mul", "div", "true_divide"}:
            stack += value.data
    return False


def gradient_sizes(subject: Subject, merges: list[Merge]) -> list[float]:
    """Return the rms of the gradient at each block's output, or nan for a missing gradient.

    Tokens that are zero at the start of the stream, such as padding, are left out: a norm
    multiplies small inputs, and their gradients, by a large number.
    """
    begun = merges[0].skip.content
    rows = begun.any(-1) if begun.ndim in (2, 3) else None
    found = []
    for merge in merges:
        sizes = []
        for value in merge.values:
            gradient = subject.measured.streams.get(value.index)
            if gradient is None:
                continue
            if rows is not None and bool(rows.any()) and gradient.shape[:-1] == rows.shape:
                gradient = gradient[rows]
            sizes.append(float(gradient.float().square().mean().sqrt()))
        # a stream that the loss does not read has gradient 0
        unread = [0.0] * (len(merge.values) - len(sizes))
        found.append(pooled([*sizes, *unread]) if sizes else math.nan)
    return found


def pooled(sizes: Sequence[float]) -> float:
    """Return the root mean square of sizes."""
    return math.sqrt(sum(size**2 for size in sizes) / len(sizes))


@criterion(
    "GRAD-BLOCKS",
    "warning",
    "no norm follows the writers of a stream, and the gradient's rms at the output of the first "
    "block, divided by its rms at the last block output of the same shape, is outside 1/50 ... 50. "
    "In a network without streams and norms, the ratio between the gradient's rms at the first and "
    "last layers' outputs is outside 1e-9 ... 1e5",
)
def blocks(subject: Subject) -> Iterator[Finding]:
    """Yield gradients that vanish or explode along a residual stream or a plain network."""
    if not subject.measured.structure.merges:
        yield from _plain(subject)
    for stack in subject.stacks:
        stages: dict[tuple[int, ...], list[Merge]] = {}
        for merge in stack.merges:
            if not merge.normed:
                stages.setdefault(tuple(merge.value.tensor.shape), []).append(merge)
        for merges in stages.values():
            sizes = [n for n in _undivided(subject, merges) if math.isfinite(n) and n > 0]
            if len(sizes) < 2 or 1 / GRADIENTS <= sizes[0] / sizes[-1] <= GRADIENTS:
                continue
            names = tuple(dict.fromkeys(n for m in merges for c in m.writers for n in c.parameters))
            yield Finding(
                "GRAD-BLOCKS",
                "warning",
                names,
                f"the gradient at the first block output is {sizes[0] / sizes[-1]:.3g} times "
                "the gradient at the last block output",
                "scale down these layers, which write to the residual stream, as the depth grows, "
                "or put the norm before the branch",
                subject.place(names),
            )


def _undivided(subject: Subject, merges: list[Merge]) -> list[float]:
    """Return the gradient sizes, multiplied by the rms of each sum if only norms read the sums.

    A norm divides its input by its rms, which sets the unit of the gradient before it.
    """
    readers, sizes = subject.measured.structure.program.readers, gradient_sizes(subject, merges)
    behind = [readers.get(value.index, []) for merge in merges for value in merge.values]
    if not all(r and all(one.op in NORMS for one in r) for r in behind):
        return sizes
    streams = [
        [v.content.detach().double().square().mean() ** 0.5 for v in m.values] for m in merges
    ]
    return [size * pooled(list(map(float, s))) for size, s in zip(sizes, streams, strict=True)]


def _plain(subject: Subject) -> Iterator[Finding]:
    """Check a network without streams and norms, whose layers are identified by their weights.

    Layers whose gradients are only rounding error do not count. If a layer is used repeatedly, its
    largest gradient counts. If there are several last layers,
    the largest of their gradients counts, because the loss may not depend on the others: a softmax
    does not depend on a number added to all logits.
    """
    structure = subject.measured.structure
    data = [v for v in structure.program.values if v.flavour == "data"]
    if any(v.op in NORMS or v.op in ROOT_FUNCTIONS for v in data):
        return
    sizes: dict[tuple[str, ...], float] = {}
    rounded = set(subject.measured.rounded)
    for contraction in structure.contractions:
        gradient = subject.measured.streams.get(contraction.value.index)
        names = contraction.parameters
        if gradient is not None and not (names and rounded.issuperset(names)):
            size = float(gradient.double().square().mean().sqrt())
            sizes[names] = max(size, sizes.get(names, 0.0))
    first = next(iter(sizes), ())
    ends = [c.parameters for c in structure.contractions if not _read_on(c, structure)]
    last = max((e for e in ends if e in sizes), key=lambda e: sizes[e], default=())
    begin, end = sizes.get(first, 0.0), sizes.get(last, 0.0)
    if subject.measured.nonfinite or not begin > 0 or not end > 0:
        return
    if VANISHED <= begin / end <= EXPLODED:
        return
    yield Finding(
        "GRAD-BLOCKS",
        "warning",
        tuple(name for names in sizes for name in names),
        f"the gradient at the output of {named(first)}, the first layer, is "
        f"{begin / end:.3g} times the gradient at the output of {named(last)}, the last layer",
        "initialise the layers so that they preserve the mean square of their inputs; for "
        "ReLUs, use He initialisation, with variance 2 / fan_in",
        subject.place(first),
    )


def _read_on(contraction: Contraction, structure: Structure) -> bool:
    """Return whether another contraction reads the result of this one."""
    value = contraction.value
    return any(c.value is not value and c.value.depends_on(value) for c in structure.contractions)


@criterion("NONFINITE", "error", "inf or NaN in the result, the loss or a gradient")
def nonfinite(subject: Subject) -> Iterator[Finding]:
    """Yield parts of the run that contain inf or NaN."""
    found = subject.measured.nonfinite
    if found:
        names = tuple(t.removeprefix("the gradient of ") for t in found if t.startswith("the grad"))
        yield Finding(
            "NONFINITE",
            "error",
            names,
            f"inf or NaN in {named(found)}",
            "check the scale of the values that it reads, and the epsilon of norms",
            subject.place(names),
        )
