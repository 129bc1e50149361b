"""The octaves of a table during construction.

Each octave has nodes, polynomials and errors. The end, where float64 cannot resolve differences, is
treated separately.
"""

from __future__ import annotations

import math

import numpy as np

from ..chebyshev import NODES, fitted_at, points
from .dyadic import (
    BITS,
    DEGREE,
    OCTAVES,
    PARTS,
    assemble,
    octave_rows,
)

Array = np.ndarray

FINEST = 36
"""Below 2 - u = 2^-36, a float64 gap u has too few digits left to be a node."""

# points at which a panel is checked; none is a node
_CHECKS = np.array([0.0021, 0.137, 0.3309, 0.51, 0.7093, 0.8977, 0.9985])
_RELATIVE = 100  # the allowed relative error of 1 - C, as a multiple of the tolerance
_NOISY = 1e-6  # larger relative errors mean that 1 - C was computed as a difference


class Side:
    """The octaves at one end of a table, the upper or the lower.

    Evaluate the function at ``points`` and pass the values to ``refine``, until there are no more
    points.
    """

    def __init__(self, upper: bool, tolerance: float) -> None:
        self.upper, self.tolerance = upper, tolerance
        self.octaves = FINEST if upper else OCTAVES
        self.rows = np.zeros((OCTAVES, PARTS, DEGREE + 1))
        self.error = np.full(self.octaves, np.inf)
        self.size = np.zeros(self.octaves)
        self.pending = np.arange(self.octaves)
        self.data: list[tuple[Array, Array]] = []  # pairs (gaps, values)

    def points(self, panels: int) -> Array:
        """Return gaps at the nodes and then at the check points of every pending octave.

        The shape is (octaves, panels, NODES + checks).
        """
        inside = np.concatenate([(1 + points()) / 2, _CHECKS])
        w = 0.5 ** (self.pending[:, None, None] + 1.0) * (
            1 + (np.arange(panels)[:, None] + inside) / panels
        )
        return 2 - w if self.upper else w

    def refine(self, panels: int, gap: Array, values: Array) -> None:
        """Accept the new panels whose errors are less than half of the previous ones.

        Octaves that still miss the tolerance and may benefit from bisection stay pending.
        """
        octaves, self.pending = self.pending, self.pending[:0]
        if not octaves.size:
            return
        w = 2 - gap if self.upper else gap
        inside = panels * (w * 2.0 ** (octaves[:, None, None] + 1) - 1) - np.arange(panels)[:, None]
        fitted = fitted_at(2 * inside[..., :NODES] - 1, values[..., :NODES])
        rows = np.array([octave_rows(part) for part in fitted])
        error = np.abs(_inside(rows, w) - values)[..., NODES:].max(axis=(1, 2))
        better = error < self.error[octaves] / 2
        wanted = self.tolerance * (
            1.0 if self.upper else np.minimum(1.0, _RELATIVE * np.abs(values).max(axis=(1, 2)))
        )
        self.pending = octaves[better & (error > wanted)]
        kept = octaves[better]
        self.rows[kept], self.error[kept], self.size[kept] = (
            rows[better],
            error[better],
            np.abs(values[better]).min(axis=(1, 2)),
        )
        self.data.append((gap.ravel(), values.ravel()))

    def finished(self, end: float) -> tuple[Array, float | None]:
        """Return (coefficients of the side, slope of the side at its end).

        The slope is infinite if the function's slope is infinite. It is None if the slope must be
        taken from the polynomials.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            noisy = not np.all(self.error <= _NOISY * self.size)
        limit = self._fit_end(end, noisy) if self.upper or end > 0 or noisy else None
        return assemble(self.rows, end), limit

    def _fit_end(self, end: float, noisy: bool) -> float | None:
        """Replace the end, where 1 - C is nearly constant or noise, by a polynomial in sqrt w.

        Here, w is the distance from the end. Differences of 1 - C would lose all digits there. The
        polynomial passes through the end point.

        If possible, the term sqrt w is omitted, so that C' is finite at the end.
        """
        gap, values = (np.concatenate(parts) for parts in zip(*self.data, strict=True))
        w = 2 - gap if self.upper else gap
        must = self.upper or noisy
        deepest = FINEST - 2 if must else OCTAVES - 8
        allowed = (
            max(self.tolerance / 2, 2 * float(self.error.max()))
            if must
            else self.tolerance / 2 * end
        )
        for octave in range(10, deepest + 1, 6):
            here = w < 0.5**octave
            scaled, rise = w[here] * 2.0**octave, values[here] - end
            terms = 2 + min(5, 106 // octave)
            for exponents in (np.arange(2, terms) / 2, np.arange(1, terms) / 2):
                matrix = scaled[:, None] ** exponents
                weights = np.linalg.lstsq(matrix, rise, rcond=None)[0]
                last = must and octave == deepest and exponents[0] == 0.5
                if np.abs(matrix @ weights - rise).max() <= allowed or last:
                    self._replace(octave, end, exponents, weights)
                    return float(weights[0]) * 2.0**octave if exponents[0] == 1 else math.inf
        return None

    def _replace(self, octave: int, end: float, exponents: Array, weights: Array) -> None:
        inside = points()
        for k in range(octave, OCTAVES):
            scaled = (3 + inside) * 2.0 ** (octave - k - 2)
            self.rows[k] = octave_rows(
                fitted_at(inside[None], (scaled[:, None] ** exponents @ weights)[None])
            )
            self.rows[k, :, 0] += end


def _inside(rows: Array, w: Array) -> Array:
    """Evaluate the polynomials of octaves (n, PARTS, 6) at distances (n, ...) within them."""
    bits = np.ascontiguousarray(w).view(np.int64)
    part = (bits >> (52 - BITS)) & (PARTS - 1)
    octave = np.exp2(np.floor(np.log2(w)))
    t = (w / octave - 1) * PARTS - part - 0.5
    chosen = rows[np.arange(len(rows)).reshape(-1, *([1] * (w.ndim - 1))), part]
    return np.polynomial.polynomial.polyval(t, np.moveaxis(chosen, -1, 0), tensor=False)
