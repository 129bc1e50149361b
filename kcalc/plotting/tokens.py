"""The plot of a shaping with tokens.

It shows activations, and the cosines between tokens at the input and at the output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import axis_names, frame
from .curves import activations

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray
Profile = tuple[Sequence[float], Sequence[float]]  # q values and token cosines
PANEL = 3.3  # inches


def token_figure(
    pairs: Mapping[str, tuple[Any, Any]],
    before: Array,
    after: Array,
    ax: Sequence[Axes] | None = None,
) -> Array:
    """Draw activations, and cosines between tokens, before and after.

    The activations are drawn before and after shaping; ``before`` and ``after`` are the cosines (T,
    T) before and after the network.

    Returns: the array of three Axes. Raises: KcalcError for another number of Axes.
    """
    panels = frame.panels(ax, 3, 3 * PANEL, PANEL)
    activations(
        {name: one for name, (one, _) in pairs.items()},
        {name: one for name, (_, one) in pairs.items()},
        ax=panels[0],
    )
    panels[0].set_box_aspect(1)
    frame.claim(panels[0], "Activations before and after")
    least = min(0.0, float(before.min()), float(after.min()))
    for panel, cosines, where in (
        (panels[1], before, "the input"),
        (panels[2], after, "the output"),
    ):
        image = panel.imshow(cosines, vmin=least, vmax=1, cmap="cividis")
        ends = sorted({0, len(cosines) - 1})
        panel.set(xticks=ends, yticks=ends, xlabel=axis_names.TOKEN, ylabel=axis_names.TOKEN)
        frame.claim(panel, f"Tokens have mean c = {_mean(cosines):.2g} at {where}")
    panels[2].figure.colorbar(image, ax=panels[1:].tolist(), label="$c$ between tokens", shrink=0.8)
    return panels


def _mean(cosines: Array) -> float:
    """Return the mean over different tokens; 1 for a single one."""
    count = len(cosines)
    return 1.0 if count == 1 else float((cosines.sum() - np.trace(cosines)) / (count * (count - 1)))


def stream_figure(profiles: Mapping[str, Profile], ax: Sequence[Axes] | None = None) -> Array:
    """Draw q and token cosines along the streams of transformers, one line per profile.

    Returns: the array of two Axes. Raises: KcalcError for another number of Axes.
    """
    panels = frame.panels(ax, 2, 2 * PANEL, PANEL)
    for name, (sizes, cosines) in profiles.items():
        for panel, values in zip(panels, (sizes, cosines), strict=True):
            panel.plot(range(len(values)), values, label=name)
    for panel, symbol, title in (
        (panels[0], "$q$", "Growth of the stream"),
        (panels[1], "cosine of two tokens", "Tokens along the stream"),
    ):
        panel.set(xlabel="branch", ylabel=symbol)
        frame.claim(panel, title)
    panels[0].set_yscale("log")
    panels[0].legend()
    return panels
