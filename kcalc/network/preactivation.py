"""Rewrite post-activation residual networks in pre-activation form.

The sum relu(shortcut + branch) becomes shortcut + branch(relu).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from .layers import Layer, Nonlinear, Scale, Sum

if TYPE_CHECKING:
    from .network import Network

Node = Hashable
Step = tuple[Node, Layer, tuple[Node, ...]]
Parents = dict[Node, tuple[Node, ...]]


def preactivated_steps(network: Network) -> list[Step]:
    """Rewrite the steps so that every identity shortcut reads the input of its activation.

    If an addend of a Sum is ``phi(z)`` and ``phi(z)`` also feeds a branch, the Sum then reads z and
    the branch keeps phi(z). Pooling between phi and the Sum moves before phi. A Scale directly
    after phi counts as part of it. A Sum does not change if each addend ends in its own activation.
    """
    parents = {node: reads for node, _, reads in network.steps()}
    rewrite = _Rewrite(
        network, parents, frozenset(network.nodes_of(Nonlinear)), frozenset(network.nodes_of(Scale))
    )
    for node in network.nodes_of(Sum):
        parents[node] = tuple(rewrite.before_activation(node, addend) for addend in parents[node])
    return [(node, layer, parents[node]) for node, layer, _ in network.steps()]


@dataclass(frozen=True)
class _Rewrite:
    """The state of a rewrite: the new ``parents`` of each node, the activations and the Scales."""

    network: Network
    parents: Parents
    activated: frozenset[Node]
    scaled: frozenset[Node]

    def before_activation(self, reader: Node, addend: Node) -> Node:
        """Return the addend without its activation.

        If pooling must move before the activation, the method changes ``parents``.
        """
        chain: list[Node] = []
        place, parents = self._unscaled(addend), self.parents
        while self.network.layer(place).passes:
            chain.append(place)
            place = parents[place][0]
        if place not in self.activated:
            return addend
        others = [node for node in parents if node != reader and addend in parents[node]]
        if not others:
            return addend
        if not chain:
            return parents[place][0]
        if self._readers(place) != {chain[-1]} or any(
            self._readers(after) != {before} for before, after in pairwise(chain)
        ):
            return addend
        parents[chain[-1]] = parents[place]
        parents[place] = (addend,)
        for node in others:
            parents[node] = tuple(place if p == addend else p for p in parents[node])
        return addend

    def _unscaled(self, node: Node) -> Node:
        """Return the activation before a chain of Scales, or the node itself if there is none."""
        place = node
        while place in self.scaled:
            place = self.parents[place][0]
        return place if place in self.activated else node

    def _readers(self, node: Node) -> set[Node]:
        return {other for other, reads in self.parents.items() if node in reads}
