"""Plot training curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import axis_names
from . import frame as plot_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKED = 12  # each evaluation step has a marker if there are at most this many steps


def accuracies(
    lines: Mapping[str, Sequence[tuple[int, float]]], ax: Axes | None = None, title: str = ""
) -> Axes:
    """Plot accuracies against training steps, with one line per label, and return the Axes."""
    from matplotlib import ticker

    made = ax is None
    ax = plot_frame.axes(ax, 5.4, 3.6)
    for i, (label, points) in enumerate(lines.items()):
        color = plot_frame.PALETTE[i % len(plot_frame.PALETTE)]
        style: Any = plot_frame.STYLES[i // len(plot_frame.PALETTE) % len(plot_frame.STYLES)]
        ax.plot(
            [step for step, _ in points],
            [100 * share for _, share in points],
            color=color,
            linestyle=style,
            linewidth=1.4,
            label=label,
            marker="o" if len(points) <= MARKED else "",
            markersize=3.5,
        )
    steps = [step for points in lines.values() for step, _ in points]
    if len(set(steps)) == 1:  # a tick at the only evaluation step, with room around it
        ax.set_xlim(0, 1.1 * steps[0])
    ax.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
    ax.set_ylim(0, 101)
    ax.set_xlabel(axis_names.STEPS, fontsize=10)
    ax.set_ylabel(axis_names.CORRECT if title else "correct, %", fontsize=10)
    if title:
        plot_frame.entitle(ax, title)
    plot_frame.finish(ax, (), made, says="" if title else "Test accuracy")
    return ax
