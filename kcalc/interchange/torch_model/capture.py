"""A PyTorch model as a graph of ATen operations: by torch.export, or else by recording one run."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from ...foundation.errors import KcalcError
from ..named_inputs import Call
from .captured import Captured, first_names, identity, nodes_in
from .copies import copied
from .examples import first_line, place, undisturbed
from .own_gradients import OwnCall, listed, settled
from .recording import record

PATH_ONLY = (
    "the model's Python code could not be exported ({reason}), so that it was run on the example "
    "inputs and only the path taken was read: "
    "anything that depends on the values of an input, in `if` or in numbers taken out of tensors, "
    "may differ for other inputs"
)


def capture(model: Any, arguments: Call, evaluating: bool = False) -> Captured:
    """The graph of a Module, GraphModule or ScriptModule.

    ``evaluating``: in evaluation, also where the model is in training mode.
    Raises: KcalcError for models that cannot be traced, with where and why.
    """
    calls: list[OwnCall] = []
    with undisturbed():
        found = _captured(model, arguments, evaluating, calls)
    if not calls:
        return found
    modules = [found.module, *(m for m in found.module.modules() if hasattr(m, "graph"))]
    return replace(found, own=settled(list(dict.fromkeys(modules)), calls))


def _captured(model: Any, arguments: Call, evaluating: bool, calls: list[OwnCall]) -> Captured:
    """The graph with all marks of autograd functions, whose ``calls`` are added."""
    import torch
    from torch._dynamo.exc import TorchDynamoException

    from .call_log import CallLog, call_graph

    own = copied(model, evaluating)
    if isinstance(model, torch.jit.ScriptModule):
        return _record(own, arguments, "it is a ScriptModule", calls)
    # Reading wants no gradients, and under no_grad an exporter would wrap the graph.
    try:
        with torch.enable_grad(), listed(calls), CallLog(own).running() as log:
            program = torch.export.export(own, arguments[0], arguments[1] or None, strict=False)
    except KcalcError:
        raise
    except TorchDynamoException:  # control flow, which nothing may watch
        calls.clear()
        return _unwatched(model, arguments, evaluating, calls)
    except Exception as error:
        own = copied(model, evaluating)
        return _record(own, arguments, _reason(error) + place(error), calls)
    return replace(exported(program), calls=call_graph(log, program.graph))


def _unwatched(model: Any, arguments: Call, evaluating: bool, calls: list[OwnCall]) -> Captured:
    """The graph of a model whose calls are not followed, so that it cannot be edited."""
    import torch

    own = copied(model, evaluating)
    try:
        with torch.enable_grad(), listed(calls):
            program = torch.export.export(own, arguments[0], arguments[1] or None, strict=False)
    except KcalcError:
        raise
    except Exception as error:
        own = copied(model, evaluating)
        return _record(own, arguments, _reason(error) + place(error), calls)
    return exported(program)


def _reason(error: Exception) -> str:
    """Why an export failed, in a few words."""
    if "DataDependent" in type(error).__name__ or "data-dependent" in str(error)[:200]:
        return "a branch or a number depends on the values of an input"
    return first_line(error)[:160].rstrip(". ")


def _left_out(model: Any, arguments: Call) -> str:
    """The optional inputs of a model that were not given, as a further advice."""
    try:
        behind = [*inspect.signature(model.forward).parameters][len(arguments[0]) :]
        named = [name for name in behind if name not in arguments[1]]
    except (TypeError, ValueError):  # of a script, or of none of Python's functions
        named = []
    return f", or give it its optional inputs too: {', '.join(named)}" if named else ""


def _record(model: Any, arguments: Call, reason: str, calls: list[OwnCall]) -> Captured:
    import torch

    try:
        with torch.enable_grad(), listed(calls):
            return record(model, arguments, PATH_ONLY.format(reason=reason))
    except KcalcError:
        raise
    except Exception as error:
        advice = (
            "a shape makes real numbers: if the input holds indices, such as token ids, give an "
            "array of whole numbers"
            if "indices" in first_line(error)
            else "check that it runs on the example inputs as they are"
            + _left_out(model, arguments)
        )
        raise KcalcError(
            f"the model could not be traced{place(error)}: {first_line(error)}; {advice}"
        ) from None  # place and first line say it all; PyTorch's own frames are hundreds


def exported(program: Any) -> Captured:
    """The graph of an ExportedProgram."""
    from torch.export.graph_signature import InputKind, OutputKind

    tensors = {**program.state_dict, **program.constants}
    names = first_names(tensors)
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    held: dict[Any, tuple[Any, str]] = {}
    entries: list[Any] = []
    given: dict[Any, Any] = {}
    trainable: set[str] = set()
    for spec in program.graph_signature.input_specs:
        node = nodes[spec.arg.name]
        if spec.kind == InputKind.USER_INPUT:
            value = getattr(spec.arg, "value", None)
            if "val" in node.meta and hasattr(node.meta["val"], "shape"):
                entries.append(node)
            else:
                given[node] = value
        elif spec.target is not None and spec.target in tensors:
            named = spec.kind in (InputKind.PARAMETER, InputKind.BUFFER)
            name = names.get(identity(tensors[spec.target]), spec.target) if named else ""
            held[node] = (tensors[spec.target], str(name))
            if spec.kind == InputKind.PARAMETER:
                trainable.add(str(name))
    results = next(node for node in program.graph.nodes if node.op == "output").args[0]
    kinds = [spec.kind for spec in program.graph_signature.output_specs]
    outputs = [
        node for node, kind in zip(results, kinds, strict=False) if kind == OutputKind.USER_OUTPUT
    ]
    return Captured(
        program.graph_module,
        program.graph,
        held,
        tuple(entries),
        nodes_in(outputs),
        frozenset(trainable),
        (),
        given,
    )
