"""Attention weights of scores: softmax, with or without a sink, and functions of single scores.

Which scores a mask leaves, and which bias a score has.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...activations import Activation, activation
from ...network import masks

Array = Any


def visible(op: Any, rows: int, columns: int) -> np.ndarray:
    """Whether a token (row) sees another one (column) by the masks of an ``Attend``, an array."""
    return masks.visible(op.masks, rows, columns)


def mean_over_visible(op: Any, rows: int, columns: int) -> np.ndarray:
    """The matrix that takes the mean over the tokens that each token sees.

    It is ``1 / columns`` everywhere without a mask.
    """
    sees = visible(op, rows, columns)
    return sees / sees.sum(axis=1, keepdims=True)


def distance_buckets(op: Any, rows: int, columns: int) -> np.ndarray:
    """The bucket of the learned bias of every score, (rows, columns), by ``relative``.

    Near distances have a bucket each, farther ones share buckets that grow geometrically, those
    from ``furthest`` on the last one. [Raffel et al. 2020]
    """
    apart = np.arange(columns) - np.arange(rows)[:, None]
    _, buckets, furthest = op.relative
    return buckets_of(apart, buckets, furthest, masks.one_sided(op.masks))


def buckets_of(apart: np.ndarray, buckets: int, furthest: int, one_sided: bool) -> np.ndarray:
    """The buckets of distances ``j - i``, an array of whole numbers, as there.

    ``one_sided``: no token sees a later one.
    """
    half = buckets if one_sided else buckets // 2
    near, size = half // 2, np.maximum(-apart, 0) if one_sided else np.abs(apart)
    ratio = np.log(np.maximum(size, 1) / near) / math.log(furthest / near)
    # powers of the ratio stand at the edges of buckets, to rounding
    far = np.minimum(near + (ratio * (half - near) + 1e-9).astype(int), half - 1)
    return np.where(size < near, size, far) + (0 if one_sided else half * (apart > 0))


def alibi_slopes(heads: int) -> np.ndarray:
    """The slopes of ALiBi by head, as its code was released [Press et al. 2022].

    They are ``2^(-8 i / n)``, n the greatest power of 2 up to the number of heads; the heads
    beyond n have every other slope of 2n heads.
    """
    near = 1 << (heads.bit_length() - 1)
    powers = np.arange(1, near + 1), np.arange(0.5, heads - near)
    return 2.0 ** (-8 * np.concatenate(powers) / near)


def weights_of(op: Any, scores: Array, xp: Any) -> Array:
    """The weights of masked scores, (..., queries, keys), by the normaliser of an ``Attend``.

    Masked scores are ``-inf``.

    ``xp``: :mod:`numpy` or :mod:`jax.numpy`.
    """
    count = scores.shape[-1]
    if op.normaliser == "sigmoid":
        return 1 / (1 + xp.exp(math.log(count) - scores))
    if op.normaliser == "relu":
        return xp.maximum(scores, 0) / count
    if op.normaliser == "identity":
        return xp.where(xp.isinf(scores), 0, scores)
    largest = scores.max(axis=-1, keepdims=True)
    largest = xp.maximum(largest, 0) if op.sink else largest
    powers = xp.exp(scores - largest)
    total = powers.sum(axis=-1, keepdims=True)
    return powers / (total + xp.exp(-largest) if op.sink else total)


def elementwise(op: Any, count: int) -> Activation:
    """The weight among ``count`` keys as a function of one score; for all but softmax."""
    if op.normaliser == "sigmoid":
        return activation("sigmoid").transformed(input_shift=-math.log(count))
    return activation(op.normaliser).transformed(
        output_scale=1 / count if op.normaliser == "relu" else 1
    )
