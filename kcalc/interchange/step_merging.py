"""Simplify the nodes of a network that was read.

Scales and sums are merged into sums, and adjacent unread nodes into one node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import networkx as nx

from ..network.layers import Layer, Opaque, Scale, Sum
from ..network.network import sum_weights
from .rewriting.editing import in_order

Step = tuple[str, Layer, tuple[str, ...]]


def assemble(
    steps: Sequence[Step], ends: Sequence[str]
) -> tuple[list[Step], list[Step], dict[str, str]]:
    """Simplify the steps that reach an output.

    Returns: the steps, the steps before adjacent unread nodes were merged, and {removed node: node
    into which it was merged}.
    """
    gone: dict[str, str] = {}
    apart = _drawn_in(_reaching(steps, ends), set(ends), gone)
    live = _merged_opaque(apart, set(ends), gone)
    for name in list(gone):
        while gone[name] in gone:
            gone[name] = gone[gone[name]]
    return live, apart, gone


def _reaching(steps: Sequence[Step], ends: Sequence[str]) -> list[Step]:
    needed = set(ends)
    kept = []
    for node, layer, parents in _sorted(steps)[::-1]:
        if node in needed:
            needed |= set(parents)
            kept.append((node, layer, parents))
    return kept[::-1]


def _sorted(steps: Sequence[Step]) -> list[Step]:
    """Sort the steps so that every node comes after its parents.

    A node may be out of order if it was created only when another node read it.
    """
    by_name = {step[0]: step for step in steps}
    return [by_name[node] for node in in_order({node: parents for node, _, parents in steps})]


def _drawn_in(steps: list[Step], ends: set[str], gone: dict[str, str]) -> list[Step]:
    """Merge nested Sums and Scales into one Sum.

    A Scale after a Sum, a Sum after a Scale and a Sum after a Sum are merged if no other node reads
    the values in between.
    """
    readers = Counter(p for _, _, parents in steps for p in parents)
    table: dict[str, tuple[Layer, tuple[str, ...]]] = {}
    for node, layer, parents in steps:
        parents = tuple(gone.get(p, p) for p in parents)
        if isinstance(layer, Scale) and parents[0] in table:
            inner, addends = table[parents[0]]
            if (
                isinstance(inner, Sum)
                and readers[parents[0]] == 1
                and parents[0] not in ends
                and node not in ends
            ):
                table[parents[0]] = (
                    Sum(tuple(layer.factor * w for w in _weights(inner, addends))),
                    addends,
                )
                gone[node] = parents[0]
                readers[parents[0]] = readers[node]
                continue
        if isinstance(layer, Sum):
            layer, parents = _flat(layer, parents, table, readers, ends, gone, node)
        table[node] = (layer, parents)
    return [(node, layer, parents) for node, (layer, parents) in table.items()]


def _flat(
    layer: Sum,
    parents: tuple[str, ...],
    table: dict[str, tuple[Layer, tuple[str, ...]]],
    readers: Counter[str],
    ends: set[str],
    gone: dict[str, str],
    node: str,
) -> tuple[Sum, tuple[str, ...]]:
    terms: dict[str, float] = {}
    for parent, weight in zip(parents, _weights(layer, parents), strict=True):
        inner = table.get(parent)
        if (
            inner is not None
            and isinstance(inner[0], Sum | Scale)
            and readers[parent] == 1
            and parent not in ends
        ):
            del table[parent]
            gone[parent] = node
            weights = (
                _weights(inner[0], inner[1]) if isinstance(inner[0], Sum) else (inner[0].factor,)
            )
            for addend, part in zip(inner[1], weights, strict=True):
                terms[addend] = terms.get(addend, 0) + weight * part
        else:
            terms[parent] = terms.get(parent, 0) + weight
    return Sum(None if all(w == 1 for w in terms.values()) else tuple(terms.values())), tuple(terms)


def _weights(layer: Sum, parents: Sequence[str]) -> tuple[Any, ...]:
    return tuple(sum_weights(layer, len(parents)))


def _merged_opaque(steps: list[Step], ends: set[str], gone: dict[str, str]) -> list[Step]:
    """Merge adjacent unread nodes; name the result after the first node that is not a reshape."""
    opaque = {node: layer for node, layer, _ in steps if isinstance(layer, Opaque)}
    links: nx.Graph = nx.Graph()
    links.add_nodes_from(opaque)
    links.add_edges_from(
        (p, node) for node, _, parents in steps for p in parents if node in opaque and p in opaque
    )
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_edges_from((p, node) for node, _, parents in steps for p in parents)
    for members in list(nx.connected_components(links)):
        if (
            len(members) > 1
            and not (members & ends and len(members & ends) > 1)
            and _convex(graph, members)
        ):
            steps = _contracted(steps, members, opaque, ends, gone)
            graph = nx.DiGraph((p, node) for node, _, parents in steps for p in parents)
    return steps


def _convex(graph: nx.DiGraph, members: set[str]) -> bool:
    """Whether nodes can be merged, that is, whether no path leaves the set and returns."""
    after = {n for m in members for n in graph.successors(m)} - members
    seen: set[str] = set()
    queue = list(after)
    while queue:
        node = queue.pop()
        if node in members:
            return False
        if node not in seen:
            seen.add(node)
            queue.extend(graph.successors(node))
    return True


def _contracted(
    steps: list[Step],
    members: set[str],
    opaque: dict[str, Opaque],
    ends: set[str],
    gone: dict[str, str],
) -> list[Step]:
    order = [node for node, _, _ in steps if node in members]
    telling = next(
        (n for n in order if opaque[n].name not in ("reshape", "constant", "transpose")), order[0]
    )
    name = next(iter(members & ends), telling)
    read_outside = ends.union(*(parents for node, _, parents in steps if node not in members))
    widths = {opaque[node].features for node in members & read_outside}
    reads = tuple(
        dict.fromkeys(
            p for node, _, parents in steps if node in members for p in parents if p not in members
        )
    )
    width = widths.pop() if len(widths) == 1 else None
    gone.update(dict.fromkeys(members - {name}, name))
    out: list[Step] = []
    for node, layer, parents in steps:
        if node in members:
            if node == order[-1]:
                out.append((name, replace(opaque[telling], features=width), reads))
            continue
        kept = tuple(name if p in members else p for p in parents)
        out.append((node, layer, tuple(dict.fromkeys(kept)) if isinstance(layer, Opaque) else kept))
    return out
