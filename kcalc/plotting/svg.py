"""A network drawn as one self-contained, accessible SVG.

The layout of :mod:`kcalc.plotting.drawing`, without matplotlib.

Text and lines take the colour of the page (``currentColor``), faces are translucent, so one drawing
serves light and dark pages. The custom properties ``--kcalc-<kind>``, ``--kcalc-skip`` and
``--kcalc-surface`` change colours. There are no ids, so that any number of drawings can stand on
one page.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from html import escape
from math import hypot
from typing import Any

from ..foundation.errors import KcalcError
from .drawing import FONT, Sheet, laid_out, net_layers
from .graph_layout import HEIGHT, Box, Curve, Group, Point, Route
from .layer_texts import layer_kind, shortened, weights_text
from .layered import Node
from .regions import Area, areas, as_regions, label_corner, outlines

SCALE = 124.0  # pixels per inch of the layout: its 7 pt are 12 px
FOLDED, DRAWN = 40, 300  # nodes from which blocks are folded in a notebook; most nodes drawn there
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
STYLE = (
    "svg.kcalc-network:root{color:CanvasText;color-scheme:light dark}"
    ".kcalc-network text{fill:currentColor;text-anchor:middle;dominant-baseline:central}"
    ".kcalc-network .node>:is(rect,circle){stroke-width:1.3;fill-opacity:.17}"
    ".kcalc-network .node.output>:is(rect,circle){stroke:currentColor;stroke-width:2.4}"
    ".kcalc-network .node:focus{outline:none}"
    ".kcalc-network .node:focus-visible>:is(rect,circle){stroke:currentColor;stroke-width:4}"
    ".kcalc-network .edge>path{fill:none;stroke:currentColor;stroke-width:1.3}"
    ".kcalc-network .edge.skip>path{stroke:var(--kcalc-skip,#2f86c6);stroke-width:2.2}"
    ".kcalc-network .edge>path+path{fill:currentColor;stroke:none}"
    ".kcalc-network .edge.skip>path+path{fill:var(--kcalc-skip,#2f86c6);stroke:none}"
    f".kcalc-network "
    f".edge>text{{font-size:.8em;paint-order:stroke;stroke:{SURFACE};stroke-width:3px}}"
    ".kcalc-network "
    ".block>rect{fill:currentColor;fill-opacity:.04;stroke:currentColor;stroke-opacity:.6;stroke-dasharray:6 "
    "4}"
    ".kcalc-network .block>text{font-size:1.2em;text-anchor:start}"
    ".kcalc-network .group>path{paint-order:stroke;stroke-width:5;stroke-linejoin:round}"
    ".kcalc-network .group>text{font-weight:bold;text-anchor:end}"
    "".join(
        f".kcalc-network "
        f".{kind}>:is(rect,circle){{fill:var(--kcalc-{kind},{c});stroke:var(--kcalc-{kind},{c})}}"
        for kind, c in COLORS.items()
    )
)


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

    Parameters: ``fold`` draws repeated blocks (``network.blocks()``) once, framed, with their
    number. ``groups`` are tinted areas: (label, nodes) pairs, {label: nodes} or subnetworks.
    ``labels=False`` writes nothing, {node: text} replaces the text of some nodes. Tall drawings go
    on in ``columns`` side by side, by default as many as make a page. ``interactive`` lets the
    nodes take the focus.

    Nodes are ``<g class="node affine" data-node="h1">`` (a folded one stands for ``data-count`` of
    them), edges ``<g class="edge" data-from="x" data-to="h1">`` (``class="edge skip"`` where they
    pass layers by), areas ``<g class="group" data-group="1">``. The drawing has its natural size in
    pixels (width, height) and a viewBox.

    Returns: the SVG element. Raises: KcalcError for something that is not a network, and for
    unknown nodes in ``groups`` or ``labels``.
    """
    for name, given in (("fold", fold), ("interactive", interactive)):
        if not isinstance(given, bool):
            raise KcalcError(f"{name} must be True or False, got {given!r}")
    if not (isinstance(labels, bool | Mapping)):
        raise KcalcError(f"labels are True, False or {{node: text}}, got {type(labels).__name__}")
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
    paper = _Paper(sheet, max((text_width(region.label) for region in regions), default=0.0))
    counts = repetitions(sheet)
    parts = [
        *_groups(paper, areas(sheet.plan, regions)),
        *(_frame(paper, group) for group in sheet.plan.groups),
        *(_connector(paper, curve) for curve in sheet.plan.connectors),
        *(_edge(paper, route, labels is not False) for route in sheet.plan.routes),
        *(_node(paper, box, counts[node], interactive) for node, box in sheet.plan.boxes.items()),
    ]
    role = 'role="group"' if interactive else 'role="img"'
    title, description = f"Network of {len(sheet.layers)} nodes", _description(sheet)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="kcalc-network" {role} '
        f'aria-label="{clean(f"{title}: {description}")}" '
        f'width="{paper.width:g}" height="{paper.height:g}" viewBox="0 0 {paper.width:g} '
        f'{paper.height:g}" '
        f'font-family="system-ui, sans-serif" font-size="{SIZE:g}px">'
        f"<title>{clean(title)}</title><desc>{clean(description)}</desc><style>{STYLE}</style>{''.join(parts)}</svg>"
    )


