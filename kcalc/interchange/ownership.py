"""Which layer has which weights: layers that share some are not independent."""

from __future__ import annotations

import numpy as np

from .trace import Linear

ALIKE = 1e-6  # what rounding leaves of a mean over weights that was taken off, in units of their size


def fingerprint(weight: np.ndarray) -> np.ndarray | None:
    """What does not change when weights are permuted or multiplied by a number; None where that says little.

    Sums of |w|^p in units of the greatest: two independent draws agree in all of them to six digits by no accident.
    """
    sizes = np.abs(np.asarray(weight, dtype=np.float64)).ravel()
    top = sizes.max(initial=0.0)
    if sizes.size < 16 or not 0 < top < np.inf or (sizes == top).all() or np.unique(sizes[:4096]).size < 8:
        return None
    unit = sizes / top
    return np.array([unit.size, unit.sum(), (unit**2).sum(), (unit**4).sum()])


def is_standardised(op: Linear) -> bool:
    """Whether the weights into every output have mean 0, to rounding: centred or standardised weights, as the numbers stand."""
    rows = np.asarray(op.weight, dtype=np.float64).reshape(op.weight.shape[0], -1)
    if rows.shape[1] < 3 or rows.size < 16 or not np.isfinite(rows).all():
        return False
    sizes = np.sqrt(np.square(rows).mean(axis=1))
    return bool(sizes.min() > 0 and (np.abs(rows.mean(axis=1)) < ALIKE * sizes).all())


def has_mean(op: Linear) -> bool:
    """Whether the weights into the outputs have means that independent weights of mean 0 would not have (beyond ten standard errors)."""
    rows = np.asarray(op.weight, dtype=np.float64).reshape(op.weight.shape[0], -1)
    spread = rows.std()
    if rows.size < 16 or not np.isfinite(spread) or spread == 0:
        return bool(rows.size >= 16 and np.isfinite(spread) and rows.any())
    excess = np.square(rows.mean(axis=1)) * rows.shape[1] / spread**2  # chi-squared with one degree of freedom each
    return bool(excess.sum() > len(rows) + 10 * np.sqrt(2 * len(rows)))


class Owners:
    """The layers met so far by their weights."""

    def __init__(self) -> None:
        self._parts: dict[str, list[tuple[frozenset[int] | None, str]]] = {}
        self._marks: dict[str, np.ndarray] = {}
        self._rows: dict[int, str] = {}
        self._along: dict[str, str] = {}

    def along_locations(self, op: Linear) -> str | None:
        """The layer that has these weights as Gaussian ones; else they may stand as numbers, as often as they are read."""
        self._along.setdefault(op.parameter, op.name)
        return next((name for _, name in self._parts.get(op.parameter, ())), None)

    def sharing(self, op: Linear) -> str | None:
        """The layer whose parameter, or some rows of it, this one has too; notes it else."""
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
        """A layer with the same weights up to their order and one factor: tied by way of memory, arithmetic, or copies not drawn anew."""
        mark = fingerprint(op.weight)
        if mark is None:
            return None
        for name, other in self._marks.items():
            if np.allclose(mark, other, rtol=1e-6, atol=0):
                return name
        self._marks[op.name] = mark
        return self._same_rows(op)

    def _same_rows(self, op: Linear) -> str | None:
        """A layer some of whose outputs have the very weights of outputs of this one: overlapping slices of one array."""
        found: str | None = None
        rows = np.ascontiguousarray(op.weight).reshape(op.weight.shape[0], -1)
        for row in rows if rows.shape[1] >= 4 else ():
            if len(set(row[:16].tolist())) >= 4:
                other = self._rows.setdefault(hash(row.tobytes()), op.name)
                found = found or (other if other != op.name else None)
        return found
