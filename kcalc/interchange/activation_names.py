"""Short names for activations that a model writes out, where their expressions are too long to be names."""

from __future__ import annotations

import re

from ..activations import Activation, activation
from ..activations.parse import NAME_LENGTH
from ..foundation.errors import glimpse
from ..network.layers import Layer, Nonlinear
from ..network.network import Network

SHOWN = 300  # characters of an expression


def with_short_names(network: Network) -> tuple[Network, tuple[str, ...]]:
    """The network with activations that would be called by the beginning of their expression called after the first node they are at.

    Returns: the network, and the activation of every such name.
    """
    activations = list(dict.fromkeys(layer.activation for _, layer, _ in network.steps() if isinstance(layer, Nonlinear)))
    long = {phi for phi in activations if len(phi.name) == NAME_LENGTH}
    if not long:
        return network, ()
    taken = {phi.name for phi in activations}
    renamed: dict[Activation, Activation] = {}
    for node, layer, _ in network.steps():
        if isinstance(layer, Nonlinear) and layer.activation in long and layer.activation not in renamed:
            name = "phi_" + re.sub(r"[^\w.]+", "_", str(node)).strip("_")
            while name in taken:
                name += "_"
            taken.add(name)
            renamed[layer.activation] = activation(layer.activation, name=name)

    def change(_: object, layer: Layer) -> Layer:
        return Nonlinear(renamed[layer.activation]) if isinstance(layer, Nonlinear) and layer.activation in renamed else layer

    return network.map_layers(change), tuple(f"{phi.name} is {glimpse(phi.expr, SHOWN)}" for phi in renamed.values())
