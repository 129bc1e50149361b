"""The measured columns: one forward and backward pass, then a few steps of gradient descent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..foundation.errors import KcalcError
from .examples import arguments, redrawn
from .objective import Objective, objective
from .program import run_recorded
from .structure import Structure, structure_of

STEPS = 4
STEP = 0.01  # size of an update over the size of the parameters


@dataclass
class Measured:
    """What a run of the model and its gradient say.

    ``gradients``: {parameter: gradient}, None where the loss does not depend on it;
    ``streams``: {index of a merge: gradient of its value}; ``dead``: parameters whose gradient was
    exactly zero at every step; ``nonfinite``: texts that name where inf or NaN arose;
    ``call``: the arguments of the call.
    """

    structure: Structure
    objective: Objective
    gradients: dict[str, Any]
    streams: dict[int, Any]
    dead: tuple[str, ...] = ()
    nonfinite: tuple[str, ...] = ()
    call: tuple[tuple[Any, ...], dict[str, Any]] = field(default=((), {}))


def measure(model: Any, example_inputs: Any) -> Measured:
    """Run a model (a copy) on its examples, and differentiate.

    Raises: KcalcError where the model does not run on them.
    """
    import torch

    call = arguments(model, example_inputs)
    parameters = dict(model.named_parameters())
    with _in_training_of_norms(model), torch.enable_grad():
        program = _run(model, call)
        structure = structure_of(program, parameters)
        aim = objective(program.result, _classes(structure), 0)
        names = [name for name, p in parameters.items() if p.requires_grad]
        merged = [m.value for m in structure.merges if m.value.tensor.requires_grad]
        wanted = [parameters[name] for name in names] + [v.tensor for v in merged]
        found = torch.autograd.grad(aim.loss, wanted, allow_unused=True)
        gradients = dict(zip(names, map(_dense, found[: len(names)]), strict=True))
        streams = {v.index: g for v, g in zip(merged, found[len(names) :], strict=True)}
        measured = Measured(structure, aim, gradients, streams, call=call)
        measured.nonfinite = _nonfinite(measured)
        if not measured.nonfinite:
            measured.dead = _dead(model, call, gradients, _classes(structure))
    return measured


def _run(model: Any, call: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    from ..interchange.torch_model.examples import first_line, place

    args, kwargs = call
    try:
        return run_recorded(model, lambda: model(*args, **kwargs), call)
    except KcalcError:
        raise
    except Exception as error:
        advice = "check that it runs on them as they are"
        text = first_line(error)
        if "out of range" in text or "indices" in text:
            advice = "give the token ids as a tensor of whole numbers"
        if "label" in str(error).lower() or "target" in str(error).lower():
            advice = (
                "a model that needs labels gets them in a dictionary: {'x': ..., 'labels': ...}"
            )
        raise KcalcError(
            f"the model did not run on the example inputs{place(error)}: {text}; {advice}"
        ) from error


def _dense(gradient: Any) -> Any:
    """A gradient as a dense tensor: tables may have sparse ones."""
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def _classes(structure: Structure) -> bool:
    """Whether the model's first output is a contraction with weights, as logits are."""
    outputs = structure.program.outputs
    ends = {c.value.index for c in structure.contractions if c.value.op != "convolution"}
    return bool(outputs) and any(r in ends for r in structure.stream_roots(outputs[0]))


@contextmanager
def _in_training_of_norms(model: Any) -> Iterator[None]:
    """Evaluation for all modules but batch norms, whose running statistics are kept."""
    import torch

    modes = {module: module.training for module in model.modules()}
    norms = [m for m in modes if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    kept = [(b, b.detach().clone()) for norm in norms for b in norm.buffers()]
    model.eval()
    for norm in norms:
        norm.train()
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)
        for module, mode in modes.items():
            module.training = mode


def _dead(model: Any, call: Any, gradients: dict[str, Any], classes: bool) -> tuple[str, ...]:
    """Parameters whose gradient is exactly zero now and in the following steps."""
    import torch

    parameters = dict(model.named_parameters())
    dead = {n for n, g in gradients.items() if g is not None and not bool(g.any())}
    if not dead:
        return ()
    kept = {name: p.detach().clone() for name, p in parameters.items()}
    try:
        for step in range(1, STEPS):
            _descend(parameters, gradients)
            args, kwargs = redrawn(call, step)
            aim = objective(model(*args, **kwargs), classes, step)
            names = [name for name, g in gradients.items() if g is not None]
            found = torch.autograd.grad(aim.loss, [parameters[n] for n in names], allow_unused=True)
            gradients = dict(zip(names, map(_dense, found), strict=True))
            dead = {n for n in dead if gradients[n] is None or not bool(gradients[n].any())}
            if not dead:
                break
    finally:
        with torch.no_grad():
            for name, value in kept.items():
                parameters[name].copy_(value)
    return tuple(name for name in parameters if name in dead)


def _descend(parameters: dict[str, Any], gradients: dict[str, Any]) -> None:
    """One step of gradient descent, of a size relative to that of the parameters."""
    import torch

    moved = {n: g for n, g in gradients.items() if g is not None}
    with torch.no_grad():
        size = math.sqrt(sum(float(parameters[n].float().square().sum()) for n in moved))
        slope = math.sqrt(sum(float(g.float().square().sum()) for g in moved.values()))
        rate = STEP * size / slope if slope > 0 else 0.0
        for name, gradient in moved.items():
            parameters[name].sub_(gradient.to(parameters[name]), alpha=rate)


def _nonfinite(measured: Measured) -> tuple[str, ...]:
    """Where inf or NaN first arose, forward; else in which gradients."""
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
        if not bool(value.tensor.isfinite().all()):
            return (f"the result of {value.op} in {value.module or 'the model'}",)
    return ("the result of the model",)
