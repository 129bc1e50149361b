"""Which locations convolutions and pooling windows read when a network runs on arrays, and the transposed sums of backpropagation.

The windows are those of :mod:`kcalc.calculi.array_operations`, so that every position map is that of the JAX model: with "same" padding the
centre tap of output ``i`` reads the input at ``stride * i``, and pooling windows are padded too, what lies outside never counted.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ...errors import KcalcError
from ...layers import Affine, Pool
from ..array_operations import same_padding
from ..spatial.geometry import Axis, Window

Node = Hashable
Array = np.ndarray


def convolution(layer: Affine, node: Node, sizes: Sequence[int]) -> Window:
    """The taps of a convolution. Raises: KcalcError naming the node for extents that do not fit."""
    given = [_per_axis(getattr(layer, name), node, name, len(sizes)) for name in ("kernel", "stride")]
    padding = layer.padding
    paddings = (padding,) * len(sizes) if isinstance(padding, str) else _per_axis(padding, node, "padding", len(sizes))
    return Window(tuple(_convolved(n, k, s, p, node) for n, k, s, p in zip(sizes, *given, paddings, strict=True)))


@lru_cache(maxsize=256)
def _convolved(size: int, kernel: int, stride: int, padding: Any, node: Node) -> Axis:
    low, high = (kernel - 1) // 2, kernel - 1 - (kernel - 1) // 2  # of circular padding
    if padding == "same":
        low, high = same_padding(size, kernel, stride)
    elif padding != "circular":
        low = high = 0 if padding == "valid" else padding
    out = (size + low + high - kernel) // stride + 1
    if out < 1:
        raise KcalcError(
            f"node {node!r}: a kernel of {kernel} with padding {padding!r} does not fit {size} locations; give a larger image_shape, "
            "a smaller kernel or padding='same'"
        )
    return Axis(size, out, stride, tuple(t - low for t in range(kernel)), padding == "circular")


def pooling(layer: Pool, node: Node, sizes: Sequence[int]) -> Window:
    """The windows of a pooling layer, padded as "same"; one window over everything where ``window`` is None."""
    if layer.window is None:
        return everything(sizes)
    windows = _per_axis(layer.window, node, "window", len(sizes))
    strides = windows if layer.stride is None else _per_axis(layer.stride, node, "stride", len(sizes))
    return Window(tuple(_convolved(n, k, s, "same", node) for n, k, s in zip(sizes, windows, strides, strict=True)))


def everything(sizes: Sequence[int]) -> Window:
    """One window over all locations."""
    return Window(tuple(Axis(n, 1, 1, tuple(range(n))) for n in sizes))


def _per_axis(value: Any, node: Node, what: str, count: int) -> tuple[int, ...]:
    if not isinstance(value, tuple):
        return (int(value),) * count
    if len(value) != count:
        raise KcalcError(f"node {node!r}: {what}={value!r} has {len(value)} numbers, the image has {count} axes")
    return value


def counts(window: Window) -> Array:
    """How many locations inside the image each window covers, (output locations,)."""
    return window.summed(np.ones(prod(axis.size for axis in window.axes)))


def cut(window: Window) -> bool:
    """True if some window reaches beyond the image into zeros."""
    return any(not a.circular and (a.offsets[0] < 0 or (a.out - 1) * a.stride + a.offsets[-1] >= a.size) for a in window.axes)


def spread(window: Window, values: Array) -> Array:
    """The transpose of ``window.summed``: (output locations,) -> (locations,)."""
    sources = window.sources
    inside = sources >= 0
    sent = np.broadcast_to(values[:, None], sources.shape)
    return np.bincount(sources[inside], weights=sent[inside], minlength=prod(axis.size for axis in window.axes))


def spread_pairs(window: Window, values: Array) -> Array:
    """The transpose of ``window.summed_pairs``: pairs of output locations -> pairs of locations, the same tap for both."""
    size = prod(axis.size for axis in window.axes)
    out = np.zeros((size, size))
    for tap in window.sources.T:  # within one tap every location is read at most once
        inside = np.flatnonzero(tap >= 0)
        out[np.ix_(tap[inside], tap[inside])] += values[np.ix_(inside, inside)]
    return out


def spread_apart(window: Window, values: Array) -> Array:
    """The transpose of ``window.summed_apart``: pairs of output locations -> pairs of locations, all pairs of taps."""
    matrix = incidence(window)
    return matrix.T @ values @ matrix


def incidence(window: Window) -> Array:
    """(output locations, locations): 1 where the window reads the location."""
    sources = window.sources
    out = np.zeros((sources.shape[0], prod(axis.size for axis in window.axes)))
    rows, taps = np.nonzero(sources >= 0)
    out[rows, sources[rows, taps]] = 1.0
    return out
