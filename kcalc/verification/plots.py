"""Plots of measured kernels [TAT Fig. 4, DKS App. K].

The plots show c and q values by layer with their fluctuations, and how deviations scale with width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..foundation.errors import KcalcError
from ..plotting import axis_names
from ..plotting import frame as plot_frame
from ..plotting.frame import GREY, PALETTE, finish
from ..plotting.frame import axes as panel
from .statistics import NARROW

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Array = np.ndarray
SIZE = (4.6, 3.2)
DASHED: Any = (0, (4, 2))


def values_by_layer(
    check: Any,
    quantity: str = "c",
    case: int = 0,
    ax: Axes | None = None,
    bars: int = 20,
    titled: bool | None = None,
) -> Axes:
    """Plot the mean c (or q) at each node, with standard deviations.

    These are standard deviations of the values of a single pair. Each width has a colour, and the
    map is a black dashed line. ``bars`` is the approximate number of error bars. Returns: the Axes.
    Raises: KcalcError for quantities and cases that were not measured.
    """
    made = ax is None
    ax = panel(ax, *SIZE)
    if not 0 <= case < len(check.c):
        raise KcalcError(f"case {case} was not measured; the number of cases is {len(check.c)}")
    maps: set[Any] = set()
    apart: list[float] = []
    for i, width in enumerate(check.widths):
        s, rows = check.statistic(quantity, width), np.flatnonzero(check.judged(width))
        expected, mean, std = (a[:, case] for a in (s.expected, s.mean, s.std))
        apart += np.abs(mean - expected)[rows].tolist()
        color, some = PALETTE[i % len(PALETTE)], rows[:: max(1, len(rows) // bars)]
        title = "measured" if width is None else f"width {width}"
        ax.plot(rows, mean[rows], color=color, lw=1.2, label=title)
        bar = {"fmt": "none", "ecolor": color, "elinewidth": 0.8, "alpha": 0.7}
        ax.errorbar(some, mean[some], std[some], **bar)
        line = tuple(np.round(expected[rows], 12))
        if line not in maps:
            look: Any = {"color": "#1A1A1A", "ls": DASHED, "lw": 1.0, "zorder": 5}
            ax.plot(rows, expected[rows], label="_" if maps else "map", **look)
            maps.add(line)
    ax.set_xlabel(axis_names.NODE)
    name = (
        quantity.replace("_", " ")
        if quantity.startswith("token")
        else f"${quantity[0]}${quantity[1:]}"
    )
    ax.set_ylabel(name)
    says = f"{name} by node"
    if not apart:
        place: Any = {"ha": "center", "va": "center", "fontsize": 8, "transform": ax.transAxes}
        ax.text(0.5, 0.5, f"no node has {NARROW} channels or more", **place)
    finish(ax, [], made, says=says, legend=bool(apart), titled=titled)
    return ax


def errors_by_width(
    check: Any, quantity: str = "c", ax: Axes | None = None, titled: bool | None = None
) -> Axes:
    """Plot the deviation from the map against the width, with fitted powers.

    The deviation of one draw is solid and the deviation of the mean is dotted. Both axes are
    logarithmic.
    """
    made = ax is None
    ax = panel(ax, *SIZE)
    if len(check.widths) < 2:
        raise KcalcError(
            "a plot of errors by width needs a check with at least two widths; call "
            "verify_kernels(model, widths=(...))"
        )
    one, widths = check.fluctuation(quantity), np.array(check.widths, float)
    for name, power, style in (("one draw", one, "-"), ("mean", check.bias(quantity), ":")):
        values, errors = np.array(power.values), np.array(power.errors)
        seen = np.isfinite(values)
        if seen.any():
            fit = f" ({power})" if power.exponent is not None else ""
            look = {"color": PALETTE[0], "ls": style, "lw": 1.2}
            ax.errorbar(widths[seen], values[seen], errors[seen], marker="o", ms=3, **look)
            ax.plot(widths[seen], values[seen], label=f"{name}{fit}", **look)
    look = {"color": GREY, "ls": DASHED, "lw": 0.8, "zorder": 0}
    ax.plot(widths, one.values[0] * (widths / widths[0]) ** -0.5, label=r"width$^{-1/2}$", **look)
    ax.set(xscale="log", yscale="log")
    ax.set_xticks(widths, [str(w) for w in check.widths])
    ax.set_xticks([], minor=True)
    ax.set_xlabel(axis_names.WIDTH)
    ax.set_ylabel(f"deviation of ${quantity[0]}${quantity[1:]} from the map")
    says = "Deviation by width"
    finish(ax, [], made, says=says, titled=titled)
    return ax


def check_figure(check: Any, ax: Sequence[Axes] | None = None) -> Figure:
    """Plot c and q values by layer, and the token cosine if it was measured.

    For a check with several widths, another panel shows the deviation against the width.

    Returns: the figure.
    """
    tokens = [name for name in check.quantities if name.startswith("token")]
    shown = ["c", check.quantities[0], *tokens][:3]
    count = len(shown) + (len(check.widths) > 1)
    panels = plot_frame.panels(ax, count, 4.0 * count, 3.1)
    for panel_, quantity in zip(panels, shown, strict=False):
        values_by_layer(check, quantity, ax=panel_, titled=True)
    if len(check.widths) > 1:
        errors_by_width(check, "c", ax=panels[-1], titled=True)
    return panels[0].figure
