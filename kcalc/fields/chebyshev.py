"""Piecewise Chebyshev polynomials on NumPy and JAX arrays, and Gauss-Legendre rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError
from ..foundation.process_state import cached_property
from .jax_field import is_jax

Array = np.ndarray

NODES = 24
"""The number of nodes per panel.

A C map is sum_n b_n c^n with sum |b_n| <= 1, so it is analytic and at most 1 in |c| < 1. The
largest ellipse in that disc around an octave has parameter 3 + sqrt 8 = 5.83. Interpolation at n
nodes has an error below 4 * 5.83^-n / 4.83, which is 3e-19 for n = 24.
"""

_NOISY = 1e-12  # the largest relative rounding error of the fitted functions
_FIRST = 14  # number of terms tried on a panel before NODES
# limits for a panel's last coefficients, relative to the function's size. Below the first limit,
# _FIRST terms are enough; below the second, NODES terms are. Rounding errors of the integrals are
# about 1e-15
_TOLERANCES = (1e-15, 5e-15)
_NARROWEST = 1e-13
_MOST = 400  # the largest number of panels of an adaptive table
_EVEN = 1e-12  # relative difference up to which panel widths count as equal


@lru_cache(maxsize=64)
def _cosines(terms: int) -> Array:
    """Return cos(n (k + 1/2) pi / terms), shape (n, k), with angles reduced before rounding."""
    steps = np.outer(np.arange(terms), 2 * np.arange(terms) + 1) % (4 * terms)
    steps = np.minimum(steps, 4 * terms - steps)
    folded = np.minimum(steps, 2 * terms - steps)
    return np.where(steps > terms, -1, 1) * np.sin((terms - folded) * (np.pi / (2 * terms)))


def points(terms: int = NODES) -> Array:
    """Return the Chebyshev points of [-1, 1] in descending order."""
    return _cosines(terms)[1] if terms > 1 else np.zeros(1)


@lru_cache(maxsize=64)
def transform(terms: int = NODES) -> Array:
    """Return the matrix from values at :func:`points` to Chebyshev coefficients."""
    matrix = _cosines(terms) * 2 / terms
    matrix[0] /= 2
    return matrix


@lru_cache(maxsize=64)
def power_rows(terms: int, parts: int, degree: int) -> Array:
    """Return T_0 ... T_(terms - 1) on equal parts of [-1, 1], as polynomials in a local variable t.

    The shape is (terms, parts, degree + 1), and x = middle + 2 t/parts.

    To limit rounding errors, the recurrence keeps powers of t up to about twice ``degree``. The
    higher powers, whose coefficients are tiny, are then replaced by interpolants of that degree.
    """
    order = 2 * degree + 2
    middle = (2 * np.arange(parts) + 1) / parts - 1
    waves = np.zeros((terms, parts, order))
    waves[0, :, 0] = 1
    waves[1, :, 0], waves[1, :, 1] = middle, 2 / parts
    for n in range(2, terms):
        waves[n] = 2 * middle[:, None] * waves[n - 1] - waves[n - 2]
        waves[n, :, 1:] += 4 / parts * waves[n - 1, :, :-1]
    t = points(degree + 1) / 2
    folded = np.linalg.solve(
        np.vander(t, increasing=True), t[:, None] ** np.arange(degree + 1, order)
    )
    return waves[..., : degree + 1] + waves[..., degree + 1 :] @ folded.T


def fitted(values: Array, axis: int = 0) -> Array:
    """Return Chebyshev coefficients of values at :func:`points` along an axis."""
    return np.moveaxis(np.tensordot(transform(values.shape[axis]), values, axes=(1, axis)), 0, axis)


def fitted_at(x: Array, values: Array) -> Array:
    """Return Chebyshev coefficients of the polynomials through given values, row by row.

    The values are given at points x in [-1, 1] near :func:`points`. Coefficients at the noise level
    are set to zero.
    """
    matrix = np.cos(np.arange(x.shape[-1]) * np.arccos(np.clip(x[..., None], -1, 1)))
    found = np.linalg.solve(matrix, values[..., None])[..., 0]
    largest = np.abs(found).max(axis=-1, keepdims=True)
    return np.where(np.abs(found) < 3e-16 * largest, 0.0, found)


def clenshaw(coefficients: Any, x: Any) -> Any:
    """Return sum_n coefficients[n] T_n(x), for NumPy or JAX arrays that broadcast with x."""
    older, newer = 0 * x, 0 * x
    for n in range(len(coefficients) - 1, 0, -1):
        older, newer = newer, 2 * x * newer - older + coefficients[n]
    return x * newer - older + coefficients[0]


def is_noise(last: Array, size: Array | float) -> Any:
    """Whether the last eight coefficients (on the last axis) are small and no longer decrease.

    Such coefficients are rounding errors of the function.
    """
    tail, before = last[..., 5:].max(axis=-1), last[..., :5].max(axis=-1)
    return (tail < _NOISY * size) & (tail > 0.3 * before)


@dataclass(frozen=True, eq=False)
class Piecewise:
    """A function given by Chebyshev polynomials on neighbouring panels.

    ``edges`` (panels + 1,) are the edges of the panels in ascending order. ``coefficients`` has
    shape (terms, panels). Both are NumPy arrays or both are JAX arrays.
    """

    edges: Array
    coefficients: Any

    @cached_property
    def _is_even(self) -> bool:
        widths = np.diff(self.edges)
        return bool(np.ptp(widths) <= _EVEN * widths.max())

    def __call__(self, x: Any) -> Any:
        """Return the values at x between the edges; a JAX array for JAX arrays, also under jit."""
        if is_jax(x):
            import jax.numpy as xp
        else:
            xp = np
        edges, last = xp.asarray(self.edges, dtype=x.dtype), len(self.edges) - 2
        if self._is_even:
            place = (x - edges[0]) / (edges[-1] - edges[0]) * (last + 1)
            panel = xp.clip(xp.floor(place), 0, last).astype(int)
            inside = 2 * (place - panel) - 1
        else:
            panel = xp.clip(xp.searchsorted(edges, x, side="right") - 1, 0, last)
            low, high = edges[panel], edges[panel + 1]
            inside = (2 * x - low - high) / (high - low)
        return clenshaw(xp.asarray(self.coefficients, dtype=x.dtype)[:, panel], inside)

    def slope(self) -> Piecewise:
        """Return the derivative as a :class:`Piecewise`."""
        rising = np.polynomial.chebyshev.chebder(self.coefficients, axis=0)
        return Piecewise(self.edges, rising * 2 / np.diff(self.edges))


def nodes(edges: Array, terms: int = NODES) -> Array:
    """Return the Chebyshev points of every panel, shape (panels, terms)."""
    middle, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    return middle[:, None] + half[:, None] * points(terms)


def on_panels(f: Callable[[Array], Array], edges: Array) -> Piecewise:
    """Fit f, a function of arrays, on the given panels."""
    at = nodes(edges)
    return Piecewise(edges, fitted(f(at.ravel()).reshape(at.shape), axis=1).T)


def halved(
    place: Callable[[Array], Array],
    inverse: Callable[[Array], Array],
    exact: Callable[[Array], Array],
    scaled: Callable[[Array, Array], Array],
    most: int,
) -> Iterator[tuple[Piecewise, tuple[Array, Array], tuple[Array, Array]]]:
    """Yield fits of a function on 1, 2, 4, ..., 2^most equal panels of t in [0, 1].

    ``place`` maps t to the argument, and ``inverse`` is its inverse. ``exact`` is the function.
    ``scaled`` maps (arguments, values) to the fitted quantity. Each item contains the fit,
    (arguments, values) at probes between the nodes, and (arguments, values) at nodes and probes
    together.
    """
    for panels in (2**k for k in range(most + 1)):
        edges = np.linspace(0, 1, panels + 1)
        at, probes = (place(nodes(edges, terms)) for terms in (NODES, NODES + 1))
        values, truth = exact(at), exact(probes)
        inside = 2 * (inverse(at) * panels - np.arange(panels)[:, None]) - 1
        every = np.concatenate([at.ravel(), probes.ravel()])
        known = np.concatenate([values.ravel(), truth.ravel()])
        order = np.argsort(every)
        fit = Piecewise(edges, fitted_at(inside, scaled(at, values)).T)
        yield fit, (probes, truth), (every[order], known[order])


def adaptive(
    f: Callable[[Array], Array], left: float, right: float, floor: float = 0.0, noise: float = 0.0
) -> Piecewise:
    """Fit f on [left, right]; bisect panels until the last coefficients are rounding errors.

    Rounding errors are measured relative to the size of f on the whole interval, or to ``floor`` if
    that is larger. Towards an argument t = 0 they may grow like noise/t. Raises KcalcError if too
    many panels are needed.
    """
    done: list[tuple[float, Array]] = []
    waiting = [(left, right)]
    while waiting:
        low, high = waiting.pop()
        found = _panel(f, low, high, _FIRST)
        floor = max(floor, float(np.abs(found).max()))
        if np.abs(found[-3:]).max() > _TOLERANCES[0] * floor:
            found = _panel(f, low, high, NODES)
        allowed = _TOLERANCES[1] + noise / max(low, 1e-3 * high)
        if (
            np.abs(found[-3:]).max() <= allowed * floor
            or is_noise(np.abs(found[-8:]), floor)
            or high - low < _NARROWEST
        ):
            done.append((high, np.pad(found, (0, NODES - found.size))))
        elif len(done) + len(waiting) >= _MOST:
            raise KcalcError(
                "the C map near |c| = 1 cannot be tabulated, because the activation has too many "
                "kinks or jumps, or they are too close together"
            )
        else:
            middle = (low + high) / 2
            waiting += [(middle, high), (low, middle)]
    edges = np.array([left, *(high for high, _ in done)])
    return Piecewise(edges, np.stack([found for _, found in done], axis=1))


def _panel(f: Callable[[Array], Array], low: float, high: float, terms: int) -> Array:
    return transform(terms) @ f(nodes(np.array([low, high]), terms)[0])


@lru_cache(maxsize=16)
def gauss_legendre(n: int) -> tuple[Array, Array]:
    """Return the nodes and weights of the n-point Gauss-Legendre rule on [-1, 1]."""
    return np.polynomial.legendre.leggauss(n)