def drawn_nodes(network: Any) -> int:
    """How many nodes a folded drawing shows."""
    return sum(len(block.pieces[0]) for block in network.blocks())


def repetitions(sheet: Sheet) -> Counter[Node]:
    """How many nodes of the network each drawn node stands for."""
    return Counter(sheet.plan.represents.values())


def clean(text: Any) -> str:
    """A text for XML: one line, special characters escaped, those that XML forbids replaced."""
    allowed = re.sub(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]", "\ufffd", str(text))
    return escape(" ".join(allowed.split()), quote=True)


@lru_cache(maxsize=4096)
def text_width(text: str) -> float:
    """An upper estimate of the width of a text in inches.

    It holds for the usual sans-serif fonts at the layout's size.
    """
    return sum(map(_character_width, text)) * FONT / 72


def _character_width(character: str) -> float:
    """The width of a character in ems."""
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
    """The page: inches of the layout (y up) to pixels (y down)."""

    def __init__(self, sheet: Sheet, room: float) -> None:
        left, right, bottom, top = sheet.plan.extent()
        named = 0.2 if len(sheet.outputs) > 1 else 0.0
        aside = room + 0.4 if room else 0.16
        self.sheet = sheet
        self.left, self.top = left - aside, top + 0.16
        self.width = round((right - left + aside + 0.24) * SCALE, 1)
        self.height = round((top - bottom + 0.32 + named) * SCALE, 1)

    def x(self, x: float) -> float:
        return round((x - self.left) * SCALE, 1)

    def y(self, y: float) -> float:
        return round((self.top - y) * SCALE, 1)

    def at(self, point: Iterable[float]) -> str:
        x, y = point
        return f"{self.x(x):g} {self.y(y):g}"

    def curve(self, points: Sequence[Point]) -> str:
        """A path of cubic Bezier segments; straight ones as lines."""
        text = f"M{self.at(points[0])}"
        for a, b, c, d in zip(points[:-1:3], points[1::3], points[2::3], points[3::3], strict=True):
            straight = all(
                abs((p[0] - a[0]) * (d[1] - a[1]) - (p[1] - a[1]) * (d[0] - a[0])) < 1e-9
                for p in (b, c)
            )
            text += f"L{self.at(d)}" if straight else f"C{self.at(b)} {self.at(c)} {self.at(d)}"
        return text


