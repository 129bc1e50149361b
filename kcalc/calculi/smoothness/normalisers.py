"""Normalised parameterisations.

Each class provides the value, the first and second derivatives, and bounds for all parameters.

With eps > 0 and, for a row w, s = eps + |w|^2:

    entry    en(w)_j = w_j (eps + w_j^2)^(-1/2)
    weight   wn(w)   = w s^(-1/2), every row separately
    batch    bn(y)   = v(m(y)) on rows y of N examples; m subtracts the mean.
             v(y)    = sqrt(N) y (N eps + |y|^2)^(-1/2)

All act on the last axis of an array. The results are float64 for NumPy arrays, and JAX arrays for
JAX arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from ...fields.arguments import positive_number, real_array
from ...fields.jax_field import is_jax
from ...foundation.errors import KcalcError, unknown

if TYPE_CHECKING:
    import jax

Array: TypeAlias = "np.ndarray | jax.Array"


SECOND = 1.5 * 0.8**2.5
"""Maximum over t of |f''| for f(t) = t (1 + t^2)^(-1/2): 3 t (1 + t^2)^(-5/2) at t = 1/2."""


@dataclass(frozen=True)
class NormaliserBounds:
    """Suprema of the norms of a map and its derivatives over all parameters.

    ``value`` is the supremum of the spectral norm of the normalised matrix; ``first`` and
    ``second`` are the suprema of norms of the first and second derivatives.

    ``first`` refers to the operator norm of the derivative, and ``second`` to the norm of the
    bilinear map D^2, both with respect to Frobenius norms.
    """

    value: float
    first: float
    second: float

    def scaled(self, factor: float) -> NormaliserBounds:
        """Return the bounds for the map multiplied by ``factor``."""
        return NormaliserBounds(factor * self.value, factor * self.first, factor * self.second)


@dataclass(frozen=True)
class Normaliser:
    """A normalised parameterisation with regulariser ``epsilon`` > 0.

    Raises: KcalcError if ``epsilon`` is not a number > 0.
    """

    epsilon: float = 1.0
    kind: ClassVar[str] = ""

    def value(self, w: Array) -> Array:
        """The normalised array, with the shape of ``w``."""
        raise NotImplementedError

    def bounds(self, rows: int, columns: int) -> NormaliserBounds:
        """Bounds on the map and on its first two derivatives over all (rows, columns) matrices."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive_number(self.epsilon, "epsilon"))


@dataclass(frozen=True)
class EntryNormalisation(Normaliser):
    """``en(w) = w (eps + w^2)^(-1/2)``, elementwise.

    [MacDonald et al. 2023, eq. 32-33, with the exponent in 33 corrected to -5/2]

    The derivatives are diagonal, and are returned as arrays with the shape of w.
    """

    kind: ClassVar[str] = "entry"

    def value(self, w: Array) -> Array:
        """Return en(w), with entries in (-1, 1)."""
        xp, w = _arrays(w, "w")
        return w / xp.sqrt(self.epsilon + w * w)

    def derivative(self, w: Array) -> Array:
        """Return ``eps (eps + w^2)^(-3/2)``, the slope of every entry."""
        xp, w = _arrays(w, "w")
        s = self.epsilon + w * w
        return self.epsilon / (s * xp.sqrt(s))

    def second_derivative(self, w: Array) -> Array:
        """Return ``-3 eps w (eps + w^2)^(-5/2)``, the curvature of every entry."""
        xp, w = _arrays(w, "w")
        s = self.epsilon + w * w
        return -3 * self.epsilon * w / (s * s * xp.sqrt(s))

    def smallest_slope(self, w: Array) -> float:
        """The smallest singular value of the derivative at w.

        The value is positive everywhere and tends to 0 as an entry grows.
        """
        return float(np.min(self.derivative(np.abs(np.asarray(w, float)).max(initial=0.0))))

    def bounds(self, rows: int, columns: int) -> NormaliserBounds:
        """Bounds for (rows, columns) matrices.

        |en| < sqrt(rows columns), |D| <= eps^(-1/2) and |D^2| <= 0.85865 / eps; the last two are
        attained.
        """
        return NormaliserBounds(
            float(np.sqrt(rows * columns)), self.epsilon**-0.5, SECOND / self.epsilon
        )


