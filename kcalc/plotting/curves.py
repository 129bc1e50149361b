"""Plot C and Q maps, and activations before and after shaping, on a given Axes.

Every function takes ``ax=None`` (which makes a new figure) and returns the Axes; none displays
anything or changes global settings. Arguments are duck-typed: maps and activations are callables on
NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..foundation.errors import KcalcError, glimpse
from ..foundation.plain_arguments import items, mapping, text, whole
from ..foundation.printing import HEURISTIC, marked
from ..foundation.real_numbers import one_q, q_pair
from ..foundation.rootfinding import sign_changes
from . import axis_names
from .drawing import network
from .frame import GREY, LIGHT, PALETTE, STYLES, axes, labelled, line_look, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["activations", "c_maps", "network", "q_maps", "save"]

Array = np.ndarray
Curve = Callable[[Array], Array]
MOST_POINTS = 10**6
TOKEN_MAPS = ("Token map", axis_names.RHO, axis_names.TOKEN_MAP)


# -- maps ------------------------------------------------------------------------------------------


def c_maps(
    maps: Any,
    ax: Axes | None = None,
    labels: Sequence[str] | None = None,
    q1: Any = None,
    q2: Any = None,
    points: int = 401,
    looks: Mapping[str, tuple[str, Any]] | None = None,
    *,
    q: Any = None,
    **line: Any,
) -> Axes:
    """Draw C maps over [-1, 1] with the identity and their fixed points.

    ``maps`` is a map, a sequence of maps, or a dictionary {label: map}. Each is called as ``C(c,
    q1, q2)`` with an array and returns an array, or {output: array} (one line per output). ``q`` is
    the q value of both inputs (default 1); use ``q1`` and ``q2`` if they differ. The ``points`` are
    evenly spaced in the angle arccos c, so they are dense near c = +-1. Markers of fixed points are
    filled if the fixed point is attracting, open if it is repelling, and half-filled if the slope
    is +-1. Fixed points come from the map's ``fixed_points`` method. For maps without this method,
    they are found from sign changes on a fine grid. Fixed points shared by several maps are grey.
    ``looks`` sets the colour and style of lines, {label: (colour, style)}. ``line`` contains
    keywords for matplotlib lines, such as ``label``, ``color``, ``ls``. Heuristic maps are marked
    in the legend.

    Returns: the Axes. Raises: KcalcError if an argument is not a map, or if a map returns an array
    of the wrong shape.
    """
    made = ax is None
    ax = axes(ax, 3.6, 3.6)
    q1, q2 = q_pair(q1, q2, q)
    c = np.cos(np.linspace(np.pi, 0.0, whole(points, "points", 2, MOST_POINTS)))
    styles = {} if looks is None else mapping(looks, "looks")
    labels, look = _look_of_lines(line, labels)
    found = _curves(maps, labels, q1, q2)
    _draw_maps(ax, c, found, partial(_fixed_points, q1=q1, q2=q2), look, styles)
    ticks = [-1, -0.5, 0, 0.5, 1]
    ax.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), xticks=ticks, yticks=ticks, aspect="equal")
    of_tokens = all(getattr(given, "letter", "C") == "R" for _, _, given in found)
    kind, x, y = TOKEN_MAPS if of_tokens else ("C map", axis_names.C, axis_names.C_MAP)
    return labelled(ax, made, x, y, kind if len(found) == 1 else f"{kind}s", _mark_handles(ax))


def q_maps(
    maps: Any,
    ax: Axes | None = None,
    labels: Sequence[str] | None = None,
    low: float = 1e-2,
    high: float = 1e2,
    points: int = 201,
    **line: Any,
) -> Axes:
    """Draw Q maps over q in [low, high] on logarithmic axes.

    The identity and the fixed points of the maps are drawn too.

    ``maps`` is a map, a sequence of maps, or a dictionary {label: map}. Each is called as ``Q(q)``
    with an array and returns an array, or {output: array}. Fixed points are marked for maps with a
    method ``fixed_points(low, high)``. ``line`` contains keywords for matplotlib lines.
    """
    made = ax is None
    ax = axes(ax, 3.6, 3.6)
    low, high = one_q(low, "low"), one_q(high, "high")
    if not low < high:
        raise KcalcError(f"a Q map needs 0 < low < high, got low = {low:g} and high = {high:g}")
    q = np.geomspace(low, high, whole(points, "points", 2, MOST_POINTS))
    labels, look = _look_of_lines(line, labels)
    found = _curves(maps, labels)
    _draw_maps(ax, q, found, lambda _, given: _points_between(given, low, high), look)
    ax.set(xscale="log", yscale="log", xlim=(low, high))
    says = "Q map" if len(found) == 1 else "Q maps"
    return labelled(ax, made, axis_names.Q, axis_names.Q_MAP, says, _mark_handles(ax))


def _points_between(given: Any, low: float, high: float) -> list[tuple[float, bool | None]]:
    """Return (value, stable) for each fixed point of a Q map that has a ``fixed_points`` method."""
    points = given.fixed_points(low, high) if hasattr(given, "fixed_points") else ()
    return [(point.value, point.stable) for point in points]


def _draw_maps(
    ax: Axes,
    x: Array,
    found: Sequence[tuple[str, Curve, Any]],
    points: Callable[[Curve, Any], Iterable[tuple[float, bool | None]]],
    look: Mapping[str, Any],
    styles: Mapping[str, Any] | None = None,
) -> None:
    """Draw maps over x with the identity and their fixed points."""
    if not any(line.get_gid() == "identity" for line in ax.lines):
        ends, dashes = x[[0, -1]], (0, (4, 3))
        usual = {"color": GREY, "linewidth": 0.8, "linestyle": dashes, "zorder": 1}
        ax.plot(ends, ends, **usual, gid="identity", label="identity")
    for label, curve, given in found:
        index = sum(line.get_gid() == "map" for line in ax.lines)
        usual = {
            "color": PALETTE[index % len(PALETTE)],
            "linestyle": STYLES[index // len(PALETTE) % len(STYLES)],
            "linewidth": 1.5,
            "zorder": 3,
            "label": label,
            "gid": "map",
        }
        at = np.maximum(x, getattr(given, "least", -1.0))
        own = (styles or {}).get(label) or (styles or {}).get(label.removesuffix(HEURISTIC))
        (line,) = ax.plot(at, curve(at), **{**usual, **_look(own), **look})
        for value, stable in points(curve, given):
            _mark(ax, value, stable, str(line.get_color()))


def _curves(
    maps: Any, labels: Sequence[str] | None, *arguments: Any
) -> list[tuple[str, Curve, Any]]:
    """Return (label, curve, map) for each line.

    The map is None if the curve is one of several outputs, because a map cannot compute the fixed
    points of a single output.
    """
    curves: list[tuple[str, Curve, Any]] = []
    for label, given in _named(maps, labels, "map"):
        label = marked(label, given)
        probe = given(np.array([0.5]), *arguments)
        if not isinstance(probe, Mapping):
            curves.append((label, _curve(given, None, arguments, label), given))
            continue
        for output in probe:
            curves.append(
                (
                    f"{label}: {output}" if label else str(output),
                    _curve(given, output, arguments, label),
                    None,
                )
            )
    return curves


def _curve(given: Any, output: Any, arguments: tuple[Any, ...], label: str) -> Curve:
    def curve(x: Array) -> Array:
        found = given(x, *arguments)
        try:
            values = np.asarray(found if output is None else found[output], dtype=float)
            return np.broadcast_to(values, x.shape)
        except (TypeError, ValueError, KeyError):
            raise KcalcError(
                f"the map {label or given!r} must return an array of shape {x.shape}, got "
                f"{str(found)[:60]}"
            ) from None

    return curve


def _named(given: Any, labels: Sequence[str] | None, what: str) -> list[tuple[str, Any]]:
    """Return (label, object) pairs from one callable, several callables or a mapping."""
    if isinstance(given, Mapping):
        pairs = [(str(label), one) for label, one in given.items()]
    elif callable(given):
        pairs = [(str(getattr(given, "name", "")), given)]
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
        pairs = [(str(getattr(one, "name", f"{what} {i}")), one) for i, one in enumerate(given, 1)]
    else:
        raise KcalcError(
            f"expected a {what}, a sequence of them, or {{label: {what}}}, got {glimpse(given)}"
        )
    for _, one in pairs:
        if not callable(one):
            raise KcalcError(f"expected a {what} (a callable on arrays), got {glimpse(one)}")
    if not pairs:
        raise KcalcError(f"there is no {what} to draw")
    if labels is None:
        return pairs
    names = (
        [labels]
        if isinstance(labels, str)
        else [text(label, "a label", empty=True) for label in items(labels, "labels")]
    )
    if len(names) != len(pairs):
        raise KcalcError(
            f"got {len(names)} labels for {len(pairs)} {what}s; pass one label for each"
        )
    return [(name, one) for name, (_, one) in zip(names, pairs, strict=True)]


def _fixed_points(curve: Curve, given: Any, q1: Any, q2: Any) -> list[tuple[float, bool | None]]:
    """Return (value, stable) for each fixed point of a C map."""
    if (
        given is not None
        and hasattr(given, "fixed_points")
        and (q2 is None or q1 is q2 or (np.isscalar(q1) and q1 == q2))
    ):
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
    """Return whether the absolute slope of a curve at a fixed point is less than 1.

    The slope is a difference quotient. If it is within one percent of +-1, the result is None.
    """
    step = 1e-7 if abs(c) > 1 - 1e-6 else 1e-5
    low, high = max(c - step, -1.0), min(c + step, 1.0)
    slope = abs(float(np.diff(curve(np.array([low, high])))[0]) / (high - low))
    return None if abs(slope - 1) < 0.01 else slope < 1


MARK: dict[str, Any] = {
    "marker": "o",
    "linestyle": "none",
    "color": GREY,
    "markersize": 5,
    "markeredgewidth": 1.1,
}
MARKS: dict[str, dict[str, Any]] = {
    "attracting": {"fillstyle": "full"},
    "repelling": {"fillstyle": "full", "markerfacecolor": "white"},
    "undecided": {"fillstyle": "left", "markerfacecoloralt": "white"},
}


def _look_of_lines(
    line: Mapping[str, Any], labels: Sequence[str] | None
) -> tuple[Sequence[str] | None, dict[str, Any]]:
    """Return (labels, keywords for lines). The keyword ``label`` may be one label or several."""
    look = line_look(line)
    label = look.pop("label", None)
    if label is not None and labels is not None:
        raise KcalcError("pass label= or labels=, not both")
    return (labels if label is None else label), look


def _look(given: Any) -> dict[str, Any]:
    """Return the line keywords for a colour and a line style.

    Raises: KcalcError if matplotlib does not know the colour or the style.
    """
    if given is None:
        return {}
    try:
        color, style = given
        return line_look({"color": color, "linestyle": style})
    except Exception:  # unpacking a user's object may raise anything
        raise KcalcError(
            f"looks must contain (colour, style) pairs such as ('red', '-'), got {glimpse(given)}"
        ) from None


def _mark(ax: Axes, value: float, stable: bool | None, color: str) -> None:
    """Mark a fixed point on the diagonal, with one grey mark for all maps that share it.

    If maps with different kinds of stability share the point, their marks are drawn side by side.
    """
    from matplotlib.transforms import offset_copy

    kind = "undecided" if stable is None else "attracting" if stable else "repelling"
    marks = [line for line in ax.lines if str(line.get_gid()).startswith("fixed point")]
    here = [
        line
        for line in marks
        if abs(float(np.asarray(line.get_xdata())[0]) - value) < 0.02 * max(1, abs(value))
    ]
    same = next((line for line in here if line.get_gid() == f"fixed point, {kind}"), None)
    if same is not None:
        if same.get_color() != color:
            same.set(color=GREY, **MARKS[kind])
        return
    beside = 7.0 * len(here)  # points, across the diagonal
    figure: Any = ax.get_figure()
    place = offset_copy(ax.transData, figure, beside, -beside, units="points")
    look = {**MARK, "color": color, "markeredgewidth": 1.3, "transform": place, "label": "_"}
    ax.plot(
        [value], [value], zorder=6, clip_on=False, gid=f"fixed point, {kind}", **look, **MARKS[kind]
    )


def _mark_handles(ax: Axes) -> list[dict[str, Any]]:
    """Return the legend entries for the drawn marks."""
    drawn = {str(line.get_gid()) for line in ax.lines}
    return [
        {**MARK, **style, "label": r"slope $\pm 1$" if kind == "undecided" else kind}
        for kind, style in MARKS.items()
        if f"fixed point, {kind}" in drawn
    ]


# -- activations and shaping -----------------------------------------------------------------------


def activations(before: Any, after: Any = None, ax: Axes | None = None) -> Axes:
    """Draw activations before and after a transformation, over [-4, 4].

    Lines are dashed for activations before the transformation and solid for activations after it.
    The interval is widened to include all kinks.

    ``before`` and ``after`` are callables, sequences of callables or {name: callable}. They are
    paired in order.

    Returns: the Axes. Raises: KcalcError if they differ in number or an item is not callable.
    """
    old = _named(before, None, "activation")
    new = [] if after is None else _named(after, None, "activation")
    if new and len(new) != len(old):
        raise KcalcError(
            f"there are {len(old)} activations before and {len(new)} after, but they are paired in "
            "order; pass the same number of each"
        )
    made = ax is None
    ax = axes(ax, 3.6, 3.0)
    kinks = [abs(float(k)) for _, phi in old + new for k in getattr(phi, "kinks", ())]
    span = min(max([4.0, *(1.25 * k for k in kinks)]), 40.0)
    x = np.linspace(-span, span, 801)
    ax.axhline(0, color=LIGHT, linewidth=0.8, zorder=0, gid="zero")
    ax.axvline(0, color=LIGHT, linewidth=0.8, zorder=0, gid="zero")
    extra: list[tuple[str, Any]] = [("before", STYLES[1]), ("after", "-")] if len(new) > 1 else []
    for k, phis in enumerate((old, new)):
        for index, (name, phi) in enumerate(phis):
            first = old[index][0]
            own = isinstance(after, Mapping) and name != first
            label = name or r"$\phi$"
            if k:
                label = name if own else f"{first or chr(966)}, transformed"
            if extra:
                label = first if k else "_before"
            ax.plot(
                x,
                _curve(phi, None, (), name)(x),
                color=PALETTE[index % len(PALETTE)],
                linestyle=STYLES[1] if new and not k else "-",
                linewidth=1.6 if k else 1.1 if new else 1.5,
                label=label,
            )
    ax.set_xlim(-span, span)
    handles = [{"label": label, "color": GREY, "linestyle": style} for label, style in extra]
    says = "Activation" if len(old) == 1 else "Activations"
    return labelled(ax, made, axis_names.X, axis_names.PHI, says, handles)
