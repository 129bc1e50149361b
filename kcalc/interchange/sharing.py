"""Find layers whose weights cannot be redrawn because other operations share them."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping
from itertools import pairwise

from ..network.layers import Attend, Nonlinear, Normalisation, Product, Sum
from .model_reading import Reading
from .trace import Held, Linear, Lookup, Op

Node = Hashable


TIED = "it shares the parameter {!r} with another operation, so its weights cannot be redrawn"
SLICED = (
    "its weights are a part of {!r}, which is also used by operations that are left alone, so they "
    "cannot be redrawn"
)
PLAIN = (Nonlinear, Sum, Product, Normalisation, Attend)  # layers that read an unmodified part


def shared_parameters(reading: Reading, left: Container[Node]) -> dict[Node, str]:
    """Return {node: reason} for layers whose new weights would affect another operation.

    New weights affect another operation if two operations read the same parameter. If layers read
    parts of a parameter, it can be redrawn as a whole, unless some of the parts belong to a node
    that is left alone (``left``).
    """
    assert reading.trace is not None
    network = reading.unmerged
    inside: set[Node] = set()  # nodes whose use of single parts is unknown
    for node, layer, parents in network.steps():
        if node in left and not isinstance(layer, PLAIN):
            inside.update(parents)
    out: dict[Node, str] = {}
    for parameter, ops in _by_parameter(reading.trace.ops).items():
        here = [op.name for op in ops if op.name in network and op.name not in left]
        parts = [getattr(op, "rows", None) for op in ops]
        if len(ops) > 1 and _overlap(parts):
            out |= dict.fromkeys(here, TIED.format(parameter))
        elif any(rows is not None for rows in parts) and (
            len(here) < len(ops) or not inside.isdisjoint(here) or not _all_rows(ops)
        ):
            out |= dict.fromkeys(here, SLICED.format(parameter))
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
    """Return the parameters from which weights were computed; ``parameter`` is their key."""
    computed, mark, _ = parameter.rpartition(" #")
    return list(dict.fromkeys((computed if mark else parameter).replace("+", ", ").split(", ")))


def _overlap(parts: list[tuple[int, ...] | None]) -> bool:
    """Whether two parts of a parameter have rows in common."""
    if None in parts:
        return True
    rows = sorted(row for part in parts for row in part or ())
    return any(one == two for one, two in pairwise(rows))


def _all_rows(ops: list[Op]) -> bool:
    """Whether the parts cover all rows of a parameter up to the last row that is read."""
    rows = sorted(row for op in ops for row in getattr(op, "rows", None) or ())
    aside = any(getattr(op, "aside", False) for op in ops)
    return not aside and rows == list(range(len(rows)))
