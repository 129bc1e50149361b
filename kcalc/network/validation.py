"""Check an ``nx.DiGraph`` and turn it into a network.

Each failed check raises an error that names the node and a remedy.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any

import networkx as nx

from ..foundation.errors import GraphError, glimpse
from ..foundation.plain_arguments import utf8
from .layers import Layer
from .primitives import Reads

Node = Hashable
Step = tuple[Node, Layer, tuple[Node, ...]]
Features = dict[Node, int | None]
_NO_STEPS = "steps must be triples (node, layer, (parent, ...)) with hashable nodes, got "
_EMPTY = "the network has no nodes; it needs at least an Input and a layer that reads it"


def read_nodes(graph: Any) -> tuple[dict[Node, Layer], dict[Node, tuple[Node, ...]]]:
    """Return the layer of every node, and its parents in slot order.

    Raises: GraphError for anything but an ``nx.DiGraph``, an empty graph, a node without a layer, a
    wrong number of inputs, missing or repeated slots, or a Sum or Concat with a wrong number of
    weights or channel counts.
    """
    if isinstance(graph, nx.MultiDiGraph):
        raise GraphError(
            "a network must be an nx.DiGraph, which has no parallel edges; if a node is "
            "read twice, give its edge a tuple of slots, slot=(0, 1)"
        )
    if not isinstance(graph, nx.DiGraph):
        raise GraphError(f"a network must be an nx.DiGraph, got {type(graph).__name__}")
    if len(graph) == 0:
        raise GraphError(_EMPTY)
    layers: dict[Node, Layer] = {}
    parents: dict[Node, tuple[Node, ...]] = {}
    for node, attributes in graph.nodes(data=True):
        layer = attributes.get("layer")
        _check_layer(node, layer)
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
    empty = next(
        (parent for parent, slot in edges if isinstance(slot, tuple | list) and not slot), None
    )
    if empty is not None:
        raise GraphError(
            f"edge {empty!r} -> {node!r} has slot=(), so nothing is read; give it a slot, or "
            "remove the edge"
        )
    slots: dict[int, Node] = {}
    total = sum(len(slot) if isinstance(slot, tuple | list) else 1 for _, slot in edges)
    if not layer.arity[0] <= total <= layer.arity[1]:
        raise _wrong_arity(node, layer, total)
    for parent, slot in edges:
        if slot is None:
            raise GraphError(
                f"edge {parent!r} -> {node!r} has no slot; give the inputs of {node!r} the slots "
                f"0 ... {total - 1}"
            )
        for taken in slot if isinstance(slot, tuple | list) else (slot,):
            if isinstance(taken, bool) or not isinstance(taken, int) or not 0 <= taken < total:
                raise GraphError(
                    f"edge {parent!r} -> {node!r} has slot={taken!r}; the {total} inputs take "
                    f"slots 0 ... {total - 1}"
                )
            if taken in slots:
                raise GraphError(
                    f"node {node!r} has slot {taken} twice, from {slots[taken]!r} and {parent!r}"
                )
            slots[taken] = parent
    return tuple(slots[k] for k in range(total))


def _check_layer(node: Node, layer: object) -> None:
    if isinstance(node, str):
        utf8(node, "node label")
    if not isinstance(layer, Layer):
        hint = "; pass an instance, not the class" if isinstance(layer, type) else ""
        raise GraphError(
            f"node {node!r} has layer={glimpse(layer)}, which is not a kcalc layer{hint}"
        )


def _wrong_arity(node: Node, layer: Layer, total: int) -> GraphError:
    least, most = layer.arity
    expected = f"{least}" if least == most else f"at least {least}"
    return GraphError(
        f"node {node!r} ({type(layer).__name__}) has {total} inputs, expected "
        f"{expected}{_arity_hint(layer, total)}"
    )


def _arity_hint(layer: Layer, total: int) -> str:
    if total == 0:
        return "; a node without inputs must be an Input"
    if layer.arity[1] == 0:
        return "; an Input reads nothing"
    return "; add the inputs with a Sum or Concat node first"


def _check_numbers(node: Node, layer: Layer, count: int) -> None:
    for name, what in layer.per_input.items():
        given = getattr(layer, name)
        if given is not None and len(given) != count:
            raise GraphError(
                f"node {node!r} ({type(layer).__name__}) has {len(given)} {what} for {count} inputs"
            )


def read_steps(steps: Iterable[Step]) -> tuple[dict[Node, Layer], dict[Node, tuple[Node, ...]]]:
    """Return the layer of every node, and its parents in slot order.

    ``steps`` are triples (node, layer, parents in slot order), in any order.

    Raises: GraphError for an empty network, a node defined twice, an unknown parent, anything but a
    layer, a wrong number of inputs, or a Sum or Concat with a wrong number of weights or channel
    counts.
    """
    layers: dict[Node, Layer] = {}
    parents: dict[Node, tuple[Node, ...]] = {}
    for node, layer, above in _triples(steps):
        if node in layers:
            raise GraphError(f"node {node!r} is defined twice; node labels must be distinct")
        if node is None:
            raise GraphError("a node cannot be called None; give it a name")
        layers[node], parents[node] = layer, above
    if not layers:
        raise GraphError(_EMPTY)
    for node, layer in layers.items():
        above = parents[node]
        for parent in above:
            if parent not in layers:
                raise GraphError(f"node {node!r} reads {parent!r}, which is not in the network")
        _check_layer(node, layer)
        if not layer.arity[0] <= len(above) <= layer.arity[1]:
            raise _wrong_arity(node, layer, len(above))
        _check_numbers(node, layer, len(above))
    return layers, parents


def _triples(steps: Any) -> Iterator[Step]:
    step = steps
    try:
        given = iter(steps)
    except Exception:  # user objects may raise anything when they are read
        raise GraphError(_NO_STEPS + glimpse(step)) from None
    for step in given:
        try:
            node, layer, above = step[0], step[1], tuple(step[2])
            hash((node, above))
            complete = len(step) == 3
        except Exception:
            complete = False
        if not complete:
            raise GraphError(_NO_STEPS + glimpse(step))
        yield node, layer, above  # pyright: ignore[reportPossiblyUnboundVariable]


def readers_of(parents: Mapping[Node, tuple[Node, ...]]) -> dict[Node, list[Node]]:
    """Return the distinct nodes that read each node."""
    readers: dict[Node, list[Node]] = {node: [] for node in parents}
    for node, above in parents.items():
        for parent in dict.fromkeys(above):
            readers[parent].append(node)
    return readers


def ordered_nodes(readers: Mapping[Node, Iterable[Node]]) -> list[Node]:
    """Return the nodes in topological order, generation by generation.

    Raises: GraphError if there is a cycle; the message lists its nodes.
    """
    waiting = dict.fromkeys(readers, 0)
    for below in readers.values():
        for node in below:
            waiting[node] += 1
    order = [node for node, count in waiting.items() if count == 0]
    for node in order:  # the list grows during the loop
        for reader in readers[node]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                order.append(reader)
    if len(order) < len(waiting):
        cycle = [
            edge[0]
            for edge in nx.find_cycle(
                nx.DiGraph([(node, reader) for node in readers for reader in readers[node]])
            )
        ]
        shown = " -> ".join(map(repr, [*cycle[:8], *(["..."] if len(cycle) > 8 else []), cycle[0]]))
        raise GraphError(f"the graph has a cycle, {shown}; a network must be acyclic")
    return order


def check_outputs(
    layers: Mapping[Node, Layer],
    readers: Mapping[Node, Collection[Node]],
    declared: Iterable[Node] | None,
) -> tuple[Node, ...]:
    """Return the output nodes: those declared, or by default all nodes that nothing reads.

    Raises: GraphError if nothing reads an Input, or if a node leads to no declared output.
    """
    sinks = [node for node in layers if not readers[node]]
    idle = next((node for node in sinks if layers[node].arity[1] == 0), None)
    if idle is not None:
        raise GraphError(f"input {idle!r} is not read by any node; connect it or remove it")
    if declared is None:
        return tuple(sinks)
    try:
        outputs = dict.fromkeys(declared)
    except Exception:  # user objects may raise anything when they are read
        raise GraphError(f"outputs must be a list of nodes, got {glimpse(declared)}") from None
    missing = [node for node in outputs if node not in layers]
    if missing:
        raise GraphError(f"output {glimpse(missing[0])} is not a node of the network")
    if not outputs:
        raise GraphError("the network has no output; declare at least one")
    dangling = [node for node in sinks if node not in outputs]
    if dangling:
        raise GraphError(
            f"node {dangling[0]!r} is not read by any node and is not an output; declare it "
            "as an output or remove it"
        )
    return tuple(node for node in layers if node in outputs)


def infer_features(steps: Iterable[Step]) -> Features:
    """Return the number of output channels of every node; None if unknown.

    Raises: GraphError if counts contradict each other.
    """
    features: Features = {}
    for node, layer, parents in steps:
        count: Any = layer.emits(Reads(node, parents, tuple(features[p] for p in parents)))
        features[node] = count
    return features
