"""Print results as aligned text with tables and assumptions, and write them as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from .. import Gradients, Network
from ..foundation.errors import KcalcError, glimpse
from ..foundation.files import destination
from ..foundation.printing import plain
from ..interchange import json_text
from ..maps import Assumption
from .command import Option, write

Json: TypeAlias = Annotated[
    str | None,
    Option("also write the result as JSON; - prints only the JSON", metavar="FILE"),
]


def table(rows: Sequence[Sequence[str]], indent: int = 0, right: bool = True) -> list[str]:
    """Format rows as aligned lines, with a rule under the header.

    The first column is aligned to the left. The others are aligned to the right, or to the left if
    ``right`` is False.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.rjust(width) if right and i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return " " * indent + "  ".join(cells).rstrip()

    rule = " " * indent + "-" * (sum(widths) + 2 * len(widths) - 2)
    return [line(rows[0]), rule, *map(line, rows[1:])]


def mode_lines(network: Network, found: Gradients) -> list[str]:
    """Format a table of squared gradients along the stream, in total and by mode over tokens."""
    columns = [found.texts[name] for name in ("nodes", "mean", "difference")]
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


def assumption_lines(assumptions: Iterable[Assumption]) -> list[str]:
    """List the assumptions of a result. Assumptions with the same text share a line."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for a in assumptions:
        grouped.setdefault((a.kind, a.text), []).append(str(a.node))
    lines = ["assumptions:"]
    for (kind, text), nodes in grouped.items():
        lines.append(f"  {kind + ':':<12}{text} ({several(nodes)})")
    return lines


def several(nodes: Sequence[str]) -> str:
    """Return the name of the first node and, if there are other nodes, their number."""
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"


def heuristic_lines(*results: Any) -> list[str]:
    """Return a line that warns about heuristic results, or nothing if there are none."""
    found = {
        a.text: a.node for result in results for a in result.assumptions if a.kind == "heuristic"
    }
    if not found:
        return []
    (text, node), *others = found.items()
    return [f"heuristic: {text} ({node}{f'; {len(others)} more below' if others else ''})"]


def heading(title: str, network: Network, *results: Any) -> list[str]:
    """Return the header of a result: any heuristic warning, the title and the activations."""
    names = list(dict.fromkeys(phi.name for phi in network.activations)) or ["none"]
    return [*heuristic_lines(*results), title, f"activations: {', '.join(names)}", ""]


def check_files(
    files: Mapping[str, str | None], check: Callable[[str], object] = destination
) -> None:
    """Before any work is done, check the files named by options. The file - is standard output.

    ``files`` is {option: its file, or None}. ``check`` raises an error if a file cannot be written.

    Raises: a KcalcError that names the option if a file cannot be written, or if two options write
    to the same place.
    """
    taken: dict[str, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        if not path:
            raise KcalcError(f"{option} needs the name of a file")
        if path != "-":
            check(path)
        other = taken.setdefault("-" if path == "-" else str(Path(path).resolve()), option)
        if other != option:
            where = "to standard output" if path == "-" else f"the same file, {glimpse(path, 300)}"
            raise KcalcError(f"{other} and {option} both write to {where}; use separate files")


def document(named: Any, *results: Any, **numbers: Any) -> dict[str, Any]:
    """Convert a result to plain data: its network, numerical values and all assumptions."""
    assumptions = dict.fromkeys(a for result in results for a in result.assumptions)
    return {
        "network": named.title,
        "activations": [phi.name for phi in named.network.activations],
        **plain(numbers),
        "assumptions": plain(tuple(assumptions)),
    }


def by_output(network: Network, value: Any) -> dict[str, Any]:
    """Return {output: value}. With several outputs, ``value`` already has this form."""
    parts = value if isinstance(value, Mapping) else dict.fromkeys(network.outputs, value)
    return {str(node): part for node, part in parts.items()}


def show(text: str, document: Callable[[], Any], path: str | None) -> None:
    """Print a result, and write it as JSON if ``--json`` was given."""
    if path:
        write(path, json_text(document()))
    if path != "-":
        write("-", f"{text}\n")
