"""A plain model of what a graph must be to be a network.

Dictionaries and loops, nothing of kcalc but its layer classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import networkx as nx

from kcalc.network import layers as L

Node = Any
NORMS = (L.BatchNorm, L.LayerNorm, L.RMSNorm, L.GroupNorm)
ABSENT = object()  # an attribute that is not set


@dataclass
class Draft:
    """A graph under construction, right or wrong.

    Layers by node, and slots by edge (ABSENT: no such attribute).
    """

    layers: dict[Node, Any] = field(default_factory=dict)
    slots: dict[tuple[Node, Node], Any] = field(default_factory=dict)
    outputs: list[Node] | None = None

    def copy(self) -> Draft:
        return replace(self, layers=dict(self.layers), slots=dict(self.slots))

    def add(self, node: Node, layer: Any, parents: Iterable[Node] = ()) -> None:
        """A node with its parents in slot order."""
        self.layers[node] = layer
        taken: dict[Node, list[int]] = {}
        for slot, parent in enumerate(parents):
            taken.setdefault(parent, []).append(slot)
        for parent, slots in taken.items():
            self.slots[parent, node] = slots[0] if len(slots) == 1 else tuple(slots)

    def remove(self, node: Node) -> None:
        """A node with its edges; outputs stay declared."""
        del self.layers[node]
        self.slots = {edge: slot for edge, slot in self.slots.items() if node not in edge}

    def graph(self, order: list[Node] | None = None) -> nx.DiGraph:
        """The graph, its nodes and edges put in in an order of nodes."""
        out, order = nx.DiGraph(), list(self.layers) if order is None else order
        for node in order:
            out.add_node(
                node, **({} if self.layers[node] is ABSENT else {"layer": self.layers[node]})
            )
        for (parent, child), slot in sorted(
            self.slots.items(), key=lambda item: order.index(item[0][0])
        ):
            out.add_edge(parent, child, **({} if slot is ABSENT else {"slot": slot}))
        return out

    # -- what follows from it ----------------------------------------------------------------------

    def read_by(self, node: Node) -> list[tuple[int | None, Node]]:
        """(slot or None, parent) for everything that a node reads, by slot.

        Raises ValueError where slots make no sense.
        """
        rows: list[tuple[int | None, Node]] = []
        for (parent, child), slot in self.slots.items():
            if child == node:
                given = (
                    slot if isinstance(slot, tuple | list) else [None if slot is ABSENT else slot]
                )
                if not given:
                    raise ValueError
                rows += [(one, parent) for one in given]
        if len(rows) == 1 and rows[0][0] is None:
            rows = [(0, rows[0][1])]
        if not all(type(slot) is int for slot, _ in rows) or sorted(
            slot for slot, _ in rows
        ) != list(range(len(rows))):  # type: ignore[type-var]
            raise ValueError
        return sorted(rows, key=lambda row: row[0])  # type: ignore[arg-type, return-value]

    def parents(self, node: Node) -> tuple[Node, ...]:
        return tuple(parent for _, parent in self.read_by(node))

    def count(self, node: Node) -> int:
        """How many feature maps a node reads."""
        return sum(
            len(slot) if isinstance(slot, tuple | list) else 1
            for (_, child), slot in self.slots.items()
            if child == node
        )

    def sinks(self) -> list[Node]:
        read = {parent for parent, _ in self.slots}
        return [node for node in self.layers if node not in read]

    def reach(self, start: Node, without: Node = ABSENT) -> set[Node]:
        """What a node leads to, itself included."""
        found, waiting = set(), [] if start == without else [start]
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += [
                    child for parent, child in self.slots if parent == node and child != without
                ]
        return found

    def on_cycles(self) -> set[Node]:
        return {child for parent, child in self.slots if parent in self.reach(child)}

    def order(self) -> list[Node]:
        """A topological order, of a graph without cycles."""
        done: list[Node] = []
        while len(done) < len(self.layers):
            done += [
                n
                for n in self.layers
                if n not in done and all(p in done for p, child in self.slots if child == n)
            ]
        return done

    def widths(self) -> tuple[dict[Node, int | None], list[Node]]:
        """(channels by node, nodes at which they contradict)."""
        known: dict[Node, int | None] = {}
        wrong: list[Node] = []
        for node in self.order():
            layer, below = self.layers[node], [known[p] for p in self.parents(node)]
            given = {k for k in below if k is not None}
            known[node] = layer.features if isinstance(layer, L.Input | L.Affine) else None
            if isinstance(layer, L.Affine):
                bad = any(k is not None and k % layer.groups for k in (*below, layer.features))
            elif isinstance(layer, L.Concat):
                counts = below if layer.channels is None else list(layer.channels)
                bad = any(k is not None and k != c for k, c in zip(below, counts, strict=True))
                known[node] = (
                    None
                    if any(c is None for c in counts)
                    else sum(c for c in counts if c is not None)
                )
            elif isinstance(layer, L.Input | L.Flatten | L.Opaque):
                bad = False
            else:
                bad, known[node] = len(given) > 1, given.pop() if len(given) == 1 else None
            wrong += [node] if bad else []
        return known, wrong

    def cuts(self) -> set[Node]:
        """The nodes without which no input leads to an output."""
        inputs = [node for node, layer in self.layers.items() if isinstance(layer, L.Input)]
        ends = set(self.sinks() if self.outputs is None else self.outputs)
        return {
            node
            for node in self.layers
            if not any(self.reach(start, node) & ends for start in inputs)
        }

    def culprits(self) -> set[str]:
        """What an error may name: nodes as they print, or words where it is nobody's fault.

        Empty for a network.
        """
        if not self.layers:
            return {"no nodes"}
        wrong = {node for node, layer in self.layers.items() if not isinstance(layer, L.Layer)}
        wrong |= {node for node in self.layers if node not in wrong and not self._fits(node)}
        if wrong:
            return {repr(node) for node in wrong}
        if cycle := self.on_cycles():
            return {repr(node) for node in cycle}
        if not any(isinstance(layer, L.Input) for layer in self.layers.values()):
            return {"no input"}
        loose = {repr(node) for node in (*self._loose(), *self.widths()[1])}
        return loose | ({"no output"} if self.outputs == [] else set())

    def _fits(self, node: Node) -> bool:
        """Whether a node reads as many feature maps as its layer does, each in a slot
        of its own.
        """
        layer, count = self.layers[node], self.count(node)
        try:
            self.read_by(node)
        except ValueError:
            return False
        if isinstance(layer, L.Input):
            return count == 0
        if isinstance(layer, L.Sum):
            return count >= 1 and (layer.weights is None or len(layer.weights) == count)
        if isinstance(layer, L.Concat):
            return count >= 1 and (layer.channels is None or len(layer.channels) == count)
        return (
            count >= 2
            if isinstance(layer, L.Product)
            else count >= 1
            if isinstance(layer, L.Opaque)
            else count == 1
        )

    def _loose(self) -> set[Node]:
        ends = self.sinks()
        loose = {node for node in ends if isinstance(self.layers[node], L.Input)}
        if self.outputs is not None:
            loose |= set(self.outputs) - set(self.layers)
            loose |= set(ends) - set(self.outputs) if self.outputs else set()
        return loose
