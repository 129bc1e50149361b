"""Recognise operations that pick fixed entries along one axis, however they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

Array = np.ndarray
LARGEST = 2**24  # arrays with more entries are not tested


def in_step(places: Sequence[int]) -> Sequence[int]:
    """Return positions as a range if they are equally spaced, else as a tuple."""
    step = places[1] - places[0] if len(places) > 1 else 1
    whole = range(places[0], places[-1] + 1, step) if len(places) and step > 0 else range(0)
    return whole if tuple(whole) == tuple(places) else tuple(places)


def picked(
    shape: Sequence[int], pick: Callable[[Array], Array]
) -> tuple[int, Sequence[int]] | None:
    """Return the axis along which an operation picks entries, and their positions.

    Returns (0, all examples) if the operation returns its input unchanged. Returns None if the
    operation does not pick entries in this way, for example if their positions differ between
    examples.

    Parameters
    ----------
    shape
        The shape of the input, with the examples first.
    pick
        The model's operation. It is called with an array of entry indices.

    """
    if not prod(shape) or prod(shape) > LARGEST:
        return None
    whole = np.arange(prod(shape)).reshape(shape)
    there = np.asarray(pick(whole))
    if np.isnan(there).any():  # some places are beyond the end
        return None
    there = there.astype(np.int64)
    if np.array_equal(there.ravel(), whole.ravel()):
        return 0, range(shape[0])
    for axis in range(1, len(shape)):
        rest = prod(shape) // shape[axis]
        if there.size == 0 or there.size % rest:
            continue
        found = there.reshape(*shape[:axis], -1, *shape[axis + 1 :])
        first = np.moveaxis(found, axis, 0).reshape(found.shape[axis], -1)[:, 0]
        places = first // prod(shape[axis + 1 :]) % shape[axis]
        if np.array_equal(whole.take(places, axis), found):
            return axis, in_step(places.tolist())
    return None
