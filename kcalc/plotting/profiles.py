"""Plots of depth profiles: sizes, cosines, scores and gradients over the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import axis_names
from .frame import PALETTE, STYLES, finish, log_axis, panels, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray
# {axis label: (whether the axis is logarithmic, {column: its label})}
PANELS: dict[str, tuple[bool, dict[str, str]]] = {
    "mean square": (True, {"q": "stream", "branch": "added by the block"}),
    "cosine": (False, {"token_cosine": "of two tokens", "c": "of two inputs"}),
    "scores": (False, {"score_variance": "variance", "entropy": "entropy of a row (nats)"}),
    axis_names.GRADIENT: (
        True,
        {"gradient_mean": "mean mode", "gradient_difference": "difference mode"},
    ),
}


def profile_figure(profile: Any, ax: Sequence[Axes] | None = None) -> Figure:
    """Draw the quantities in a depth profile over the blocks, with one panel per kind of quantity.

    Panels are omitted if the network lacks their quantities. Lines with standard errors have error
    bars. ``ax`` contains one Axes per panel; by default, a new figure is made. Returns: the figure.
    """
    columns = profile.columns
    drawn = {
        label: (log, {name: text for name, text in lines.items() if name in columns})
        for label, (log, lines) in PANELS.items()
    }
    drawn = {label: part for label, part in drawn.items() if part[1]}
    places = panels(ax, len(drawn), 3.1 * len(drawn), 2.9)
    for place, (label, (log, lines)) in zip(np.ravel(places), drawn.items(), strict=True):
        alone = label == axis_names.GRADIENT and "gradient_difference" not in columns
        for k, (name, text) in enumerate(lines.items()):
            _line(place, profile, name, "gradient" if alone else text, k)
        if log:
            place.set_yscale("log")
            log_axis(place.yaxis, 2.0)
        whole_numbers(place).set(xlabel=axis_names.BLOCKS, ylabel=label)
        name = "gradients" if label == axis_names.GRADIENT else label
        says = f"{name[0].upper()}{name[1:]} by depth" if name[0] != "$" else f"{name} by depth"
        finish(place, [], ax is None, says=says)
    return np.ravel(places)[0].figure


def _line(ax: Axes, profile: Any, name: str, label: str | None, number: int) -> None:
    values, errors = getattr(profile, name), profile.errors.get(name)
    wide = values if values.ndim == 2 else values[:, None]
    blocks = np.arange(len(values))
    look: dict[str, Any] = {"color": PALETTE[number], "linestyle": STYLES[number], "linewidth": 1.3}
    for k in range(wide.shape[1]):
        shown = label if k == 0 else None
        if errors is None:
            ax.plot(blocks, wide[:, k], label=shown, **look)
        else:
            ax.errorbar(blocks, wide[:, k], yerr=errors, elinewidth=0.8, label=shown, **look)
