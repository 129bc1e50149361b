"""Record a run of a model as a graph of ATen operations if torch.export rejects the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from ...foundation.errors import KcalcError
from ..named_inputs import Call, signature_of
from .captured import Captured, first_names, identity, nodes_in
from .examples import called

MOST = 30_000  # maximum number of calls of PyTorch functions in a run
ENDLESS = (
    "the model calls more than {} PyTorch functions on the example inputs, perhaps in a `while` "
    "loop that depends on the data. Use a loop with a fixed number of iterations, which kcalc "
    "unrolls, or read the parts of the model before and after the loop"
)


def record(model: Any, arguments: Call, remark: str) -> Captured:
    """Run ``model``, a copy, on the arguments, and record its operations with their modules.

    ``remark``: the reason why the model was not exported.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils import _pytree as pytree

    from .call_log import CallLog, call_graph

    leaves, layout = pytree.tree_flatten(arguments)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if not places:
        raise KcalcError("none of the example inputs is a tensor")

    def run(*tensors: Any) -> Any:
        filled = list(leaves)
        for i, tensor in zip(places, tensors, strict=True):
            filled[i] = tensor
        with _limited():
            found = called(model, pytree.tree_unflatten(filled, layout))
        _check_outputs(pytree.tree_leaves(found))
        return found

    events, handles = _watched(model)
    options: dict[str, Any] = {
        "tracing_mode": "real",
        "pre_dispatch": True,
        "_error_on_data_dependent_ops": False,
        "record_stack_traces": True,
    }
    scripted = isinstance(model, torch.jit.ScriptModule)
    log = CallLog(model)
    try:
        with nullcontext() if scripted else log.running():
            module = make_fx(run, **options)(*(leaves[i] for i in places))
    finally:
        for handle in handles:
            handle.remove()
    graph = module.graph
    _placed(graph, events)
    parameters = dict(model.named_parameters())
    names = first_names({**parameters, **dict(model.named_buffers())})
    held = {}
    for node in graph.nodes:
        if node.op == "get_attr" and isinstance(
            tensor := getattr(module, str(node.target), None), torch.Tensor
        ):
            held[node] = (tensor, names.get(identity(tensor), ""))
    entries = tuple(node for node in graph.nodes if node.op == "placeholder")
    labels = dict(zip(entries, _entry_names(model, arguments, len(entries)), strict=False))
    outputs = nodes_in(next(node for node in graph.nodes if node.op == "output").args[0])
    captured = Captured(
        module, graph, held, entries, outputs, frozenset(parameters), (remark,), {}, labels
    )
    return replace(captured, calls=call_graph(log, graph))


def _limited() -> Any:
    """Return a context that raises a KcalcError after too many calls to PyTorch functions."""
    from torch.overrides import TorchFunctionMode

    class Limited(TorchFunctionMode):
        calls = 0

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.calls += 1
            if self.calls > MOST:
                raise KcalcError(ENDLESS.format(MOST))
            return func(*args, **(kwargs or {}))

    return Limited()


def _check_outputs(leaves: Sequence[Any]) -> None:
    """Raise KcalcError if the outputs contain objects in which tensors cannot be tracked."""
    import torch

    known = (
        torch.Tensor,
        bool,
        int,
        float,
        complex,
        str,
        type(None),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    )
    foreign = next((leaf for leaf in leaves if not isinstance(leaf, known)), None)
    if foreign is not None:
        raise KcalcError(
            f"the model returns an object of class {type(foreign).__name__}, but kcalc reads "
            "only tensors, or tuples, lists and dictionaries of tensors. Wrap the model in "
            "a torch.nn.Module that returns only tensors, or change its settings (for "
            "transformers models, config.use_cache = False and config.return_dict = False)"
        )


def _watched(model: Any) -> tuple[list[tuple[str | None, str, str]], list[Any]]:
    """Install hooks that record when a run enters and leaves each module.

    An event is (last node so far, path, class) on entry to a module, and (last node so far,
    "", "") on exit. Returns: (events, handles of the hooks).
    """
    import torch
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    events: list[tuple[str | None, str, str]] = []

    def last() -> str | None:
        mode: Any = get_proxy_mode()
        return (
            None
            if mode is None
            else next((node.name for node in reversed(mode.tracer.graph.nodes)), None)
        )

    def begin(path: str, kind: str) -> Callable[..., None]:
        return lambda *_: events.append((last(), path, kind))

    handles = []
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) or not path:
            continue
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        handles.append(module.register_forward_pre_hook(begin(path, kind), prepend=True))
        handles.append(
            module.register_forward_hook(
                lambda *_: events.append((last(), "", "")), always_call=True
            )
        )
    return events, handles


def _placed(graph: Any, events: list[tuple[str | None, str, str]]) -> None:
    """Store in every node the stack of modules in which it was created."""
    after: dict[str | None, list[tuple[str, str]]] = {}
    for node, path, kind in events:
        after.setdefault(node, []).append((path, kind))
    stack: list[tuple[str, str]] = []

    def turn(changes: list[tuple[str, str]]) -> None:
        for path, kind in changes:
            if path:
                stack.append((path, kind))
            else:
                stack.pop()

    turn(after.get(None, []))
    for node in graph.nodes:
        node.meta["nn_module_stack"] = {str(i): entry for i, entry in enumerate(stack)}
        turn(after.get(node.name, []))


def _entry_names(model: Any, arguments: Call, entries: int) -> list[str]:
    """Return the argument names of ``forward`` if each argument is a single tensor."""
    positional, named = arguments
    signature = signature_of(model.forward)
    names = [] if signature is None else [name for name in signature.parameters if name != "self"]
    if (
        len(positional) + len(named) == entries
        and len(names) >= len(positional)
        and not any(name in ("args", "kwargs") for name in names[: len(positional)])
    ):
        return [*names[: len(positional)], *named]
    return ["input"] if entries == 1 else [f"input_{i + 1}" for i in range(entries)]
