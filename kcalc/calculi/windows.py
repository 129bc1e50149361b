"""Locations that a convolution or a pooling window reads, axis by axis, and sums over them.

Output location ``o`` reads the input locations ``o * stride + offset`` for the offsets of the taps.
Padding "same", "circular", "reflect" and "replicate" put
``max((ceil(n / stride) - 1) stride + k - n, 0)`` locations around an axis of length n, with the
smaller half first, as in XLA. "causal" puts all of them first. A number pads both sides by that
many locations. Zero padding reads zeros; the other kinds reuse image locations.
:mod:`kcalc.calculi.arrays` uses the same windows.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError, glimpse
from ..foundation.process_state import cached_property
from ..network.primitives import Fresh, Resize, Shuffle
from ..network.primitives import Window as Pooling
from .array_operations import CONTINUED, axis_padding, resize_matrix

Node = Hashable
Array = np.ndarray


@dataclass(frozen=True)
class Axis:
    """One spatial axis with ``size`` input locations and ``out`` output locations."""

    size: int
    out: int
    stride: int
    offsets: tuple[int, ...]
    padding: Any = "same"

    def padded(self, values: Array, axis: int) -> tuple[Array, int]:
        """Return (values padded along ``axis``, the new index of location 0)."""
        before = max(0, -self.offsets[0])
        after = max(0, (self.out - 1) * self.stride + self.offsets[-1] - (self.size - 1))
        widths = [(0, 0)] * values.ndim
        widths[axis] = (before, after)
        if before == after == 0:
            return values, 0
        mode: Any = CONTINUED.get(self.padding, "constant")
        return np.pad(values, widths, mode=mode), before

    @property
    def places(self) -> Array:
        """The locations that each output reads, shape (outputs, taps); -1 means zero padding."""
        if self.padding not in CONTINUED:
            places = np.arange(self.out)[:, None] * self.stride + np.array(self.offsets)
            return np.where((places >= 0) & (places < self.size), places, -1)
        own, zero = self.padded(np.arange(self.size), 0)
        return own[np.arange(self.out)[:, None] * self.stride + np.array(self.offsets) + zero]


@dataclass(frozen=True)
class TapWindow:
    """The taps of a layer over all spatial axes."""

    axes: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of output locations along each axis."""
        return tuple(axis.out for axis in self.axes)

    @property
    def taps(self) -> int:
        """The number of taps; at a border some of them read padding."""
        return prod(len(axis.offsets) for axis in self.axes)

    @cached_property
    def counts(self) -> Array:
        """The number of image locations that each output reads, not counting padding."""
        return (self.sources >= 0).sum(axis=1).astype(float)

    @property
    def trivial(self) -> bool:
        """True if every location reads only itself."""
        return all(a.size == a.out and a.stride == 1 and a.offsets == (0,) for a in self.axes)

    @cached_property
    def sources(self) -> Array:
        """The locations that each output reads, (output locations, taps); -1 means zero padding."""
        flat = np.zeros((1, 1), dtype=int)
        for axis in self.axes:
            place = axis.places
            rows, columns = flat[:, None, :, None], place[None, :, None, :]
            merged = np.where((rows < 0) | (columns < 0), -1, rows * axis.size + columns)
            flat = merged.reshape(flat.shape[0] * axis.out, -1)
        return flat

    def greatest(self, values: Array) -> Array:
        """Return upper bounds on pooled mean squares: the means of ``values`` over each window."""
        return self.summed(values) / self.counts

    def unfolded(self, values: Array) -> Array:
        """Map (..., locations) to (..., output locations, taps)."""
        padded = np.concatenate([values, np.zeros((*values.shape[:-1], 1))], axis=-1)
        return padded[..., self.sources]

    def summed(self, values: Array) -> Array:
        """Map (..., locations) to (..., output locations): sums over taps."""
        return self._boxed(values.reshape(*values.shape[:-1], *self._sizes), 1).reshape(
            *values.shape[:-1], prod(self.shape)
        )

    def summed_pairs(self, values: Array) -> Array:
        """Map (..., P, P) to (..., P', P'): sums over taps t of ``K[p + t, p' + t]``."""
        lead = values.shape[:-2]
        count = prod(self.shape)
        return self._boxed(values.reshape(*lead, *self._sizes, *self._sizes), 2).reshape(
            *lead, count, count
        )

    def _boxed(self, values: Array, copies: int) -> Array:
        d = len(self.axes)
        for number, axis in enumerate(self.axes):
            places = [values.ndim - copies * d + number + d * copy for copy in range(copies)]
            for place in places:
                values, zero = axis.padded(values, place)
            total: Array | None = None
            for offset in axis.offsets:
                part = values
                for place in places:
                    part = _strided(part, place, zero + offset, axis)
                total = part.copy() if total is None else np.add(total, part, out=total)
            assert total is not None
            values = total
        return values

    def summed_apart(self, values: Array) -> Array:
        """Map (..., P, P) to (..., P', P'): sums over all taps s and t of ``K[p + s, p' + t]``."""
        return self.summed(np.swapaxes(self.summed(values), -1, -2)).swapaxes(-1, -2)

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)


