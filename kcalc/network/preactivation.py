"""Post-activation residual networks, relu(shortcut + branch), in pre-activation form, shortcut + branch(relu)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from .layers import Dropout, Identity, Layer, Nonlinear, Pool, Scale, Sum

Node = Hashable
Step = tuple[Node, Layer, tuple[Node, ...]]
PASSING = (Identity, Pool, Dropout)


def preactivated_steps(steps: Sequence[Step]) -> list[Step]:
    """The steps with every identity shortcut reading the input of its activation.

    Where an addend of a Sum is ``phi(z)`` and ``phi(z)`` also feeds a branch, the Sum reads z itself and the branch keeps phi(z);
    pooling between them moves before phi. A Scale right behind phi counts as part of it. Sums whose addends end in an activation of their
    own are left as they are.
    """
    layers = {node: layer for node, layer, _ in steps}
    parents = {node: tuple(reads) for node, _, reads in steps}
    for node, layer, _ in steps:
        if isinstance(layer, Sum):
            parents[node] = tuple(_before_activation(node, addend, layers, parents) for addend in parents[node])
    return [(node, layers[node], parents[node]) for node in layers]


def _before_activation(reader: Node, addend: Node, layers: dict[Node, Layer], parents: dict[Node, tuple[Node, ...]]) -> Node:
    """The addend without its activation; ``parents`` is changed where pooling has to move before it."""
    chain: list[Node] = []
    place = _unscaled(addend, layers, parents)
    while isinstance(layers[place], PASSING):
        chain.append(place)
        place = parents[place][0]
    if not isinstance(layers[place], Nonlinear):
        return addend
    others = [node for node in layers if node != reader and addend in parents[node]]
    if not others:
        return addend
    if not chain:
        return parents[place][0]
    if _readers(place, parents) != {chain[-1]} or any(_readers(chain[i + 1], parents) != {chain[i]} for i in range(len(chain) - 1)):
        return addend
    parents[chain[-1]] = parents[place]
    parents[place] = (addend,)
    for node in others:
        parents[node] = tuple(place if p == addend else p for p in parents[node])
    return addend


def _unscaled(node: Node, layers: dict[Node, Layer], parents: dict[Node, tuple[Node, ...]]) -> Node:
    """The activation behind its Scales; the node itself where there is none."""
    place = node
    while isinstance(layers[place], Scale):
        place = parents[place][0]
    return place if isinstance(layers[place], Nonlinear) else node


def _readers(node: Node, parents: dict[Node, tuple[Node, ...]]) -> set[Node]:
    return {other for other, reads in parents.items() if node in reads}
