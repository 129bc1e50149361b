"""Plots of singular values and of bounds, on a given Axes.

See :mod:`kcalc.plotting` for the habits they share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..foundation.errors import KcalcError, glimpse
from ..foundation.real_numbers import real_array
from . import axis_names
from . import titles as plot_claims
from .frame import GREY, PALETTE, STYLES, axes, labelled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray
_SHOWN = 0.98


def residual_spectrum(law: Any, values: Any = None, ax: Axes | None = None, bins: int = 60) -> Axes:
    """Draw the predicted density of singular values [MacDonald et al. 2023, Fig. 1].

    A histogram of measured singular values is drawn behind it if they are given.

    ``law``: a :class:`kcalc.calculi.smoothness.ResidualSpectrum`, or {label: law} with ``values``
    {label: array}. Returns: the Axes.
    """
    made = ax is None
    ax = axes(ax, 4.6, 3.2)
    laws = law if isinstance(law, Mapping) else {"predicted": law}
    samples = values if isinstance(values, Mapping) else {next(iter(laws)): values}
    if not set(samples) <= set(laws):
        raise KcalcError(
            f"values are given for {glimpse(sorted(map(str, samples)))}, the laws are "
            f"{', '.join(map(str, laws))}"
        )
    for i, (label, one) in enumerate(laws.items()):
        color = PALETTE[i % len(PALETTE)]
        measured = samples.get(label)
        if measured is not None:
            _filled(ax, _histogram(_singular(measured), bins), color)
        low, high = one.support
        grid = low + (high - low) * (1 - np.cos(np.linspace(0, np.pi, 401))) / 2
        density = one.density(grid)
        ax.plot(grid, density, color=color, lw=1.5, label=label)
        for edge in (low, high):
            if edge > 0:
                ax.plot(
                    [edge, edge], [0, 0.06 * float(np.max(density))], color=color, lw=1.5, label="_"
                )
    ax.set(xlim=(0, None), ylim=(0, None))
    ends = [end for one in laws.values() for end in one.support]
    says = (
        f"At large width the singular values lie {plot_claims.span(ends)}"
        if np.isfinite(ends).all()
        else "Singular values"
    )
    return labelled(ax, made, axis_names.SINGULAR_VALUE, axis_names.DENSITY, says)


def singular_value_histograms(
    spectra: Mapping[str, Any], ax: Axes | None = None, bins: int = 60
) -> Axes:
    """Draw histograms of singular values as outlines [MacDonald et al. 2023, Fig. 2].

    A dashed line marks each mean.

    Long tails beyond 98 % are cut off, and the axis says so.

    ``spectra``: {label: array of singular values of any shape}. Returns: the Axes. Raises:
    KcalcError if empty.
    """
    if not spectra:
        raise KcalcError("there are no singular values to draw")
    made = ax is None
    ax = axes(ax, 4.6, 3.2)
    arrays = {label: np.asarray(values, float).ravel() for label, values in spectra.items()}
    largest, usual = (
        max(float(np.quantile(v, share)) for v in arrays.values()) for share in (1.0, _SHOWN)
    )
    cut = usual < largest / 1.5
    edges = np.linspace(0, (usual if cut else largest) * 1.02, bins + 1)
    for i, (label, values) in enumerate(arrays.items()):
        color = PALETTE[i % len(PALETTE)]
        heights = np.histogram(values, edges)[0] / values.size / np.diff(edges)
        _filled(ax, (edges, heights), color)
        ax.plot(np.repeat(edges, 2)[1:-1], np.repeat(heights, 2), color=color, lw=1.2, label=label)
        ax.axvline(float(values.mean()), color=color, lw=0.9, ls=STYLES[1], label="_", gid="zero")
    ax.set(xlim=(0, float(edges[-1]) if cut else None), ylim=(0, None))
    name = axis_names.SINGULAR_VALUE + (f" (those beyond {edges[-1]:.3g} not shown)" if cut else "")
    means = [float(values.mean()) for values in arrays.values()]
    handles = [{"label": "mean", "color": GREY, "ls": STYLES[1], "lw": 0.9}]
    says = plot_claims.bounded(means, "The mean singular value")
    return labelled(ax, made, name, axis_names.DENSITY, says, handles)


def jacobian_bounds(smoothness: Any, ax: Axes | None = None) -> Axes:
    """Draw the bounds of the singular values of d output / d layer, layer by layer.

    The scale is logarithmic, and the range between the bounds is shaded.

    ``smoothness``: a :class:`kcalc.calculi.smoothness.Smoothness`. Returns: the Axes.
    """
    from matplotlib.ticker import MaxNLocator

    made = ax is None
    ax = axes(ax, 5.2, 3.0)
    gains = [layer.gain for layer in smoothness.layers.values()]
    place = np.arange(1, len(gains) + 1)
    top = np.array([g.largest for g in gains]) / math.log(10)
    low = np.array([g.smallest for g in gains]) / math.log(10)
    ax.plot(place, top, color=PALETTE[0], lw=1.2, marker="o", ms=3, label="largest, at most")
    seen = np.isfinite(low)
    if seen.any():
        ax.plot(
            place[seen],
            low[seen],
            color=PALETTE[1],
            lw=0,
            marker="o",
            ms=3,
            label="smallest, at least",
        )
        ax.vlines(place[seen], low[seen], top[seen], color=GREY, lw=0.6, zorder=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    heights = np.concatenate([top, low[seen]])
    heights = heights[np.isfinite(heights)]
    if heights.size and np.ptp(heights) < 0.1:
        ax.set_ylim(heights.mean() - 0.5, heights.mean() + 0.5)
    bound = float(top.max()) if top.size and np.isfinite(top).all() else math.nan
    says = "Bounds of the singular values of d output / d layer"
    if bound == bound:
        most = (
            plot_claims.up(10**bound, 3)
            if -3 < bound < 4
            else f"$10^{{{math.ceil(10 * bound - 1e-9) / 10:g}}}$"
        )
        says = f"No singular value of d output / d layer exceeds {most}"
    return labelled(ax, made, axis_names.AFFINE, axis_names.LOG_SINGULAR_VALUE, says)


def _singular(values: Any) -> Array:
    array = real_array(values, "values").ravel()
    if array.size == 0 or array.min() < 0 or array.max() == 0:
        raise KcalcError(
            f"values are singular values, numbers >= 0 of which one is not 0, got {glimpse(values)}"
        )
    return array


def _histogram(values: Array, bins: int) -> tuple[Array, Array]:
    edges = np.linspace(0, float(values.max()) * 1.02, bins + 1)
    return edges, np.histogram(values, edges, density=True)[0]


def _filled(ax: Axes, histogram: tuple[Array, Array], color: str) -> None:
    edges, heights = histogram
    ax.fill_between(np.repeat(edges, 2)[1:-1], np.repeat(heights, 2), color=color, alpha=0.18, lw=0)
