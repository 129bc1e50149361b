"""Rotary embeddings: queries and keys rotated by angles that grow with the position of a token.

With ``R_i`` the rotation at position i, scores are ``q_i . R_(j - i) k_j / sqrt(d_k)``. Small
changes in the queries have covariances ``Theta_ik``, the same in every channel. The resulting
changes in the scores have the covariance:

    Cov(ds_ij, ds_kl) = Theta_ik m_ijkl,   m_ijkl = (R_j k_j) . R_(i - k) (R_l k_l) / d_k
                      = sum_f cos((i - k) theta_f) C^f_jl + sin((i - k) theta_f) S^f_jl.

C^f is the dot product and S^f the cross product of the f-th pairs of channels of the rotated keys.
For changes in the keys, exchange i with j and k with l.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

Array = np.ndarray


def turns(base: float, width: int, count: int) -> Array:
    """Return the angles of rotary embeddings, with shape (positions, width / 2)."""
    return np.arange(count)[:, None] * base ** (-2.0 * np.arange(width // 2) / width)


def turned(x: Array, angles: Array) -> Array:
    """Rotate pairs of channels by angles; the first half of the channels pairs with the second."""
    a, b = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def by_angle(one: Array, two: Array) -> Iterator[tuple[Array, Array]]:
    """Yield ``C^f / d`` and ``S^f / d``, defined in the module docstring, for every angle f.

    ``one``, ``two``: rotated vectors, (draws, positions, d).
    """
    width = one.shape[-1]
    (a, b), (c, d) = (np.split(x, 2, axis=-1) for x in (one, two))
    for f in range(width // 2):
        u, v, x, y = (part[..., f] for part in (a, b, c, d))
        products = [left[..., :, None] * right[..., None, :] for left, right in ((u, x), (v, y))]
        crossed = [left[..., :, None] * right[..., None, :] for left, right in ((v, x), (u, y))]
        yield sum(products) / width, (crossed[0] - crossed[1]) / width


def apart(matrix: Array) -> Array:
    """Return ``i - k`` for every entry (i, k) of a matrix."""
    return np.subtract.outer(np.arange(matrix.shape[0]), np.arange(matrix.shape[1]))
