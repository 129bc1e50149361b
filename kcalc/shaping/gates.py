"""Gates of products, normalised instead of shaped to keep their slopes small.

Let g = phi(z) be a gate of a product x g with a dominant mean, such as a sigmoid. After division by
``sqrt(Q(1))`` it satisfies ``E phi(z)^2 = 1``, ``C(0) >= 1/2`` and ``C'(1) = E phi'(z)^2 / E
phi(z)^2``, which is small (.15 for the sigmoid). The C map of the product is ``C_x C_g``, with
value 0 if ``C_x`` is 0 and slope ``C_x'(1) + C_g'(1)``. Its Q map has slope ``Q_x'(1) + Q_g'(1)``.
A gate shaped like other activations has ``C'(1) > 1`` and ``Q'(1) = 1``, so it doubles both slopes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from ..foundation.errors import unknown
from ..network import primitives as P
from ..network.layers import Identity, Layer, Nonlinear, Product, Scale
from ..network.network import Network
from ..network.primitives import Primitive, Reads
from .constants import Constants
from .thirty_digits import local_values

Node = Hashable
WAYS = {
    "shape": "gates meet the conditions like all other activations",
    "normalise": "gates keep their own activations, scaled to Q(1) = 1",
}
SHARE = 0.5  # smallest C(0) of a gate: the fraction of the mean square due to its mean


@dataclass(frozen=True)
class GatedProduct(Product):
    """A Product with a separate slope at c = 1 for each factor."""

    slopes: tuple[float, ...] = ()

    def lowered(self, reads: Reads) -> Primitive:
        return P.Prod(slopes=self.slopes, origin=self)


def gates_of(network: Network, gates: str) -> dict[Node, Constants]:
    """Return {gate: its activation scaled to Q(1) = 1}, or {} for ``gates="shape"``.

    A gate is an activation with C(0) >= 1/2 that only Products read. Each of these Products must
    also have a factor that is not a gate.

    Raises: KcalcError for other values of ``gates``.
    """
    if not isinstance(gates, str) or gates not in WAYS:
        raise unknown("way to shape gates", gates, WAYS)
    if gates == "shape":
        return {}
    bare = network.without(network.nodes_of(Scale))
    readers: dict[Node, list[Node]] = {node: [] for node in bare}
    for node, _, parents in bare.steps():
        for parent in parents:
            readers[parent].append(node)
    found = {
        node: bare.layer(node).activation
        for node in bare.nodes_of(Nonlinear)
        if node not in bare.outputs
        and readers[node]
        and all(isinstance(bare.layer(reader), Product) for reader in readers[node])
    }
    mostly_mean = {phi for phi in set(found.values()) if float(phi.c_map(0.0)) >= SHARE}
    found = {node: phi for node, phi in found.items() if phi in mostly_mean}
    scaled = {
        phi: Constants(phi, output_scale=float(phi.second_moment(1.0)) ** -0.5)
        for phi in mostly_mean
    }
    return {
        node: scaled[phi]
        for node, phi in found.items()
        if all(any(p not in found for p in bare.parents(reader)) for reader in readers[node])
    }


def with_slopes(network: Network, gates: Mapping[Node, Constants]) -> Network:
    """Return the network used for slopes: gates are identities, and Products add their slopes."""
    slope = {k: float(local_values(k.transformed)["C'(1)"]) for k in set(gates.values())}

    def layer_for(node: Node, layer: Layer) -> Layer:
        if node in gates:
            return Identity()
        parents = network.parents(node) if isinstance(layer, Product) else ()
        if not any(parent in gates for parent in parents):
            return layer
        return GatedProduct(tuple(slope[gates[p]] if p in gates else 1.0 for p in parents))

    return network.map_layers(layer_for) if gates else network
