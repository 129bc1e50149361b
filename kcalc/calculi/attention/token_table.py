"""Tables of token maps: polynomials in the square root of the gap, for cosines up to 1.

With u = 1 - rho and t = sqrt(u), ``1 - R = (1 - R(1)) + u f(t)``. The factor f is smooth in t if
the activations of the network have no jumps: with kinks, ``1 - R`` is a series in powers of t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ...fields.arguments import (
    Number,
    Numbers,
    finished,
    real_array,
    series_length,
    single_precision,
)
from ...fields.chebyshev import Array, Piecewise, halved
from ...fields.jax_field import is_jax
from ...fields.tables.table import chunked
from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import whole
from ...foundation.printing import Shown

if TYPE_CHECKING:
    from jax import Array as JaxArray

GapFunction = Callable[[Array], Array]
_SAFETY = 4.0
_ROUNDING = 16 * 2.0**-52
_USELESS = 1e-6
_HALVINGS = 5
_OUTSIDE = 1e-12  # tolerance for cosines out of range


@dataclass(frozen=True, eq=False, repr=False)
class TokenTable(Shown):
    """A table of R(rho) for least <= rho <= 1; call it with rho, a NumPy or JAX array.

    For a JAX array, the result is a JAX array with nan out of range; jit, vmap and grad are
    supported.

    Attributes
    ----------
    error_bound
        A bound on |table - R|: 4 times the residuals measured between the nodes, plus rounding
        (2e-7 more for float32 arrays).
    nodes, values
        The gaps 1 - rho where the map was evaluated, in ascending order, and the values 1 - R
        there.

    """

    name: str
    least: float
    tolerance: float
    error_bound: float
    nodes: Array
    values: Array
    gap_function: GapFunction = field(repr=False)
    end: float = field(repr=False)  # 1 - R at rho = 1
    factor: Piecewise = field(repr=False)  # f over t / sqrt(1 - least)

    @overload
    def __call__(self, rho: JaxArray) -> JaxArray: ...
    @overload
    def __call__(self, rho: Number) -> float: ...
    @overload
    def __call__(self, rho: Numbers) -> Array: ...
    def __call__(self, rho: Any) -> JaxArray | float | Array:
        """Return R(rho), with the shape of ``rho``.

        Raises: KcalcError for cosines that the tokens cannot have.
        """
        if is_jax(rho):
            return 1 - self.gap(1 - rho)
        return finished(1 - self.gap(1 - self._cosines(rho)), np.shape(rho), single_precision(rho))

    @overload
    def gap(self, gap: JaxArray) -> JaxArray: ...
    @overload
    def gap(self, gap: Number) -> float: ...
    @overload
    def gap(self, gap: Numbers) -> Array: ...
    def gap(self, gap: Any) -> JaxArray | float | Array:
        """Return 1 - R at rho = 1 - gap.

        Parameters
        ----------
        gap
            1 - rho, >= 0.

        Returns
        -------
        JaxArray | float | Array
            1 - R, with the shape of ``gap``.

        """
        if is_jax(gap):
            import jax.numpy as jnp

            largest = 1 - self.least
            outside = (gap < -1e-6) | (gap > largest + 1e-6)
            inside = jnp.where(gap < 0, 0, jnp.where(gap > largest, largest, gap))
            return jnp.where(outside, jnp.nan, self._drop(inside, jnp))
        array = self._gaps(gap)
        drop = chunked(array, lambda part: self._drop(part, np))
        return finished(drop, array.shape, single_precision(gap))

    @overload
    def slope(self, rho: Number) -> float: ...
    @overload
    def slope(self, rho: Numbers) -> Array: ...
    def slope(self, rho: Any) -> float | Array:
        """Return R'(rho), computed with NumPy; with JAX, use ``jax.grad`` of the table.

        Parameters
        ----------
        rho
            The cosine between two tokens.

        Returns
        -------
        float | Array
            The slope, with the shape of ``rho``.

        Raises
        ------
        KcalcError
            For cosines that the tokens cannot have.

        """
        array = self._gaps(1 - self._cosines(rho))
        rising = self.factor.slope()

        def at(gap: Array) -> Array:
            place = np.sqrt(gap) / self._extent
            return self.factor(place) + place / 2 * rising(place)

        return finished(chunked(array, at), array.shape, single_precision(rho))

    def verify(self, points: int = 100, seed: int = 0) -> float:
        """Return the largest |table - R| over random cosines rho, half of them close to 1.

        Parameters
        ----------
        points
            The number of sampled points.
        seed
            The seed of the random numbers.

        Returns
        -------
        float
            The absolute error.

        """
        points = whole(points, "points", 1, 10**6)
        random = np.random.default_rng(whole(seed, "seed"))
        powers = np.where(random.random(points) < 0.5, 1, 4)
        gap = (1 - self.least) * random.random(points) ** powers
        return float(np.abs(self.gap(gap) - _evaluated(self.gap_function, gap, self.name)).max())

    def to_dict(self, points: int = 41) -> dict[str, Any]:
        """Return name, range, error bound and sampled values as plain data.

        Parameters
        ----------
        points
            The number of sampled points.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        rho = np.linspace(self.least, 1, series_length(points))
        return {
            "table": self.name,
            "error_bound": self.error_bound,
            "nodes": self.nodes.size,
            "rho": rho.tolist(),
            "R": self(rho).tolist(),
        }

    def _frame(self) -> dict[str, Array]:
        return {"rho": 1 - self.nodes, "R": 1 - self.values}

    def _rows(self) -> list[tuple[str, str]]:
        return [
            ("", "value"),
            ("map", self.name),
            ("rho", f"{self.least:.6g} ... 1"),
            ("nodes", str(self.nodes.size)),
            ("error bound", f"{self.error_bound:.2g}"),
            ("tolerance", f"{self.tolerance:.2g}"),
        ]

    def __repr__(self) -> str:
        return (
            f"TokenTable({self.name}, rho from {self.least:.4g} to 1, {self.nodes.size} nodes, "
            f"error <= {self.error_bound:.1e})"
        )

    @property
    def _extent(self) -> float:
        """The largest value of t, at the smallest cosine."""
        return float(np.sqrt(1 - self.least))

    def _cosines(self, rho: Any) -> Array:
        return np.asarray(real_array(rho, "rho"), dtype=float)

    def _gaps(self, gap: Any) -> Array:
        array = np.asarray(real_array(gap, "gap"), dtype=float)
        outside = ~((array >= -_OUTSIDE) & (array <= 1 - self.least + _OUTSIDE))
        if outside.any():
            raise KcalcError(
                f"the cosines of these tokens must be between {self.least:.6g} and 1, got "
                f"{1 - array[outside].ravel()[0]:.6g}"
            )
        return np.clip(array, 0.0, 1 - self.least)

    def _drop(self, gap: Any, xp: Any) -> Any:
        """Return 1 - R with NumPy or JAX, differentiable even at a gap of 0."""
        there = gap > 0
        t = xp.where(there, xp.sqrt(xp.where(there, gap, 1)), 0)
        return self.end + gap * self.factor(t / self._extent)


