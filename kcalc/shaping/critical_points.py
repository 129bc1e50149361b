"""Critical points of chains of identical layers: weights and biases that preserve gradients.

A layer has weights of variance sigma_w^2 / fan_in, biases of variance sigma_b^2 and the activation
phi. Its Q map ``f(q) = sigma_w^2 E phi(sqrt(q) z)^2 + sigma_b^2`` has a fixed point q*. Each layer
multiplies small changes of q, and small distances of cosines from 1, by

    chi_parallel = f'(q*),    chi_perpendicular = sigma_w^2 E phi'(sqrt(q*) z)^2 = C'(1)

On the edge of chaos, chi_perpendicular = 1. At a half-stable point, chi_parallel = 1 as well, so q*
attracts from one side only: with ``a = |f''(q*)| / 2``, ``|q - q*| ~ 1 / (a l)`` at depth l.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ..activations import Activation
from ..activations import activation as resolve
from ..foundation.errors import KcalcError, UnreachableTarget
from ..foundation.plain_arguments import choice
from ..foundation.printing import Shown, plain, shown
from ..foundation.rootfinding import zero_between
from ..maps.maps import Approximable, Assumption
from .choose_branch import check_shapeable
from .eoc import LARGEST_Q, LEAST_Q, edge, variances

KINDS = ("half-stable", "edge")
LAYERS = Assumption(
    "network",
    "a chain of many identical wide layers with independent Gaussian weights and biases",
    "convention",
)
POINTS = 160  # number of points in the search for half-stable points
SEEN = 1e-9  # smaller values of |chi_parallel - 1| are rounding errors
MARGINAL = 1e-10  # tolerance of chi_parallel - 1 at the result


@dataclass(frozen=True, repr=False)
class CriticalPoint(Shown, Approximable):
    """Weights and biases with ``C(1) = C'(1) = 1`` at a fixed point of q.

    Attributes
    ----------
    activation
        The activation.
    kind
        "edge" or "half-stable".
    sigma_w
        The standard deviation of the weights, multiplied by sqrt(fan_in).
    sigma_b
        The standard deviation of biases.
    q
        The fixed point q*, the mean square of the pre-activations.
    chi_parallel
        The slope of the Q map of a layer at q*: 1 at half-stable points.
    curvature
        The second derivative f'' of the Q map of a layer at q*.

    """

    activation: Activation
    kind: str
    sigma_w: float
    sigma_b: float
    q: float
    chi_parallel: float
    curvature: float
    assumptions: tuple[Assumption, ...] = field(default=(LAYERS,))

    @property
    def stability(self) -> str:
        """The stability of q* under repeated layers.

        The value is "attracting", "repelling" or "neutral", or at half-stable points "attracting
        from below" or "attracting from above".
        """
        if abs(abs(self.chi_parallel) - 1) > MARGINAL:
            return "attracting" if abs(self.chi_parallel) < 1 else "repelling"
        if abs(self.curvature) * self.q < MARGINAL:
            return "neutral"
        return "attracting from below" if self.curvature > 0 else "attracting from above"

    def _rows(self) -> list[tuple[str, str]]:
        names = ("kind", "sigma_w", "sigma_b", "q", "chi_parallel", "curvature", "stability")
        rows = [(name.replace("_", " "), shown(getattr(self, name))) for name in names]
        return [("", "value"), ("activation", self.activation.name), *rows]

    def to_dict(self) -> dict[str, Any]:
        """Return all results as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values that can be written as JSON.

        """
        names = ("kind", "sigma_w", "sigma_b", "q", "chi_parallel", "curvature", "stability")
        found = {name: plain(getattr(self, name)) for name in names}
        return (
            {"activation": self.activation.name} | found | {"assumptions": plain(self.assumptions)}
        )

    def __repr__(self) -> str:
        return (
            f"CriticalPoint({self.activation.name}, {self.kind}: sigma_w {self.sigma_w:.8g}, "
            f"sigma_b {self.sigma_b:.8g}, q {self.q:.8g})"
        )


def critical_point(
    activation: Any,
    kind: str = "half-stable",
    q: float | None = None,
    sigma_b: float | None = None,
) -> CriticalPoint:
    """Find weights and biases at which a chain of identical layers preserves gradients.

    A layer is Affine(sigma_w, sigma_b), then the activation. On the edge of chaos, the slope of its
    C map at 1 is 1 at the fixed point q*: ``sigma_w^2 E phi'(sqrt(q*) z)^2 = 1``. The edge is a
    curve; ``q`` or ``sigma_b`` selects a point on it. At a half-stable point, the slope of the Q
    map is also 1: ``E phi phi'' = 0``. Such points are isolated.

    Parameters
    ----------
    activation
        The activation.
    kind
        "half-stable" or "edge".
    q
        The fixed point q* of a point on the edge, in [1e-6, 2e4].
    sigma_b
        The standard deviation of the biases of a point on the edge, >= 0. If several points have
        this value, the point with the smallest q* is returned.

    Returns
    -------
    CriticalPoint
        The critical point. If there are several half-stable points, the point with the smallest q*
        is returned, and ``assumptions`` lists the others.

    Raises
    ------
    KcalcError
        If the activation jumps or is linear, a value is invalid, or an argument does not apply to
        this ``kind``.
    UnreachableTarget
        If there is no such point.

    References
    ----------
    [Poole et al. 2016; Schoenholz et al. 2017; Roberts, Yaida and Hanin 2022, ch. 5]

    Examples
    --------
    >>> import kcalc as kc
    >>> found = kc.critical_point("gelu")
    >>> print(f"{found.sigma_w**2:.6f} {found.sigma_b**2:.6f} {found.stability}")
    1.983058 0.172922 attracting from above
    >>> print(f"{kc.critical_point('tanh', 'edge', q=1.0).sigma_w:.6f}")
    1.467414

    """
    phi = resolve(activation)
    check_shapeable(phi)
    choice(kind, "kind", KINDS)
    if kind == "edge":
        if (q is None) == (sigma_b is None):
            raise KcalcError("the edge of chaos is a curve; choose a point on it with q or sigma_b")
        point = edge(phi, q=q, sigma_b=sigma_b)
        return _found(phi, kind, point.q, point.sigma_w**2, point.sigma_b**2, ())
    if q is not None or sigma_b is not None:
        raise KcalcError("a half-stable point is isolated: omit q and sigma_b, or use kind='edge'")
    if phi.degree is not None:
        raise UnreachableTarget(
            f"{phi.name} has no half-stable point: it is homogeneous, so its Q map is a power of "
            "q; use kind='edge' for its critical point"
        )
    first, *others = _half_stable(phi)
    notes = tuple(
        Assumption(
            "network", f"there is another half-stable point at q = {other:.6g}", "convention"
        )
        for other in others
    )
    return _found(phi, kind, first, *variances(phi, first), notes)


def _found(
    phi: Activation,
    kind: str,
    q: float,
    weight: float,
    bias: float,
    notes: tuple[Assumption, ...],
) -> CriticalPoint:
    slope = weight * float(phi.q_slope(q))
    bend = 2 * weight * float(np.asarray(phi.q_series(q, 2, 2)[2]))
    sigmas = math.sqrt(weight), math.sqrt(max(bias, 0.0))
    return CriticalPoint(phi, kind, *sigmas, q, slope, bend, (LAYERS, *notes))


def _excess(phi: Activation, log_q: float) -> float:
    """Return chi_parallel - 1 on the edge of chaos at q*."""
    q = math.exp(log_q)
    return variances(phi, q)[0] * float(phi.q_slope(q)) - 1


def _half_stable(phi: Activation) -> list[float]:
    """Return q* of all half-stable points, in increasing order.

    Raises: UnreachableTarget if there are none.
    """
    known: list[tuple[float, float]] = []
    for log_q in np.linspace(math.log(LEAST_Q), math.log(LARGEST_Q), POINTS):
        try:
            value = _excess(phi, float(log_q))
        except (KcalcError, OverflowError):
            continue
        if abs(value) > SEEN:
            known.append((float(log_q), value))
    roots, biased = [], []
    for (low, before), (high, after) in pairwise(known):
        if before * after > 0:
            continue
        root = math.exp(zero_between(lambda s: _excess(phi, s), low, high, 1e-15, rtol=1e-14))
        if abs(_excess(phi, math.log(root))) > MARGINAL:
            continue  # the difference jumps over 0
        (biased if variances(phi, root)[1] < 0 else roots).append(root)
    if roots:
        return roots
    why = (
        f"at q = {biased[0]:.6g} it would need sigma_b^2 = {variances(phi, biased[0])[1]:.6g} < 0"
        if biased
        else f"chi_parallel is {'below' if known and known[0][1] < 0 else 'above'} 1 at every q in "
        f"[{LEAST_Q:g}, {LARGEST_Q:g}] on the edge of chaos"
    )
    raise UnreachableTarget(
        f"{phi.name} has no half-stable point: {why}; use kind='edge' for points on the edge of "
        "chaos"
    )
