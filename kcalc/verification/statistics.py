"""Statistics over random draws.

The functions compare means with expected values, given standard errors, and fit powers of the
width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..foundation.process_state import cached_property

NARROW = 16  # with fewer channels, a cosine is not checked
MEASURED = ("expected", "mean", "std", "error", "z")

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Statistic:
    """One quantity compared with its expectation. All arrays have the same shape.

    ``std`` is the fluctuation of a single pair of inputs in a single draw. ``error`` is the
    standard error of ``mean`` over draws. ``rounding`` is the size of rounding errors.
    """

    expected: Array
    mean: Array
    std: Array
    error: Array
    rounding: Array
    draws: int

    @classmethod
    def of(
        cls,
        expected: Array,
        samples: Array,
        within: Array | float = 0.0,
        epsilon: float = 0.0,
        scale: Array | float | None = None,
        known: Array | float = 0.0,
    ) -> Statistic:
        """Create the statistic from ``samples`` (draws, ...), the mean of each draw.

        ``within`` is the variance within a draw. Rounding is relative to ``scale``, by default the
        size of the expectation. ``known`` is the standard error of the expectation if it was
        sampled; it is included in ``error``.
        """
        draws = samples.shape[0]
        mean, between = samples.mean(axis=0), samples.var(axis=0, ddof=1)
        std = np.sqrt(between + np.mean(np.broadcast_to(within, samples.shape), axis=0))
        size = np.abs(expected) if scale is None else np.broadcast_to(scale, expected.shape)
        rounding = min(32 * epsilon, 0.02) * size  # at most 2 %, even in half precision
        return cls(
            np.broadcast_to(expected, mean.shape),
            mean,
            std,
            np.sqrt(between / draws + np.square(known)),
            rounding,
            draws,
        )

    @cached_property
    def z(self) -> Array:
        """``(mean - expected) / error``, or 0 if the difference is within rounding."""
        off = self.mean - self.expected
        error = np.sqrt(self.error**2 + self.rounding**2)
        return np.where(np.abs(off) <= self.rounding, 0.0, off / np.where(error > 0, error, 1))

    @property
    def p(self) -> Array:
        """The probability of a |z| at least this large.

        The p-value comes from Student's t distribution with ``draws - 1`` degrees of freedom.
        """
        from scipy import stats

        return 2 * stats.t.sf(np.abs(self.z), self.draws - 1)

    def text(self, at: Any) -> str:
        """Format the values at an index as text."""
        return (
            f"{self.mean[at]:.6g} +- {self.error[at]:.2g}, at infinite width "
            f"{self.expected[at]:.6g} (z {self.z[at]:+.2f})"
        )

    def cells(self, at: Any, form: str) -> tuple[str, ...]:
        """Format the expectation, mean, fluctuation, standard error and z at an index as cells."""
        forms = (form, form, ".2g", ".2g", "+.2f")
        return tuple(
            format(float(getattr(self, name)[at]), own)
            for name, own in zip(MEASURED, forms, strict=True)
        )


def allowed(draws: int, comparisons: int, errors: float = 4.0) -> float:
    """Return the largest |z| that is allowed among all ``comparisons``.

    If the maps are exact, the largest |z| exceeds this value as rarely as a single Gaussian exceeds
    ``errors`` standard errors.

    The value is the two-sided quantile of Student's t distribution with ``draws - 1`` degrees of
    freedom, at the level ``1 - (1 - p)^(1/comparisons)``. Here p is the level for one Gaussian
    (6.3e-5 at 4 standard errors). This is Sidak's correction, which is conservative for Gaussians
    with any correlations [Sidak 1967]. The value is large if there are few draws. For example, it
    is 36 for 5 draws and 20 comparisons, so only gross deviations are found.
    """
    from scipy import stats

    level = 2 * stats.norm.sf(errors)
    each = -np.expm1(np.log1p(-level) / max(comparisons, 1)) if level < 1 else 1.0
    return float(stats.t.isf(each / 2, draws - 1))


@dataclass(frozen=True)
class Power:
    """A fit of ``value ~ width^exponent``, with the standard error of the exponent.

    The power is fitted to ``values`` and their ``errors`` at the widths. Values that cannot be
    distinguished from noise are nan and are left out of the fit. The exponent is None if fewer than
    two values remain.
    """

    exponent: float | None
    error: float | None
    values: tuple[float, ...]
    errors: tuple[float, ...]

    def __str__(self) -> str:
        if self.exponent is None:
            return "-" if len(self.values) < 2 else "below the noise; use more draws"
        seen = sum(value == value for value in self.values)
        some = "" if seen == len(self.values) else f" ({seen} of {len(self.values)} widths)"
        return f"{self.exponent:+.2f} +- {self.error:.2f}{some}"


def root_mean_square(
    deviations: Sequence[Array], within: Sequence[Any], widths: Sequence[int]
) -> Power:
    """Fit a power to the RMS deviation of a single pair, by width.

    ``deviations`` contains an array (draws, values) for each width. ``within`` is the variance
    within a draw.
    """
    values, errors = [], []
    for own, inside in zip(deviations, within, strict=True):
        squares = (own**2 + inside).mean(axis=1)
        root = float(np.sqrt(squares.mean()))
        values.append(root)
        errors.append(
            float(squares.std(ddof=1) / np.sqrt(squares.size)) / (2 * root) if root > 0 else 0.0
        )
    return fitted(widths, values, errors)


def bias(deviations: Sequence[Array], widths: Sequence[int]) -> Power:
    """Fit a power to the RMS of the *mean* deviation, by width, corrected for noise.

    The estimate uses products of different draws only, ``(|sum v|^2 - sum |v|^2) / (n (n - 1))``.
    The expectation of the estimate does not include the variance of a draw. Values below two
    jackknife standard errors are nan.
    """
    values, errors = [], []
    for own in deviations:
        n, numbers = own.shape
        gram = own @ own.T / numbers
        total, diagonal, rows = gram.sum(), np.diag(gram), gram.sum(axis=1)
        square = (total - diagonal.sum()) / (n * (n - 1))
        left = (
            (total - 2 * rows + diagonal - (diagonal.sum() - diagonal)) / ((n - 1) * (n - 2))
            if n > 2
            else np.full(n, np.nan)
        )
        error = float(np.sqrt((n - 1) * left.var()))
        seen = bool(square > 2 * error)
        values.append(float(np.sqrt(square)) if seen else float("nan"))
        errors.append(error / (2 * float(np.sqrt(square))) if seen else float("nan"))
    return fitted(widths, values, errors)


def fitted(widths: Sequence[int], values: Sequence[float], errors: Sequence[float]) -> Power:
    """Fit a power of the width by least squares on logarithms, weighted by the errors."""
    seen = np.flatnonzero(np.nan_to_num(np.array(values)) > 0)
    exponent = deviation = None
    if len(seen) > 1:
        value, error = np.array(values)[seen], np.array(errors)[seen]
        weights = 1 / np.maximum(error / value, 1e-6)
        (exponent, _), covariance = np.polyfit(
            np.log(np.asarray(widths, float)[seen]), np.log(value), 1, w=weights, cov="unscaled"
        )
        exponent, deviation = float(exponent), float(covariance[0, 0] ** 0.5)
    return Power(exponent, deviation, tuple(map(float, values)), tuple(map(float, errors)))
