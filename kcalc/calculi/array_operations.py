"""Array operations of :mod:`kcalc.calculi.arrays`: activations, convolution, pooling.

Padding ``"same"`` follows XLA; see :func:`same_padding`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..activations import Activation

Array = Any
Extent = tuple[int, int]
IMAGES = ("NHWC", "HWIO", "NHWC")
CONTINUED = {"circular": "wrap", "reflect": "reflect", "replicate": "edge"}
"""Mode of ``numpy.pad`` for each padding other than zeros."""


@lru_cache(maxsize=512)
def elementwise_form(phi: Activation) -> tuple[Hashable, tuple[float, ...]]:
    """Return (form, constants) of an activation.

    Activations with the same form differ only in their constants. The constants of phi(x) = a x for
    x >= 0 and b x for x < 0 are (a, b); for a transformed activation they are (input scale, input
    shift, output scale, output shift), followed by the constants of its base. Other activations
    have no constants.
    """
    t = phi.transformation
    if phi.degree == 1 and all(k == 0 for k in phi.kinks):
        return "rectifier", (float(phi(1.0)), -float(phi(-1.0)))
    if t is None:
        return phi, ()
    form, numbers = elementwise_form(phi.base)
    return ("transformed", form), (
        float(t.input_scale),
        float(t.input_shift),
        float(t.output_scale),
        float(t.output_shift),
        *numbers,
    )


def activate(phi: Activation, x: Array, numbers: Sequence[Any]) -> Array:
    """Apply ``phi`` with the given constants of its form, in at least single precision.

    The constants ``numbers`` may be traced.
    """
    import jax.numpy as jnp

    wide = x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x
    return _activated(elementwise_form(phi)[0], wide, numbers).astype(x.dtype)


def _activated(form: Any, x: Array, numbers: Sequence[Any]) -> Array:
    import jax.numpy as jnp

    from ..activations.jax_function import jax_function

    if form == "rectifier":
        above, below = numbers
        if isinstance(above, float) and isinstance(below, float) and above == below:
            return x if above == 1 else above * x
        return jnp.where(x >= 0, above * x, below * x)
    if isinstance(form, tuple):
        a, b, scale, shift = numbers[:4]
        return scale * (_activated(form[1], a * x + b, numbers[4:]) + shift)
    return jax_function(form)(x)


def divided(x: Array, square: Array) -> Array:
    """Return ``x / sqrt(square)``, or 0 where ``square`` is (almost) 0."""
    import jax.numpy as jnp

    tiny = float(jnp.finfo(x.dtype).tiny)
    return jnp.where(square > tiny, x / jnp.sqrt(jnp.where(square > tiny, square, 1)), 0)


# -- windows ---------------------------------------------------------------------------------------


def same_padding(size: int, window: int, stride: int) -> tuple[int, int]:
    """Return the padding (before, after) that gives ``ceil(size / stride)`` outputs.

    The smaller half comes first. XLA pads this way, and so do Flax and Keras.
    """
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


def axis_padding(size: int, window: int, stride: int, padding: Any) -> tuple[int, int]:
    """Return the padding (before, after) along one axis for a window over ``window`` positions."""
    if padding == "valid":
        return 0, 0
    if not isinstance(padding, str):
        return padding, padding
    low, high = same_padding(size, window, stride)
    return (low + high, 0) if padding == "causal" else (low, high)


def reach(window: Extent, dilation: Extent) -> Extent:
    """Return the number of positions from the first tap to the last, per axis."""
    rows, columns = ((k - 1) * d + 1 for k, d in zip(window, dilation, strict=True))
    return rows, columns


def window_padding(
    locations: Extent, window: Extent, stride: Extent, padding: Any
) -> tuple[tuple[int, int], ...]:
    """Return the padding (before, after) of each axis; see :func:`axis_padding`."""
    each = padding if isinstance(padding, tuple) else (padding,) * len(locations)
    return tuple(axis_padding(*axis) for axis in zip(locations, window, stride, each, strict=True))


def window_outputs(locations: Extent, window: Extent, stride: Extent, padding: Any) -> Extent:
    """Return the number of outputs per axis, which is <= 0 if the window does not fit."""
    sides = window_padding(locations, window, stride, padding)
    rows, columns = (
        (n + low + high - k) // s + 1
        for n, k, s, (low, high) in zip(locations, window, stride, sides, strict=True)
    )
    return rows, columns


def convolve(
    x: Array,
    weight: Array,
    stride: Extent,
    padding: Any,
    groups: int,
    dilation: Extent = (1, 1),
) -> Array:
    """Convolve ``x`` with ``weight``.

    The shapes are (..., height, width, channels) for ``x`` and
    (rows, columns, channels / groups, outputs) for ``weight``.
    """
    import jax

    batch, locations = x.shape[:-3], x.shape[-3:-1]
    window = reach(weight.shape[:2], dilation)
    sides = window_padding(locations, window, stride, padding)
    images = x.reshape(-1, *x.shape[-3:])
    if isinstance(padding, str) and padding in CONTINUED:
        images, sides = continued(images, sides, CONTINUED[padding]), ((0, 0), (0, 0))
    out = jax.lax.conv_general_dilated(
        images,
        weight,
        stride,
        sides,
        rhs_dilation=dilation,
        dimension_numbers=IMAGES,
        feature_group_count=groups,
    )
    return out.reshape(*batch, *out.shape[1:])


def continued(images: Array, sides: Sequence[tuple[int, int]], mode: str) -> Array:
    """Pad the sides of images as ``numpy.pad`` does in the given mode."""
    import jax.numpy as jnp

    return jnp.pad(images, ((0, 0), *sides, (0, 0)), mode=mode)


def grouped_product(x: Array, weight: Array, groups: int) -> Array:
    """Compute the product ``x W`` separately for each group of channels.

    The shapes are (..., channels) for ``x`` and (channels / groups, outputs) for ``weight``. Group
    g produces the g-th part of the outputs.
    """
    import jax.numpy as jnp

    parts = x.reshape(*x.shape[:-1], groups, -1)
    blocks = weight.reshape(weight.shape[0], groups, -1)
    out = jnp.einsum("...gi,igo->...go", parts, blocks)
    return out.reshape(*x.shape[:-1], -1)


def pool(
    x: Array,
    kind: str,
    window: Extent | None,
    stride: Extent | None,
    padding: str,
    weight: Array | None,
) -> Array:
    """Pool feature maps of shape (..., height, width, channels).

    ``window=None`` pools over all locations. With ``weight`` (rows, columns), the result is a
    weighted sum. If the border cuts off part of a window, the sum is scaled up to keep its expected
    square. Padding is never counted.
    """
    import jax.numpy as jnp

    if window is None or stride is None:
        if weight is not None:
            return jnp.einsum("...hwc,hw->...c", x, weight)
        return x.max(axis=(-3, -2)) if kind == "max" else x.mean(axis=(-3, -2))
    batch, images = x.shape[:-3], x.reshape(-1, *x.shape[-3:])
    out = _windowed(images, kind, window, stride, padding, weight)
    return out.reshape(*batch, *out.shape[1:])


def _windowed(
    images: Array, kind: str, window: Extent, stride: Extent, padding: str, weight: Array | None
) -> Array:
    import jax
    import jax.numpy as jnp

    locations = images.shape[1:3]
    sides = window_padding(locations, window, stride, padding)
    if weight is not None:
        channels = images.shape[-1]
        kernel = jnp.broadcast_to(weight[:, :, None, None], (*window, 1, channels)).astype(
            images.dtype
        )
        out = jax.lax.conv_general_dilated(
            images, kernel, stride, sides, dimension_numbers=IMAGES, feature_group_count=channels
        )
        return out * jnp.asarray(
            np.sqrt(math.prod(window) / _counts(locations, window, stride, padding)), out.dtype
        )
    span, steps, around = (1, *window, 1), (1, *stride, 1), ((0, 0), *sides, (0, 0))
    if kind == "max":
        return jax.lax.reduce_window(images, -jnp.inf, jax.lax.max, span, steps, around)
    total = jax.lax.reduce_window(images, 0.0, jax.lax.add, span, steps, around)
    return total / jnp.asarray(_counts(locations, window, stride, padding), images.dtype)


def _counts(locations: Extent, window: Extent, stride: Extent, padding: str) -> np.ndarray:
    """Return the number of image locations in each window, with shape (rows, columns, 1)."""
    inside: list[np.ndarray] = []
    for n, k, s in zip(locations, window, stride, strict=True):
        low, high = axis_padding(n, k, s, padding)
        starts = np.arange((n + low + high - k) // s + 1) * s - low
        inside.append(np.minimum(starts + k, n) - np.maximum(starts, 0))
    return (inside[0][:, None] * inside[1])[:, :, None].astype(float)


def resize_matrix(size: int, factor: Any, place: int, kind: str) -> np.ndarray:
    """Return the matrix (outputs, size) that a Resize applies along one axis of an image."""
    count = math.floor(size * float(factor) + 1e-9)
    rows, out = np.arange(count), np.zeros((count, size))
    if kind == "zeros":
        step = int(factor)
        out[np.arange(size) * step + place, np.arange(size)] = math.sqrt(step)
        return out
    if kind == "nearest":
        out[rows, np.minimum((rows * size) // max(count, 1), size - 1)] = 1
        return out
    if kind == "corners":
        at = rows * ((size - 1) / max(count - 1, 1))
    else:
        at = np.clip((rows + 0.5) * (size / max(count, 1)) - 0.5, 0, None)
    low = np.minimum(at.astype(int), size - 1)
    high = np.minimum(low + 1, size - 1)
    np.add.at(out, (rows, low), 1 - (at - low))
    np.add.at(out, (rows, high), at - low)
    return out


def resize(x: Array, factors: Sequence[Any], places: Sequence[int], kind: str) -> Array:
    """Resize images (..., height, width, channels) to a new number of rows and columns."""
    import jax.numpy as jnp

    rows, columns = (
        jnp.asarray(resize_matrix(n, f, p, kind), x.dtype)
        for n, f, p in zip(x.shape[-3:-1], factors, places, strict=True)
    )
    return jnp.einsum("...hwc,rh,sw->...rsc", x, rows, columns)


def pixel_shuffle(x: Array, factors: Sequence[int], back: bool) -> Array:
    """Turn channels into positions or, if ``back``, positions into channels.

    The images have shape (..., height, width, channels).
    """
    (height, width, channels), (r, s) = x.shape[-3:], factors
    if back:
        parts = x.reshape(*x.shape[:-3], height // r, r, width // s, s, channels)
        moved = parts.transpose(*_moved(parts, (0, 2, 4, 1, 3)))
        return moved.reshape(*x.shape[:-3], height // r, width // s, -1)
    parts = x.reshape(*x.shape[:-1], channels // (r * s), r, s)
    moved = parts.transpose(*_moved(parts, (0, 3, 1, 4, 2)))
    return moved.reshape(*x.shape[:-3], height * r, width * s, -1)


def _moved(x: Array, order: Sequence[int]) -> tuple[int, ...]:
    """Return the axes of a transpose that reorders the last axes and leaves the others first."""
    kept = x.ndim - len(order)
    return (*range(kept), *(kept + axis for axis in order))


def sinusoids(count: int, width: int) -> np.ndarray:
    """Return sinusoidal position vectors with mean square 1, as an array (count, width)."""
    angles = np.arange(count)[:, None] * 10000.0 ** (-2.0 * np.arange((width + 1) // 2) / width)
    return (
        np.sqrt(2)
        * np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(count, -1)[:, :width]
    )
