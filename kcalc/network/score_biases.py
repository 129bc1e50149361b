"""Attention score biases that depend on the distance between two tokens, as in released models."""

from __future__ import annotations

import math

import numpy as np


def buckets_of(apart: np.ndarray, buckets: int, furthest: int, one_sided: bool) -> np.ndarray:
    """Return the bucket of each distance ``j - i`` as an integer array.

    Each small distance has its own bucket. Larger distances share buckets that grow geometrically,
    and all distances of at least ``furthest`` share the last bucket. If ``one_sided``, no token
    sees a later token. [Raffel et al. 2020]
    """
    half = buckets if one_sided else buckets // 2
    near, size = half // 2, np.maximum(-apart, 0) if one_sided else np.abs(apart)
    ratio = np.log(np.maximum(size, 1) / near) / math.log(furthest / near)
    # powers of the ratio lie on bucket edges, up to rounding
    far = np.minimum(near + (ratio * (half - near) + 1e-9).astype(int), half - 1)
    return np.where(size < near, size, far) + (0 if one_sided else half * (apart > 0))


def alibi_slopes(heads: int) -> np.ndarray:
    """Return the ALiBi slope of each head, as in the released code [Press et al. 2022].

    The slopes are ``2^(-8 i / n)``, where n is the largest power of 2 that does not exceed the
    number of heads. Heads beyond n use every other slope for 2n heads.
    """
    near = 1 << (heads.bit_length() - 1)
    powers = np.arange(1, near + 1), np.arange(0.5, heads - near)
    return 2.0 ** (-8 * np.concatenate(powers) / near)
