"""Transposed window sums, for backpropagation through convolutions and pooling."""

from __future__ import annotations

from math import prod

import numpy as np

from ..array_operations import CONTINUED
from ..windows import TapWindow

Array = np.ndarray


def cut(window: TapWindow) -> bool:
    """True if some window reaches beyond the image into zeros."""
    return any(
        a.padding not in CONTINUED
        and (a.offsets[0] < 0 or (a.out - 1) * a.stride + a.offsets[-1] >= a.size)
        for a in window.axes
    )


def spread(window: TapWindow, values: Array) -> Array:
    """The transpose of ``window.summed``: (output locations,) -> (locations,)."""
    sources = window.sources
    inside = sources >= 0
    sent = np.broadcast_to(values[:, None], sources.shape)
    return np.bincount(
        sources[inside], weights=sent[inside], minlength=prod(axis.size for axis in window.axes)
    )


def spread_pairs(window: TapWindow, values: Array) -> Array:
    """The transpose of ``window.summed_pairs``.

    It maps values at pairs of output locations to pairs of locations, with the same tap for both.
    """
    size = prod(axis.size for axis in window.axes)
    out = np.zeros((size, size))
    for tap in window.sources.T:  # a tap may read a location twice if the image is extended
        inside = np.flatnonzero(tap >= 0)
        np.add.at(out, np.ix_(tap[inside], tap[inside]), values[np.ix_(inside, inside)])
    return out


def spread_apart(window: TapWindow, values: Array) -> Array:
    """The transpose of ``window.summed_apart``.

    It maps values at pairs of output locations to pairs of locations, over all pairs of taps.
    """
    matrix = incidence(window)
    return matrix.T @ values @ matrix


def incidence(window: TapWindow) -> Array:
    """The matrix (output locations, locations) that is 1 where the window reads the location."""
    sources = window.sources
    out = np.zeros((sources.shape[0], prod(axis.size for axis in window.axes)))
    rows, taps = np.nonzero(sources >= 0)
    out[rows, sources[rows, taps]] = 1.0
    return out
