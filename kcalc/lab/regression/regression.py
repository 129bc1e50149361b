"""Kernel regression and Gaussian process inference with network kernels."""

from __future__ import annotations

import math
from copy import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ... import spectrum as spectra
from ...fields.jax_field import is_jax
from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import whole
from ...foundation.printing import Shown, plain, shown
from ...foundation.process_state import cached_property
from ...matrices import Spectrum, ridge_value
from .algebra import Algebra, Array, algebra_of, diagonal, gram, inputs, targets, traced

if TYPE_CHECKING:
    from ...maps import Assumption

__all__ = ["GaussianProcess", "KernelRegression", "gaussian_process", "kernel_regression"]


def kernel_regression(kernel: Any, X: Any, y: Any, ridge: float = 0.0) -> KernelRegression:
    """Fit kernel (ridge) regression: ``f(x) = K(x, X) (K(X, X) + ridge I)^-1 y``.

    With the NTK and ``ridge=0``, f is the limit of gradient descent on the square loss for an
    infinitely wide network, averaged over initialisations.

    Parameters
    ----------
    kernel
        ``kc.ntk(net)``, its ``.nngp``, or any function of (X, Y) that returns a matrix.
    X
        The inputs, (n, features).
    y
        The targets, (n,) or (n, outputs). For classification, use one column of 1 and -1 per class.
    ridge
        The number added to the diagonal of K(X, X), >= 0. Use ``fit.with_ridge`` to try another
        ridge with the same matrix, and :func:`kcalc.kept_kernel` to cache matrices for other uses.

    Returns
    -------
    KernelRegression
        The fitted regression, with ``predict``.

    Raises
    ------
    KcalcError
        If the shapes of the data do not match, if the data contain nan, or if the matrix is not
        positive definite. The message states its smallest eigenvalue. No jitter is added to the
        diagonal, only ``ridge``.

    """
    return KernelRegression(kernel, X, y, ridge)


def gaussian_process(kernel: Any, X: Any, y: Any, noise: float = 0.0) -> GaussianProcess:
    """Return the Gaussian process with covariance ``kernel``, conditioned on data.

    The data are ``y = f(X) + e``, where e has variance ``noise``.

    With ``kc.ntk(net).nngp``, this is Bayesian inference in an infinitely wide network. The
    arguments are those of :func:`kernel_regression`, with ``noise`` in place of ``ridge``.

    Parameters
    ----------
    kernel
        A kernel, such as ``kc.ntk(net).nngp``.
    X
        The rows of data, (n, features).
    y
        The targets, (n,) or (n, outputs).
    noise
        The variance of the noise in the targets.

    Returns
    -------
    GaussianProcess
        The conditioned process, with ``predict`` and ``mean_and_variance``.

    """
    return GaussianProcess(kernel, X, y, noise)


