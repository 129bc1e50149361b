"""Interpolation of functions of the angle on a fixed grid of Chebyshev panels.

Panels get smaller towards 0 and pi.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ..chebyshev import Piecewise, nodes, transform

TERMS = 16
NEAR, FAR = 28, 12  # number of octaves towards theta = 0 and theta = pi
_UP = np.append(0.0, 2.0 ** np.arange(1 - NEAR, 1)) * np.pi / 2
_EDGES = np.concatenate([_UP, np.pi - 2.0 ** -np.arange(1, FAR) * np.pi / 2, [np.pi]])


@lru_cache(maxsize=1)
def angular_nodes() -> np.ndarray:
    """Return the angles at which a function is evaluated, shape ((NEAR + FAR) * TERMS,)."""
    return nodes(_EDGES, TERMS).ravel()


def interpolated(values: Any, theta: Any) -> Any:
    """Interpolate ``values`` at :func:`angular_nodes` to angles theta in [0, pi].

    The result is differentiable with respect to both arguments.
    """
    import jax.numpy as jnp

    panels = jnp.broadcast_to(values, angular_nodes().shape).reshape(NEAR + FAR, TERMS)
    return Piecewise(_EDGES, jnp.asarray(transform(TERMS), theta.dtype) @ panels.T)(theta)
