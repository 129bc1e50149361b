"""Find the residual streams of a network after each sub-layer."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from ..network.layers import Identity, Input, Scale, Sum
from ..network.network import Network, sum_weights

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
    """Express each node as {stream or other feature map: weight}, using the latest streams."""
    kept, found = {node for level in levels for node in level}, dict[Node, Combination]()
    for node, layer, parents in network.steps():
        found[node] = _combined(node, layer, [found[p] for p in parents])
        if node in kept:
            found[node] = {node: 1}
    return found


def after_levels(network: Network, levels: Sequence[Level]) -> Mapping[Node, Combination]:
    """Express each stream as {previous stream or branch: weight}."""
    before = {node for level in levels for node in level}
    linear, found = combinations(network, levels), {}
    for node in before:
        reads = [linear[p] for p in network.parents(node)]
        found[node] = _combined(node, network.layer(node), reads)
    return found


def _combined(node: Node, layer: Any, reads: Sequence[Combination]) -> Combination:
    if isinstance(layer, Input) or not isinstance(layer, Sum | Scale | Identity):
        return {node: 1}
    weights = (
        sum_weights(layer, len(reads)) if isinstance(layer, Sum) else (getattr(layer, "factor", 1),)
    )
    total: Combination = {}
    for weight, read in zip(weights, reads, strict=True):
        for root, factor in read.items():
            total[root] = total.get(root, 0) + weight * factor
    return total
