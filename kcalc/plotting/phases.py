"""Phase diagrams: a quantity in colour over two gains, with the line where the slope is 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import axis_names
from .frame import GREY, axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray
SIZE = (4.6, 3.6)  # inches


def phase_diagram(diagram: Any, ax: Axes | None = None) -> Axes:
    """Draw log10 of the depth scale in colour, and the edge of chaos as a line.

    Returns: the Axes.
    """
    from matplotlib.patches import Patch

    ax = axes(ax, *SIZE)
    level = np.log10(np.clip(diagram.depth, 0.1, 1e4))
    # without this, single cells next to the edge would dominate the colour scale
    top = float(np.nanpercentile(level, 97)) if np.isfinite(level).any() else 4.0
    finite = np.where(np.isfinite(diagram.chi), diagram.chi, 1.0)
    label = r"$\log_{10}$ of the depth scale (layers)"
    line = "edge of chaos (ordered left, chaotic right)"
    handles = _mesh(ax, (diagram.sigma_w, diagram.sigma_b), level, label, finite, (line, top))
    if np.isnan(level).any():
        handles.append(Patch(facecolor="white", edgecolor=GREY, label="q has no fixed point"))
    ax.set(xlabel=axis_names.SIGMA_W, ylabel=axis_names.SIGMA_B)
    ax.set_title(f"Phase diagram of {diagram.activation.name}", fontsize=10)
    _legend(ax, handles)
    return ax


def token_phases(
    phases: Any, values: Array, labels: tuple[str, str, str], ax: Axes | None = None
) -> Axes:
    """Draw ``values`` over two gains in colour, and the line where the slope at c = 1 is 1.

    ``labels`` contains the labels for both gains and for the values. Returns: the Axes.
    """
    ax = axes(ax, *SIZE)
    across, up, label = labels
    line = "slope 1 at equal tokens"
    handles = _mesh(ax, (phases.x, phases.y), values, label, phases.slope, (line, None))
    ax.set(xlabel=across, ylabel=up)
    ax.set_title("Token phases", fontsize=10)
    _legend(ax, handles)
    return ax


def _mesh(
    ax: Axes,
    grid: tuple[Array, Array],
    level: Array,
    label: str,
    slope: Array,
    line: tuple[str, float | None],
) -> list[Any]:
    """Draw a quantity over a grid in colour, and a white line where a slope is 1.

    ``line`` contains the name of the line and the largest level shown in colour. Returns: legend
    entries.
    """
    from matplotlib.lines import Line2D

    name, top = line
    look: dict[str, Any] = {"shading": "gouraud", "cmap": "viridis", "rasterized": True}
    drawn = ax.pcolormesh(*grid, level, vmax=top, **look)
    bar = ax.figure.colorbar(drawn, ax=ax, extend="neither" if top is None else "max")
    bar.set_label(label)
    if np.nanmin(slope) < 1 < np.nanmax(slope):
        ax.contour(*grid, slope, levels=[1.0], colors="white")
        return [Line2D([], [], color="white", label=name)]
    return []


def _legend(ax: Axes, handles: list[Any]) -> None:
    """Add a legend below the picture, on grey so that white lines are visible."""
    if handles:
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "borderaxespad": 0.0}
        ax.legend(handles=handles, fontsize=8, facecolor="#8C8C8C", labelcolor="white", **place)