class KernelRegression(Shown):
    """A fitted kernel regression; see :func:`kernel_regression`.

    For JAX inputs, the outputs are JAX arrays.
    """

    ridge_name = "ridge"

    def __init__(self, kernel: Any, X: Any, y: Any, ridge: float = 0.0) -> None:
        self.kernel, self.X = kernel, inputs(X)
        self.matrix = gram(kernel, self.X)
        self._algebra = algebra = algebra_of(self.matrix, self.X, y)
        with algebra.scope():
            self.matrix = algebra.square(self.matrix)
            self._y, self._flat = targets(algebra, y, len(self.X))
        self._fit(ridge)

    def _fit(self, ridge: float) -> None:
        algebra = self._algebra
        self.ridge = ridge if traced(ridge) else ridge_value(ridge, self.ridge_name)
        with algebra.scope():
            self._factor = algebra.cholesky(self.matrix, self.ridge, self.ridge_name)
            self._weights = algebra.solve(self._factor, self._y)

    def with_ridge(self, ridge: float) -> Self:
        """Refit with another ridge (noise) and the same kernel matrix.

        Parameters
        ----------
        ridge
            The number added to the diagonal, >= 0.

        Returns
        -------
        Self
            A new object.

        Raises
        ------
        KcalcError
            Under the same conditions as :func:`kernel_regression`.

        """
        other = copy(self)
        other.__dict__.pop("spectrum", None)
        other._fit(ridge)
        return other

    def __getstate__(self) -> tuple[dict[str, Any], list[str]]:
        """Return the state for pickling, with JAX arrays as NumPy arrays.

        JAX unpickles double-precision arrays in single precision if its 64-bit flag is off.
        """
        own = [name for name, value in self.__dict__.items() if is_jax(value)]
        return {**self.__dict__, **{name: np.asarray(getattr(self, name)) for name in own}}, own

    def __setstate__(self, state: tuple[dict[str, Any], list[str]]) -> None:
        values, own = state
        for name in own:
            algebra = Algebra(jax=True, double=values[name].dtype == np.float64)
            with algebra.scope():
                values[name] = algebra.xp.asarray(values[name])
        self.__dict__.update(values)

    @property
    def coefficients(self) -> Array:
        """Return (K + ridge I)^-1 y, with shape (n,) or (n, outputs)."""
        return self._shaped(self._weights)

    @cached_property
    def spectrum(self) -> Spectrum:
        """Return the eigenvalues of K(X, X), without the ridge."""
        return spectra.spectrum(np.asarray(self.matrix))

    def predict(self, X: Any) -> Array:
        """Return f at the rows of X, with shape (m,) or (m, outputs).

        Parameters
        ----------
        X
            The rows of data, (n, features).

        Returns
        -------
        Array
            The values of f.

        """
        return self.predict_from(gram(self.kernel, inputs(X), self.X))

    def predict_from(self, cross: Any) -> Array:
        """Return f, given the kernel matrix between new and training inputs.

        Parameters
        ----------
        cross
            The kernel between the new and the training inputs, (m, n).

        Returns
        -------
        Array
            The values of f: (m,) or (m, outputs).

        """
        algebra = self._algebra
        with algebra.scope():
            return self._shaped(self._cross(cross) @ self._weights)

    def leave_one_out(self) -> Array:
        """Return the leave-one-out predictions at the training points.

        They are ``y_i - w_i / (K + ridge I)^-1_ii``, computed without refitting.

        Returns
        -------
        Array
            The predictions: (n,) or (n, outputs).

        """
        algebra = self._algebra
        with algebra.scope():
            inverse = algebra.solve(
                self._factor, algebra.xp.eye(len(self.X), dtype=self.matrix.dtype)
            )
            return self._shaped(self._y - self._weights / algebra.xp.diagonal(inverse)[:, None])

    def _cross(self, cross: Any) -> Array:
        given = self._algebra.matrix(cross, "the kernel matrix of new inputs")
        if given.shape[1] != len(self.X):
            raise KcalcError(
                f"the kernel matrix of new inputs must have {len(self.X)} columns, one per "
                f"training input, got {given.shape}"
            )
        return given

    def _shaped(self, values: Array) -> Array:
        return values[:, 0] if self._flat else values

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Return the assumptions of the kernel, if it has any."""
        return tuple(getattr(self.kernel, "assumptions", ()))

    def to_dict(self) -> dict[str, Any]:
        """Return the kernel, the data sizes and the coefficients as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        kernel = {
            "kernel": repr(self.kernel),
            "points": len(self.X),
            self.ridge_name: float(self.ridge),
        }
        return kernel | {
            "coefficients": plain(np.asarray(self.coefficients)),
            "assumptions": plain(self.assumptions),
        }

    def _rows(self) -> list[tuple[str, str]]:
        sizes = [
            ("points", str(len(self.X))),
            ("outputs", str(self._y.shape[1])),
            (self.ridge_name, shown(self.ridge)),
        ]
        return [("", "value"), ("kernel", shown(self.kernel)), *sizes]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self.X)} points, {self._y.shape[1]} outputs, "
            f"{self.ridge_name} {self.ridge:g})"
        )


