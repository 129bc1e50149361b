"""The eigenvalues of a kernel matrix.

The eigenvalues determine the condition number, the effective dimension, and the numerical
resolution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..fields.arguments import one_number, raw_array
from ..foundation.errors import KcalcError
from ..foundation.guests import DRAWINGS
from ..foundation.plain_arguments import text
from ..foundation.printing import Shown, shown
from ..foundation.process_state import cached_property

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Spectrum", "condition_number", "not_positive_definite", "spectrum", "symmetric_matrix"]

Array = np.ndarray
ASYMMETRY = 1e3  # K and its transpose may differ by this many rounding units


@dataclass(frozen=True, eq=False)
class Spectrum(Shown):
    """The eigenvalues of a symmetric positive semidefinite matrix, in descending order.

    ``resolution`` is the rounding error of the eigenvalues, n eps lambda_max. Smaller eigenvalues
    are indistinguishable from zero.
    """

    eigenvalues: Array
    resolution: float

    @property
    def largest(self) -> float:
        """The largest eigenvalue."""
        return float(self.eigenvalues[0])

    @property
    def smallest(self) -> float:
        """The smallest eigenvalue as computed. It may be negative within ``resolution``."""
        return float(self.eigenvalues[-1])

    @cached_property
    def rank(self) -> int:
        """The number of eigenvalues above ``resolution``."""
        return int(np.sum(self.eigenvalues > self.resolution))

    @property
    def condition_number(self) -> float:
        """The ratio lambda_max / lambda_min, or infinity.

        It is infinite if lambda_min is below ``resolution`` (equal inputs, or a collapsed kernel).
        """
        return self.largest / self.smallest if self.smallest > self.resolution else math.inf

    def effective_dimension(self, ridge: float = 0.0) -> float:
        """Return sum_i lambda_i / (lambda_i + ridge), the effective number of directions.

        For ridge = 0, this is the rank.
        """
        amount = ridge_value(ridge)
        if amount == 0:
            return float(self.rank)
        positive = np.maximum(self.eigenvalues, 0)
        return float(np.sum(positive / (positive + amount)))

    @property
    def participation(self) -> float:
        """The participation ratio (sum lambda)^2 / sum lambda^2.

        It ranges from 1 (rank one) to n (equal eigenvalues).
        """
        return float(np.sum(self.eigenvalues) ** 2 / np.sum(self.eigenvalues**2))

    @property
    def learning_rate_bound(self) -> float:
        """The upper bound 2 / lambda_max on the learning rate.

        Gradient descent on the summed square loss converges for smaller learning rates [DKS sec.
        24.2].
        """
        return 2 / self.largest

    def _frame(self) -> dict[str, Array]:
        return {"eigenvalue": self.eigenvalues}

    def plot(self, ax: Axes | None = None, label: str | None = None, **line: Any) -> Axes:
        """Plot lambda_i / lambda_max against the rank i on logarithmic axes.

        See :func:`kcalc.plotting.kernels.spectra`.
        """
        return DRAWINGS["Spectrum"](
            {"" if label is None else text(label, "label", empty=True): self}, ax=ax, **line
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the eigenvalues and quantities derived from them as plain data.

        An infinite condition number is None.
        """
        condition = self.condition_number
        return {
            "eigenvalues": self.eigenvalues.tolist(),
            "resolution": self.resolution,
            "rank": self.rank,
            "condition_number": condition if math.isfinite(condition) else None,
            "participation": self.participation,
        }

    def _rows(self) -> list[tuple[str, str]]:
        names = (
            "largest",
            "smallest",
            "condition_number",
            "resolution",
            "rank",
            "participation",
            "learning_rate_bound",
        )
        return [
            (f"{self.eigenvalues.size} eigenvalues", "value"),
            *((n.replace("_", " "), shown(getattr(self, n))) for n in names),
        ]

    def __repr__(self) -> str:
        size = self.eigenvalues.size
        return (
            f"Spectrum({size} eigenvalues, {self.largest:.3g} ... {self.smallest:.3g}, condition "
            f"number {self.condition_number:.3g})"
        )


