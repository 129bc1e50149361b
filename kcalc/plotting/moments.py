"""Plots of exact moments and fluctuations on a given Axes.

See :mod:`kcalc.plotting` for the conventions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..foundation.errors import KcalcError, glimpse
from . import axis_names
from .frame import GREY, STYLES, drawn, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VALUES = {
    "log_variance": axis_names.LOG_Q_VARIANCE,
    "relative": axis_names.Q_VARIANCE,
    "c_variance": axis_names.C_VARIANCE,
}


def moment_trace(results: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """Draw Var s/(E s)^2 of squared norms s, layer by layer, on a logarithmic scale.

    The solid line shows s = |y|^2, where y is the input of a weight matrix. The dashed line shows s
    = |J|^2, where J is the derivative of the output with respect to the weights.

    ``results``: {label: :class:`kcalc.calculi.moments.Moments`}. Returns: the Axes. Raises:
    KcalcError for results with symbols.
    """
    dashed = {"linestyle": STYLES[1], "linewidth": 1.2}
    groups, named = [], False
    for label, one in results.items():
        if one.symbolic:
            raise KcalcError("moments with symbols cannot be drawn; substitute numbers with .subs")
        values = [one.nodes[node].relative for node in _read_nodes(one)]
        place = np.arange(len(values)) / max(1, len(values) - 1)
        shown = np.where(np.array(values, dtype=float) > 0, values, np.nan)
        group: list[Any] = [(place, shown, {"label": label or "$|y|^2$"})]
        if one.jacobians is not None:
            found = [m.relative for m in one.jacobians.values() if m.relative > 0]
            where = (np.arange(len(found)) + 1) / max(1, len(found))
            group.append((where, found, {**dashed, "label": "_" if label else "$|J|^2$"}))
            named = bool(label)
        groups.append(group)
    extra = [{"label": "$|J|^2$ by layer", "color": GREY, **dashed}] if named else []
    names = (axis_names.RELATIVE_DEPTH, axis_names.RELATIVE_VARIANCE)
    return drawn(ax, groups, names, "Relative variance by depth", extra=extra, yscale="log")


def _read_nodes(one: Any) -> list[Any]:
    """Return the inputs of weights that every path crosses, in order, followed by the output."""
    cuts = set(one.network.cut_nodes())
    read = (
        one.network.parents(node)[0]
        for node in one.nodes
        if type(one.network.layer(node)).__name__ == "Affine"
    )
    return [*dict.fromkeys(node for node in read if node in cuts), one.output]


def depth_trace(
    results: Mapping[str, Mapping[int, Any]], ax: Axes | None = None, weights: Any = None
) -> Axes:
    """Draw Var |y_out|^2 against depth on a logarithmic scale [Per-layer gradient, Figs. 2 and 3].

    ``results``: {label: {depth: Moments}}. With ``weights``, Var |J|^2 at a weight is drawn
    instead; ``weights`` is the name of a node, or a function that maps a result to a name. Returns:
    the Axes.
    """

    def variance(one: Any) -> float:
        node = weights(one) if callable(weights) else weights
        return float((one.out if node is None else one.weights[node]).variance)

    groups = [
        [
            (
                list(by_depth),
                [variance(one) for one in by_depth.values()],
                {"marker": "o", "markersize": 2.5, "label": label or "_"},
            )
        ]
        for label, by_depth in results.items()
    ]
    name, square = (
        (axis_names.LENGTH_VARIANCE, "$|y|^2$")
        if weights is None
        else (axis_names.JACOBIAN_VARIANCE, "$|J|^2$")
    )
    says = f"Variance of {square} by depth"
    return whole_numbers(drawn(ax, groups, (axis_names.DEPTH, name), says, yscale="log"))


def fluctuation_trace(
    results: Mapping[str, Any], ax: Axes | None = None, value: str = "log_variance"
) -> Axes:
    """Draw the fluctuations of q or c after every activation against depth.

    ``value``: Var log q ("log_variance"), Var q/q^2 ("relative") or Var c ("c_variance").

    ``results``: {label: :class:`kcalc.calculi.fluctuations.Fluctuations`}, such as before and after
    shaping. Returns: the Axes.
    """
    if value not in VALUES:
        raise KcalcError(f"value must be one of {', '.join(VALUES)}, got {glimpse(value)}")
    groups = []
    for label, one in results.items():
        nodes = [n for n in one.nodes if type(one.network.layer(n)).__name__ == "Nonlinear"]
        heights = [getattr(one.nodes[node], value) for node in nodes or one.nodes]
        if any(h is None for h in heights):
            raise KcalcError("there are no c values; pass c= to kc.fluctuations")
        groups.append([(range(1, len(heights) + 1), heights, {"label": label or VALUES[value]})])
    name = VALUES[value]
    says = f"{name} by depth"
    names = (axis_names.NONLINEAR_DEPTH, name)
    return whole_numbers(drawn(ax, groups, names, says, ylim=(0, None)))
