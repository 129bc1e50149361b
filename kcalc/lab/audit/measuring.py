"""Measurements: one forward and backward pass, then a few steps of gradient descent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...foundation.errors import KcalcError
from .cutting import Cut, cuts
from .descent import dead, dense, gradients_of
from .examples import ADVICE, arguments, embedding_rows
from .held import held
from .objective import Objective, objective
from .program import run_recorded
from .reaching import foreign, shifts_batch, unreached
from .structure import Structure, structure_of


@dataclass
class Measured:
    """Measurements from a run of the model and its gradients.

    ``gradients`` is {parameter: gradient}, with None if the loss does not depend on the parameter.
    ``streams`` is {index of a merge: gradient of its value}; if there are no merges, the keys are
    indices of contractions. ``dead`` lists parameters whose gradient was exactly zero at every
    step, and ``rounded`` lists parameters whose gradient was only rounding error. ``cuts``
    describes the operations that keep a parameter of the run from getting a gradient from any
    result. ``unreached`` lists parameters that received no examples because the model chooses among
    layers. ``nonfinite`` describes where inf or NaN came from. ``call`` contains the arguments of
    the call, and ``listed`` is {name: parameter} before the run.
    """

    structure: Structure
    objective: Objective
    gradients: dict[str, Any]
    streams: dict[int, Any]
    dead: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()
    cuts: tuple[Cut, ...] = ()
    unreached: tuple[str, ...] = ()
    nonfinite: tuple[str, ...] = ()
    call: tuple[tuple[Any, ...], dict[str, Any]] = field(default=((), {}))
    listed: dict[str, Any] = field(default_factory=dict)


def measure(
    model: Any, example_inputs: Any, fresh: Callable[[], Any], original: Any = None
) -> Measured:
    """Run a copy of a model on its examples, and compute gradients.

    ``fresh`` returns another copy of the model that has not run yet. ``original`` is the model
    itself.

    Raises: KcalcError if the model does not run on the examples, or if the copy runs layers of the
    original.
    """
    import torch

    call = arguments(model, example_inputs)
    kept = [] if original is None else [(b, b.detach().clone()) for b in original.buffers()]
    parameters = dict(model.named_parameters())
    with evaluating(model), torch.enable_grad():
        program = _run(model, call, example_inputs is None)
        _check_apart(program, original, kept)
        structure = structure_of(program, parameters)
        aim = objective(program.result, _classes(structure), 0)
        names = [name for name, p in parameters.items() if p.requires_grad]
        marked = [v for merge in structure.merges for v in merge.values]
        marked = marked or [c.value for c in structure.contractions]
        marked = [value for value in marked if value.tensor.requires_grad]
        wanted = [parameters[name] for name in names] + [
            v.tensor if v.edge is None else v.edge for v in marked
        ]
        found = gradients_of(aim.loss, wanted)
        gradients = dict(zip(names, map(dense, found[: len(names)]), strict=True))
        trainable = {name: parameters[name] for name in names}
        cut = tuple(cuts(structure, trainable, gradients, lambda: _trained(fresh, call)))
        streams = {v.index: g for v, g in zip(marked, found[len(names) :], strict=True)}
        measured = Measured(structure, aim, gradients, streams, cuts=cut, call=call)
        measured.listed = parameters
        measured.nonfinite = _nonfinite(measured)
    if not measured.nonfinite and not _at_teacher(model, measured):
        _descended(measured, fresh)
    return measured


def _at_teacher(model: Any, measured: Measured) -> bool:
    """Return whether every gradient is zero because a student still equals its frozen teacher."""
    if any(g is not None and bool(g.any()) for g in measured.gradients.values()):
        return False
    moved = [p for p in measured.listed.values() if p.requires_grad and p.ndim > 1]
    still = [p for p in measured.listed.values() if not p.requires_grad]
    still += held(model).values()
    copied = any(p.shape == q.shape and bool((p == q).all()) for p in moved for q in still)
    return copied or any(cut.kind == "taught" for cut in measured.cuts)


def _descended(measured: Measured, fresh: Callable[[], Any]) -> None:
    """Record which parameters get no gradient in any step of a short descent."""
    import torch

    def prepared() -> Any:
        model = fresh()
        _evaluating(model)
        return model

    classes = _classes(measured.structure)
    with torch.enable_grad():
        zero, measured.rounded = dead(prepared, measured.call, measured.gradients, classes)
    program = measured.structure.program
    measured.unreached = tuple(name for name in zero if unreached(program, name))
    still = (name for name in zero if name not in measured.unreached)
    measured.dead = tuple(name for name in still if not shifts_batch(program, name))


def _trained(fresh: Callable[[], Any], call: Any) -> Any:
    """Return the program of a run in training mode, or None if the run fails.

    The run fails, for example, if the model needs targets in training mode.
    """
    model = fresh().train()
    args, kwargs = call
    try:
        return run_recorded(model, lambda: model(*args, **kwargs), call)
    except Exception:
        return None


def _run(model: Any, call: tuple[tuple[Any, ...], dict[str, Any]], configured: bool) -> Any:
    """Run the model. ``configured`` says whether the inputs come from the model's configuration."""
    import torch

    from ...interchange import as_one
    from ...interchange.torch_model import first_line, place

    args, kwargs = call
    try:
        return run_recorded(model, lambda: model(*args, **kwargs), call)
    except KcalcError:
        raise
    except Exception as error:
        text = first_line(error).rstrip(". ")
        advice = _advice(
            text, model, [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
        )
        if "label" in str(error).lower() or "target" in str(error).lower():
            advice = (
                "if the model needs labels, pass a dictionary such as {'x': ..., 'labels': ...}"
            )
        if not kwargs and (told := as_one(model.forward, args)):
            advice = told
        if configured:
            advice = f"the configuration specified only {', '.join(call[1])}, so {ADVICE}"
        raise KcalcError(
            f"the model could not be run on the example inputs{place(error)}: {text}; {advice}"
        ) from error


def _advice(text: str, model: Any, inputs: list[Any]) -> str:
    """Return a remedy for an error with the given text."""
    if "tuple index out of range" in text or "too many indices" in text:
        shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
        return f"check the number of axes of the inputs, which have the shapes {shapes}"
    ids = [x for x in inputs if not x.is_floating_point() and x.numel()]
    if "out of range" in text and ids:
        rows = ", ".join(map(str, sorted(set(embedding_rows(model))))) or "unknown"
        most = max(int(x.max()) for x in ids)
        return (
            f"the largest id is {most}, and the numbers of rows of the model's embeddings are: "
            f"{rows}; pass smaller ids or fewer tokens"
        )
    if "out of range" in text or "indices" in text:
        return "pass the token ids as a tensor of integers"
    return "check that it runs on them"


def _check_apart(program: Any, original: Any, kept: list[tuple[Any, Any]]) -> None:
    """Check that a copy has not read parameters of the original.

    ``kept`` contains pairs (buffer of the model, its values before the run); the values are
    restored.

    Raises: KcalcError if the copy has read such parameters.
    """
    import torch

    found = {} if original is None else foreign(program, original)
    if not found:
        return
    with torch.no_grad():
        for buffer, value in kept:
            buffer.copy_(value)
    (first, where), *others = found.items()
    more = f" and {len(others)} more" if others else ""
    raise KcalcError(
        "the model cannot be audited, because a copy of it still depends on the original: "
        f"{where or 'the model'} reads the original's {first}{more} through a global name or a "
        "class attribute. Access layers through self"
    )


def _classes(structure: Structure) -> bool:
    """Return whether the model's first output comes from a contraction with weights (logits)."""
    outputs = structure.program.outputs
    ends = {c.value.index for c in structure.contractions if c.value.op != "convolution"}
    return bool(outputs) and any(r in ends for r in structure.stream_roots(outputs[0]))


def _evaluating(model: Any) -> list[Any]:
    """Set batch norms to training mode and all other modules to evaluation mode.

    Returns: the batch norms.
    """
    import torch

    norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    model.eval()
    for norm in norms:
        norm.train()
    return norms


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Set all modules except batch norms to evaluation mode, and preserve running statistics."""
    import torch

    modes = {module: module.training for module in model.modules()}
    norms = _evaluating(model)
    kept = [(b, b.detach().clone()) for norm in norms for b in norm.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)
        for module, mode in modes.items():
            module.training = mode


def _nonfinite(measured: Measured) -> tuple[str, ...]:
    """Describe where inf or NaN first appeared in the forward pass, or else in which gradients."""
    import torch

    program = measured.structure.program
    loss = measured.objective.loss
    if bool(torch.isfinite(loss)) and all(
        bool(v.tensor.isfinite().all()) for v in program.outputs if v.tensor.is_floating_point()
    ):
        return tuple(
            f"the gradient of {name}"
            for name, gradient in measured.gradients.items()
            if gradient is not None and not bool(gradient.isfinite().all())
        )
    for value in program.values:
        if value.flavour != "data" or value.op in ("where", "masked_fill", "add"):
            continue
        if not bool(value.content.isfinite().all()):
            if value.op == "input":
                return ("the example inputs",)
            return (f"the result of {value.op} in {value.module or 'the model'}",)
    return ("the result of the model",)
