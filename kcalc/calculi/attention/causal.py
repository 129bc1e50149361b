"""Exact rules for the first attention layer with a mask.

Tokens are exchangeable before this layer. Token i reads the first i tokens, or the tokens in its
window.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np

from ...gaussian.softmax import causal_overlaps, masked_overlaps
from ...network import primitives as P
from .softmax_rows import factor
from .weights import visible

Array = np.ndarray
MOST = 1024  # maximum number of tokens per sequence; the cost is quadratic
MOST_VARIANCE = 200.0  # the largest variance of scores; the grids grow with it


def exact_mask(op: P.Attend) -> bool:
    """Whether attention is masked and the overlaps of its rows are known.

    The overlaps are known for softmax with wide heads if only the mask distinguishes tokens.
    """
    plain = op.normaliser == "softmax" and op.scale != "linear" and op.identity == op.centre == 0
    plain = plain and bool(op.masks) and not op.sink
    return plain and op.rotary is None and not op.biased and op.sampled_width is None


def masked(
    op: P.Attend, queries: Array, keys: Array, values: Array, sequences: int
) -> Array | None:
    """Return the covariance (P, P) of the outputs of all tokens.

    The result is None if tokens are not exchangeable, or if the scores vary too much.

    The covariances of queries, keys and values have shape (chains, P, P). The result is
    ``O_ik = V_d + (V_s - V_d) S_ik``. Here V_s and V_d are the covariances of the values at equal
    and at different positions. S_ik is the overlap of rows i and k over the tokens that they see.
    """
    read = [_alike(covariance, sequences) for covariance in (queries, keys, values)]
    count = queries.shape[-1] // sequences
    if count > MOST or any(part is None for part in read):
        return None
    (g_same, g_other), (h_same, h_other), (v_same, v_other) = (
        part for part in read if part is not None
    )
    differ = float(factor(op)) * (h_same - h_other)
    variance = np.diagonal(g_same) * np.diagonal(differ)
    if not np.max(variance) <= MOST_VARIANCE:
        return None
    sees = visible(op, count, count)
    causal = np.array_equal(sees, np.tri(count, dtype=bool))
    out = np.empty((sequences, count, sequences, count))
    for s, t in combinations_with_replacement(range(sequences), 2):
        bound = np.sqrt(variance[s] * variance[t])
        numbers = (
            (variance[s], variance[t], np.clip(g[s, t] * differ[s, t], -bound, bound))
            for g in (g_same, g_other)
        )
        at = [
            causal_overlaps(count, *three) if causal else masked_overlaps(sees, *three)
            for three in numbers
        ]
        overlaps = np.where(np.eye(count, dtype=bool), *at)
        out[s, :, t] = v_other[s, t] + (v_same - v_other)[s, t] * overlaps
        out[t, :, s] = out[s, :, t].T
    return out.reshape(queries.shape[1:])


def _alike(covariance: Array, sequences: int) -> tuple[Array, Array] | None:
    """Return the covariances at equal and at different positions of two sequences.

    The result is None if tokens are not exchangeable.
    """
    if len(covariance) > 1:
        return None
    count = covariance.shape[-1] // sequences
    blocks = covariance[0].reshape(sequences, count, sequences, count).swapaxes(1, 2)
    same, other = blocks[:, :, 0, 0], blocks[:, :, 0, -1] if count > 1 else blocks[:, :, 0, 0]
    eye = np.eye(count)
    model = same[..., None, None] * eye + other[..., None, None] * (1 - eye)
    return (same, other) if np.abs(blocks - model).max() <= 1e-13 * np.abs(blocks).max() else None
