"""A network drawn as a graph, from top to bottom, with its skip edges in separate lanes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..foundation.errors import KcalcError, glimpse, unknown
from ..foundation.plain_arguments import is_key, truth, whole
from .graph_layout import HEIGHT, Box, DrawingPlan, Route, plan
from .layer_texts import is_mathtext, layer_text, shortened, weights_text
from .layered import Node
from .regions import LISTED, Region, as_regions, draw_regions, patch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.path import Path

FONT = 7.0
LEAST = 0.86  # the width of a box with short text, in inches
INK, SKIP = "#3A3A3A", "#0072B2"
COLORS = {  # kind: (face, edge)
    "input": ("#F1F1F1", "#6E6E6E"),
    "affine": ("#DCE9F5", "#4F81B0"),
    "activation": ("#FCE3D0", "#D0783C"),
    "join": ("#FFFFFF", "#3A3A3A"),
    "normalisation": ("#DBF0E6", "#3D9474"),
    "pooling": ("#F3E2ED", "#B3739B"),
    "attention": ("#E4DFF3", "#7B64B5"),
    "other": ("#FBF3D3", "#B39A3C"),
}


def network(
    net: Any,
    ax: Axes | None = None,
    regions: Any = None,
    labels: bool | Mapping[Node, str] = True,
    max_nodes: int = 40,
    collapse: bool | None = None,
    columns: int | None = None,
    legend: bool = True,
) -> Axes:
    """Draw a network from top to bottom.

    Parameters: ``net`` has ``.steps()``, ``.inputs`` and ``.outputs``. ``regions`` are (label,
    nodes) pairs, {label: nodes}, or subnetworks (``kc.subnetworks(net)``). They are drawn as tinted
    areas behind the nodes. ``labels=False`` omits all text, and {node: text} replaces the text in
    some nodes. With ``collapse``, repeated blocks (``net.blocks()``) are drawn once, in a frame
    with the number of repetitions. This is the default if there are more than ``max_nodes`` nodes.
    Tall drawings continue in parallel ``columns``. By default, the columns fill a page.

    Returns: the Axes, with inches as data units if the figure is new. The artists for a node have
    the gid ``node:<name>``. Raises: KcalcError for anything but a network, and for unknown nodes in
    ``regions`` or ``labels``.
    """
    chosen = [] if regions is None else as_regions(regions)
    if not isinstance(labels, Mapping):
        truth(labels, "labels")
    large = len(net_layers(net)) > whole(max_nodes, "max_nodes") and hasattr(net, "blocks")
    collapse = large if collapse is None else truth(collapse, "collapse")
    legend = truth(legend, "legend")
    sheet = laid_out(net, labels, chosen, _text_width, collapse, columns)
    drawn, layers, texts = sheet.plan, sheet.layers, sheet.texts
    room = max((_text_width(region.label) + 0.25 for region in chosen), default=0.0)
    listed = max((_text_width(region.meaning) for region in chosen[:LISTED]), default=0.0)
    ax, scale = _canvas(ax, drawn, max(1.15, listed + 1.1) if legend else 0.0, room)
    tints = draw_regions(ax, drawn, chosen, FONT, scale)
    _draw_groups(ax, drawn, scale, bool(chosen))
    for route in drawn.routes:
        _draw_route(
            ax,
            route,
            weights_text(layers[route.target], route.slots) if labels is not False else "",
            scale,
        )
    for curve in drawn.connectors:
        ax.add_artist(
            patch(
                "PathPatch",
                _bezier(curve),
                facecolor="none",
                edgecolor=INK,
                linewidth=0.8 * scale,
                zorder=2,
            )
        )
        ax.add_artist(patch("Circle", curve[-1], 0.022, facecolor=INK, linewidth=0, zorder=3.5))
    kinds = {node: layers[node].family for node in drawn.boxes}
    outputs = sheet.outputs
    for node, box in drawn.boxes.items():
        _draw_box(ax, box, kinds[node], texts[node], node in outputs, scale)
    for box in [drawn.boxes[node] for node in outputs] if len(outputs) > 1 else ():
        at, size = (box.x, box.y - HEIGHT / 2 - 0.03), (FONT - 0.5) * scale
        ax.text(
            *at,
            shortened(str(box.node)),
            ha="center",
            va="top",
            fontsize=size,
            style="italic",
            color=INK,
        )
    if legend:
        _draw_legend(ax, drawn, list(kinds.values()), scale, tints)
    return ax


@dataclass(frozen=True)
class Sheet:
    """A network after layout: the plan, the kind and text of each node, and the output nodes."""

    plan: DrawingPlan
    layers: Mapping[Node, Any]
    texts: Mapping[Node, str]
    outputs: tuple[Node, ...]


def laid_out(
    net: Any,
    labels: bool | Mapping[Node, str],
    regions: Sequence[Region],
    text_width: Callable[[str], float],
    collapse: bool,
    columns: int | None = None,
    plain: bool = False,
) -> Sheet:
    """Lay out a network, and compute the text for each node.

    ``text_width`` is in inches; ``plain`` avoids mathtext.

    Raises: KcalcError for anything but a network, and for unknown nodes in ``labels`` or
    ``regions``.
    """
    layers = net_layers(net)
    given = labels if isinstance(labels, Mapping) else {}
    _check([*given, *(node for region in regions for node in region.nodes)], layers, columns)
    texts = {
        node: str(given.get(node, layer_text(layer, node, plain))) if labels is not False else ""
        for node, layer in layers.items()
    }
    circles = {
        node
        for node, layer in layers.items()
        if type(layer).__name__ in ("Sum", "Product") and node not in given
    }
    widths = {
        node: HEIGHT if node in circles else round(max(LEAST, text_width(texts[node]) + 0.18), 3)
        for node in layers
    }
    ordered = {node for node, layer in layers.items() if type(layer).__name__ == "Concat"}
    drawn = plan(net, widths, ordered, collapse, columns)
    return Sheet(
        drawn, layers, texts, tuple(dict.fromkeys(drawn.represents[node] for node in net.outputs))
    )


def net_layers(net: Any) -> dict[Node, Any]:
    """Return the layer of each node. Raises: KcalcError for anything but a network."""
    if not all(hasattr(net, name) for name in ("steps", "inputs", "outputs")):
        raise KcalcError(f"expected a network to draw, got {type(net).__name__}")
    return {node: layer for node, layer, _ in net.steps()}


def _check(named: Iterable[Node], layers: Mapping[Node, Any], columns: Any) -> None:
    for node in named:
        if not is_key(node, layers):
            raise unknown("node", node, map(str, layers))
    if columns is not None:
        whole(columns, "columns", 1)


# -- widths ----------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _text_width(text: str) -> float:
    """Return the width of text in inches. Raises: KcalcError for mathtext that does not parse."""
    from matplotlib.textpath import TextPath

    if not is_mathtext(text):
        raise KcalcError(f"the label {glimpse(text)} is not valid mathtext")
    return TextPath((0, 0), text, size=FONT).get_extents().width / 72 if text.strip() else 0.0


# -- artists ---------------------------------------------------------------------------------------


def _canvas(ax: Axes | None, drawn: DrawingPlan, margin: float, room: float) -> tuple[Axes, float]:
    """Return Axes whose data unit is one inch of the layout, and the scale of the drawing.

    The scale is 1 for a new figure. For given Axes, it is their size divided by the size that the
    layout needs.

    The Axes have ``room`` inches of free space on the left.
    """
    left, right, bottom, top = drawn.extent()
    around = 0.14 if room else 0.0  # regions extend beyond boxes and edges
    left = left - 0.12 - room - around
    right = right + 0.12 + around
    bottom = bottom - 0.16 - around / 2
    top = top + 0.08 + around / 2
    width, height = right - left, top - bottom
    if ax is None:
        import matplotlib.pyplot as plt

        figure, ax = plt.subplots(figsize=(width + margin, height))
        ax.set_position((0.0, 0.0, width / (width + margin), 1.0))
        scale = 1.0
    elif not hasattr(ax, "add_patch"):
        raise KcalcError(f"ax must be a matplotlib Axes or None, got {type(ax).__name__}")
    else:
        figure: Any = ax.get_figure()
        frame = ax.get_window_extent()
        scale = min(frame.width / width, frame.height / height) / figure.dpi
    ax.set(xlim=(left, right), ylim=(bottom, top))
    ax.set_aspect("equal")
    ax.set_axis_off()
    return ax, scale


def _bezier(curve: Sequence[tuple[float, float]]) -> Path:
    from matplotlib.path import Path

    return Path(curve, [Path.MOVETO] + [Path.CURVE4] * (len(curve) - 1))


def _draw_box(ax: Axes, box: Box, kind: str, text: str, is_output: bool, scale: float) -> None:
    face, edge = COLORS[kind]
    look = {
        "facecolor": face,
        "edgecolor": INK if is_output else edge,
        "linewidth": (1.6 if is_output else 0.8) * scale,
        "zorder": 4,
        "gid": f"node:{box.node}",
    }
    if box.round:
        ax.add_artist(patch("Circle", (box.x, box.y), box.width / 2, **look))
    else:
        radius = {"activation": box.height / 2, "input": 0.09, "join": 0.0}.get(kind, 0.03)
        corner = (box.x - box.width / 2, box.y - box.height / 2)
        style = f"round,pad=0,rounding_size={radius}" if radius else "square,pad=0"
        ax.add_artist(
            patch("FancyBboxPatch", corner, box.width, box.height, boxstyle=style, **look)
        )
    size = (FONT + 2.5 if box.round else FONT) * scale
    ax.text(
        box.x,
        box.y,
        text,
        ha="center",
        va="center_baseline",
        fontsize=size,
        color="#222222",
        zorder=5,
    )


def _draw_route(ax: Axes, route: Route, text: str, scale: float) -> None:
    color, width = (SKIP, 1.3) if route.skip else (INK, 0.8)
    arrow = patch(
        "FancyArrowPatch",
        path=_bezier(route.curve),
        arrowstyle="-|>,head_length=3.2,head_width=1.6",
        mutation_scale=scale,
        color=color,
        linewidth=width * scale,
        shrinkA=0,
        shrinkB=0,
        zorder=3 if route.skip else 2,
        joinstyle="miter",
        capstyle="butt",
        gid=f"edge:{route.source}->{route.target}",
    )
    ax.add_artist(arrow)
    if text and route.text_side:
        from matplotlib.patheffects import withStroke

        halo = withStroke(linewidth=2.4 * scale, foreground="white")
        color = SKIP if route.skip else INK
        up, size = "center" if route.text_side == "center" else "bottom", (FONT - 1.5) * scale
        ax.text(
            *route.text_at,
            text,
            ha=route.text_side,
            va=up,
            fontsize=size,
            color=color,
            zorder=5,
            path_effects=[halo],
        )


def _draw_groups(ax: Axes, drawn: DrawingPlan, scale: float, over_regions: bool) -> None:
    for group in drawn.groups:
        (x0, y0), (x1, y1) = group.low, group.high
        box = patch(
            "FancyBboxPatch",
            (x0, y0),
            x1 - x0,
            y1 - y0,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor="none" if over_regions else "#F7F7F7",
            edgecolor="#8C8C8C",
            linewidth=0.7 * scale,
            linestyle=(0, (4, 2.5)),
            zorder=1.7 if over_regions else 0.8,
            gid=f"block x{group.count}",
        )
        ax.add_artist(box)
        ax.text(
            x1 + 0.05,
            (y0 + y1) / 2,
            f"×{group.count}",
            ha="left",
            va="center",
            fontsize=(FONT + 1.5) * scale,
            color="#444444",
        )


def _draw_legend(
    ax: Axes, drawn: DrawingPlan, kinds: Collection[str], scale: float, tints: Sequence[Any]
) -> None:
    from matplotlib.lines import Line2D

    handles: list[Any] = []
    for kind, (face, edge) in COLORS.items():
        if kind in kinds:
            handles.append(
                patch(
                    "Patch",
                    facecolor=face,
                    edgecolor=edge,
                    linewidth=0.8 * scale,
                    label={"join": "sum, concat"}.get(kind, kind),
                )
            )
    if any(route.skip for route in drawn.routes):
        handles.append(Line2D([], [], color=SKIP, linewidth=1.3 * scale, label="skip"))
    handles.append(
        patch("Patch", facecolor="white", edgecolor=INK, linewidth=1.6 * scale, label="output")
    )
    ax.legend(
        handles=[*handles, *tints],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        borderaxespad=0.4,
        frameon=False,
        fontsize=FONT * scale,
        handlelength=1.4,
        handleheight=0.9,
        labelspacing=0.45,
    )
