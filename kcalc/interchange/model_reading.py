"""The result of reading a model: a network, and its differences from the model."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..foundation.plain_arguments import items
from ..foundation.printing import Tabled
from ..foundation.process_state import cached_property
from ..network.layers import Input, Opaque
from ..network.network import Network
from ..network.notes import LEVELS, Note
from .trace import Trace

Node = Hashable
SHOWN = 8  # nodes listed in one line
HEADINGS = {
    "exact": "exact",
    "locations": "exact but for locations",
    "pooling": "heuristic in kernel maps: pooling",
    "approximate": "heuristic",
    "not read": "opaque, not read",
}


@dataclass(frozen=True)
class Fidelity:
    """The accuracy with which a network represents a model, node by node.

    Attributes
    ----------
    level
        The worst level of any node.

    """

    nodes: Mapping[Node, str]

    @property
    def level(self) -> str:
        """Return the worst level of any node."""
        return max(self.nodes.values(), key=list(LEVELS).index, default="exact")

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of nodes at each level."""
        found = Counter(self.nodes.values())
        return {level: found[level] for level in LEVELS if found[level]}

    def __str__(self) -> str:
        return ", ".join(f"{count} {level}" for level, count in self.counts.items())


@dataclass(frozen=True)
class Reading(Tabled):
    """A model as a :class:`kcalc.Network`.

    Attributes
    ----------
    notes
        Every difference from the model, node by node.
    remarks
        Remarks on the model as a whole.
    sources
        {node: place in the model's code}.
    trace
        The operations of the model; None in an unpickled reading.
    apart
        The network before neighbouring unread operations were merged into one node.
    places
        {operation of the trace: node whose feature map it returns}.
    gains
        {norm: (gain, bias)} for norms whose single gain and bias became part of the next node of
        the network.
    read_at
        {node: operations from which other nodes read its feature map}. There are several
        operations if the model computes the feature map several times.

    """

    framework: str
    network: Network
    notes: tuple[Note, ...]
    sources: Mapping[Node, str]
    remarks: tuple[str, ...] = ()
    trace: Trace | None = field(default=None, repr=False)
    apart: Network | None = field(default=None, repr=False)
    places: Mapping[str, Node] = field(default_factory=dict, repr=False)
    gains: Mapping[str, tuple[float, float]] = field(default_factory=dict, repr=False)
    read_at: Mapping[Node, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Drop the trace, which contains functions of this process and the model's weights."""
        return {**self.__dict__, "trace": None}

    @property
    def unmerged(self) -> Network:
        """Return the network in which each operation that was not read is a separate node."""
        return self.network if self.apart is None else self.apart

    @cached_property
    def fidelity(self) -> Fidelity:
        """Return how well each node represents the model.

        The result prints as counts of nodes by level.
        """
        worst = dict.fromkeys(self.network, "exact")
        order = list(LEVELS)
        for note in self.notes:
            if note.node in worst and order.index(note.level) > order.index(worst[note.node]):
                worst[note.node] = note.level
        return Fidelity(worst)

    @cached_property
    def parts(self) -> tuple[Network, ...]:
        """Return the parts of the network between Opaque nodes.

        The outputs of Opaque nodes become inputs of the parts after them.

        Results for a part start from the q values and cosines of its inputs. They assume that
        these inputs are uncorrelated with the other terms of Sums. This may be wrong if an input is
        the output of a layer that was not read, such as attention.
        """
        return self.cut(self.unmerged.nodes_of(Opaque)) or (self.network,)

    def cut(self, nodes: Iterable[Node]) -> tuple[Network, ...]:
        """Remove nodes, and return the connected parts that remain.

        Outputs of removed nodes become inputs.

        Parameters
        ----------
        nodes
            The nodes to remove.

        Returns
        -------
        tuple[Network, ...]
            The parts, from first to last.

        Raises
        ------
        KcalcError
            If a node does not exist.

        """
        taken = items(nodes, "nodes")
        for node in taken:  # check before making a set, because nodes must be hashable
            self.unmerged.layer(node)
        return tuple(connected_parts(self.unmerged, set(taken))) if taken else ()

    def __str__(self) -> str:
        lines = [repr(self), f"fidelity: {self.fidelity}"]
        lines += [f"remark: {remark}" for remark in self.remarks]
        for level in LEVELS:
            lines += self._of_level(level)
        return "\n".join(lines)

    def _of_level(self, level: str) -> list[str]:
        """Return lines that list the nodes at one level of fidelity and their notes."""
        nodes = [str(node) for node, known in self.fidelity.nodes.items() if known == level]
        told = _listed(tuple(note for note in self.notes if note.level == level))
        if not nodes and not told:
            return []
        if not nodes:  # all nodes with these notes also have notes of a worse level
            return [f"also {HEADINGS[level]}", *told]
        count = f"{len(nodes)} node" + ("s" if len(nodes) != 1 else "")
        return [f"{HEADINGS[level]} ({count}): {named(nodes)}", *told]

    def __repr__(self) -> str:
        return f"Reading({self.framework}, {len(self.network)} nodes, {self.fidelity})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(str(n.node))}</td><td>{HEADINGS[n.level]}</td>"
            f"<td style='text-align:left'>{html.escape(n.text)}</td></tr>"
            for n in self._worst_first()[:60]
        )
        more = f"<p>and {len(self.notes) - 60} more</p>" if len(self.notes) > 60 else ""
        remarks = "".join(f"<p>{html.escape(remark)}</p>" for remark in self.remarks)
        table = (
            f"<table><tr><th>node</th><th>fidelity</th><th>note</th></tr>{rows}</table>{more}"
            if rows
            else ""
        )
        return f"<p><b>{html.escape(repr(self))}</b></p>{remarks}{table}"

    def _frame(self) -> dict[str, list[str]]:
        notes = self._worst_first()
        return {
            "node": [str(n.node) for n in notes],
            "fidelity": [n.level for n in notes],
            "note": [n.text for n in notes],
        }

    def _worst_first(self) -> list[Note]:
        order = list(LEVELS)
        return sorted(self.notes, key=lambda note: -order.index(note.level))

    def to_dict(self) -> dict[str, Any]:
        """Return the reading as plain data: the network, the fidelity of each node, and notes.

        Returns
        -------
        dict[str, Any]
            Values that JSON can represent.

        """
        from .json_format import network_to_dict

        return {
            "schema": "kcalc.reading/1",
            "framework": self.framework,
            "network": network_to_dict(self.network),
            "fidelity": {str(node): level for node, level in self.fidelity.nodes.items()},
            "notes": [
                {"node": str(n.node), "level": n.level, "text": n.text, "source": n.source}
                for n in self.notes
            ],
            "remarks": list(self.remarks),
            "sources": {str(node): place for node, place in self.sources.items()},
        }


