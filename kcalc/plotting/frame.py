"""Create, label, finish and save Axes in one style."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..foundation.errors import KcalcError
from ..foundation.files import PICTURES, replacing
from ..foundation.plain_arguments import file_path, items

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray
Curve = tuple[Any, Any, Mapping[str, Any]]
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
CORNERS = ("lower right", "upper left", "upper right", "lower left")
# candidate positions for a legend
PLACES = (*CORNERS, "center right", "center left", "upper center", "lower center")


def axes(ax: Axes | None, width: float, height: float) -> Axes:
    """Return ``ax`` itself, or the Axes of a new figure of the given size in inches.

    Raises: KcalcError for anything else.
    """
    if ax is not None:
        if not hasattr(ax, "add_patch"):
            raise KcalcError(f"ax must be a matplotlib Axes or None, got {type(ax).__name__}")
        return ax
    import matplotlib.pyplot as plt

    _, made = plt.subplots(figsize=(width, height), layout="constrained")
    return made


def panels(given: Any, count: int, width: float, height: float) -> Array:
    """Return the given Axes, or ``count`` Axes in a row of a new figure.

    Raises: KcalcError for anything but ``count`` Axes.
    """
    import matplotlib.pyplot as plt

    if given is None:
        return plt.subplots(1, count, figsize=(width, height), layout="constrained")[1]
    found = items(given.ravel() if isinstance(given, np.ndarray) else given, "ax")
    if len(found) != count:
        raise KcalcError(f"ax must contain {count} Axes, one per panel, got {len(found)}")
    return np.array([axes(ax, width, height) for ax in found], dtype=object)


def line_look(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of a matplotlib line under their long names.

    For example, ``ls`` becomes ``linestyle``.

    Raises: KcalcError for unknown keywords and values.
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
            f"{names} are not keywords of a matplotlib line ({reason}); use label=, color=, "
            "ls= etc."
        ) from None
    return found


def log_axis(axis: Any, room: float = 1.0) -> None:
    """Make an axis logarithmic, and let it span at least a factor of ``room``.

    Curves that are constant up to small errors then look constant.

    On a short range, the ticks are 1, 2 and 5 times powers of ten, written as ordinary numbers.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    if not 0 < low < high:
        return
    if high < room * low:
        middle = math.sqrt(low * high)
        low, high = middle / room, middle * room
        axis.axes.set(**{f"{axis.axis_name}lim": (low, high)})
    if high / low <= 1e3:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())


def entitle(ax: Axes, title: str) -> None:
    """Set the title of the Axes, wrapped to its width.

    If the number of dollar signs is odd, they are escaped and do not start mathtext.
    """
    width = ax.get_window_extent().width / ax.figure.dpi  # inches
    text = title if title.count("$") % 2 == 0 else title.replace("$", r"\$")
    ax.set_title(textwrap.fill(text, max(24, int(16 * width))), fontsize=10, gid="title")


def finish(
    ax: Axes,
    extra: Sequence[Mapping[str, Any]],
    widen: bool,
    legend: bool = True,
    says: str = "",
    titled: bool | None = None,
) -> None:
    """Finish the Axes by adding thin spines, small ticks and a legend.

    The legend lists the labelled lines and the ``extra`` handles, and is placed where it covers
    nothing.

    ``widen`` says whether kcalc made the figure. If so, its title is set to ``says``. Axes given by
    the user get a title only if ``titled``.
    """
    from matplotlib.lines import Line2D

    if says and (widen if titled is None else titled):
        entitle(ax, says)
    for spine in ax.spines.values():
        spine.set_linewidth(0.6)
    ax.tick_params(labelsize=8, width=0.6, length=3)
    lines: list[Any] = [
        line for line in ax.lines if line.get_label() and not str(line.get_label()).startswith("_")
    ]
    lines.sort(key=lambda line: line.get_gid() == "identity")
    if legend and (lines or extra):
        _legend(ax, [*lines, *(Line2D([], [], **look) for look in extra)], widen)


