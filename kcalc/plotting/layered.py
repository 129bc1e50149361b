"""Layered layout of a directed acyclic graph by Sugiyama's method.

The longest path to a node determines its row. If a node is read by nodes more than one row below,
it gets a lane: a chain of empty places, one per row, which all these readers share. Barycentre
sweeps reduce crossings. A linear program then chooses x coordinates that keep main paths and lanes
straight.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Node = Hashable
Parents = Mapping[Node, tuple[Node, ...]]
Rows = Mapping[Node, int]

# minimum distances between two boxes, between a box and a lane, and between two lanes
SPACE, BESIDE, LANE = 0.3, 0.25, 0.14


@dataclass(eq=False)
class Vertex:
    """A place in a row: a node, or a lane along which a node's feature map passes the row."""

    node: Node
    row: int
    width: float
    lane: bool = False
    x: float = 0.0
    above: list[Vertex] = field(default_factory=list)
    below: list[Vertex] = field(default_factory=list)


class Layered:
    """Positions of the nodes of a graph, given their rows and widths.

    ``parents`` contains the parents of each node that has any, in topological order. The parents of
    nodes in ``ordered`` keep their order from left to right if crossings allow it. At other nodes,
    the longest branch comes first. ``.rows`` contains the vertices of each row from left to right,
    and ``.vertices`` the vertex of each node.
    """

    def __init__(
        self,
        parents: Parents,
        rows: Rows,
        widths: Mapping[Node, float],
        ordered: Collection[Node] = (),
    ) -> None:
        self.parents = {node: tuple(dict.fromkeys(above)) for node, above in parents.items()}
        self.ordered = ordered
        self.vertices = {node: Vertex(node, rows[node], widths[node]) for node in widths}
        self.chains: dict[Node, list[Vertex]] = {
            node: [vertex] for node, vertex in self.vertices.items()
        }
        for node, above in self.parents.items():
            for path in (self.path(p, node) for p in above):
                for upper, lower in pairwise(path):
                    if lower not in upper.below:
                        upper.below.append(lower)
                        lower.above.append(upper)
        self.rows: list[list[Vertex]] = [[] for _ in range(max(rows[node] for node in widths) + 1)]
        for chain in self.chains.values():
            for vertex in chain:
                self.rows[vertex.row].append(vertex)
        self._sort_rows()
        _place(self.rows)

    def path(self, parent: Node, node: Node) -> list[Vertex]:
        """Return the vertices of an edge from one end to the other, through its lane."""
        chain, end = self.chains[parent], self.vertices[node]
        while chain[-1].row < end.row - 1:
            chain.append(Vertex(parent, chain[-1].row + 1, 0.0, lane=True))
        return [*chain[: end.row - chain[0].row], end]

    def span(self) -> tuple[float, float]:
        """Return the smallest and largest x of the boxes and lanes."""
        vertices = [v for row in self.rows for v in row]
        return min(v.x - v.width / 2 for v in vertices), max(v.x + v.width / 2 for v in vertices)

    def shift(self, distance: float) -> None:
        """Move the column to the right."""
        for row in self.rows:
            for vertex in row:
                vertex.x += distance

    def _sort_rows(self) -> None:
        """Sort each row, with branches in slot order and skip lanes on the right.

        Barycentre sweeps follow for as long as they reduce crossings.
        """
        ranks = self._ranks()
        for row in self.rows:
            row.sort(
                key=lambda v: (
                    (1, -self.vertices[v.node].row)
                    if v.lane and self.forks(v.node)
                    else (0, ranks[v.node])
                )
            )
        best, fewest = [list(row) for row in self.rows], _crossings(self.rows)
        for sweep in range(12):
            if not fewest:
                break
            down = sweep % 2 == 0
            for row in self.rows[1:] if down else self.rows[-2::-1]:
                _sort_by_neighbours(row, self.rows, down)
            crossings = _crossings(self.rows)
            if crossings < fewest:
                best, fewest = [list(row) for row in self.rows], crossings
        self.rows = best

    def forks(self, node: Node) -> bool:
        """Return whether a node is read by several nodes."""
        return sum(node in above for above in self.parents.values()) > 1

    def _ranks(self) -> dict[Node, int]:
        """Return each node's position in a depth-first search upwards from the outputs.

        The longest branch of a join comes first, except that ordered joins keep their order.
        """
        ranks: dict[Node, int] = {}
        stack = [n for n in reversed(list(self.vertices)) if not self.vertices[n].below]
        while stack:
            node = stack.pop()
            if node in ranks:
                continue
            ranks[node] = len(ranks)
            above = self.parents.get(node, ())
            stack += reversed(
                above
                if node in self.ordered
                else sorted(above, key=lambda p: -self.vertices[p].row)
            )
        return ranks


