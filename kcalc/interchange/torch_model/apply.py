"""Find and apply the edits that make a PyTorch model compute a shaped network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...foundation.errors import KcalcError
from ..edit_target import Target
from ..editing_plan import Planner
from ..edits import Edit, Edits
from ..outdated import gains_of, outdated
from ..trace import Op
from ..weight_edits import Stored, WeightEdits
from .captured import TorchProgram
from .copies import duplicate
from .expert_copies import ExpertCopies
from .graph_values import numbers_of
from .not_run import not_run
from .performing import can_add_bias, forwards, perform, require_module
from .placing import Placing, flow_of
from .pretrained import keep


def torch_edits(target: Target, constants: Any) -> Edits:
    """Return the edits for a model that was read.

    Nodes that cannot be located in the model's code are in ``left_alone``. ``constants``: {node:
    constants of its shaped activation}.
    """
    assert target.reading.trace is not None
    details = target.reading.trace.model
    program: TorchProgram = details.program
    left = {str(node): why for node, why in target.left_alone.items()}
    flow = flow_of(program)
    planner = Planner(target, flow, constants)
    planned = {(edit.node, edit.kind): (edit, calls) for edit, calls in planner.edits()}
    assert program.captured.calls is not None
    placing = Placing(program.captured.calls)
    placed = placing.placed({f"{k[0]}\n{k[1]}": calls for k, (_, calls) in planned.items()})
    copies = ExpertCopies.of(model_of(target.reading))
    weights = WeightEdits(target, _stored(details, program, target.reading.trace.ops, copies))
    found: dict[str, list[Edit]] = {}
    for (node, kind), (edit, _) in planned.items():
        calls = placed.get(f"{node}\n{kind}")
        if calls is not None:
            found.setdefault(node, []).append(replace(edit, calls=calls))
    for edit in weights.edits():
        found.setdefault(edit.node, []).append(edit)
    left |= {str(node): why for node, why in (planner.left | weights.left).items()}
    left |= {owner.split("\n")[0]: why for owner, why in placing.left.items()}
    ordered = [edit for node in target.model for edit in found.get(str(node), ())]
    unused = {edit.node: why for edit in ordered if (why := copies.unused(edit))}
    left |= unused
    items = tuple(copies.repeated(edit) for edit in ordered if edit.node not in unused)
    left |= not_run(program.captured.calls, _used(program), items, copies.known)
    model = model_of(target.reading)
    return Edits("torch", type(model).__name__, items, left, forwards(model))


def _used(program: TorchProgram) -> list[str]:
    """Return the names of the parameters and buffers that the captured graph reads."""
    return [name for node, (_, name) in program.captured.held.items() if name and node.users]


def _stored(
    details: Any, program: TorchProgram, ops: tuple[Op, ...], copies: ExpertCopies
) -> Stored:
    tensors = {name: t for t, name in program.captured.held.values() if name}
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}

    def holds(name: str, values: Any) -> bool:
        """Whether a parameter has some values, in any shape."""
        known = numbers_of(tensors[name]) if name in tensors else ()
        return np.array_equal(np.ravel(known), np.ravel(values))

    calls = program.captured.calls
    assert calls is not None
    modules = {call.levels[0].path: call.levels[0].module for call in calls.modules}
    layouts, stacks = copies.stacks(ops)
    return Stored(
        details.stored | layouts,
        shapes,
        lambda name: name in modules and can_add_bias(modules[name]),
        stacks,
        holds,
    )


def is_editable(reading: Any) -> bool:
    """Whether kcalc recorded the calls made by the code of a model that was read."""
    return reading.trace.model.program.captured.calls is not None


def model_of(reading: Any) -> torch.nn.Module:
    """Return kcalc's copy of the model that was read."""
    calls = reading.trace.model.program.captured.calls
    return next(m.levels[0].module for m in calls.modules if not m.levels[0].path)


def changed(reading: Any, model: Any, edits: Edits) -> str:
    """Return a parameter whose value in the network is out of date, or "" if there is none."""
    gone = [call.place[0] for edit in edits if edit.kind == "norm" for call in edit.calls]
    before = gains_of(reading.trace.ops, _values(model_of(reading)))
    return outdated(before, _values(model), edits, gone)


def _values(model: Any) -> dict[str, Any]:
    own = [pair for pair in model.named_parameters() if not pair[1].is_meta]
    return {name: p.detach().to("cpu", torch.float64).numpy() for name, p in own}


def edited(model: Any, edits: Edits, law: str, generator: Any, inplace: bool) -> Any:
    """Apply edits to a model or to a copy; the result lists them in ``kcalc_changes``.

    Raises: KcalcError if the edits are for another model.
    """
    require_module(model)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise KcalcError(
            f"generator must be a torch.Generator or None, got {type(generator).__name__}"
        )
    made = model if inplace else duplicate(model)
    perform(made, edits, law, generator)
    keep(made, edits)
    made.kcalc_changes = tuple(f"{e.node}: {e.kind}, {e.what}; {e.where}" for e in edits.items)
    return made


def scaled_edits(reading: Any, factors: Mapping[Any, float]) -> Edits:
    """Return edits that multiply the weights and biases of some layers.

    ``factors``: {node of the reading: factor}. If a layer consists of some rows of a parameter,
    such as the queries in a joint projection of queries, keys and values, only these rows are
    multiplied. Raises: KcalcError if a node is not a dense layer of the model, or if it shares its
    weights with another layer.
    """
    details = reading.trace.model
    model = model_of(reading)
    copies = ExpertCopies.of(model)
    stored = _stored(details, details.program, reading.trace.ops, copies)
    weights = WeightEdits(Target(reading, (), {}), stored)
    found = (edit for node, f in factors.items() for edit in weights.scaled(node, f))
    items = tuple(map(copies.repeated, found))
    return Edits("torch", type(model).__name__, items, modules=forwards(model))
