"""Linear algebra with kernel matrices.

This module uses SciPy for NumPy arrays and ``jax.scipy`` for JAX arrays, with the same checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...fields.arguments import raw_array
from ...fields.jax_field import is_jax
from ...foundation.errors import KcalcError, glimpse
from ...maps import KernelMap
from ...matrices import float_matrix, not_positive_definite, symmetric_matrix

Array = Any  # a NumPy or a JAX array


@dataclass(frozen=True)
class Algebra:
    """Array and factorisation functions from JAX or from NumPy and SciPy.

    ``jax`` selects JAX, in double precision if ``double`` is set. Otherwise NumPy and SciPy are
    used.
    """

    jax: bool = False
    double: bool = True

    @property
    def xp(self) -> Any:
        """Return the library's array module."""
        if not self.jax:
            return np
        import jax.numpy as jnp

        return jnp

    @property
    def linalg(self) -> Any:
        """Return the library's linear algebra module."""
        if not self.jax:
            import scipy.linalg

            return scipy.linalg
        import jax.scipy.linalg

        return jax.scipy.linalg

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context for computations, which enables double precision in JAX if needed."""
        if not (self.jax and self.double):
            return nullcontext()
        import jax

        return jax.enable_x64(True)

    def matrix(self, value: Any, what: str) -> Array:
        """Check ``value`` and return it as a non-empty (n, m) array of finite floats.

        Values of JAX tracers are not checked.
        """
        if not self.jax:
            return float_matrix(value, what)
        if traced(value):
            if value.ndim != 2:
                raise KcalcError(f"{what} must be a matrix, got shape {value.shape}")
            return value
        return self.xp.asarray(float_matrix(value, what))

    def square(self, value: Any, what: str = "the kernel matrix") -> Array:
        """Check ``value`` and return it as a symmetric (n, n) array of finite floats."""
        if traced(value):
            return self.matrix(value, what)
        return (
            symmetric_matrix(value, what)
            if not self.jax
            else self.xp.asarray(symmetric_matrix(value, what))
        )

    def cholesky(self, matrix: Array, ridge: float, name: str) -> Array:
        """Return the lower Cholesky factor of ``matrix + ridge I``.

        Under a JAX trace, the result is nan if the matrix has no factor.

        Raises: a KcalcError that states the smallest eigenvalue if the matrix has no factor, or if
        a solve with the factor would have no correct digit.
        """
        moved = matrix + ridge * self.xp.eye(matrix.shape[0], dtype=matrix.dtype)
        if self.jax:
            factor = self.linalg.cholesky(moved, lower=True)
            if not traced(factor):
                check_factor(np.asarray(factor), np.asarray(moved), ridge, name)
            return factor
        try:
            factor = self.linalg.cholesky(moved, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            factor = np.full_like(moved, np.nan)
        check_factor(factor, moved, ridge, name)
        return factor

    def solve(self, factor: Array, right: Array) -> Array:
        """Return (L L^T)^-1 right."""
        return self.linalg.cho_solve((factor, True), right)

    def half_solve(self, factor: Array, right: Array) -> Array:
        """Return L^-1 right."""
        return self.linalg.solve_triangular(factor, right, lower=True)


def check_factor(factor: np.ndarray, matrix: np.ndarray, ridge: float, name: str) -> None:
    """Check the Cholesky factor of a matrix.

    Raises: KcalcError if the factor is missing, or if its condition number exceeds the precision.
    """
    import scipy.linalg

    if np.all(np.isfinite(factor)):
        estimate: Any = scipy.linalg.get_lapack_funcs("pocon", (factor,))
        reciprocal, _ = estimate(factor, np.abs(matrix).sum(axis=0).max(), uplo="L")
        if reciprocal > np.finfo(factor.dtype).eps:
            return
    eigenvalues = scipy.linalg.eigvalsh(matrix, check_finite=False)
    raise not_positive_definite(float(eigenvalues[0]), float(eigenvalues[-1]), ridge, name)


def traced(value: Any) -> bool:
    """Return whether a value is a JAX tracer, whose entries cannot be inspected."""
    if not is_jax(value):
        return False
    from jax.core import Tracer

    return isinstance(value, Tracer)


def algebra_of(*arrays: Any) -> Algebra:
    """Return the library that the arrays belong to: JAX if any of them is a JAX array.

    This does not import JAX.
    """
    given = [array for array in arrays if is_jax(array)]
    if not given:
        return Algebra()
    return Algebra(jax=True, double=any(array.dtype == np.float64 for array in given))


def targets(algebra: Algebra, y: Any, count: int, what: str = "y") -> tuple[Array, bool]:
    """Return targets as an (n, outputs) array, and whether they were given as (n,).

    Raises: KcalcError if the length differs from ``count``, and for nan or text.
    """
    y = y if is_jax(y) or traced(y) else raw_array(y, what)
    shape = np.shape(y)
    if len(shape) not in (1, 2) or shape[0] != count:
        raise KcalcError(
            f"{what} must have shape ({count},) or ({count}, outputs), with one row per input, got "
            f"shape {shape}"
        )
    if not traced(y):
        if not is_jax(y) and y.dtype.kind == "b":
            y = y.astype(float)
        return algebra.matrix(y.reshape(count, -1), what), len(shape) == 1
    return y.reshape(count, -1), len(shape) == 1


def gram(kernel: Any, X: Any, Y: Any = None) -> Array:
    """Return the kernel matrix between the rows of X and the rows of Y.

    This calls ``kernel.matrix(X, Y)``, or ``kernel(X, Y)`` if the kernel is a plain function.

    Raises: KcalcError for any other object, and for a kernel with several outputs.
    """
    if hasattr(kernel, "matrix"):
        found = kernel.matrix(X, Y)
    elif isinstance(kernel, KernelMap):
        raise KcalcError(
            "a Q or C map is not a kernel of inputs; pass kc.ntk(net) or kc.ntk(net).nngp"
        )
    elif callable(kernel):
        found = _called(kernel, X, X if Y is None else Y)
    else:
        given = getattr(kernel, "shape", None)
        what = f"a matrix of shape {tuple(given)}" if given else f"{type(kernel).__name__}"
        hint = (
            "; a matrix does not cover new inputs, so pass the kernel itself, or a function that "
            "computes the kernel matrix of X and Y"
            if given
            else ""
        )
        raise KcalcError(
            f"expected a kernel such as kc.ntk(net), or a function of (X, Y), got {what}{hint}"
        )
    if isinstance(found, Mapping):
        raise KcalcError(
            f"the kernel has several outputs ({', '.join(map(str, found))}); use a network "
            "with only one output"
        )
    rows, columns = len(X), len(X if Y is None else Y)
    shape = tuple(getattr(found, "shape", ()))
    if shape != (rows, columns):
        raise KcalcError(
            f"the kernel between {rows} and {columns} inputs must be an array of shape "
            f"({rows}, {columns}), got {shape}"
        )
    return found


def _called(kernel: Any, X: Any, Y: Any) -> Any:
    try:
        return kernel(X, Y)
    except TypeError as error:
        raise KcalcError(
            f"a kernel function must take (X, Y) and return a matrix; {glimpse(kernel)} failed: "
            f"{error}"
        ) from error


def diagonal(kernel: Any, X: Any, block: int = 64) -> Array:
    """Return K(x, x) for each row of X.

    A NumPy kernel that is a function of angle and q is evaluated at the q value of each row. Other
    kernels are evaluated in small blocks of the matrix.
    """
    if hasattr(kernel, "at_angle") and not traced(X):
        sizes = np.mean(np.square(np.asarray(X, dtype=float)), axis=1)
        found = np.array(kernel.at_angle(np.zeros(len(X)), np.where(sizes > 0, sizes, 1.0)))
        zero = np.flatnonzero(sizes == 0)
        if zero.size:  # the angle between a row and itself is 0
            found[zero] = gram(kernel, X[zero[:1]])[0, 0]
        return found
    algebra = algebra_of(X)
    parts = [algebra.xp.diagonal(gram(kernel, X[i : i + block])) for i in range(0, len(X), block)]
    return algebra.xp.concatenate(parts)


def inputs(X: Any, what: str = "X") -> Any:
    """Return inputs as an array with one row per input.

    Raises: KcalcError for text, ragged rows, nan or no rows.
    """
    if traced(X):
        return X
    X = X if is_jax(X) else raw_array(X, what)
    shape = np.shape(X)
    if len(shape) < 2 or 0 in shape:
        raise KcalcError(
            f"{what} must be a non-empty array of shape (n, features), with one row per input, got "
            f"shape {shape}"
        )
    if is_jax(X):
        float_matrix(X.reshape(len(X), -1), what)
        return X
    return float_matrix(np.asarray(X).reshape(shape[0], -1), what).reshape(shape)