class GaussianProcess(KernelRegression):
    """A Gaussian process conditioned on data; see :func:`gaussian_process`.

    The outputs are independent and have the same covariance.
    """

    ridge_name = "noise"

    @property
    def noise(self) -> float:
        """Return the variance of the noise in the targets."""
        return self.ridge

    def mean_and_variance(self, X: Any) -> tuple[Array, Array]:
        """Return the posterior mean and variance of f at the rows of X.

        The mean is the result of ``predict``. The variance, (m,), is the same for every output.

        Parameters
        ----------
        X
            The rows of data, (n, features).

        Returns
        -------
        tuple[Array, Array]
            The mean, (m,) or (m, outputs), and the variance, (m,).

        """
        given = inputs(X)
        cross, own = gram(self.kernel, given, self.X), diagonal(self.kernel, given)
        algebra = self._algebra
        with algebra.scope():
            half = algebra.half_solve(self._factor, self._cross(cross).T)
            own = algebra.xp.asarray(own, dtype=half.dtype)
            variance = own - (half * half).sum(axis=0)
            return self.predict_from(cross), self._nonnegative(variance, own)

    def mean_and_covariance(self, X: Any) -> tuple[Array, Array]:
        """Return the posterior mean of f at the rows of X and its covariance (m, m).

        The covariance is ``K(x, x') - K(x, X) (K + noise I)^-1 K(X, x')``.

        Parameters
        ----------
        X
            The rows of data, (n, features).

        Returns
        -------
        tuple[Array, Array]
            The mean, (m,) or (m, outputs), and the covariance, (m, m).

        """
        given = inputs(X)
        cross, own = gram(self.kernel, given, self.X), gram(self.kernel, given)
        algebra = self._algebra
        with algebra.scope():
            half = algebra.half_solve(self._factor, self._cross(cross).T)
            return self.predict_from(cross), algebra.xp.asarray(own) - half.T @ half

    @property
    def log_marginal_likelihood(self) -> float:
        """Return ``log N(y | 0, K + noise I)`` summed over outputs, a JAX scalar for JAX data."""
        algebra, n = self._algebra, len(self.X)
        with algebra.scope():
            fit = (self._y * self._weights).sum()
            volume = 2 * algebra.xp.log(algebra.xp.diagonal(self._factor)).sum()
            found = -0.5 * (fit + self._y.shape[1] * (volume + n * math.log(2 * math.pi)))
        return found if algebra.jax else float(found)

    def sample(self, X: Any, count: int = 1, seed: int = 0) -> np.ndarray:
        """Draw ``count`` functions from the posterior, at the rows of X.

        The result is a NumPy array, (count, m) or (count, m, outputs).

        Parameters
        ----------
        X
            The rows of data, (n, features).
        count
            The number of samples.
        seed
            The seed of the random numbers.

        Returns
        -------
        np.ndarray
            The draws: (count, m) or (count, m, outputs).

        """
        count, seed = (
            whole(count, "count, the number of functions to draw,", 1),
            whole(seed, "seed"),
        )
        mean, covariance = (np.asarray(part) for part in self.mean_and_covariance(X))
        columns = mean.reshape(len(mean), -1)
        values, vectors = np.linalg.eigh(covariance)
        # rounding can make eigenvalues slightly negative; clip them, as the root is not inverted
        root = vectors * np.sqrt(np.maximum(values, 0))
        noise = np.random.default_rng(seed).normal(size=(count, *columns.shape))
        return (columns + root @ noise).reshape(count, *mean.shape)

    @staticmethod
    def _nonnegative(variance: Array, own: Array) -> Array:
        """Set variances to 0 if they are negative by rounding error only (a few eps of K(x, x))."""
        algebra: Algebra = algebra_of(variance)
        return algebra.xp.where((variance < 0) & (variance > -1e-6 * own), 0 * variance, variance)
