"""Training curves of an infinitely wide network under gradient descent on the square loss.

The curves give the outputs and losses at every step.

The kernel does not change during training, so ``f_t - y = (I - eta Theta)^t (f_0 - y)`` on the
training inputs. In the eigenbasis of Theta, each direction decays independently. [DKS sec. 24.2;
Lee et al. 2019]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ...calculi import TangentKernel, normalised_batches
from ...fields.arguments import Number, Numbers, one_number, raw_array, real_array
from ...fields.jax_field import is_jax
from ...foundation.errors import KcalcError, glimpse
from ...foundation.guests import DRAWINGS
from ...foundation.plain_arguments import choice, text, whole
from ...foundation.printing import Shown, plain, shown
from ...foundation.process_state import cached_property
from ...matrices import Spectrum, checked_spectrum, float_matrix, symmetric_matrix
from .algebra import algebra_of, gram, inputs, targets

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ...maps import Assumption

__all__ = ["TrainingCurve", "training_curve"]

Array = np.ndarray
LOSSES = ("sum", "mean")
MOST_TIMES = 10**6
COMMON = 1e-6  # of the mean size of gradients at the outputs


def training_curve(
    kernel: Any,
    X: Any,
    y: Any,
    X_test: Any = None,
    learning_rate: float | None = None,
    initial: Any = None,
    initial_test: Any = None,
    loss: str = "sum",
) -> TrainingCurve:
    """Return the predictions and the loss of an infinitely wide network trained on the square loss.

    Parameters
    ----------
    kernel
        ``kc.ntk(net)``, or any function of (X, Y) that returns the matrix of the tangent kernel.
        Losses averaged over initialisations need ``kc.ntk``.
    X
        The rows of data, (n, features).
    y
        The targets, (n,) or (n, outputs).
    X_test
        The inputs to predict, (m, features).
    learning_rate
        The learning rate of gradient descent; t is then the number of steps. None means gradient
        flow; t is then the time (steps times learning rate).
    initial, initial_test
        The network's outputs before training, shaped like y. None means 0, the mean over
        initialisations.
    loss
        "sum" for ``sum |f - y|^2 / 2``. "mean" divides it by n, so training is n times slower.

    Returns
    -------
    TrainingCurve
        The curve, with NumPy arrays.

    Raises
    ------
    KcalcError
        If the shapes of the data do not match, if the data contain nan, or if the kernel is not
        positive semidefinite. Also if the network has BatchNorm and the targets have a nonzero mean
        over the examples, because BatchNorm removes a common component from gradients.

    """
    given, new = inputs(X), None if X_test is None else inputs(X_test, "X_test")
    data = [np.asarray(part) for part in (given, new) if part is not None]
    theta = gram(kernel, data[0])
    cross = None if new is None else gram(kernel, data[1], data[0])
    nngp = getattr(kernel, "nngp", None)
    prior = None
    if nngp is not None:
        prior = Prior(nngp, data[0], data[1] if new is not None else None)
    found = TrainingCurve.of(theta, y, cross, learning_rate, initial, initial_test, loss, prior)
    _check_common(kernel, found.initial - found.y)
    return found


def _check_common(kernel: Any, gradients: Array) -> None:
    """Reject loss gradients with a common component if the network has BatchNorm.

    The tangent kernel of such a network treats the other examples of the batch as fixed. The
    contribution of these examples is of order 1/n for each pair of examples, and matters only in a
    sum over all examples.
    """
    own = getattr(kernel, "kernel", kernel)
    if not isinstance(own, TangentKernel) or len(gradients) < 2:
        return
    mean, size = np.abs(gradients.mean(axis=0)), np.abs(gradients).mean(axis=0)
    if np.any(mean > COMMON * size) and (norms := normalised_batches(own.network)):
        raise KcalcError(
            f"node {norms[0][0]!r} is a BatchNorm, which removes the part of the gradients that "
            "all examples in the batch share, but y minus the initial outputs has a mean of "
            f"{mean.max():.4g} over the examples; pass y - y.mean(axis=0), or the kernel of "
            "net.without_normalization()"
        )


@dataclass(frozen=True, eq=False)
class Prior:
    """The network's outputs before training as a Gaussian process, at training and test inputs."""

    kernel: Any
    X: Array
    X_test: Array | None

    @cached_property
    def train(self) -> Array:
        """Return the covariance at the training inputs, with shape (n, n)."""
        return np.asarray(gram(self.kernel, self.X), dtype=float)

    @cached_property
    def cross(self) -> Array:
        """Return the covariance between test and training inputs, with shape (m, n)."""
        return np.asarray(gram(self.kernel, self.X_test, self.X), dtype=float)

    @cached_property
    def test(self) -> Array:
        """Return the covariance at the test inputs, with shape (m, m)."""
        return np.asarray(gram(self.kernel, self.X_test), dtype=float)


