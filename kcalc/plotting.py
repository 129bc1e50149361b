"""Plots on a given Axes: C and Q maps, activations before and after shaping, and the network as a graph.

Every function takes ``ax=None`` (a new figure is made then) and returns the Axes; none shows anything or touches global
settings. Arguments are duck-typed: maps and activations are callables on NumPy arrays.
"""

from __future__ import annotations

import math
import os
import secrets
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import plot_claims
from .drawing import network
from .errors import KcalcError
from .rootfinding import sign_changes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["activations", "c_maps", "network", "q_maps", "save"]

Array = np.ndarray
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")  # Okabe and Ito
STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
GREY, LIGHT = "#666666", "#D9D9D9"
SAID = 100  # points from which a curve tells of all that lies between them
SUFFIXES = (".png", ".pdf", ".svg")


# -- maps --------------------------------------------------------------------------------------------------------------


def c_maps(
    maps: Any,
    ax: Axes | None = None,
    labels: Sequence[str] | None = None,
    q1: Any = 1,
    q2: Any = None,
    points: int = 401,
    looks: Mapping[str, tuple[str, Any]] | None = None,
) -> Axes:
    """Draw C maps over [-1, 1] with the identity and their fixed points.

    ``maps`` is one map, several, or {label: map}; each is called as ``C(c, q1, q2)`` with an array and returns an array,
    or {output: array} (one line per output). ``points`` are spread evenly in the angle arccos c, so that they lie densely
    near c = +-1. Fixed points: filled where the map attracts, open where it repels, half filled where the slope is +-1.
    They come from the map's ``fixed_points`` where it has one, else from sign changes on a fine grid. ``looks`` gives lines a colour and a
    style of their own, {label: (colour, style)}.

    Returns: the Axes. Raises: KcalcError for something that is not a map or returns other shapes.
    """
    made = ax is None
    ax = axes(ax, 3.6, 3.6)
    c = np.cos(np.linspace(np.pi, 0.0, _whole(points, "points", 2)))
    _identity(ax, -1, 1)
    drawn: list[Array] = []
    for label, curve, given in _curves(maps, labels, q1, q2):
        drawn.append(curve(c))
        color = _draw_curve(ax, c, drawn[-1], label, (looks or {}).get(label))
        for value, stable in _fixed_points(curve, given, q1, q2):
            _mark(ax, value, stable, color)
    ax.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), xticks=[-1, -0.5, 0, 0.5, 1], yticks=[-1, -0.5, 0, 0.5, 1])
    ax.set_aspect("equal")
    ax.set_xlabel("$c$ of the inputs", fontsize=10)
    ax.set_ylabel(r"$\mathcal{C}_f(c)$", fontsize=10)
    says = plot_claims.c_maps(c, drawn) if points > SAID else "C map"
    finish(ax, _mark_handles(ax), made, says=says)
    return ax


def q_maps(
    maps: Any, ax: Axes | None = None, labels: Sequence[str] | None = None, low: float = 1e-2, high: float = 1e2, points: int = 201
) -> Axes:
    """Draw Q maps over q in [low, high] on logarithmic axes with the identity and their fixed points.

    ``maps`` is one map, several, or {label: map}; each is called as ``Q(q)`` with an array and returns an array, or
    {output: array}. Fixed points are marked for maps that have ``fixed_points(low, high)``.
    """
    made = ax is None
    ax = axes(ax, 3.6, 3.6)
    q = np.geomspace(low, high, _whole(points, "points", 2))
    _identity(ax, low, high)
    drawn: list[Array] = []
    ones: list[float] = []
    for label, curve, given in _curves(maps, labels):
        drawn.append(curve(q))
        ones.append(float(curve(np.ones(1))[0]) if low <= 1 <= high else math.nan)
        color = _draw_curve(ax, q, drawn[-1], label)
        for point in given.fixed_points(low, high) if hasattr(given, "fixed_points") else ():
            _mark(ax, point.value, point.stable, color)
    ax.set(xscale="log", yscale="log", xlim=(low, high))
    ax.set_xlabel("$q$ of the inputs", fontsize=10)
    ax.set_ylabel(r"$\mathcal{Q}_f(q)$", fontsize=10)
    finish(ax, _mark_handles(ax), made, says=plot_claims.q_maps(q, drawn, ones))
    return ax


Curve = Callable[[Array], Array]


