"""Find the residual streams of a network after each sub-layer."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from ..network.network import Network
from ..network.primitives import Mix

Node = Hashable
Level = tuple[Node, ...]
Combination = dict[Node, Any]
LABEL = re.compile(r"stream_(\d+)_(\d+)")


def label(stream: int, level: int) -> str:
    """Return the label of a stream (counted from 1) after ``level`` sub-layers."""
    return f"stream_{stream}_{level}"


def levels_of(network: Network) -> list[Level] | None:
    """Return the streams at the start and after each sub-layer, or None for a single stream."""
    found: dict[int, dict[int, Node]] = {}
    for node in network:
        match = LABEL.fullmatch(str(node))
        if match:
            found.setdefault(int(match[2]), {})[int(match[1])] = node
    ends = [f"stream_{i}" for i in range(1, len(found.get(1, found.get(0, ()))) + 1)]
    if len(ends) > 1 and network.outputs == tuple(ends):
        found[max(found) + 1] = dict(enumerate(network.outputs, 1))
    levels = [tuple(streams[i] for i in sorted(streams)) for _, streams in sorted(found.items())]
    whole = len({len(level) for level in levels}) == 1 and len(levels) > 1
    return levels if whole and len(levels[0]) > 1 else None


def combinations(network: Network, levels: Iterable[Level]) -> dict[Node, Combination]:
    """Express each node as a weighted sum, {feature map: weight}, of the latest streams before it.

    The output of an operation that is not a weighted sum is a separate feature map.
    """
    kept, found = {node for level in levels for node in level}, dict[Node, Combination]()
    for node, operation, reads in network.operations:
        found[node] = {node: 1} if node in kept else _combined(node, operation, reads, found)
    return found


def after_levels(network: Network, levels: Sequence[Level]) -> Mapping[Node, Combination]:
    """Express each stream as a weighted sum, {previous stream or branch: weight}."""
    kept, linear = {node for level in levels for node in level}, combinations(network, levels)
    return {
        node: _combined(node, operation, reads, linear)
        for node, operation, reads in network.operations
        if node in kept
    }


def _combined(
    node: Node, operation: Any, reads: Sequence[Node], found: Mapping[Node, Combination]
) -> Combination:
    if operation is not None and not isinstance(operation, Mix):
        return {node: 1}
    total: Combination = {}
    for weight, read in zip(operation.weights if operation else (1,), reads, strict=True):
        for root, factor in found[read].items():
            total[root] = total.get(root, 0) + weight * factor
    return total
