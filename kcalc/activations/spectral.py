"""Derivatives of a function that is known only by its values.

Chebyshev polynomials on panels represent the function up to rounding errors. Its derivatives
are computed by differentiating these polynomials.

The polynomial of a panel is fitted on a window that overlaps the neighbouring panels but crosses no
kink. In the n-th derivative, rounding errors grow like (N/h)^n in the middle of a window of
half-width h and like (N^2/h)^n at its ends. A point that no window resolves is an undeclared kink.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kcalc.activations.acceptance import simplest
from kcalc.fields.chebyshev import clenshaw, points, transform
from kcalc.foundation.errors import KcalcError
from kcalc.foundation.process_state import ALONE
from kcalc.gaussian.expectations.quadrature import Array

_TERMS = 32
# last coefficients below this are rounding errors; relative to the largest value on the window
_RESOLVED = 1e-15
# coefficients that no longer decrease may be this large; relative to the size of nearby values
_NOISY = 1e-12
_SHARE = 0.05  # this share of the largest value for |x| <= 4 is a lower bound for that size
# a window is narrowed if its values exceed the panel's by this factor, so that small values keep
# their relative accuracy
_STEEP = 100.0
_NARROWEST = 1e-6
_BLURRED = (
    1e-7  # limit for the rounding errors of the second derivative, relative to the function's size
)
_MOST = 20_000  # largest number of panels
HIGHEST = 3
"""The highest available order of differentiation."""


@lru_cache(maxsize=HIGHEST + 1)
def _differentiation(n: int) -> Array:
    """Return the matrix that maps Chebyshev coefficients to coefficients of the n-th derivative.

    The derivative is taken in the coordinate of the window, which runs from -1 to 1.
    """
    rows = np.polynomial.chebyshev.chebder(np.eye(_TERMS), n)
    return np.pad(np.asarray(rows, dtype=np.float64), ((0, n), (0, 0)))


class _Batch(NamedTuple):
    """Panels [left, right], each with a margin, inside smooth pieces (low, high).

    The window of a panel extends ``margin`` beyond the panel, but not beyond its smooth piece.

    ``tail`` is the size of the last coefficients on the parent panel, before halving.
    """

    left: Array
    right: Array
    margin: Array
    low: Array
    high: Array
    tail: Array

    def take(self, which: NDArray[np.bool_]) -> _Batch:
        return _Batch(*(part[which] for part in self))

    def halved(self, tail: Array) -> _Batch:
        middle = (self.left + self.right) / 2
        ends = np.concatenate([self.left, middle]), np.concatenate([middle, self.right])
        return _Batch(
            *ends,
            *(
                np.concatenate([part, part])
                for part in (self.margin / 2, self.low, self.high, tail)
            ),
        )

    @property
    def windows(self) -> tuple[Array, Array]:
        return np.maximum(self.low, self.left - self.margin), np.minimum(
            self.high, self.right + self.margin
        )


class Panels:
    """Derivatives of ``values`` up to the third, on an interval that grows on demand.

    ``values`` is a vectorised function that is smooth between ``kinks``.

    Raises KcalcError, naming ``name``, if the function is not smooth or not finite, or varies too
    fast.
    """

    def __init__(
        self, values: Callable[[Array], Array], kinks: tuple[float, ...], name: str
    ) -> None:
        self._values, self._kinks, self._name = values, np.array(kinks, dtype=float), name
        self._reach = self._greatest = 0.0
        self._left = self._start = self._stop = np.empty(0)
        self._coefficients = np.empty((0, _TERMS))
        self._derived: dict[int, Array] = {}
        inner = values(np.linspace(-4.0, 4.0, 65))
        self._floor = _SHARE * float(np.abs(inner[np.isfinite(inner)]).max(initial=0.0))

    def grow(self, radius: float) -> None:
        """Extend the panels to cover [-radius, radius]."""
        while self._reach < radius:
            start, stop = self._reach, max(1.0, 2 * self._reach)
            for low, high in ((start, stop), (-stop, -start)):
                self._cover(low, high)
            self._reach = stop

    def _cover(self, low: float, high: float) -> None:
        inside = self._kinks[(self._kinks > low) & (self._kinks < high)]
        edges = np.concatenate([[low], inside, [high]])
        walls = np.concatenate([[-np.inf], self._kinks, [np.inf]])
        place = np.searchsorted(walls, (edges[1:] + edges[:-1]) / 2)
        margin = np.full(edges.size - 1, high - low)
        nothing = np.full(margin.size, np.inf)
        todo = _Batch(edges[:-1], edges[1:], margin, walls[place - 1], walls[place], nothing)
        kept = 0
        while todo.left.size:
            coefficients, tail, resolved = self._fit(todo)
            self._keep(todo.take(resolved), coefficients[resolved])
            kept += int(resolved.sum())
            todo, tail = todo.take(~resolved), tail[~resolved]
            narrow = todo.margin < _NARROWEST * (1 + np.abs(todo.left))
            if narrow.any():
                raise self._kink(float((todo.left[narrow][0] + todo.right[narrow][0]) / 2))
            if kept + todo.left.size > _MOST:
                raise KcalcError(
                    f"activation {self._name!r} varies too fast to be resolved between x = "
                    f"{low:g} and {high:g} "
                    "(a callable must compute in double precision throughout)"
                )
            todo = todo.halved(tail)
        self._refuse_blurred(low, high)

    def _fit(self, batch: _Batch) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Fit the windows; return (coefficients, size of the last coefficients, resolved windows).

        Chebyshev coefficients at the level of rounding errors are set to 0.

        If the last coefficients decrease neither with the degree nor when a panel is halved, they
        are rounding errors. At a kink, they would decrease.
        """
        start, stop = batch.windows
        nodes, matrix = points(_TERMS), transform(_TERMS)
        x = ((start + stop) / 2)[:, None] + ((stop - start) / 2)[:, None] * nodes
        f = self._values(x)
        if not np.isfinite(f).all():
            raise KcalcError(
                f"activation {self._name!r} is infinite at x = {x[~np.isfinite(f)][0]:.6g}"
            )
        c = f @ matrix.T
        sizes, heights = np.abs(c), np.abs(f)
        within = (x >= batch.left[:, None]) & (x <= batch.right[:, None])
        window, panel = heights.max(axis=1), np.where(within, heights, 0.0).max(axis=1)
        panel = np.where(within.any(axis=1), panel, window)
        tail, before = sizes[:, -6:].max(axis=1), sizes[:, -12:-6].max(axis=1)
        slope = (sizes @ np.arange(_TERMS)) * 2 / (stop - start)
        misplaced = 4e-16 * np.abs(x).max(axis=1) * slope  # the error from rounding x
        noisy = (
            (tail > 0.3 * before)
            & (tail > 0.5 * batch.tail)
            & (tail <= _NOISY * np.maximum(window, self._floor))
        )
        steep = (window > _STEEP * panel) & (batch.margin > 0.25)
        resolved = ((tail <= _RESOLVED * window + misplaced) | noisy) & ~steep
        c[sizes <= 2 * np.maximum(tail, 5e-17 * window)[:, None]] = 0.0
        return c, tail, resolved

    def _refuse_blurred(self, low: float, high: float) -> None:
        """Reject panels that are so narrow that rounding hides the second derivative.

        Such panels were halved because of a weak kink.
        """
        here = (self._left >= low) & (self._left < high)
        c, width = self._coefficients[here], (self._stop - self._start)[here]
        size = np.abs(c).sum(axis=1)
        bend = np.abs(c @ _differentiation(2).T).max(axis=1) * (2 / width) ** 2
        self._greatest = max(self._greatest, float(bend.max()), self._floor / _SHARE)
        degree = np.max(np.arange(_TERMS) * (c != 0), axis=1)
        blurred = (degree > 1) & (
            1e-16 * size * (2 * degree / width) ** 2 > _BLURRED * self._greatest
        )
        if blurred.any():
            raise self._kink(float(self._left[here][blurred][np.argmin(width[blurred])]))

    def _kink(self, where: float) -> KcalcError:
        apart = np.abs(self._kinks - where).min(initial=np.inf)
        if apart <= _NARROWEST * (1 + abs(where)):
            return KcalcError(
                f"activation {self._name!r} is not smooth next to its kink x = "
                f"{simplest(where):.7g}, and a callable is not accurate enough to resolve a root "
                "or a logarithm with infinite derivatives; pass a SymPy expression"
            )
        return KcalcError(
            f"activation {self._name!r} is not smooth near x = {simplest(where):.7g}; pass "
            "kinks=[...] with every point at which the function or one of its derivatives jumps, "
            "to full precision. If the function is smooth there, compute it in double precision "
            "throughout"
        )

    def _keep(self, batch: _Batch, coefficients: Array) -> None:
        left = np.concatenate([self._left, batch.left])
        order = np.argsort(left)
        start, stop = batch.windows
        self._left, self._start, self._stop = (
            np.concatenate(parts)[order]
            for parts in ((self._left, batch.left), (self._start, start), (self._stop, stop))
        )
        self._coefficients = np.concatenate([self._coefficients, coefficients])[order]
        self._derived.clear()

    def derivative(self, n: int, x: Array) -> Array:
        """Return the n-th derivative at x (0 <= n <= 3), right-continuous at kinks."""
        x = np.asarray(x, dtype=float)
        if x.size == 0:
            return np.zeros_like(x)
        with ALONE:  # other threads must not see the panels while they are being extended
            self.grow(float(np.abs(x).max()))
            if n not in self._derived:
                scale = (2 / (self._stop - self._start)) ** n
                self._derived[n] = scale[:, None] * (self._coefficients @ _differentiation(n).T)
            left, start, stop, coefficients = self._left, self._start, self._stop, self._derived[n]
        flat = x.ravel()
        panel = np.clip(np.searchsorted(left, flat, side="right") - 1, 0, None)
        start, stop = start[panel], stop[panel]
        used = 1 + int(np.max(np.nonzero(coefficients.any(axis=0))[0], initial=0))
        inside = (2 * flat - start - stop) / (stop - start)
        return clenshaw(coefficients.T[:used, panel], inside).reshape(x.shape)
