"""Roots of a scalar function over a grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def sign_changes(function: Callable[[np.ndarray], np.ndarray], grid: np.ndarray, tolerance: float) -> list[float]:
    """The roots that a vectorised function's sign changes on a grid reveal, and grid points where it is zero.

    ``tolerance``: values below it in size count as zero. Returns: roots in grid order, refined by Brent's method.
    """
    from scipy.optimize import brentq

    values = np.asarray(function(grid), dtype=float)
    values = np.where(np.abs(values) <= tolerance, 0.0, values)
    roots: list[float] = []
    for i, value in enumerate(values):
        if value == 0:
            roots.append(float(grid[i]))
        elif i and values[i - 1] * value < 0:
            root: Any = brentq(lambda t: float(function(np.asarray(t))), grid[i - 1], grid[i], xtol=1e-15, rtol=np.float64(1e-14))
            roots.append(float(root))
    return roots
