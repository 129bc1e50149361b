"""A summary of one activation: the function, its Q map, and its C map at several q values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..foundation.errors import KcalcError, glimpse
from ..foundation.real_numbers import floats
from ..foundation.rootfinding import finite_part
from .curves import activations, c_maps, q_maps
from .frame import entitle, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = np.ndarray
Q_VALUES = (0.1, 1.0, 10.0)


def card(phi: Any, ax: Sequence[Any] | None = None, q: Sequence[float] = Q_VALUES) -> Figure:
    """Draw phi, its Q map over [1e-2, 1e2] and its C maps on three Axes.

    ``phi`` is an activation. ``q`` contains up to four positive q values for the C maps. If C does
    not depend on q, a single curve is drawn. ``ax`` contains three Axes; by default, a new figure
    is made. Returns: the figure. Raises: KcalcError for a wrong number of Axes or q values.
    """
    try:
        values = tuple(float(value) for value in np.atleast_1d(floats(q)))
    except (TypeError, ValueError):
        raise KcalcError(f"q must contain one to four positive values, got {glimpse(q)}") from None
    if not 1 <= len(values) <= 4 or not all(value > 0 for value in values):
        raise KcalcError(f"q must contain one to four positive values, got {glimpse(q)}")
    three = panels(ax, 3, 8.6, 2.75)
    activations({phi.name: phi}, ax=three[0])
    _q_panel(phi, three[1])
    _c_panel(phi, three[2], values)
    for panel, title in zip(three, ("Activation", "Q map", "C map"), strict=True):
        entitle(panel, title)
        panel.set_box_aspect(1)
    return three[0].figure


def _q_panel(phi: Any, ax: Any) -> None:
    """Plot Q over the range of q in which it is finite, with its fixed points."""
    q = finite_part(phi.q_map, np.geomspace(1e-2, 1e2, 121))
    q_maps({"Q": phi.q_map}, ax=ax, low=float(q[0]), high=float(q[-1]))
    low, high = ax.get_ylim()
    ax.set(xlim=(1e-2, 1e2), ylim=(max(float(low), 1e-6), min(float(high), 1e6)))


def _c_panel(phi: Any, ax: Any, values: tuple[float, ...]) -> None:
    """Plot C over [-1, 1] at all q values for which it exists.

    If C does not depend on q, a single curve is drawn.
    """
    sizes = [float(q) for q in finite_part(phi.q_map, np.array(sorted(values)))]
    c = np.cos(np.linspace(np.pi, 0.0, 201))
    curves = [np.asarray(phi.c_map(c, q), dtype=float) for q in sizes]
    alike = all(np.allclose(curve, curves[0], rtol=0, atol=1e-12) for curve in curves)
    shown = {"every $q$": sizes[0]} if alike else {f"$q = {q:g}$": q for q in sizes}
    c_maps({label: _AtQ(phi.c_map, q) for label, q in shown.items()}, ax=ax)


@dataclass(frozen=True)
class _AtQ:
    """The local C map at one q value."""

    c_map: Any
    q: float

    def __call__(self, c: Array, *_: Any) -> Array:
        return self.c_map(c, self.q)

    def fixed_points(self, **_: Any) -> Any:
        return self.c_map.fixed_points(self.q)
