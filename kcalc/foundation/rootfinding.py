"""Roots of a scalar function over a grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import KcalcError


def zero_between(
    function: Callable[[float], float], low: float, high: float, xtol: float, **options: Any
) -> float:
    """Return the zero between two points where the function has opposite signs, by Brent's method.

    ``options`` are passed to :func:`scipy.optimize.brentq`. Raises ValueError if the signs are
    equal.
    """
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=xtol, **options))  # pyright: ignore


def least_between(
    function: Callable[[float], float], low: float, high: float, xatol: float = 1e-8
) -> tuple[float, float]:
    """Return (point, value) at a minimum between two points."""
    from scipy.optimize import minimize_scalar

    found: Any = minimize_scalar(
        function, bounds=(low, high), method="bounded", options={"xatol": xatol}
    )
    return float(found.x), float(found.fun)


def sign_changes(
    function: Callable[[np.ndarray], np.ndarray], grid: np.ndarray, tolerance: float
) -> list[float]:
    """Return the roots between sign changes on a grid, and grid points that are zeros.

    ``function`` is vectorised. Values smaller in magnitude than ``tolerance`` count as zero. If
    the function is zero at three or more consecutive grid points, it is assumed to vanish on an
    interval; these points are not isolated roots and are omitted. The roots are in grid order,
    refined by Brent's method.
    """
    values = np.asarray(function(grid), dtype=float)
    values = np.where(np.abs(values) <= tolerance, 0.0, values)
    zero = np.concatenate([[False, False], values == 0, [False, False]])
    roots: list[float] = []
    for i, value in enumerate(values):
        if value == 0:
            if not any(zero[i + k : i + k + 3].all() for k in range(3)):
                roots.append(float(grid[i]))
        elif i and np.sign(values[i - 1]) * np.sign(value) < 0:
            ends = grid[i - 1], grid[i]
            roots.append(
                zero_between(lambda t: float(function(np.asarray(t))), *ends, 1e-15, rtol=1e-14)
            )
    return roots


def finite_part(function: Callable[[np.ndarray], np.ndarray], grid: np.ndarray) -> np.ndarray:
    """Return the part of the grid, around its middle if possible, on which the function is finite.

    Q may diverge or underflow outside this part.
    """
    try:
        if np.all(np.isfinite(function(grid))):
            return grid
    except KcalcError:
        pass
    known: dict[int, bool] = {}

    def finite(index: int) -> bool:
        if index not in known:
            try:
                known[index] = bool(np.all(np.isfinite(function(grid[index : index + 1]))))
            except KcalcError:
                known[index] = False
        return known[index]

    start = next((i for i in (len(grid) // 2, *range(0, len(grid), 8)) if finite(i)), None)
    if start is None:
        function(grid[:1])  # nowhere finite: let the function raise its error
        return grid[:0]
    low, high = start, start
    while low > 0 and finite(low - 1):
        low -= 1
    while high < len(grid) - 1 and finite(high + 1):
        high += 1
    return grid[low : high + 1]
