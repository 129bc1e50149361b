"""Positions of the nodes and edges of a drawn network: rows, skip lanes, columns.

This module contains only geometry, in inches.

Rows, lanes and places come from :mod:`kcalc.plotting.layered`. Curves are vertical except between
rows or next to a node, so no edge crosses a box. Tall drawings continue in parallel columns, cut
where all paths meet in one node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, sqrt
from typing import Any

from .layered import Layered, Node, Parents, Rows, Vertex, longest_path_rows

Step = tuple[Node, Any, tuple[Node, ...]]
Point = tuple[float, float]
Curve = tuple[Point, ...]

HEIGHT, GAP, PAD = 0.26, 0.23, 0.075
PITCH, CORRIDOR, COUNT, COLUMN_ROWS = HEIGHT + GAP, 0.4, 0.3, 20


@dataclass(frozen=True)
class Box:
    """A drawn node: its centre and its size."""

    node: Node
    x: float
    y: float
    width: float
    height: float = HEIGHT

    @property
    def round(self) -> bool:
        """Whether the box is a circle, as for sums and products."""
        return self.width <= self.height


@dataclass(frozen=True)
class Route:
    """A drawn edge: a start point, then three points for each cubic Bezier segment.

    ``skip`` marks skip edges. A skip edge passes rows in a lane, and either starts at a node that
    other nodes also read or ends in a sum. ``text_at`` is a position for the weight's text. The
    text ends there if ``text_side`` is "right", begins there if it is "left", and is centred there
    if it is "center". An empty ``text_side`` means that there is no room for text.
    """

    source: Node
    target: Node
    curve: Curve
    skip: bool = False
    slots: tuple[int, ...] = (0,)
    text_at: Point = (0.0, 0.0)
    text_side: str = "left"


@dataclass(frozen=True)
class DrawnRepetition:
    """A block drawn once for ``count`` repetitions, in the rectangle from ``low`` to ``high``."""

    count: int
    low: Point
    high: Point


@dataclass(frozen=True)
class DrawingPlan:
    """The plan of a drawing: boxes by node, routes, groups, and connectors between columns.

    ``represents`` maps every node to the node that is drawn for it.
    """

    boxes: Mapping[Node, Box]
    routes: tuple[Route, ...]
    groups: tuple[DrawnRepetition, ...]
    connectors: tuple[Curve, ...]
    represents: Mapping[Node, Node]  # each node of the network -> the node that is drawn for it

    def extent(self) -> tuple[float, float, float, float]:
        """Return (left, right, bottom, top) of the whole drawing."""
        points = [p for route in self.routes for p in route.curve] + [
            p for curve in self.connectors for p in curve
        ]
        points += [
            p for group in self.groups for p in (group.low, (group.high[0] + COUNT, group.high[1]))
        ]
        points += [
            (b.x + s * b.width / 2, b.y + s * b.height / 2)
            for b in self.boxes.values()
            for s in (-1, 1)
        ]
        xs, ys = zip(*points, strict=True)
        return min(xs), max(xs), min(ys), max(ys)


def plan(
    net: Any,
    widths: Mapping[Node, float],
    ordered: Collection[Node] = (),
    collapse: bool = False,
    columns: int | None = None,
) -> DrawingPlan:
    """Lay out a network.

    ``net`` has ``.steps()``, which lists (node, layer, parents in slot order) topologically, and,
    to collapse blocks, ``.blocks()``. ``widths`` contains the widths of boxes in inches. A box that
    is no wider than it is high is drawn as a circle. ``ordered`` lists nodes whose parents should
    be in slot order. ``columns`` is the number of columns. By default, it depends on the number of
    rows.
    """
    steps, represents, groups = _drawn(net, collapse)
    parents = {node: tuple(represents[p] for p in above) for node, _, above in steps}
    rows = longest_path_rows(parents)
    boxes: dict[Node, Box] = {}
    routes: list[Route] = []
    connectors: list[Curve] = []
    rectangles: list[DrawnRepetition] = []
    edge = 0.0
    entry: Node | None = None
    for members in _columns(rows, parents, groups, columns):
        heads = members if entry is None else [entry, *members]
        inner = {n: parents[n] for n in members}
        wide = {n: 0.0 if n == entry else widths[n] for n in heads}
        sheet = Layered(inner, {n: rows[n] - rows[heads[0]] for n in heads}, wide, ordered)
        sheet.shift(edge - sheet.span()[0])
        if entry is not None:
            foot = (boxes[entry].x, boxes[entry].y - HEIGHT / 2)
            connectors.append(_connector(foot, edge - CORRIDOR / 2, sheet.vertices[entry].x))
        for node in members:
            vertex = sheet.vertices[node]
            boxes[node] = Box(node, vertex.x, _y(vertex), widths[node])
            routes += _routes(sheet, node, parents[node])
        drawn = [_rectangle(sheet, count, nodes) for count, nodes in groups if nodes[0] in inner]
        rectangles += drawn
        edge = max([sheet.span()[1], *(group.high[0] + COUNT for group in drawn)]) + CORRIDOR
        entry = members[-1]
    return DrawingPlan(boxes, tuple(routes), tuple(rectangles), tuple(connectors), represents)


# -- which nodes, in which rows and columns --------------------------------------------------------


def _drawn(
    net: Any, collapse: bool
) -> tuple[list[Step], dict[Node, Node], list[tuple[int, tuple[Node, ...]]]]:
    """Return the steps to draw, the drawn node for each node, and the repeated blocks.

    Each repeated block is a pair (number of repetitions, nodes).
    """
    steps: list[Step] = list(net.steps())
    represents: dict[Node, Node] = {node: node for node, _, _ in steps}
    groups: list[tuple[int, tuple[Node, ...]]] = []
    for block in net.blocks() if collapse else ():
        if block.count > 1:
            groups.append((block.count, tuple(block.pieces[0])))
            represents.update(
                {node: block.pieces[0][i] for piece in block.pieces for i, node in enumerate(piece)}
            )
    return [step for step in steps if represents[step[0]] == step[0]], represents, groups


def _columns(
    rows: Rows, parents: Parents, groups: Iterable[tuple[int, tuple[Node, ...]]], most: int | None
) -> list[list[Node]]:
    """Return the nodes in each column in topological order.

    A column ends at a node that all paths cross and that is not part of a group.
    """
    total = max(rows.values()) + 1
    alone = [0] * total
    for row in rows.values():
        alone[row] += 1
    for node, above in parents.items():
        for row in {r for p in above for r in range(rows[p] + 1, rows[node])}:
            alone[row] = total + 1
    for _, nodes in groups:
        inside = [rows[n] for n in nodes]
        for row in range(min(inside), max(inside)):
            alone[row] = total + 1
    ratio = total / max(COLUMN_ROWS, sqrt(5 * total))
    numbers = {most} if most else {max(1 if ratio < 1.3 else 2, int(ratio)), ceil(ratio)}
    ends = min(
        (
            _breaks(total, [r for r in range(1, total - 1) if alone[r] == 1], n)
            for n in sorted(numbers)
        ),
        key=lambda e: _uneven(total, e),
    )
    columns: list[list[Node]] = [[] for _ in range(len(ends) + 1)]
    for node in parents:
        columns[sum(rows[node] > end for end in ends)].append(node)
    return [sorted(column, key=rows.__getitem__) for column in columns]


def _breaks(total: int, free: Sequence[int], number: int) -> list[int]:
    """Return the last row of every column except the last column.

    The rows are chosen so that columns have similar heights and none is very short.
    """
    ends: list[int] = []
    for k in range(number - 1, 0, -1):
        last = ends[-1] if ends else -1
        height = (total - 1 - last) / (k + 1)
        near = [r for r in free if abs(r - last - height) <= height / 2]
        if near:
            ends.append(min(near, key=lambda r: abs(r - last - height)))
    return ends


def _uneven(total: int, ends: Sequence[int]) -> float:
    """Return the variance of the columns' heights relative to their mean."""
    heights = [b - a for a, b in pairwise([-1, *ends, total - 1])]
    mean = total / len(heights)
    return sum((h / mean - 1) ** 2 for h in heights) / len(heights)


