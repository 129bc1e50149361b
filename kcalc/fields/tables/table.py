"""Tables of C maps, made from a few thousand exact values.

Evaluating a table takes about as long as a few calls of arccos.

``tabulate`` fits the gap 1 - C as a function of the gap u = 1 - c by polynomials on dyadic
intervals (:mod:`.dyadic`). Near u = 0, the error of the polynomials is relative. A table is
therefore accurate for C, for the gap, and for arbitrarily small angles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import whole
from ...foundation.printing import Shown
from ..arguments import (
    Number,
    Numbers,
    angle_array,
    cosine_array,
    finished,
    real_array,
    series_length,
    single_precision,
)
from ..jax_field import is_jax
from .dyadic import SMALLEST, locate, polynomial, slope
from .octaves import FINEST, Side

if TYPE_CHECKING:
    from jax import Array as JaxArray

Array = np.ndarray
GapFunction = Callable[[Array], Array]

_CHUNK = 1 << 15  # points evaluated at once, so that the work arrays stay in cache
_SAFETY = 4.0
_ROUNDING = 4 * 2.0**-52
_USELESS = 1e-6


@dataclass(frozen=True, eq=False, repr=False)
class Table(Shown):
    """A table of C(c) at fixed q values. Call it with c.

    The result is a NumPy array for NumPy arrays and a JAX array for JAX arrays, also inside jit,
    vmap and grad.

    Attributes
    ----------
    error_bound
        A bound on |table - C|: 4 times the residuals measured between the nodes, plus rounding (and
        2e-7 for float32 arrays).
    relative_bound
        The same bound for the relative error of ``gap``, for gaps in (0, 1].
    nodes
        The gaps 1 - c at which ``gap_function`` was evaluated, ascending.
    values
        The values 1 - C at the nodes.

    """

    name: str
    gap_function: GapFunction
    tolerance: float
    error_bound: float
    relative_bound: float
    nodes: Array
    values: Array
    coefficients: Array = field(repr=False)
    end_slopes: tuple[Array, Array] = field(repr=False)
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    @overload
    def __call__(self, c: JaxArray) -> JaxArray: ...
    @overload
    def __call__(self, c: Number) -> float: ...
    @overload
    def __call__(self, c: Numbers) -> Array: ...
    def __call__(self, c: Any) -> JaxArray | float | Array:
        """Return C at c in [-1, 1], for c of any shape.

        Raises KcalcError if |c| > 1 beyond rounding, and for nan. For JAX arrays, the result is nan
        instead.
        """
        if is_jax(c):
            return self._jax("value")(c)
        array = _floats(c)
        out = chunked(array, self._values)
        return out.astype(np.float32) if single_precision(c) else out[()]

    @overload
    def slope(self, c: JaxArray) -> JaxArray: ...
    @overload
    def slope(self, c: Number) -> float: ...
    @overload
    def slope(self, c: Numbers) -> Array: ...
    def slope(self, c: Any) -> JaxArray | float | Array:
        """Return C'(c).

        At c = +-1, the result is the limit or, if the limit is infinite, the slope at the
        neighbouring float64 number (float32 for JAX float32).

        Near c = -1, C' is computed from differences of values of order 1. The error grows like
        1e-15/(1 + c) there, until a separate fit is used.

        Parameters
        ----------
        c
            The cosine between the two inputs, in [-1, 1].

        Returns
        -------
        JaxArray | float | Array
            The slope, with the shape of ``c``.

        """
        if is_jax(c):
            return self._jax("slope")(c)
        out = chunked(_floats(c), self._slopes)
        return out.astype(np.float32) if single_precision(c) else out[()]

    @overload
    def gap(self, gap: JaxArray) -> JaxArray: ...
    @overload
    def gap(self, gap: Number) -> float: ...
    @overload
    def gap(self, gap: Numbers) -> Array: ...
    def gap(self, gap: Any) -> JaxArray | float | Array:
        """Return 1 - C at c = 1 - gap, for gaps in [0, 2], with full relative accuracy.

        Parameters
        ----------
        gap
            The gap 1 - c, in [0, 2].

        Returns
        -------
        JaxArray | float | Array
            1 - C, with the shape of ``gap``.

        Raises
        ------
        KcalcError
            If a gap is outside [0, 2], or nan.

        """
        if is_jax(gap):
            return self._jax("gap")(gap)
        array = real_array(gap, "gap")
        if np.any((array < -1e-12) | (array > 2 + 1e-12)):
            raise KcalcError(
                "a gap, 1 - c, must be in [0, 2], got "
                f"{array[(array < -1e-12) | (array > 2 + 1e-12)].ravel()[0]}"
            )
        out = chunked(
            np.clip(array, 0.0, 2.0), lambda part: self._drop(np.minimum(part, 2 - part), part > 1)
        )
        return finished(out, array.shape, single_precision(gap))

    @overload
    def at_angle(self, theta: JaxArray) -> JaxArray: ...
    @overload
    def at_angle(self, theta: Number) -> float: ...
    @overload
    def at_angle(self, theta: Numbers) -> Array: ...
    def at_angle(self, theta: Any) -> JaxArray | float | Array:
        """Return the angle arccos C at c = cos theta, with full relative accuracy.

        Parameters
        ----------
        theta
            The angle between the two inputs, in [0, pi].

        Returns
        -------
        JaxArray | float | Array
            Angles in radians, with the shape of ``theta``.

        Raises
        ------
        KcalcError
            If an angle is outside [0, pi], or nan.

        """
        if is_jax(theta):
            return self._jax("angle")(theta)
        array = np.minimum(angle_array(theta), np.pi)
        return finished(chunked(array, self._turned), array.shape, single_precision(theta))

    def verify(self, points: int = 1000, seed: int = 0) -> float:
        """Return the largest |table - C| over random c.

        Half of the points are uniform in [-1, 1], and half are close to the ends on a logarithmic
        scale.

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
        points = whole(points, "points", 1, 10**8)
        random = np.random.default_rng(whole(seed, "seed"))
        near = 2.0 ** -random.uniform(0, 52, points)
        gap = np.where(
            random.random(points) < 0.5,
            random.uniform(0, 2, points),
            np.where(random.random(points) < 0.5, near, 2 - near),
        )
        exact = _evaluated(self.gap_function, gap, self.name)
        return float(np.abs(self.gap(gap) - exact).max(initial=0.0))

    def to_dict(self, points: int = 41) -> dict[str, Any]:
        """Return the name, error bound and sampled values as plain data.

        Parameters
        ----------
        points
            The number of sampled points.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        c = np.cos(np.linspace(np.pi, 0, series_length(points)))
        return {
            "table": self.name,
            "error_bound": self.error_bound,
            "nodes": self.nodes.size,
            "c": c.tolist(),
            "C": self(c).tolist(),
        }

    def _frame(self) -> dict[str, Array]:
        return {"c": 1 - self.nodes, "C": 1 - self.values}

    def _rows(self) -> list[tuple[str, str]]:
        names = ("error_bound", "relative_bound", "tolerance")
        sizes = (("map", self.name), ("nodes", str(self.nodes.size)))
        return [
            ("", "value"),
            *sizes,
            *((name.replace("_", " "), f"{getattr(self, name):.2g}") for name in names),
        ]

    def __repr__(self) -> str:
        return f"Table({self.name}, {self.nodes.size} nodes, error <= {self.error_bound:.1e})"

    # --- evaluation -------------------------------------------------------------------------------

    def _values(self, c: Array) -> Array:
        row, t, _ = locate(_distance(c), np.signbit(c))
        out = polynomial(self.coefficients, row, t)
        return np.subtract(1.0, out, out=out)

    def _slopes(self, c: Array) -> Array:
        upper = np.signbit(c)
        out = slope(self.coefficients, *locate(_distance(c), upper), self.end_slopes[0])
        return np.where(upper, -out, out)

    def _drop(self, w: Array, upper: Array) -> Array:
        """Return 1 - C at distance w from an end, from its power law if w is below SMALLEST."""
        row, t, _ = locate(w, upper)
        out = polynomial(self.coefficients, row, t)
        tiny = (w < SMALLEST) & (w > 0) & ~upper
        if tiny.any():
            end, one, two = (
                float(a)
                for a in self._drop(np.array([0.0, SMALLEST, 2 * SMALLEST]), np.zeros(3, bool))
            )
            power = math.log2((two - end) / (one - end)) if two > one > end else 1.0
            # the power is 1, or 1/2 after one jump, 1/4 after two, and so on
            power = round(64 * power) / 64 if abs(64 * power % 1 - 0.5) > 0.499 else power
            out[tiny] = end + (one - end) * (w[tiny] / SMALLEST) ** power
        return out

    def _turned(self, theta: Array) -> Array:
        upper = theta > np.pi / 2
        distance = 2 * np.sin(np.where(upper, np.pi - theta, theta) / 2) ** 2
        drop = np.clip(self._drop(distance, upper), 0.0, 2.0)
        return 2 * np.arctan2(np.sqrt(drop), np.sqrt(2 - drop))

    def _jax(self, kind: str) -> Callable[[Any], Any]:
        if kind not in self._cache:
            from .jax_tables import table_function

            self._cache[kind] = table_function(kind, self.coefficients, self.end_slopes)
        return self._cache[kind]


def _floats(c: Any) -> Array:
    """Return c as a float64 array, without checking the values."""
    return (
        c.astype(np.float64, copy=False)
        if isinstance(c, np.ndarray) and c.dtype.kind == "f"
        else real_array(c, "c")
    )


def _distance(c: Array) -> Array:
    """Check a chunk and return 1 - |c|."""
    w = np.abs(c)
    np.subtract(1.0, w, out=w)
    if w.size and not w.min() >= -1e-12:
        cosine_array(c)
    return w


def chunked(array: Array, function: Callable[[Array], Array]) -> Array:
    """Apply ``function`` to an array in parts, so that its work arrays stay in cache."""
    flat = array.reshape(-1)
    if flat.size <= _CHUNK:
        return function(flat).reshape(array.shape)
    out = np.empty(flat.size)
    for start in range(0, flat.size, _CHUNK):
        out[start : start + _CHUNK] = function(flat[start : start + _CHUNK])
    return out.reshape(array.shape)


# --- building -------------------------------------------------------------------------------------


def tabulate(gap_function: GapFunction, tolerance: float = 1e-14, name: str = "") -> Table:
    """Tabulate a C map given by its gap function.

    ``gap_function`` returns the gap 1 - C at a float64 array of gaps 1 - c in [0, 2].

    ``tolerance`` is the allowed error of C, and 100 times ``tolerance`` is the allowed relative
    error of 1 - C near c = 1. Panels that miss these tolerances are bisected, at most three times,
    as long as bisection helps; ``error_bound`` reports the result. Raises KcalcError if the
    function is not real and finite on [0, 2], and if the error stays above 1e-6.
    """
    if not 0 < tolerance < 1:
        raise KcalcError(f"tolerance must be a number between 0 and 1, got {tolerance}")
    sides = [Side(False, tolerance), Side(True, tolerance)]
    # the float64 numbers next to c = -1
    close = 2 - np.unique(np.round(2.0 ** np.linspace(0, 52 - FINEST, 24))) * 2.0**-52
    fixed = np.concatenate([[0.0, 2.0], close])
    low, high, *near = _evaluated(gap_function, fixed, name)
    sides[1].data.append((close, np.array(near)))
    for panels in (1, 2, 4, 8):
        wanted = [side.points(panels) for side in sides]
        if not any(points.size for points in wanted):
            break
        values = _evaluated(
            gap_function, np.concatenate([points.ravel() for points in wanted]), name
        )
        for side, points, part in zip(
            sides, wanted, np.split(values, [wanted[0].size]), strict=True
        ):
            side.refine(panels, points, part.reshape(points.shape))
    table = _finished(Table(name, gap_function, tolerance, 0.0, 0.0, *_joined(sides, low, high)))
    if not table.error_bound < _USELESS:
        raise KcalcError(
            f"the C map{f' of {name}' if name else ''} is too rough to be tabulated (the error "
            f"would be {table.error_bound:.1e})"
        )
    return table


def _joined(
    sides: list[Side], low: float, high: float
) -> tuple[Array, Array, Array, tuple[Array, Array]]:
    """Return (nodes, values, coefficients, slopes at the ends in double and single precision)."""
    built = [side.finished(float(end)) for side, end in zip(sides, (low, high), strict=True)]
    coefficients = np.ascontiguousarray(np.concatenate([part for part, _ in built], axis=1))
    gaps = np.concatenate([[0.0, 2.0], *(gap for side in sides for gap, _ in side.data)])
    values = np.concatenate([[low, high], *(value for side in sides for _, value in side.data)])
    nodes, first = np.unique(gaps, return_index=True)
    ends = tuple(
        np.array(
            [
                _end_slope(coefficients, upper, limit, neighbour)
                for upper, (_, limit) in enumerate(built)
            ]
        )
        for neighbour in (2.0**-53, 2.0**-24)
    )
    return nodes, values[first], coefficients, ends  # pyright: ignore[reportReturnType]


def _end_slope(coefficients: Array, upper: int, limit: float | None, neighbour: float) -> float:
    """Return d(1 - C)/dw at an end: its limit or, if infinite, its value at ``neighbour``."""
    if limit is not None and math.isfinite(limit):
        return limit
    w = np.array([2 * SMALLEST, 2.0**-53, neighbour])
    deep, close, here = slope(coefficients, *locate(w, np.full(3, bool(upper))), np.zeros(2))
    return float(deep if limit is None and abs(deep - close) <= 1e-2 * abs(close) else here)


def _finished(table: Table) -> Table:
    """Return ``table`` with error bounds that were measured at all evaluated points."""
    error = np.abs(table.gap(table.nodes) - table.values)
    lower = (table.nodes > 0) & (table.nodes <= 1) & (table.values > 0)
    relative = float((error[lower] / table.values[lower]).max(initial=0.0))
    bound = _SAFETY * float(error.max()) + _ROUNDING
    return replace(table, error_bound=bound, relative_bound=_SAFETY * relative + _ROUNDING)


def _evaluated(gap_function: GapFunction, gap: Array, name: str) -> Array:
    values = np.asarray(gap_function(gap))
    if values.shape != gap.shape or values.dtype.kind not in "iuf":
        raise KcalcError(
            f"the function to tabulate{f' ({name})' if name else ''} must return a real array with "
            "the shape of its argument"
        )
    if not np.isfinite(values).all():
        raise KcalcError(
            f"the C map{f' of {name}' if name else ''} is not finite at c = "
            f"{1 - gap[~np.isfinite(values)][0]:.17g}"
        )
    return values.astype(np.float64)
