"""The phase diagram of a deep plain network.

In the ordered phase, inputs become similar; in the chaotic phase, they separate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..activations import Activation
from ..activations import activation as resolve
from ..fields.arguments import real_array
from ..foundation.errors import KcalcError
from ..foundation.guests import DRAWINGS
from ..foundation.printing import Shown, plain, shown, spread
from ..gaussian.expectations.quadrature import Array
from ..gaussian.expectations.rough import slope_square
from ..maps.maps import Assumption
from .choose_branch import check_shapeable
from .q_limits import (
    BISECTIONS,
    GROWS,
    NEUTRAL,
    SETTLED,
    SHRINKS,
    QLimits,
    QRatioTable,
    length_scale,
    q_limits,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KNOT = 0.15  # spacing in log q of the table of C maps
MARGIN = 3  # extra knots beyond the required q values
ROUNDED = 1e-14


@dataclass(frozen=True)
class PhaseDiagram(Shown):
    """Limits of a deep plain network over a grid of (sigma_w, sigma_b).

    Arrays have the shape (len(sigma_b), len(sigma_w)).

    Attributes
    ----------
    activation
        The activation.
    sigma_w
        The values of sigma_w along the x axis.
    sigma_b
        The values of sigma_b along the y axis.
    q
        The fixed point reached from q = 1; nan if q grows, vanishes or does not settle.
    chi
        The slope chi_1 at q: below 1 in the ordered phase and above 1 in the chaotic phase. If q
        vanishes, chi is the limit of the slope; if q grows more slowly than any exponential, chi is
        1; if q grows exponentially, chi is nan.
    c
        The limit of the c value between pre-activations for different inputs: 1 in the ordered
        phase, below 1 in the chaotic phase.
    rate
        The slope of the c map at c*, which is chi_1 in the ordered phase.
    depth
        The depth scale xi_c = -1/log rate, the number of layers over which |c - c*| shrinks by a
        factor of e; infinite if the rate is 1.

    References
    ----------
    [Schoenholz et al. 2017, arXiv:1611.01232, eq. 10]

    """

    activation: Activation
    sigma_w: Array
    sigma_b: Array
    q: Array
    chi: Array
    c: Array
    rate: Array

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of the diagram."""
        text = "infinite width, independent Gaussian weights and biases; q starts from 1"
        return (Assumption("network", text, "convention"),)

    def to_dict(self) -> dict[str, Any]:
        """Return the grid and the arrays as nested lists; values that are not finite become None.

        Returns
        -------
        dict[str, Any]
            Plain values that can be written as JSON.

        """
        names = ("sigma_w", "sigma_b", "q", "chi", "c", "rate", "depth")
        return {
            "activation": self.activation.name,
            **{name: plain(getattr(self, name)) for name in names},
        }

    def _frame(self) -> dict[str, Array]:
        grid = {"sigma_w": self.sigma_w[None, :], "sigma_b": self.sigma_b[:, None]}
        return spread(
            grid | {name: getattr(self, name) for name in ("q", "chi", "c", "rate", "depth")}
        )

    def _rows(self) -> list[tuple[str, str]]:
        deep = self.depth[np.isfinite(self.depth)]
        rows = [
            ("activation", self.activation.name),
            ("sigma_w", f"{self.sigma_w[0]:g} ... {self.sigma_w[-1]:g}"),
            ("sigma_b", f"{self.sigma_b[0]:g} ... {self.sigma_b[-1]:g}"),
            ("points", str(self.q.size)),
            ("ordered", str(int(np.sum(self.chi < 1)))),
            ("chaotic", str(int(np.sum(self.chi > 1)))),
            ("q without a fixed point", str(int(np.isnan(self.q).sum()))),
            ("largest depth scale (layers)", shown(deep.max() if deep.size else None)),
        ]
        return [("", "value"), *rows]

    def __repr__(self) -> str:
        return (
            f"PhaseDiagram({self.activation.name}, {len(self.sigma_b)} x {len(self.sigma_w)} "
            f"points)"
        )

    @property
    def depth(self) -> Array:
        """The depth scale xi_c = -1/log rate."""
        return length_scale(self.rate)

    @property
    def ordered(self) -> NDArray[np.bool_]:
        """Whether chi_1 < 1, at every point."""
        return self.chi < 1

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot log10 of the depth scale in colour, and the edge of chaos as a line.

        Parameters
        ----------
        ax
            The Matplotlib Axes to draw on; None creates new axes.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        return DRAWINGS["PhaseDiagram"](self, ax)


