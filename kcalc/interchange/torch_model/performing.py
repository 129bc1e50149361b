"""Edits of a PyTorch model performed on the model itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from ...foundation.errors import KcalcError
from ..edits import Action, CallEdit, Edits, Exchanged, Layout, Scaled, Taken, WeightEdit
from .edited import Change, FunctionPlan, ModulePlan, document_of, edit, subclass
from .weights import drawn, standardised, turned

ANOTHER = "these edits are of another model: {}; read and shape the model again"
EDITED = (
    "the module {!r} is edited already; edit a model that is as it was built, once with all edits"
)


def perform(model: nn.Module, edits: Edits, law: str, generator: Any) -> None:
    """Make every edit in a model. Raises: KcalcError before anything changes."""
    by_path: dict[str, list[CallEdit]] = {}
    for item in edits:
        for call in item.calls:
            path, _ = _place(call)
            by_path.setdefault(path, []).append(call)
    modules = dict(model.named_modules(remove_duplicate=False))
    plans = {path: _plan(modules, path, calls) for path, calls in by_path.items()}
    every = [weight for item in edits for weight in item.weights]
    weights = [w for w in every if law != "keep" or w.added or w.kind == "scaled"]
    tensors = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers()),
    }
    for weight in weights:
        _check(weight, tensors, modules)
    like = next((t for t in model.parameters() if t.is_floating_point()), None)
    with torch.no_grad():
        for weight in weights:
            _set(weight, tensors, modules, law, generator)
    for path, (plan, numbers) in plans.items():
        edit(modules[path], plan, numbers, like)
    for layer in modules.values():
        if isinstance(layer, nn.TransformerEncoderLayer) and _holds_edits(layer):
            layer.activation_relu_or_gelu = 0  # its fast path runs none of the modules


def _holds_edits(module: nn.Module) -> bool:
    return any(hasattr(type(part), "kcalc_plan") for part in module.modules())


def _place(call: CallEdit) -> tuple[str, tuple[tuple[str, str, str, int, int], ...]]:
    good = len(call.place) == 2 and isinstance(call.place[0], str)
    steps = call.place[1] if good else None
    if not isinstance(steps, tuple) or not all(_is_step(step) for step in steps):
        raise KcalcError(ANOTHER.format("a place is no module and way to a call"))
    return call.place[0], steps


def _is_step(step: Any) -> bool:
    return (
        isinstance(step, tuple)
        and len(step) == 5
        and all(isinstance(part, str) for part in step[:3])
        and all(isinstance(part, int) for part in step[3:])
    )


# -- plans -----------------------------------------------------------------------------------------


class _Numbers:
    """The constants of a module; equal numbers of several edits stay apart."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def place(self, number: float, nothing: float) -> int | None:
        if number == nothing:
            return None
        self.found.append(number)
        return len(self.found) - 1


def _plan(
    modules: Mapping[str, nn.Module], path: str, calls: list[CallEdit]
) -> tuple[ModulePlan, tuple[float, ...]]:
    module = modules.get(path)
    if module is None:
        raise KcalcError(ANOTHER.format(f"this one has no module {path!r}"))
    if hasattr(type(module), "kcalc_plan"):
        raise KcalcError(EDITED.format(path))
    if isinstance(module, torch.jit.ScriptModule):
        raise KcalcError(
            f"the module {path!r} is scripted, and has no code that could be edited; edit the "
            f"model before it is scripted"
        )
    numbers = _Numbers()
    changes: dict[Any, dict[int, tuple[CallEdit, Change]]] = {}
    for call in dict.fromkeys(calls):
        known = changes.setdefault(_place(call)[1], {})
        if call.visit in known:
            _merge(known, call, numbers, path)
        else:
            known[call.visit] = call, _change(call, numbers)
    if () in changes:
        if len(changes) > 1:
            raise KcalcError(ANOTHER.format(f"{path!r} is edited as a whole and inside"))
        ((_, change),) = changes[()].values()
        dropped = (
            _dropped(module, modules) if change.taken is not None and not change.function else ()
        )
        plan = ModulePlan(change, None, dropped)
    else:
        flat = {steps: _by_visit(found, path) for steps, found in changes.items()}
        plan = ModulePlan(None, _function_plan(flat, path))
    subclass(type(module), plan, module)  # raises where the source has changed
    return plan, tuple(numbers.found)