def _headed(paper: _Paper, curve: Curve) -> str:
    """A curve and its arrow head; the line ends inside the head."""
    end = curve[-1]
    before = next(
        (p for p in curve[-2::-1] if hypot(p[0] - curve[-1][0], p[1] - curve[-1][1]) > 1e-9),
        curve[0],
    )
    length = hypot(end[0] - before[0], end[1] - before[1]) or 1.0
    ux, uy = (end[0] - before[0]) / length, (end[1] - before[1]) / length
    foot = end[0] - 0.055 * ux, end[1] - 0.055 * uy
    corners = (
        end,
        (foot[0] - 0.028 * uy, foot[1] + 0.028 * ux),
        (foot[0] + 0.028 * uy, foot[1] - 0.028 * ux),
    )
    line = (*curve[:-1], (end[0] - 0.04 * ux, end[1] - 0.04 * uy))
    return f'<path d="{paper.curve(line)}"/><path d="M{"L".join(map(paper.at, corners))}Z"/>'


# -- parts -----------------------------------------------------------------------------------------


def _node(paper: _Paper, box: Box, count: int, interactive: bool) -> str:
    sheet, node = paper.sheet, box.node
    kind, text = layer_kind(sheet.layers[node]), sheet.texts[node]
    name = f"{node}: {sheet.layers[node]!r}" + (f", {count} times" if count > 1 else "")
    x, y, half = paper.x(box.x), paper.y(box.y), round(HEIGHT * SCALE / 2, 1)
    classes = f"node {kind} output" if node in sheet.outputs else f"node {kind}"
    focus = (
        f' tabindex="0" role="img" aria-label="{clean(shortened(name, True, 160))}"'
        if interactive
        else ""
    )
    repeated = f' data-count="{count}"' if count > 1 else ""
    if box.round:
        shape = f'<circle cx="{x:g}" cy="{y:g}" r="{half:g}"/>'
    else:
        width = round(box.width * SCALE, 1)
        radius = {"activation": half, "input": 11, "join": 0}.get(kind, 4)
        shape = (
            f'<rect x="{x - width / 2:g}" y="{y - half:g}" width="{width:g}" '
            f'height="{2 * half:g}" rx="{radius:g}"/>'
        )
    size = ' font-size="1.4em"' if box.round else ""
    written = f'<text x="{x:g}" y="{y:g}"{size}>{clean(text)}</text>' if text else ""
    if node in sheet.outputs and len(sheet.outputs) > 1:
        written += (
            f'<text x="{x:g}" y="{y + half + 11:g}" '
            f'font-style="italic">{clean(shortened(str(node), True))}</text>'
        )
    hint = f"<title>{clean(shortened(name, True, 160))}</title>"
    return (
        f'<g class="{classes}" '
        f'data-node="{clean(node)}"{repeated}{focus}>{hint}{shape}{written}</g>'
    )


def _edge(paper: _Paper, route: Route, labelled: bool) -> str:
    classes = "edge skip" if route.skip else "edge"
    text = (
        weights_text(paper.sheet.layers[route.target], route.slots, plain=True)
        if labelled and route.text_side
        else ""
    )
    anchor = {"left": "start", "right": "end"}.get(route.text_side, "middle")
    x, y = route.text_at
    up = -3 if route.text_side == "center" else 7
    written = (
        f'<text x="{paper.x(x):g}" y="{paper.y(y) - up:g}" '
        f'style="text-anchor:{anchor}">{clean(text)}</text>'
        if text
        else ""
    )
    ends = f'data-from="{clean(route.source)}" data-to="{clean(route.target)}"'
    return f'<g class="{classes}" {ends}>{_headed(paper, route.curve)}{written}</g>'


def _connector(paper: _Paper, curve: Curve) -> str:
    """The line from the foot of a column to the head of the next."""
    return f'<g class="edge turn"><path d="{paper.curve(curve)}"/></g>'


