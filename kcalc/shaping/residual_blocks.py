"""Find the residual blocks of any network from the structure of its graph.

This module also builds networks with different residual weights.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from ..calculi.subnetworks.regions import network_regions
from ..foundation.errors import KcalcError, unknown
from ..foundation.plain_arguments import items
from ..foundation.printing import Shown
from ..network.combinators import residual_weights
from ..network.layers import Affine, Nonlinear, Sum
from ..network.network import Network, Step, sum_weights

__all__ = ["ResidualBlock", "residual_blocks", "with_residual_weights"]

Node = Hashable


@dataclass(frozen=True)
class ResidualBlock(Shown):
    """A Sum of two addends that branch off at the node ``entry``.

    One addend is a shortcut, and the other is a deeper branch.

    Attributes
    ----------
    depth
        The number of nonlinear layers on the longest path of the branch.
    identity
        Whether the shortcut is the identity; otherwise it contains layers, as in a transition
        block.
    weights
        The current (shortcut, residual) amplitudes of the Sum.
    shortcut
        The shortcut node that the Sum reads.
    branch
        The branch node that the Sum reads.
    slot
        The slot of the shortcut, 0 or 1.

    """

    node: Node
    entry: Node
    shortcut: Node
    branch: Node
    slot: int
    depth: int
    identity: bool
    weights: tuple[Any, Any]


def residual_blocks(network: Network) -> tuple[ResidualBlock, ...]:
    """Find the residual blocks of a network, inner before outer and first to last.

    A Sum of two different addends is residual if some node lies on all paths to both; the nearest
    such node is the entry. The shortcut is the addend with fewer nonlinear layers on its longest
    path from the entry. In case of a tie, it is the addend with fewer weights. Sums of two
    equal branches, or of three or more addends, are not residual.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.

    Returns
    -------
    tuple[ResidualBlock, ...]
        One entry per residual sum.

    """
    nodes, parents, regions = network_regions(network)
    layers = [network.layer(node) for node in nodes]
    found: list[ResidualBlock] = []
    for number, above in enumerate(parents):
        entry = regions.idom[number]
        layer = layers[number]
        if (
            not isinstance(layer, Sum)
            or len(above) != 2
            or above[0] == above[1]
            or entry == len(nodes)
        ):
            continue
        (first, second) = (_depth(part, entry, parents, layers) for part in above)
        if first == second:
            continue
        slot = 0 if first < second else 1
        deep, weights = (second, first)[slot][0], sum_weights(layer, 2)
        entry_node, shortcut, branch = nodes[entry], nodes[above[slot]], nodes[above[1 - slot]]
        passes = _passes(above[slot], entry, parents, layers)
        found.append(
            ResidualBlock(
                nodes[number],
                entry_node,
                shortcut,
                branch,
                slot,
                deep,
                passes,
                (weights[slot], weights[1 - slot]),
            )
        )
    return tuple(found)


def _depth(
    end: int, entry: int, parents: Sequence[Sequence[int]], layers: Sequence[Any]
) -> tuple[int, int]:
    """Return the counts of (nonlinear, Affine) layers on the longest path to ``end``.

    The path starts at ``entry``, which is not counted.
    """
    inside, waiting = {end}, [end]
    while waiting:
        node = waiting.pop()
        if node != entry:
            fresh = [parent for parent in parents[node] if parent not in inside]
            inside.update(fresh)
            waiting.extend(fresh)
    depth: dict[int, tuple[int, int]] = {}
    for node in sorted(inside):  # node indices are in topological order
        nonlinear, affine = (
            (0, 0) if node == entry else max(depth[parent] for parent in parents[node])
        )
        if node != entry:
            nonlinear = nonlinear + isinstance(layers[node], Nonlinear)
            affine = affine + isinstance(layers[node], Affine)
        depth[node] = nonlinear, affine
    return depth[end]


def _passes(end: int, entry: int, parents: Sequence[Sequence[int]], layers: Sequence[Any]) -> bool:
    while end != entry and layers[end].passes:
        end = parents[end][0]
    return end == entry


def require_blocks(network: Network) -> tuple[ResidualBlock, ...]:
    """Return the residual blocks.

    Raises: KcalcError if there are none.
    """
    blocks = residual_blocks(network)
    if not blocks:
        raise KcalcError(
            "the network has no residual block (a Sum of a shortcut and a deeper branch), so "
            "there are no residual weights to set; "
            "build blocks with kc.residual(branch, shortcut_weight=...)"
        )
    return blocks


def with_residual_weights(
    network: Network, shortcut_weight: Any = None, residual_weight: Any = None
) -> Network:
    """Set the weights of the residual blocks of a network.

    If only one of the two weights is passed, the other follows because the squares sum to one.

    Each weight is a scalar (or SymPy expression) for all blocks, {Sum node: value} for some blocks,
    or a sequence with one value per block in the order of :func:`residual_blocks`. Weights are
    amplitudes; if both are passed, they are used unchanged.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    shortcut_weight
        The amplitude of the shortcut. If only one weight is passed, the squares of both sum to 1.
    residual_weight
        The amplitude of the branch. If only one weight is passed, the squares of both sum to 1.

    Returns
    -------
    Network
        A new network.

    Raises
    ------
    KcalcError
        If only one weight is passed and it is outside [0, 1], a residual weight is 0, a node is not
        a residual Sum, a sequence has the wrong length, or the network has no residual blocks.

    """
    blocks = require_blocks(network)
    if shortcut_weight is None and residual_weight is None:
        raise KcalcError(
            "pass shortcut_weight or residual_weight as a number, {node: number}, or one "
            "number per block"
        )
    along, through = _per_block(shortcut_weight, blocks), _per_block(residual_weight, blocks)
    sums: dict[Node, Sum] = {}
    for block in blocks:
        given = along.get(block.node), through.get(block.node)
        if given == (None, None):
            continue
        try:
            weights: Any = residual_weights(*given)
        except KcalcError as error:
            raise KcalcError(f"node {block.node!r}: {error}") from None
        sums[block.node] = Sum(weights if block.slot == 0 else weights[::-1])
    return network.map_layers(lambda node, layer: sums.get(node) or layer, Sum)


def _per_block(value: Any, blocks: Sequence[ResidualBlock]) -> dict[Node, Any]:
    names = [block.node for block in blocks]
    if value is None:
        return {}
    if isinstance(value, Mapping):
        for node in value:
            if node not in names:
                raise unknown("residual Sum", node, map(str, names))
        return dict(value)
    if not isinstance(value, Sized) or isinstance(value, str | type):
        return dict.fromkeys(names, value)
    weights = items(value, "weights of the blocks")
    if len(weights) != len(names):
        raise KcalcError(
            f"the network has {len(names)} residual blocks, but {len(weights)} weights were passed"
        )
    return dict(zip(names, weights, strict=True))


def needed(steps: Iterable[Step], outputs: Sequence[Node]) -> Network:
    """Return a network that contains only the steps on which the outputs depend."""
    by_node = {step[0]: step for step in steps}
    kept, waiting = set(outputs), list(outputs)
    while waiting:
        fresh = [parent for parent in by_node[waiting.pop()][2] if parent not in kept]
        kept.update(fresh)
        waiting.extend(fresh)
    return Network.from_steps([s for node, s in by_node.items() if node in kept], outputs)