def _listed(notes: tuple[Note, ...], most: int = 40) -> list[str]:
    """Return one line per distinct note, with the nodes that have it."""
    places: dict[str, list[str]] = {}
    for note in notes:
        places.setdefault(note.text, []).append(str(note.node))
    lines = [f"  {named(list(dict.fromkeys(nodes)), 3)}: {text}" for text, nodes in places.items()]
    return lines[:most] + (
        [f"  ... and {len(lines) - most} more distinct notes"] if len(lines) > most else []
    )


def named(nodes: list[str], most: int = SHOWN) -> str:
    """Return the first few nodes as text, with the number of other nodes."""
    return ", ".join(nodes[:most]) + (f" and {len(nodes) - most} more" if len(nodes) > most else "")


def connected_parts(network: Network, opaque: set[Node]) -> list[Network]:
    """Remove ``opaque`` nodes, turn their outputs into inputs, and return the connected parts."""
    import networkx as nx

    links: Any = nx.Graph()
    links.add_nodes_from(node for node in network if node not in opaque)
    for node, _, parents in network.steps():
        links.add_edges_from((node, p) for p in parents if node not in opaque and p not in opaque)
    out = []
    for members in nx.connected_components(links):
        steps = [(n, layer, parents) for n, layer, parents in network.steps() if n in members]
        read = {p for _, _, parents in steps for p in parents}
        entries = [
            (p, Input(features=network.features[p]), ()) for p in network if p in read & opaque
        ]
        ends = [n for n in members if n not in read]
        if any(not isinstance(layer, Input) for _, layer, _ in steps):
            part = Network.from_steps([*entries, *steps], [n for n in network if n in ends])
            out.append(part.with_notes(note for note in network.notes if note.node in members))
    return out
