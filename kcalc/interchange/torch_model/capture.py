"""Capture a PyTorch model as a graph of ATen operations with torch.export, or record a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ...foundation.errors import KcalcError
from ..named_inputs import Call
from .captured import Captured, first_names, identity, nodes_in
from .copies import copied
from .examples import first_line, place, undisturbed
from .own_gradients import OwnCall, listed, settled
from .recording import record

PATH_ONLY = (
    "the model's Python code could not be exported ({reason}), so kcalc ran it on the example "
    "inputs and read only the operations that ran. Anything that depends on the values of an "
    "input, such as an `if` or numbers taken from tensors, may differ for other inputs"
)


def capture(
    model: Any, arguments: Call, evaluating: bool = False, experts: bool = False
) -> Captured:
    """Return the graph of a Module, GraphModule or ScriptModule.

    ``evaluating``: whether to capture the model in evaluation mode even if it is in training mode.
    ``experts``: whether to capture all experts of a mixture, as they run on the examples, and not
    one expert for all. Raises: KcalcError with the place and the reason if the model cannot be
    traced.
    """
    fresh = partial(copied if experts else _readable, model, evaluating)
    calls: list[OwnCall] = []
    with undisturbed():
        found = _captured(fresh, arguments, calls)
    found = replace(found, overriding=_overriding(model))
    if not calls:
        return found
    modules = [found.module, *(m for m in found.module.modules() if hasattr(m, "graph"))]
    return replace(found, own=settled(list(dict.fromkeys(modules)), calls))


def _captured(fresh: Callable[[], Any], arguments: Call, calls: list[OwnCall]) -> Captured:
    """Return the graph, with marks at autograd functions; append their calls to ``calls``.

    ``fresh`` returns a private copy of the model.
    """
    import torch
    from torch._dynamo.exc import TorchDynamoException

    from .call_log import CallLog, call_graph

    own = fresh()
    if isinstance(own, torch.jit.ScriptModule):
        return _record(own, arguments, "it is a ScriptModule", calls)
    # Reading needs no gradients, but under no_grad an exporter would wrap the graph.
    try:
        with torch.enable_grad(), listed(calls), CallLog(own).running() as log:
            program = torch.export.export(own, arguments[0], arguments[1] or None, strict=False)
    except KcalcError:
        raise
    except TorchDynamoException:  # control flow, for which calls cannot be recorded
        calls.clear()
        return _unwatched(fresh, arguments, calls)
    except Exception as error:
        own = fresh()
        return _record(own, arguments, _reason(error) + place(error), calls)
    return replace(exported(program), calls=call_graph(log, program.graph))


def _overriding(model: Any) -> str:
    """Return the class of a model if the user's code overrides ``__call__``, else ""."""
    from .call_log import is_user_code

    kind = type(model)
    code = getattr(kind.__call__, "__code__", None)
    return kind.__name__ if code is not None and is_user_code(code.co_filename) else ""


def _readable(model: Any, evaluating: bool) -> Any:
    """Return a private copy of a model, changed so that mixtures of experts can be captured."""
    from .mixture_modules import with_readable_experts

    own = copied(model, evaluating)
    with_readable_experts(own)
    return own


def _unwatched(fresh: Callable[[], Any], arguments: Call, calls: list[OwnCall]) -> Captured:
    """Return the graph without recording calls; the model can then be read but not edited."""
    import torch

    own = fresh()
    try:
        with torch.enable_grad(), listed(calls):
            program = torch.export.export(own, arguments[0], arguments[1] or None, strict=False)
    except KcalcError:
        raise
    except Exception as error:
        own = fresh()
        return _record(own, arguments, _reason(error) + place(error), calls)
    return exported(program)


def _reason(error: Exception) -> str:
    """Return a short reason why an export failed."""
    if "DataDependent" in type(error).__name__ or "data-dependent" in str(error)[:200]:
        return "a branch or a number depends on the values of an input"
    return first_line(error)[:160].rstrip(". ")


def _left_out(model: Any, arguments: Call) -> str:
    """Return advice that names the optional inputs that were not passed, or ""."""
    try:
        behind = [*inspect.signature(model.forward).parameters][len(arguments[0]) :]
        named = [name for name in behind if name not in arguments[1]]
    except (TypeError, ValueError):  # TorchScript, or a function not written in Python
        named = []
    return f", or pass its optional inputs too ({', '.join(named)})" if named else ""


def _record(model: Any, arguments: Call, reason: str, calls: list[OwnCall]) -> Captured:
    import torch

    try:
        with torch.enable_grad(), listed(calls):
            return record(model, arguments, PATH_ONLY.format(reason=reason))
    except KcalcError:
        raise
    except Exception as error:
        advice = (
            "a shape describes a float array; if the input contains indices, such as token ids, "
            "pass an array of integers"
            if "indices" in first_line(error)
            else "check that it runs on the example inputs" + _left_out(model, arguments)
        )
        raise KcalcError(
            f"the model could not be traced{place(error)}: {first_line(error)}; {advice}"
        ) from None  # hide the traceback, which would show hundreds of PyTorch's frames


def exported(program: Any) -> Captured:
    """Return the graph of an ExportedProgram."""
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
