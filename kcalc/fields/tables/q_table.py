"""Tables of Q maps: log Q as a function of log q.

A table consists of Chebyshev polynomials on equal panels of [low, high].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np

from ...foundation.errors import KcalcError, glimpse
from ...foundation.plain_arguments import whole
from ...foundation.printing import Shown
from ..arguments import Number, Numbers, finished, q_array, single_precision
from ..chebyshev import Array, Piecewise, halved
from .table import chunked

_SAFETY = 4.0
_ROUNDING = 16 * 2.0**-52
_USELESS = 1e-6
_HALVINGS = 8


@dataclass(frozen=True, eq=False, repr=False)
class QTable(Shown):
    """A table of Q(q) for low <= q <= high. Call it with q, a number or an array.

    Attributes
    ----------
    error_bound
        A bound on |table - Q| / Q: 4 times the residuals measured between the nodes, plus rounding.
    nodes, values
        The q values at which Q was evaluated, ascending, and Q at these values.

    """

    name: str
    low: float
    high: float
    tolerance: float
    error_bound: float
    nodes: Array
    values: Array
    q_function: Callable[[Array], Array] = field(repr=False)
    logarithm: Piecewise = field(repr=False)  # log Q over log(q / low) / log(high / low)

    @overload
    def __call__(self, q: Number) -> float: ...
    @overload
    def __call__(self, q: Numbers) -> Array: ...
    def __call__(self, q: Any) -> float | Array:
        """Return Q(q), with the shape of ``q``.

        Raises KcalcError for nan and for q outside [low, high].
        """
        array = self._inside(q)
        return finished(
            chunked(array, lambda part: np.exp(self.logarithm(self._place(part)))),
            array.shape,
            single_precision(q),
        )

    @overload
    def slope(self, q: Number) -> float: ...
    @overload
    def slope(self, q: Numbers) -> Array: ...
    def slope(self, q: Any) -> float | Array:
        """Return Q'(q) for q of any shape.

        The error is about 1e-11, relative to both Q'(q) and Q(q) / q.

        Parameters
        ----------
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        float | Array
            The slope, with the shape of ``q``.

        Raises
        ------
        KcalcError
            If q is outside [low, high], or nan.

        """
        array = self._inside(q)
        rising, spread = self.logarithm.slope(), np.log(self.high / self.low)

        def at(part: Array) -> Array:
            place = self._place(part)
            return rising(place) / spread * np.exp(self.logarithm(place)) / part

        found = chunked(array, at)
        return finished(found, array.shape, single_precision(q))

    def verify(self, points: int = 1000, seed: int = 0) -> float:
        """Return the largest |table - Q| / Q over random q in [low, high], uniform in log q.

        Parameters
        ----------
        points
            The number of sampled points.
        seed
            The seed of the random numbers.

        Returns
        -------
        float
            The relative error.

        """
        random = np.random.default_rng(whole(seed, "seed"))
        q = np.exp(
            random.uniform(np.log(self.low), np.log(self.high), whole(points, "points", 1, 10**8))
        )
        exact = _evaluated(self.q_function, np.clip(q, self.low, self.high), self.name)
        return float(np.abs(self(np.clip(q, self.low, self.high)) / exact - 1).max())

    def to_dict(self, points: int = 41) -> dict[str, Any]:
        """Return the name, range, error bound and sampled values as plain data.

        Parameters
        ----------
        points
            The number of sampled points.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        q = np.clip(
            np.geomspace(self.low, self.high, whole(points, "points", 1, 10**6)),
            self.low,
            self.high,
        )
        return {
            "table": self.name,
            "error_bound": self.error_bound,
            "nodes": self.nodes.size,
            "q": q.tolist(),
            "Q": self(q).tolist(),
        }

    def _frame(self) -> dict[str, Array]:
        return {"q": self.nodes, "Q": self.values}

    def _rows(self) -> list[tuple[str, str]]:
        sizes = (
            ("map", self.name),
            ("q", f"{self.low:g} ... {self.high:g}"),
            ("nodes", str(self.nodes.size)),
        )
        return [
            ("", "value"),
            *sizes,
            ("error bound", f"{self.error_bound:.2g}"),
            ("tolerance", f"{self.tolerance:.2g}"),
        ]

    def __repr__(self) -> str:
        return (
            f"QTable({self.name}, q from {self.low:g} to {self.high:g}, {self.nodes.size} nodes, "
            f"error <= {self.error_bound:.1e})"
        )

    def _inside(self, q: Any) -> Array:
        array = np.asarray(q_array(q), dtype=float)
        outside = (array < self.low) | (array > self.high)
        if outside.any():
            raise KcalcError(
                f"q = {array[outside].ravel()[0]:g} is outside the table's range [{self.low:g}, "
                f"{self.high:g}]; tabulate a wider range"
            )
        return array

    def _place(self, q: Array) -> Array:
        return np.log(q / self.low) / np.log(self.high / self.low)


def tabulate_q(
    q_function: Callable[[Array], Array],
    low: float,
    high: float,
    tolerance: float = 1e-13,
    name: str = "",
) -> QTable:
    """Tabulate a Q map, a function of float64 arrays of q values, for low <= q <= high.

    Panels are halved, at most 8 times, until their polynomials have a relative error below
    ``tolerance`` between the nodes. Raises KcalcError unless 0 < low < high, if the function is
    not finite and positive there, and if the error of the table is 1e-6 or more.
    """
    if not 0 < tolerance < 1:
        raise KcalcError(f"tolerance must be a number between 0 and 1, got {tolerance}")
    if not low < high:
        raise KcalcError(f"low must be less than high, got low = {low:g} and high = {high:g}")
    spread = np.log(high / low)
    for fit, (probes, truth), known in halved(
        lambda t: np.clip(low * np.exp(t * spread), low, high),
        lambda q: np.log(q / low) / spread,
        lambda q: _evaluated(q_function, q, name),
        lambda q, values: np.log(values),
        _HALVINGS,
    ):
        table = QTable(name, low, high, tolerance, 0.0, *known, q_function, fit)
        error = _SAFETY * float(np.abs(table(probes) / truth - 1).max()) + _ROUNDING
        table = replace(table, error_bound=error)
        if error <= max(tolerance, 2 * _ROUNDING):
            break
    if not table.error_bound < _USELESS:
        raise KcalcError(
            f"the Q map{f' of {name}' if name else ''} is too rough to be tabulated (the error "
            f"would be {error:.1e})"
        )
    return table


def _evaluated(q_function: Callable[[Array], Array], q: Array, name: str) -> Array:
    values = np.asarray(q_function(q), dtype=float)
    good = np.isfinite(values) & (values > 0)
    if not good.all():
        raise KcalcError(
            f"the Q map{f' of {name}' if name else ''} is {glimpse(float(values[~good][0]))} at q "
            f"= {q[~good][0]:.17g}"
        )
    return values
