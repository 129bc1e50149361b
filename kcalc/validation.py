"""The checks that turn an ``nx.DiGraph`` into a network, each failing with the node and the remedy."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import networkx as nx

from .errors import GraphError
from .layers import Affine, Concat, Flatten, Input, Layer, Opaque, Sum

Node = Hashable
Features = dict[Node, int | None]


def read_nodes(graph: Any) -> tuple[dict[Node, Layer], dict[Node, tuple[Node, ...]]]:
    """The layer of every node and its parents in slot order.

    Raises: GraphError for something that is not an ``nx.DiGraph``, an empty graph, a node without a layer, a wrong
    number of inputs, missing or doubled slots, or a Sum or Concat whose numbers do not fit its inputs.
    """
    if isinstance(graph, nx.MultiDiGraph):
        raise GraphError("a network is an nx.DiGraph; for a node read twice give its edge a tuple of slots, slot=(0, 1)")
    if not isinstance(graph, nx.DiGraph):
        raise GraphError(f"a network is an nx.DiGraph, got {type(graph).__name__}")
    if len(graph) == 0:
        raise GraphError("the network has no nodes; it needs at least an Input and a layer that reads it")
    layers: dict[Node, Layer] = {}
    parents: dict[Node, tuple[Node, ...]] = {}
    for node, attributes in graph.nodes(data=True):
        layer = attributes.get("layer")
        if not isinstance(layer, Layer):
            hint = "; pass an instance, not the class" if isinstance(layer, type) else ""
            raise GraphError(f"node {node!r} has layer={layer!r}, which is not a kcalc layer{hint}")
        layers[node] = layer
        parents[node] = _parents(graph, node, layer)
        _check_numbers(node, layer, len(parents[node]))
    return layers, parents


def _parents(graph: nx.DiGraph, node: Node, layer: Layer) -> tuple[Node, ...]:
    above: Any = graph._pred[node]  # pyright: ignore  # networkx's own views are several times slower, and networks are large
    if len(above) == 1 and layer.arity[0] == 1:
        ((parent, data),) = above.items()
        slot = data.get("slot")
        if slot is None or (type(slot) is int and slot == 0):
            return (parent,)
    edges = [(parent, data.get("slot")) for parent, data in above.items()]
    slots: dict[int, Node] = {}
    total = sum(len(slot) if isinstance(slot, tuple | list) else 1 for _, slot in edges)
    least, most = layer.arity
    if not least <= total <= most:
        expected = f"{least}" if least == most else f"at least {least}"
        kind = type(layer).__name__
        raise GraphError(f"node {node!r} ({kind}) has {total} inputs, expected {expected}{_arity_hint(layer, total)}")
    for parent, slot in edges:
        if slot is None and total == 1:
            slot = 0
        if slot is None:
            raise GraphError(f"edge {parent!r} -> {node!r} has no slot; give each input of {node!r} slot=0 ... {total - 1}")
        for taken in slot if isinstance(slot, tuple | list) else (slot,):
            if isinstance(taken, bool) or not isinstance(taken, int) or not 0 <= taken < total:
                raise GraphError(f"edge {parent!r} -> {node!r} has slot={taken!r}; the {total} inputs take slots 0 ... {total - 1}")
            if taken in slots:
                raise GraphError(f"node {node!r} has slot {taken} twice, from {slots[taken]!r} and {parent!r}")
            slots[taken] = parent
    return tuple(slots[k] for k in range(total))


def _arity_hint(layer: Layer, total: int) -> str:
    if total == 0:
        return "; a node without inputs must be an Input"
    if isinstance(layer, Input):
        return "; an Input reads nothing"
    return "; add the inputs with a Sum or Concat node first"


def _check_numbers(node: Node, layer: Layer, count: int) -> None:
    if isinstance(layer, Sum) and layer.weights is not None and len(layer.weights) != count:
        raise GraphError(f"node {node!r} (Sum) has {len(layer.weights)} weights for {count} inputs")
    if isinstance(layer, Concat) and layer.channels is not None and len(layer.channels) != count:
        raise GraphError(f"node {node!r} (Concat) has {len(layer.channels)} channel counts for {count} inputs")


def ordered_nodes(graph: nx.DiGraph) -> list[Node]:
    """The nodes in topological order. Raises: GraphError that spells out a cycle if there is one."""
    try:
        return list(nx.topological_sort(graph))
    except nx.NetworkXUnfeasible:
        cycle = [edge[0] for edge in nx.find_cycle(graph)]
        shown = " -> ".join(map(repr, [*cycle[:8], *(["..."] if len(cycle) > 8 else []), cycle[0]]))
        raise GraphError(f"the graph has a cycle, {shown}; a network must be acyclic") from None


def check_outputs(layers: dict[Node, Layer], graph: nx.DiGraph, declared: Iterable[Node] | None) -> tuple[Node, ...]:
    """The output nodes: those declared, else all that nothing reads.

    Raises: GraphError if there is no Input, an Input is read by nothing, or a node leads to no declared output.
    """
    if not any(isinstance(layer, Input) for layer in layers.values()):
        raise GraphError("the network has no input; add a node with layer=Input()")
    sinks = [node for node in layers if graph.out_degree(node) == 0]
    idle = next((node for node in sinks if isinstance(layers[node], Input)), None)
    if idle is not None:
        raise GraphError(f"input {idle!r} dangles: nothing reads it; connect it or remove it")
    if declared is None:
        return tuple(sinks)
    outputs = tuple(dict.fromkeys(declared))
    missing = [node for node in outputs if node not in layers]
    if missing:
        raise GraphError(f"output {missing[0]!r} is not a node of the network")
    if not outputs:
        raise GraphError("the network has no output; declare at least one")
    dangling = [node for node in sinks if node not in outputs]
    if dangling:
        raise GraphError(f"node {dangling[0]!r} dangles: nothing reads it and it is not an output; declare it or remove it")
    return tuple(node for node in layers if node in set(outputs))


def infer_features(steps: Iterable[tuple[Node, Layer, tuple[Node, ...]]]) -> Features:
    """The number of channels every node emits, None where unknown. Raises: GraphError where counts contradict."""
    features: Features = {}
    for node, layer, parents in steps:
        known = [features[p] for p in parents]
        if isinstance(layer, Input):
            features[node] = layer.features
        elif isinstance(layer, Affine):
            features[node] = layer.features
            _check_groups(node, layer, known[0])
        elif isinstance(layer, Concat):
            features[node] = _concatenated(node, layer, parents, known)
        elif isinstance(layer, Flatten | Opaque):
            features[node] = None
        else:
            counts = {k for k in known if k is not None}
            if len(counts) > 1:
                pairs = ", ".join(f"{p!r}: {k}" for p, k in zip(parents, known, strict=True))
                raise GraphError(f"node {node!r} ({type(layer).__name__}) reads feature maps of different widths ({pairs})")
            features[node] = counts.pop() if counts else None
    return features


def _check_groups(node: Node, layer: Affine, width: int | None) -> None:
    for count, what in ((width, "input"), (layer.features, "output")):
        if count is not None and layer.groups != 1 and count % layer.groups:
            raise GraphError(f"node {node!r}: {layer.groups} groups do not divide its {count} {what} channels")


def _concatenated(node: Node, layer: Concat, parents: tuple[Node, ...], known: list[int | None]) -> int | None:
    counts: list[Any] = list(known)
    if layer.channels is not None:
        for parent, width, given in zip(parents, known, layer.channels, strict=True):
            if width is not None and isinstance(given, int) and width != given:
                raise GraphError(f"node {node!r} (Concat) says {given} channels for {parent!r}, which emits {width}")
        counts = list(layer.channels)
    return sum(counts) if all(isinstance(k, int) for k in counts) else None