@dataclass(frozen=True)
class Mixing:
    """A matrix over locations with the methods of a :class:`TapWindow`.

    ``shape``: the number of output locations along each axis. Entries of ``matrix`` are the weights
    themselves; they are not divided by the number of locations.
    """

    shape: tuple[int, ...]
    matrix: tuple[tuple[float, ...], ...]

    trivial = False

    @cached_property
    def array(self) -> Array:
        """The matrix as an array of shape (output locations, locations)."""
        return np.array(self.matrix)

    @cached_property
    def counts(self) -> Array:
        """An array of ones, one per output location, because the layer emits sums, not means."""
        return np.ones(len(self.matrix))

    def summed(self, values: Array) -> Array:
        """Map (..., locations) to (..., output locations)."""
        return values @ self.array.T

    def summed_apart(self, values: Array) -> Array:
        """Map (..., P, P) to (..., P', P'): ``A K A^T``."""
        return self.array @ values @ self.array.T

    def greatest(self, values: Array) -> Array:
        """Return upper bounds on mixed mean squares, from mean squares (..., locations).

        The bound for output t is ``(sum_s |A_ts|)^2`` times the largest value that it reads. The
        result has shape (..., output locations).
        """
        reads = np.where(self.array != 0, values[..., None, :], 0.0).max(axis=-1)
        return reads * np.abs(self.array).sum(axis=1) ** 2


@dataclass(frozen=True, eq=False)
class Gather:
    """Output locations that each copy an input location, or are 0.

    ``sources``, (output locations,): the location that is read, or -1 for 0; ``factor``: the factor
    of q values; ``channels``, (output locations,): equal for outputs that read the same channels.
    """

    shape: tuple[int, ...]
    sources: Array
    factor: float
    channels: Array

    trivial = False


def resizing(op: Resize, node: Node, sizes: Sequence[int]) -> Gather | Mixing:
    """The locations that each location of a resized image reads.

    Raises: KcalcError naming the node if the factors do not fit the image.
    """
    factors, places = (_per_axis(v, node, "factor", len(sizes)) for v in (op.factor, op.place))
    axes = [resize_matrix(*a, op.form) for a in zip(sizes, factors, places, strict=True)]
    shape = tuple(len(axis) for axis in axes)
    if not all(shape):
        raise KcalcError(
            f"node {node!r} resizes a {_times(sizes)} image to 0 locations; use a larger "
            "image or factor"
        )
    if op.mixes:
        matrix = axes[0]
        for axis in axes[1:]:
            matrix = np.kron(matrix, axis)
        return Mixing(shape, tuple(map(tuple, matrix.tolist())))
    flat = np.zeros(1, dtype=int)
    for axis, size in zip(axes, sizes, strict=True):
        place = np.where(axis.any(axis=1), axis.argmax(axis=1), -1)
        dead = (flat[:, None] < 0) | (place[None] < 0)
        flat = np.where(dead, -1, flat[:, None] * size + place).reshape(-1)
    factor = prod(float(axis.max()) for axis in axes) ** 2
    return Gather(shape, flat, factor, np.zeros_like(flat))


