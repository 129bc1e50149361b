"""A PyTorch model with shaped networks in the place of what they were read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ...foundation.errors import KcalcError
from ...network.layers import Affine, Normalisation, Opaque, Sum
from ...network.network import sum_weights
from ..geometry import checked_law
from ..model_reading import Reading
from ..regions import Regions, regions_of
from ..trace import Linear, Trace
from .emit import Emitter
from .in_place import Editor
from .measured import own_gradients
from .variants import Mode


def apply_torch(
    model: Any,
    reading: Reading,
    shaping: Any,
    generator: Any = None,
    weights: str = "orthogonal_delta",
) -> torch.fx.GraphModule:
    """A copy of the model in which the nodes of ``shaping`` are exchanged for shaped ones.

    An ``fx.GraphModule`` with the parameters under their names. ``model`` stays as it is.

    model: the model that ``reading`` is of. shaping: has ``network`` or ``networks``, whose node
    labels are those of ``reading.network``. weights: "orthogonal_delta" and "gaussian_delta" draw
    new weights with sigma_w and sigma_b of the shaped network (1 and 0) on the central tap of every
    kernel; "keep" takes those of the model. generator: a ``torch.Generator`` for the draws.

    In shaped networks the new model follows their edges: activations are the transformed ones, sums
    have the normalised weights, and normalisation and scalar factors that the network does not have
    are gone; strides, paddings and dropout rates are the model's. All operations besides are those
    of the model, with its present weights. Inputs and outputs have the model's shapes, several
    outputs come as a tuple. ``.kcalc_changes`` lists every difference and all that was left alone,
    ``.kcalc_nodes`` maps the nodes of the shaped networks to those of the graph that compute them,
    as (examples, channels, locations...).

    Raises: KcalcError for a node that the model does not have, for nodes that were not read, and
    for weights that a shaped layer shares with one that is left alone.
    """
    trace = reading.trace
    if trace is None or trace.framework != "torch":
        raise KcalcError(
            "the reading is not of a PyTorch model; read it with kc.read(model, example)"
        )
    law = checked_law(weights)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise KcalcError(
            f"generator must be a torch.Generator or None, got {type(generator).__name__}"
        )
    regions = regions_of(reading, shaping, law)
    restored = [] if law == "keep" else _without_bias(reading, trace, set(regions.removed))
    emitter = Emitter(trace, law, generator, restored)
    editor = Editor(model, trace, regions, emitter)
    root, graph = emitter.into.finish(editor.run())
    built = torch.fx.GraphModule(root, graph, "ShapedModule")
    changes = _changes(Changed(reading, shaping, regions, trace, built, law), restored, editor)
    _annotated(
        built,
        kcalc_changes=changes,
        kcalc_nodes={
            node: value.node.name for node, value in (editor.entered | editor.emitted).items()
        },
    )
    _set_mode(built, trace.model.training)
    return built


def _set_mode(built: torch.fx.GraphModule, training: bool) -> None:
    """Training or evaluation, but for the switches of modules of the model with modes of their own.

    They have these modes already.
    """
    for module in built.modules():
        if not isinstance(module, Mode):
            module.training = training


def _annotated(built: torch.fx.GraphModule, **attributes: Any) -> None:
    """Set attributes that copies of the model keep."""
    from torch.fx import graph_module

    for name, value in attributes.items():
        object.__setattr__(built, name, value)
    key = getattr(graph_module, "_USER_PRESERVED_ATTRIBUTES_KEY", None)
    if key is not None:
        built.meta[key] = attributes


def _without_bias(reading: Reading, trace: Trace, removed: set[Any]) -> list[str]:
    """The layers without bias behind which a normalisation stood that is gone."""
    by_name = {op.name: op for op in trace.ops}
    out = []
    for node in reading.unmerged:
        if node in removed and isinstance(reading.unmerged.layer(node), Normalisation):
            before = by_name.get(str(reading.unmerged.parents(node)[0]))
            if isinstance(before, Linear) and before.bias is None:
                out.append(before.name)
    return list(dict.fromkeys(out))


@dataclass(frozen=True, eq=False)
class Changed:
    """A shaped model beside the one that was read, for the list of changes."""

    reading: Reading
    shaping: Any
    regions: Regions
    trace: Trace
    built: torch.fx.GraphModule
    law: str


def _changes(made: Changed, restored: list[str], editor: Editor) -> tuple[str, ...]:
    model, steps = made.regions.model, made.regions.steps
    out = []
    for node in made.regions.removed:
        layer, place = model.layer(node), made.reading.sources.get(node, "")
        what = f"{type(layer).__name__} removed"
        out.append(f"{node}: {what}" + (f" ({place})" if place and place != str(node) else ""))
    out += [f"{name}: a bias of zeros in place of the normalisation behind it" for name in restored]
    told = {f"{node}: {type(model.layer(node)).__name__} removed" for node in made.regions.removed}
    if made.law != "keep":
        out += [change for change in getattr(made.shaping, "changes", ()) if change not in told]
    out += _rewired(made.regions)
    constants = getattr(getattr(made.shaping, "constants", None), "by_node", {})
    out += [
        f"{node}: {constants[node].activation.name} -> {constants[node].describe()}"
        for node in steps
        if node in constants
    ]
    for node, (layer, parents) in steps.items():
        if node in model and model.layer(node) != layer and isinstance(layer, Sum):
            weights = ", ".join(f"{float(w):.6g}" for w in sum_weights(layer, len(parents)))
            out.append(f"{node}: sum weights {weights}")
    out += [
        f"{note.node}: {note.text}"
        for note in made.reading.notes
        if note.level == "approximate" and note.node in steps
    ]
    out += _about_weights(made)
    out += _left_alone(made.regions, editor)
    kept = set(dict(made.built.named_parameters()))
    model_of = made.trace.model
    gone = [name for name in model_of.kinds if name in model_of.trainable and name not in kept]
    out += [f"{name}: parameter gone" for name in gone]
    return tuple(dict.fromkeys(out))


def _about_weights(made: Changed) -> list[str]:
    """How the weights of shaped layers were drawn."""
    if made.law == "keep":
        return [
            "weights and biases are the model's own; the conditions of the shaping are for "
            "weights drawn anew, and need not hold"
        ]
    steps = made.regions.steps
    out = [
        f"{node}: its weights are standardised as they are drawn, and not at every step any more"
        for node, (layer, _) in steps.items()
        if isinstance(layer, Affine) and layer.standardised
    ]
    out += [
        f"{op.name}: an even kernel has no centre; its weights stand on the tap behind it"
        for op in made.trace.ops
        if isinstance(op, Linear) and op.name in steps and any(k % 2 == 0 for k in op.kernel)
    ]
    noisy = any(getattr(layer, "sigma_b", 0) for layer, _ in steps.values())
    set_to = "their sigma_b" if noisy else "0"
    return [*out, f"weights drawn anew ({made.law}), biases set to {set_to}"]


def _left_alone(regions: Regions, editor: Editor) -> list[str]:
    """The nodes that stay as they are, and numbers in their operations that stay as read."""
    out = []
    for node in regions.kept:
        layer = regions.model.layer(node)
        told = f"{layer.name}: {layer.reason}" if isinstance(layer, Opaque) else ""
        reason = regions.left_alone.get(node, told) or "not a node of the shaped network"
        out.append(f"{node}: left as it is ({reason})")
    idle = [node for node in regions.steps if node not in editor.emitted]
    out += [
        f"{node}: left as it is (the model makes its feature map together with others, which are "
        f"left alone)"
        for node in idle
    ]
    functions = own_gradients(editor.model, editor.program) if regions.kept else []
    out += [
        f"{name}: where it is left alone, this torch.autograd.Function has the gradient of the "
        f"operations of its forward pass, not its own backward pass"
        for name in functions
    ]
    return out + editor.literals.remarks


def _rewired(regions: Regions) -> list[str]:
    """Where nodes read others than in the model, normalisation and factors that are gone aside."""
    out = []
    for node, (_, parents) in regions.steps.items():
        if node not in regions.model:
            continue
        before = tuple(map(regions.past, regions.model.parents(node)))
        if before != parents:
            new, old = (
                ", ".join(str(p) for p in group if p not in others)
                for group, others in ((parents, before), (before, parents))
            )
            out.append(
                f"{node}: reads {new or ', '.join(map(str, parents))} in place of "
                f"{old or ', '.join(map(str, before))}"
            )
    return out


__all__ = ["apply_torch"]
