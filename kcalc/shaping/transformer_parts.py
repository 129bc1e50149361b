"""Parts of a transformer to which constants apply: attention, its maps, and residual sums."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import networkx as nx

from ..calculi.attention.exchangeable import unlike
from ..foundation.errors import KcalcError, Remedy
from ..network.layers import (
    Affine,
    Attend,
    BatchNorm,
    Identity,
    Input,
    Normalisation,
    Opaque,
    Pool,
    Sum,
)
from ..network.network import Network, sum_weights
from .residual_blocks import ResidualBlock, needed, residual_blocks

Node = Hashable


@dataclass(frozen=True)
class AttentionParts:
    """An Attend node, the Affine layers for its queries, keys and values, and its output map.

    ``source`` is the node that queries, keys and values are computed from. ``normed`` states
    whether queries or keys are normalised, in which case the scale of their weights has no effect.
    """

    node: Node
    queries: Node
    keys: Node
    values: Node
    output: Node
    source: Node
    normed: bool


@dataclass(frozen=True)
class Parts:
    """The parts of a transformer.

    ``entry`` is the node before the first block, and ``end`` is the last node of the stream,
    including the norm after it. ``attending`` and ``others`` are the residual blocks with and
    without attention in their branches. A network without shortcuts around attention has no blocks.
    """

    entry: Node
    end: Node
    attentions: tuple[AttentionParts, ...]
    attending: tuple[ResidualBlock, ...]
    others: tuple[ResidualBlock, ...]

    @property
    def blocks(self) -> tuple[ResidualBlock, ...]:
        """All residual blocks, with and without attention."""
        return self.attending + self.others


def parts_of(network: Network) -> Parts:
    """Find the parts of a transformer.

    Raises: KcalcError for networks without attention, and for networks with cross-attention, with
    BatchNorm, with shortcuts around only some attention layers, or with sums of three or more
    addends around attention.
    """
    if not network.nodes_of(Attend):
        if unread := network.nodes_of(Opaque):
            reason = network.layer(unread[0]).reason
            told = f" ({reason})" if reason else ""
            raise KcalcError(
                "shaping to the edge is for networks with attention, but kcalc found none in this "
                f"network, perhaps because it cannot read node {unread[0]!r}{told}; replace this "
                "node with layers that kcalc supports"
            )
        raise KcalcError(
            "shaping to the edge is for networks with attention, but this network has none"
        ).advising((Remedy("dks"), Remedy("residual_weights")))
    if found := network.nodes_of(BatchNorm):
        raise KcalcError(
            f"node {found[0]!r} is a BatchNorm, which has no rule over tokens; drop it with "
            f"net.without_normalization(kc.layers.BatchNorm)"
        )
    attentions = tuple(_attention(network, node) for node in network.nodes_of(Attend))
    blocks = residual_blocks(network)
    inside = {b.node: _above(network, b.branch) - _above(network, b.entry) for b in blocks}
    attending = tuple(b for b in blocks if any(a.node in inside[b.node] for a in attentions))
    held = [a for a in attentions if any(a.node in inside[b.node] for b in attending)]
    first = attentions[0].node
    below = {first, *nx.descendants(network.graph, first)}
    if not attending:
        sums = [node for node in network.nodes_of(Sum) if node in below]
        if sums:
            raise KcalcError(
                f"the Sum at node {sums[0]!r} is not a residual block of two addends, so no rule "
                "sets its weights; write it as sums of two addends, a stream and a branch"
            )
        end = network.outputs[0]
        return Parts(attentions[0].source, _with_tokens(network, end), attentions, (), ())
    if len(held) < len(attentions):
        bare = next(a for a in attentions if a not in held)
        raise KcalcError(
            f"node {bare.node!r} attends outside all residual blocks, but node {held[0].node!r} "
            "attends inside one; shape the two parts of the network separately"
        )
    order = {node: k for k, node in enumerate(network)}
    first = min(blocks, key=lambda b: order[b.node])
    outer = [b for b in blocks if not any(b.node in inside[o.node] for o in blocks)]
    others = tuple(b for b in outer if b not in attending)
    last = max(attending + others, key=lambda b: order[b.node]).node
    above = {last, *nx.ancestors(network.graph, last)}
    if stray := [b.node for b in attending + others if b.node not in above]:
        raise KcalcError(
            f"method 'edge' shapes one residual stream, but the sum at node {stray[0]!r} does not "
            f"lead to the last one, at node {last!r}; shape the two parts of the network separately"
        )
    return Parts(first.entry, _normed_end(network, last), attentions, attending, others)


def _attention(network: Network, node: Node) -> AttentionParts:
    ways = [_way(network, parent) for parent in network.parents(node)]
    maps = [next((n for n in way if isinstance(network.layer(n), Affine)), None) for way in ways]
    common = next((n for n in ways[0] if all(n in way for way in ways)), None)
    if common is None or None in maps or any(m == common for m in maps):
        raise KcalcError(
            f"node {node!r} takes queries, keys and values from different feature maps or without "
            "separate Affine layers, for which method 'edge' has no rule"
        )
    normed = any(
        isinstance(network.layer(n), Normalisation)
        for way, m in zip(ways[:2], maps[:2], strict=True)
        for n in way[: way.index(m)]
    )
    readers = [n for n, _, parents in network.steps() if node in parents]
    if len(readers) != 1 or not isinstance(network.layer(readers[0]), Affine):
        raise KcalcError(
            f"the heads of node {node!r} must be read by a single Affine layer, whose scale this "
            "method sets"
        )
    return AttentionParts(node, maps[0], maps[1], maps[2], readers[0], common, normed)


def _way(network: Network, node: Node) -> list[Node]:
    """Return the node and its ancestors, up to the first that does not read exactly one node."""
    way = [node]
    while len(above := network.parents(way[-1])) == 1:
        way.append(above[0])
    return way


def _with_tokens(network: Network, node: Node) -> Node:
    """Return the last node with tokens on the path to ``node``."""
    pools = [n for n in _way(network, node) if isinstance(network.layer(n), Pool)]
    return network.parents(pools[-1])[0] if pools else node


def _normed_end(network: Network, node: Node) -> Node:
    """Return the node, or the norm that is its only reader."""
    readers = [n for n, _, parents in network.steps() if node in parents]
    one = len(readers) == 1 and isinstance(network.layer(readers[0]), Normalisation)
    return readers[0] if one else node


def stream(network: Network, parts: Parts) -> Network:
    """Return the network from ``entry``, its new Input, to ``end``, with exchangeable tokens.

    Attention masks, windows and positions are removed.

    Raises: KcalcError if a node after the entry reads a node before it.
    """
    steps = []
    for node, layer, parents in network.steps():
        if node == parts.entry:
            steps.append((node, Input(), ()))
        elif isinstance(layer, Attend):
            steps.append((node, _alike(layer), parents))
        else:
            steps.append((node, layer, parents))
    made = needed(steps, (parts.end,))
    if len(made.inputs) > 1:
        other = next(node for node in made.inputs if node != parts.entry)
        raise KcalcError(
            f"nodes after {parts.entry!r}, the entry of the first block, also read {other!r}; cut "
            "the network there"
        )
    return made


def _alike(layer: Attend) -> Attend:
    return replace(layer.alike(), wide=None)


def tells_apart(network: Network, tokens: int) -> str:
    """Describe the layers that break the exchangeability of tokens; "" if there are none."""
    found = (unlike(op, tokens) for _, op, _ in network.operations)
    return next((words for words in found if words), "")


def two_by_two(network: Network) -> Network:
    """Write sums of several branches as sums of two addends.

    ``x + f + g`` becomes ``(x + f) + g``; the last sum keeps the node's label. Branches without
    attention, such as routed and shared experts, are added first and count as one branch.
    """
    steps: list[Any] = []
    for node, layer, parents in network.steps():
        below = _stream_of(network, parents) if isinstance(layer, Sum) else None
        if not isinstance(layer, Sum) or below is None or len(parents) < 3:
            steps.append((node, layer, parents))
            continue
        weights = dict(zip(parents, sum_weights(layer, len(parents)), strict=True))
        branches, weight = [p for p in parents if p != below], weights[below]
        alike = [p for p in branches if not _attends(network, below, p)]
        if len(alike) > 1:
            joined = (node, 0)
            steps.append((joined, Sum(tuple(weights[p] for p in alike)), tuple(alike)))
            branches = [joined if p == alike[0] else p for p in branches if p not in alike[1:]]
            weights[joined] = 1
        for k, branch in enumerate(branches, 1):
            name = node if k == len(branches) else (node, k)
            steps.append((name, Sum((weight, weights[branch])), (below, branch)))
            below, weight = name, 1
    return Network.from_steps(steps, network.outputs)


def _attends(network: Network, below: Node, branch: Node) -> bool:
    """Whether there is attention on a path from the stream to the end of a branch."""
    inside = _above(network, branch) - _above(network, below)
    return any(isinstance(network.layer(node), Attend) for node in inside)


def _above(network: Network, node: Node) -> set[Node]:
    """Return the node and all nodes before it."""
    return {node, *nx.ancestors(network.graph, node)}


def _stream_of(network: Network, parents: Sequence[Node]) -> Node | None:
    """Return the addend on which all other addends depend, or None if there is none."""
    ways = [_above(network, parent) for parent in parents]
    return next((p for p in parents if all(p in way for way in ways)), None)


def tokens_alone(network: Network) -> Network:
    """Return the network in which tokens read only themselves: attention returns its values."""
    steps = [
        (node, Identity(), parents[2:]) if isinstance(layer, Attend) else (node, layer, parents)
        for node, layer, parents in network.steps()
    ]
    return needed(steps, network.outputs)


def with_sigmas(network: Network, sigmas: dict[Node, Any]) -> Network:
    """Replace ``sigma_w`` of some Affine layers."""
    return network.map_layers(
        lambda node, layer: replace(layer, sigma_w=sigmas[node]) if node in sigmas else layer,
        Affine,
    )
