"""E phi^(n)(m + sigma y): a function with kinks, smoothed by a Gaussian narrower than anything else about it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from kcalc.quadrature import WINDOW, Array, Profile, mesh, normal_density, panel_nodes

_STEP = 0.65  # trapezoid step for a standard normal: relative error exp(-2 pi^2/h^2) = 5e-21


def smoothed(profile: Profile, n: int, centres: Array, sigma: float) -> Array:
    """E phi^(n)(m + sigma y) at each centre m, without the deltas that jumps of phi^(n-1) put into phi^(n).

    Jumps of phi itself count for n = 2, where they are derivatives of deltas.
    """
    total = _smooth_part(profile, n, centres, sigma)
    if n == 2:
        for k, jump in zip(profile.kink_points, profile.jump_sizes(0), strict=True):
            if jump:
                t = (k - centres) / sigma
                total += jump * t * normal_density(t) / sigma**2
    return total


def _smooth_part(profile: Profile, n: int, centres: Array, sigma: float) -> Array:
    """The same without the jumps.

    Trapezoid rule where phi is analytic around the window |y| <= WINDOW, Gauss-Legendre on the panels of the mesh where it is not.
    """
    values, reach = profile.numeric(n), float(np.abs(centres).max()) + 10 * sigma
    edges = mesh(profile, 2.0 ** max(4, math.ceil(math.log2(reach))))
    if not profile.kink_points:
        return _full_integral(values, centres, sigma, min(_STEP, float(np.diff(edges).min()) / (5 * sigma)))
    low, high = centres - WINDOW * sigma, centres + WINDOW * sigma
    first, last = np.searchsorted(edges, low, side="right") - 1, np.searchsorted(edges, high, side="left") - 1
    total, whole = np.zeros_like(centres), first == last
    total[whole] = _full_integral(values, centres[whole], sigma, _STEP)
    for panel in range(first.min(), last.max() + 1):
        here = ~whole & (first <= panel) & (panel <= last)
        if here.any():
            ends = np.maximum(low[here], edges[panel]), np.minimum(high[here], edges[panel + 1])
            total[here] += _panel_integral(values, centres[here], sigma, *ends)
    return total


def _full_integral(values: Callable[[Array], Array], m: Array, sigma: float, step: float) -> Array:
    """E f(m + sigma y) by the trapezoid rule, exact to rounding for f analytic around the window."""
    reach = math.floor(WINDOW / step)
    y: Array = np.arange(-reach, reach + 1) * np.float64(step)
    return values(m[:, None] + sigma * y) @ (step * normal_density(y))


def _panel_integral(values: Callable[[Array], Array], m: Array, sigma: float, low: Array, high: Array) -> Array:
    """The part of E f(m + sigma y) with m + sigma y in [low, high], f being smooth there; one interval for each centre."""
    parts = math.ceil(float((high - low).max()) / sigma / (2 * WINDOW / 3))
    unit, weights = panel_nodes(np.linspace(0.0, 1.0, max(parts, 1) + 1))
    x = low[:, None] + (high - low)[:, None] * unit.ravel()
    return (values(x) * normal_density((x - m[:, None]) / sigma)) @ weights.ravel() * (high - low) / sigma