def _curves(maps: Any, labels: Sequence[str] | None, *arguments: Any) -> list[tuple[str, Curve, Any]]:
    """(label, curve, map) per line; the map is None for one output of several, whose fixed points it cannot give."""
    curves: list[tuple[str, Curve, Any]] = []
    for label, given in _named(maps, labels, "map"):
        probe = given(np.array([0.5]), *arguments)
        if not isinstance(probe, Mapping):
            curves.append((label, _curve(given, None, arguments, label), given))
            continue
        for output in probe:
            curves.append((f"{label}: {output}" if label else str(output), _curve(given, output, arguments, label), None))
    return curves


def _curve(given: Any, output: Any, arguments: tuple[Any, ...], label: str) -> Curve:
    def curve(x: Array) -> Array:
        found = given(x, *arguments)
        try:
            values = np.asarray(found if output is None else found[output], dtype=float)
            return np.broadcast_to(values, x.shape)
        except (TypeError, ValueError, KeyError):
            raise KcalcError(f"the map {label or given!r} must return an array of shape {x.shape}, got {str(found)[:60]}") from None

    return curve


def _named(given: Any, labels: Sequence[str] | None, what: str) -> list[tuple[str, Any]]:
    """(label, object) pairs from one callable, several, or a mapping."""
    if isinstance(given, Mapping):
        pairs = [(str(label), one) for label, one in given.items()]
    elif callable(given):
        pairs = [(str(getattr(given, "name", "")), given)]
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
        pairs = [(str(getattr(one, "name", f"{what} {i}")), one) for i, one in enumerate(given, 1)]
    else:
        raise KcalcError(f"expected a {what}, several, or {{label: {what}}}, got {given!r}")
    for _, one in pairs:
        if not callable(one):
            raise KcalcError(f"expected a {what} (a callable on arrays), got {one!r}")
    if not pairs:
        raise KcalcError(f"there is no {what} to draw")
    if labels is None:
        return pairs
    names = [labels] if isinstance(labels, str) else [str(label) for label in labels]
    if len(names) != len(pairs):
        raise KcalcError(f"{len(names)} labels for {len(pairs)} {what}s; give one each")
    return [(name, one) for name, (_, one) in zip(names, pairs, strict=True)]


def _fixed_points(curve: Curve, given: Any, q1: Any, q2: Any) -> list[tuple[float, bool | None]]:
    """(value, stable) of the fixed points of a C map."""
    if given is not None and hasattr(given, "fixed_points") and (q2 is None or q1 is q2 or (np.isscalar(q1) and q1 == q2)):
        return [(float(point.value), point.stable) for point in given.fixed_points(q=q1)]

    def excess(theta: Array) -> Array:
        c = np.cos(np.atleast_1d(theta))
        return (curve(c) - c).reshape(np.shape(theta))

    grid = np.linspace(np.pi, 0.0, 2001)[1:-1]
    if np.mean(np.abs(excess(grid)) < 1e-9) > 0.5:  # the identity: every point is fixed
        return []
    found = [float(np.cos(theta)) for theta in sign_changes(excess, grid, tolerance=1e-13)]
    found += [end for end in (-1.0, 1.0) if abs(float(excess(np.arccos(end)))) < 1e-9]
    return [(value, _attracts(curve, value)) for value in sorted(found)]


def _attracts(curve: Curve, c: float) -> bool | None:
    """Whether a difference quotient of the curve at a fixed point is below 1 in size; None within a percent of 1."""
    step = 1e-7 if abs(c) > 1 - 1e-6 else 1e-5
    low, high = max(c - step, -1.0), min(c + step, 1.0)
    slope = abs(float(np.diff(curve(np.array([low, high])))[0]) / (high - low))
    return None if abs(slope - 1) < 0.01 else slope < 1


MARKS: dict[str, dict[str, Any]] = {
    "attracting": {"fillstyle": "full"},
    "repelling": {"fillstyle": "full", "markerfacecolor": "white"},
    "undecided": {"fillstyle": "left", "markerfacecoloralt": "white"},
}


def _identity(ax: Axes, low: float, high: float) -> None:
    if not any(line.get_gid() == "identity" for line in ax.lines):
        ax.plot([low, high], [low, high], color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1, gid="identity")


