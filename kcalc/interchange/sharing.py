"""Layers of a model that cannot be replaced separately, because they share weights with others."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping
from itertools import pairwise

from ..network.layers import Attend, Nonlinear, Normalisation, Product, Sum
from .model_reading import Reading
from .trace import Held, Linear, Lookup, Op

Node = Hashable


TIED = "it shares the parameter {!r} with another operation, so its weights cannot be redrawn"
SLICED = (
    "its weights are a part of {!r}, which operations that are left alone also use, so they "
    "cannot be redrawn"
)
PLAIN = (Nonlinear, Sum, Product, Normalisation, Attend)  # they read a part unchanged


def shared_parameters(reading: Reading, left: Container[Node]) -> dict[Node, str]:
    """Return {node: reason} of layers whose new weights would change another operation.

    This is the case if two operations read a parameter, or if it is read in parts and some parts
    belong to layers, or are used in operations, that are left alone. If all its parts can have new
    weights, the parameter as a whole gets them. ``left``: the nodes left alone.
    """
    assert reading.trace is not None
    network = reading.unmerged
    inside: set[Node] = set()  # parts that operations which were not read do not reveal one by one
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
    """Return the parameters from which weights were computed, given the weights' key."""
    computed, mark, _ = parameter.rpartition(" #")
    return list(dict.fromkeys((computed if mark else parameter).replace("+", ", ").split(", ")))


def _overlap(parts: list[tuple[int, ...] | None]) -> bool:
    """Whether two readers of a parameter read some of the same rows."""
    if None in parts:
        return True
    rows = sorted(row for part in parts for row in part or ())
    return any(one == two for one, two in pairwise(rows))


def _all_rows(ops: list[Op]) -> bool:
    """Whether the parts make up all of a parameter that is read, from the first row on."""
    rows = sorted(row for op in ops for row in getattr(op, "rows", None) or ())
    aside = any(getattr(op, "aside", False) for op in ops)
    return not aside and rows == list(range(len(rows)))