def _merge(known: dict[int, Any], call: CallEdit, numbers: _Numbers, path: str) -> None:
    """Two edits at one call, both of which scale: one after the other."""
    before = known[call.visit][0]
    if before == call:
        return
    if not (isinstance(before.action, Scaled) and isinstance(call.action, Scaled)):
        raise KcalcError(ANOTHER.format(f"two edits at one call of {path!r}"))
    both = CallEdit(
        call.place, call.action.after(before.action), call.visit, call.visits, call.written
    )
    known[call.visit] = both, _change(both, numbers)


def _change(call: CallEdit, numbers: _Numbers) -> Change:
    action: Action = call.action
    written = call.written or None
    if isinstance(action, Scaled):
        inputs = tuple(
            (slot, numbers.place(a, 1.0), numbers.place(b, 0.0)) for slot, a, b in action.inputs
        )
        return Change(
            inputs, numbers.place(action.scale, 1.0), numbers.place(action.shift, 0.0), None, "",
            written,
        )  # fmt: skip
    if isinstance(action, Taken):
        return Change((), None, None, action.slot, "", written)
    assert isinstance(action, Exchanged)
    a, b = numbers.place(action.a, 1.0), numbers.place(action.b, 0.0)
    inputs = () if a is None and b is None else ((action.slot, a, b),)
    return Change(
        inputs,
        numbers.place(action.scale, 1.0),
        numbers.place(action.shift, 0.0),
        action.slot,
        document_of(action.activation),
        written,
    )


def _by_visit(found: Mapping[int, tuple[CallEdit, Change]], path: str) -> tuple[Change | None, ...]:
    lengths = {call.visits for call, _ in found.values()}
    if len(lengths) != 1:
        raise KcalcError(ANOTHER.format(f"a call of {path!r} is reached in two ways"))
    (length,) = lengths
    if length > 10_000:
        raise KcalcError(ANOTHER.format(f"a call of {path!r} is reached {length} times"))
    return tuple(found[i][1] if i in found else None for i in range(length))


def _function_plan(changes: Mapping[Any, tuple[Any, ...]], path: str) -> FunctionPlan:
    """The plan of the function that all ways begin with."""
    firsts = {steps[0][:3] for steps in changes}
    if len(firsts) != 1:
        raise KcalcError(ANOTHER.format(f"the calls of {path!r} begin in several functions"))
    ((module, name, known),) = firsts
    by_site: dict[tuple[int, int], dict[Any, tuple[Any, ...]]] = {}
    for steps, visits in changes.items():
        by_site.setdefault(steps[0][3:], {})[steps[1:]] = visits
    sites: list[tuple[int, bool, tuple[Any, ...]]] = []
    for (site, method), below in sorted(by_site.items()):
        if () in below and len(below) > 1:
            raise KcalcError(ANOTHER.format(f"a call of {path!r} is edited outside and inside"))
        inner = below[()] if () in below else (_function_plan(below, path),)
        sites.append((site, bool(method), inner))
    return FunctionPlan(module, name, known, tuple(sites))


def _dropped(module: nn.Module, modules: Mapping[str, nn.Module]) -> tuple[str, ...]:
    """The parameters and buffers of a module that goes, but for those that others have too."""
    inside = set(map(id, module.modules()))
    kept = {
        id(tensor)
        for other in modules.values()
        if id(other) not in inside
        for tensor in (*other._parameters.values(), *other._buffers.values())
        if tensor is not None
    }
    named = (*module.named_parameters(), *module.named_buffers())
    return tuple(name for name, tensor in named if id(tensor) not in kept)


