"""Coloured regions behind a drawn network.

Nested regions are drawn inside one another, each with an outline, a label and an entry in the
legend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..foundation.errors import KcalcError, glimpse
from ..foundation.plain_arguments import items
from .graph_layout import HEIGHT, PITCH, DrawingPlan
from .layered import Node

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#0072B2", "#8C6BB1", "#7F7F3F")
LISTED = 14  # maximum number of regions in the legend
PALE = 0.32  # the fraction of a region's colour in its tint
LINE = 0.13  # the height of a label


@dataclass(frozen=True)
class Region:
    """A region to draw, with its label, its nodes, and its line in the legend.

    The short label is written next to the region. A region with an empty line is not in the legend.
    """

    label: str
    nodes: tuple[Node, ...]
    meaning: str = ""


def as_regions(given: Any) -> list[Region]:
    """Return numbered regions from labelled sets of nodes or from subnetworks.

    ``given`` is {label: nodes}, or a collection of (label, nodes) pairs or of subnetworks (objects
    with ``layers``, ``entry`` and ``exit``).

    Subnetworks without a nonlinear layer are omitted. Raises: KcalcError for anything else.
    """
    given = getattr(given, "nonlinear", given)
    found: list[Region] = []
    members: Iterable[Any] = (
        given.items()
        if isinstance(given, Mapping)
        else [given]
        if hasattr(given, "layers")
        else _iterated(given)
    )
    for item in members:
        if not isinstance(item, tuple | list) and hasattr(item, "layers"):
            count = len(item.layers)
            meaning = f"{item.entry} → {item.exit} ({count} layer{'s' * (count != 1)})"
            found.append(Region(str(len(found) + 1), tuple(item.layers), meaning))
        elif isinstance(item, tuple | list) and len(item) == 2 and not isinstance(item[1], str):
            found.append(Region(str(item[0]), tuple(_iterated(item[1]))))
        else:
            raise _refused(item)
    return found


def _iterated(given: Any) -> Iterable[Any]:
    try:
        return items(given, "regions")
    except KcalcError:
        raise _refused(given) from None


def _refused(given: Any) -> KcalcError:
    return KcalcError(
        "regions must be (label, nodes) pairs, {label: nodes}, or subnetworks, got "
        f"{glimpse(given)}"
    )


@dataclass(frozen=True)
class Area:
    """A region on the page, with its boxes, its colour, and the number of regions nested in it."""

    label: str
    members: frozenset[Node]
    meaning: str
    color: str
    inner: int = 0


def areas(drawn: DrawingPlan, regions: Sequence[Region]) -> list[Area]:
    """Return the regions to draw, larger ones first.

    Regions that look the same in the drawing, because of repeated blocks, are combined.
    """
    together: dict[frozenset[Node], list[Region]] = {}
    for region in regions:
        members = frozenset(drawn.represents[node] for node in region.nodes)
        if members:
            together.setdefault(members, []).append(region)
    found: list[Area] = []
    for members, same in sorted(together.items(), key=lambda item: -len(item[0])):
        names, meaning = [region.label for region in same], same[0].meaning
        label = ", ".join(names) if len(names) < 3 else f"{names[0]} … {names[-1]}"
        more = f", and {len(same) - 1} like it" if len(same) > 1 and meaning else ""
        around = {area.color for area in found if members < area.members}
        turned = [COLORS[(len(found) + k) % len(COLORS)] for k in range(len(COLORS))]
        color = next((c for c in turned if c not in around), turned[0])
        found.append(Area(label, members, meaning + more, color))
    done: list[Area] = []
    for area in found[::-1]:
        inner = max((other.inner + 1 for other in done if other.members < area.members), default=0)
        done.append(replace(area, inner=inner))
    return done[::-1]


def draw_regions(
    ax: Axes, drawn: DrawingPlan, regions: Sequence[Region], font: float, scale: float
) -> list[Any]:
    """Draw regions with z-orders between 1 and 1.6.

    Returns: the legend handles in the order of ``regions``.
    """
    from matplotlib.path import Path

    found = areas(drawn, regions)
    placed: list[tuple[float, float, float, float]] = []
    handles: dict[str, Any] = {}
    for k, area in enumerate(found):
        path = Path.make_compound_path(
            *(Path(outline, closed=True) for outline in outlines(drawn, area))
        )
        z, tint = 1 + 0.6 * k / len(found), _tint(area.color)
        line = {
            "facecolor": "none",
            "edgecolor": area.color,
            "linewidth": 1.8 * scale,
            "joinstyle": "round",
            "zorder": z,
        }
        # the region will cover the inner half of the line
        ax.add_artist(patch("PathPatch", path, **line, gid=f"outline:{area.label}"))
        fill = {
            "facecolor": tint,
            "linewidth": 0,
            "zorder": z + 0.3 / len(found),
            "gid": f"region:{area.label}",
        }
        ax.add_artist(patch("PathPatch", path, **fill))
        right, top = label_corner(drawn, area, found, placed)
        ax.text(
            right,
            top,
            area.label,
            ha="right",
            va="top",
            fontsize=font * scale,
            color=area.color,
            weight="bold",
            zorder=5,
        )
        text = f"{area.label}:  {area.meaning}" if area.meaning else area.label
        handles[area.label] = patch(
            "Patch", facecolor=tint, edgecolor=area.color, linewidth=0.9 * scale, label=text
        )
    order = {region.label: i for i, region in reversed(list(enumerate(regions)))}
    listed = sorted(handles, key=lambda label: order.get(label.split(", ")[0].split(" … ")[0], 0))
    shown = [handles[label] for label in listed[:LISTED]]
    if len(listed) > LISTED:
        shown.append(
            patch(
                "Patch",
                facecolor="none",
                edgecolor="none",
                label=f"and {len(listed) - LISTED} more regions",
            )
        )
    return shown


def label_corner(
    drawn: DrawingPlan,
    area: Area,
    areas: Sequence[Area],
    placed: list[tuple[float, float, float, float]],
) -> tuple[float, float]:
    """Return the upper right corner of a label.

    The label is to the left of all regions around the first box, or lower if another label is
    there. The label's extent (left, right, bottom, top) is added to ``placed``.
    """
    first = max((drawn.boxes[node] for node in area.members), key=lambda b: (b.y, -b.x))
    right = (
        first.x
        - first.width / 2
        - max(margin(other) for other in areas if first.node in other.members)
        - 0.05
    )
    top, width = first.y + first.height / 2, 0.075 * len(area.label)
    while any(
        left < right and right - width < r and bottom < top and top - LINE < t
        for left, r, bottom, t in placed
    ):
        top -= LINE
    placed.append((right - width, right, top - LINE, top))
    return right, top


def margin(area: Area) -> float:
    """Return the distance from boxes to the outline, which is larger around nested regions."""
    return 0.045 + 0.035 * min(area.inner, 4)


def _tint(color: str) -> tuple[float, float, float]:
    red, green, blue = (PALE * int(color[i : i + 2], 16) / 255 + 1 - PALE for i in (1, 3, 5))
    return red, green, blue


def outlines(drawn: DrawingPlan, area: Area) -> list[Any]:
    """Return the counter-clockwise outlines of an area.

    The outlines surround the boxes with a margin, the space between each box and the next box
    below, and strips along edges.
    """
    reach = margin(area)
    # use the order of the plan, because the order of the set of members varies between runs
    boxes = [box for node, box in drawn.boxes.items() if node in area.members]
    up = HEIGHT / 2 + reach
    found: list[Any] = [_between(b.x, b.width / 2 + reach, b.y - up, b.y + up) for b in boxes]
    for route in drawn.routes:
        if route.source in area.members and route.target in area.members:
            a, b = drawn.boxes[route.source], drawn.boxes[route.target]
            found.append(_strip(route.curve, reach))
            if abs(a.x - b.x) < 1e-6 and abs(abs(a.y - b.y) - PITCH) < 1e-6:
                narrow = min(a, b, key=lambda box: box.width)
                found.append(
                    _between(narrow.x, narrow.width / 2 + reach, min(a.y, b.y), max(a.y, b.y))
                )
    return found


def _between(x: float, half: float, low: float, high: float) -> list[tuple[float, float]]:
    return [(x - half, low), (x + half, low), (x + half, high), (x - half, high), (x - half, low)]


def _strip(curve: Sequence[tuple[float, float]], reach: float) -> np.ndarray:
    """Return the outline of the points within ``reach`` of a curve, from side to side."""
    points = sample(curve)
    points = points[np.r_[True, np.hypot(*np.diff(points, axis=0).T) > 1e-6]]
    steps = np.gradient(points, axis=0)
    normals = np.stack([-steps[:, 1], steps[:, 0]], axis=1) / np.hypot(*steps.T)[:, None] * reach
    return np.concatenate([points - normals, (points + normals)[::-1], (points - normals)[:1]])


def sample(curve: Sequence[tuple[float, float]], pieces: int = 12) -> np.ndarray:
    """Return points (n, 2) along a curve of cubic Bezier segments, with ``pieces`` per segment."""
    control = np.asarray(curve, dtype=float)
    t = np.linspace(0, 1, pieces + 1)[1:, None]
    points = [control[:1]]
    for a, b, c, d in zip(control[:-1:3], control[1::3], control[2::3], control[3::3], strict=True):
        points.append(
            (1 - t) ** 3 * a + 3 * t * (1 - t) ** 2 * b + 3 * t**2 * (1 - t) * c + t**3 * d
        )
    return np.concatenate(points)


def patch(kind: str, *arguments: Any, **options: Any) -> Any:
    """Return an artist of ``matplotlib.patches``, which is imported only for drawing."""
    import matplotlib.patches

    return getattr(matplotlib.patches, kind)(*arguments, **options)