def shuffling(op: Shuffle, node: Node, sizes: Sequence[int]) -> Gather:
    """The locations and channels that each location of a pixel shuffle reads.

    Raises: KcalcError naming the node, for a reverse shuffle and for an image with the wrong
    number of axes.
    """
    if op.back or len(op.factor) != len(sizes):
        raise KcalcError(
            f"node {node!r}: over locations, pixel shuffles are supported only from channels to "
            "locations, with one factor per axis of the image; use spatial='delta'"
        )
    shape = tuple(n * f for n, f in zip(sizes, op.factor, strict=True))
    places = np.indices(shape).reshape(len(shape), -1)
    steps = np.array(op.factor)[:, None]
    source, channels = (
        np.asarray(np.ravel_multi_index(tuple(index), extent))
        for index, extent in ((places // steps, tuple(sizes)), (places % steps, op.factor))
    )
    return Gather(shape, source, 1.0, channels)


def mixing(op: Pooling, node: Node, sizes: Sequence[int]) -> Mixing:
    """The matrix of a TokenMix over the locations of an image with axes of ``sizes``.

    Raises: KcalcError naming the node if the matrix does not fit the sizes.
    """
    assert op.matrix is not None
    rows, columns = len(op.matrix), len(op.matrix[0])
    if columns != prod(sizes):
        raise KcalcError(
            f"node {node!r} mixes {columns} tokens, but its input has {_times(sizes)} = "
            f"{prod(sizes)} locations"
        )
    return Mixing(tuple(sizes) if rows == columns else (rows,), op.matrix)


def _strided(values: Array, place: int, start: int, axis: Axis) -> Array:
    index = [slice(None)] * values.ndim
    index[place] = slice(start, start + (axis.out - 1) * axis.stride + 1, axis.stride)
    return values[tuple(index)]


def convolution(op: Fresh, node: Node, sizes: Sequence[int], delta: bool) -> TapWindow:
    """The taps of new weights on an image; ``delta`` keeps only the centre tap, (k - 1) // 2.

    Raises: KcalcError naming the node if the sizes do not fit.
    """
    kernels = _per_axis(op.kernel, node, "kernel", len(sizes))
    strides = _per_axis(op.stride, node, "stride", len(sizes))
    dilations = _per_axis(op.dilation, node, "dilation", len(sizes))
    paddings = _per_axis(op.padding, node, "padding", len(sizes))
    axes = [
        _convolved(*given, node, sizes)
        for given in zip(sizes, kernels, strides, paddings, dilations, strict=True)
    ]
    if not delta:
        return TapWindow(tuple(axes))
    return TapWindow(tuple(replace(a, offsets=(a.offsets[_centre(a)],)) for a in axes))


def _convolved(
    size: int,
    kernel: int,
    stride: int,
    padding: Any,
    dilation: int,
    node: Node,
    sizes: Sequence[int],
) -> Axis:
    reach = (kernel - 1) * dilation + 1
    low, high = axis_padding(size, reach, stride, padding)
    out = (size + low + high - reach) // stride + 1
    if out < 1:
        raise KcalcError(
            f"node {node!r}: a kernel of {kernel} with padding {glimpse(padding)} does not fit "
            f"an image of {_times(sizes)} locations; use a larger image_shape, a smaller kernel "
            "or padding='same'"
        )
    return Axis(size, out, stride, tuple(t * dilation - low for t in range(kernel)), padding)


def pooling(op: Pooling, node: Node, sizes: Sequence[int]) -> TapWindow:
    """The windows of a pooling layer; a stride of None means the window size.

    Raises: KcalcError naming the node if no window fits the image.
    """
    if op.window is None:
        return everything(sizes)
    windows = _per_axis(op.window, node, "window", len(sizes))
    strides = windows if op.stride is None else _per_axis(op.stride, node, "stride", len(sizes))
    if op.padding == "valid" and any(k > n for k, n in zip(windows, sizes, strict=True)):
        raise KcalcError(
            f"node {node!r} pools windows of {_times(windows)}, but its image has {_times(sizes)} "
            f"locations"
        )
    return TapWindow(
        tuple(
            _convolved(n, k, s, op.padding, 1, node, sizes)
            for n, k, s in zip(sizes, windows, strides, strict=True)
        )
    )


def everything(sizes: Sequence[int]) -> TapWindow:
    """A single output that reads all locations, as in a dense layer after Flatten."""
    return TapWindow(tuple(Axis(n, 1, 1, tuple(range(n))) for n in sizes))


def _per_axis(value: Any, node: Node, what: str, count: int) -> tuple[int, ...]:
    if not isinstance(value, tuple):
        return (value,) * count
    if len(value) != count:
        raise KcalcError(
            f"node {node!r}: {what}={glimpse(value)} has {len(value)} numbers, but the image has "
            f"{count} axes"
        )
    return value


def _times(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def _centre(axis: Axis) -> int:
    """The tap of Delta-initialised weights, which reads the image at every output."""
    return -1 if axis.padding == "causal" else (len(axis.offsets) - 1) // 2
