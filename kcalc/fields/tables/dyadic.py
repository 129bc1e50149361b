"""Piecewise polynomials on intervals that shrink dyadically towards both ends of [0, 2].

A point is at distance ``w`` = u from the lower end (u <= 1), or ``w`` = 2 - u from the upper end.
Each octave [2^-k, 2^(1-k)) of w is divided into 2^BITS equal intervals. The exponent and the
leading mantissa bits of w are therefore the index of its interval, and the following bits are its
coordinate t in [-1/2, 1/2). No search or division is needed.
"""

from __future__ import annotations

import numpy as np

from ..chebyshev import NODES, power_rows

Array = np.ndarray

BITS = 7
DEGREE = 5
OCTAVES = 96
PARTS = 2**BITS
ROWS = OCTAVES * PARTS + 2
"""The number of intervals per side. Row 0 is w < 2^-OCTAVES (a constant); the last row is w = 1."""

SMALLEST = 2.0**-OCTAVES
_SHIFT = 52 - BITS
_FIRST = ((1023 - OCTAVES) << BITS) - 1
_FRACTION, _ONE, _EXPONENT = (1 << 52) - 1, 1023 << 52, 2047 << 52


def locate(w: Array, upper: Array) -> tuple[Array, Array, Array]:
    """Return (row, t, width of the row's octave) for distances w <= 1.

    ``w`` is float64, and w <= 0 belongs to row 0. ``upper`` tells from which end the distances are
    measured.
    """
    bits = w.view(np.int64)
    row = bits >> _SHIFT
    row -= _FIRST
    np.maximum(row, 0, out=row)
    row += upper * np.int64(ROWS)
    octave = (bits & _EXPONENT).view(np.float64)
    t = bits << BITS
    t &= _FRACTION
    t |= _ONE
    t = t.view(np.float64)
    t -= 1.5
    return row, t, octave


def polynomial(coefficients: Array, row: Array, t: Array) -> Array:
    """Return sum_k coefficients[k, row] t^k."""
    out = np.take(coefficients[-1], row, mode="clip")
    for column in coefficients[-2::-1]:
        out *= t
        out += np.take(column, row, mode="clip")
    return out


def slope(coefficients: Array, row: Array, t: Array, octave: Array, ends: Array) -> Array:
    """Return the derivative with respect to w.

    In the rows for w < 2^-OCTAVES, the derivative is ``ends`` = (slope at the lower end, slope at
    the upper end).
    """
    rising = coefficients[1:] * np.arange(1, DEGREE + 1)[:, None]
    inner = polynomial(rising, row, t) * PARTS / np.where(octave > 0, octave, 1.0)
    return np.where(row % ROWS == 0, np.where(row == 0, ends[0], ends[1]), inner)


# --- from Chebyshev coefficients ------------------------------------------------------------------


def octave_rows(fitted: Array) -> Array:
    """Return polynomials in t for the PARTS intervals of an octave.

    The polynomials are computed from the Chebyshev coefficients (panels, NODES) of the octave's
    panels.
    """
    rows = power_rows(NODES, PARTS // len(fitted), DEGREE)
    return np.einsum("pn,nki->pki", fitted, rows).reshape(PARTS, DEGREE + 1)


def assemble(rows: Array, end: float) -> Array:
    """Return one side of a table, shape (DEGREE + 1, ROWS), from its octaves k = 1, 2, ...

    The octaves have shape (OCTAVES, PARTS, DEGREE + 1). ``end`` is the value at w = 0.
    """
    out = np.zeros((ROWS, DEGREE + 1))
    out[0, 0] = end
    out[1:-1] = rows[::-1].reshape(-1, DEGREE + 1)
    powers = 0.5 ** np.arange(DEGREE + 1)
    middle, rise = rows[0, -1] @ powers, rows[0, -1, 1:] @ (np.arange(1, DEGREE + 1) * powers[:-1])
    out[-1, :2] = middle + rise, 2 * rise  # w = 1 is t = -1/2 in an octave twice as wide
    return out.T