def labelled(
    ax: Axes, made: bool, x: str, y: str, says: str, extra: Sequence[Mapping[str, Any]] = ()
) -> Axes:
    """Label the axes with the names ``x`` and ``y``, and finish them as :func:`finish` does.

    ``made`` says whether kcalc made the figure.
    """
    ax.set(xlabel=x, ylabel=y)
    finish(ax, extra, made, says=says)
    return ax


def drawn(
    ax: Axes | None,
    groups: Iterable[Sequence[Curve]],
    names: tuple[str, str],
    says: str,
    *,
    size: tuple[float, float] = (4.8, 3.2),
    look: Mapping[str, Any] | None = None,
    extra: Sequence[Mapping[str, Any]] = (),
    **settings: Any,
) -> Axes:
    """Draw groups of curves (x, y, line keywords) in the usual style, with one colour per group.

    ``look`` contains the user's keywords for the first line of each group, ``names`` the labels of
    both axes, ``settings`` the keywords for ``Axes.set``, and ``extra`` additional legend entries.
    See :func:`axes` and :func:`finish` for the other arguments. Returns: the Axes.
    """
    made, own = ax is None, line_look(look or {})
    ax = axes(ax, *size)
    for group in groups:
        color: Any = next_color(ax)
        for k, (x, y, given) in enumerate(group):
            usual = {"color": color, "linewidth": 1.5, "label": "_", "gid": "curve"}
            (line,) = ax.plot(x, y, **{**usual, **line_look(given), **(own if k == 0 else {})})
            color = line.get_color() if k == 0 else color
    ax.set(**settings)
    for axis in (ax.xaxis, ax.yaxis):
        if axis.get_scale() == "log":
            log_axis(axis, 2.0 if axis is ax.yaxis else 1.0)
    return labelled(ax, made, *names, says, extra)


def whole_numbers(ax: Axes) -> Axes:
    """Place the ticks of the horizontal axis at integers."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    return ax


def next_color(ax: Axes) -> str:
    """Return the next colour of the palette that no drawn curve uses."""
    known = {line.get_color() for line in ax.lines if line.get_gid() == "curve"}
    return PALETTE[len(known) % len(PALETTE)]


def _legend(ax: Axes, handles: Sequence[Any], widen: bool) -> None:
    """Add a legend where it covers no curve, or to the right of the plot if there is no such place.

    If ``widen`` is True, the figure becomes wider to make room for a legend on the right.
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
    paths = [
        line.get_path().transformed(line.get_transform())
        for line in ax.lines
        if line.get_gid() != "zero"
    ]
    for corner in PLACES:
        box = ax.legend(loc=corner, borderaxespad=0.6, **look).get_window_extent().padded(4)
        if not any(
            path.intersects_bbox(box, filled=False) or box.count_contains(path.vertices)
            for path in paths
        ):
            return
    beside = ax.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0.0, **look)
    if widen:
        width, height = figure.get_size_inches()
        box = beside.get_window_extent()
        figure.set_size_inches(width + box.width / figure.dpi + 0.1, height)


# -- files -----------------------------------------------------------------------------------------


def save(target: Any, path: str | os.PathLike[str]) -> Path:
    """Write the figure of an Axes (or a Figure, or an array of Axes) as PNG, PDF or SVG.

    The suffix of the path determines the format. The file is first written under a temporary name
    and then moved, so it is never incomplete. Returns: the path. Raises: KcalcError for another
    suffix, a missing folder, or a file that cannot be written.
    """
    figure, path = _figure(target), file_path(path)
    if path.suffix.lower() not in PICTURES:
        raise KcalcError(
            f"{path}: a plot can be saved only as {', '.join(PICTURES)}; use one of these suffixes"
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
    # a subfigure: go up to its figure
    while figure is not None and not hasattr(figure, "savefig"):
        figure = getattr(figure, "figure", None)
    if figure is None:
        raise KcalcError(f"expected an Axes or a Figure to save, got {type(target).__name__}")
    return figure
