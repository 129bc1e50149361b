"""RESULT-SIZE: the input of the last layer is far larger than the model's input.

A result may have any size, because a factor or a weight of the last layer sets its unit. The input
of the last layer has no such freedom: initialisers that preserve sizes (LeCun's, He's, Xavier's,
PyTorch's) keep it near the size of the model's inputs.
"""

from __future__ import annotations

from collections.abc import Iterator

from .contractions import Contraction
from .findings import Finding, criterion, named
from .operations import NORMS, TABLES
from .program import Value
from .roots import contraction_weight
from .subject import Subject
from .training import TARGETS

GROWN = 1e3
LARGEST = 65504.0  # the largest float16


@criterion(
    "RESULT-SIZE",
    "warning or error",
    "the rms at the input of the last contraction before a result, divided by the rms of the "
    "model's inputs (or by 1, if that is larger), is above 1000 (warning) or above 65504, the "
    "largest 16-bit number (error). LOSS-START covers logits",
)
def large(subject: Subject) -> Iterator[Finding]:
    """Report results that grow far beyond the size of the inputs."""
    program, aim = subject.measured.structure.program, subject.measured.objective
    judged = aim.logits is not None and aim.logits.numel() >= TARGETS
    outputs = [v for v in program.outputs if not (judged and v.tensor is aim.logits)]
    if judged and aim.kind == "own":
        outputs = [v for v in outputs if v.tensor.numel() > 1]
    unit = _unit(subject)
    by_value = {c.value.index: c for c in subject.measured.structure.contractions}
    sizes = {c: _rms(c.data) / unit for c in _last(outputs, by_value)}
    worst = max(sizes, key=lambda c: sizes[c], default=None)
    if worst is None or not GROWN < sizes[worst] < float("inf"):
        return
    blown = _grown(subject, worst, unit)
    result = max((_rms(v) for v in outputs if worst.value.index in _behind(v)), default=0.0)
    yield Finding(
        "RESULT-SIZE",
        "error" if sizes[worst] > LARGEST else "warning",
        blown,
        f"{named(worst.parameters)}, the last layer, reads values with rms {_rms(worst.data):.3g}, "
        f"but the inputs have rms {unit:.3g}; the result has rms {result:.3g}",
        f"initialise {named(blown)} so that the layers preserve the mean square of their "
        "inputs; for ReLUs, use He initialisation, with variance 2 / fan_in",
        subject.place(blown),
    )


def _rms(value: Value) -> float:
    return float(value.content.detach().abs().double().square().mean().sqrt())


def _behind(value: Value) -> set[int]:
    found, mask = {value.index}, value.ancestors
    while mask:
        low = mask & -mask
        found.add(low.bit_length() - 1)
        mask ^= low
    return found


def _unit(subject: Subject) -> float:
    """Return the largest rms of a numeric input, but at least 1.

    Integers that are converted to floating point count as numeric inputs.
    """
    program = subject.measured.structure.program
    sizes = [1.0]
    for value in program.values:
        if value.tensor.numel() == 0 or not value.tensor.is_floating_point():
            continue
        cast = value.ids and value.op not in TABLES and bool(value.inputs) and not any(
            v.tensor.is_floating_point() for v in value.inputs
        )  # fmt: skip
        if value.op == "input" or cast:
            size = _rms(value)
            sizes.append(size if size < float("inf") else 1.0)
    return max(sizes)


def _last(outputs: list[Value], by_value: dict[int, Contraction]) -> list[Contraction]:
    """Return the last contractions with weights before the results, unless a norm follows."""
    stack, seen, found = [v for v in outputs if v.flavour == "data"], set(), []
    while stack:
        value = stack.pop()
        if value.index in seen or value.op in NORMS:
            continue
        seen.add(value.index)
        if value.index in by_value and contraction_weight(value) is not None:
            found.append(by_value[value.index])
            continue
        stack += value.data
    return found


def _grown(subject: Subject, last: Contraction, unit: float) -> tuple[str, ...]:
    """Return the weights before the last layer whose results are larger than their inputs.

    If there are none, return the weights of the last layer.
    """
    grown = dict.fromkeys(
        name
        for contraction in subject.measured.structure.contractions
        if last.data.depends_on(contraction.value)
        and _rms(contraction.value) > 2 * max(_rms(contraction.data), unit)
        for name in contraction.parameters
    )
    return tuple(grown) or last.parameters
