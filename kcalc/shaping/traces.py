"""The depth trace of a network: the c value of every layer, from several c values of the input."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..calculi.global_maps import node_values
from ..network.layers import Affine, Nonlinear
from ..network.network import Network

Node = Hashable
Array = np.ndarray
STARTS = (-0.9, -0.5, 0.0, 0.5, 0.9)


@dataclass(frozen=True)
class DepthTrace:
    """c values of nodes in the order of the network.

    The inputs have q = 1 and the c values ``cosines``.

    ``depth``: the nonlinear layers on the longest way from an input to the node, itself included,
    and a half more after an Affine that follows them, shape (nodes,). ``values``: shape (nodes,
    cosines). ``layers``: the rows that are Affine or Nonlinear. ``trunk``: the rows of the nodes
    through which all ways from inputs to outputs pass; where there are hardly any, those on a
    longest way.
    """

    cosines: tuple[float, ...]
    nodes: tuple[Node, ...]
    depth: Array
    values: Array
    layers: Array
    trunk: Array


def depth_trace(network: Network, cosines: Sequence[float] = STARTS, **tokens: Any) -> DepthTrace:
    """The c value of every node for inputs of q = 1.

    ``tokens``: the arguments of :func:`kcalc.node_values` over tokens.

    Raises: KcalcError where the kernel calculus does not apply or overflows.
    """
    starts = tuple(float(c) for c in cosines)
    found = node_values(network, np.array(starts), 1.0, **tokens)
    nodes = tuple(node for node, _, _ in network.steps())
    values = np.array(
        [np.broadcast_to(found[node][2], (len(starts),)) for node in nodes], dtype=float
    )
    layers = [
        i
        for i, (_, layer, _) in enumerate(network.steps())
        if isinstance(layer, Affine | Nonlinear)
    ]
    depth, longest = _depths(network)
    trunk = _passed_by_all(network)
    return DepthTrace(
        starts,
        nodes,
        depth,
        values,
        np.array(layers),
        np.array(trunk if len(trunk) > 3 else longest),
    )


def _depths(network: Network) -> tuple[Array, list[int]]:
    """(depth of every node, rows of a longest way from an input to the deepest output)."""
    row = {node: i for i, (node, _, _) in enumerate(network.steps())}
    depth, before = np.zeros(len(row)), np.full(len(row), -1)
    for node, layer, parents in network.steps():
        i = row[node]
        if parents:
            before[i] = max((row[parent] for parent in parents), key=lambda j: depth[j])
            depth[i] = depth[before[i]]
            if isinstance(layer, Affine | Nonlinear):
                depth[i] = np.floor(depth[i]) + (1 if isinstance(layer, Nonlinear) else 0.5)
    here, way = max((row[node] for node in network.outputs), key=lambda j: depth[j]), []
    while here >= 0:
        way.append(int(here))
        here = before[here]
    return depth, way[::-1]


def _passed_by_all(network: Network) -> list[int]:
    """Rows that no edge passes by: every way from the first row to the last goes through them."""
    row = {node: i for i, (node, _, _) in enumerate(network.steps())}
    farthest = list(range(len(row)))  # the last row that reads row i
    for node, _, parents in network.steps():
        for parent in parents:
            farthest[row[parent]] = max(farthest[row[parent]], row[node])
    for node in network.inputs:  # ways start at every input and end at every output
        farthest[0] = max(farthest[0], row[node])
    for node in network.outputs:
        farthest[row[node]] = max(farthest[row[node]], len(row) - 1)
    reach, out = 0, []
    for i, far in enumerate(farthest):
        if reach <= i:
            out.append(i)
        reach = max(reach, far)
    return out
