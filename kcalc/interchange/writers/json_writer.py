"""Write JSON documents with the schema ``kcalc.shaping/1``, which contain the shaped network.

The network has the format ``kcalc.network/1``.
"""

from __future__ import annotations

import json
from typing import Any

from ..json_format import activation_to_dict, network_to_dict
from .content import Content, Node


def write_json_text(content: Content) -> str:
    """Return the document as text.

    To read the network, call ``kcalc.interchange.network_from_dict(document["network"])``.
    """
    return json.dumps(shaping_document(content), indent=1, allow_nan=False, default=str) + "\n"


def shaping_document(content: Content) -> dict[str, Any]:
    """Return ``Shaping.to_dict()`` with the version, the constants by node, and the network."""
    table: dict[Any, list[Node]] = {}
    for node, constants in content.source.constants.by_node.items():
        table.setdefault(constants, []).append(node)
    transformed = {node: shaped for shaped in content.activations for node in shaped.nodes}
    rows = []
    for constants, nodes in table.items():
        row: dict[str, Any] = {
            "nodes": [_label(node) for node in nodes],
            "constants": _plain(constants.to_dict()),
        }
        if nodes[0] in transformed:
            row["transformed"] = activation_to_dict(transformed[nodes[0]].activation)
        rows.append(row)
    document = {key: _plain(value) for key, value in content.source.to_dict().items()}
    return document | {
        "version": content.version,
        "activations": rows,
        "network": network_to_dict(content.network),
    }


def _label(node: Node) -> str | int:
    return node if isinstance(node, str | int) and not isinstance(node, bool) else str(node)


def _plain(value: Any) -> Any:
    """Convert NumPy and SymPy numbers to floats, in nested lists and dictionaries."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)
