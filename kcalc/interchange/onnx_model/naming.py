"""Label operations by the path of their module, if the exporter recorded it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

SCOPES = "pkg.torch.onnx.name_scopes"
MAIN = re.compile(r"Conv.*|Gemm|MatMul|.*Normalization|.*Pool")


class Labels:
    """Proposed labels for the nodes of one graph.

    Labels are made from node names such as ``/layer1/layer1.0/conv1/Conv``.
    """

    def __init__(self, nodes: Iterable[Any]) -> None:
        self._alone: Counter[str] = Counter()
        self._main: Counter[str] = Counter()
        for node in nodes:
            place = scope(node)
            self._alone[place] += 1
            self._main[place] += bool(MAIN.fullmatch(node.op_type))

    def __call__(self, node: Any) -> str:
        """Return a short readable label for a node, which need not be unique."""
        place = scope(node)
        if place and (
            self._alone[place] == 1 or (self._main[place] == 1 and MAIN.fullmatch(node.op_type))
        ):
            return place
        if place:
            return f"{place}.{node.op_type.lower()}"
        name = clean(node.name.rsplit("/", 1)[-1].removeprefix("node_"))
        return (
            (name.lower() if name.lower() == node.op_type.lower() else name)
            or clean(node.op_type.lower())
            or "node"
        )


def clean(text: str) -> str:
    """Return at most 120 printable characters of a label."""
    return "".join(c for c in text[:120] if c.isprintable()).strip()


def scope(node: Any) -> str:
    """Return the path of a node's module, or "" if it is unknown.

    The path comes from the exporter's metadata or from the slashes in the node's name.
    """
    for item in getattr(node, "metadata_props", ()):
        if item.key == SCOPES:
            names = re.findall(r"'([^']{0,120})'", item.value[:2000])
            return clean(names[-2]) if len(names) > 1 else ""
    if not node.name.startswith("/"):
        return ""
    parts: list[str] = []
    for part in node.name[:400].split("/")[1:-1]:
        if parts and part.startswith(f"{parts[-1]}."):
            parts.pop()
        parts.append(part)
    return clean(".".join(parts))
