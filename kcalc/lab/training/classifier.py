"""Networks as classifiers, whose last Affine has one channel per class."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from ... import Network
from ... import layers as L
from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import whole
from ...network import unused_name

Node = Hashable
MOST = 2**31 - 1


def classifier(
    network: Network, classes: int, image_shape: tuple[int, int] | None = None
) -> Network:
    """Turn a network into a classifier, possibly for inputs of another size.

    The input gets the size of the data; ``image_shape`` is None for vectors. If the last layer is
    an Affine, it gets ``classes`` channels. Otherwise, an Affine is appended, after pooling over
    all locations if there are any. If the network does not end in an activation, the activation of
    the preceding layers is inserted before this Affine.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    classes
        The number of classes.
    image_shape
        (height, width) of the images.

    Returns
    -------
    Network
        The network, with ``classes`` outputs.

    Raises
    ------
    KcalcError
        If the network has several inputs or outputs.

    """
    if not isinstance(network, Network):
        raise KcalcError(f"expected a kcalc.Network, got {type(network).__name__}")
    classes = whole(classes, "classes", 1, MOST)
    if len(network.inputs) != 1 or len(network.outputs) != 1:
        raise KcalcError(
            "a classifier must have one input and one output, but this network has "
            f"{len(network.inputs)} inputs and {len(network.outputs)} outputs"
        )
    (source,), (last,) = network.inputs, network.outputs
    ends = last in network.nodes_of(L.Affine)

    def changed(node: Node, layer: Any) -> Any:
        if node == source:
            return L.Input(None, image_shape)
        return replace(layer, features=classes) if node == last and ends else layer

    out = network.map_layers(changed)
    return out if ends else _with_head(out, last, classes, image_shape is not None)


def _with_head(network: Network, last: Node, classes: int, images: bool) -> Network:
    sigmas = [network.layer(node).sigma_w for node in network.nodes_of(L.Affine)]
    activated = last in network.nodes_of(L.Nonlinear)
    head: list[Any] = [L.Nonlinear(phi) for phi in network.activations[:1] if not activated]
    head += [L.Pool("mean"), L.Flatten()] if images else []
    steps: list[Any] = list(network.steps())
    for layer in (*head, L.Affine(classes, sigma_w=sigmas[-1] if sigmas else 1)):
        name = unused_name(network, f"head_{type(layer).__name__.lower()}")
        steps.append((name, layer, (last,)))
        last = name
    return Network.from_steps(steps).with_notes(network.notes)
