"""The phase diagram of a deep plain network: ordered, where inputs become alike, and chaotic, where they part."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..activations import Activation
from ..activations import activation as resolve
from ..arguments import real_array
from ..errors import KcalcError
from ..expectations.quadrature import Array
from ..maps import Assumption
from ..printing import Shown, plain, shown
from .moments import settled
from .search import check_shapeable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST_Q, LARGEST_Q = 1e-9, 1e3
MOST_STEPS = 4000
KNOT = 0.15  # between values of log q at which C maps are tabulated
BISECTIONS = 48
ROUNDED = 1e-12


@dataclass(frozen=True)
class PhaseDiagram(Shown):
    """What a deep plain network does over a grid of (sigma_w, sigma_b): arrays of shape (len(sigma_b), len(sigma_w)).

    q: the attracting fixed point from q = 1 (nan where q grows or vanishes).  chi: chi_1 there, < 1 ordered, > 1 chaotic.
    c: the c value that pre-activations of different inputs tend to: 1 in the ordered phase, below 1 in the chaotic one.
    rate: chi at c*, the slope of the c map there: chi_1 in the ordered phase.
    depth: xi_c = -1/log rate, the layers over which |c - c*| shrinks by a factor e. [Schoenholz et al. 2017, arXiv:1611.01232, eq. 10]
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
        """What the diagram takes for granted."""
        text = "infinite width, independent Gaussian weights and biases; q from 1, tabulated in log q to about six digits"
        return (Assumption("network", text, "convention"),)

    def to_dict(self) -> dict[str, Any]:
        """The grid and the arrays as nested lists; None where a value is not finite."""
        names = ("sigma_w", "sigma_b", "q", "chi", "c", "rate", "depth")
        return {"activation": self.activation.name, **{name: plain(getattr(self, name)) for name in names}}

    def _rows(self) -> list[tuple[str, str]]:
        deep = self.depth[np.isfinite(self.depth)]
        rows = [
            ("activation", self.activation.name), ("sigma_w", f"{self.sigma_w[0]:g} ... {self.sigma_w[-1]:g}"),
            ("sigma_b", f"{self.sigma_b[0]:g} ... {self.sigma_b[-1]:g}"), ("points", str(self.q.size)),
            ("ordered", str(int(np.sum(self.chi < 1)))), ("chaotic", str(int(np.sum(self.chi > 1)))),
            ("q without fixed point", str(int(np.isnan(self.q).sum()))),
            ("largest depth scale (layers)", shown(deep.max() if deep.size else None)),
        ]  # fmt: skip
        return [("", "value"), *rows]

    def __repr__(self) -> str:
        return f"PhaseDiagram({self.activation.name}, {len(self.sigma_b)} x {len(self.sigma_w)} points)"

    @property
    def depth(self) -> Array:
        """xi_c = -1/log chi(c*)."""
        with np.errstate(all="ignore"):
            return -1 / np.log(np.minimum(self.rate, 1.0))

    @property
    def ordered(self) -> Any:
        """Where chi_1 < 1."""
        return self.chi < 1

    def plot(self, ax: Axes | None = None) -> Axes:
        """log10 of the depth scale in colour, the edge of chaos as a line, on the given Axes."""
        from ..plotting.frame import axes

        ax = axes(ax, 4.6, 3.6)
        level = np.log10(np.clip(self.depth, 0.1, 1e4))
        top = float(np.nanpercentile(level, 97)) if np.isfinite(level).any() else 4.0  # single cells next to the edge would take the scale
        mesh = ax.pcolormesh(self.sigma_w, self.sigma_b, level, shading="gouraud", cmap="viridis", vmax=top)
        bar = ax.figure.colorbar(mesh, ax=ax, extend="max")
        bar.set_label("log10 of the depth scale (layers)")
        finite = np.where(np.isfinite(self.chi), self.chi, 1.0)
        if finite.min() < 1 < finite.max():
            ax.contour(self.sigma_w, self.sigma_b, self.chi, levels=[1.0], colors="white")
        sides = "ordered left, chaotic right" if finite.max() > 1 else "ordered where coloured"
        if np.isnan(level).any():
            sides += "; white: q has no fixed point"
        ax.set(xlabel="sigma_w", ylabel="sigma_b")
        ax.set_title(f"{self.activation.name}: {sides}", fontsize=10)
        return ax