# -- weights ---------------------------------------------------------------------------------------


def _check(weight: WeightEdit, tensors: Mapping[str, Any], modules: Mapping[str, Any]) -> None:
    """Raises: KcalcError for a parameter that is missing or has another shape."""
    if weight.added:
        home = modules.get(weight.parameter.rpartition(".")[0])
        if home is None or not can_add_bias(home):
            raise KcalcError(ANOTHER.format(f"{weight.parameter!r} cannot be added"))
        return
    tensor = tensors.get(weight.parameter)
    if tensor is None:
        raise KcalcError(ANOTHER.format(f"this one has no parameter {weight.parameter!r}"))
    if tuple(tensor.shape) != weight.shape:
        raise KcalcError(
            ANOTHER.format(
                f"{weight.parameter!r} has the shape {tuple(tensor.shape)} here and {weight.shape} "
                f"there"
            )
        )
    if not tensor.is_floating_point():
        raise KcalcError(
            f"the parameter {weight.parameter!r} is of type {tensor.dtype}, and cannot be drawn; "
            f"shape the model before it is quantised"
        )
    if tensor.device.type == "meta":
        raise KcalcError(
            f"the parameter {weight.parameter!r} has no values (it is on the meta device); "
            f"materialise the model first, model.to_empty(device='cpu')"
        )


def can_add_bias(module: nn.Module) -> bool:
    """Whether a layer was built without a bias that it could have."""
    return isinstance(module, nn.Linear | _ConvNd) and module.bias is None


def _set(
    weight: WeightEdit,
    tensors: Mapping[str, Any],
    modules: Mapping[str, Any],
    law: str,
    generator: Any,
) -> None:
    if weight.added:
        home = modules[weight.parameter.rpartition(".")[0]]
        home.bias = nn.Parameter(home.weight.new_zeros(weight.shape))
        tensor = home.bias
        if law == "keep":
            return
    else:
        tensor = tensors[weight.parameter]
    if weight.layout is not None:
        _set_layer(tensor, weight, weight.layout, law, generator)
        return
    rows = _within(tensor, weight.rows)
    if weight.kind == "filled":
        tensor[rows] = weight.sigma
    elif weight.kind == "normal":
        fresh = weight.sigma * torch.randn(
            tensor[rows].shape, dtype=torch.float64, generator=generator
        )
        if weight.padding:
            zero = (tensor[rows] == 0).all(-1, keepdim=True).cpu()
            fresh = torch.where(zero, 0.0, fresh)
        tensor[rows] = fresh.to(tensor.device, tensor.dtype)
    else:
        tensor[rows] *= weight.sigma


def _within(tensor: Any, rows: Iterable[int]) -> Any:
    chosen = list(rows)
    if chosen and max(chosen) >= len(tensor):
        raise KcalcError(ANOTHER.format(f"a parameter has {len(tensor)} rows"))
    return chosen or slice(None)


def _set_layer(tensor: Any, weight: WeightEdit, layout: Layout, law: str, generator: Any) -> None:
    """Draw the weights of a layer anew, or multiply them, where they lie in their parameter."""
    wide = layout.wide
    fresh = None
    if weight.kind == "drawn":
        given = (wide, layout.groups, law, weight.sigma, generator, tensor.dtype, layout.spread)
        fresh = drawn(*given)
        if weight.standardised:
            fresh = standardised(fresh)
        if layout.turned:
            fresh = turned(fresh, layout.groups)
        wide = tuple(fresh.shape)
    if layout.rows:
        wide = (layout.height, *wide[1:])
    kept = tensor.reshape(wide[::-1] if layout.flipped else wide).clone()
    view = kept.T if layout.flipped else kept
    rows = list(layout.rows) if layout.rows else slice(None)
    if fresh is None:
        view[rows] = view[rows] * weight.sigma
    else:
        view[rows] = fresh.to(tensor.device, tensor.dtype)
    tensor.copy_(kept.reshape(tensor.shape))
