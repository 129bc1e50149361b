"""Represent a network as a frozen networkx graph."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Any

import networkx as nx

from .notes import Note
from .validation import Step

Node = Hashable
NOTES = "notes"  # attribute that keeps notes when the graph is copied or changed


class FrozenAttributes(dict[str, Any]):
    """Attributes of a node or edge of a frozen graph; ``copy()`` returns an ordinary dict."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            "the graph of a network is frozen; change a copy, net.graph.copy(), and build a new "
            "Network from it"
        )

    __setitem__ = __delitem__ = __ior__ = update = setdefault = _refuse  # pyright: ignore
    pop = popitem = clear = _refuse  # pyright: ignore

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def frozen_graph(steps: Iterable[Step], notes: Iterable[Note]) -> nx.DiGraph:
    """Build the frozen ``nx.DiGraph`` of (node, layer, parents in slot order) triples.

    The attributes are frozen too. Notes are attributes of their nodes, so they survive copying,
    relabelling and joining. Notes on nodes that have since been bypassed are stored as an attribute
    of the graph.
    """
    graph: Any = _graph_of(steps)
    for note in notes:
        place = graph._node[note.node] if note.node in graph else graph.graph
        place[NOTES] = (*place.get(NOTES, ()), note)
    for node in graph:
        graph._node[node] = FrozenAttributes(graph._node[node])
        for reader in graph._succ[node]:
            frozen = FrozenAttributes(graph._succ[node][reader])
            graph._succ[node][reader] = graph._pred[reader][node] = frozen
    return nx.freeze(graph)


def notes_of(graph: nx.DiGraph) -> tuple[Note, ...]:
    """Return the notes that a graph inherits from the networks it was built from.

    Each note contains the current label of its node.
    """
    placed = [(node, found) for node, found in graph.nodes(data=NOTES) if found is not None]
    now = [replace(note, node=node) for node, found in placed for note in _notes(found)]
    return (*now, *_notes(graph.graph.get(NOTES)))


def _notes(found: Any) -> tuple[Note, ...]:
    """Return the notes in the attribute of a user's graph; other values are ignored."""
    if not isinstance(found, tuple):
        return ()
    return tuple(note for note in found if isinstance(note, Note))


def _graph_of(steps: Iterable[Step]) -> nx.DiGraph:
    graph = nx.DiGraph()
    triples = list(steps)
    for node, layer, _ in triples:
        graph.add_node(node, layer=layer)
    for node, _, parents in triples:
        slots: dict[Node, list[int]] = {}
        for slot, parent in enumerate(parents):
            slots.setdefault(parent, []).append(slot)
        for parent, taken in slots.items():
            graph.add_edge(parent, node, slot=taken[0] if len(taken) == 1 else tuple(taken))
    return graph
