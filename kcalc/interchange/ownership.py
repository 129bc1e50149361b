"""Find layers that share weights, which the calculus cannot treat as independent."""

from __future__ import annotations

import math

import numpy as np

from .trace import Linear, Lookup
from .weight_statistics import NamesOfArrays, absolute_moments, matrix

ROUNDING = 1e-12  # weights are equal if their variance is below this fraction of the mean square
# relative error from rounding in a subtracted mean, or from summing in another order
ALIKE = 1e-6


def is_standardised(op: Linear) -> bool:
    """Whether the weights of every output have mean 0 up to rounding.

    Centred and standardised weights have this property.
    """
    found = op.statistics
    if found.fan_in < 3 or found.size < 16 or not np.isfinite(found.squares).all():
        return False
    sizes = np.sqrt(found.squares / found.fan_in)
    return bool(sizes.min() > 0 and (np.abs(found.sums / found.fan_in) < ALIKE * sizes).all())


def has_mean(op: Linear) -> bool:
    """Whether the means of the weights are too large for independent weights with mean 0.

    The threshold is ten standard errors.
    """
    found = op.statistics
    if found.size < 16 or not np.isfinite(found.mean_square):
        return False
    variance = found.mean_square - float(found.sums.sum() / found.size) ** 2
    if variance <= ROUNDING * found.mean_square:
        return found.mean_square > 0
    outputs = len(found.sums)
    # chi-squared with one degree of freedom per output
    excess = np.square(found.sums) / found.fan_in / variance
    return bool(excess.sum() > outputs + 10 * np.sqrt(2 * outputs) or excess.max() > 10**2)


class Owners:
    """Records the layers read so far and their weights."""

    def __init__(self) -> None:
        self._parts: dict[str, list[tuple[frozenset[int] | None, str]]] = {}
        self._by_size: dict[int, list[tuple[float, Linear]]] = {}  # size -> (rms / top, layer)
        self._rows = NamesOfArrays()
        self._along: dict[str, str] = {}

    def along_locations(self, op: Linear) -> str | None:
        """Record a layer that mixes locations, and return an earlier layer with its weights.

        If no layer treats these weights as Gaussian, several layers may share them, because they
        are used as constants. In that case, return None.
        """
        self._along.setdefault(op.parameter, op.name)
        return next((name for _, name in self._parts.get(op.parameter, ())), None)

    def looked_up(self, op: Lookup) -> str | None:
        """Record an embedding, and return an earlier layer that uses its table, or None."""
        known = self._parts.setdefault(op.parameter, [])
        known.append((None, op.name))
        return known[0][1] if len(known) > 1 else None

    def sharing(self, op: Linear) -> str | None:
        """Return an earlier layer that shares this parameter or some of its rows.

        If no such layer exists, record this layer and return None.
        """
        rows = None if op.rows is None else frozenset(op.rows)
        if op.parameter in self._along:
            return self._along[op.parameter]
        known = self._parts.setdefault(op.parameter, [])
        for other, name in known:
            if rows is None or other is None or rows & other:
                return name
        known.append((rows, op.name))
        return None

    def twin(self, op: Linear) -> str | None:
        """Return an earlier layer with the same weights up to their order and a common factor.

        Such weights are tied through memory or arithmetic, or are copies that were not redrawn.
        """
        if not _tells(op):
            return None
        spread = math.sqrt(op.statistics.mean_square) / op.statistics.top
        as_many = self._by_size.setdefault(op.statistics.size, [])
        for its, other in as_many:
            if math.isclose(spread, its, rel_tol=ALIKE) and _same_moments(op, other):
                return other.name
        as_many.append((spread, op))
        return self._same_rows(op)

    def _same_rows(self, op: Linear) -> str | None:
        """Return an earlier layer that has the same weights as this layer for at least one output.

        If such a layer exists, both layers use overlapping slices of one array.
        """
        rows = matrix(op.weight)
        starts = np.sort(rows[:, :16], axis=1)
        telling = np.flatnonzero((starts[:, 1:] != starts[:, :-1]).sum(axis=1) >= 3)
        names = self._rows.first_of_rows(rows, telling, op.name)
        return next((other for other in names if other != op.name), None)


def _tells(op: Linear) -> bool:
    """Whether the weights have enough distinct values for their moments to identify them."""
    sample = np.abs(op.weight.flat[:4096])
    return op.weight.size >= 16 and 0 < op.statistics.top < np.inf and np.unique(sample).size >= 8


def _same_moments(op: Linear, other: Linear) -> bool:
    """Whether the sums of |w| and w^4, in units of the largest |w|, agree for both layers.

    Neither sum changes if the weights are reordered or multiplied by a common factor. For
    independent draws, the sums and the root mean square practically never agree to six digits.
    """
    moments = (absolute_moments(layer.weight, layer.statistics.top) for layer in (op, other))
    return bool(np.allclose(*moments, rtol=ALIKE, atol=0))
