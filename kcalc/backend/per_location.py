"""Per-location normalisation of a network's input: every location vector gets a mean square of one [DKS sec. 10.2]."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import KcalcError, unknown
from ..fields import NUMPY
from ..jax_field import is_jax

VARIANTS = ("mean_norm", "constant", "none")


def normalise_locations(x: Any, extra: str = "mean_norm", value: float = 1.0, batch_axes: int = 1) -> Any:
    """``sqrt(k+1) (x_i, s) / sqrt(|x_i|^2 + s^2)`` for every location vector x_i of k channels: uniform q values of 1.

    Parameters: ``x`` has shape (batch..., locations..., k), the first ``batch_axes`` axes counting examples.  ``extra`` says what the new
    channel holds so that the length of a vector is not lost: "mean_norm", s^2 = the mean of |x_j|^2/k over the locations of the example
    (with one location alone the length is lost all the same: use "constant"); "constant", s = ``value`` > 0, from which x can be had back;
    "none", no new channel: ``sqrt(k) x_i / |x_i|``.
    Returns: an array of k+1 channels (k for "none"), NumPy float64 (float32 for float32) or JAX as ``x`` is.
    Raises: KcalcError for unknown variants, and for zero vectors (NumPy) where nothing gives them a direction; JAX gives nan there.
    """
    if extra not in VARIANTS:
        raise unknown("variant of per-location normalisation", extra, VARIANTS)
    if is_jax(x):
        import jax.numpy as xp

        array = x
    else:
        xp, array = np, np.asarray(NUMPY.number(x))
    if array.ndim < batch_axes + 1:
        raise KcalcError(f"x must have {batch_axes} axes of examples and one of channels at least, got shape {tuple(array.shape)}")
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise KcalcError(f"value must be a positive number, got {value!r}")
    channels = array.shape[-1]
    squares = (array * array).sum(axis=-1, keepdims=True)
    if extra == "none":
        _refuse_zero(xp, squares)
        return array * (channels**0.5 / xp.sqrt(squares))
    if extra == "constant":
        added = xp.full_like(squares, value)
    else:
        locations = tuple(range(batch_axes, array.ndim))
        added = xp.broadcast_to(xp.sqrt(squares.mean(axis=locations, keepdims=True) / channels), squares.shape)
        _refuse_zero(xp, added)
    joined = xp.concatenate([array, added], axis=-1)
    return joined * ((channels + 1) ** 0.5 / xp.sqrt(squares + added * added))


def _refuse_zero(xp: Any, squares: Any) -> None:
    if xp is np and not np.all(squares > 0):
        where = np.argwhere(~(squares > 0))[0]
        place = tuple(int(i) for i in where[:-1])
        raise KcalcError(f"the vector at {place} is zero or not a number, so it has no direction; use extra='constant'")
