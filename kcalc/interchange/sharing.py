"""Layers that cannot be exchanged by themselves in a model, for what they share with the rest."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping
from itertools import pairwise

from .model_reading import Reading
from .trace import Held, Linear, Lookup, Op

Node = Hashable


def shared_parameters(reading: Reading, left: Container[Node]) -> dict[Node, str]:
    """{node: parameter} of layers that cannot have new weights without changing another operation.

    The parameter is read by two operations, or parts of it belong to layers that are left alone, or
    whose outputs are read there. ``left``: the nodes left alone.
    """
    assert reading.trace is not None
    network = reading.unmerged
    readers: dict[Node, list[Node]] = {node: [] for node in network}
    for node, _, parents in network.steps():
        for parent in parents:
            readers[parent].append(node)
    fixed = {node for node in network if node in left or any(r in left for r in readers[node])}
    out: dict[Node, str] = {}
    for parameter, ops in _by_parameter(reading.trace.ops).items():
        here = [op.name for op in ops if op.name in network and op.name not in left]
        parts = [getattr(op, "rows", None) for op in ops]
        if (len(ops) > 1 and _overlap(parts)) or (
            any(rows is not None for rows in parts)
            and (
                any(op.name not in network or op.name in fixed for op in ops) or not _all_rows(ops)
            )
        ):
            out |= dict.fromkeys(here, parameter)
    return out


def _by_parameter(ops: Iterable[Op]) -> Mapping[str, list[Op]]:
    found: dict[str, list[Op]] = {}
    for op in ops:
        names = [getattr(op, "parameter", None), getattr(op, "bias_parameter", None)]
        if isinstance(op, Held | Linear | Lookup):
            for name in filter(None, names):
                for origin in _origins(name):
                    found.setdefault(origin, []).append(op)
    return found


def _origins(parameter: str) -> list[str]:
    """The parameters that weights were computed from, of the key of a layer's weights."""
    computed, mark, _ = parameter.rpartition(" #")
    return list(dict.fromkeys((computed if mark else parameter).replace("+", ", ").split(", ")))


def _overlap(parts: list[tuple[int, ...] | None]) -> bool:
    """Whether two readers of a parameter read the same rows."""
    if None in parts:
        return True
    rows = sorted(row for part in parts for row in part or ())
    return any(one == two for one, two in pairwise(rows))


def _all_rows(ops: list[Op]) -> bool:
    """Whether the parts of a parameter make up all of it, from the first row on."""
    rows = sorted(row for op in ops for row in getattr(op, "rows", None) or ())
    return rows == list(range(len(rows)))