def _connector(start: Point, x: float, end: float) -> Curve:
    """Return the line from the foot of a column to the head of the next column.

    The line goes up the corridor at ``x`` and down to the head at (end, 0).
    """
    low, high = start[1] - 0.16, HEIGHT / 2 + 0.1
    corners = [start, (start[0], low), (x, low), (x, high), (end, high), (end, 0.0)]
    return (start, *_rounded(corners, 0.09))


def _rounded(corners: Sequence[Point], radius: float) -> list[Point]:
    """Return straight lines between rounded corners, starting at the first corner."""
    curve = [corners[0]]
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        near, far = _toward(corner, before, radius), _toward(corner, after, radius)
        curve += [*_line(curve[-1], near), _mix(near, corner, 0.55), _mix(far, corner, 0.55), far]
    return [*curve[1:], *_line(curve[-1], corners[-1])]


def _toward(a: Point, b: Point, distance: float) -> Point:
    length = abs(a[0] - b[0]) + abs(a[1] - b[1])
    return _mix(a, b, min(distance / length, 0.5) if length else 0.0)


def _mix(a: Point, b: Point, t: float) -> Point:
    return a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])


def _line(a: Point, b: Point) -> list[Point]:
    return [_mix(a, b, 1 / 3), _mix(a, b, 2 / 3), b]


# -- curves ----------------------------------------------------------------------------------------


def _y(vertex: Vertex) -> float:
    return -vertex.row * PITCH


def _rectangle(sheet: Layered, count: int, nodes: Iterable[Node]) -> DrawnRepetition:
    """Return the rectangle around the rows of some nodes, including the lanes that pass them."""
    rows = {sheet.vertices[n].row for n in nodes}
    places = [v for row in rows for v in sheet.rows[row]]
    low = min(v.x - v.width / 2 for v in places) - PAD - 0.03, -max(rows) * PITCH - HEIGHT / 2 - PAD
    return DrawnRepetition(
        count,
        low,
        (
            max(v.x + v.width / 2 for v in places) + PAD + 0.03,
            -min(rows) * PITCH + HEIGHT / 2 + PAD,
        ),
    )


