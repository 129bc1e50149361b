"""Apply edits to a PyTorch model in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from ...foundation.errors import KcalcError
from ..edits import Action, CallEdit, Edits, Exchanged, Layout, Scaled, Taken, WeightEdit
from .edited import (
    Change,
    FunctionPlan,
    ModulePlan,
    OrderPlan,
    document_of,
    edit,
    edited_class,
    subclass_for,
)
from .examples import first_line
from .mixture_modules import replaced_to_read
from .splicing import innermost
from .weights import drawn, standardised, turned

ANOTHER = "these edits are for another model: {}; read and shape the model again"
OTHER_CLASS = "these edits are for a model of class {}, but this model has class {}"
EDITED = "the module {!r} is already edited; shape a newly built model, and apply all edits at once"


def require_module(model: Any) -> None:
    """Raise KcalcError if an object is not a PyTorch model."""
    if not isinstance(model, nn.Module):
        raise KcalcError(
            f"these edits are for a PyTorch model, but a {type(model).__name__} was passed; pass "
            "the torch.nn.Module that was read"
        )


def perform(model: nn.Module, edits: Edits, law: str, generator: Any) -> None:
    """Apply edits to a model, which stays unchanged if KcalcError is raised."""
    modules = dict(model.named_modules(remove_duplicate=False))
    plans = plans_of(model, edits)
    every = [weight for item in edits for weight in item.weights]
    weights = [w for w in every if law != "keep" or w.added or w.kind == "scaled"]
    fresh = _new_values(model, modules, weights, law, generator)
    like = next((t for t in model.parameters() if t.is_floating_point()), None)
    before = [(module, type(module), dict(vars(module))) for module in modules.values()]
    tables = [
        (table, dict(table))
        for module in modules.values()
        for table in (module._parameters, module._buffers)
    ]
    try:
        for path, (plan, numbers) in plans.items():
            edit(modules[path], plan, numbers, like)
        _keep_edits(modules)
    except Exception as error:
        _restore(before, tables)
        raise KcalcError(f"the model cannot be edited: {first_line(error)}") from error
    with torch.no_grad():
        for tensor, values in fresh.changed:
            tensor.copy_(values)
    for home, bias in fresh.added:
        home.bias = nn.Parameter(bias)


Planned = tuple[ModulePlan, tuple[float, ...]]


def plans_of(model: nn.Module, edits: Edits) -> dict[str, Planned]:
    """Return {path of a module: (plan, constants)}.

    Raises: KcalcError if the edits are for another model.
    """
    kinds = {kind.__name__ for kind in type(model).__mro__ if kind not in (nn.Module, object)}
    other = OTHER_CLASS.format(edits.model, type(model).__name__)
    own = edits.model in kinds or not len(edits)
    try:
        plans = _plans(model, edits)
    except KcalcError as error:
        if own:
            raise
        reason = str(error).removeprefix(ANOTHER.partition("{")[0])
        raise KcalcError(f"{other}: {reason}") from None
    if not own:
        raise KcalcError(f"{other}; edit a model of that class, or read and shape this model")
    _check_modules(model, edits)
    return plans


def forwards(model: nn.Module) -> dict[str, str]:
    """Return {path of a module: the name of its ``forward``, or "" for PyTorch's own modules}."""
    found = dict[str, str]()
    for path, module in model.named_modules():
        kind = type(module)
        own = not kind.__module__.startswith("torch.")
        found[path] = getattr(innermost(kind.forward), "__qualname__", "") if own else ""
    return found


def _check_modules(model: nn.Module, edits: Edits) -> None:
    """Raise KcalcError if the model's modules differ from those of the shaped model."""
    known, found = edits.modules, forwards(model) if edits.modules else {}
    for path in {**known, **found}:
        if path not in found:
            raise KcalcError(ANOTHER.format(f"this model has no module {path!r}"))
        if path not in known:
            raise KcalcError(ANOTHER.format(f"the shaped model has no module {path!r}"))
        if found[path] != known[path]:
            what = f"module {path!r}" if path else "model"
            raise KcalcError(
                ANOTHER.format(
                    f"the {what} runs {found[path]}, but the shaped model runs {known[path]}"
                )
            )


def _plans(model: nn.Module, edits: Edits) -> dict[str, Planned]:
    by_path: dict[str, list[CallEdit]] = {}
    for item in edits:
        for call in item.calls:
            path, _ = _place(call)
            by_path.setdefault(path, []).append(call)
    modules = dict(model.named_modules(remove_duplicate=False))
    _check_plain(modules)
    plans: dict[str, Planned] = {}
    for path, calls in by_path.items():
        try:
            plans[path] = plan_of(modules, path, calls)
        except KcalcError as error:
            if "; " in str(error):  # the message has a remedy
                raise
            raise KcalcError(ANOTHER.format(error)) from None
    _check_apart(modules, plans)
    return plans


def _check_plain(modules: Mapping[str, nn.Module]) -> None:
    for path, module in modules.items():
        if edited_class(module) is not None:
            raise KcalcError(EDITED.format(path))


def _check_apart(modules: Mapping[str, nn.Module], plans: Mapping[str, Planned]) -> None:
    """Raise KcalcError if two edited paths refer to the same module."""
    seen: dict[int, str] = {}
    for path in plans:
        other = seen.setdefault(id(modules[path]), path)
        if other != path:
            raise KcalcError(
                ANOTHER.format(f"in this model, {other!r} and {path!r} are the same module")
            )


def _restore(before: list[Any], tables: list[Any]) -> None:
    for module, cls, attributes in before:
        if type(module) is not cls:
            object.__setattr__(module, "__class__", cls)
        module.__dict__.clear()
        module.__dict__.update(attributes)
    for table, content in tables:
        table.clear()
        table.update(content)


def _keep_edits(modules: Mapping[str, nn.Module]) -> None:
    """Make layers run the edited modules inside them, and make copies keep the edits."""
    for layer in modules.values():
        if not _holds_edits(layer):
            continue
        if isinstance(layer, nn.TransformerEncoder):
            for inner in layer.layers:
                _without_fast_path(inner)
        _without_fast_path(layer)
        if hasattr(layer, "__deepcopy__") and edited_class(layer) is None:
            edit(layer, ModulePlan(), ())  # its __deepcopy__ may rebuild the modules inside


def _without_fast_path(layer: Any) -> None:
    """Switch off the fast path of an encoder layer, which skips the modules inside it."""
    if isinstance(layer, nn.TransformerEncoderLayer):
        layer.activation_relu_or_gelu = 0


def _holds_edits(module: nn.Module) -> bool:
    return any(edited_class(part) is not None for part in module.modules())


def _place(call: CallEdit) -> tuple[str, tuple[tuple[str, str, str, int, int], ...]]:
    good = len(call.place) == 2 and isinstance(call.place[0], str)
    steps = call.place[1] if good else None
    if not isinstance(steps, tuple) or not all(_is_step(step) for step in steps):
        raise KcalcError(ANOTHER.format("a place must consist of a module and the path to a call"))
    return call.place[0], steps


def _is_step(step: Any) -> bool:
    return (
        isinstance(step, tuple)
        and len(step) == 5
        and all(isinstance(part, str) for part in step[:3])
        and all(isinstance(part, int) and part >= 0 for part in step[3:])
        and step[4] < 2
    )


# -- plans -----------------------------------------------------------------------------------------


class _Numbers:
    """Collects the constants of a module; constants from different edits are kept separately."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def place(self, number: float, nothing: float) -> int | None:
        if number == nothing:
            return None
        self.found.append(number)
        return len(self.found) - 1


def plan_of(
    modules: Mapping[str, nn.Module], path: str, calls: list[CallEdit]
) -> tuple[ModulePlan, tuple[float, ...]]:
    """Return the plan of a module with all its edits, and the constants.

    Raises: KcalcError if the module differs from the shaped module, or if edits conflict.
    """
    module = modules.get(path)
    if module is None:
        raise KcalcError(f"this model has no module {path!r}")
    if isinstance(module, torch.jit.ScriptModule):
        raise KcalcError(
            f"the module {path!r} is scripted, so its code cannot be edited; edit the model before "
            f"you script it"
        )
    if "forward" in vars(module) and not replaced_to_read(module):
        raise KcalcError(f"the forward method of module {path!r} was replaced on the instance")
    numbers = _Numbers()
    changes: dict[Any, dict[int, tuple[CallEdit, Change]]] = {}
    for call in dict.fromkeys(calls):
        known = changes.setdefault(_place(call)[1], {})
        if call.visit in known:
            raise KcalcError(f"a call to {path!r} has two edits")
        known[call.visit] = call, _change(call, numbers)
    if () in changes:
        if len(changes) > 1:
            raise KcalcError(f"{path!r} is edited both as a whole and inside")
        ((call, change), *others) = changes[()].values()
        if others or call.visits != 1:
            raise KcalcError(f"{path!r} is edited as a whole in several ways")
        if call.calls not in ("", class_name(type(module))):
            raise KcalcError(
                f"{path!r} is a {type(module).__name__}, but was a {call.calls} when the "
                "edits were made"
            )
        dropped = (
            _dropped(module, modules) if change.taken is not None and not change.function else ()
        )
        plan = ModulePlan(change, None, dropped)
    elif any(steps[0][0] == "" for steps in changes):
        plan = ModulePlan(order=_order_plan(changes, path))
    else:
        flat = {steps: _by_visit(found, path) for steps, found in changes.items()}
        plan = ModulePlan(None, _function_plan(flat, path))
    subclass_for(module, plan)  # raises an error if the source code has changed
    return plan, tuple(numbers.found)


def _order_plan(changes: Mapping[Any, Mapping[int, Any]], path: str) -> OrderPlan:
    """Return the plan for edited calls that are identified by their order."""
    digests = {steps[0][2] for steps in changes}
    ordered = all(len(steps) == 1 and steps[0][:2] == ("", "") for steps in changes)
    once = all(set(found) == {0} for found in changes.values())
    if not (ordered and once and len(digests) == 1):
        raise KcalcError(f"some edits of {path!r} find calls by their order, but others do not")
    found = [(steps[0][3], known[0][1]) for steps, known in changes.items()]
    return OrderPlan(digests.pop(), tuple(sorted(found, key=lambda pair: pair[0])))


def class_name(cls: Any) -> str:
    """Return the full name of a module class.

    For parametrised modules, this is the name of the original class.
    """
    if cls.__module__ == parametrize.__name__:
        cls = cls.__bases__[0]
    return f"{cls.__module__}.{cls.__qualname__}"


def _change(call: CallEdit, numbers: _Numbers) -> Change:
    action: Action = call.action
    written, calls = call.written or None, call.calls if call.place[1] else ""
    if isinstance(action, Scaled):
        inputs = tuple(
            (slot, numbers.place(a, 1.0), numbers.place(b, 0.0)) for slot, a, b in action.inputs
        )
        return Change(
            inputs, numbers.place(action.scale, 1.0), numbers.place(action.shift, 0.0), None, "",
            written, calls,
        )  # fmt: skip
    if isinstance(action, Taken):
        return Change((), None, None, action.slot, "", written, calls, action.copied)
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
        calls,
        action.copied,
    )


def _by_visit(found: Mapping[int, tuple[CallEdit, Change]], path: str) -> tuple[Change | None, ...]:
    lengths = {call.visits for call, _ in found.values()}
    if len(lengths) != 1:
        raise KcalcError(f"a call to {path!r} is reached in two ways")
    (length,) = lengths
    if length > 10_000:
        raise KcalcError(f"a call to {path!r} is reached {length} times")
    return tuple(found[i][1] if i in found else None for i in range(length))


def _function_plan(changes: Mapping[Any, tuple[Any, ...]], path: str) -> FunctionPlan:
    """Return the plan of the function from which all paths start."""
    firsts = {steps[0][:3] for steps in changes}
    if len(firsts) != 1:
        raise KcalcError(f"the calls to {path!r} start in several functions")
    ((module, name, known),) = firsts
    by_site: dict[tuple[int, int], dict[Any, tuple[Any, ...]]] = {}
    for steps, visits in changes.items():
        by_site.setdefault(steps[0][3:], {})[steps[1:]] = visits
    if len({site for site, _ in by_site}) < len(by_site):
        raise KcalcError(f"the edits disagree on whether a call to {path!r} is a method call")
    sites: list[tuple[int, bool, tuple[Any, ...]]] = []
    for (site, method), below in sorted(by_site.items()):
        if () in below and len(below) > 1:
            raise KcalcError(f"a call to {path!r} is edited both outside and inside")
        inner = below[()] if () in below else (_function_plan(below, path),)
        sites.append((site, bool(method), inner))
    return FunctionPlan(module, name, known, tuple(sites))


def _dropped(module: nn.Module, modules: Mapping[str, nn.Module]) -> tuple[str, ...]:
    """Return the parameters and buffers that only a removed module uses."""
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


@dataclass
class _Fresh:
    """New values: (tensor, values) pairs, and (layer, new bias) pairs."""

    changed: list[tuple[Any, Any]] = field(default_factory=list)
    added: list[tuple[Any, Any]] = field(default_factory=list)


def _new_values(
    model: nn.Module,
    modules: Mapping[str, Any],
    weights: list[WeightEdit],
    law: str,
    generator: Any,
) -> _Fresh:
    """Compute all new weights before any parameter changes.

    Raises: KcalcError if the weights of the model do not fit the edits.
    """
    tensors = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers()),
    }
    for weight in weights:
        _check(weight, tensors, modules)
    fresh, values = _Fresh(), dict[int, Any]()
    with torch.no_grad():
        for weight in weights:
            if weight.added:
                home = modules[weight.parameter.rpartition(".")[0]]
                new = home.weight.new_zeros(weight.shape)
                if law != "keep":
                    _set(new, weight, law, generator)
                fresh.added.append((home, new))
                continue
            tensor = tensors[weight.parameter]
            if id(tensor) not in values:
                values[id(tensor)] = tensor.detach().clone()
                fresh.changed.append((tensor, values[id(tensor)]))
            try:
                _set(values[id(tensor)], weight, law, generator)
            except (RuntimeError, IndexError, ValueError, TypeError) as error:
                where = f"{weight.parameter!r} has a different layout ({first_line(error)})"
                raise KcalcError(ANOTHER.format(where)) from None
    return fresh


def _check(weight: WeightEdit, tensors: Mapping[str, Any], modules: Mapping[str, Any]) -> None:
    """Raise KcalcError if a parameter is missing or has a different shape."""
    if weight.added:
        home = modules.get(weight.parameter.rpartition(".")[0])
        good = home is not None and can_add_bias(home) and weight.layout is None
        if not good or weight.parameter.rpartition(".")[2] != "bias":
            raise KcalcError(ANOTHER.format(f"{weight.parameter!r} cannot be added"))
        shape: Any = (_outputs(home),)
    else:
        tensor = tensors.get(weight.parameter)
        if tensor is None:
            raise KcalcError(ANOTHER.format(f"this model has no parameter {weight.parameter!r}"))
        _check_values(weight.parameter, tensor)
        shape = tuple(tensor.shape)
    if shape != weight.shape:
        raise KcalcError(
            ANOTHER.format(
                f"{weight.parameter!r} has shape {shape}, but had shape {weight.shape} when the "
                "edits were made"
            )
        )
    _check_layout(weight)


def _outputs(layer: Any) -> int:
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


def _check_values(name: str, tensor: Any) -> None:
    if not tensor.is_floating_point():
        raise KcalcError(
            f"the parameter {name!r} has dtype {tensor.dtype}, for which random weights cannot be "
            "drawn; shape the model before you quantise it"
        )
    if tensor.device.type == "meta":
        raise KcalcError(
            f"the parameter {name!r} is on the meta device and has no values; materialise the "
            "model first with model.to_empty(device='cpu')"
        )


def _check_layout(weight: WeightEdit) -> None:
    """Raise KcalcError if a layout does not fit the shape of the parameter."""
    if weight.copies:
        if weight.copies != (*weight.shape, 0)[0]:
            raise KcalcError(ANOTHER.format(f"{weight.parameter!r} has a different layout"))
        weight = weight.block
    layout, count = weight.layout, prod(weight.shape)
    wide = prod(weight.shape) if layout is None else prod(layout.wide)
    good = True
    if layout is not None:
        high = layout.height if layout.rows else (*layout.wide, 0)[0]
        inner = prod(layout.wide[1:])
        good = (
            len(layout.wide) >= 2
            and 0 < layout.groups <= count
            and high * inner == count
            and wide <= count
            and all(row < high for row in layout.rows)
            and (not layout.rows or len(layout.rows) == layout.wide[0])
            and layout.stored == weight.shape
            and all(0 < part <= count for part in layout.spread)
        )
    elif weight.rows:
        good = bool(weight.shape) and all(row < weight.shape[0] for row in weight.rows)
    if not good:
        raise KcalcError(ANOTHER.format(f"{weight.parameter!r} has a different layout"))


def can_add_bias(module: nn.Module) -> bool:
    """Whether a layer has no bias but could have one."""
    return isinstance(module, nn.Linear | _ConvNd) and module.bias is None


def _set(tensor: Any, weight: WeightEdit, law: str, generator: Any) -> None:
    """Change the values of a parameter."""
    if weight.copies:
        for block in tensor:
            _set(block, weight.block, law, generator)
        return
    if weight.layout is not None:
        _set_layer(tensor, weight, weight.layout, law, generator)
        return
    rows: Any = list(weight.rows) or slice(None)
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


def _set_layer(tensor: Any, weight: WeightEdit, layout: Layout, law: str, generator: Any) -> None:
    """Redraw or multiply the weights of a layer at their place in a parameter."""
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
