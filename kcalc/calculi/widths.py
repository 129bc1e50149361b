"""Widths that a network does not state: ``features=`` of the calculi at finite width and of the JAX backend."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import sympy as sp

from ..errors import KcalcError
from ..layers import Affine, Input
from ..network import Network

Node = Hashable
Widths = Mapping[Node, Any]


def given_widths(network: Network, features: Any, symbols: bool = False) -> tuple[dict[Node, Any], Any]:
    """({node: width}, the width of others) of ``features``: one width, or {node: width} with None for all other nodes.

    ``symbols``: SymPy expressions serve too. Raises: KcalcError for nodes that have none to give, contradictions, and what is no width.
    """
    given = dict(features) if isinstance(features, Mapping) else {None: features}
    default = given.pop(None, None)
    for node, width in given.items():
        _check(width, f" for node {node!r}", symbols)
        layer = network.layer(node)
        if not isinstance(layer, Affine | Input):
            kind = type(layer).__name__
            raise KcalcError(f"node {node!r} is a {kind}: its width is that of what it reads; give features of Affine and Input nodes")
        if layer.features not in (None, width):
            raise KcalcError(f"node {node!r} has features={layer.features} in its layer, got {width} in features=; leave one of them out")
    if default is not None:
        _check(default, "", symbols)
    return {node: _plain(width) for node, width in given.items()}, None if default is None else _plain(default)


def with_widths(network: Network, features: Any = None, symbols: bool = False) -> Network:
    """The network with ``features`` written into its Affine and Input layers; see :func:`given_widths`."""
    widths, default = given_widths(network, features, symbols)

    def stated(node: Node, layer: Any) -> Any:
        free = isinstance(layer, Affine | Input) and layer.features is None
        return replace(layer, features=widths.get(node, default)) if free else layer

    return network.map_layers(stated) if widths or default is not None else network


def _check(width: Any, where: str, symbols: bool) -> None:
    if symbols and isinstance(width, sp.Expr) and not width.is_number and width.is_positive is not False:
        return
    if isinstance(width, bool) or not hasattr(width, "__index__") or int(width) < 1:
        raise KcalcError(f"features must be positive whole numbers, got {width!r}{where}")


def _plain(width: Any) -> Any:
    return int(width) if hasattr(width, "__index__") else width
