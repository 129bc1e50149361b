"""A new PyTorch model with the function of a shaped network."""

from __future__ import annotations

from typing import Any

import torch

from ...foundation.errors import KcalcError
from ...network.layers import Affine, Normalisation
from ..model_reading import Reading
from ..trace import Linear, Trace
from .emit import Emitter
from .weights import checked_law


def apply_torch(
    model: Any,
    reading: Reading,
    shaping: Any,
    generator: Any = None,
    weights: str = "orthogonal_delta",
) -> torch.fx.GraphModule:
    """A new model that computes ``shaping.network``.

    An ``fx.GraphModule`` with the parameters under their names. ``model`` stays as it is.

    model: the model that ``reading`` is of. shaping: has ``network``, whose node labels are those
    of ``reading.network``. weights: "orthogonal_delta" and "gaussian_delta" draw new weights with
    sigma_w and sigma_b of the shaped network (1 and 0) on the central tap of every kernel; "keep"
    takes those of the model. generator: a ``torch.Generator`` for the draws.

    The new model follows the edges of the shaped network: activations are the transformed ones,
    sums have the normalised weights, and normalisation and scalar factors that the network does not
    have are gone; strides, paddings and dropout rates are the model's. Inputs and outputs have the
    model's shapes, several outputs come as a tuple. ``.kcalc_changes`` lists every difference,
    ``.kcalc_nodes`` maps the nodes of the shaped network to those of the graph that compute them,
    as (examples, channels, locations...).

    Raises: KcalcError for a node that the model does not have, and for nodes that were not read.
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
    network = shaping.network
    removed = [node for node in reading.network if node not in network]
    restored = [] if law == "keep" else _without_bias(reading, trace, set(removed))
    emitter = Emitter(trace, law, generator, restored)
    values: dict[Any, Any] = {}
    for node, layer, parents in network.steps():
        values[node] = emitter.emit(node, layer, [values[p] for p in parents])
    ends = _ends(reading, network.outputs, trace)
    outputs = [emitter.result(values[node], name) for node, name in ends]
    root, graph = emitter.into.finish(outputs)
    built = torch.fx.GraphModule(root, graph, "ShapedModule")
    changes = _changes(reading, shaping, removed, restored, trace, built, law)
    _annotated(
        built,
        kcalc_changes=changes,
        kcalc_nodes={node: value.node.name for node, value in values.items()},
    )
    return built.train(trace.model.training)


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
    for node in reading.network:
        if node in removed and isinstance(reading.network.layer(node), Normalisation):
            before = by_name.get(str(reading.network.parents(node)[0]))
            if isinstance(before, Linear) and before.bias is None:
                out.append(before.name)
    return list(dict.fromkeys(out))


def _ends(reading: Reading, outputs: tuple[Any, ...], trace: Trace) -> list[tuple[Any, str]]:
    """(node, output of the model) for every output."""
    if len(outputs) == len(trace.outputs):
        return list(zip(outputs, trace.outputs, strict=True))
    return [(node, str(node)) for node in outputs]


def _changes(
    reading: Reading,
    shaping: Any,
    removed: list[Any],
    restored: list[str],
    trace: Trace,
    built: torch.fx.GraphModule,
    law: str,
) -> tuple[str, ...]:
    out = []
    for node in removed:
        layer, place = reading.network.layer(node), reading.sources.get(node, "")
        what = f"{type(layer).__name__} removed"
        out.append(f"{node}: {what}" + (f" ({place})" if place and place != str(node) else ""))
    out += [f"{name}: a bias of zeros in place of the normalisation behind it" for name in restored]
    if law != "keep":
        out += [change for change in getattr(shaping, "changes", ()) if change not in out]
    out += _rewired(reading, shaping.network, set(removed))
    constants = getattr(getattr(shaping, "constants", None), "by_node", {})
    out += [
        f"{node}: {constants[node].activation.name} -> {constants[node].describe()}"
        for node in shaping.network
        if node in constants
    ]
    for node, layer, parents in shaping.network.steps():
        if (
            node in reading.network
            and reading.network.layer(node) != layer
            and type(layer).__name__ == "Sum"
        ):
            out.append(
                f"{node}: sum weights "
                f"{', '.join(f'{float(w):.6g}' for w in layer.weights or (1,) * len(parents))}"
            )
    noted = [
        note
        for note in reading.notes
        if note.level == "approximate" and note.node in shaping.network
    ]
    out += [
        f"{note.node}: {note.text}"
        + ("; the new model leaves that out" if note.node in reading.network.inputs else "")
        for note in noted
    ]
    even = [
        op.name
        for op in trace.ops
        if isinstance(op, Linear)
        and op.name in shaping.network
        and any(k % 2 == 0 for k in op.kernel)
    ]
    if law != "keep":
        out += [
            f"{node}: its weights are standardised as they are drawn, and not at every step any "
            f"more"
            for node, layer, _ in shaping.network.steps()
            if isinstance(layer, Affine) and layer.standardised
        ]
        out += [
            f"{name}: an even kernel has no centre; its weights stand on the tap behind it"
            for name in even
        ]
        out.append(
            f"weights drawn anew ({law}), biases set to "
            f"{'0' if not _has_bias_noise(shaping.network) else 'their sigma_b'}"
        )
    else:
        out.append(
            "weights and biases are the model's own; the conditions of the shaping are for "
            "weights drawn anew, and need not hold"
        )
    kept = set(dict(built.named_parameters()))
    gone = [
        name for name in trace.model.kinds if name in trace.model.trainable and name not in kept
    ]
    out += [f"{name}: parameter gone" for name in gone]
    return tuple(dict.fromkeys(out))


def _rewired(reading: Reading, network: Any, removed: set[Any]) -> list[str]:
    """Where nodes read others than in the model, normalisation and factors that are gone aside."""

    def past(node: Any) -> Any:
        while node in removed and len(reading.network.parents(node)) == 1:
            node = reading.network.parents(node)[0]
        return node

    out = []
    for node, _, parents in network.steps():
        before = (
            tuple(past(p) for p in reading.network.parents(node))
            if node in reading.network
            else parents
        )
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


def _has_bias_noise(network: Any) -> bool:
    return any(getattr(layer, "sigma_b", 0) for _, layer, _ in network.steps())


__all__ = ["apply_torch"]
