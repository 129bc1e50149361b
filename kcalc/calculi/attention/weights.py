"""Attention weights from scores: softmax, with or without a sink, and elementwise functions.

The module also selects the scores that a mask keeps and the bias of each score.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...activations import Activation, activation
from ...network import masks
from ...network.score_biases import buckets_of

Array = Any


def visible(op: Any, rows: int, columns: int) -> np.ndarray:
    """Whether a token (row) sees another token (column) under the masks of an ``Attend``."""
    return masks.visible(op.masks, rows, columns)


def mean_over_visible(op: Any, rows: int, columns: int) -> np.ndarray:
    """Return the matrix whose rows average over the tokens that each token sees.

    Without a mask, every entry is ``1 / columns``.
    """
    sees = visible(op, rows, columns)
    return sees / sees.sum(axis=1, keepdims=True)


def distance_buckets(op: Any, rows: int, columns: int) -> np.ndarray:
    """Return the bucket of the learned bias for every score, as defined by ``op.relative``."""
    apart = np.arange(columns) - np.arange(rows)[:, None]
    _, buckets, furthest = op.relative
    return buckets_of(apart, buckets, furthest, masks.one_sided(op.masks))


def weights_of(op: Any, scores: Array, xp: Any) -> Array:
    """Compute weights (..., queries, keys) from scores with the normaliser of an ``Attend``.

    Masked scores are ``-inf``. ``xp`` is :mod:`numpy` or :mod:`jax.numpy`.
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
    """Return the weight of one of ``count`` keys as a function of its score.

    Such a function exists for all normalisers except softmax.
    """
    if op.normaliser == "sigmoid":
        return activation("sigmoid").transformed(input_shift=-math.log(count))
    return activation(op.normaliser).transformed(
        output_scale=1 / count if op.normaliser == "relu" else 1
    )
