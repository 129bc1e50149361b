"""Plots of measured kernels [TAT Fig. 4, DKS App. K].

They show c and q values by layer with their fluctuation, powers of the width, and spectra.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..foundation.errors import KcalcError
from ..plotting import axis_names
from ..plotting import frame as plot_frame
from ..plotting import titles as plot_claims
from ..plotting.frame import GREY, PALETTE, finish
from ..plotting.frame import axes as panel
from .statistics import NARROW

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Array = np.ndarray
SIZE = (4.6, 3.2)


def values_by_layer(
    checks: Any,
    quantity: str = "c",
    case: int = 0,
    ax: Axes | None = None,
    bars: int = 20,
    titled: bool | None = None,
) -> Axes:
    """Draw the means of c (or q) over the nodes, with standard deviations.

    The standard deviation is that of single pairs. There is a colour per width; the map is a black
    dashed line.

    ``checks`` is one check or {label: check}; ``bars`` is about how many nodes have a vertical
    line. Returns: the Axes.
    Raises: KcalcError for quantities and cases that were not measured.
    """
    made = ax is None
    ax = panel(ax, *SIZE)
    given = checks if isinstance(checks, Mapping) else {"": checks}
    drawn: set[Any] = set()
    apart: list[float] = []
    for label, check in given.items():
        if not 0 <= case < len(check.c):
            raise KcalcError(f"case {case} was not measured; there are {len(check.c)}")
        for width in check.widths:
            s = check.statistic(quantity, width)
            rows = np.flatnonzero(check.judged(width))
            apart += np.abs(s.mean[rows, case] - s.expected[rows, case]).tolist()
            color = PALETTE[(len(ax.containers)) % len(PALETTE)]
            title = ", ".join(
                text for text in (label, "" if width is None else f"width {width}") if text
            )
            some = rows[:: max(1, len(rows) // bars)]
            ax.plot(rows, s.mean[rows, case], color=color, lw=1.2, label=title or "measured")
            ax.errorbar(
                some,
                s.mean[some, case],
                s.std[some, case],
                fmt="none",
                ecolor=color,
                elinewidth=0.8,
                alpha=0.7,
            )
            line = tuple(np.round(s.expected[rows, case], 12))
            if line not in drawn:
                ax.plot(
                    rows,
                    s.expected[rows, case],
                    color="#1A1A1A",
                    ls=(0, (4, 2)),
                    lw=1.0,
                    zorder=5,
                    label="_" if drawn else "map",
                )
                drawn.add(line)
    ax.set_xlabel(axis_names.NODE)
    name = (
        quantity.replace("_", " ")
        if quantity.startswith("token")
        else f"${quantity[0]}${quantity[1:]}"
    )
    ax.set_ylabel(name)
    says = plot_claims.within(apart, f"The mean {name} of every judged node", "the map")
    if not apart:
        says = f"No node is wide enough to judge its {name}"
        ax.text(
            0.5,
            0.5,
            f"no node has {NARROW} channels or more",
            ha="center",
            va="center",
            fontsize=8,
            transform=ax.transAxes,
        )
    finish(ax, [], made, says=says, legend=bool(apart), titled=titled)
    return ax


def errors_by_width(
    checks: Any, quantity: str = "c", ax: Axes | None = None, titled: bool | None = None
) -> Axes:
    """Draw the deviation from the map over the width, with fitted powers.

    The deviation of one draw is solid, that of the mean dotted; the scales are logarithmic.
    """
    made = ax is None
    ax = panel(ax, *SIZE)
    given = checks if isinstance(checks, Mapping) else {"": checks}
    fitted: list[tuple[str, Any]] = []
    for i, (label, check) in enumerate(given.items()):
        if len(check.widths) < 2:
            raise KcalcError(
                "errors by width need a check at two widths at least: verify_kernels(model, "
                "widths=(...))"
            )
        powers = (
            ("one draw", check.fluctuation(quantity), "-"),
            ("mean", check.bias(quantity), ":"),
        )
        _powers(ax, check.widths, powers, label, PALETTE[i % len(PALETTE)])
        fitted.append((label, powers[0][1]))
        _reference(ax, check.widths, powers[0][1].values[0], labelled=i == 0)
    ax.set_ylabel(f"deviation of ${quantity[0]}${quantity[1:]} from the map")
    finish(
        ax, [], made, says=plot_claims.powers(fitted, "The deviation of one draw"), titled=titled
    )
    return ax


def tangent_by_width(tangent: Any, ax: Axes | None = None) -> Axes:
    """Draw the relative deviation of the empirical tangent kernel over the width.

    The deviations are those of one network and of the mean.
    """
    made = ax is None
    ax = panel(ax, *SIZE)
    powers = (("one network", tangent.fluctuation, "-"), ("mean", tangent.gap, ":"))
    _powers(ax, tangent.widths, powers, "", PALETTE[0])
    _reference(ax, tangent.widths, powers[0][1].values[0])
    ax.set_ylabel("relative deviation of the NTK")
    finish(
        ax,
        [],
        made,
        says=plot_claims.powers(
            [("", tangent.fluctuation)], "The tangent kernel's deviation in one network"
        ),
    )
    return ax


def _powers(
    ax: Axes, widths: Sequence[Any], powers: Sequence[tuple[str, Any, str]], label: str, color: str
) -> None:
    for name, power, style in powers:
        values = np.array(power.values)
        seen = np.isfinite(values)
        if seen.any():
            fit = f" ({power})" if power.exponent is not None else ""
            title = f"{label}, {name}{fit}" if label else f"{name}{fit}"
            x = np.array(widths, float)[seen]
            ax.errorbar(
                x,
                values[seen],
                np.array(power.errors)[seen],
                color=color,
                ls=style,
                marker="o",
                ms=3,
                lw=1.2,
            )
            ax.plot(x, values[seen], color=color, ls=style, lw=1.2, label=title)
    ax.set(xscale="log", yscale="log")
    ax.set_xticks([float(w) for w in widths], [str(w) for w in widths])
    ax.set_xticks([], minor=True)
    ax.set_xlabel(axis_names.WIDTH)


def _reference(ax: Axes, widths: Sequence[Any], first: float, labelled: bool = True) -> None:
    """The line width^-1/2 from the first value."""
    x = np.array(widths, float)
    ax.plot(
        x,
        first * (x / x[0]) ** -0.5,
        color=GREY,
        ls=(0, (4, 2)),
        lw=0.8,
        zorder=0,
        label=r"width$^{-1/2}$" if labelled else "_",
    )


def singular_values(jacobians: Any, ax: Axes | None = None, bins: int = 40) -> Axes:
    """Histograms of the singular values of every Jacobian, as outlines."""
    made = ax is None
    ax = panel(ax, *SIZE)
    top = max(float(s.max()) for s in jacobians.values.values())
    edges = np.linspace(0, top * 1.02, bins + 1)
    for i, (node, s) in enumerate(jacobians.values.items()):
        heights = np.histogram(s, edges, density=True)[0]
        color = PALETTE[i % len(PALETTE)]
        ax.plot(
            np.repeat(edges, 2)[1:-1], np.repeat(heights, 2), color=color, lw=1.2, label=str(node)
        )
        ax.fill_between(
            np.repeat(edges, 2)[1:-1], np.repeat(heights, 2), color=color, alpha=0.12, lw=0
        )
    ax.set_xlim(0, edges[-1])
    ax.set_ylim(bottom=0)
    ax.set_xlabel(f"{axis_names.SINGULAR_VALUE} of d node / d {jacobians.start}")
    ax.set_ylabel(axis_names.DENSITY)
    medians = [float(np.median(s)) for s in jacobians.values.values()]
    finish(ax, [], made, says=plot_claims.bounded(medians, "The median singular value"))
    return ax


def gradient_norms(checks: Any, ax: Axes | None = None) -> Axes:
    """Draw mean |d out / d node|^2 over the nodes with standard errors.

    The value at infinite width is a dashed line.
    """
    made = ax is None
    ax = panel(ax, *SIZE)
    given: Mapping[str, Any] = checks if isinstance(checks, Mapping) else {"measured": checks}
    apart = [
        float(a)
        for one in given.values()
        for a in np.abs(one.statistic.mean / one.statistic.expected - 1)
    ]
    for i, (label, check) in enumerate(given.items()):
        s, place, color = check.statistic, np.arange(len(check.nodes)), PALETTE[i % len(PALETTE)]
        ax.errorbar(place, s.mean, s.error, color=color, lw=1.2, elinewidth=0.6, label="_")
        ax.plot(place, s.mean, color=color, lw=1.2, label=label)
        ax.plot(
            place,
            s.expected,
            color="#1A1A1A",
            ls=(0, (4, 2)),
            lw=1.0,
            label="_" if i else "infinite width",
        )
    ax.set_yscale("log")
    ax.set_xlabel(axis_names.NODE)
    ax.set_ylabel(axis_names.GRADIENT)
    finish(
        ax,
        [],
        made,
        says=plot_claims.within(apart, "Measured over infinite width, every node", "1"),
    )
    return ax


def check_figure(check: Any, ax: Sequence[Axes] | None = None) -> Array:
    """c and q values by layer, and the cosine of tokens where there are some.

    With several widths also the deviation by width.

    Returns: the array of Axes.
    """
    shown = [
        "c",
        check.quantities[0],
        *(name for name in check.quantities if name.startswith("token")),
    ][:3]
    count = len(shown) + (len(check.widths) > 1)
    panels = plot_frame.panels(ax, count, 4.0 * count, 3.1)
    for panel_, quantity in zip(panels, shown, strict=False):
        values_by_layer(check, quantity, ax=panel_, titled=True)
    if len(check.widths) > 1:
        errors_by_width(check, "c", ax=panels[-1], titled=True)
    return panels
