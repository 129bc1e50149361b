"""Structure of a network: cut points, repeated blocks, isomorphism."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from ..foundation.repetition import repetition
from .layers import Layer

Node = Hashable
Step = tuple[Node, Layer, tuple[Node, ...]]


@dataclass(frozen=True)
class Block:
    """A sequence of isomorphic pieces.

    Each piece reads one feature map and returns the feature map of its last node.

    Attributes
    ----------
    count
        The number of pieces.
    pieces
        ``pieces[i]`` lists the nodes of the i-th piece; corresponding nodes of all pieces have the
        same index.
    entry
        The node that the first piece reads; None if the first piece starts at the network's inputs.

    """

    entry: Node | None
    pieces: tuple[tuple[Node, ...], ...]

    @property
    def count(self) -> int:
        """The number of times the piece is repeated."""
        return len(self.pieces)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes of the block."""
        return tuple(node for piece in self.pieces for node in piece)

    def __repr__(self) -> str:
        return f"Block({len(self.pieces[0])} nodes x {self.count}, after {self.entry!r})"


def cut_nodes(steps: Sequence[Step], outputs: Sequence[Node]) -> list[Node]:
    """Return the nodes that lie on every path from an input to an output, in order.

    In a topological order, a node is a cut iff no edge leads from an earlier to a later node, all
    inputs come before it, and no earlier node is an output.
    """
    position = {node: i for i, (node, _, _) in enumerate(steps)}
    last_use = {node: i for i, (node, _, _) in enumerate(steps)}
    for i, (_, _, parents) in enumerate(steps):
        for parent in parents:
            last_use[parent] = i
    for node in outputs:
        last_use[node] = len(steps)
    last_input = max((position[node] for node, _, parents in steps if not parents), default=0)
    cuts: list[Node] = []
    reach = 0  # the last reader of any earlier node
    for i, (node, _, _) in enumerate(steps):
        if i >= last_input and reach <= i:
            cuts.append(node)
        reach = max(reach, last_use[node])
    return cuts


def find_blocks(steps: Sequence[Step], outputs: Sequence[Node]) -> tuple[Block, ...]:
    """Cut the network at its cut nodes and group equal consecutive pieces.

    See :meth:`kcalc.Network.blocks`.
    """
    pieces = trunk_pieces(steps, outputs)
    codes: dict[Any, int] = {}
    numbers = [codes.setdefault(code, len(codes)) for _, _, code in pieces]
    blocks: list[Block] = []
    start = 0
    while start < len(pieces):
        period, count = repetition(numbers, start)
        rows = (pieces[start + k * period : start + (k + 1) * period] for k in range(count))
        nodes = tuple(tuple(node for _, part, _ in row for node in part) for row in rows)
        blocks.append(Block(pieces[start][0], nodes))
        start += period * count
    return tuple(blocks)


def trunk_pieces(
    steps: Sequence[Step], outputs: Sequence[Node]
) -> list[tuple[Node | None, tuple[Node, ...], Any]]:
    """Return (entry, nodes, code) of each piece between cuts; isomorphic pieces share a code."""
    cuts = set(cut_nodes(steps, outputs))
    pieces: list[tuple[Node | None, tuple[Node, ...], Any]] = []
    entry: Node | None = None
    current: list[Step] = []
    for step in steps:
        current.append(step)
        if step[0] in cuts:
            pieces.append((entry, *_canonical(current, entry)))
            entry, current = step[0], []
    if current:  # several outputs at the end
        names = {node: i for i, (node, _, _) in enumerate(current)}
        code = tuple(
            (layer, tuple(names.get(p, -1) for p in parents)) for _, layer, parents in current
        )
        pieces.append((entry, tuple(names), ("end", code)))
    return pieces


def _canonical(piece: Sequence[Step], entry: Node | None) -> tuple[tuple[Node, ...], Any]:
    """Return the nodes of a piece in canonical order, and a code for the piece's structure.

    The order is depth-first from the last node through the slots.
    """
    table = {node: (layer, parents) for node, layer, parents in piece}
    number: dict[Node, int] = {}
    stack: list[tuple[Node, bool]] = [(piece[-1][0], False)]
    while stack:
        node, done = stack.pop()
        if node in number:
            continue
        if done:
            number[node] = len(number)
            continue
        stack.append((node, True))
        stack.extend((p, False) for p in reversed(table[node][1]) if p != entry and p not in number)
    code = tuple(
        (table[node][0], tuple(number.get(p, -1) for p in table[node][1])) for node in number
    )
    return tuple(number), code


def same_structure(
    first: Sequence[Step],
    first_out: Sequence[Node],
    second: Sequence[Step],
    second_out: Sequence[Node],
) -> bool:
    """Whether two networks differ only in node labels and in the order of addends of a Sum."""
    if len(first) != len(second) or len(first_out) != len(second_out):
        return False
    graphs = [_coloured(first, set(first_out)), _coloured(second, set(second_out))]
    colours = [Counter(data["colour"] for _, data in g.nodes(data=True)) for g in graphs]
    if colours[0] != colours[1]:
        return False
    if all(count == 1 for count in colours[0].values()):
        return True
    return nx.is_isomorphic(
        *graphs,
        node_match=lambda a, b: a["colour"] == b["colour"],
        edge_match=lambda a, b: a["label"] == b["label"],
    )


def _coloured(steps: Sequence[Step], outputs: set[Node]) -> nx.DiGraph:
    """Return the graph with nodes coloured by the structure above and below them.

    Only nodes of the same colour can correspond.
    """
    up: dict[Node, int] = {}
    labels: dict[Node, dict[Node, tuple[Any, ...]]] = {}
    for node, layer, parents in steps:
        kind, marks = layer.colour(len(parents))
        above = Counter((mark, up[p]) for mark, p in zip(marks, parents, strict=True))
        up[node] = hash((kind, frozenset(above.items()), node in outputs))
        for mark, parent in zip(marks, parents, strict=True):
            labels.setdefault(node, {}).setdefault(parent, ())
            labels[node][parent] = (*labels[node][parent], mark)
    below: dict[Node, Counter[Any]] = {node: Counter() for node, _, _ in steps}
    colour: dict[Node, int] = {}
    for node, _, parents in reversed(steps):
        colour[node] = hash((up[node], frozenset(below[node].items())))
        for parent in parents:
            below[parent][colour[node], labels[node][parent]] += 1
    graph = nx.DiGraph()
    graph.add_nodes_from((node, {"colour": colour[node]}) for node, _, _ in steps)
    for node, readers in labels.items():
        graph.add_edges_from(
            (parent, node, {"label": tuple(sorted(marks, key=str))})
            for parent, marks in readers.items()
        )
    return graph
