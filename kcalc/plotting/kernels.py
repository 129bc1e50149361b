"""Plots of kernels and gradients on a given Axes.

See :mod:`kcalc.plotting` for the conventions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..foundation.printing import marked
from ..foundation.real_numbers import q_pair
from . import axis_names
from .frame import GREY, PALETTE, STYLES, drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def kernel_curves(
    kernels: Mapping[str, Any],
    ax: Axes | None = None,
    q1: Any = None,
    q2: Any = None,
    points: int = 401,
    *,
    q: Any = None,
    **line: Any,
) -> Axes:
    """Draw kernels over c in [-1, 1].

    ``kernels`` is {label: kernel}; each kernel is evaluated with ``at_angle(theta, q1, q2)``. ``q``
    is the q value of both inputs.

    The ``points`` are evenly spaced in the angle, which resolves the rise near c = 1. ``line``
    contains keywords for matplotlib lines. Returns: the Axes. Raises: KcalcError for unknown
    keywords.
    """
    theta = np.linspace(np.pi, 0.0, points)
    c = np.cos(theta)
    curves: list[tuple[str, Any]] = []
    for label, kernel in kernels.items():
        values, name = kernel.at_angle(theta, *q_pair(q1, q2, q)), marked(label, kernel)
        several = isinstance(values, Mapping)
        curves += [(f"{name}, {o}", v) for o, v in values.items()] if several else [(name, values)]
    groups = [
        [(c, values, {"label": name, "linestyle": STYLES[k // len(PALETTE) % len(STYLES)]})]
        for k, (name, values) in enumerate(curves)
    ]
    names = (axis_names.C, axis_names.KERNEL)
    settings = {"xlim": (-1.02, 1.02), "xticks": [-1, -0.5, 0, 0.5, 1]}
    ax = drawn(ax, groups, names, _plural("Kernel", curves), look=line, **settings)
    ax.axhline(0.0, color=GREY, lw=0.6, gid="zero", zorder=0)
    return ax


def gradient_trace(gradients: Any, ax: Axes | None = None, **line: Any) -> Axes:
    """Draw E|d out / d node|^2 over the nodes in order, on a logarithmic scale.

    The Affine layers are marked.

    Returns: the Axes.
    """
    values = np.array(list(gradients.nodes.values()), dtype=float)
    values = np.where(values > 0, values, np.nan)
    affine = np.flatnonzero([node in gradients.weights for node in gradients.nodes])
    places = np.arange(len(values))
    dots = {"linestyle": "none", "marker": "o", "markersize": 3, "label": "Affine layers"}
    groups = [
        [(places, values, {"linewidth": 1.2, "label": "all nodes", "color": PALETTE[0], **line})],
        [(affine, values[affine], {"color": PALETTE[1], **dots})],
    ]
    names = (axis_names.NODE, axis_names.GRADIENT)
    return drawn(ax, groups, names, "Squared gradients by depth", size=(5.2, 3.0), yscale="log")


def spectra(spectrums: Mapping[str, Any], ax: Axes | None = None, **line: Any) -> Axes:
    """Draw eigenvalues, divided by the largest, against their rank on logarithmic axes.

    Eigenvalues below their rounding error are dotted.

    ``spectrums``: {label: :class:`kcalc.matrices.spectrum.Spectrum`}. Returns: the Axes.
    """
    groups, dotted_drawn = [], False
    for label, one in spectrums.items():
        rank, share = np.arange(1, one.eigenvalues.size + 1), one.eigenvalues / one.largest
        sure = share > one.resolution / one.largest
        unsure = (share > 0) & (rank >= sure.sum())
        dotted = {"linewidth": 0.9, "linestyle": STYLES[2]}
        dotted_drawn |= bool(unsure.any())
        groups.append(
            [
                (rank[sure], share[sure], {"label": label or "eigenvalues"}),
                (rank[unsure], share[unsure], dotted),
            ]
        )
    names = (axis_names.RANK, axis_names.EIGENVALUE_SHARE)
    extra = [{"label": "below rounding", "color": GREY, "linewidth": 0.9, "linestyle": STYLES[2]}]
    given = {"look": line, "extra": extra if dotted_drawn else (), "xscale": "log", "yscale": "log"}
    return drawn(ax, groups, names, _plural("Spectrum", spectrums), **given)


def layer_profile(regimes: Mapping[str, Any], ax: Axes | None = None, **line: Any) -> Axes:
    """Draw the ratio of the kernel value to its value for equal inputs, layer by layer.

    The numerator is the kernel value for inputs with c = ``regime.c``. The prediction for infinite
    depth is dashed.

    ``regimes``: {label: :class:`kcalc.calculi.regime.Regime`}. Returns: the Axes.
    """
    dashed = {"linestyle": STYLES[1], "linewidth": 1.0}
    groups = []
    for label, one in regimes.items():
        place = (np.arange(len(one.alphas)) + 1) / len(one.alphas)
        limit = [] if one.limit is None else [(place, one.limit.alphas, dashed)]
        groups.append([(place, list(one.alphas.values()), {"label": label}), *limit])
    extra = [{"label": "as depth grows", "color": GREY, **dashed}]
    some = any(one.limit is not None for one in regimes.values())
    names = (axis_names.RELATIVE_DEPTH, axis_names.LAYER_SHARE)
    return drawn(
        ax,
        groups,
        names,
        "Kernel ratio by depth",
        look=line,
        extra=extra if some else (),
        xlim=(0, 1.02),
    )


def losses(times: Any, curves: Mapping[str, Any], ax: Axes | None = None, **line: Any) -> Axes:
    """Draw losses against training time on logarithmic axes.

    ``curves``: {label: (T,) losses}. Returns: the Axes.
    """
    groups = [[(times, values, {"label": label})] for label, values in curves.items()]
    names = (axis_names.TIME, axis_names.LOSS)
    return drawn(ax, groups, names, "Loss during training", look=line, xscale="log", yscale="log")


def _plural(noun: str, things: Any) -> str:
    """Return the noun, in the plural form if ``things`` has several entries."""
    return noun if len(things) < 2 else "Spectra" if noun == "Spectrum" else f"{noun}s"
