"""Plots of singular values and their bounds on a given Axes.

See :mod:`kcalc.plotting` for the conventions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..foundation.errors import KcalcError, glimpse
from ..foundation.real_numbers import real_array
from . import axis_names
from .frame import GREY, STYLES, drawn, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray
_SHOWN = 0.98


def residual_spectrum(law: Any, values: Any = None, ax: Axes | None = None, bins: int = 60) -> Axes:
    """Draw the predicted density of singular values [MacDonald et al. 2023, Fig. 1].

    If measured singular values are given, their histogram is drawn behind the density.

    ``law``: a :class:`kcalc.calculi.smoothness.ResidualSpectrum`, or {label: law} with ``values``
    {label: array}. Returns: the Axes.
    """
    laws = law if isinstance(law, Mapping) else {"predicted": law}
    samples = values if isinstance(values, Mapping) else {next(iter(laws)): values}
    if not set(samples) <= set(laws):
        raise KcalcError(
            f"values are labelled {glimpse(sorted(map(str, samples)))}, but the predicted spectra "
            f"are labelled {', '.join(map(str, laws))}; use the same labels"
        )
    measured = {label: _singular(one) for label, one in samples.items() if one is not None}
    groups = []
    for label, one in laws.items():
        low, high = one.support
        grid = low + (high - low) * (1 - np.cos(np.linspace(0, np.pi, 401))) / 2
        density = one.density(grid)
        edge = [0, 0.06 * float(np.max(density))]
        edges = [([end, end], edge, {}) for end in (low, high) if end > 0]
        groups.append([(grid, density, {"label": label}), *edges])
    names = (axis_names.SINGULAR_VALUE, axis_names.DENSITY)
    limits: dict[str, Any] = {"xlim": (0, None), "ylim": (0, None)}
    ax = drawn(ax, groups, names, "Singular values", size=(4.6, 3.2), **limits)
    for label, found in measured.items():
        edges = np.linspace(0, float(found.max()) * 1.02, bins + 1)
        _fill(ax, label, np.histogram(found, edges, density=True)[0], edges)
    return ax


def singular_value_histograms(
    spectra: Mapping[str, Any], ax: Axes | None = None, bins: int = 60
) -> Axes:
    """Draw histograms of singular values as outlines [MacDonald et al. 2023, Fig. 2].

    A dashed line marks each mean.

    Long tails are cut off at the 98 % quantile, and the axis label says so.

    ``spectra``: {label: array of singular values of any shape}. Returns: the Axes. Raises:
    KcalcError if it is empty.
    """
    if not spectra:
        raise KcalcError("there are no singular values to draw")
    arrays = {label: np.asarray(values, float).ravel() for label, values in spectra.items()}
    largest, usual = (
        max(float(np.quantile(v, share)) for v in arrays.values()) for share in (1.0, _SHOWN)
    )
    cut = usual < largest / 1.5
    edges = np.linspace(0, (usual if cut else largest) * 1.02, bins + 1)
    heights = {
        label: np.histogram(values, edges)[0] / values.size / np.diff(edges)
        for label, values in arrays.items()
    }
    means = {label: float(values.mean()) for label, values in arrays.items()}
    dashed = {"linestyle": STYLES[1], "linewidth": 0.9}
    top = 1.05 * max(float(one.max()) for one in heights.values())
    groups = [
        [
            (np.repeat(edges, 2)[1:-1], np.repeat(one, 2), {"label": label, "linewidth": 1.2}),
            ([means[label]] * 2, [0, top], {**dashed, "gid": "zero"}),
        ]
        for label, one in heights.items()
    ]
    beyond = f" (those beyond {edges[-1]:.3g} not shown)" if cut else ""
    names = (axis_names.SINGULAR_VALUE + beyond, axis_names.DENSITY)
    extra = [{"label": "mean", "color": GREY, **dashed}]
    limits = {"xlim": (0, float(edges[-1]) if cut else None), "ylim": (0, top)}
    ax = drawn(ax, groups, names, "Singular values", size=(4.6, 3.2), extra=extra, **limits)
    for label, one in heights.items():
        _fill(ax, label, one, edges)
    return ax


def jacobian_bounds(smoothness: Any, ax: Axes | None = None) -> Axes:
    """Draw the bounds on the singular values of d output / d layer, layer by layer.

    The scale is logarithmic, and the range between the bounds is shaded.

    ``smoothness``: a :class:`kcalc.calculi.smoothness.Smoothness`. Returns: the Axes.
    """
    gains = [layer.gain for layer in smoothness.layers.values()]
    place = np.arange(1, len(gains) + 1)
    top = np.array([g.largest for g in gains]) / math.log(10)
    low = np.array([g.smallest for g in gains]) / math.log(10)
    seen = np.isfinite(low)
    dots = {"marker": "o", "markersize": 3}
    groups = [[(place, top, {**dots, "linewidth": 1.2, "label": "largest, at most"})]]
    if seen.any():
        look = {**dots, "linestyle": "none", "label": "smallest, at least"}
        groups.append([(place[seen], low[seen], look)])
    heights = np.concatenate([top, low[seen]])
    heights = heights[np.isfinite(heights)]
    limits = {}
    if heights.size and np.ptp(heights) < 0.1:
        limits["ylim"] = (heights.mean() - 0.5, heights.mean() + 0.5)
    says = "Singular values of d output / d layer"
    names = (axis_names.AFFINE, axis_names.LOG_SINGULAR_VALUE)
    ax = drawn(ax, groups, names, says, size=(5.2, 3.0), **limits)
    ax.vlines(place[seen], low[seen], top[seen], color=GREY, lw=0.6, zorder=0)
    return whole_numbers(ax)


def _singular(values: Any) -> Array:
    array = real_array(values, "values").ravel()
    if array.size == 0 or array.min() < 0 or array.max() == 0:
        raise KcalcError(
            f"values must be singular values (numbers >= 0, not all of them 0), got "
            f"{glimpse(values)}"
        )
    return array


def _fill(ax: Axes, label: Any, heights: Array, edges: Array) -> None:
    """Fill a histogram with the colour of a curve."""
    (*_, color) = (line.get_color() for line in ax.lines if line.get_label() == str(label))
    ax.stairs(heights, edges, fill=True, color=color, alpha=0.18, zorder=0)