@dataclass(frozen=True)
class WeightNormalisation(Normaliser):
    """``wn(w) = w (eps + |w|^2)^(-1/2)`` row by row [MacDonald et al. 2023, eq. 30-31].

    Rows do not mix. For an array (..., d), the first derivative is (..., d, d) with [..., j, l] = d
    wn_j / d w_l, and the second derivative is (..., d, d, d).
    """

    kind: ClassVar[str] = "weight"

    def value(self, w: Array) -> Array:
        """Return wn(w), whose rows have norms below 1."""
        xp, w = _rows(w, "w")
        return w / xp.sqrt(self.epsilon + (w * w).sum(-1, keepdims=True))

    def derivative(self, w: Array) -> Array:
        """Return ``s^(-1/2) (I - w w^T / s)`` for every row."""
        xp, w = _rows(w, "w")
        s = (self.epsilon + (w * w).sum(-1))[..., None, None]
        eye = xp.eye(w.shape[-1], dtype=w.dtype)
        return (eye - w[..., :, None] * w[..., None, :] / s) / xp.sqrt(s)

    def second_derivative(self, w: Array) -> Array:
        """The second derivative for every row.

        The derivative is ``s^(-3/2) (3 w_j w_l w_n / s - delta_jl w_n - delta_ln w_j - delta_jn
        w_l)``.
        """
        xp, w = _rows(w, "w")
        s = (self.epsilon + (w * w).sum(-1))[..., None, None, None]
        one, two, three = w[..., :, None, None], w[..., None, :, None], w[..., None, None, :]
        eye = xp.eye(w.shape[-1], dtype=w.dtype)
        mixed = eye[:, :, None] * three + eye[None] * one + eye[:, None, :] * two
        return (3 * one * two * three / s - mixed) / (s * xp.sqrt(s))

    def smallest_slope(self, w: Array) -> float:
        """The smallest singular value of the derivative, ``eps s^(-3/2)`` along the longest row."""
        _, w = _rows(w, "w")
        s = self.epsilon + float((w * w).sum(-1).max())
        return self.epsilon * s**-1.5

    def bounds(self, rows: int, columns: int) -> NormaliserBounds:
        """Bounds on wn and on its first and second derivatives for (rows, columns) matrices.

        |wn| < sqrt(rows), which is approached if all rows are parallel. |D| <= eps^(-1/2) and
        |D^2| <= 0.85865 / eps, and both are attained.
        """
        return NormaliserBounds(float(np.sqrt(rows)), self.epsilon**-0.5, SECOND / self.epsilon)


@dataclass(frozen=True)
class BatchNormalisation(Normaliser):
    """``bn = v o m`` on rows of N examples [MacDonald et al. 2023, eq. 22, 25-29].

    Gain and offset are omitted.

    :meth:`value` and the derivatives describe bn; :meth:`scaling` and :meth:`centring` are v and m.
    """

    kind: ClassVar[str] = "batch"

    def centring(self, x: Array) -> Array:
        """Subtract the mean over the last axis; this map m is the projection ``I - 11^T / N``."""
        _, x = _rows(x, "x")
        return x - x.mean(-1, keepdims=True)

    def scaling(self, y: Array) -> Array:
        """Return ``v(y) = sqrt(N) y (N eps + |y|^2)^(-1/2)``."""
        n, rows = self._of_rows(y)
        return n**0.5 * rows.value(y)

    def _of_rows(self, y: Array) -> tuple[int, WeightNormalisation]:
        """Return N and the weight normalisation wn with v = sqrt(N) wn."""
        n = _rows(y, "y")[1].shape[-1]
        return n, WeightNormalisation(n * self.epsilon)

    def scaling_derivative(self, y: Array) -> Array:
        """Return Dv, of shape (..., N, N)."""
        n, rows = self._of_rows(y)
        return n**0.5 * rows.derivative(y)

    def scaling_second_derivative(self, y: Array) -> Array:
        """Return D^2 v, of shape (..., N, N, N)."""
        n, rows = self._of_rows(y)
        return n**0.5 * rows.second_derivative(y)

    def value(self, w: Array) -> Array:
        """Return bn(w), whose rows have mean 0 and mean square below 1."""
        return self.scaling(self.centring(w))

    def derivative(self, x: Array) -> Array:
        """Return D bn = Dv(m x) (I - 11^T / N), of shape (..., N, N)."""
        first = self.scaling_derivative(self.centring(x))
        return first - first.mean(-1, keepdims=True)

    def second_derivative(self, x: Array) -> Array:
        """Return D^2 bn, of shape (..., N, N, N)."""
        second = self.scaling_second_derivative(self.centring(x))
        second = second - second.mean(-1, keepdims=True)
        return second - second.mean(-2, keepdims=True)

    def bounds(self, rows: int, columns: int) -> NormaliserBounds:
        """Bounds on bn and on its first and second derivatives for (rows, N) matrices.

        |bn| < sqrt(N rows), |D| <= eps^(-1/2), |D^2| <= 0.85865 / (sqrt(N) eps).
        """
        return NormaliserBounds(
            float(np.sqrt(rows * columns)),
            self.epsilon**-0.5,
            SECOND / (np.sqrt(columns) * self.epsilon),
        )


NORMALISERS: dict[str, type[Normaliser]] = {
    kind.kind: kind for kind in (EntryNormalisation, WeightNormalisation, BatchNormalisation)
}


def normaliser(kind: str, epsilon: float = 1.0) -> Normaliser:
    """The normaliser with a given name: "entry", "weight" or "batch".

    Raises: KcalcError for other names and for epsilon <= 0.
    """
    if not isinstance(kind, str) or kind not in NORMALISERS:
        raise unknown("normaliser", kind, NORMALISERS)
    return NORMALISERS[kind](epsilon)


def _arrays(w: Array, what: str) -> tuple[Any, Array]:
    """Return the array module (NumPy or JAX) and the array."""
    if is_jax(w):
        import jax.numpy as jnp

        return jnp, w
    return np, real_array(w, what)


def _rows(w: Array, what: str) -> tuple[Any, Array]:
    xp, w = _arrays(w, what)
    if w.ndim < 1 or w.shape[-1] < 1:
        raise KcalcError(
            f"{what} must be an array of rows with shape (..., d) and d >= 1, got shape "
            f"{tuple(w.shape)}"
        )
    return xp, w