def tabulate_tokens(
    gap_function: GapFunction, least: float, tolerance: float = 1e-10, name: str = ""
) -> TokenTable:
    """Tabulate a token map given by its gap function, for cosines from ``least`` to 1.

    ``gap_function`` returns the gap 1 - R for a float64 array of gaps 1 - rho. Panels of t are
    halved at most 5 times, until the table is within ``tolerance`` of R between the nodes. Raises:
    KcalcError for functions that are not finite, and for a table with an error of 1e-6 or more.
    """
    if not 0 < tolerance < 1:
        raise KcalcError(f"tolerance must be a number between 0 and 1, got {tolerance}")
    extent = float(np.sqrt(1 - least))
    (end,) = _evaluated(gap_function, np.zeros(1), name)
    for fit, (probes, truth), (gaps, drops) in halved(
        lambda t: np.minimum((t * extent) ** 2, 1 - least),
        lambda gap: np.sqrt(gap) / extent,
        lambda gap: _evaluated(gap_function, gap, name),
        lambda gap, values: (values - end) / gap,
        _HALVINGS,
    ):
        known = np.append(0.0, gaps), np.append(end, drops)
        table = TokenTable(name, least, tolerance, 0.0, *known, gap_function, float(end), fit)
        error = _SAFETY * float(np.abs(table.gap(probes) - truth).max()) + _ROUNDING
        table = replace(table, error_bound=error)
        if error <= max(tolerance, 2 * _ROUNDING):
            break
    if not table.error_bound < _USELESS:
        raise KcalcError(
            f"the token map{f' of {name}' if name else ''} is too rough to be tabulated (the "
            f"error would be {error:.1e}); call the map itself, which accepts arrays of cosines"
        )
    return table


def _evaluated(gap_function: GapFunction, gap: Array, name: str) -> Array:
    values = np.asarray(gap_function(gap.ravel()), dtype=float).reshape(gap.shape)
    if not np.isfinite(values).all():
        raise KcalcError(
            f"the token map{f' of {name}' if name else ''} is not finite at rho = "
            f"{1 - gap[~np.isfinite(values)][0]:.17g}"
        )
    return values
