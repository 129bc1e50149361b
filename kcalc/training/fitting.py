"""Networks made to fit a data set: inputs of its extents, a last Affine with a channel per class.

PReLU networks.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

from ..activations import activation
from ..backend.initialisers import Fan, Initialiser
from ..fields.arguments import one_number
from ..foundation.errors import KcalcError
from ..network.combinators import unused_name
from ..network.layers import Affine, Flatten, Input, Nonlinear, Pool, Sum
from ..network.network import Network, Step
from ..network.primitives import Fresh

Node = Hashable


def is_convolutional(network: Network) -> bool:
    """Whether a network reads images as images: its input says so, or some layer has a window."""
    stated = any(network.layer(node).image_shape is not None for node in network.inputs)
    return stated or any(not op.one_tap for _, op, _ in network.operations if isinstance(op, Fresh))


def fitted(network: Network, classes: int, image_shape: tuple[int, int] | None) -> Network:
    """The network as a classifier of other inputs than it was built for.

    The input takes the extents of the data (``image_shape`` None for vectors); the last layer, if
    it is an Affine, gets ``classes`` channels, else one is added behind it: after the activation of
    the other layers unless it is an activation, and after pooling over all locations where there
    are any. Raises: KcalcError for several inputs or outputs.
    """
    if len(network.inputs) != 1 or len(network.outputs) != 1:
        raise KcalcError(
            f"a classifier has one input and one output, this network has {len(network.inputs)} "
            f"and {len(network.outputs)}"
        )
    (source,), (last,) = network.inputs, network.outputs
    ends = last in network.nodes_of(Affine)

    def changed(node: Node, layer: Any) -> Any:
        if node == source:
            return Input(None, image_shape)
        return replace(layer, features=classes) if node == last and ends else layer

    out = network.map_layers(changed)
    return out if ends else _with_head(out, last, classes, image_shape is not None)


def _with_head(network: Network, last: Node, classes: int, images: bool) -> Network:
    sigmas = [network.layer(node).sigma_w for node in network.nodes_of(Affine)]
    activated = last in network.nodes_of(Nonlinear)
    head: list[Any] = [Nonlinear(phi) for phi in network.activations[:1] if not activated]
    head += [Pool("mean"), Flatten()] if images else []
    steps: list[Step] = list(network.steps())
    for layer in (*head, Affine(classes, sigma_w=sigmas[-1] if sigmas else 1)):
        name = unused_name(network, f"head_{type(layer).__name__.lower()}")
        steps.append((name, layer, (last,)))
        last = name
    return Network.from_steps(steps).with_notes(network.notes)


# -- trainable negative slopes ---------------------------------------------------------------------


@dataclass(frozen=True)
class Negatives(Initialiser):
    """All weights equal to ``-slope``: the negative slopes of a PReLU, behind relu(-x)."""

    name: str = "negatives"
    slope: float = 0.25

    def variance(self, fan: Fan) -> float:
        return 1.0

    def noise_shape(self, fan: Fan) -> tuple[int, ...]:
        return 1, 1, 1

    def unit(self, noise: Any, fan: Fan) -> Any:
        import jax.numpy as jnp

        return jnp.full(fan.shape, -self.slope, noise.dtype)


def prelu(
    network: Network, features: int, slope: float = 0.25
) -> tuple[Network, dict[Node, Initialiser]]:
    """(network, initialisers) with PReLU activations and their gain [He et al. 2015].

    Every activation is a PReLU and every weight has the gain ``sqrt(2 / (1 + slope^2))``.

    PReLU is ``max(x, 0) + a_i min(x, 0)`` with a trainable slope a_i per channel, ``slope`` at
    first. It is the sum of relu(x) and of relu(-x) behind a channel-wise weight; ``features`` is
    the width of all layers with one. Raises: KcalcError for a slope that is not a finite number,
    and for layers before an activation that state another width.
    """
    slope = one_number(slope, "slope")
    gain = math.sqrt(2 / (1 + slope**2))
    relu = activation("relu")
    steps: list[Step] = []
    laws: dict[Node, Initialiser] = {}
    activated = set(network.nodes_of(Nonlinear))
    for node, layer, parents in network.map_layers(
        lambda node, layer: replace(layer, sigma_w=gain), Affine
    ).steps():
        if node in activated:
            above, below, slopes = (
                f"{node}: {part}" for part in ("positive part", "negative part", "slopes")
            )
            steps.append((above, Nonlinear(relu), parents))
            steps.append((below, Nonlinear(relu.transformed(input_scale=-1)), parents))
            steps.append((slopes, Affine(features, groups=features, bias=False), (below,)))
            steps.append((node, Sum(), (above, slopes)))
            laws[slopes] = Negatives(slope=slope)
        else:
            steps.append((node, layer, parents))
    return Network.from_steps(steps, network.outputs).with_notes(network.notes), laws
