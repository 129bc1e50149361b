"""An Axes: made, labelled, finished and saved, all in one style."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..foundation.errors import KcalcError
from ..foundation.files import replacing
from ..foundation.plain_arguments import file_path, items

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray
# Okabe and Ito
PALETTE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#4D4D4D",
)
STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
GREY, LIGHT = "#666666", "#D9D9D9"
SUFFIXES = (".png", ".pdf", ".svg")


def axes(ax: Axes | None, width: float, height: float) -> Axes:
    """``ax`` itself, or the Axes of a new figure of the given size in inches.

    Raises: KcalcError for something else.
    """
    if ax is not None:
        if not hasattr(ax, "add_patch"):
            raise KcalcError(f"ax must be a matplotlib Axes or None, got {type(ax).__name__}")
        return ax
    import matplotlib.pyplot as plt

    _, made = plt.subplots(figsize=(width, height), layout="constrained")
    return made


def panels(given: Any, count: int, width: float, height: float) -> Array:
    """``count`` Axes in a row, those given or those of a new figure.

    Raises: KcalcError for something else, or another number of them.
    """
    import matplotlib.pyplot as plt

    if given is None:
        return plt.subplots(1, count, figsize=(width, height), layout="constrained")[1]
    found = items(given.ravel() if isinstance(given, np.ndarray) else given, "ax")
    if len(found) != count:
        raise KcalcError(f"this figure has {count} panels, got {len(found)} Axes")
    return np.array([axes(ax, width, height) for ax in found], dtype=object)


def line_look(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of a matplotlib line under their long names.

    Examples: ``color``, ``linestyle`` for ``ls``, ``linewidth``, ``label``.

    Raises: KcalcError for keywords and values that matplotlib does not know.
    """
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    try:
        found = normalize_kwargs(dict(given), Line2D)
        Line2D([], [], **found)
    except (
        Exception
    ) as error:  # matplotlib raises TypeError, ValueError and AttributeError for these
        reason = str(error).split("\n")[0]
        names = ", ".join(map(str, given))
        raise KcalcError(
            f"{names}: give keywords of a matplotlib line such as label=, color=, ls= ({reason})"
        ) from None
    return found


def plain_ticks(axis: Any, low: float, high: float) -> None:
    """1, 2 and 5 times powers of ten as ordinary numbers on a logarithmic axis of short range.

    Powers of ten as they are on a long one.
    """
    if not 0 < low < high or high / low > 1e3:
        return
    steps = [
        m * 10.0**e
        for e in range(int(np.floor(np.log10(low))) - 1, int(np.ceil(np.log10(high))) + 1)
        for m in (1, 2, 5)
    ]
    ticks = [tick for tick in steps if low <= tick <= high]
    axis.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def claim(ax: Axes, sentence: str) -> None:
    """A sentence as the title, wrapped to the width of the Axes.

    a dollar sign in a name is an ordinary one.
    """
    width = ax.get_window_extent().width / ax.figure.dpi  # inches
    text = sentence if sentence.count("$") % 2 == 0 else sentence.replace("$", r"\$")
    most = max(24, int(16 * width))
    # lines of about one length
    even = max(24, math.ceil(1.12 * len(text) / math.ceil(len(text) / most)))
    ax.set_title(textwrap.fill(text, min(most, even)), fontsize=9, gid="claim")


def finish(
    ax: Axes,
    extra: Sequence[Mapping[str, Any]],
    widen: bool,
    legend: bool = True,
    says: str = "",
    titled: bool | None = None,
) -> None:
    """Finish the Axes with thin spines, small ticks and a legend.

    The legend is of the labelled lines and of ``extra`` handles, at a place where it covers
    nothing.

    ``widen``: whether the figure is ours: then ``says`` is its title. On Axes that were given,
    titles are left to the one who gave them, unless ``titled``.
    """
    from matplotlib.lines import Line2D

    if says and (widen if titled is None else titled):
        claim(ax, says)
    for spine in ax.spines.values():
        spine.set_linewidth(0.6)
    ax.tick_params(labelsize=8, width=0.6, length=3)
    lines: list[Any] = [
        line for line in ax.lines if line.get_label() and not str(line.get_label()).startswith("_")
    ]
    if legend and (len(lines) > 1 or extra):
        _legend(ax, [*lines, *(Line2D([], [], **look) for look in extra)], widen)


