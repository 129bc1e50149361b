"""Plots of kernels and gradients on a given Axes.

See :mod:`kcalc.plotting` for the habits they share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..foundation.printing import marked
from ..foundation.real_numbers import q_pair
from . import axis_names
from . import titles as plot_claims
from .frame import GREY, PALETTE, STYLES, axes, labelled, line_look, next_color, plain_ticks

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

    ``kernels``: {label: kernel}, each called by ``at_angle(theta, q1, q2)``; ``q``: q of both
    inputs.

    ``points`` are spread evenly in the angle, so that the rise next to c = 1 is seen. ``line``:
    keywords of matplotlib lines. Returns: the Axes. Raises: KcalcError for keywords that matplotlib
    does not know.
    """
    made, look = ax is None, line_look(line)
    ax = axes(ax, 4.6, 3.2)
    theta = np.linspace(np.pi, 0.0, points)
    drawn: list[np.ndarray] = []
    for label, kernel in kernels.items():
        values = kernel.at_angle(theta, *q_pair(q1, q2, q))
        curves = values.items() if isinstance(values, Mapping) else [(None, values)]
        for output, curve in curves:
            count = len(ax.get_lines())
            drawn.append(np.asarray(curve, dtype=float))
            shown = marked(label, kernel)
            usual = {
                "color": PALETTE[count % len(PALETTE)],
                "linestyle": STYLES[count // len(PALETTE) % len(STYLES)],
            }
            ax.plot(
                np.cos(theta),
                curve,
                **{**usual, "label": shown if output is None else f"{shown}, {output}", **look},
            )
    ax.set_xlim(-1.02, 1.02)
    ax.axhline(0.0, color=GREY, lw=0.6)
    says = plot_claims.kernels(np.cos(theta), drawn)
    return labelled(ax, made, axis_names.C, axis_names.KERNEL, says)


def gradient_trace(gradients: Any, ax: Axes | None = None, **line: Any) -> Axes:
    """Draw E|d out / d node|^2 over the nodes in order, on a logarithmic scale.

    The Affine layers are marked.

    Returns: the Axes.
    """
    made = ax is None
    ax = axes(ax, 5.2, 3.0)
    values = {node: value for node, value in gradients.nodes.items() if value > 0}
    place = {node: i for i, node in enumerate(gradients.nodes)}
    usual = {"color": PALETTE[0], "linewidth": 1.2, "label": "all nodes"}
    ax.plot([place[n] for n in values], list(values.values()), **{**usual, **line_look(line)})
    affine = [node for node in gradients.weights if node in values]
    ax.plot(
        [place[n] for n in affine],
        [values[n] for n in affine],
        "o",
        ms=3,
        color=PALETTE[1],
        label="Affine layers",
    )
    ax.set_yscale("log")
    if values and max(values.values()) < 1.05 * min(values.values()):
        middle = float(np.sqrt(max(values.values()) * min(values.values())))
        ax.set_ylim(middle / 2, middle * 2)
    plain_ticks(ax.yaxis, *ax.get_ylim())
    says = plot_claims.factor(
        [gradients.nodes[node] for node in gradients.weights], "Gradients at the Affine layers"
    )
    return labelled(ax, made, axis_names.NODE, axis_names.GRADIENT, says)


def spectra(spectrums: Mapping[str, Any], ax: Axes | None = None, **line: Any) -> Axes:
    """Draw eigenvalues over the largest against their rank, on logarithmic axes.

    Dotted below their rounding error.

    ``spectrums``: {label: :class:`kcalc.matrices.spectrum.Spectrum`}. Returns: the Axes.
    """
    made, look = ax is None, line_look(line)
    ax = axes(ax, 4.6, 3.2)
    for label, one in spectrums.items():
        color = next_color(ax)
        rank = np.arange(1, one.eigenvalues.size + 1)
        share = one.eigenvalues / one.largest
        floor = one.resolution / one.largest
        sure = share > floor
        (drawn,) = ax.plot(
            rank[sure],
            share[sure],
            **{"color": color, "linewidth": 1.5, "label": label or "_", **look},
        )
        unsure = (share > 0) & (rank >= sure.sum())
        ax.plot(
            rank[unsure], share[unsure], color=drawn.get_color(), lw=0.9, ls=STYLES[2], label="_"
        )
    ax.set(xscale="log", yscale="log")
    says = plot_claims.spectra(list(spectrums.values()))
    return labelled(ax, made, axis_names.RANK, axis_names.EIGENVALUE_SHARE, says)


def layer_profile(regimes: Mapping[str, Any], ax: Axes | None = None, **line: Any) -> Axes:
    """Draw per layer the ratio of a kernel value to that of equal inputs.

    The numerator is the kernel of inputs with c = ``regime.c``; the prediction at infinite depth is
    dashed.

    ``regimes``: {label: :class:`kcalc.calculi.regime.Regime`}. Returns: the Axes.
    """
    made, look = ax is None, line_look(line)
    ax = axes(ax, 4.6, 3.2)
    for label, one in regimes.items():
        color = next_color(ax, "measured")
        place = (np.arange(len(one.alphas)) + 1) / len(one.alphas)
        usual = {"color": color, "linewidth": 1.5, "label": label, "gid": "measured"}
        ax.plot(place, list(one.alphas.values()), **{**usual, **look})
        if one.limit is not None:
            ax.plot(place, one.limit.alphas, color=color, lw=1.0, ls=STYLES[1], label="_")
    dashed = {"label": "as depth grows", "color": GREY, "ls": STYLES[1], "lw": 1.0}
    ax.set_xlim(0, 1.02)
    handles = [dashed] if any(one.limit is not None for one in regimes.values()) else []
    says = plot_claims.regimes(list(regimes.values()))
    return labelled(ax, made, axis_names.RELATIVE_DEPTH, axis_names.LAYER_SHARE, says, handles)


def losses(times: Any, curves: Mapping[str, Any], ax: Axes | None = None, **line: Any) -> Axes:
    """Draw losses over training time on logarithmic axes.

    ``curves``: {label: (T,) losses}. Returns: the Axes.
    """
    made, look = ax is None, line_look(line)
    ax = axes(ax, 4.6, 3.2)
    for label, values in curves.items():
        color = PALETTE[len(ax.get_lines()) % len(PALETTE)]
        ax.plot(times, values, **{"color": color, "linewidth": 1.5, "label": label, **look})
    ax.set(xscale="log", yscale="log")
    says = plot_claims.losses([np.asarray(values, dtype=float) for values in curves.values()])
    return labelled(ax, made, axis_names.TIME, axis_names.LOSS, says)
