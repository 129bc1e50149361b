"""A scaling as a table, weights of equal extents and equal gamma in one row."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from .levels import Level, one_value, quotient

MOST = 30
HEAD = ("weight", "extents", "E W^2", "gamma", "gamma/ref", "correction")


def rows(scaling: Any) -> list[tuple[str, ...]]:
    """The table without its head: at most ``MOST`` rows, and one with the number left out."""
    groups: dict[tuple[str, ...], list[Any]] = {}
    for _, weight in scaling.ordered():
        cells = (_extents(weight), _shown(weight.variance), _level(weight.gamma_level), *map(_shown, (weight.relative, weight.correction)))
        groups.setdefault(cells, []).append(weight)
    differs = _differs(scaling)
    out = [(_names(found), *cells, *((_range(found),) if differs else ())) for cells, found in groups.items()]
    if len(out) > MOST:
        left = len(out) - MOST
        out = [*out[: MOST // 2], (f"... {left} rows ...", *[""] * (len(out[0]) - 1)), *out[-(MOST - MOST // 2) :]]
    return out


def _names(found: list[Any]) -> str:
    first = str(found[0].node)
    return first if len(found) == 1 else f"{first} and {len(found) - 1} more"


def _range(found: list[Any]) -> str:
    """The range of nu over weights that are equal in all other columns."""
    known = sorted((w.ratio_level for w in found if w.ratio_level is not None), key=Level.log10)
    if not known:
        return "-"
    low, high = _level(known[0]), _level(known[-1])
    return low if low == high else f"{low} .. {high}"


def head(scaling: Any) -> tuple[str, ...]:
    """The names of the columns."""
    return (*HEAD, "nu") if _differs(scaling) else HEAD


def _differs(scaling: Any) -> bool:
    """Whether nu differs from gamma at some weight."""
    numeric = [] if scaling.symbolic else [w for w in scaling.weights.values() if w.ratio_level is not None]
    return any(abs(quotient(w.ratio_level, w.gamma_level) - 1) > 1e-9 for w in numeric if w.ratio_level is not None)


def _extents(weight: Any) -> str:
    taps = "" if weight.taps == 1 else f", {weight.taps} taps"
    groups = "" if weight.groups == 1 else f", {weight.groups} groups"
    return f"{weight.inputs} -> {weight.outputs}{taps}{groups}"


def _shown(value: Any) -> str:
    return str(value) if hasattr(value, "free_symbols") else f"{value:.6g}"


def _level(level: Level) -> str:
    """A number as text, as a power of ten where it is beyond double precision."""
    if level.symbolic or abs(level.log10()) < 300:
        return _shown(one_value(level, "gamma"))
    return f"1e{level.log10():+.4f}"


def violation_lines(scaling: Any) -> list[str]:
    """One line per text of a violation, with its nodes."""
    grouped: dict[str, list[str]] = {}
    for violation in scaling.violations:
        grouped.setdefault(violation.text, []).append(str(violation.node))
    return [f"{text} ({nodes[0] if len(nodes) == 1 else f'{nodes[0]} and {len(nodes) - 1} more'})" for text, nodes in grouped.items()]


def text(scaling: Any) -> str:
    """Aligned text: the table, then the violated assumptions."""
    lines = aligned([head(scaling), *rows(scaling)])
    found = violation_lines(scaling)
    return "\n".join([*lines, *(["", "violated assumptions:"] if found else []), *(f"  {line}" for line in found[:MOST])])


def aligned(given: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines with columns padded to equal width, the first two aligned left."""
    widths = [max(len(row[i]) for row in given) for i in range(len(given[0]))]
    return [
        "  ".join(cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in given
    ]


def page(scaling: Any) -> str:
    """The table and the violated assumptions as HTML."""
    names = "".join(f"<th>{html.escape(name)}</th>" for name in head(scaling))
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows(scaling))
    found = "".join(f"<li>{html.escape(line)}</li>" for line in violation_lines(scaling)[:MOST])
    return f"<table><tr>{names}</tr>{body}</table>" + (f"<p>violated assumptions</p><ul>{found}</ul>" if found else "")
