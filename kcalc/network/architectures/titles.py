"""Names of built networks, as shown in plot legends."""

from __future__ import annotations

from typing import Any

from ..layers import Nonlinear
from ..network import Network


def titled(builder: str, network: Network, *sizes: Any) -> Network:
    """Name the network, as in ``vanilla-20, tanh``.

    The name contains the builder, the sizes and the activations.
    """
    names = dict.fromkeys(
        network.layer(node).activation.name for node in network.nodes_of(Nonlinear)
    )
    return network.named(", ".join(["-".join([builder, *map(str, sizes)]), *list(names)[:2]]))