def _routes(sheet: Layered, node: Node, slots: Sequence[Node]) -> list[Route]:
    """Return the edges into a node as curves.

    Edges that cannot enter from a side share the top of the box.
    """
    parents = list(dict.fromkeys(slots))
    paths = {p: sheet.path(p, node) for p in parents}
    beside = {
        p
        for p, path in paths.items()
        if (len(parents) > 1 or len(path) > 2) and _free_beside(sheet, path[-1], path[-2].x)
    }
    top = sorted((p for p in parents if p not in beside), key=lambda p: paths[p][-2].x)
    step = min(0.16, 0.8 * sheet.vertices[node].width / max(len(top), 1))
    found: list[Route] = []
    written: set[tuple[bool, str]] = set()
    for parent, path in paths.items():
        port = 0.0 if parent in beside else (top.index(parent) - (len(top) - 1) / 2) * step
        curve = _curve(sheet, path, port, parent in beside)
        side = "left" if path[-2].x > path[-1].x + 1e-6 else "right"
        if parent in top and len(top) > 1:
            side = "right" if parent == top[0] else "left" if parent == top[-1] else ""
        side = "" if (parent in beside, side) in written else side
        written.add((parent in beside, side))
        at = (
            curve[-1][0] + (0.045 if side == "left" else -0.045),
            curve[-1][1] + (0.035 if parent in beside else 0.07),
        )
        # place the text in the straight part of the lane if the end of the edge is shared
        if not side and path[-2].lane:
            at, side = (path[-2].x, _y(path[-2])), "center"
        taken = tuple(i for i, p in enumerate(slots) if p == parent)
        shortcut = sheet.forks(parent) or sheet.vertices[node].width <= HEIGHT
        found.append(Route(parent, node, curve, len(path) > 2 and shortcut, taken, at, side))
    return found


def _free_beside(sheet: Layered, vertex: Vertex, x: float) -> bool:
    """Return whether a vertex's row is empty between its box and ``x``."""
    side = 1 if x > vertex.x else -1
    if (x - vertex.x) * side < vertex.width / 2 + 0.1:
        return False
    others = (v for v in sheet.rows[vertex.row] if (v.x - vertex.x) * side > 0)
    return all((v.x - x) * side - v.width / 2 > 0.05 for v in others)


def _curve(sheet: Layered, path: Sequence[Vertex], port: float, beside: bool) -> Curve:
    """Return the curve along a path of vertices.

    The curve starts at the bottom or the side of a box, goes straight down its lane, and ends at
    the top or the side of another box.
    """
    start, end, first, last = path[0], path[-1], path[1], path[-2]
    half = HEIGHT / 2
    curve: list[Point]
    if not (beside and len(path) == 2) and _free_beside(sheet, start, first.x):
        origin = _side_port(start, first.x, -1)
        curve = [origin, *_corner(origin, (first.x, origin[1]), (first.x, _y(first) + half))]
    else:
        curve = [(start.x, _y(start) - (half if start.width else 0.0))]
        if len(path) > 2:
            curve += _swing(curve[-1], (first.x, _y(first) + half))
    for k, vertex in enumerate(path[1:-1]):
        if k:
            curve += _swing(curve[-1], (vertex.x, _y(vertex) + half))
        curve += _line(curve[-1], (vertex.x, _y(vertex) - half))
    if beside:
        goal = _side_port(end, last.x, 1)
        return tuple(curve + _corner(curve[-1], (last.x, goal[1]), goal))
    if len(path) > 2 or len(curve) == 1:
        top = sqrt(half**2 - port**2) if end.width <= HEIGHT else half
        curve += _swing(curve[-1], (end.x + port, _y(end) + top))
    return tuple(curve)


def _side_port(vertex: Vertex, x: float, up: int) -> Point:
    """Return the point where an edge meets the side of a box that faces ``x``.

    The point is above (``up=1``) or below (``up=-1``) the middle of the side.
    """
    is_round, half, side = vertex.width <= HEIGHT, vertex.width / 2, 1 if x > vertex.x else -1
    across, along = (0.87 * half, 0.5 * half) if is_round else (half, 0.22 * HEIGHT)
    return vertex.x + side * (across - 0.02 if up < 0 and across else across), _y(
        vertex
    ) + up * along


def _corner(start: Point, corner: Point, end: Point) -> list[Point]:
    """Return a straight path from start to end with a rounded corner."""
    reach = [abs(corner[0] - p[0]) + abs(corner[1] - p[1]) for p in (start, end)]
    return _rounded([start, corner, end], min(*reach, 0.3))


def _swing(start: Point, end: Point) -> list[Point]:
    """Return a curve down from start to end that is vertical at both ends."""
    middle = (start[1] + end[1]) / 2
    return [(start[0], middle), (end[0], middle), end]
