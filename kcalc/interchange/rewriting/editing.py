"""Edit the operations of a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import networkx as nx

from ..trace import Names, Op, needed

Rows = tuple[int, ...]


class TraceEditor:
    """A copy of the operations, to which new operations can be added in any order.

    ``born``: {new operation: original operation it was made for}.
    """

    def __init__(self, ops: Mapping[str, Op], outputs: Sequence[str]) -> None:
        self.ops, self.outputs = dict(ops), tuple(outputs)
        self.born: dict[str, str] = {}
        self.names = Names()
        for name in ops:
            self.names(name)

    def add(self, op: Op, cause: Op) -> str:
        """Add an operation, made for the operation ``cause``, and return its name."""
        self.ops[op.name] = op
        self.born[op.name] = cause.name
        return op.name

    def rename(self, name: str, wish: str) -> None:
        """Give an operation the name of an operation that it replaces."""
        op = self.ops.pop(name)
        self.ops[wish] = replace(op, name=wish)
        for other, reader in self.ops.items():
            if name in reader.reads:
                self.ops[other] = replace(
                    reader, reads=tuple(wish if read == name else read for read in reader.reads)
                )
        self.outputs = tuple(wish if end == name else end for end in self.outputs)

    def ordered(self) -> dict[str, Op]:
        """Return the operations sorted so that each comes after its inputs."""
        order = in_order({name: op.reads for name, op in self.ops.items()})
        return {name: self.ops[name] for name in order}

    def readers(self) -> dict[str, list[str]]:
        """Return {operation: operations that read it}; "" marks an output of the model."""
        out: dict[str, list[str]] = {name: [] for name in self.ops}
        for name, op in self.ops.items():
            for read in op.reads:
                out[read].append(name)
        for name in self.outputs:
            out[name].append("")
        return out

    def reached(self) -> set[str]:
        """Return the operations that the outputs need."""
        return needed(self.ops, self.outputs)


def in_order(reads: Mapping[str, Sequence[str]]) -> list[str]:
    """Sort names so that each comes after the names that it reads, but otherwise keep the order."""
    graph: Any = nx.DiGraph()
    for place, (name, read) in enumerate(reads.items()):
        graph.add_node(name, place=place)
        graph.add_edges_from((before, name) for before in read)
    return list(nx.lexicographical_topological_sort(graph, key=lambda n: graph.nodes[n]["place"]))


def span(rows: Rows) -> str:
    """Describe channels as an index, as a slice, or by their number."""
    if len(rows) > 1 and len(steps := {b - a for a, b in pairwise(rows)}) == 1:
        step = steps.pop()
        return f"{rows[0]}:{rows[-1] + 1}" + (f":{step}" if step != 1 else "")
    return str(rows[0]) if len(rows) == 1 else f"{len(rows)} channels"