def _draw_curve(ax: Axes, x: Array, y: Array, label: str, look: tuple[str, Any] | None = None) -> str:
    """Draw a curve in the given look or the next colour (and, after all colours, style) of the Axes; returns the colour."""
    index = sum(line.get_gid() == "map" for line in ax.lines)
    color, style = look or (PALETTE[index % len(PALETTE)], STYLES[index // len(PALETTE) % len(STYLES)])
    ax.plot(x, y, color=color, linestyle=style, linewidth=1.5, label=label, zorder=3, gid="map")
    return color


def _mark(ax: Axes, value: float, stable: bool | None, color: str) -> None:
    """A fixed point on the diagonal; earlier ones at the same place are seen inside it."""
    kind = "undecided" if stable is None else "attracting" if stable else "repelling"
    earlier = [line for line in ax.lines if str(line.get_gid()).startswith("fixed point")]
    inside = sum(abs(float(np.asarray(line.get_xdata())[0]) - value) < 0.02 * max(1, abs(value)) for line in earlier)
    ax.plot(
        [value], [value], marker="o", linestyle="none", color=color, markersize=5.0 + 2.8 * min(inside, 4), markeredgewidth=1.3,
        zorder=6 - 0.01 * inside, clip_on=False, gid=f"fixed point, {kind}", label="_", **MARKS[kind],
    )  # fmt: skip


def _mark_handles(ax: Axes) -> list[dict[str, Any]]:
    """What the legend says of the marks that were drawn."""
    look = {"marker": "o", "linestyle": "none", "color": GREY, "markersize": 5, "markeredgewidth": 1.1}
    drawn = {str(line.get_gid()) for line in ax.lines}
    names = {"undecided": r"slope $\pm 1$"}
    return [{**look, **style, "label": names.get(kind, kind)} for kind, style in MARKS.items() if f"fixed point, {kind}" in drawn]


# -- activations and shaping -------------------------------------------------------------------------------------------


def activations(before: Any, after: Any = None, ax: Axes | None = None) -> Axes:
    """Draw activations over [-4, 4] (wider where kinks lie outside), dashed before and solid after transformation.

    ``before`` and ``after`` are callables, sequences or {name: callable}; the two go together in order.

    Returns: the Axes. Raises: KcalcError if their numbers differ or one cannot be called.
    """
    old = _named(before, None, "activation")
    new = [] if after is None else _named(after, None, "activation")
    if new and len(new) != len(old):
        raise KcalcError(f"{len(old)} activations before and {len(new)} after; they go together in order")
    made = ax is None
    ax = axes(ax, 3.6, 3.0)
    kinks = [abs(float(k)) for _, phi in old + new for k in getattr(phi, "kinks", ())]
    span = min(max([4.0, *(1.25 * k for k in kinks)]), 40.0)
    x = np.linspace(-span, span, 801)
    ax.axhline(0, color=LIGHT, linewidth=0.8, zorder=0, gid="zero")
    ax.axvline(0, color=LIGHT, linewidth=0.8, zorder=0, gid="zero")
    extra: list[tuple[str, Any]] = [("before", STYLES[1]), ("after", "-")] if len(new) > 1 else []
    for index, (name, phi) in enumerate(old):
        color, style = PALETTE[index % len(PALETTE)], STYLES[1] if new else "-"
        label = "_before" if extra else name or r"$\phi$"
        ax.plot(x, _curve(phi, None, (), name)(x), color=color, linestyle=style, linewidth=1.1 if new else 1.5, label=label)
    for index, (name, phi) in enumerate(new):
        own = isinstance(after, Mapping) and name != old[index][0]
        label = old[index][0] if extra else name if own else f"{old[index][0] or chr(966)}, transformed"
        ax.plot(x, _curve(phi, None, (), name)(x), color=PALETTE[index % len(PALETTE)], linewidth=1.6, label=label)
    ax.set_xlim(-span, span)
    ax.set_xlabel("$x$", fontsize=10)
    ax.set_ylabel(r"$\phi(x)$", fontsize=10)
    drawn = [{name: _curve(phi, None, (), name)(x) for name, phi in some} for some in (old, new)]
    handles = [{"label": label, "color": GREY, "linestyle": style} for label, style in extra]
    finish(ax, handles, made, says=plot_claims.activations(x, *drawn))
    return ax


# -- the look ----------------------------------------------------------------------------------------------------------


def axes(ax: Axes | None, width: float, height: float) -> Axes:
    """``ax`` itself, or the Axes of a new figure of the given size in inches. Raises: KcalcError for something else."""
    if ax is not None:
        if not hasattr(ax, "add_patch"):
            raise KcalcError(f"ax must be a matplotlib Axes or None, got {type(ax).__name__}")
        return ax
    import matplotlib.pyplot as plt

    _, made = plt.subplots(figsize=(width, height), layout="constrained")
    return made


def _whole(value: Any, what: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise KcalcError(f"{what} must be a whole number >= {least}, got {value!r}")
    return value


def plain_ticks(axis: Any, low: float, high: float) -> None:
    """1, 2 and 5 times powers of ten as ordinary numbers on a logarithmic axis of short range; powers of ten as they are on a long one."""
    if not 0 < low < high or high / low > 1e3:
        return
    steps = [m * 10.0**e for e in range(int(np.floor(np.log10(low))) - 1, int(np.ceil(np.log10(high))) + 1) for m in (1, 2, 5)]
    ticks = [tick for tick in steps if low <= tick <= high]
    axis.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def claim(ax: Axes, sentence: str) -> None:
    """A sentence as the title, wrapped to the width of the Axes; a dollar sign in a name is an ordinary one."""
    width = ax.get_window_extent().width / ax.figure.dpi  # inches
    text = sentence if sentence.count("$") % 2 == 0 else sentence.replace("$", r"\$")
    most = max(24, int(16 * width))
    even = max(24, math.ceil(1.12 * len(text) / math.ceil(len(text) / most)))  # lines of about one length
    ax.set_title(textwrap.fill(text, min(most, even)), fontsize=9, gid="claim")


def finish(
    ax: Axes, extra: Sequence[Mapping[str, Any]], widen: bool, legend: bool = True, says: str = "", titled: bool | None = None
) -> None:
    """Thin spines, small ticks, and a legend of the labelled lines and of ``extra`` handles, where it covers nothing.

    ``widen``: whether the figure is ours: then ``says`` is its title. On Axes that were given, titles are left to the one who gave them,
    unless ``titled``.
    """
    from matplotlib.lines import Line2D

    if says and (widen if titled is None else titled):
        claim(ax, says)
    for spine in ax.spines.values():
        spine.set_linewidth(0.6)
    ax.tick_params(labelsize=8, width=0.6, length=3)
    lines: list[Any] = [line for line in ax.lines if line.get_label() and not str(line.get_label()).startswith("_")]
    if legend and (len(lines) > 1 or extra):
        _legend(ax, [*lines, *(Line2D([], [], **look) for look in extra)], widen)


def _legend(ax: Axes, handles: Sequence[Any], widen: bool) -> None:
    """A legend in the first corner where it covers no curve, else to the right (the figure made wider if ``widen``)."""
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
    samples = [_dense(line.get_transform().transform(points)) for line, points in drawn if len(points)]
    for corner in ("lower right", "upper left", "upper right", "lower left"):
        box = ax.legend(loc=corner, borderaxespad=0.6, **look).get_window_extent()
        if not any(((p >= (box.x0 - 4, box.y0 - 4)) & (p <= (box.x1 + 4, box.y1 + 4))).all(axis=1).any() for p in samples):
            return
    box = ax.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0.0, **look).get_window_extent()
    if widen:
        width, height = figure.get_size_inches()
        figure.set_size_inches(width + box.width / figure.dpi + 0.1, height)


def _dense(points: Array) -> Array:
    """Points a pixel or two apart along a line on the screen."""
    steps = np.linspace(0, 1, 33)[:, None, None]
    return (points[:-1] + steps * np.diff(points, axis=0)).reshape(-1, 2) if len(points) > 1 else points


# -- files -------------------------------------------------------------------------------------------------------------


def save(target: Any, path: str | os.PathLike[str]) -> Path:
    """Write the figure of an Axes (or a Figure, or an array of Axes) as PNG, PDF or SVG, by suffix.

    The file appears whole or not at all: it is written beside its place and then moved there. Returns: the path.
    Raises: KcalcError for another suffix, a missing folder, or one that cannot be written.
    """
    figure = _figure(target)
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise KcalcError(f"a plot is written as {', '.join(SUFFIXES)}, not {path.suffix or 'a name without suffix'!r}: {path}")
    if not path.parent.is_dir():
        raise KcalcError(f"the folder {path.parent} does not exist; make it first")
    if path.is_dir():
        raise KcalcError(f"{path} is a folder, not a file to write")
    kind = path.suffix.lower()[1:]
    timeless = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(6)}{path.suffix}")
    try:
        figure.savefig(temporary, format=kind, dpi=200, bbox_inches="tight", metadata=timeless)
        os.replace(temporary, path)
    except OSError as error:
        raise KcalcError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return path


def _figure(target: Any) -> Figure:
    if isinstance(target, np.ndarray | list | tuple) and len(target):
        return _figure(np.asarray(target, dtype=object).ravel()[0])
    figure: Any = target if hasattr(target, "savefig") else getattr(target, "figure", None)
    while figure is not None and not hasattr(figure, "savefig"):  # a subfigure: up to the figure it is part of
        figure = getattr(figure, "figure", None)
    if figure is None:
        raise KcalcError(f"expected an Axes or a Figure to save, got {type(target).__name__}")
    return figure
