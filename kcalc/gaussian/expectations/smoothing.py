"""E phi^(n)(m + sigma y): a function with kinks, smoothed by a narrow Gaussian.

The Gaussian may be narrower than any scale of the function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.expectations.quadrature import (
    WINDOW,
    Array,
    Profile,
    mesh,
    normal_density,
    panel_nodes,
    trapezoid,
)

_WIDEST = 2 * WINDOW / 3  # widest Gauss-Legendre panel, in standard deviations
_UNIT, _WEIGHTS = (part.ravel() for part in panel_nodes(np.array([0.0, 1.0])))
# at smaller steps and for many samples, the adaptive panels of the mesh are cheaper than a grid
_FINEST = 0.02
_MOST = 400_000
_SAMPLES = 1e6
Values = Callable[[Array, Any], Array]  # arguments: points, and the index of each point's centre
_STEP = 0.65  # trapezoid step for a standard normal: relative error exp(-2 pi^2/h^2) = 5e-21


def smoothed(profile: Profile, n: int, centres: Array, sigma: float) -> Array:
    """Return E phi^(n)(m + sigma y) at each centre m, without the jumps at kinks.

    Jumps are separate terms (:mod:`.corners`).
    """
    values = profile.numeric(n)
    if sigma == 0:
        return values(centres)
    return _averaged(profile, lambda x, _: values(x), centres, sigma)


def variance(profile: Profile, centres: Array, sigma: float) -> Array:
    """Return Var phi(m + sigma y) at each centre m, without cancellation."""
    values = profile.numeric(0)
    base = values(centres)

    def power(exponent: int) -> Array:
        return _averaged(
            profile,
            lambda x, owner: (values(x) - base[owner]) ** exponent,
            centres,
            sigma,
        )

    found = power(2) - power(1) ** 2
    return np.maximum(found, 0.0)


def _averaged(profile: Profile, values: Values, centres: Array, sigma: float) -> Array:
    """Return E values(m + sigma y, index) at each centre m; ``values`` is smooth wherever phi is.

    The computation uses the trapezoid rule if phi is analytic around the window |y| <= WINDOW, and
    otherwise Gauss-Legendre on the panels of the mesh.
    """
    reach, every = float(np.abs(centres).max()) + 10 * sigma, np.arange(centres.size)
    edges = mesh(profile, 2.0 ** max(4, math.ceil(math.log2(reach))))
    step = min(_STEP, float(np.diff(edges).min()) / (5 * sigma))
    if not profile.kink_points and (step > _FINEST or centres.size * 2 * WINDOW / step < _SAMPLES):
        return _full_integral(values, centres, every, sigma, step)
    low, high = centres - WINDOW * sigma, centres + WINDOW * sigma
    first = np.searchsorted(edges, low, side="right") - 1
    last = np.searchsorted(edges, high, side="left") - 1
    total, whole = np.zeros_like(centres), first == last
    if int((last - first).sum()) > _MOST:
        raise KcalcError(
            f"activation {profile.name!r} varies too fast near |c| = 1 at such a large q: more "
            f"than {_MOST} panels are needed"
        )
    if whole.any():
        total[whole] = _full_integral(values, centres[whole], every[whole], sigma, _STEP)
    if not whole.all():
        cut = np.flatnonzero(~whole)
        owner, panel = _spread(first[cut], last[cut])
        owner = cut[owner]
        starts = np.maximum(low[owner], edges[panel])
        ends = np.minimum(high[owner], edges[panel + 1])
        parts = _segments(values, centres, owner, sigma, (starts, ends))
        total += np.bincount(owner, parts, minlength=centres.size)
    return total


def _spread(first: Any, last: Any) -> tuple[Any, Any]:
    """Return all (i, k) with first[i] <= k <= last[i], as two arrays of integers."""
    counts = last - first + 1
    owner = np.repeat(np.arange(counts.size), counts)
    start = np.repeat(np.cumsum(counts) - counts, counts)
    return owner, first[owner] + np.arange(counts.sum()) - start


def _full_integral(values: Values, m: Array, index: Any, sigma: float, step: float) -> Array:
    """Return E f(m + sigma y) by the trapezoid rule.

    The rule is exact to rounding if f is analytic around the window.
    """
    rule = trapezoid(step, math.floor(WINDOW / step))
    return values(m[:, None] + sigma * rule.z, index[:, None]) @ rule.w


def _segments(
    values: Values, centres: Array, owner: Any, sigma: float, ends: tuple[Array, Array]
) -> Array:
    """Return the part of E f(m + sigma y) with m + sigma y in [low, high], where f is smooth.

    Row i belongs to the centre ``owner[i]``.
    """
    low, high = ends
    counts = np.maximum(np.ceil((high - low) / (sigma * _WIDEST)), 1).astype(int)
    row, index = _spread(np.zeros_like(counts), counts - 1)
    width, which = (high - low)[row] / counts[row], owner[row][:, None]
    x = (low[row] + index * width)[:, None] + width[:, None] * _UNIT
    found = values(x.ravel(), np.broadcast_to(which, x.shape).ravel()).reshape(x.shape)
    parts = found * normal_density((x - centres[which]) / sigma) @ _WEIGHTS * width / sigma
    out: Any = np.bincount(row, parts, minlength=low.size)
    return out
