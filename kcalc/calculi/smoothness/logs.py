"""Arithmetic of non-negative bounds in terms of their natural logarithms.

Products over thousands of layers then neither overflow nor underflow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

Log = Any
NONE = -math.inf


@dataclass(frozen=True)
class Gain:
    """Logs of bounds on the singular values of a Jacobian."""

    smallest: float
    largest: float

    def __mul__(self, other: Gain) -> Gain:
        return Gain(self.smallest + other.smallest, self.largest + other.largest)


ONE, NOTHING = Gain(0.0, 0.0), Gain(NONE, NONE)


def log(value: float) -> float:
    """Return the log of a number >= 0; -inf for 0."""
    return math.log(value) if value > 0 else NONE


def plus(*logs: Log) -> Log:
    """Return the log of a sum."""
    total = logs[0]
    for one in logs[1:]:
        total = np.logaddexp(total, one)
    return total


def root_sum_square(logs: Iterable[Log]) -> Log:
    """Return the log of the root of a sum of squares; -inf for an empty sum."""
    found = [2 * one for one in logs]
    return plus(*found) / 2 if found else NONE


def largest_eigenvalue(corner: Log, side: Log, end: Log) -> Log:
    """Return the log of the largest eigenvalue of [[corner, side], [side, end]], given as logs."""
    top = np.maximum(np.maximum(corner, side), end)
    safe = np.where(np.isfinite(top), top, 0.0)
    a, b, d = (np.exp(x - safe) for x in (corner, side, end))
    with np.errstate(over="ignore", invalid="ignore"):
        value = safe + np.log(np.maximum((a + d) / 2 + np.hypot((a - d) / 2, b), 1e-300))
    return np.where(np.isfinite(top), value, top)


def number(logarithm: float) -> float:
    """Return the exponential of a logarithm, or inf if it overflows."""
    return math.exp(logarithm) if logarithm < 709.78 else math.inf


def shown(logarithm: float, digits: int = 5) -> str:
    """Format the exponential of a logarithm, as a power of ten beyond the range of floats."""
    if math.isinf(logarithm) or abs(logarithm) < 690:
        return f"{number(logarithm):.{digits}g}"
    exponent = math.floor(logarithm / math.log(10))
    return f"{math.exp(logarithm - exponent * math.log(10)):.{digits}g}e{exponent:+d}"
