"""Interpolation of functions of the angle on a fixed grid of Chebyshev panels.

Panels shrink towards 0 and pi.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

DEGREE = 15
NEAR, FAR = 28, 12  # octaves towards theta = 0 and theta = pi


@lru_cache(maxsize=1)
def angular_nodes() -> np.ndarray:
    """The angles at which a function is evaluated, shape ((NEAR + FAR) * (DEGREE + 1),)."""
    t = _chebyshev()
    low = np.concatenate([_panel(k, NEAR, t) for k in range(NEAR)])
    high = np.concatenate([_panel(k, FAR, t) for k in range(FAR)])
    return np.concatenate([low * np.pi / 2, np.pi - high * np.pi / 2])


def _chebyshev() -> np.ndarray:
    return np.cos((np.arange(DEGREE + 1) + 0.5) * np.pi / (DEGREE + 1))


def _panel(k: int, last: int, t: np.ndarray) -> np.ndarray:
    """Nodes in [2^-(k+1), 2^-k], the last panel reaching down to 0."""
    low = 0.0 if k == last - 1 else 2.0 ** -(k + 1)
    return (low + 2.0**-k) / 2 + (2.0**-k - low) / 2 * t


@lru_cache(maxsize=1)
def _matrix() -> np.ndarray:
    """The matrix from values at the Chebyshev nodes to Chebyshev coefficients."""
    angles = (np.arange(DEGREE + 1) + 0.5) * np.pi / (DEGREE + 1)
    matrix = np.cos(np.arange(DEGREE + 1)[:, None] * angles) * 2 / (DEGREE + 1)
    matrix[0] /= 2
    return matrix


def interpolated(values: Any, theta: Any) -> Any:
    """The interpolant of ``values`` at :func:`angular_nodes`, evaluated at angles in [0, pi].

    It is differentiable in both arguments.
    """
    import jax.numpy as jnp
    from jax import lax

    shape = (NEAR + FAR, DEGREE + 1)
    coefficients = jnp.broadcast_to(values, angular_nodes().shape).reshape(shape) @ jnp.asarray(
        _matrix().T, theta.dtype
    )
    upper = theta > np.pi / 2
    x = jnp.where(upper, np.pi - theta, theta) / (np.pi / 2)
    last = jnp.where(upper, FAR - 1, NEAR - 1)
    octave = jnp.floor(-jnp.log2(lax.stop_gradient(jnp.maximum(x, 1e-30)))).astype(jnp.int32)
    k = jnp.clip(octave, 0, last)
    high = jnp.exp2(-k.astype(theta.dtype))
    low = jnp.where(k == last, 0.0, high / 2)
    t = (2 * x - high - low) / (high - low)
    row = coefficients[k + jnp.where(upper, NEAR, 0)]
    older, newer = jnp.zeros_like(t), jnp.zeros_like(t)
    for n in range(DEGREE, 0, -1):
        older, newer = newer, 2 * t * newer - older + row[..., n]
    return t * newer - older + row[..., 0]
