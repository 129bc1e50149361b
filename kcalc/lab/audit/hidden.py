"""PARAM-HIDDEN: weights that take part in a run but are missing from ``parameters()``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...foundation.families import family
from .findings import Finding, criterion, named
from .held import held
from .operations import CONTRACTIONS, VIEWS
from .program import Program, Value
from .reaching import leaves_behind, leaves_of_gradients
from .subject import Subject

TEXTS = {
    "held": (
        "the result depends on {}, which parameters() does not list: no optimizer trains it, and "
        "no checkpoint saves it",
        "register tensors with nn.Parameter, and layers in a list or a dictionary with "
        "nn.ModuleList or nn.ModuleDict; if this is intended, set requires_grad=False",
    ),
    "made": (
        "forward() creates {} anew on every call, and parameters() does not list it, so no "
        "optimizer trains it",
        "create it in __init__, as an attribute of the module",
    ),
    "late": (
        "the first call creates {}, so an optimizer created earlier does not contain it",
        "create it in __init__, or run the model once before creating the optimizer and before the "
        "audit",
    ),
}
"""Messages and fixes for weights in plain attributes, or made during a run."""


@criterion(
    "PARAM-HIDDEN",
    "error or warning",
    "a tensor that requires a gradient receives one from the result but is missing from "
    "parameters(), although it is neither an input nor computed from an input. It is a warning if "
    "the first run creates the tensor's module",
)
def hidden(subject: Subject) -> Iterator[Finding]:
    """Report weights that no optimizer can find."""
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for name, kind, place in _unlisted(subject):
        key = _container(name) if kind == "held" else place
        groups.setdefault((kind, key), {})[name] = place
    for (kind, _), places in groups.items():
        names, place = [*places], next(filter(None, places.values()), "")
        text, fix = TEXTS[kind]
        severity = "warning" if kind == "late" else "error"
        message = text.format(named(names))
        yield Finding("PARAM-HIDDEN", severity, tuple(names), message, fix, place)


def _container(name: str) -> str:
    """Return the list or dictionary, or else the modules, that contain a tensor."""
    start, bracket, _ = name.partition("[")
    return start if bracket else family(name).rpartition(".")[0]


def _unlisted(subject: Subject) -> Iterator[tuple[str, str, str]]:
    """Yield (name, kind, place) for each weight that is missing from ``parameters()``."""
    program = subject.measured.structure.program
    listed = {id(p) for p in subject.parameters.values()}
    after = {id(p): name for name, p in subject.model.named_parameters()}
    others = {**dict(subject.model.named_buffers()), **held(subject.model)}
    paths = {id(tensor): path for path, tensor in others.items()}
    leaves = [
        (program.find(t), t) for i, t in leaves_of_gradients(program).items() if i not in listed
    ]
    yield from _made_before(subject)
    for value, tensor in sorted(
        ((v, t) for v, t in leaves if v is not None), key=lambda pair: pair[0].index
    ):
        kind = _kind(value, tensor, program, id(tensor) in after)
        if kind:
            readers = program.readers.get(value.index, [])
            line = next((r.place for r in readers if r.place), "")
            path = after.get(id(tensor)) or paths.get(id(tensor), "")
            name = path or f"a tensor of shape {tuple(tensor.shape)}"
            made = value.place if kind != "held" else subject.places.get(path, "")
            yield name, kind, made or line


def _made_before(subject: Subject) -> Iterator[tuple[str, str, str]]:
    """Yield tensors that the builder computed from unlisted weights, as in ``Parameter(w) * 0.1``.

    The copy that runs contains these tensors without their history.
    """
    program, original = subject.measured.structure.program, subject.original
    listed = {id(p) for p in original.parameters()}
    copies = {**dict(subject.model.named_buffers()), **held(subject.model)}
    for path, tensor in {**dict(original.named_buffers()), **held(original)}.items():
        history = () if tensor.grad_fn is None else leaves_behind([tensor])
        value = program.find(copies[path]) if history and path in copies else None
        if value is None or listed.issuperset(history):
            continue
        if any(end.depends_on(value) for end in program.outputs):
            readers = program.readers.get(value.index, [])
            line = next((r.place for r in readers if r.place), "")
            yield path, "held", subject.places.get(path, "") or line


def _kind(value: Value, tensor: Any, program: Program, late: bool) -> str:
    """Return how a weight escapes ``parameters()``: "held", "made" or "late", or "".

    "held": a plain attribute contains the weight; "made": every call creates it anew; "late": the
    first call creates it. The result is "" for values that are not weights: noise, and values
    computed from inputs or parameters.
    """
    import torch

    if value.op in ("constant", "buffer"):
        return "held"
    if value.op == "input" or value.flavour in ("data", "weight") or value.ids:
        return ""
    if late:
        return "late"
    if isinstance(tensor, torch.nn.Parameter):
        return "made"
    return "made" if _weighs(value, program) else ""


def _weighs(value: Value, program: Program) -> bool:
    """Return whether a contraction multiplies a value, or a view of it, by data."""
    stack = [value]
    while stack:
        for reader in program.readers.get(stack.pop().index, ()):
            if reader.op in CONTRACTIONS and reader.data:
                return True
            if reader.op in VIEWS and not reader.data:
                stack.append(reader)
    return False
