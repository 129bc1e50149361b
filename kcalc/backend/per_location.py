"""Per-location normalisation of a network's input.

The normalisation gives every location vector a mean square of one [DKS sec. 10.2].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from ..fields import NUMPY
from ..fields.arguments import positive_number
from ..fields.jax_field import is_jax
from ..foundation.errors import KcalcError
from ..foundation.plain_arguments import choice, whole

if TYPE_CHECKING:
    from jax import Array as JaxArray

VARIANTS = ("mean_norm", "constant", "none")


@overload
def normalise_locations(
    x: JaxArray,
    extra: Literal["mean_norm", "constant", "none"] = "mean_norm",
    value: float = 1.0,
    batch_axes: int = 1,
) -> JaxArray: ...
@overload
def normalise_locations(
    x: ArrayLike,
    extra: Literal["mean_norm", "constant", "none"] = "mean_norm",
    value: float = 1.0,
    batch_axes: int = 1,
) -> np.ndarray: ...
def normalise_locations(
    x: Any,
    extra: Literal["mean_norm", "constant", "none"] = "mean_norm",
    value: float = 1.0,
    batch_axes: int = 1,
) -> JaxArray | np.ndarray:
    """Normalise an input such that every location vector has a mean square of 1.

    Each location vector x_i of k channels becomes ``sqrt(k+1) (x_i, s) / sqrt(|x_i|^2 + s^2)``, so
    all q values are 1.

    Parameters
    ----------
    x
        An array of shape (batch..., locations..., k).
    extra
        The value s of the new channel. With "mean_norm", s^2 is the mean of |x_j|^2/k over the
        locations of the example, which preserves relative lengths. With "constant", s is ``value``,
        and x can be recovered; use it for a single location. With "none" there is no new channel,
        and the result is ``sqrt(k) x_i / |x_i|``.
    value
        The value of the new channel for ``extra="constant"``, > 0.
    batch_axes
        The number of leading batch axes.

    Returns
    -------
    JaxArray | np.ndarray
        An array with k+1 channels (k for "none"): a JAX array if ``x`` is one, otherwise a NumPy
        array in float64, or in float32 if ``x`` is float32.

    Raises
    ------
    KcalcError
        For unknown variants, and for zero vectors, which have no direction (in JAX, the result is
        nan instead).

    """
    choice(extra, "variant of per-location normalisation", VARIANTS)
    batch_axes, value = whole(batch_axes, "batch_axes", 0), positive_number(value, "value")
    if is_jax(x):
        import jax.numpy as xp

        array = x if xp.issubdtype(x.dtype, xp.floating) else x.astype(float)
    else:
        xp, array = np, _numbers(x)
        if getattr(x, "dtype", None) == np.float32:
            return normalise_locations(array, extra, value, batch_axes).astype(np.float32)
    if array.ndim < batch_axes + 1:
        raise KcalcError(
            f"x must have at least {batch_axes} batch axes and one channel axis, got shape "
            f"{tuple(array.shape)}"
        )
    channels = array.shape[-1]
    locations = tuple(range(batch_axes, array.ndim))
    together = locations if extra == "mean_norm" else (-1,)
    unit = _unit(
        xp, abs(array).max(axis=together, keepdims=True), value if extra == "constant" else 0
    )
    array = array / unit
    squares = (array * array).sum(axis=-1, keepdims=True)
    if extra == "none":
        _refuse_zero(xp, squares)
        return array * (channels**0.5 / xp.sqrt(squares))
    if extra == "constant":
        added = xp.broadcast_to(value / unit, squares.shape).astype(squares.dtype)
    else:
        added = xp.broadcast_to(
            xp.sqrt(squares.mean(axis=locations, keepdims=True) / channels), squares.shape
        )
        _refuse_zero(xp, added)
    joined = xp.concatenate([array, added], axis=-1)
    return joined * ((channels + 1) ** 0.5 / xp.sqrt(squares + added * added))


def _numbers(x: Any) -> np.ndarray:
    """Return ``x`` as float64.

    Raises KcalcError for text, complex numbers, nan and infinities.
    """
    array = np.asarray(x) if isinstance(x, np.ndarray | np.generic) else None
    if array is not None and array.dtype.kind == "f" and not np.isfinite(array).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise KcalcError(
            f"x contains {array[place]} at {place}; replace the entries that are not finite"
        )
    try:
        return np.asarray(NUMPY.number(x))
    except KcalcError as error:
        raise KcalcError(f"x must be an array of numbers: {error}") from None


def _unit(xp: Any, largest: Any, value: float) -> Any:
    """Return a power of two near the largest entry, or 1 if all entries are 0.

    Dividing by it is exact and keeps squares within the range of floats.
    """
    top = xp.maximum(largest, value)
    return xp.where(top > 0, xp.ldexp(xp.ones_like(top), xp.frexp(top)[1] - 1), xp.ones_like(top))


def _refuse_zero(xp: Any, squares: Any) -> None:
    if xp is np and not np.all(squares > 0):
        where = np.argwhere(~(squares > 0))[0]
        place = tuple(int(i) for i in where[:-1])
        raise KcalcError(
            f"the vector of x at {place} is zero, so it has no direction; use extra='constant'"
        )
