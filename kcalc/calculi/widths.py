"""The argument ``features=``: widths of layers that do not specify one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import sympy as sp

from ..foundation.errors import KcalcError
from ..foundation.plain_arguments import whole
from ..network.layers import Affine, Concat, Input, Layer
from ..network.network import Network, require_kind

Node = Hashable
SIZED = (Affine, Input)  # the layers with a width field


def open_nodes(network: Network) -> tuple[Node, ...]:
    """Return the Affine and Input nodes without a width."""
    return tuple(node for node in network.nodes_of(*SIZED) if network.layer(node).features is None)


def filled(network: Network, features: int | None, *kinds: type[Layer]) -> Network:
    """Set the width to ``features`` at all nodes of the given kinds whose width is open."""
    if features is None:
        return network
    return network.map_layers(
        lambda _, layer: replace(layer, features=features) if layer.features is None else layer,
        *kinds,
    )


def given_widths(
    network: Network, features: Any, symbols: bool = False
) -> tuple[dict[Node, Any], Any]:
    """Return ({node: width}, the width of all other nodes) from ``features``.

    ``features`` is one width, or {node: width} with the key None for all other nodes.

    ``symbols``: whether SymPy expressions are allowed. Raises: KcalcError for nodes other than
    Affine and Input, widths that contradict the layer, and values that are not widths.
    """
    given = dict(features) if isinstance(features, Mapping) else {None: features}
    default = given.pop(None, None)
    for node, width in given.items():
        _check(width, f" for node {node!r}", symbols)
        require_kind(
            network,
            [node],
            ", so it has the width of its input; pass features only for Affine and Input nodes",
            *SIZED,
        )
        stated = network.layer(node).features
        if stated not in (None, width):
            raise KcalcError(
                f"the layer of node {node!r} sets features={stated}, but {width} was passed in "
                "features=; set only one of them"
            )
    if default is not None:
        _check(default, "", symbols)
    return {
        node: _plain(width) for node, width in given.items()
    }, None if default is None else _plain(default)


def with_widths(network: Network, features: Any = None, symbols: bool = False) -> Network:
    """Write ``features`` into the Affine and Input layers of a network.

    See :func:`given_widths`.

    A Concat with a given ratio of input channels drops the ratio once the widths are known. Raises:
    KcalcError for invalid widths, and for widths that are not in that ratio.
    """
    widths, default = given_widths(network, features, symbols)
    if not widths and default is None:
        return network
    ratios = [node for node in network.nodes_of(Concat) if network.layer(node).channels is not None]
    loose = _unknown_inputs(network, ratios)
    made: dict[tuple[int, Any], Any] = {}

    def widened(node: Node, layer: Any) -> Any:
        if layer.features is not None:
            return layer
        width = widths.get(node, default)
        # a deep network has few different layer objects, so each is checked only once
        if (id(layer), width) not in made:
            made[id(layer), width] = replace(layer, features=width)
        return made[id(layer), width]

    found = network.map_layers(
        lambda node, layer: Concat() if node in loose else layer, Concat
    ).map_layers(widened, *SIZED)
    still = _unknown_inputs(found, loose)
    for node in loose - still:
        _check_ratio(node, network, found)
    return (
        found.map_layers(lambda node, layer: network.layer(node) if node in still else layer)
        if still
        else found
    )


def _unknown_inputs(network: Network, nodes: Iterable[Node]) -> set[Node]:
    """Return the nodes that read a feature map with an unknown number of channels."""
    features = network.features
    return {node for node in nodes if any(features[p] is None for p in network.parents(node))}


def _check_ratio(node: Node, network: Network, found: Network) -> None:
    layer: Any = network.layer(node)
    parents = found.parents(node)
    known = [found.features[parent] for parent in parents]
    given = layer.channels
    if any(g * known[0] - given[0] * k != 0 for g, k in zip(given, known, strict=True)):
        listed = ", ".join(
            f"{parent!r}: {count}" for parent, count in zip(parents, known, strict=True)
        )
        raise KcalcError(
            f"node {node!r} (Concat) declares that its inputs have channels in the ratio "
            f"{':'.join(map(str, given))}, but they have ({listed}); pass features={{node: "
            "width, None: others} with widths in that ratio for the nodes that feed it"
        )


def _check(width: Any, where: str, symbols: bool) -> None:
    if (
        symbols
        and isinstance(width, sp.Expr)
        and not width.is_number
        and width.is_positive is not False
    ):
        return
    whole(width, f"features{where}", 1)


def _plain(width: Any) -> Any:
    return int(width) if hasattr(width, "__index__") else width
