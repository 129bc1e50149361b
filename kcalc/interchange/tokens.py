"""Read fixed mixing of locations as a layer, and classify positional vectors."""

from __future__ import annotations

from math import prod

import numpy as np

from ..foundation.errors import KcalcError
from ..network.layers import TokenMix
from .ownership import has_mean
from .trace import Linear, Mixed

LARGEST = 2**20  # maximum number of entries in a matrix over all locations
COMPARED = 256  # number of positions whose vectors are compared


def mixed(op: Linear, text: str = "") -> Mixed:
    """Return a dense layer along locations as a Mixed with its weights."""
    return op.become(Mixed, matrix=np.asarray(op.weight), axis=op.axis, text=text, owner=op)


def mixing_layer(
    op: Mixed, before: tuple[int, ...], channels: int | None
) -> tuple[TokenMix | None, str]:
    """Return (layer, "") for a Mixed, or (None, reason) if there is no such layer.

    ``before``: the shape of its input; ``channels``: the channel axis.
    """
    if channels is None or channels == op.axis or op.axis == 0:
        known = (
            "which is the axis of examples" if op.axis == 0 else "and the channel axis is unknown"
        )
        return None, f"its weights act along axis {op.axis} of {before}, {known}"
    matrix = np.asarray(op.matrix, dtype=np.float64)
    sizes = [n for i, n in enumerate(before) if i not in (0, channels)]
    place = [i for i in range(1, len(before)) if i != channels].index(op.axis)
    random = op.owner is not None and not (has_mean(op.owner) or permuted(matrix))
    if len(sizes) > 1 and matrix.shape[0] != matrix.shape[1]:
        made, read = matrix.shape
        return (
            None,
            f"it mixes {read} locations into {made} along one of {len(sizes)} axes; kcalc has a "
            f"rule for this only if these two numbers are equal",
        )
    if prod(sizes) * prod(sizes) > LARGEST:
        return None, f"it mixes {prod(sizes)} locations, which is too many for kcalc"
    whole = np.kron(np.kron(np.eye(prod(sizes[:place])), matrix), np.eye(prod(sizes[place + 1 :])))
    try:
        return TokenMix(tuple(map(tuple, whole.tolist())), random), ""
    except KcalcError as error:
        return None, str(error)


def permuted(matrix: np.ndarray) -> bool:
    """Whether no row has more than one nonzero entry."""
    return bool((np.count_nonzero(matrix, axis=1) <= 1).all())


def vectors_of(rows: np.ndarray) -> str:
    """Return the kind of positional vectors: "constant", "sinusoidal" or "learned"."""
    if (rows == rows[:1]).all():
        return "constant"
    few = rows[:COMPARED]
    speeds = 10000.0 ** (-2.0 * np.arange(rows.shape[1] // 2) / rows.shape[1])
    turns = np.exp(1j * np.outer(np.arange(len(few)), speeds))
    waves = (turns @ turns.conj().T).real / max(len(speeds), 1)
    cosines = few @ few.T / max(float(np.square(few).mean()) * rows.shape[1], np.finfo(float).tiny)
    return "sinusoidal" if np.abs(cosines - waves).max() < 0.02 else "learned"
