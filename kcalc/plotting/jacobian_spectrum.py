"""Plot the singular value density of a Jacobian, with measured values.

See :mod:`kcalc.plotting` for the conventions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..foundation.errors import KcalcError, glimpse
from ..foundation.real_numbers import real_array
from . import axis_names
from .frame import GREY, drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray
POINTS, BINS = 121, 50
CUT = 0.04  # the axis ignores a density that diverges at 0 below this fraction of the largest s
FAR = 3.5  # an unbounded distribution is cut off at this multiple of its root mean square


def density_of_s(law: Any, measured: Any = None, ax: Axes | None = None, **line: Any) -> Axes:
    """Draw the density ``2 s density(s^2)`` of singular values, and atoms as labelled lines.

    If measured singular values are given, their histogram is drawn behind the density. The
    histogram omits zeros, which belong to an atom.

    ``law``: a :class:`kcalc.JacobianSpectrum`. Returns: the Axes.
    """
    low, high = law.to_dict()["smallest"] or 0.0, law.largest()
    if not math.isfinite(high):
        high = FAR * math.sqrt(law.moment(1))
    s = low + (high - low) * (1 - np.cos(np.linspace(0, np.pi, POINTS))) / 2
    s = s[(s > 1e-3 * high) & (s < high)]
    density = 2 * s * law.density(s**2) if s.size else s
    curves: list[Any] = [(s, density, {"label": "limit of wide networks"})]
    found = None if measured is None else _singular(measured)
    top = 1.1 * float(density[s > (low or CUT * high)].max(initial=0.0)) or 1.0
    heights = edges = None
    if found is not None:
        edges = np.linspace(0, max(high, float(found.max())) * 1.02, BINS + 1)
        kept = found[found > 1e-6 * found.max()]
        heights = np.histogram(kept, edges)[0] / found.size / np.diff(edges)
        heights = heights * _share(law)
        top = max(top, 1.1 * min(float(heights.max()), 3 * top))
    for atom in law.atoms:
        place = math.sqrt(atom.position)
        label = {"label": f"atom of mass {atom.mass:.3g}", "linestyle": ":"}
        curves.append(([place, place], [0, top], label))
    names = (axis_names.SINGULAR_VALUE, axis_names.DENSITY)
    limits: dict[str, Any] = {"xlim": (min(0.0, low), None), "ylim": (0, top)}
    says = "Singular values of the Jacobian"
    ax = drawn(ax, [curves], names, says, size=(4.8, 3.2), look=line, **limits)
    if heights is not None:
        ax.stairs(heights, edges, fill=True, color=GREY, alpha=0.35, zorder=0, label="measured")
        ax.legend()
    return ax


def _share(law: Any) -> float:
    """Return the number of singular values, min(n_in, n_out), divided by n_in."""
    start, end = (law.network.features[n] for n in (law.network.inputs[0], law.network.outputs[0]))
    return 1.0 if start is None or end is None else min(1.0, end / start)


def _singular(measured: Any) -> Array:
    """Return measured singular values as an array.

    If a result contains several nodes, the values of the last node are returned.
    """
    found = getattr(measured, "jacobians", measured)
    found = getattr(found, "singular_values", getattr(found, "values", found))
    if isinstance(found, dict):
        found = list(found.values())[-1]
    array = real_array(found, "measured").ravel()
    if array.size == 0 or array.min() < 0 or array.max() == 0:
        raise KcalcError(
            f"measured must be singular values (numbers >= 0, not all of them 0), got "
            f"{glimpse(measured)}"
        )
    return array
