"""Plots of exact moments and fluctuations on a given Axes.

See :mod:`kcalc.plotting` for the habits they share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..foundation.errors import KcalcError, glimpse
from . import axis_names
from . import titles as plot_claims
from .frame import GREY, STYLES, axes, labelled, next_color, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def moment_trace(results: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """Draw Var s/(E s)^2 per layer for squared norms s, on a logarithmic scale.

    s = |y|^2 (feature maps read by weights) is solid, s = |J|^2 (weights) dashed.

    ``results``: {label: :class:`kcalc.calculi.moments.Moments`}. Returns: the Axes. Raises:
    KcalcError for results with symbols.
    """
    made = ax is None
    ax = axes(ax, 4.8, 3.2)
    handles: list[Any] = []
    ends: list[float] = []
    for label, one in results.items():
        if one.symbolic:
            raise KcalcError("moments with symbols cannot be drawn; give them numbers with .subs")
        color = next_color(ax)
        values = [one.nodes[node].relative for node in _read_nodes(one)]
        ends.append(float(values[-1]))
        place = [i / max(1, len(values) - 1) for i in range(len(values))]
        shown = [(x, v) for x, v in zip(place, values, strict=True) if v > 0]
        ax.plot(
            *zip(*shown, strict=True), color=color, lw=1.5, label=label or "$|y|^2$"
        ) if shown else None
        if one.jacobians is not None:
            found = [moment.relative for moment in one.jacobians.values() if moment.relative > 0]
            where = [(i + 1) / len(found) for i in range(len(found))]
            ax.plot(
                where, found, color=color, lw=1.2, ls=STYLES[1], label="_" if label else "$|J|^2$"
            )
            handles = (
                [{"label": "$|J|^2$ by layer", "color": GREY, "ls": STYLES[1], "lw": 1.2}]
                if label
                else []
            )
    ax.set_yscale("log")
    plain_ticks(ax.yaxis, *ax.get_ylim())
    says = plot_claims.reaches(ends, "The relative variance of $|y|^2$", "at the output")
    names = axis_names.RELATIVE_DEPTH, axis_names.RELATIVE_VARIANCE
    return labelled(ax, made, *names, says, handles)


def _read_nodes(one: Any) -> list[Any]:
    """Inputs of weights at which all paths meet, in order, and the output."""
    cuts = set(one.network.cut_nodes())
    read = [
        one.network.parents(node)[0]
        for node in one.nodes
        if type(one.network.layer(node)).__name__ == "Affine"
    ]
    return [*dict.fromkeys(node for node in read if node in cuts), one.output]


def depth_trace(
    results: Mapping[str, Mapping[int, Any]], ax: Axes | None = None, weights: Any = None
) -> Axes:
    """Draw Var |y_out|^2 against depth on a logarithmic scale [Per-layer gradient, Figs. 2 and 3].

    ``results``: {label: {depth: Moments}}. ``weights``: a node's name, or a function of the result
    that gives one, to draw Var |J|^2 there instead. Returns: the Axes.
    """
    made = ax is None
    ax = axes(ax, 4.8, 3.2)
    ends: list[float] = []
    for label, by_depth in results.items():
        values = []
        for one in by_depth.values():
            node = weights(one) if callable(weights) else weights
            values.append(one.out.variance if node is None else one.weights[node].variance)
        ends += [float(v) for v in values[-1:]]
        ax.plot(
            list(by_depth),
            values,
            color=next_color(ax),
            lw=1.5,
            marker="o",
            ms=2.5,
            label=label or "_",
        )
    ax.set_yscale("log")
    plain_ticks(ax.yaxis, *ax.get_ylim())
    name, square = (
        (axis_names.LENGTH_VARIANCE, "$|y|^2$")
        if weights is None
        else (axis_names.JACOBIAN_VARIANCE, "$|J|^2$")
    )
    says = plot_claims.reaches(ends, f"The variance of {square}", "at the largest depth")
    return labelled(ax, made, axis_names.DEPTH, name, says)


def fluctuation_trace(
    results: Mapping[str, Any], ax: Axes | None = None, value: str = "log_variance"
) -> Axes:
    """Draw the fluctuations of q or c after every activation against depth.

    ``value``: Var log q ("log_variance"), Var q/q^2 ("relative") or Var c ("c_variance").

    ``results``: {label: :class:`kcalc.calculi.fluctuations.Fluctuations`}, e.g. before and after
    shaping. Returns: the Axes.
    """
    from matplotlib.ticker import MaxNLocator

    made = ax is None
    ax = axes(ax, 4.8, 3.2)
    titles = {
        "log_variance": axis_names.LOG_Q_VARIANCE,
        "relative": axis_names.Q_VARIANCE,
        "c_variance": axis_names.C_VARIANCE,
    }
    if value not in titles:
        raise KcalcError(f"value is one of {', '.join(titles)}, got {glimpse(value)}")
    ends: list[float] = []
    for label, one in results.items():
        nodes = [
            node for node in one.nodes if type(one.network.layer(node)).__name__ == "Nonlinear"
        ] or list(one.nodes)
        heights = [getattr(one.nodes[node], value) for node in nodes]
        if any(h is None for h in heights):
            raise KcalcError("there are no c values; give c= to kc.fluctuations")
        ends += [float(h) for h in heights[-1:]]
        color = next_color(ax)
        ax.plot(range(1, len(nodes) + 1), heights, color=color, lw=1.5, label=label or "_")
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    says = plot_claims.reaches(ends, titles[value], "after the last activation")
    return labelled(ax, made, axis_names.NONLINEAR_DEPTH, titles[value], says)
