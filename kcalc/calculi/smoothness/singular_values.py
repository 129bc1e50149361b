"""Singular values of a I + b A for a wide random matrix A.

The support, density and mean square have closed forms.

Let A be n x n with independent entries of mean 0 and variance sigma_w^2 / n, and tau = |b| sigma_w.
As n grows, the singular values of a I + b A fill an interval. The diagonal m of the resolvent of
the Hermitised matrix [[0, a I + b A], [(a I + b A)^*, 0]] solves ``m = -y / (y^2 - a^2)`` with
``y = x + tau^2 m``, that is ``y^3 - x y^2 + (tau^2 - a^2) y + a^2 x = 0``. The density is
``(2 / pi) Im m(x + i0)``. The edges follow from the discriminant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ...fields.arguments import Number, Numbers, finished, one_number, real_array
from ...foundation.errors import KcalcError
from ...foundation.guests import DRAWINGS
from ...foundation.printing import Printed
from ...foundation.process_state import cached_property
from ...maps.maps import Assumption
from .normalisers import positive_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray
_NODES = 4096


@dataclass(frozen=True)
class ResidualSpectrum(Printed):
    """The singular value distribution of ``shortcut_weight I + residual_weight A``.

    The entries of A have variance sigma_w^2 / n, and n is large.

    The distribution describes the bulk for random A. A few singular values of a draw may lie
    outside the bulk. For a fixed matrix, such as A = -I/2, all of them may lie outside.
    """

    sigma_w: float
    shortcut_weight: float = 1.0
    residual_weight: float = 1.0

    @property
    def deviation(self) -> float:
        """tau = |residual_weight| sigma_w.

        tau is sqrt(n) times the standard deviation of an entry of the random part.
        """
        return abs(self.residual_weight) * self.sigma_w

    @property
    def support(self) -> tuple[float, float]:
        """(smallest, largest) singular value of the bulk.

        ``a`` is the shortcut weight and ``tau`` the residual weight times sigma_w. With a = 1 and t
        = tau, ``q = sqrt(1 + 8/t^2)``, ``s+ = t sqrt((q+3)^3 / (8 (q+1)))`` and
        ``s- = t sqrt((q-3)^3 / (8 (q-1)))`` if t < 1, otherwise 0. Both endpoints are proportional
        to a. Without a shortcut, the support is [0, 2 tau]. For entries uniform on (-1/sqrt n,
        1/sqrt n), the support is [1/(2 sqrt 3), 4 sqrt 2 / 3].
        """
        a, tau = abs(self.shortcut_weight), self.deviation
        if a == 0:
            return 0.0, 2 * tau
        r = (a / tau) ** 2  # q - 1 and q - 3 from r, without cancellation at small and large t
        q = np.sqrt(1 + 8 * r)
        high = tau * np.sqrt((q + 3) ** 3 / (8 * (q + 1)))
        excess = 8 * (a - tau) * (a + tau) / tau**2 / (q + 3)
        low = tau * np.sqrt(excess**3 / (8 * (8 * r / (q + 1)))) if tau < a else 0.0
        return float(low), float(high)

    @property
    def mean_square(self) -> float:
        """``a^2 + tau^2``, the mean of the squared singular values for every n."""
        return self.shortcut_weight**2 + self.deviation**2

    @overload
    def density(self, x: Number) -> float: ...
    @overload
    def density(self, x: Numbers) -> Array: ...
    def density(self, x: Any) -> float | Array:
        """Evaluate the density at singular values x >= 0, vectorised.

        Parameters
        ----------
        x
            Singular values >= 0.

        Returns
        -------
        float | Array
            The density, with the shape of ``x``.

        Raises
        ------
        KcalcError
            If some x is not a number >= 0.

        """
        points = self._points(x)
        return finished(
            self._density(np.atleast_1d(points)).reshape(points.shape), points.shape, False
        )

    @overload
    def cdf(self, x: Number) -> float: ...
    @overload
    def cdf(self, x: Numbers) -> Array: ...
    def cdf(self, x: Any) -> float | Array:
        """Evaluate the share of singular values up to x, vectorised and accurate to about 1e-6.

        Parameters
        ----------
        x
            Singular values >= 0.

        Returns
        -------
        float | Array
            Shares in [0, 1], with the shape of ``x``.

        """
        points = self._points(x)
        return finished(np.interp(points, *self._table), points.shape, False)

    def mean(self) -> float:
        """Return the mean singular value, which is 8 tau / (3 pi) without a shortcut.

        Returns
        -------
        float
            The mean.

        """
        grid, cumulative = self._table
        return float(grid[-1] - np.sum(np.diff(grid) * (cumulative[1:] + cumulative[:-1]) / 2))

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of the distribution."""
        text = (
            "square weights whose entries are independent with mean 0 and the same variance, in "
            "the limit of infinite width; the distribution describes the bulk, not a single "
            "matrix"
        )
        return (Assumption("network", text, "convention"),)

    def plot(self, ax: Axes | None = None, values: Any = None) -> Axes:
        """Draw the density.

        If ``values`` are given, their histogram is drawn below it.

        Parameters
        ----------
        ax
            The matplotlib Axes to draw on; None creates new axes.
        values
            Singular values to draw as a histogram.

        Returns
        -------
        Axes
            The Matplotlib axes.

        References
        ----------
        [MacDonald et al. 2023, Fig. 1]

        """
        return DRAWINGS["ResidualSpectrum"](self, values, ax=ax)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        low, high = self.support
        own = {
            "sigma_w": self.sigma_w,
            "shortcut_weight": self.shortcut_weight,
            "residual_weight": self.residual_weight,
        }
        return {**own, "support": [low, high], "mean_square": self.mean_square, "mean": self.mean()}

    def _frame(self) -> list[dict[str, float]]:
        found = self.to_dict()
        smallest, largest = found.pop("support")
        return [found | {"smallest": smallest, "largest": largest}]

    def __str__(self) -> str:
        low, high = self.support
        head = (
            f"singular values of {self.shortcut_weight:g} I + {self.residual_weight:g} A, sigma_w "
            f"= {self.sigma_w:.6g}"
        )
        return (
            f"{head}\n  support      [{low:.6g}, {high:.6g}]\n  mean         {self.mean():.6g}\n  "
            f"mean square  {self.mean_square:.6g}"
        )

    def __repr__(self) -> str:
        low, high = self.support
        return f"ResidualSpectrum([{low:.6g}, {high:.6g}], mean square {self.mean_square:.6g})"

    # -- internals ---------------------------------------------------------------------------------

    def _points(self, x: Any) -> Array:
        points = real_array(x, "x")
        if np.any(points < 0):
            raise KcalcError(f"singular values must be >= 0, got {points[points < 0].ravel()[0]}")
        return points

    def _density(self, x: Array) -> Array:
        low, high = self.support
        out = np.zeros(x.shape)
        inside = (x > low) & (x < high)
        tau2 = self.deviation**2
        companion = np.zeros((int(inside.sum()), 3, 3))
        companion[:, 1, 0] = companion[:, 2, 1] = 1
        companion[:, 0, 0] = x[inside]
        companion[:, 0, 1] = self.shortcut_weight**2 - tau2
        companion[:, 0, 2] = -(self.shortcut_weight**2) * x[inside]
        out[inside] = 2 / np.pi * np.abs(np.linalg.eigvals(companion).imag).max(axis=-1) / tau2
        if low == 0.0:
            out[x == 0] = 2 / np.pi * np.sqrt(max(tau2 - self.shortcut_weight**2, 0.0)) / tau2
        return out

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """The cumulative distribution on a grid.

        The grid is dense at both edges, where the density behaves like a square root.
        """
        low, high = self.support
        angle = np.linspace(0, np.pi, _NODES + 1)
        grid = low + (high - low) * (1 - np.cos(angle)) / 2
        weight = self._density(grid) * np.sin(angle)
        cumulative = np.concatenate(
            [[0.0], np.cumsum((weight[1:] + weight[:-1]) / 2 * np.diff(angle))]
        )
        return grid, cumulative / cumulative[-1]