def spectrum(matrix: Any) -> Spectrum:
    """Return the spectrum of a kernel matrix (n, n), in O(n^3) time.

    Raises KcalcError unless the matrix is symmetric, finite and positive semidefinite.
    """
    import scipy.linalg

    given = symmetric_matrix(matrix)
    return checked_spectrum(scipy.linalg.eigvalsh(given, check_finite=False)[::-1], given.dtype)


def checked_spectrum(eigenvalues: Array, kind: Any) -> Spectrum:
    """Return the spectrum with the given descending eigenvalues.

    Raises KcalcError if an eigenvalue is negative beyond rounding, or if none is positive.
    """
    largest = max(float(eigenvalues[0]), -float(eigenvalues[-1]))
    if largest == 0:
        raise KcalcError("the kernel matrix is zero, so its spectrum is trivial")
    resolution = eigenvalues.size * float(np.finfo(kind).eps) * largest
    if eigenvalues[-1] < -10 * resolution:
        raise not_positive_definite(float(eigenvalues[-1]), largest)
    return Spectrum(np.asarray(eigenvalues, dtype=float), resolution)


def condition_number(matrix: Any) -> float:
    """Return lambda_max / lambda_min of a kernel matrix, infinite if it is numerically singular.

    Raises KcalcError under the same conditions as :func:`spectrum`.
    """
    return spectrum(matrix).condition_number


def symmetric_matrix(matrix: Any, what: str = "the kernel matrix") -> Array:
    """Return a matrix as a float array; float32 stays float32.

    Raises KcalcError for other shapes, nan, infinities, and asymmetry beyond rounding.
    """
    given = float_matrix(matrix, what)
    if given.shape[0] != given.shape[1]:
        raise KcalcError(f"{what} must be square, got shape {given.shape}")
    scale = np.max(np.abs(given))
    apart = np.max(np.abs(given - given.T))
    if apart > ASYMMETRY * np.finfo(given.dtype).eps * scale:
        i, j = np.unravel_index(np.argmax(np.abs(given - given.T)), given.shape)
        raise KcalcError(
            f"{what} must be symmetric, but entries ({i}, {j}) and ({j}, {i}) are {given[i, j]:g} "
            f"and {given[j, i]:g}"
        )
    return given


def float_matrix(matrix: Any, what: str) -> Array:
    """Return a non-empty (n, m) array of finite floats.

    Raises KcalcError for anything else.
    """
    if isinstance(matrix, Mapping):
        raise KcalcError(
            f"{what} must be a single array, but there is one for each output "
            f"({', '.join(map(str, matrix))}); choose one of them"
        )
    given = raw_array(matrix, what)
    if given.dtype.kind == "b":
        raise KcalcError(f"{what} must contain real numbers, got Booleans")
    kind = np.float32 if given.dtype == np.float32 else np.float64
    if given.ndim != 2 or given.size == 0:
        raise KcalcError(f"{what} must be a non-empty matrix, got shape {given.shape}")
    given = given.astype(kind, copy=False)
    if not np.all(np.isfinite(given)):
        i, j = np.argwhere(~np.isfinite(given))[0]
        raise KcalcError(f"{what} must be finite, but entry ({i}, {j}) is {given[i, j]}")
    return given


def ridge_value(ridge: Any, what: str = "ridge") -> float:
    """Return a ridge or noise variance as a float.

    Raises KcalcError unless it is a single finite number >= 0.
    """
    value = one_number(ridge, what)
    if value < 0:
        raise KcalcError(f"{what} must be >= 0, because it is added to the diagonal, got {value}")
    return value


def not_positive_definite(
    smallest: float, largest: float, ridge: float = 0.0, name: str = "ridge"
) -> KcalcError:
    """Return the error for a kernel matrix that is too ill-conditioned to solve with.

    The message gives the smallest eigenvalue and a sufficient ridge.
    """
    enough = max(-2 * smallest, 1e-12 * largest)
    added = f" + {name} {ridge:g}" if ridge else ""
    return KcalcError(
        f"the kernel matrix{added} is not positive definite to working precision: its "
        f"smallest eigenvalue is {smallest:.3e} and its largest is {largest:.3e}. Some inputs are "
        f"equal, or the kernel has collapsed; drop duplicates, or use {name} >= "
        f"{ridge + enough:.1e}"
    )


def __dir__() -> list[str]:
    return __all__
