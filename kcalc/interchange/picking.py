"""Entries picked at fixed places along one axis, however the model picks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

Array = np.ndarray
LARGEST = 2**24  # entries of an array whose places are followed one by one


def in_step(places: Sequence[int]) -> Sequence[int]:
    """Return the places as a range if they are equally spaced."""
    step = places[1] - places[0] if len(places) > 1 else 1
    whole = range(places[0], places[-1] + 1, step) if len(places) and step > 0 else range(0)
    return whole if tuple(whole) == tuple(places) else tuple(places)


def picked(
    shape: Sequence[int], pick: Callable[[Array], Array]
) -> tuple[int, Sequence[int]] | None:
    """Return the axis and the places along it of the entries that ``pick`` takes of an array.

    (0, all examples) if it takes everything unchanged. None if it picks entries by other rules,
    such as other places for every example.

    Parameters
    ----------
    shape
        The shape of the array, examples first.
    pick
        The model's operation, which is run on the place of every entry.

    """
    if not prod(shape) or prod(shape) > LARGEST:
        return None
    whole = np.arange(prod(shape)).reshape(shape)
    there = np.asarray(pick(whole))
    if np.isnan(there).any():  # places beyond the end
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
