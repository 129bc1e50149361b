"""The eigenvalues of a kernel matrix.

It provides the condition number, effective dimension, and the resolution of double precision.
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
ASYMMETRY = 1e3  # rounding units by which K and its transpose may differ


@dataclass(frozen=True, eq=False)
class Spectrum(Shown):
    """The eigenvalues of a symmetric positive semidefinite matrix, the largest first.

    ``resolution`` is the rounding error of eigenvalues, n eps lambda_max: smaller ones are
    indistinguishable from zero.
    """

    eigenvalues: Array
    resolution: float

    @property
    def largest(self) -> float:
        """lambda_max."""
        return float(self.eigenvalues[0])

    @property
    def smallest(self) -> float:
        """lambda_min as computed; it may be negative within ``resolution``."""
        return float(self.eigenvalues[-1])

    @cached_property
    def rank(self) -> int:
        """The number of eigenvalues above ``resolution``."""
        return int(np.sum(self.eigenvalues > self.resolution))

    @property
    def condition_number(self) -> float:
        """lambda_max / lambda_min, or infinity.

        It is infinite if lambda_min is below ``resolution`` (equal inputs, a kernel that has
        collapsed).
        """
        return self.largest / self.smallest if self.smallest > self.resolution else math.inf

    def effective_dimension(self, ridge: float = 0.0) -> float:
        """sum_i lambda_i / (lambda_i + ridge): the effective number of directions under a ridge.

        The rank for ridge = 0.
        """
        amount = ridge_value(ridge)
        if amount == 0:
            return float(self.rank)
        positive = np.maximum(self.eigenvalues, 0)
        return float(np.sum(positive / (positive + amount)))

    @property
    def participation(self) -> float:
        """(sum lambda)^2 / sum lambda^2.

        The number of equal eigenvalues that would be spread as widely, from 1 (E) to n (I).
        """
        return float(np.sum(self.eigenvalues) ** 2 / np.sum(self.eigenvalues**2))

    @property
    def learning_rate_bound(self) -> float:
        """2 / lambda_max, an upper bound of the learning rate.

        Gradient descent on the summed square loss converges below it [DKS sec. 24.2].
        """
        return 2 / self.largest

    def _frame(self) -> dict[str, Array]:
        return {"eigenvalue": self.eigenvalues}

    def plot(self, ax: Axes | None = None, label: str | None = None, **line: Any) -> Axes:
        """Draw lambda_i / lambda_max over the rank i on logarithmic axes.

        See :func:`kcalc.plotting.kernels.spectra`.
        """
        return DRAWINGS["Spectrum"](
            {"" if label is None else text(label, "label", empty=True): self}, ax=ax, **line
        )

    def to_dict(self) -> dict[str, Any]:
        """Eigenvalues and figures derived from them, as plain data.

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
    """The eigenvalues of a kernel matrix (n, n), O(n^3).

    Raises: KcalcError unless it is symmetric, finite and positive semidefinite.
    """
    import scipy.linalg

    given = symmetric_matrix(matrix)
    return checked_spectrum(scipy.linalg.eigvalsh(given, check_finite=False)[::-1], given.dtype)


def checked_spectrum(eigenvalues: Array, kind: Any) -> Spectrum:
    """The spectrum of descending eigenvalues.

    Raises: KcalcError if one is negative beyond rounding, or none is positive.
    """
    largest = max(float(eigenvalues[0]), -float(eigenvalues[-1]))
    if largest == 0:
        raise KcalcError("the kernel matrix is zero, so its spectrum is trivial")
    resolution = eigenvalues.size * float(np.finfo(kind).eps) * largest
    if eigenvalues[-1] < -10 * resolution:
        raise not_positive_definite(float(eigenvalues[-1]), largest)
    return Spectrum(np.asarray(eigenvalues, dtype=float), resolution)


def condition_number(matrix: Any) -> float:
    """lambda_max / lambda_min of a kernel matrix; infinite if it is singular to its precision.

    Raises: as :func:`spectrum`.
    """
    return spectrum(matrix).condition_number


def symmetric_matrix(matrix: Any, what: str = "the kernel matrix") -> Array:
    """A matrix as a float array, float32 if it is that.

    Raises: KcalcError for other shapes, nan, infinities, asymmetry beyond rounding.
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
    """A non-empty (n, m) array of finite floats. Raises: KcalcError for anything else."""
    if isinstance(matrix, Mapping):
        raise KcalcError(
            f"{what} must be one array, got one per output ({', '.join(map(str, matrix))}); "
            f"choose one"
        )
    given = raw_array(matrix, what)
    if given.dtype.kind == "b":
        raise KcalcError(f"{what} must hold real numbers, got Booleans")
    kind = np.float32 if given.dtype == np.float32 else np.float64
    if given.ndim != 2 or given.size == 0:
        raise KcalcError(f"{what} must be a non-empty matrix, got shape {given.shape}")
    given = given.astype(kind, copy=False)
    if not np.all(np.isfinite(given)):
        i, j = np.argwhere(~np.isfinite(given))[0]
        raise KcalcError(f"{what} must be finite, but entry ({i}, {j}) is {given[i, j]}")
    return given


def ridge_value(ridge: Any, what: str = "ridge") -> float:
    """A ridge or noise variance as a float.

    Raises: KcalcError unless it is one finite number >= 0.
    """
    value = one_number(ridge, what)
    if value < 0:
        raise KcalcError(f"{what} is added to the diagonal and must be >= 0, got {value}")
    return value


def not_positive_definite(
    smallest: float, largest: float, ridge: float = 0.0, name: str = "ridge"
) -> KcalcError:
    """The error for a kernel matrix that is too ill-conditioned to solve with.

    It reports the smallest eigenvalue and a sufficient ridge.
    """
    enough = max(-2 * smallest, 1e-12 * largest)
    added = f" + {name} {ridge:g}" if ridge else ""
    return KcalcError(
        f"the kernel matrix{added} is not positive definite to working precision: its smallest "
        f"eigenvalue is {smallest:.3e}, its largest {largest:.3e}. The cause is equal inputs or a "
        f"collapsed kernel; drop duplicates, or give {name} >= {ridge + enough:.1e}"
    )


def __dir__() -> list[str]:
    return __all__
