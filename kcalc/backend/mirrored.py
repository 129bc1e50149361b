"""The network of a shaping as it is to be trained; looks-linear shapings get their pairs (phi(x), phi(-x)) and mirrored weights."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace

from ..foundation.errors import KcalcError
from ..network.layers import Affine, Concat, Flatten, Identity, Nonlinear, Pool
from ..network.network import Network, Step
from ..shaping import Shaping
from ..shaping.looks_linear import LooksLinear
from .initialisers import Initialiser, Mirrored

Node = Hashable


def mirrored_network(shaping: Shaping) -> tuple[Network, dict[Node, Initialiser]]:
    """(network to train, {node: law of its weights} where the shaping asks for one).

    A looks-linear shaping's own network has the odd parts in one activation; here each is the concatenation of phi(x) and phi(-x) again,
    under the old name, and the Affine layers that read it start as (gamma W, -gamma W).
    Raises: KcalcError where something but an Affine, directly or through the pooling of all locations, reads a pair.
    """
    if not isinstance(shaping, LooksLinear):
        return shaping.network, {}
    pairs: dict[Node, float] = {}  # nodes that hold a pair, with its scale
    laws: dict[Node, Initialiser] = {}
    steps: list[Step] = []
    pooled: set[Node] = set()
    for node, layer, parents in shaping.network.steps():
        if node in shaping.constants.by_node:
            constants = shaping.constants.by_node[node]
            phi = constants.activation
            pairs[node] = float(constants.output_scale or 1.0)
            halves = (f"{node}: phi(x)", f"{node}: phi(-x)")
            steps.append((halves[0], Nonlinear(phi), parents))
            steps.append((halves[1], Nonlinear(phi.transformed(input_scale=-1)), parents))
            steps.append((node, Concat(), halves))
            continue
        source = parents[0] if parents and parents[0] in pairs else None
        if source is None and any(parent in pairs for parent in parents):
            source = next(parent for parent in parents if parent in pairs)
        if source is None:
            steps.append((node, layer, parents))
        elif isinstance(layer, Affine) and layer.groups == 1:
            steps.append((node, replace(layer, sigma_w=math.sqrt(2) * pairs[source] * float(layer.sigma_w)), parents))
            laws[node] = Mirrored()
        elif isinstance(layer, Identity | Pool) or (isinstance(layer, Flatten) and source in pooled):
            pairs[node] = pairs[source]
            if isinstance(layer, Pool) and layer.window is None:
                pooled.add(node)
            steps.append((node, layer, parents))
        else:
            raise KcalcError(
                f"node {node!r} ({type(layer).__name__}) reads the pair at {source!r}, whose halves it would mix up; "
                "put an Affine between them"
            )
    mirrored = Network.from_steps(steps, shaping.network.outputs)
    return mirrored.with_notes(shaping.network.notes), laws