def phase_diagram(activation: Any, sigma_w: Any = None, sigma_b: Any = None) -> PhaseDiagram:
    """Compute the phase diagram of a deep plain network.

    Layers are h -> sigma_w W phi(h) + sigma_b b, starting from q = 1. The limits are the same as in
    :func:`kcalc.depth_limit`.

    q and chi have a relative error of about 1e-12 (for q, 1e-12 divided by |1 - Q'(q)| if the slope
    Q' of its map is near 1). If c and rate differ from 1 and chi, their error is about 1e-7.

    Parameters
    ----------
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    sigma_w, sigma_b
        Increasing arrays; the defaults range from .5 to 3 and from 0 to 1.

    Returns
    -------
    PhaseDiagram
        The limits at every point of the grid.

    Raises
    ------
    KcalcError
        If the arrays are invalid, or the activation is linear or discontinuous.

    """
    phi = resolve(activation)
    check_shapeable(phi)
    weights = axis(np.linspace(0.5, 3, 51) if sigma_w is None else sigma_w, "sigma_w")
    biases = axis(np.linspace(0, 1, 41) if sigma_b is None else sigma_b, "sigma_b")
    table = QRatioTable(lambda q: np.asarray(phi.second_moment(q)), 1.0)
    w, b = (part.ravel() for part in np.meshgrid(weights**2, biases**2))
    found = q_limits(table, w, b)
    chi, c, rate = _phases(phi, table, w, b, found)
    return PhaseDiagram(
        phi, weights, biases, *(part.reshape(len(biases), -1) for part in (found.q, chi, c, rate))
    )


def axis(values: Any, name: str) -> Array:
    """Check an axis of a diagram: increasing numbers >= 0.

    Raises: KcalcError otherwise.
    """
    array = real_array(values, name)
    if array.ndim != 1 or array.size < 2 or np.any(np.diff(array) <= 0) or array[0] < 0:
        raise KcalcError(f"{name} must be an increasing array of at least two numbers >= 0")
    return array


def _phases(
    phi: Activation, table: QRatioTable, w: Array, b: Array, found: QLimits
) -> tuple[Array, Array, Array]:
    """Return (chi, c*, slope of the c map at c*) for every cell.

    Values are nan if q grows exponentially or does not settle.
    """
    chi = np.full(len(w), np.nan)
    settled, vanishing = found.outcome == SETTLED, found.outcome == SHRINKS
    distinct, place = np.unique(found.q[settled], return_inverse=True)
    chi[settled] = w[settled] * np.array([slope_square(phi, float(q)) for q in distinct])[place]
    first, last = table.nodes[[0, -1]]
    limit = w[vanishing] * slope_square(phi, math.exp(first))
    # tolerance for quantities that vanish algebraically
    chi[vanishing] = np.where(np.abs(limit - 1) <= 1e-9, 1.0, limit)
    crawling = (found.outcome == GROWS) & (np.abs(w * np.exp(table.ratio(last)) - 1) <= NEUTRAL)
    # q grows more slowly than any exponential: if layers become linear, chi tends to Q(q)/q
    if crawling.any():
        limit = w[crawling] * slope_square(phi, math.exp(last))
        chi[crawling] = np.where(np.abs(limit - 1) <= 1e-9, 1.0, np.nan)
    c, rate = np.where(np.isnan(chi), np.nan, 1.0), chi.copy()
    chaotic = np.flatnonzero(settled & (chi > 1 + NEUTRAL))
    if chaotic.size:
        c[chaotic], rate[chaotic] = _limits(phi, found.q[chaotic], w[chaotic], b[chaotic])
    return chi, c, rate


def _limits(phi: Activation, q: Array, w: Array, b: Array) -> tuple[Array, Array]:
    """Return (c*, slope at c*) of c maps whose slope at c = 1 exceeds 1.

    The c map is c -> 1 - share (1 - C(c, q)) with share = 1 - sigma_b^2/q.

    With 1 - c = 2 t^2, the ratio R = (1 - C)/(1 - c), which is C'(1) at t = 0, is smooth in t even
    for kinked activations, and decreases. c* solves share R = 1.
    """
    share = 1 - b / q
    size = np.asarray(phi.second_moment(q))
    # share R - 1 at c = 0 is never > 0, and is 0 for odd phi without biases
    at_zero = share * (1 - np.asarray(phi.mean(q)) ** 2 / size) - 1
    c, slope = np.zeros_like(q), w * np.asarray(phi.mean_slope(q)) ** 2
    inner = at_zero < -ROUNDED
    if inner.any():
        c[inner], slope[inner] = _limits_by_table(phi, q[inner], share[inner])
    return c, slope


def _limits_by_table(phi: Activation, q: Array, share: Array) -> tuple[Array, Array]:
    """Return (c*, slope at c*) from splines of R in (log q, t)."""
    from scipy.interpolate import RectBivariateSpline

    logs = np.log(q)
    ends = logs.min() - MARGIN * KNOT, logs.max() + MARGIN * KNOT
    knots = np.linspace(*ends, math.ceil((ends[1] - ends[0]) / KNOT) + 1)
    t = np.linspace(0.0, math.sqrt(0.5), 49)
    rows = []
    for level in np.exp(knots):
        drop = np.asarray(phi.taylor(2 * t[1:] ** 2, level)[0])
        slope = level * slope_square(phi, float(level)) / float(phi.second_moment(level))
        rows.append([slope, *(drop / (2 * t[1:] ** 2))])
    ratio = RectBivariateSpline(knots, t, np.array(rows), kx=5, ky=5)
    low, high = np.zeros_like(q), np.full_like(q, t[-1])
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = share * ratio.ev(logs, middle) > 1
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return 1 - 2 * low**2, share * (ratio.ev(logs, low) + low / 2 * ratio.ev(logs, low, dy=1))