def phase_diagram(activation: Any, sigma_w: Any = None, sigma_b: Any = None) -> PhaseDiagram:
    """The phases of a deep plain network, to about six digits: Q and E phi'^2 are interpolated in log q.

    ``sigma_w``, ``sigma_b``: increasing arrays (default .5 to 3, and 0 to 1). Raises: KcalcError for other arrays.
    """
    phi = resolve(activation)
    check_shapeable(phi)
    weights = _axis(np.linspace(0.5, 3, 51) if sigma_w is None else sigma_w, "sigma_w")
    biases = _axis(np.linspace(0, 1, 41) if sigma_b is None else sigma_b, "sigma_b")
    level, slope, top = _tables(phi)
    w, b = np.meshgrid(weights**2, biases**2)
    q = np.ones_like(w)
    low, high = LEAST_Q, top
    with np.errstate(all="ignore"):
        for _ in range(MOST_STEPS):
            after = np.clip(w * level(q) + b, low / 10, high * 10)
            if np.abs(after - q).max() < 1e-12:
                break
            q = after
    outside = (q <= low) | (q >= high)
    chi = w * slope(np.clip(q, low, high))
    grows = outside & (q >= high)
    chi = np.where(grows, np.nan, chi)
    c, rate = np.where(grows, np.nan, 1.0), chi.copy()
    chaotic = ~outside & (chi > 1)
    if chaotic.any():
        c[chaotic], rate[chaotic] = _limits(phi, q[chaotic], (w * level(np.clip(q, low, high)) / q)[chaotic])
    return PhaseDiagram(phi, weights, biases, np.where(outside, np.nan, q), chi, c, rate)


def _axis(values: Any, name: str) -> Array:
    array = real_array(values, name)
    if array.ndim != 1 or array.size < 2 or np.any(np.diff(array) <= 0) or array[0] < 0:
        raise KcalcError(f"{name} must be an increasing array of at least two numbers >= 0")
    return array


def _tables(phi: Activation) -> tuple[Callable[[Array], Array], Callable[[Array], Array], float]:
    """(Q, E phi'^2) as functions of q by splines in log q, and the largest q where they are known: what goes beyond grows."""
    from scipy.interpolate import CubicSpline

    logs, rows = [], []
    for log_q in np.linspace(math.log(LEAST_Q), math.log(LARGEST_Q), 260):
        try:
            m = settled(phi, log_q / 2, 0.0)
        except (KcalcError, OverflowError):
            continue  # too large a q, or a point at which two rules for a kinked activation differ in the last digit
        q = math.exp(log_q)
        logs.append(float(log_q))
        rows.append((m.variance + m.mean**2, m.gradient / q))
    if len(logs) < 4:
        raise KcalcError(f"the moments of {phi.name} stay finite at too few q values for a phase diagram")
    splines = [CubicSpline(np.array(logs), np.log(np.maximum(column, 1e-300))) for column in np.array(rows).T]
    ends = math.exp(logs[0]), math.exp(logs[-1])
    level, slope = (lambda q, spline=spline: np.exp(spline(np.log(np.clip(q, *ends)))) for spline in splines)
    return level, slope, ends[1]


def _limits(phi: Activation, q: Array, share: Array) -> tuple[Array, Array]:
    """(c*, slope there) of c -> 1 - share (1 - C(c, q)), which has slope > 1 at c = 1; share = sigma_w^2 Q(q)/q <= 1.

    With 1 - c = 2 t^2 the ratio R = (1 - C)/(1 - c), C'(1) at t = 0, is smooth in t even for kinked activations, and falls; share R = 1.
    """
    from scipy.interpolate import RectBivariateSpline

    logs = np.log(q)
    ends = logs.min() - 0.05, logs.max() + 0.05
    knots = np.linspace(*ends, max(6, math.ceil((ends[1] - ends[0]) / KNOT) + 1))
    t = np.linspace(0.0, math.sqrt(0.5), 49)
    c = 1 - 2 * t[1:] ** 2
    rows = []
    for log_q in knots:
        level = math.exp(log_q)
        ratio = (1 - np.asarray(phi.c_map(c, level))) / (1 - c)
        rows.append([float(phi.c_map.derivative(1)(1.0, level)), *ratio])
    ratio = RectBivariateSpline(knots, t, np.array(rows), kx=min(5, len(knots) - 1), ky=5)
    low, high = np.zeros_like(q), np.full_like(q, t[-1])
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = share * ratio.ev(logs, middle) > 1
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    slope = share * (ratio.ev(logs, low) + low / 2 * ratio.ev(logs, low, dy=1))
    c = 1 - 2 * low**2
    return np.where(c < ROUNDED, 0.0, c), slope