def residual_spectrum(
    sigma_w: Any, shortcut_weight: Any = 1, residual_weight: Any = 1
) -> ResidualSpectrum:
    """Compute the singular value distribution of ``shortcut_weight I + residual_weight A``.

    A is a wide random square matrix.

    Parameters
    ----------
    sigma_w
        ``sqrt(n)`` times the standard deviation of the entries of A, as in Affine layers. All three
        arguments are real numbers.
    shortcut_weight
        The amplitude of the shortcut. If only one weight is passed, the squares of both sum to 1.
    residual_weight
        The amplitude of the branch. If only one weight is passed, the squares of both sum to 1.

    Returns
    -------
    ResidualSpectrum
        The distribution, with its density, CDF and mean.

    Raises
    ------
    KcalcError
        For sigma_w <= 0, symbols, and a residual weight of 0.

    References
    ----------
    [MacDonald et al. 2023, Fig. 1 and sec. 7]

    """
    shortcut = one_number(shortcut_weight, "shortcut_weight")
    residual = one_number(residual_weight, "residual_weight")
    if residual == 0:
        raise KcalcError(
            "residual_weight = 0 leaves no random part, so all singular values are "
            "|shortcut_weight|; use another residual_weight"
        )
    return ResidualSpectrum(positive_number(sigma_w, "sigma_w"), shortcut, residual)
