"""Plots of kernels and gradients on a given Axes; see :mod:`kcalc.plotting` for the habits they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .plotting import GREY, PALETTE, STYLES, axes, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def kernel_curves(kernels: Mapping[str, Any], ax: Axes | None = None, q: Any = 1, points: int = 401) -> Axes:
    """Draw kernels over c in [-1, 1] for inputs of one q value. ``kernels``: {label: kernel}, each called by ``at_angle(theta, q)``.

    ``points`` are spread evenly in the angle, so that the rise next to c = 1 is seen. Returns: the Axes.
    """
    made = ax is None
    ax = axes(ax, 4.6, 3.2)
    theta = np.linspace(np.pi, 0.0, points)
    for label, kernel in kernels.items():
        values = kernel.at_angle(theta, q)
        curves = values.items() if isinstance(values, Mapping) else [(None, values)]
        for output, curve in curves:
            count = len(ax.get_lines())
            shown = label if output is None else f"{label}, {output}"
            ax.plot(np.cos(theta), curve, color=PALETTE[count % len(PALETTE)], ls=STYLES[count // len(PALETTE) % len(STYLES)], label=shown)
    ax.set_xlim(-1.02, 1.02)
    ax.axhline(0.0, color=GREY, lw=0.6)
    ax.set_xlabel("c value of the inputs")
    ax.set_ylabel("kernel")
    finish(ax, [], made)
    return ax


def gradient_trace(gradients: Any, ax: Axes | None = None) -> Axes:
    """Draw E|d out / d node|^2 over the nodes in order, the Affine layers marked, on a logarithmic scale. Returns: the Axes."""
    made = ax is None
    ax = axes(ax, 5.2, 3.0)
    values = {node: value for node, value in gradients.nodes.items() if value > 0}
    place = {node: i for i, node in enumerate(gradients.nodes)}
    ax.plot([place[n] for n in values], list(values.values()), color=PALETTE[0], lw=1.2, label="all nodes")
    affine = [node for node in gradients.weights if node in values]
    ax.plot([place[n] for n in affine], [values[n] for n in affine], "o", ms=3, color=PALETTE[1], label="Affine layers")
    ax.set_yscale("log")
    if values and max(values.values()) < 1.05 * min(values.values()):
        middle = float(np.sqrt(max(values.values()) * min(values.values())))
        ax.set_ylim(middle / 2, middle * 2)
    ax.set_xlabel("node, from the input to the output")
    ax.set_ylabel(r"E$\,|\partial\,$out$\,/\,\partial\,$node$|^2$")
    finish(ax, [], made)
    return ax