def _frame(paper: _Paper, group: Group) -> str:
    (x0, y0), (x1, y1) = group.low, group.high
    x, y, width, height = paper.x(x0), paper.y(y1), (x1 - x0) * SCALE, (y1 - y0) * SCALE
    box = f'<rect x="{x:g}" y="{y:g}" width="{width:.1f}" height="{height:.1f}" rx="10"/>'
    text = f'<text x="{x + width + 6:.1f}" y="{y + height / 2:.1f}">×{group.count}</text>'
    return f'<g class="block" data-count="{group.count}">{box}{text}</g>'


def _groups(paper: _Paper, found: Sequence[Area]) -> list[str]:
    placed: list[tuple[float, float, float, float]] = []
    parts: list[str] = []
    for area in found:
        path = "".join(
            f"M{'L'.join(paper.at(p) for p in outline[:-1])}Z"
            for outline in outlines(paper.sheet.plan, area)
        )
        right, top = label_corner(paper.sheet.plan, area, found, placed)
        tint = f"color-mix(in srgb,{area.color} 26%,{SURFACE})"
        label = f'<text x="{paper.x(right):g}" y="{paper.y(top) + 8:g}">{clean(area.label)}</text>'
        hint = f"<title>{clean(f'{area.label}: {area.meaning}' if area.meaning else area.label)}</title>"
        drawn = f'<path d="{path}" fill="#f4f4f4" stroke="{area.color}" style="fill:{tint}"/>'
        parts.append(f'<g class="group" data-group="{clean(area.label)}">{hint}{drawn}{label}</g>')
    return parts


def _description(sheet: Sheet) -> str:
    """A description of the drawing in a sentence.

    It says how many layers of each kind there are, and which are drawn once for many.
    """
    kinds = Counter(
        sheet.texts[n] if layer_kind(layer) == "activation" else type(layer).__name__
        for n, layer in sheet.layers.items()
    )
    listed = ", ".join(
        f"{count} {shortened(kind or 'activation', True)}" for kind, count in kinds.most_common(8)
    )
    repeated = "; ".join(
        f"a block of {_members(sheet, group)} nodes drawn once for {group.count}"
        for group in sheet.plan.groups[:8]
    )
    more = ", and other layers" if len(kinds) > 8 else ""
    return f"{listed}{more}; {repeated}" if repeated else f"{listed}{more}"


def _members(sheet: Sheet, group: Group) -> int:
    """How many nodes stand in a frame."""
    (x0, y0), (x1, y1) = group.low, group.high
    return sum(x0 < b.x < x1 and y0 < b.y < y1 for b in sheet.plan.boxes.values())


def network_html(network: Any, most: int = DRAWN) -> str:
    """The drawing of a network with a caption, for a notebook.

    Blocks are folded where there are more than 40 nodes.

    A network that would still show more than ``most`` nodes is summarised by a table of its layers
    instead.
    """
    fold = len(net_layers(network)) > FOLDED
    caption = f"<figcaption style='font-size:90%'>{clean(repr(network))}</figcaption>"
    if (drawn_nodes(network) if fold else len(net_layers(network))) > most:
        rows = "".join(
            f"<tr><td style='text-align:left'>{clean(k)}</td><td>{n}</td></tr>"
            for k, n in layer_counts(network).items()
        )
        table = f"<table><thead><tr><th>layer</th><th>nodes</th></tr></thead><tbody>{rows}</tbody></table>"
        return (
            f"<figure style='margin:0'>{table}{caption}<p>Too large to draw here; draw a part of "
            f"it, or net.draw().</p></figure>"
        )
    drawing = network_svg(network, fold=fold)
    return (
        f"<figure style='margin:0'><div style='overflow:auto;max-height:60em' "
        f"tabindex='0'>{drawing}</div>{caption}</figure>"
    )


def layer_counts(network: Any) -> dict[str, int]:
    """How many nodes there are of each kind of layer, most frequent first."""
    return dict(
        Counter(type(layer).__name__ for layer in net_layers(network).values()).most_common()
    )


def network_summary(network: Any) -> str:
    """Counts of layers by kind in one line, for a network that is too large to draw."""
    return ", ".join(f"{count} {kind}" for kind, count in layer_counts(network).items())
