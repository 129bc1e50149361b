"""The phase diagram of a deep plain network: ordered, where inputs become alike, and chaotic, where they part."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..activations import Activation
from ..activations import activation as resolve
from ..errors import KcalcError
from ..quadrature import Array
from .moments import settled
from .search import check_shapeable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST_Q, LARGEST_Q = 1e-9, 1e3
MOST_STEPS = 4000


@dataclass(frozen=True)
class PhaseDiagram:
    """What a deep plain network does over a grid of (sigma_w, sigma_b): arrays of shape (len(sigma_b), len(sigma_w)).

    q: the attracting fixed point from q = 1 (nan where q grows or vanishes).  chi: chi_1 there, < 1 ordered, > 1 chaotic.
    depth: the number of layers over which 1 - c shrinks (ordered) or the distance to 1 grows (chaotic) by a factor e, 1/|log chi_1|.
    """

    activation: Activation
    sigma_w: Array
    sigma_b: Array
    q: Array
    chi: Array

    @property
    def depth(self) -> Array:
        """1/|log chi_1|."""
        with np.errstate(all="ignore"):
            return 1 / np.abs(np.log(self.chi))

    @property
    def ordered(self) -> Any:
        """Where chi_1 < 1."""
        return self.chi < 1

    def plot(self, ax: Axes | None = None) -> Axes:
        """log10 of the depth scale in colour, the edge of chaos as a line, on the given Axes."""
        from matplotlib import pyplot as plt

        ax = ax if ax is not None else plt.subplots(figsize=(4.6, 3.6), layout="constrained")[1]
        mesh = ax.pcolormesh(self.sigma_w, self.sigma_b, np.log10(np.clip(self.depth, 0.1, 1e4)), shading="nearest", cmap="viridis")
        bar = ax.figure.colorbar(mesh, ax=ax)
        bar.set_label("log10 of the depth scale (layers)")
        finite = np.where(np.isfinite(self.chi), self.chi, 1.0)
        if finite.min() < 1 < finite.max():
            ax.contour(self.sigma_w, self.sigma_b, self.chi, levels=[1.0], colors="white")
        ax.set(xlabel="sigma_w", ylabel="sigma_b", title=f"{self.activation.name}: ordered left, chaotic right")
        return ax


def phase_diagram(activation: Any, sigma_w: Any = None, sigma_b: Any = None) -> PhaseDiagram:
    """The phases of a deep plain network, to about six digits: Q and E phi'^2 are interpolated in log q.

    ``sigma_w``, ``sigma_b``: increasing arrays (default .5 to 3, and 0 to 1). Raises: KcalcError for other arrays.
    """
    phi = resolve(activation)
    check_shapeable(phi)
    weights = _axis(np.linspace(0.5, 3, 51) if sigma_w is None else sigma_w, "sigma_w")
    biases = _axis(np.linspace(0, 1, 41) if sigma_b is None else sigma_b, "sigma_b")
    level, slope = _tables(phi)
    w, b = np.meshgrid(weights**2, biases**2)
    q = np.ones_like(w)
    low, high = LEAST_Q, LARGEST_Q
    with np.errstate(all="ignore"):
        for _ in range(MOST_STEPS):
            after = np.clip(w * level(q) + b, low / 10, high * 10)
            if np.abs(after - q).max() < 1e-12:
                break
            q = after
    outside = (q <= low) | (q >= high)
    chi = w * slope(np.clip(q, low, high))
    q = np.where(outside, np.nan, q)
    return PhaseDiagram(phi, weights, biases, q, np.where(outside & (q >= high), np.nan, chi))


def _axis(values: Any, name: str) -> Array:
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or array.size < 2 or not np.all(np.isfinite(array)) or np.any(np.diff(array) <= 0) or array[0] < 0:
        raise KcalcError(f"{name} must be an increasing array of at least two numbers >= 0")
    return array


def _tables(phi: Activation) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """(Q, E phi'^2) as functions of q by splines in log q."""
    from scipy.interpolate import CubicSpline

    logs, rows = [], []
    for log_q in np.linspace(math.log(LEAST_Q), math.log(LARGEST_Q), 260):
        try:
            m = settled(phi, log_q / 2, 0.0)
        except (KcalcError, OverflowError):
            break
        q = math.exp(log_q)
        logs.append(float(log_q))
        rows.append((m.variance + m.mean**2, m.gradient / q))
    splines = [CubicSpline(np.array(logs), np.log(np.maximum(column, 1e-300))) for column in np.array(rows).T]
    top = math.exp(logs[-1])
    return tuple(lambda q, spline=spline: np.exp(spline(np.log(np.clip(q, LEAST_Q, top)))) for spline in splines)  # type: ignore[return-value]
