"""Short names for activations whose expressions are too long to be names.

Exported models contain the full definition of each name.
"""

from __future__ import annotations

import re

from ..activations import Activation, activation
from ..activations.parse import NAME_LENGTH
from ..foundation.errors import glimpse
from ..network.layers import Nonlinear
from ..network.network import Network

SHOWN = 300  # maximum number of characters printed for an expression


def with_short_names(network: Network) -> tuple[Network, tuple[str, ...]]:
    """Return the network with long-named activations named after the first node that uses them.

    Without a short name, an activation would be named by the first characters of its expression.

    Returns: the network, and a definition of each new name.
    """
    long = {phi for phi in network.activations if len(phi.name) == NAME_LENGTH}
    if not long:
        return network, ()
    taken = {phi.name for phi in network.activations}
    renamed: dict[Activation, Activation] = {}
    for node in network.nodes_of(Nonlinear):
        phi = network.layer(node).activation
        if phi in long and phi not in renamed:
            name = "phi_" + re.sub(r"[^\w.]+", "_", str(node)).strip("_")
            while name in taken:
                name += "_"
            taken.add(name)
            renamed[phi] = activation(phi, name=name)
    changed = network.map_layers(
        lambda node, layer: Nonlinear(renamed.get(layer.activation, layer.activation)), Nonlinear
    )
    return changed, tuple(f"{phi.name} is {glimpse(phi.expr, SHOWN)}" for phi in renamed.values())
