"""A scaling as a table, in which weights with the same shape and gamma share a row."""

from __future__ import annotations

from typing import Any

from .levels import Level, one_value, quotient

MOST = 30
HEAD = ("weight", "extents", "E W^2", "gamma", "gamma/ref", "correction")


def rows(scaling: Any) -> list[tuple[str, ...]]:
    """Return a table: a header, and one row per group of weights that differ only in name."""
    groups: dict[tuple[str, ...], list[Any]] = {}
    for _, weight in scaling.ordered():
        cells = (
            _extents(weight),
            _shown(weight.variance),
            _level(weight.gamma_level),
            *map(_shown, (weight.relative, weight.correction)),
        )
        groups.setdefault(cells, []).append(weight)
    differs = _differs(scaling)
    body = (
        (_names(found), *cells, *((_range(found),) if differs else ()))
        for cells, found in groups.items()
    )
    return [(*HEAD, "nu") if differs else HEAD, *body]


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


def _differs(scaling: Any) -> bool:
    """Whether nu differs from gamma for some weight."""
    numeric = (
        []
        if scaling.symbolic
        else [w for w in scaling.weights.values() if w.ratio_level is not None]
    )
    return any(
        abs(quotient(w.ratio_level, w.gamma_level) - 1) > 1e-9
        for w in numeric
        if w.ratio_level is not None
    )


def _extents(weight: Any) -> str:
    taps = "" if weight.taps == 1 else f", {weight.taps} taps"
    groups = "" if weight.groups == 1 else f", {weight.groups} groups"
    return f"{weight.inputs} -> {weight.outputs}{taps}{groups}"


def _shown(value: Any) -> str:
    return str(value) if hasattr(value, "free_symbols") else f"{value:.6g}"


def _level(level: Level) -> str:
    """Format a number, as a power of ten if it is beyond double precision."""
    if level.symbolic or abs(level.log10()) < 300:
        return _shown(one_value(level, "gamma"))
    return f"1e{level.log10():+.4f}"


def violation_lines(scaling: Any) -> list[str]:
    """One line per violation, with its nodes."""
    grouped: dict[str, list[str]] = {}
    for violation in scaling.violations:
        grouped.setdefault(violation.text, []).append(str(violation.node))
    return [
        f"{text} ({nodes[0] if len(nodes) == 1 else f'{nodes[0]} and {len(nodes) - 1} more'})"
        for text, nodes in grouped.items()
    ]