def labelled(
    ax: Axes, made: bool, x: str, y: str, says: str, extra: Sequence[Mapping[str, Any]] = ()
) -> Axes:
    """The Axes with names ``x`` and ``y``, finished as by :func:`finish`.

    ``made``: whether the figure is ours.
    """
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    finish(ax, extra, made, says=says)
    return ax


def next_color(ax: Axes, gid: str | None = None) -> str:
    """The colour of the palette after those of the lines drawn, or of those with a ``gid``."""
    drawn = {line.get_color() for line in ax.get_lines() if gid in (None, line.get_gid())}
    return PALETTE[len(drawn) % len(PALETTE)]


def _legend(ax: Axes, handles: Sequence[Any], widen: bool) -> None:
    """Draw a legend in the first corner where it covers no curve.

    If there is none, the legend stands to the right (the figure is made wider if ``widen``).
    """
    figure: Any = ax.get_figure()
    look: dict[str, Any] = {
        "handles": handles,
        "fontsize": 8,
        "handlelength": 1.8,
        "labelspacing": 0.35,
        "edgecolor": "none",
        "framealpha": 0.8,
    }
    engine = figure.get_layout_engine() if hasattr(figure, "get_layout_engine") else None
    if engine is not None:
        engine.execute(figure)
    ax.apply_aspect()
    drawn = [(line, np.asarray(line.get_xydata())) for line in ax.lines if line.get_gid() != "zero"]
    samples = [
        _dense(line.get_transform().transform(points)) for line, points in drawn if len(points)
    ]
    for corner in ("lower right", "upper left", "upper right", "lower left"):
        box = ax.legend(loc=corner, borderaxespad=0.6, **look).get_window_extent()
        if not any(
            ((p >= (box.x0 - 4, box.y0 - 4)) & (p <= (box.x1 + 4, box.y1 + 4))).all(axis=1).any()
            for p in samples
        ):
            return
    box = ax.legend(
        loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0.0, **look
    ).get_window_extent()
    if widen:
        width, height = figure.get_size_inches()
        figure.set_size_inches(width + box.width / figure.dpi + 0.1, height)


def _dense(points: Array) -> Array:
    """Points a pixel or two apart along a line on the screen."""
    steps = np.linspace(0, 1, 33)[:, None, None]
    return (
        (points[:-1] + steps * np.diff(points, axis=0)).reshape(-1, 2)
        if len(points) > 1
        else points
    )


# -- files -----------------------------------------------------------------------------------------


def save(target: Any, path: str | os.PathLike[str]) -> Path:
    """Write the figure of an Axes (or a Figure, or an array of Axes) as PNG, PDF or SVG, by suffix.

    The file appears whole or not at all: it is written beside its place and then moved there.
    Returns: the path.
    Raises: KcalcError for another suffix, a missing folder, or one that cannot be written.
    """
    figure, path = _figure(target), file_path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise KcalcError(
            f"a plot is written as {', '.join(SUFFIXES)}, not "
            f"{path.suffix or 'a name without suffix'!r}: {path}"
        )
    kind = path.suffix.lower()[1:]
    timeless = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    with replacing(path) as stream:
        figure.savefig(stream, format=kind, dpi=200, bbox_inches="tight", metadata=timeless)
    return path


def _figure(target: Any) -> Figure:
    if isinstance(target, np.ndarray | list | tuple) and len(target):
        return _figure(np.asarray(target, dtype=object).ravel()[0])
    figure: Any = target if hasattr(target, "savefig") else getattr(target, "figure", None)
    # a subfigure: up to the figure it is part of
    while figure is not None and not hasattr(figure, "savefig"):
        figure = getattr(figure, "figure", None)
    if figure is None:
        raise KcalcError(f"expected an Axes or a Figure to save, got {type(target).__name__}")
    return figure
