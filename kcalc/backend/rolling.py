"""Roll up repeated blocks, so that one node replaces each run of isomorphic consecutive pieces."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..calculi.arrays import Lowered, Repeated
from ..network.blocks import Block, find_blocks
from ..network.layers import Input, Layer
from ..network.network import Network, Step

Node = Hashable
LEAST = 3  # fewest pieces in a block; a scan over two pieces saves nothing


@dataclass(frozen=True)
class Signature(Layer):
    """The properties that must be equal for nodes to share a step of a scan.

    The numerical parameters and weights of the nodes may differ.
    """

    kind: type[Layer]
    form: Hashable
    extents: tuple[Any, ...]


def signature(layer: Layer, lowered: Lowered | None) -> Layer:
    """Return the signature of a node; an Input is its own signature."""
    if lowered is None:
        return layer
    extents = (
        lowered.below,
        lowered.shape,
        len(lowered.numbers),
        *sorted(lowered.tensors.items()),
        *sorted(lowered.state.items()),
    )
    return Signature(type(layer), lowered.form, extents)


def repeated_blocks(
    network: Network, nodes: Mapping[Node, Lowered], least: int = LEAST
) -> tuple[Block, ...]:
    """Return the blocks with at least ``least`` repeated pieces, from first to last.

    The pieces of a block differ only in numerical parameters and weights.
    """
    steps = tuple(
        (node, signature(layer, nodes.get(node)), parents)
        for node, layer, parents in network.steps()
    )
    return tuple(
        block
        for block in find_blocks(steps, network.outputs)
        if block.count >= least and block.entry is not None
    )


def rolled(network: Network, blocks: Sequence[Block]) -> Network:
    """Return the network with each block replaced by one :class:`Repeated` node.

    The node has the name of the last node of the block.
    """
    if not blocks:
        return network
    given = list(network.steps())
    steps = {step[0]: step for step in given}
    for block in blocks:
        first, entry = block.pieces[0], block.entry
        inside = set(first)
        body: list[Step] = [(entry, Input(), ()), *(step for step in given if step[0] in inside)]
        exit_ = block.pieces[-1][-1]
        for node in block.nodes:
            del steps[node]
        steps[exit_] = (
            exit_,
            Repeated(Network.from_steps(body, [first[-1]]), entry, block.pieces),
            (entry,),
        )
    return Network.from_steps(steps.values(), network.outputs)
