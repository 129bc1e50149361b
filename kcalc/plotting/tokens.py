"""Plots for networks over tokens.

One plot shows activations, and token cosines at the input and output. Another shows q and token
cosines by depth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import axis_names, frame
from .curves import activations

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray
Profile = tuple[Sequence[float], Sequence[float]]  # q values and token cosines
PANEL = 3.3  # inches


def token_figure(
    pairs: Mapping[str, tuple[Any, Any]],
    before: Array,
    after: Array,
    ax: Sequence[Axes] | None = None,
) -> Figure:
    """Draw activations before and after shaping, and token cosines before and after the network.

    ``before`` and ``after`` are arrays (T, T) of cosines before and after the network.

    Returns: the figure. Raises: KcalcError for a wrong number of Axes.
    """
    panels = frame.panels(ax, 3, 3 * PANEL, PANEL)
    activations(
        {name: one for name, (one, _) in pairs.items()},
        {name: one for name, (_, one) in pairs.items()},
        ax=panels[0],
    )
    panels[0].set_box_aspect(1)
    frame.entitle(panels[0], "Activation" if len(pairs) == 1 else "Activations")
    least = min(0.0, float(before.min()), float(after.min()))
    for panel, cosines, where in (
        (panels[1], before, "the input"),
        (panels[2], after, "the output"),
    ):
        image = panel.imshow(cosines, vmin=least, vmax=1, cmap="cividis")
        ends = sorted({0, len(cosines) - 1})
        panel.set(xticks=ends, yticks=ends, xlabel=axis_names.TOKEN, ylabel=axis_names.TOKEN)
        frame.entitle(panel, f"Token cosines at {where}")
    panels[2].figure.colorbar(image, ax=panels[1:].tolist(), label="$c$ between tokens", shrink=0.8)
    return panels[0].figure


def stream_figure(profiles: Mapping[str, Profile], ax: Sequence[Axes] | None = None) -> Figure:
    """Draw q and token cosines along the streams of transformers, with one line per profile.

    Returns: the figure. Raises: KcalcError for a wrong number of Axes.
    """
    panels = frame.panels(ax, 2, 2 * PANEL, PANEL)
    for (name, (sizes, cosines)), color in zip(profiles.items(), frame.PALETTE, strict=False):
        for panel, values in zip(panels, (sizes, cosines), strict=True):
            panel.plot(range(len(values)), values, label=name, color=color, linewidth=1.5)
    for panel, symbol, title in (
        (panels[0], "$q$", "q by depth"),
        (panels[1], "cosine of two tokens", "Token cosine by depth"),
    ):
        panel.set(xlabel="branch", ylabel=symbol)
        frame.entitle(panel, title)
    panels[0].set_yscale("log")
    frame.log_axis(panels[0].yaxis, 2.0)
    for panel in panels:
        frame.finish(frame.whole_numbers(panel), [], False)
    return panels[0].figure