def longest_path_rows(parents: Parents) -> dict[Node, int]:
    """Return the row of each node, given by the longest path from the inputs to the node.

    A node with more readers than parents is moved down to just above its nearest reader.
    """
    rows: dict[Node, int] = {}
    readers: dict[Node, list[Node]] = {node: [] for node in parents}
    for node, above in parents.items():
        rows[node] = max((rows[p] + 1 for p in above), default=0)
        for p in dict.fromkeys(above):
            readers[p].append(node)
    for node in reversed(list(parents)):
        if len(readers[node]) > len(set(parents[node])):
            rows[node] = min(rows[n] for n in readers[node]) - 1
    return rows


def _sort_by_neighbours(row: list[Vertex], rows: Sequence[list[Vertex]], down: bool) -> None:
    """Sort a row by the mean position of each vertex's neighbours above (or below).

    A vertex without neighbours keeps its position.
    """
    if len(row) < 2:
        return
    level = row[0].row + (-1 if down else 1)
    places = {v: i for i, v in enumerate(rows[level])}
    means: dict[Vertex, float] = {}
    for i, vertex in enumerate(row):
        near = vertex.above if down else vertex.below
        means[vertex] = sum(places[v] for v in near) / len(near) if near else i
    row.sort(key=means.__getitem__)


def _crossings(rows: Sequence[Sequence[Vertex]]) -> int:
    """Count the crossings of edges between neighbouring rows."""
    total = 0
    for upper, lower in pairwise(rows):
        places = {v: i for i, v in enumerate(lower)}
        seen: list[int] = []
        for vertex in upper:
            ends = [places[v] for v in vertex.below]
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return total


def _place(rows: Sequence[Sequence[Vertex]]) -> None:
    """Assign an x coordinate to every vertex.

    The coordinates minimise the total sideways motion of edges, with the largest weights for lanes
    and main paths. They also respect the minimum distances.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    index = {v: i for i, v in enumerate(v for row in rows for v in row)}
    terms: list[tuple[float, dict[Vertex, float]]] = []  # weight * |sum of coefficient * x|
    mains = {False: _main(rows, up=False), True: _main(rows[::-1], up=True)}
    for vertex in index:
        for lower in vertex.below:
            straight = mains[False].get(vertex) is lower and mains[True].get(lower) is vertex
            follows = lower.lane and len(vertex.below) == 1
            weight = (
                10.0 if vertex.lane and lower.lane else 6.0 if straight else 3.0 if follows else 1.0
            )
            terms.append((weight, {vertex: 1.0, lower: -1.0}))
        for near, main in ((vertex.above, mains[True]), (vertex.below, mains[False])):
            if len(near) > 1 and vertex not in main:
                terms.append((0.5, {vertex: 1.0, **{v: -1 / len(near) for v in near}}))
    pairs = [pair for row in rows for pair in pairwise(row)]
    entries: list[tuple[int, int, float]] = []
    bounds: list[float] = []
    for left, right in pairs:
        entries += [(len(bounds), index[left], 1.0), (len(bounds), index[right], -1.0)]
        space = (
            SPACE if not (left.lane or right.lane) else LANE if left.lane and right.lane else BESIDE
        )
        bounds.append(-(left.width + right.width) / 2 - space)
    for k, (_, term) in enumerate(terms):
        for sign in (1.0, -1.0):
            entries += [(len(bounds), index[v], sign * c) for v, c in term.items()] + [
                (len(bounds), len(index) + k, -1.0)
            ]
            bounds.append(0.0)
    if not bounds:
        return
    i, j, values = zip(*entries, strict=True)
    shape = len(bounds), len(index) + len(terms)
    matrix: Any = coo_array((values, (i, j)), shape=shape).tocsr()
    costs = [1e-4] * len(index) + [weight for weight, _ in terms]
    found: Any = linprog(costs, A_ub=matrix, b_ub=bounds, bounds=(0, None), method="highs")
    for vertex, k in index.items():
        vertex.x = round(float(found.x[k]), 6)


def _main(rows: Sequence[Sequence[Vertex]], up: bool) -> dict[Vertex, Vertex]:
    """Return the next vertex along the main path, for each vertex that has one.

    The main path is the longest run without lanes. The next vertex is below, or above if ``up``. A
    vertex has no entry if it has no such neighbour, or several with equally long runs.
    """
    runs: dict[Vertex, int] = {}
    main: dict[Vertex, Vertex] = {}
    for row in rows[::-1]:
        for vertex in row:
            near = [v for v in (vertex.above if up else vertex.below) if not v.lane]
            longest = max((runs[v] for v in near), default=0)
            runs[vertex] = longest + 1
            best = [v for v in near if runs[v] == longest]
            if len(best) == 1:
                main[vertex] = best[0]
    return main
