"""Edits at chosen calls of a PyTorch model, and the same by the order of calls in one run.

The order knows nothing of places in the code, so that it is an independent truth for the models
that :func:`edited` makes.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kcalc.interchange.edits import Edit, Edits, Exchanged, Scaled, Taken
from kcalc.interchange.torch_model.call_log import CallGraph, CallLog
from kcalc.interchange.torch_model.performing import perform
from kcalc.interchange.torch_model.placing import Placing

ACTIVATIONS = {
    "relu",
    "relu_",
    "gelu",
    "silu",
    "tanh",
    "tanh_",
    "sigmoid",
    "hardswish",
    "hardsigmoid",
}
SUMS = {"add", "__add__", "__radd__", "__iadd__", "iadd", "add_"}
NORMS = {"layer_norm", "batch_norm"}


class Order(TorchFunctionMode):
    """Edits by the number of the call.

    ``names``: of the calls that are counted, all but those that return no array.
    """

    def __init__(self, actions: dict[int, Any], names: list[str]) -> None:
        super().__init__()
        self.actions, self.names, self.count = actions, names, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.names[self.count :][:1] != [func.__name__]:
            return func(*args, **kwargs)
        self.count += 1
        action = self.actions.get(self.count - 1)
        return func(*args, **kwargs) if action is None else performed(action, func, args, kwargs)

    def __exit__(self, *given: Any) -> None:
        super().__exit__(*given)
        assert given[0] is not None or self.count == len(self.names)
        self.count = 0


def performed(action: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A call with an edit."""
    arguments = dict(enumerate(args)) | kwargs
    written = arguments.get(0) if writes(func, kwargs) else None
    if isinstance(action, Scaled):
        if written is not None:
            arguments[0] = written.clone()
        for (place,), a, b in action.inputs:
            arguments[place] = a * arguments[place] + b
        rest = [arguments.pop(i) for i in range(len(args))]
        found = action.scale * (func(*rest, **arguments) + action.shift)
    elif isinstance(action, Taken):
        found = arguments[action.slot[0]]
    else:
        found = action.a * arguments[action.slot[0]] + action.b
        slope = float(action.activation.negative_slope)
        found = action.scale * (torch.where(found > 0, found, slope * found) + action.shift)
    return found if written is None or found is written else written.copy_(found)


def writes(func: Any, kwargs: Any) -> bool:
    """Whether a call writes into its first argument."""
    name = func.__name__
    return (
        kwargs.get("inplace") is True or name in ("__iadd__", "iadd") or name[-1] == "_" != name[-2]
    )


def chosen(graph: CallGraph, alike: bool = False, norms: bool = True, exchange: Any = None) -> Any:
    """{call: what shall happen}, other numbers at every call unless ``alike``."""
    made: dict[int, Any] = {}
    draw = torch.Generator().manual_seed(0)

    def number() -> float:
        return 0.8 if alike else 0.7013 + 0.4 * round(float(torch.rand((), generator=draw)), 3)

    for i, call in enumerate(graph.calls):
        name = getattr(call.function, "__name__", "")
        slots = [slot for slot in call.reads if len(slot) == 1]
        if name in ACTIVATIONS and slots and exchange:
            made[i] = Exchanged(slots[0], exchange, scale=number())
        elif name in ACTIVATIONS and slots:
            made[i] = Scaled(((slots[0], number(), 0.1),), number(), -0.1)
        elif name in SUMS and len(slots) == 2:
            made[i] = Scaled(tuple((slot, number(), 0.0) for slot in slots[:2]))
        elif norms and name in NORMS and slots:
            made[i] = Taken(slots[0])
    return made


def edited(
    model: torch.nn.Module,
    *args: Any,
    left: Any = (),
    run: Any = None,
    **options: Any,
) -> tuple[Any, Any, Edits]:
    """The edited model and its output by the order of calls, with those in ``left`` left alone.

    ``run``: keyword arguments of the model; ``options``: as of :func:`chosen`.
    """
    still, values, named = copy.deepcopy((model, args, run or {}))
    log = CallLog(still)
    with torch.no_grad(), log.running():
        still(*values, **named)
    graph = CallGraph(tuple(log.calls), tuple(log.modules), {})
    actions, placing = chosen(graph, **options), Placing(graph)
    placed = placing.placed({str(i): {i: action} for i, action in actions.items()})
    items = tuple(Edit(owner, "activation", "", calls=calls) for owner, calls in placed.items())
    name = type(graph.modules[-1].levels[0].module).__name__
    edits = Edits("torch", name, items, placing.left)
    assert left is None or set(edits.left_alone) == set(left), edits.left_alone
    kept = {i: action for i, action in actions.items() if str(i) not in edits.left_alone}
    made = copy.deepcopy(model)
    perform(made, edits, "keep", None)
    return made, Order(kept, [call.function.__name__ for call in graph.calls]), edits


def first(value: Any) -> torch.Tensor:
    """The first tensor of an output."""
    if isinstance(value, tuple | list):
        return value[0]
    return getattr(value, "logits", value)


def gap(one: Any, other: Any) -> float:
    """The greatest relative difference of two outputs."""
    one, other = first(one), first(other)
    return float((one - other).detach().abs().max() / (other.detach().abs().max() + 1e-9))


def agrees(model: torch.nn.Module, *args: Any, **options: Any) -> Any:
    """Checks an edited model against the order of calls, and gives it back."""
    made, order, edits = edited(model, *args, **options)

    def ran(net: Any, mode: Any) -> Any:
        torch.set_rng_state(state)
        values, named = copy.deepcopy((args, options.get("run", {})))
        with torch.no_grad(), mode:
            return net(*values, **named)

    state = torch.get_rng_state()
    old = ran(copy.deepcopy(model), nullcontext())
    wanted = ran(copy.deepcopy(model), order)
    got = ran(made, nullcontext())
    assert not len(edits) or gap(got, old) > 1e-5
    assert gap(got, wanted) < 1e-5, gap(got, wanted)
    return made