@dataclass(frozen=True, eq=False)
class TrainingCurve(Shown):
    """Outputs and loss of an infinitely wide network as functions of training time.

    See :func:`training_curve`. A time t is a number or an array of times; the axes of t come first
    in the results.

    Attributes
    ----------
    values
        The eigenvalues of the tangent kernel's matrix Theta(X, X), in descending order. Eigenvalues
        below rounding error are set to 0; components in these directions are never learned.
    vectors
        The eigenvectors.
    initial
        The outputs before training, (n, outputs).
    y
        The targets, (n, outputs).
    cross
        Theta(x, X) for the test inputs x.

    """

    values: Array
    vectors: Array
    y: Array
    initial: Array
    cross: Array | None
    initial_test: Array | None
    learning_rate: float | None
    scale: float
    flat: bool
    spectrum: Spectrum
    prior: Prior | None

    @classmethod
    def of(
        cls,
        theta: Any,
        y: Any,
        cross: Any = None,
        learning_rate: float | None = None,
        initial: Any = None,
        initial_test: Any = None,
        loss: str = "sum",
        prior: Prior | None = None,
    ) -> TrainingCurve:
        """Build the curve from precomputed kernel matrices.

        ``theta`` (n, n) is the kernel at the training inputs, ``cross`` (m, n) the kernel between
        test and training inputs.
        """
        import scipy.linalg

        choice(loss, "loss", LOSSES)
        if prior is not None and not isinstance(prior, Prior):
            raise KcalcError(
                f"prior must come from kc.training_curve(kernel, ...), got {glimpse(prior)}"
            )
        rate = None if learning_rate is None else one_number(learning_rate, "learning_rate")
        if rate is not None and rate <= 0:
            raise KcalcError(f"learning_rate must be > 0, or None for gradient flow, got {rate}")
        algebra = algebra_of()
        given = symmetric_matrix(raw_array(theta, "theta"))
        matrix = given.astype(float)
        y, flat = targets(algebra, y if is_jax(y) else raw_array(y, "y"), len(matrix))
        start = (
            np.zeros_like(y)
            if initial is None
            else targets(algebra, initial, len(matrix), "initial")[0]
        )
        if start.shape != y.shape:
            raise KcalcError(f"initial must have the shape of y, {y.shape}, got {start.shape}")
        values, vectors = scipy.linalg.eigh(matrix, check_finite=False)
        found = checked_spectrum(values[::-1], given.dtype)
        across, start_test = _test_side(cross, initial_test, matrix, y)
        share = 1.0 if loss == "sum" else 1 / len(matrix)
        known = np.where(found.eigenvalues > found.resolution, found.eigenvalues, 0.0)
        # products with reversed arrays are slow, so make a contiguous copy
        descending = np.ascontiguousarray(vectors[:, ::-1])
        return cls(known, descending, y, start, across, start_test, rate, share, flat, found, prior)

    # -- rates -------------------------------------------------------------------------------------

    @property
    def learning_rate_bound(self) -> float:
        """The upper bound on the learning rate: ``2 / lambda_max``, times n for ``loss="mean"``."""
        return 2 / (self.scale * float(self.values[0]))

    @property
    def diverges(self) -> bool:
        """Whether the learning rate exceeds the bound, so that training diverges."""
        return self.learning_rate is not None and self.learning_rate > self.learning_rate_bound

    @cached_property
    def times(self) -> Array:
        """Return the time (or steps) in which each eigendirection's error shrinks by a factor of e.

        It is ``1 / lambda`` for gradient flow and ``-1 / log|1 - eta lambda|`` for gradient
        descent.

        It is infinite if the error stays constant and negative if the error grows.
        """
        with np.errstate(divide="ignore"):
            return np.where(self._log_factor == 0, np.inf, -1 / self._log_factor)

    @cached_property
    def _step(self) -> Array:
        """Return eta lambda for each direction, or lambda for gradient flow."""
        return (
            (1.0 if self.learning_rate is None else self.learning_rate) * self.scale * self.values
        )

    @cached_property
    def _log_factor(self) -> Array:
        """Return log|1 - eta lambda| for each direction, or -lambda for gradient flow."""
        if self.learning_rate is None:
            return -self._step
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(
                self._step <= 1,
                np.log1p(-np.minimum(self._step, 1)),
                np.log(np.abs(self._step - 1)),
            )

    def _decay(self, t: Array) -> Array:
        """Return (1 - eta lambda)^t, or exp(-lambda t) for gradient flow.

        The axes of t come before the axis of directions.
        """
        later = t[..., None]
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.exp(np.where(later == 0, 0.0, later * self._log_factor))
        odd = (later % 2 == 1) & (self._step > 1) & (self.learning_rate is not None)
        return np.where(odd, -size, size)

    def _progress(self, t: Array) -> Array:
        """Return (1 - decay) / lambda without cancellation.

        If lambda is lost in rounding, the result is 0; Theta(x, X) v is then also 0 up to rounding.
        """
        later = t[..., None]
        known = np.where(self.values > 0, self.values, 1.0)
        with np.errstate(over="ignore", invalid="ignore"):
            small = -np.expm1(np.where(later == 0, 0.0, later * self._log_factor))
        slow = (self._step <= 1) | (self.learning_rate is None)
        return np.where(self.values > 0, np.where(slow, small, 1 - self._decay(t)) / known, 0.0)

    # -- one network -------------------------------------------------------------------------------

    def predict(self, t: Any) -> Array:
        """Return f_t at the training inputs, with shape (n,) or (n, outputs) after the axes of t.

        Parameters
        ----------
        t
            Training times >= 0, a number or an array.

        Returns
        -------
        Array
            The outputs, the axes of ``t`` first.

        """
        decay = self._decay(self._times(t))
        with np.errstate(invalid="ignore"):  # an overflow raises an error later
            return self._shaped(
                self.y
                + self.vectors @ (decay[..., None] * (self.vectors.T @ (self.initial - self.y)))
            )

    def predict_test(self, t: Any) -> Array:
        """Return f_t at the test inputs, with shape (m,) or (m, outputs) after the axes of t.

        Parameters
        ----------
        t
            Training times >= 0, a number or an array.

        Returns
        -------
        Array
            The outputs, the axes of ``t`` first.

        """
        progress = self._progress(self._times(t))
        with np.errstate(invalid="ignore"):
            moved = self._rotated_cross @ (
                progress[..., None] * (self.vectors.T @ (self.y - self.initial))
            )
        return self._shaped(moved if self.initial_test is None else self.initial_test + moved)

    @overload
    def loss(self, t: Number) -> float: ...
    @overload
    def loss(self, t: Numbers) -> Array: ...
    def loss(self, t: Any) -> float | Array:
        """Return the training loss at time t, starting from the given initial outputs.

        Parameters
        ----------
        t
            Training times >= 0, a number or an array.

        Returns
        -------
        float | Array
            The loss, with the shape of ``t``.

        """
        decay = self._decay(self._times(t))
        return self._finite(
            0.5
            * self.scale
            * np.sum(
                (decay[..., None] * (self.vectors.T @ (self.initial - self.y))) ** 2, axis=(-2, -1)
            )
        )

    @overload
    def test_loss(self, t: Number, y_test: Any) -> float: ...
    @overload
    def test_loss(self, t: Numbers, y_test: Any) -> Array: ...
    def test_loss(self, t: Any, y_test: Any) -> float | Array:
        """Return the loss at the test inputs at time t, as a sum or a mean like the training loss.

        Parameters
        ----------
        t
            Training times >= 0, a number or an array.
        y_test
            The targets at the test inputs.

        Returns
        -------
        float | Array
            The loss, with the shape of ``t``.

        """
        truth = self._test_targets(y_test)
        found = self.predict_test(t).reshape(*np.shape(t), *truth.shape)
        return self._finite(
            0.5 * self._test_scale(truth) * np.sum((found - truth) ** 2, axis=(-2, -1))
        )

    # -- averages over initialisations -------------------------------------------------------------

    @overload
    def expected_loss(self, t: Number) -> float: ...
    @overload
    def expected_loss(self, t: Numbers) -> Array: ...
    def expected_loss(self, t: Any) -> float | Array:
        """Return the training loss averaged over initialisations.

        The result is the loss of the mean network plus the decayed variance of the initial outputs:
        ``(|D y|^2 + outputs tr(D NNGP D)) / 2`` with ``D = (I - eta Theta)^t``. It ignores
        ``initial``.

        Parameters
        ----------
        t
            Training times >= 0, a number or an array.

        Returns
        -------
        float | Array
            The loss, with the shape of ``t``.

        """
        squares = self._decay(self._times(t)) ** 2
        power = np.sum((self.vectors.T @ self.y) ** 2, axis=1) + self.y.shape[1] * np.diagonal(
            self._rotated_prior
        )
        return self._finite(0.5 * self.scale * squares @ power)

    def variance_test(self, t: Any) -> Array:
        """Return the variance of f_t at the test inputs over initialisations [Lee et al. 2019].

        The result has the shape of t followed by (m,).

        Parameters
        ----------
        t
            Training times >= 0, a number or an array.

        Returns
        -------
        Array
            The variance, the axes of ``t`` first.

        """
        prior, when = self._known_prior(), self._times(t)
        if prior.X_test is None:
            raise KcalcError("predictions need test inputs; pass X_test")
        progress = self._progress(when).reshape(-1, len(self.values))
        mixed, own = self.vectors.T @ prior.cross.T, np.diagonal(prior.test)
        rows = []
        for one in progress:
            weights = self._rotated_cross * one
            rows.append(
                own
                - 2 * np.sum(weights * mixed.T, axis=1)
                + np.sum((weights @ self._rotated_prior) * weights, axis=1)
            )
        return self._finite(np.reshape(rows, (*when.shape, len(own))))

    @overload
    def expected_test_loss(self, t: Number, y_test: Any) -> float: ...
    @overload
    def expected_test_loss(self, t: Numbers, y_test: Any) -> Array: ...
    def expected_test_loss(self, t: Any, y_test: Any) -> float | Array:
        """Return the loss at the test inputs averaged over initialisations.

        The result is the loss of the mean network plus the variance of f_t.

        Parameters
        ----------
        t
            Training times >= 0, a number or an array.
        y_test
            The targets at the test inputs.

        Returns
        -------
        float | Array
            The loss, with the shape of ``t``.

        """
        truth = self._test_targets(y_test)
        moved = self._rotated_cross @ (
            self._progress(self._times(t))[..., None] * (self.vectors.T @ self.y)
        )
        spread = truth.shape[1] * np.sum(self.variance_test(t), axis=-1)
        return self._finite(
            0.5 * self._test_scale(truth) * (np.sum((moved - truth) ** 2, axis=(-2, -1)) + spread)
        )

    @cached_property
    def _rotated_cross(self) -> Array:
        if self.cross is None:
            raise KcalcError("predictions need test inputs; pass X_test (or cross)")
        return self.cross @ self.vectors

    @cached_property
    def _rotated_prior(self) -> Array:
        return self.vectors.T @ self._known_prior().train @ self.vectors

    def _known_prior(self) -> Prior:
        if self.prior is None:
            raise KcalcError(
                "averages over initialisations need the NNGP; pass kc.ntk(net) as the kernel"
            )
        return self.prior

    # -- arguments ---------------------------------------------------------------------------------

    def _times(self, t: Any) -> Array:
        given = real_array(t, "t")
        if np.any(given < 0) or (self.learning_rate is not None and np.any(given % 1)):
            raise KcalcError(
                "t counts steps, so it must contain integers >= 0"
                if self.learning_rate is not None
                else "t must be a time >= 0"
            )
        return given

    def _test_targets(self, y_test: Any) -> Array:
        wanted, _ = targets(algebra_of(), y_test, len(self._rotated_cross), "y_test")
        if wanted.shape[1] != self.y.shape[1]:
            raise KcalcError(
                f"y_test must have {self.y.shape[1]} outputs, like y, got {wanted.shape[1]}"
            )
        return wanted

    def _test_scale(self, truth: Array) -> float:
        return 1.0 if self.scale == 1 else 1 / len(truth)

    def _shaped(self, values: Array) -> Array:
        return self._finite(values[..., 0] if self.flat else values)

    def _finite(self, values: Any) -> Any:
        if not np.all(np.isfinite(values)):
            raise KcalcError(
                "training diverged and exceeded the range of double precision: the learning rate "
                f"is {self.learning_rate:g}, but the bound is {self.learning_rate_bound:g}"
                if self.diverges
                else "the predictions exceed the range of double precision; rescale y"
            )
        return np.asarray(values)[()]

    def plot(
        self, ax: Axes | None = None, label: str = "training", y_test: Any = None, **line: Any
    ) -> Axes:
        """Draw the loss over t, and the test loss if ``y_test`` is given.

        Parameters
        ----------
        ax
            The matplotlib Axes to draw on; None makes new ones.
        label
            The label in the legend.
        y_test
            The targets at the test inputs, to draw the test loss.
        **line
            Further options for the line, passed to matplotlib.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        times = self.plotted_times()
        curves = {text(label, "label", empty=True): self.loss(times)} | (
            {} if y_test is None else {"test": self.test_loss(times, y_test)}
        )
        return DRAWINGS["TrainingCurve"](times, curves, ax=ax, **line)

    def plotted_times(self, points: int = 200) -> Array:
        """Return times for a plot, evenly spaced on a logarithmic scale.

        They range from a tenth of the fastest direction's time to ten times the time of the slowest
        direction that training resolves.
        """
        points = whole(points, "points", 1, MOST_TIMES)
        known = np.abs(
            self.times[
                (self.spectrum.eigenvalues > self.spectrum.resolution)
                & np.isfinite(self.times)
                & (self.times != 0)
            ]
        )
        low, high = (
            (float(known.min()) / 10, 10 * float(known.max())) if known.size else (0.1, 10.0)
        )
        times = np.geomspace(low, high, points)
        return (
            times if self.learning_rate is None else np.unique(np.round(np.clip(times, 0, 2.0**52)))
        )

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Return the assumptions of the kernel of the initial outputs, if there is one."""
        return () if self.prior is None else tuple(getattr(self.prior.kernel, "assumptions", ()))

    def to_dict(self) -> dict[str, Any]:
        """Return the spectrum and the learning rate bound as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        own = {
            "points": len(self.y),
            "learning_rate": self.learning_rate,
            "learning_rate_bound": self.learning_rate_bound,
        }
        return own | {
            "diverges": bool(self.diverges),
            "spectrum": self.spectrum.to_dict(),
            "assumptions": plain(self.assumptions),
        }

    def _rows(self) -> list[tuple[str, str]]:
        how = "gradient flow" if self.learning_rate is None else shown(self.learning_rate)
        bounds = [
            ("bound on the learning rate", shown(self.learning_rate_bound)),
            ("diverges", shown(bool(self.diverges))),
        ]
        return [("", "value"), ("points", str(len(self.y))), ("learning rate", how), *bounds]

    def __repr__(self) -> str:
        how = (
            "gradient flow"
            if self.learning_rate is None
            else f"learning rate {self.learning_rate:g}"
        )
        state = ", diverges" if self.diverges else ""
        return (
            f"TrainingCurve({len(self.y)} points, {how}, bound "
            f"{self.learning_rate_bound:.4g}{state})"
        )


def _test_side(
    cross: Any, initial_test: Any, matrix: Array, y: Array
) -> tuple[Array | None, Array | None]:
    """Check and return the kernel and the initial outputs at the test inputs."""
    if cross is None:
        if initial_test is not None:
            raise KcalcError(
                "initial_test contains outputs at test inputs, so it needs these inputs; pass "
                "X_test too"
            )
        return None, None
    across = float_matrix(cross, "the kernel matrix of test inputs").astype(float)
    if across.shape[1] != len(matrix):
        raise KcalcError(
            f"the kernel matrix of test inputs must have {len(matrix)} columns, got shape "
            f"{across.shape}"
        )
    if initial_test is None:
        return across, None
    start, _ = targets(algebra_of(), initial_test, len(across), "initial_test")
    if start.shape[1] != y.shape[1]:
        raise KcalcError(
            f"initial_test must have {y.shape[1]} outputs, like y, got {start.shape[1]}"
        )
    return across, start
