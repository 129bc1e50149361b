"""Windows, strides and paddings of a trace in the words of the layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Pads = Sequence[tuple[int, int]]


def extent(values: Sequence[int]) -> int | tuple[int, ...]:
    """One number where all axes agree, 1 where there are none."""
    if not values:
        return 1
    return int(values[0]) if len(set(values)) == 1 else tuple(int(v) for v in values)


def same_pads(sizes: Sequence[int], window: Sequence[int], stride: Sequence[int]) -> list[tuple[int, int]]:
    """What "same" puts around each axis: ceil(size / stride) windows, the smaller half first."""
    out = []
    for size, k, s in zip(sizes, window, stride, strict=True):
        total = max((-(-size // s) - 1) * s + k - size, 0)
        out.append((total // 2, total - total // 2))
    return out


def affine_padding(pads: Pads, sizes: Sequence[int], window: Sequence[int], stride: Sequence[int]) -> Any:
    """The padding of a convolution as :class:`kcalc.layers.Affine` takes it; None where it has no name there."""
    if not window:
        return "same"
    if list(pads) == same_pads(sizes, window, stride):
        return "same"
    if all(low == high == 0 for low, high in pads):
        return "valid"
    if all(low == high for low, high in pads):
        return extent([low for low, _ in pads])
    return None


def windows(pads: Pads, sizes: Sequence[int], window: Sequence[int], stride: Sequence[int]) -> list[int]:
    """The number of windows along each axis."""
    return [(n + low + high - k) // s + 1 for (low, high), n, k, s in zip(pads, sizes, window, stride, strict=True)]
