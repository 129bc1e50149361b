"""A network drawn as a self-contained, accessible SVG.

The layout is the same as in :mod:`kcalc.plotting.drawing`, but matplotlib is not needed.

Text and lines have the page's text colour (``currentColor``) and faces are translucent, so a
drawing works on light and dark pages. The custom properties ``--kcalc-<kind>``, ``--kcalc-skip``
and ``--kcalc-surface`` set the colours. A drawing has no ids, so a page may contain any number of
drawings.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError
from ..foundation.extras import imported
from ..foundation.templates import asset, template
from .drawing import FONT, Sheet, laid_out, net_layers
from .graph_layout import HEIGHT, Curve, DrawnRepetition, Point, Route
from .layer_texts import shortened, weights_text
from .layered import Node
from .regions import areas, as_regions, label_corner, outlines

SCALE = 124.0  # pixels per inch of the layout, so that its 7 pt text is 12 px high
# in a notebook: largest number of nodes without folding, and largest number of drawn nodes
FOLDED, DRAWN = 40, 300
SIZE = round(FONT * SCALE / 72, 1)
COLORS = {
    "input": "#7a7a7a",
    "affine": "#3b7dbd",
    "activation": "#d0733a",
    "join": "#7a7a7a",
    "normalisation": "#2f9671",
    "pooling": "#b0649a",
    "attention": "#7b64b5",
    "other": "#a58a1f",
}
SURFACE = "var(--kcalc-surface,var(--jp-layout-color0,var(--color-background-primary,Canvas)))"


def network_svg(
    network: Any,
    *,
    fold: bool = True,
    groups: Any = None,
    labels: bool | Mapping[Node, str] = True,
    columns: int | None = None,
    interactive: bool = False,
) -> str:
    """Draw a network from top to bottom as SVG text.

    Parameters: ``fold`` draws repeated blocks (``network.blocks()``) once, in a frame with their
    number. ``groups`` are tinted areas: (label, nodes) pairs, {label: nodes} or subnetworks.
    ``labels=False`` omits all text, and {node: text} replaces the text in some nodes. Tall drawings
    continue in parallel ``columns``. By default, the columns fill a page. ``interactive`` makes the
    nodes focusable.

    Nodes are ``<g class="node affine" data-node="h1">``. A node of a folded block represents
    ``data-count`` nodes. Edges are ``<g class="edge" data-from="x" data-to="h1">`` (``class="edge skip"`` if they skip
    layers). Areas are ``<g class="group" data-group="1">``. The width and height of the SVG element
    are the natural size in pixels, and it has a viewBox.

    Returns: the SVG element. Raises: KcalcError for anything but a network, and for unknown nodes
    in ``groups`` or ``labels``.
    """
    for name, given in (("fold", fold), ("interactive", interactive)):
        if not isinstance(given, bool):
            raise KcalcError(f"{name} must be True or False, got {given!r}")
    if not (isinstance(labels, bool | Mapping)):
        raise KcalcError(
            f"labels must be True, False or {{node: text}}, got {type(labels).__name__}"
        )
    regions = [] if groups is None else as_regions(groups)
    sheet = laid_out(
        network,
        labels,
        regions,
        text_width,
        fold and hasattr(network, "blocks"),
        columns,
        plain=True,
    )
    drawn, counts = sheet.plan, repetitions(sheet)
    paper = _Paper(sheet, max((text_width(region.label) for region in regions), default=0.0))
    tinted = areas(drawn, regions)
    placed: list[tuple[float, float, float, float]] = []
    made = template(asset("kcalc.plotting", "network.svg"))
    return made.render(
        interactive=interactive,
        title=f"Network of {len(sheet.layers)} nodes",
        description=_description(sheet),
        colors=COLORS,
        surface=SURFACE,
        size=SIZE,
        paper=paper,
        sheet=sheet,
        areas=[
            (area, paper.closed(outlines(drawn, area)), label_corner(drawn, area, tinted, placed))
            for area in tinted
        ],
        routes=[
            (route, _weights(sheet, route) if labels is not False else "") for route in drawn.routes
        ],
        nodes=[
            (
                box,
                sheet.layers[node].family,
                sheet.texts[node],
                _name(sheet, node, counts),
                counts[node],
            )
            for node, box in drawn.boxes.items()
        ],
    )


def _weights(sheet: Sheet, route: Route) -> str:
    """Draw the text at the ends of edges."""
    return weights_text(sheet.layers[route.target], route.slots, True) if route.text_side else ""


def _name(sheet: Sheet, node: Node, counts: Mapping[Node, int]) -> str:
    """Return the name of a node and its layer, for screen readers and as a tooltip."""
    times = f", {counts[node]} times" if counts[node] > 1 else ""
    return shortened(f"{node}: {sheet.layers[node]!r}{times}", True, 160)


def drawn_nodes(network: Any) -> int:
    """Return the number of nodes that a folded drawing shows."""
    return sum(len(block.pieces[0]) for block in network.blocks())


def repetitions(sheet: Sheet) -> Counter[Node]:
    """Return {drawn node: the number of nodes in the network that it represents}."""
    return Counter(sheet.plan.represents.values())


@lru_cache(maxsize=4096)
def text_width(text: str) -> float:
    """Return an upper bound on the width of a text in inches.

    The bound is valid for common sans-serif fonts at the layout's font size.
    """
    return sum(map(_character_width, text)) * FONT / 72


def _character_width(character: str) -> float:
    """Return the width of a character in ems."""
    if unicodedata.east_asian_width(character) in "WF":
        return 1.05
    if unicodedata.combining(character):
        return 0.0
    return (
        0.38
        if character in "iljtfrI.,:;'|!()[]/ "
        else 0.98
        if character in "mwMW@%"
        else 0.76
        if character.isupper()
        else 0.64
    )


# -- geometry --------------------------------------------------------------------------------------


class _Paper:
    """The page, which converts inches in the layout (y up) to pixels (y down)."""

    def __init__(self, sheet: Sheet, room: float) -> None:
        left, right, bottom, top = sheet.plan.extent()
        named = 0.2 if len(sheet.outputs) > 1 else 0.0
        aside = room + 0.4 if room else 0.16
        self.sheet = sheet
        self.left, self.top = left - aside, top + 0.16
        self.width = round((right - left + aside + 0.24) * SCALE, 1)
        self.height = round((top - bottom + 0.32 + named) * SCALE, 1)

    scale, half = SCALE, round(HEIGHT * SCALE / 2, 1)

    def x(self, x: float) -> float:
        return round((x - self.left) * SCALE, 1)

    def y(self, y: float) -> float:
        return round((self.top - y) * SCALE, 1)

    def at(self, point: Iterable[float]) -> str:
        x, y = point
        return f"{self.x(x):g} {self.y(y):g}"

    def rectangle(self, group: DrawnRepetition) -> tuple[float, float, float, float]:
        """Return (left, top, width, height) of a frame."""
        (x0, y0), (x1, y1) = group.low, group.high
        width, height = round((x1 - x0) * SCALE, 1), round((y1 - y0) * SCALE, 1)
        return self.x(x0), self.y(y1), width, height

    def closed(self, outlines: Sequence[Any]) -> str:
        """Return outlines as one path."""
        return "".join(f"M{'L'.join(map(self.at, outline[:-1]))}Z" for outline in outlines)

    def curve(self, points: Sequence[Point]) -> str:
        """Return a path of cubic Bezier segments; straight segments become lines."""
        text = f"M{self.at(points[0])}"
        for a, b, c, d in zip(points[:-1:3], points[1::3], points[2::3], points[3::3], strict=True):
            straight = all(
                abs((p[0] - a[0]) * (d[1] - a[1]) - (p[1] - a[1]) * (d[0] - a[0])) < 1e-9
                for p in (b, c)
            )
            text += f"L{self.at(d)}" if straight else f"C{self.at(b)} {self.at(c)} {self.at(d)}"
        return text

    def headed(self, curve: Curve) -> tuple[str, str]:
        """Return the paths of a curve and its arrow head. The curve ends inside the head."""
        end = np.array(curve[-1])
        steps = [end - point for point in curve[-2::-1]]
        along = next((step for step in steps if np.hypot(*step) > 1e-9), np.array([0.0, -1.0]))
        along = along / np.hypot(*along)
        foot, aside = end - 0.055 * along, 0.028 * along[::-1] * (-1, 1)
        tip = self.closed([(end, foot + aside, foot - aside, end)])
        return self.curve((*curve[:-1], tuple(end - 0.04 * along))), tip


# -- words -----------------------------------------------------------------------------------------


def _description(sheet: Sheet) -> str:
    """Describe the drawing in a sentence.

    The sentence states the number of layers of each kind, and which blocks are drawn once for
    several repetitions.
    """
    kinds = Counter(
        sheet.texts[n] if layer.family == "activation" else type(layer).__name__
        for n, layer in sheet.layers.items()
    )
    listed = ", ".join(
        f"{count} {shortened(kind or 'activation', True)}" for kind, count in kinds.most_common(8)
    )
    repeated = "; ".join(
        f"a block of {_members(sheet, group)} nodes, repeated {group.count} times but drawn once"
        for group in sheet.plan.groups[:8]
    )
    more = ", and other layers" if len(kinds) > 8 else ""
    return f"{listed}{more}; {repeated}" if repeated else f"{listed}{more}"


def _members(sheet: Sheet, group: DrawnRepetition) -> int:
    """Return the number of nodes in a frame."""
    (x0, y0), (x1, y1) = group.low, group.high
    return sum(x0 < b.x < x1 and y0 < b.y < y1 for b in sheet.plan.boxes.values())


def network_html(network: Any, most: int = DRAWN) -> str:
    """Return the drawing of a network with a caption, for a notebook.

    Blocks are folded if there are more than 40 nodes.

    If more than ``most`` nodes would remain, the result is a table of the layers instead.
    """
    markup = imported("markupsafe").Markup
    fold = len(net_layers(network)) > FOLDED
    small = (drawn_nodes(network) if fold else len(net_layers(network))) <= most
    return template(asset("kcalc.plotting", "network.html")).render(
        drawing=markup(network_svg(network, fold=fold)) if small else None,
        counts=layer_counts(network),
        caption=repr(network),
    )


def network_page(network: Any, most: int) -> tuple[str, str | None]:
    """Return the summary of a network and its interactive drawing.

    The drawing is None if it would have more than ``most`` nodes.
    """
    small = drawn_nodes(network) <= most
    return network_summary(network), network_svg(network, interactive=True) if small else None


def layer_counts(network: Any) -> dict[str, int]:
    """Count the nodes of each kind of layer, most frequent first."""
    return dict(
        Counter(type(layer).__name__ for layer in net_layers(network).values()).most_common()
    )


def network_summary(network: Any) -> str:
    """Return a one-line text with the number of layers of each kind, for networks too large to draw."""
    return ", ".join(f"{count} {kind}" for kind, count in layer_counts(network).items())
