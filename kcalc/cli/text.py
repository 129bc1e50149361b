"""Results as aligned text: tables and lists of assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..calculi.gradients import Gradients
from ..network.network import Network


def table(rows: Sequence[Sequence[str]], indent: int = 0) -> list[str]:
    """Rows as aligned lines, with a rule under the head.

    The first column is aligned to the left, numbers to the right.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        return " " * indent + "  ".join(cells)

    return [
        line(rows[0]),
        " " * indent + "-" * (sum(widths) + 2 * len(widths) - 2),
        *map(line, rows[1:]),
    ]


def mode_lines(network: Network, found: Gradients) -> list[str]:
    """Gradients over tokens along the stream, in both modes."""
    columns = [found.texts(name) for name in ("nodes", "mean", "difference")]
    rows = [
        (str(node), *(column.get(node, "") for column in columns)) for node in network.cut_nodes()
    ]
    head = ("node", "sum over tokens", "mean mode", "difference mode")
    return [
        "squared gradients of one token of the output, along the stream; modes over tokens:",
        "",
        *table([head, *rows], indent=2),
        "",
    ]


def assumption_lines(result: Any) -> list[str]:
    """The ``assumptions`` of a result, those of the same words on one line."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for a in result.assumptions:
        grouped.setdefault((a.kind, a.text), []).append(str(a.node))
    lines = ["assumptions:"]
    for (kind, text), nodes in grouped.items():
        where = nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"
        lines.append(f"  {kind + ':':<12}{text} ({where})")
    return lines


def heuristic_lines(*results: Any) -> list[str]:
    """A first line that says how far the results are approximate; none where they are exact."""
    found = {
        a.text: a.node for result in results for a in result.assumptions if a.kind == "heuristic"
    }
    if not found:
        return []
    (text, node), *others = found.items()
    return [f"heuristic: {text} ({node}{f'; {len(others)} more below' if others else ''})"]


def activation_names(network: Network) -> list[str]:
    """The names of the activations of a network, each once; ["none"] where there is none."""
    return list(dict.fromkeys(phi.name for phi in network.activations)) or ["none"]
