"""Convert the windows, strides and paddings of a trace to layer fields.

If a layer cannot express a padding, a note describes how the positions differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..foundation.plain_arguments import choice
from .trace import Array, Linear

Pads = Sequence[tuple[int, int]]


LAWS = ("orthogonal_delta", "gaussian_delta", "keep")


def checked_law(weights: Any) -> str:
    """Return the name of an initial weight distribution after checking it.

    Raises: KcalcError for unknown names.
    """
    return choice(weights, "distribution of initial weights", LAWS)


def extent(values: Sequence[int]) -> int | tuple[int, ...]:
    """Return one value per axis as a tuple, or a single value if all agree (1 for no axes)."""
    if not values:
        return 1
    return int(values[0]) if len(set(values)) == 1 else tuple(int(v) for v in values)


def same_pads(
    sizes: Sequence[int], window: Sequence[int], stride: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the "same" padding around each axis.

    With this padding, an axis has ceil(size / stride) windows. If the padding is odd, the extra
    entry comes last.
    """
    out = []
    for size, k, s in zip(sizes, window, stride, strict=True):
        total = max((-(-size // s) - 1) * s + k - size, 0)
        out.append((total // 2, total - total // 2))
    return out


@dataclass(frozen=True)
class Fit:
    """The nearest ``padding`` that :class:`kcalc.network.layers.Affine` supports.

    ``text``: a description of how the positions differ from the model's, "" if they agree;
    ``centred``: whether some tap reads the image rather than the padding at every output, as Delta
    initialisation requires.
    """

    padding: Any
    text: str = ""
    centred: bool = True


def affine_fit(op: Linear, sizes: Sequence[int]) -> Fit:
    """Return the nearest padding of an Affine for a dense layer or convolution.

    ``sizes``: the extents of the image.
    """
    window, stride = op.kernel, op.stride or (1,) * len(op.kernel)
    pads = op.padding or ((0, 0),) * len(window)
    given = op.dilation or (1,) * len(window)
    steps = [d if k > 1 else 1 for d, k in zip(given, window, strict=True)]
    reach = [(k - 1) * d + 1 for k, d in zip(window, steps, strict=True)]
    name = affine_padding(pads, sizes, reach, stride)
    if op.mode != "zeros" and any(low or high for low, high in pads):
        if name == "same":
            return Fit(op.mode)
        text = f"the {op.mode} padding {tuple(pads)} is read as zero padding"
        return Fit(name or "same", text)
    if name is None:
        text = f"the padding {tuple(pads)} is read as 'same'"
        return Fit("same", text, _centred(pads, sizes, window, stride, steps))
    return Fit(name)


def spread_fit(op: Linear, sizes: Sequence[int]) -> tuple[Fit, int]:
    """Return how to read a transposed convolution as an Affine after a Resize with zeros.

    Returns: the nearest padding of the Affine, and the position of the image among the zeros.

    ``sizes``: the extents of the image before the Resize.
    """
    pads = op.padding or ((0, 0),) * len(op.kernel)
    wide = [n * s for n, s in zip(sizes, op.spread, strict=True)]
    found = []
    for place in range(min(op.spread)):
        moved = tuple(
            (low - place, high - (s - 1) + place)
            for (low, high), s in zip(pads, op.spread, strict=True)
        )
        if min(low for low, _ in moved) >= 0:
            found.append((affine_fit(replace(op, padding=moved, spread=()), wide), place))
    exact = sorted((p for p in found if not p[0].text), key=lambda p: p[0].padding != "same")
    text = (
        "the transposed convolution is read as one that multiplies the number of locations by "
        "its stride"
    )
    return exact[0] if exact else (Fit("same", text), 0)


def delta_taps(kernel: Sequence[int], spread: Sequence[int]) -> tuple[slice, ...]:
    """Return the nonzero taps of Delta-initialised weights.

    A convolution has one such tap, at the centre. A transposed convolution with stride ``spread``
    has ``spread`` such taps along each axis.
    """
    steps = spread or (1,) * len(kernel)
    starts = [
        k // 2 if s == 1 else max((k - s) // 2, 0) for k, s in zip(kernel, steps, strict=True)
    ]
    return tuple(slice(start, start + s) for start, s in zip(starts, steps, strict=True))


def turned_weights(weight: Array, groups: int) -> Array:
    """Convert the weights (inputs, outputs / groups, kernel...) of a transposed convolution.

    The result has the layout (outputs, inputs / groups, kernel...) of a convolution of the image
    with zeros between its pixels.
    """
    _, outputs, *kernel = weight.shape
    flipped = np.flip(weight, tuple(range(2, weight.ndim)))
    parts = flipped.reshape(groups, -1, outputs, *kernel).swapaxes(1, 2)
    return parts.reshape(groups * outputs, -1, *kernel)


def _centred(
    pads: Pads,
    sizes: Sequence[int],
    window: Sequence[int],
    stride: Sequence[int],
    steps: Sequence[int],
) -> bool:
    """Whether some tap reads the image, not the padding, at both the first and the last output.

    ``steps``: the dilation along each axis.
    """
    reach = [(k - 1) * d + 1 for k, d in zip(window, steps, strict=True)]
    counts = windows(pads, sizes, reach, stride)
    axes = zip(pads, sizes, window, stride, steps, counts, strict=True)
    return all(
        any(low <= t * d < low + n - (count - 1) * s for t in range(k))
        for (low, _), n, k, s, d, count in axes
    )


def affine_padding(
    pads: Pads, sizes: Sequence[int], window: Sequence[int], stride: Sequence[int]
) -> Any:
    """Return a convolution's padding as a value for :class:`~kcalc.network.layers.Affine`.

    Returns None if Affine does not support the padding.
    """
    if not window:
        return "same"
    reached = reached_pads(pads, sizes, window, stride)
    same = same_pads(sizes, window, stride)
    if same in (list(pads), reached):
        return "same"
    if all(low == high for low, high in pads):
        return extent([low for low, _ in pads]) if any(low for low, _ in pads) else "valid"
    if [(low + high, 0) for low, high in same] in (list(pads), reached):
        return "causal"
    return None if any(low or high for low, high in reached) else "valid"


def reached_pads(
    pads: Pads, sizes: Sequence[int], window: Sequence[int], stride: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the padding without the entries after the last window."""
    counts = windows(pads, sizes, window, stride)
    axes = zip(pads, sizes, window, stride, counts, strict=True)
    ends = [(count - 1) * s + k - n - low for (low, _), n, k, s, count in axes]
    return [(low, max(min(high, end), 0)) for (low, high), end in zip(pads, ends, strict=True)]


def windows(
    pads: Pads, sizes: Sequence[int], window: Sequence[int], stride: Sequence[int]
) -> list[int]:
    """Return the number of windows along each axis."""
    return [
        (n + low + high - k) // s + 1
        for (low, high), n, k, s in zip(pads, sizes, window, stride, strict=True)
    ]
