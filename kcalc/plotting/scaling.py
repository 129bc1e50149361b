"""Plots for the scaling calculus.

The plots show gamma for every weight, ratios of predicted to measured values, and Hessian blocks
[Scaling Fig. 1, 2].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..foundation.errors import KcalcError
from . import axis_names
from .frame import GREY, PALETTE, axes, drawn, entitle, log_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray
MARKS = ("o", "s", "^", "D", "v")
NAMED = 14  # number of weights whose names are written below the axis


def weight_scalings(scalings: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """Draw every weight's gamma, divided by the geometric mean, on a logarithmic scale.

    The weights are in the order of the network.

    ``scalings``: {label: :class:`kcalc.calculi.scaling.Scaling`} with the same number of weights.
    Returns: the Axes. Raises: KcalcError if gamma contains symbols or there are no weights.
    """
    if any(one.symbolic for one in scalings.values()):
        raise KcalcError("a plot of gamma needs numbers; substitute them with net.subs")
    if not scalings or any(not one.weights for one in scalings.values()):
        raise KcalcError("the network has no weights to draw")
    groups: list[Any] = []
    for label, one in scalings.items():
        values = np.array([weight.relative for weight in one.weights.values()])
        size = 4 if values.size < 60 else 2
        look = {"marker": MARKS[len(groups) % len(MARKS)], "markersize": size, "linewidth": 0.8}
        groups.append([(np.arange(values.size), values, {**look, "label": label or "weights"})])
    every = np.concatenate([y for ((_, y, _),) in groups])
    nodes = [str(node) for node in next(iter(scalings.values())).weights]
    names = ("weight" if len(nodes) <= NAMED else axis_names.WEIGHT, axis_names.WEIGHT_SCALING)
    limits = min(every.min() / 1.6, 0.5), max(every.max() * 1.6, 2.0)
    ax = drawn(ax, groups, names, "Weight scalings", size=(5.2, 3.0), yscale="log", ylim=limits)
    ax.axhline(1.0, color=GREY, lw=0.6, zorder=0, gid="zero")
    if len(nodes) <= NAMED:
        ax.set_xticks(range(len(nodes)), nodes, rotation=45, ha="right", fontsize=8)
    return ax


def ratio_histogram(ratios: Mapping[str, Any], ax: Axes | None = None, bins: int = 24) -> Axes:
    """Draw histograms of the ratio of predicted to measured values [Scaling Fig. 1].

    Each row shows the histogram of one weight over draws, with its median marked.

    ``ratios``: {weight: (draws,) positive numbers}. Bins have equal widths on the logarithmic axis.
    Returns: the Axes. Raises: KcalcError for other values.
    """
    given = {name: np.asarray(values, dtype=float).ravel() for name, values in ratios.items()}
    if not given or any(
        v.size == 0 or not np.all(np.isfinite(v)) or np.any(v <= 0) for v in given.values()
    ):
        raise KcalcError("ratios must be {name: positive finite numbers}")
    made = ax is None
    ax = axes(ax, 4.6, 0.45 * len(given) + 1.2)
    every = np.concatenate(list(given.values()))
    low, high = min(float(every.min()) / 1.05, 0.7), max(float(every.max()) * 1.05, 1.4)
    edges = np.geomspace(low, high, bins + 1)
    shares = [np.histogram(values, edges)[0] / values.size for values in given.values()]
    medians = [float(np.median(values)) for values in given.values()]
    tallest = np.max(shares)
    for row, (heights, median) in enumerate(zip(shares, medians, strict=True)):
        color = PALETTE[row % len(PALETTE)]
        look = {"baseline": -row, "color": color, "fill": True, "alpha": 0.75}
        ax.stairs(0.85 * heights / tallest - row, edges, **look)
        ax.plot([median] * 2, [-row, -row + 0.85], color="#1A1A1A", lw=1.0)
    ax.axvline(1.0, color=GREY, lw=0.8, ls=(0, (4, 2)))
    ax.set(xscale="log", xlim=(low, high), xlabel="predicted / measured", ylabel="weight")
    log_axis(ax.xaxis)
    ax.set_yticks([-row for row in range(len(given))], list(given), fontsize=8)
    ax.tick_params(axis="y", length=0)
    if made:
        entitle(ax, "Predicted / measured")
        ax.spines[["top", "right", "left"]].set_visible(False)
    return ax


def block_map(squares: Any, names: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw a logarithmic heat map of the blocks of a Hessian [Scaling Fig. 2].

    The colour of a block is the mean of its squared singular values.

    ``squares`` is an array (L, L) of numbers >= 0, and ``names`` lists the names of the L weights.
    Returns: the Axes. Raises: KcalcError for other shapes, and if all numbers are 0.
    """
    from matplotlib.colors import LogNorm

    values, count = np.asarray(squares, dtype=float), len(names)
    if (
        values.shape != (count, count)
        or not np.all(np.isfinite(values))
        or np.any(values < 0)
        or not np.any(values)
    ):
        raise KcalcError(
            f"squares must be a square matrix of numbers >= 0, not all 0, with one row per "
            f"name ({count}), got shape {values.shape}"
        )
    made = ax is None
    ax = axes(ax, 0.55 * count + 2.4, 0.55 * count + 1.6)
    top = values.max()
    floor = max(values[values > 0].min(), 1e-6 * top)
    scale = LogNorm(floor, top if top > floor else 10 * floor)
    image = ax.imshow(np.maximum(values, floor), cmap="viridis", norm=scale)
    ax.set(xlabel="weight", ylabel="weight")
    ax.set_xticks(range(count), names, rotation=45, ha="right", fontsize=8)
    ax.set_yticks(range(count), names, fontsize=8)
    figure: Any = ax.get_figure()
    bar = figure.colorbar(image, ax=ax, shrink=0.85)
    bar.set_label("mean squared singular value", fontsize=9)
    bar.outline.set_visible(False)
    log_axis(bar.ax.yaxis)
    ax.spines[:].set_visible(False)
    if made:
        entitle(ax, "Hessian blocks")
    return ax
