"""Piecewise polynomials on intervals that shrink dyadically towards both ends of [0, 2].

A point lies ``w`` = u from the lower end (u <= 1) or ``w`` = 2 - u from the upper one. Each octave
[2^-k, 2^(1-k)) of w is cut into 2^BITS equal intervals, so the exponent and the leading mantissa
bits of w are the index of its interval, and the bits that follow its coordinate t in [-1/2, 1/2):
no search, no division.
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
"""Intervals on a side: row 0 is w < 2^-OCTAVES (a constant), the last row is w = 1."""

SMALLEST = 2.0**-OCTAVES
_SHIFT = 52 - BITS
_FIRST = ((1023 - OCTAVES) << BITS) - 1
_FRACTION, _ONE, _EXPONENT = (1 << 52) - 1, 1023 << 52, 2047 << 52


def locate(w: Array, upper: Array) -> tuple[Array, Array, Array]:
    """(row, t, width of the row's octave) of distances w <= 1.

    ``w``: float64; w <= 0 is row 0. ``upper``: from which end the distances are measured.
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
    """sum_k coefficients[k, row] t^k."""
    out = np.take(coefficients[-1], row, mode="clip")
    for column in coefficients[-2::-1]:
        out *= t
        out += np.take(column, row, mode="clip")
    return out


def slope(coefficients: Array, row: Array, t: Array, octave: Array, ends: Array) -> Array:
    """The derivative in w.

    In the rows w < 2^-OCTAVES it is ``ends`` = (at the lower end, at the upper end).
    """
    rising = coefficients[1:] * np.arange(1, DEGREE + 1)[:, None]
    inner = polynomial(rising, row, t) * PARTS / np.where(octave > 0, octave, 1.0)
    return np.where(row % ROWS == 0, np.where(row == 0, ends[0], ends[1]), inner)


# --- from Chebyshev coefficients ------------------------------------------------------------------


def octave_rows(fitted: Array) -> Array:
    """Polynomials in t of the PARTS intervals of an octave.

    They are computed from the Chebyshev coefficients of the octave's panels (panels, NODES).
    """
    rows = power_rows(NODES, PARTS // len(fitted), DEGREE)
    return np.einsum("pn,nki->pki", fitted, rows).reshape(PARTS, DEGREE + 1)


def assemble(rows: Array, end: float) -> Array:
    """One side of a table, shape (DEGREE + 1, ROWS), from its octaves k = 1, 2, ...

    (OCTAVES, PARTS, DEGREE + 1) and its value at w = 0.
    """
    out = np.zeros((ROWS, DEGREE + 1))
    out[0, 0] = end
    out[1:-1] = rows[::-1].reshape(-1, DEGREE + 1)
    powers = 0.5 ** np.arange(DEGREE + 1)
    middle, rise = rows[0, -1] @ powers, rows[0, -1, 1:] @ (np.arange(1, DEGREE + 1) * powers[:-1])
    out[-1, :2] = middle + rise, 2 * rise  # w = 1 is t = -1/2 in an octave twice as wide
    return out.T
