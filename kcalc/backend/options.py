"""Checks of the options of :func:`kcalc.to_jax`.

The options are image shapes, weight initialisers and dtypes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import Any

from ..foundation.errors import KcalcError, glimpse, unknown
from ..foundation.extras import imported
from ..foundation.plain_arguments import extents
from ..network.compose import no_rule
from ..network.layers import Affine
from ..network.network import Network, require_kind
from .initialisers import Initialiser, initialiser
from .lowering import has_rule

Node = Hashable
DTYPES = ("float32", "float64", "bfloat16", "float16")


def images(network: Network, image_shape: Any) -> dict[Node, tuple[int, int]]:
    """Return {input: (height, width)} for the inputs that are images.

    Raises KcalcError for unknown inputs, and for values that are not two positive integers.
    """
    given = (
        dict(image_shape)
        if isinstance(image_shape, Mapping)
        else dict.fromkeys(network.inputs, image_shape)
    )
    for node in given:
        if node not in network.inputs:
            raise unknown("input", node, map(str, network.inputs))
    shapes: dict[Node, tuple[int, int]] = {}
    for node in network.inputs:
        layer: Any = network.layer(node)
        asked = None if given.get(node) is None else _extents(given[node])
        if (
            asked is not None
            and layer.image_shape is not None
            and asked != tuple(layer.image_shape)
        ):
            stated = layer.image_shape
            raise KcalcError(
                f"the layer of the input {node!r} sets image_shape={stated}, but {asked} was "
                f"passed; build the network with image_shape={asked}"
            )
        if asked is not None or layer.image_shape is not None:
            shapes[node] = asked or _extents(layer.image_shape)
    return shapes


def _extents(shape: Any) -> tuple[int, int]:
    sizes = extents(shape, "image_shape")
    if len(sizes) != 2:
        raise KcalcError(
            f"image_shape must be (height, width), two positive integers, got {glimpse(shape)}"
        )
    return sizes[0], sizes[1]


def laws(network: Network, weights: Any) -> dict[Node, Initialiser]:
    """Return {Affine: its initialiser}, from one initialiser or {node: initialiser}.

    The value at the key None applies to all other nodes. Raises KcalcError for unknown initialisers
    and for nodes that are not Affine.
    """
    given: dict[Any, Any] = dict(weights) if isinstance(weights, Mapping) else {None: weights}
    default = initialiser(given.pop(None, "delta_orthogonal"))
    require_kind(
        network, given, ", which has no weights to initialise; name only Affine nodes", Affine
    )
    return {
        node: initialiser(given[node]) if node in given else default
        for node in network.nodes_of(Affine)
    }


def dtype_name(given: Any) -> str:
    """Return the name of a floating-point type: "float64", ``np.float64``, ``jnp.bfloat16``, ...

    Raises KcalcError for other types.
    """
    jnp = imported("jax.numpy")
    name = given if isinstance(given, str) else None
    # ``given`` may have a dtype or be one
    for reading in (
        () if given is None or isinstance(given, str) else (lambda: given.dtype, lambda: given)
    ):
        with suppress(Exception):  # a user's object may raise anything
            name = name or jnp.dtype(reading()).name
    if name not in DTYPES:
        raise unknown("dtype", given, DTYPES)
    return name


def runnable(network: Network) -> None:
    """Raise NoRule, naming the node, if a node cannot be run on arrays."""
    for node, layer, parents in network.steps():
        if parents and not has_rule(layer):
            raise no_rule("arrays", layer, node)
