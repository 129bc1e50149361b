"""Plot a shaping result: activations, the global C map and the c values of all layers.

Every quantity is drawn before and after shaping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..foundation.errors import KcalcError
from . import axis_names
from . import frame as plot_frame
from .curves import activations, c_maps
from .frame import GREY, LIGHT, PALETTE, STYLES, entitle, finish, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["depth_traces", "shaping_figure"]

Array = np.ndarray
# activations use the palette
LOOKS: dict[str, tuple[str, Any]] = {
    "before": ("#B2182B", STYLES[1]),
    "after": ("#1A1A1A", "-"),
}
PANEL = 3.3  # inches


def shaping_figure(
    pairs: Mapping[str, tuple[Any, Any]],
    c_before: Any,
    c_after: Any,
    traces: Mapping[str, Any] | None = None,
    ax: Sequence[Axes] | None = None,
) -> Figure:
    """Plot the effect of a shaping method.

    The panels show activations, the global C map and, if given, the depth traces, each before and
    after shaping.

    ``pairs`` is {name: (activation before, activation after)}. ``c_before`` (or None) and
    ``c_after`` are C maps. ``traces`` has the form required by :func:`depth_traces`. ``ax``
    contains two Axes, or three with traces.

    Returns: the figure. Raises: KcalcError for other arguments.
    """
    if not isinstance(pairs, Mapping) or not all(
        isinstance(p, tuple | list) and len(p) == 2 for p in pairs.values()
    ):
        raise KcalcError("pairs must be {name: (activation before, activation after)}")
    count = 3 if traces else 2
    panels = plot_frame.panels(ax, count, PANEL * count, PANEL)
    old, new = ({name: pair[k] for name, pair in pairs.items()} for k in (0, 1))
    changed = any(before is not after and before != after for before, after in pairs.values())
    activations(old, new if changed else None, ax=panels[0])
    given = {
        label: one for label, one in (("before", c_before), ("after", c_after)) if one is not None
    }
    c_maps(given, ax=panels[1], looks=LOOKS | _looks(c_after))
    titles = ["Activation" if len(pairs) == 1 else "Activations", "C map"]
    if traces:
        depth_traces(traces, ax=panels[2])
        titles.append("c by depth")
    for panel, title in zip(panels, titles, strict=True):
        entitle(panel, title)
        panel.set_box_aspect(1)
    return panels[0].figure


def _looks(c_after: Any) -> dict[str, tuple[str, Any]]:
    """Return a colour for each of several outputs, and the line styles for before and after."""
    outputs = getattr(c_after, "outputs", ())
    if len(outputs) < 2:
        return {}
    colors = {output: PALETTE[i % len(PALETTE)] for i, output in enumerate(outputs)}
    return {
        f"{label}: {output}": (color, LOOKS[label][1])
        for output, color in colors.items()
        for label in LOOKS
    }


def depth_traces(traces: Mapping[str, Any], ax: Axes | None = None, legend: bool = True) -> Axes:
    """Draw c values of layers against depth, with dots for all layers and lines along the trunk.

    ``traces`` is {label: trace}. A trace has ``depth`` (nodes,) and ``values`` (nodes, starts). Its
    ``layers`` contains the indices of the nodes drawn as dots, and its ``trunk`` those of the nodes
    joined by lines. Traces with the labels "before" and "after" are drawn in the line styles of
    :func:`shaping_figure`.

    Returns: the Axes. Raises: KcalcError if there is no trace.
    """
    if not traces:
        raise KcalcError("there is no depth trace to draw")
    made = ax is None
    ax = plot_frame.axes(ax, PANEL, PANEL)
    ax.axhline(0, color=LIGHT, linewidth=0.8, zorder=0, gid="zero")
    extra: list[dict[str, Any]] = []
    for label, trace in traces.items():
        color, style = LOOKS.get(label, (GREY, "-"))
        place = np.asarray(trace.depth, dtype=float)
        beside = np.setdiff1d(trace.layers, trace.trunk)
        dots = {"color": color, "markersize": 2.2, "markeredgewidth": 0, "alpha": 0.55}
        line = {"color": color, "linestyle": style, "linewidth": 1.3}
        line["zorder"] = 4 if label == "after" else 3
        for k, values in enumerate(trace.values.T):
            if beside.size:
                at = place[beside], values[beside]
                ax.plot(*at, ".", **dots, zorder=2, gid="branches", label="_")
            name = "_" if k else label
            ax.plot(place[trace.trunk], values[trace.trunk], **line, gid="trunk", label=name)
        if beside.size and legend:
            look = {**dots, "linestyle": "none", "marker": ".", "markersize": 7}
            extra.append({"label": f"{label}, in branches", **look})
    deepest = max(float(trace.depth.max()) for trace in traces.values())
    ax.set(xlim=(0, max(deepest, 1)), ylim=(-1.05, 1.05), yticks=[-1, -0.5, 0, 0.5, 1])
    ax.set_xlabel(axis_names.NONLINEAR_DEPTH, fontsize=10)
    ax.set_ylabel(axis_names.C, fontsize=10)
    finish(whole_numbers(ax), extra, made, legend, says="c by depth")
    return ax
