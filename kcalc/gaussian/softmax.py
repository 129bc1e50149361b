"""Overlaps ``S = E sum_j A_j B_j`` of softmax rows with Gaussian scores.

The formulas are exact for every number of tokens.

The scores ``a_j`` of row A and ``b_j`` of row B are independent over the T tokens j. For each j,
their variances are ``v1`` and ``v2`` and their covariance is ``k``. With ``f(x) = exp(-e^x)`` and
``Phi(u, w) = E f(u + a) f(w + b)``:

    S = T int int Phi_uw Phi^(T-1) du dw.

The derivatives of S are:

    dS/dk    = T (T-1) int int Phi_uw Phi^(T-3) [2 Phi_uw Phi + (T-2) Phi_u Phi_w] du dw
    dS/dv1   = T (T-1) / 2 int int Phi_uw Phi^(T-3) [2 Phi_uu Phi + (T-2) Phi_u^2] du dw.

The integrands are analytic in a strip of half-width pi/2 and decay doubly exponentially, so the
trapezoidal rule is exact to rounding. Each Gaussian is split into a common and a separate part,
``a = l1 z + own`` and ``b = +-l2 z + own'``, so the double integrals over them become matrix
products. ``1 - Phi`` is a sum of positive numbers, never a difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.polynomial.chebyshev import chebvander

from ..foundation.process_state import cached_property
from .expectations.quadrature import gauss_hermite, panel_nodes

Array = np.ndarray
Functions = tuple[Array, ...]

STEP = 0.25  # step of the trapezoidal rule in u and w
TAIL = 35.0  # the part of S below the grid is about e^-35
CUT = 8.6  # Gaussians are cut off at this many standard deviations
SPACING = 0.75  # standard deviations between the nodes of a Gaussian: exact to 1e-15
FINEST = 0.3  # largest distance between the nodes at which f is averaged
NARROW = 0.4  # Gaussians with a smaller standard deviation use Gauss-Hermite nodes
CLOSE = 0.3  # averages at shifts within this distance are interpolated
# ranges of the covariance over which 1, 2 or 3 nodes integrate dS/dk to rounding
LOST = (
    1e-7,
    1e-3,
    0.05,
)
ALMOST_ONE = 1 - 1e-16
_NODES, _WEIGHTS = gauss_hermite(28)


def _log_kept(missing: Array) -> Array:
    """Return log(1 - missing), finite even if ``missing`` is 1."""
    return np.log1p(-np.minimum(missing, ALMOST_ONE))


@dataclass(frozen=True)
class Overlap:
    """The overlap S of two rows over the same tokens, and its derivatives.

    The derivatives are taken with respect to the covariance and the variances of the rows' scores.

    The arguments must satisfy ``tokens >= 1``, variances >= 0 and
    ``|covariance| <= sqrt(variance1 variance2)``. For variances up to 25, relative errors are 1e-13
    (S) and 1e-12 (derivatives). ``more`` is the number of tokens that only the second row sees, as
    in a causal layer.
    """

    tokens: int
    variance1: float
    variance2: float
    covariance: float
    more: int = 0

    @property
    def value(self) -> float:
        """The overlap S."""
        if self.tokens == 1 and not self.more:
            return 1.0
        grid = self._grid
        alone = self.more * _log_kept(grid.missing2)
        return (
            self.tokens
            * grid.cell
            * float(np.vdot(grid.crossed, np.exp((self.tokens - 1) * grid.log_phi + alone)))
        )

    @property
    def by_covariance(self) -> float:
        """The derivative ``dS/dk``."""
        if self.tokens == 1:
            return 0.0
        return self._derivative(self._grid.crossed, self._grid.slope1, self._grid.slope2)

    @property
    def by_variance1(self) -> float:
        """The derivative ``dS/dv1`` at a fixed covariance."""
        return self._by_variance(0)

    @property
    def by_variance2(self) -> float:
        """The derivative ``dS/dv2`` at a fixed covariance."""
        return self._by_variance(1)

    def _by_variance(self, row: int) -> float:
        if self.tokens == 1:
            return 0.0
        slope = self._grid.slope2 if row else self._grid.slope1
        return self._derivative(self._grid.bend(row), slope, slope) / 2

    def _derivative(self, second: Array, left: Array, right: Array) -> float:
        """Return ``T (T-1) int int Phi_uw Phi^(T-3) [2 second Phi + (T-2) left right]``."""
        grid, tokens = self._grid, self.tokens
        total = 2 * float(np.vdot(grid.crossed * self._power, second))
        if tokens > 2:
            before = np.exp((tokens - 3) * grid.log_phi) * grid.crossed
            total += (tokens - 2) * float(np.vdot(before, left * right))
        return tokens * (tokens - 1) * grid.cell * total

    @cached_property
    def _power(self) -> Array:
        return np.exp((self.tokens - 2) * self._grid.log_phi)

    @cached_property
    def _grid(self) -> _ScoreGrid:
        return _ScoreGrid(self.tokens, self.variance1, self.variance2, self.covariance)


def self_overlap(tokens: int, variance: float) -> float:
    """Return ``S_self = E sum_j A_j^2`` for a row.

    The overlap is ``T int E g(u + a) (E f(u + a))^(T-1) du`` with ``g(x) = e^(2x) f(x)``.
    """
    if tokens == 1:
        return 1.0
    side = _Side.over(tokens, math.sqrt(variance), STEP)
    missing, _, squares = side.averaged(0.0, math.sqrt(variance), _squares)
    return tokens * side.step * float(np.vdot(squares, np.exp((tokens - 1) * _log_kept(missing))))


def row_entropy(tokens: int, variance: float) -> float:
    """Return ``-E sum_j A_j ln A_j`` for a row, in nats; ``ln T`` if all weights are equal.

    The entropy is ``E ln Z - E sum_j A_j a_j`` with ``Z = sum_j e^(a_j)``. The second expectation
    is ``v (1 - S_self)`` by Stein's lemma, and the first is
    ``ln T + int [exp(-T e^u) - (E f(u + a))^T] du``.
    """
    if tokens == 1:
        return 0.0
    width = math.sqrt(variance)
    side = _Side.over(tokens, width, STEP)
    missing = np.minimum(side.averaged(0.0, width)[0], ALMOST_ONE)
    level = tokens * np.exp(np.minimum(side.start + side.step * np.arange(side.count), 40.0))
    excess = side.step * float((np.exp(-level) - np.exp(tokens * np.log1p(-missing))).sum())
    return math.log(tokens) + excess - variance * (1 - self_overlap(tokens, variance))


def overlap_gap(tokens: int, variance: float, below: float) -> float:
    """Return the difference ``S_self - S`` at the covariance ``variance - below``.

    The computation uses ``dS/dk`` if the difference would lose digits.
    """
    if below == 0 or tokens == 1:
        return 0.0
    nodes = next((n for n, most in enumerate(LOST, start=1) if below <= most), None)
    if nodes is None:
        return (
            self_overlap(tokens, variance)
            - Overlap(tokens, variance, variance, variance - below).value
        )
    ((falls,), (weights,)) = panel_nodes(np.array([0.0, below]), nodes)
    slopes = [Overlap(tokens, variance, variance, variance - fall).by_covariance for fall in falls]
    return float(np.dot(weights, slopes))


def causal_overlaps(tokens: int, variance1: float, variance2: float, covariance: float) -> Array:
    """Return the overlaps S of rows over the first i and the first k tokens, shape (T, T).

    ``S_ik = i int int Phi_uw Phi^(i-1) M(w)^(k-i) du dw`` for ``i <= k``, with
    ``M(w) = E f(w + b)``.
    """
    grid = _ScoreGrid(tokens, variance1, variance2, covariance, fewest=1)
    counts = np.arange(tokens)
    alone = [np.exp(np.outer(_log_kept(m), counts)) for m in (grid.missing1, grid.missing2)]
    out = np.empty((tokens, tokens))
    for i in counts:
        both = grid.crossed * np.exp(i * grid.log_phi)
        size = (i + 1) * grid.cell
        out[i, i:] = size * (both.sum(axis=0) @ alone[1][:, : tokens - i])
        out[i:, i] = size * (both.sum(axis=1) @ alone[0][:, : tokens - i])
    return out


def masked_overlaps(sees: Array, variance1: float, variance2: float, covariance: float) -> Array:
    """Return the overlaps S of rows over the tokens that they see, shape (T, T).

    ``sees[i, j]`` is True if row i sees token j; the mask is the same for both sequences. For
    rows that see a and b tokens, m of them in common,
    ``S = m int int Phi_uw Phi^(m-1) M(u)^(a-m) M(w)^(b-m) du dw``.
    """
    seen = sees.sum(axis=1)
    common = sees.astype(int) @ sees.T.astype(int)
    grid = _ScoreGrid(int(seen.max()), variance1, variance2, covariance, fewest=1)
    logs = [_log_kept(m) for m in (grid.missing1, grid.missing2)]
    out = np.zeros(common.shape)
    for m in np.unique(common[common > 0]):
        rows, columns = np.nonzero(common == m)
        (firsts, one), (seconds, two) = (
            np.unique(seen[places] - m, return_inverse=True) for places in (rows, columns)
        )
        both = grid.crossed * np.exp((m - 1) * grid.log_phi)
        left, right = (
            np.exp(np.outer(n, log)) for n, log in zip((firsts, seconds), logs, strict=True)
        )
        out[rows, columns] = (m * grid.cell * (left @ both @ right.T))[one, two]
    return out


def sink_overlap(
    tokens: int,
    variance1: float,
    variance2: float,
    covariance: float,
    common: tuple[float, float, float],
) -> tuple[float, float]:
    """Return ``E sum_j A_j B_j`` and ``E (sum_j A_j) (sum_l B_l)`` of softmax rows with a sink.

    The sink is an additional score of 0; its weight is discarded. The other scores are ``c + a_j``
    and ``d + b_j``, and ``common`` contains the variances of c and d and their covariance. With
    ``N = E f(u - c) f(w - d)`` the results are ``X = T int int Phi_uw Phi^(T-1) N`` and
    ``X + T (T-1) int int Phi_u Phi_w Phi^(T-2) N``.
    """
    grid = _ScoreGrid(tokens, variance1, variance2, covariance)
    widths = math.sqrt(common[0]), math.sqrt(common[1])
    shared = _shared(*widths, abs(common[2]))
    own = [math.sqrt(max(0.0, (w - s) * (w + s))) for w, s in zip(widths, shared, strict=True)]
    spacing = min(SPACING, STEP / max(*shared, 1e-9))
    reach = math.ceil((CUT + max(shared)) / spacing)
    extra = np.zeros_like(grid.log_phi)
    for z in spacing * np.arange(-reach, reach + 1):
        shifts = (shared[0] * z, math.copysign(shared[1], common[2]) * z)
        parts = (
            1 - side.averaged(shift, width)[0]
            for side, shift, width in zip(grid.sides, shifts, own, strict=True)
        )
        extra += math.exp(-z * z / 2) * np.outer(*parts)
    extra *= spacing / math.sqrt(2 * math.pi)
    products = (
        tokens
        * grid.cell
        * float(np.vdot(grid.crossed, np.exp((tokens - 1) * grid.log_phi) * extra))
    )
    if tokens == 1:
        return products, products
    others = float(np.vdot(grid.slope1 * grid.slope2, np.exp((tokens - 2) * grid.log_phi) * extra))
    return products, products + tokens * (tokens - 1) * grid.cell * others


def sink_self_overlap(tokens: int, variance: float, common: float) -> tuple[float, float]:
    """Return the two results of :func:`sink_overlap` for a row with itself.

    ``common`` is the variance of the common part of its scores.
    """
    side = _Side.over(tokens, math.sqrt(variance), STEP)
    missing, slope, squares = side.averaged(0.0, math.sqrt(variance), _squares)
    extra = 1 - side.averaged(0.0, math.sqrt(common))[0]
    log = _log_kept(missing)
    products = tokens * side.step * float(np.vdot(squares, np.exp((tokens - 1) * log) * extra))
    others = (
        side.step * float(np.vdot(slope * slope, np.exp((tokens - 2) * log) * extra))
        if tokens > 1
        else 0.0
    )
    return products, products + tokens * (tokens - 1) * others


class _Side(NamedTuple):
    """The grid of one of the two outer variables, ``start + step * (0 ... count - 1)``."""

    start: float
    step: float
    count: int

    @classmethod
    def over(cls, tokens: int, width: float, step: float, fewest: int = 0) -> _Side:
        """Make the grid for a row over ``tokens`` tokens, or over any number down to ``fewest``.

        ``width`` is the standard deviation of the scores.
        """
        log = math.log(tokens)
        start = -log - TAIL - min(width * width / 2, 8 * width)
        return cls(start, step, math.ceil((_end(fewest or tokens, width) - start) / step) + 1)

    def averaged(
        self, shift: float, width: float, functions: Callable[[Array], Functions] | None = None
    ) -> Functions:
        """Average the functions over a Gaussian, on the grid shifted by ``shift``.

        ``width`` is the standard deviation of the Gaussian.
        """
        return averaged(self.start + shift, self.count, self.step, width, functions or _functions)


def _end(tokens: int, width: float) -> float:
    """Return a point above which ``P(a < -u)^T`` is below ``e^-TAIL / T^2``.

    For many tokens, the power falls below this bound at a much smaller u than a single factor.
    """
    from scipy.special import ndtri

    share = math.exp(-(TAIL + 2 * math.log(tokens)) / tokens)
    return width * min(CUT, -float(ndtri(share))) + 4.5


class _ScoreGrid:
    """``Phi`` and its derivatives on the grid of (u, w)."""

    def __init__(
        self, tokens: int, variance1: float, variance2: float, covariance: float, fewest: int = 0
    ) -> None:
        width1, width2 = math.sqrt(variance1), math.sqrt(variance2)
        shared1, shared2 = _shared(width1, width2, abs(covariance))
        largest = max(shared1, shared2)
        spacing = (
            STEP / (largest * math.ceil(STEP / (SPACING * largest)))
            if largest > CLOSE / 100
            else SPACING
        )
        reach = math.ceil((CUT + largest) / spacing)
        z = spacing * np.arange(-reach, reach + 1)
        self._weights = np.exp(-z * z / 2) * (spacing / math.sqrt(2 * math.pi))
        self._alike = variance1 == variance2
        side1, self._first = _columns((tokens, fewest), width1, shared1, spacing, reach)
        side2, second = (
            (side1, self._first)
            if self._alike
            else _columns((tokens, fewest), width2, shared2, spacing, reach)
        )
        self._second = tuple(part[:, ::-1] for part in second) if covariance < 0 else second
        self.cell, self.sides = side1.step * side2.step, (side1, side2)
        self.missing1, self.missing2 = (
            self._first[0] @ self._weights,
            self._second[0] @ self._weights,
        )
        missing = self.missing1[:, None] + self.missing2 - self._product(0, 0)
        self.log_phi = np.log1p(-np.clip(missing, 0.0, ALMOST_ONE))
        self.crossed = self._product(1, 1)

    def _product(self, first: int, second: int) -> Array:
        """Return the average of a function of ``u + a`` times a function of ``w + b``."""
        return (self._first[first] * self._weights) @ self._second[second].T

    @cached_property
    def slope1(self) -> Array:
        """``-Phi_u``."""
        return (self._first[1] @ self._weights)[:, None] - self._product(1, 0)

    @cached_property
    def slope2(self) -> Array:
        """``-Phi_w``."""
        return (
            self.slope1.T if self._alike else self._second[1] @ self._weights - self._product(0, 1)
        )

    def bend(self, side: int) -> Array:
        """Return ``Phi_uu`` (side 0) or ``Phi_ww`` (side 1)."""
        if side == 0:
            return (self._first[2] @ self._weights)[:, None] - self._product(2, 0)
        return self._second[2] @ self._weights - self._product(0, 2)


def _shared(width1: float, width2: float, covariance: float) -> tuple[float, float]:
    """Return ``(l1, l2)`` with ``l1 l2 = covariance``, equal if the widths allow it."""
    root, small = math.sqrt(covariance), min(width1, width2)
    if root <= small:
        return root, root
    large = min(covariance / small, max(width1, width2))
    return (small, large) if width1 <= width2 else (large, small)


def _columns(
    tokens: tuple[int, int], width: float, shared: float, spacing: float, reach: int
) -> tuple[_Side, Functions]:
    """Return the grid of one side, and its functions at ``u + shared z`` as arrays over (u, z).

    The functions are averaged over the separate part of the Gaussian. ``tokens`` contains the
    largest and the smallest number of tokens; 0 in place of the smallest means that both are equal.
    """
    own = math.sqrt(max(0.0, (width - shared) * (width + shared)))
    fine = shared * spacing
    if fine * reach > CLOSE:
        ratio = int(STEP / fine * (1 + 1e-12))
        side = _Side.over(tokens[0], width, ratio * fine, tokens[1])
        made = averaged(
            side.start - reach * fine, (side.count - 1) * ratio + 2 * reach + 1, fine, own
        )
        return side, tuple(sliding_window_view(part, 2 * reach + 1)[::ratio] for part in made)
    side = _Side.over(tokens[0], width, STEP, tokens[1])
    nodes, weights = _interpolation(
        reach, 1 + math.ceil(33 / math.log(math.pi / max(fine * reach, 1e-12)))
    )
    made = zip(*(side.averaged(fine * reach * node, own) for node in nodes), strict=True)
    return side, tuple(np.stack(part, axis=1) @ weights for part in made)


@lru_cache(64)
def _interpolation(reach: int, order: int) -> tuple[Array, Array]:
    """Return ``order`` Chebyshev nodes on [-1, 1], and a matrix that interpolates to other points.

    Those points run from -1 to 1 in steps of ``1 / reach``.
    """
    nodes = np.cos(np.pi * (np.arange(order) + 0.5) / order)
    points = np.arange(-reach, reach + 1) / reach
    return nodes, np.linalg.solve(chebvander(nodes, order - 1).T, chebvander(points, order - 1).T)


def _functions(x: Array) -> Functions:
    """Return ``1 - f``, ``-f'`` and ``f''`` of ``f(x) = exp(-e^x)``."""
    e = np.exp(np.minimum(x, 40.0))
    missing = -np.expm1(-e)
    slope = e * (1 - missing)
    return missing, slope, (e - 1) * slope


def _squares(x: Array) -> Functions:
    """Return ``1 - f``, ``-f'`` and ``e^(2x) f``, which is ``f'' - f'`` without cancellation."""
    e = np.exp(np.minimum(x, 40.0))
    missing = -np.expm1(-e)
    slope = e * (1 - missing)
    return missing, slope, e * slope


def averaged(
    start: float,
    count: int,
    step: float,
    width: float,
    functions: Callable[[Array], Functions] = _functions,
) -> Functions:
    """Average ``functions`` over a Gaussian with standard deviation ``width``.

    The results are given at ``start + step * (0 ... count - 1)``. The default functions are
    ``1 - f``, ``-f'`` and ``f''``.
    """
    if width <= NARROW:
        points = start + step * np.arange(count)
        return (
            functions(points)
            if width == 0
            else tuple(part @ _WEIGHTS for part in functions(points[:, None] + width * _NODES))
        )
    finest = min(SPACING * width, FINEST)
    stride = math.ceil(step / finest)
    apart = max(1, int(finest / step))
    fine = step / stride
    node = fine * apart
    reach = math.ceil((CUT + width) * width / node)
    z = np.arange(-reach, reach + 1) * (node / width)
    weights = np.exp(-z * z / 2) * (node / width / math.sqrt(2 * math.pi))
    points = start + fine * np.arange(-reach * apart, (count - 1) * stride + reach * apart + 1)
    windows = (
        sliding_window_view(part, 2 * reach * apart + 1)[::stride, ::apart]
        for part in functions(points)
    )
    return tuple(window @ weights for window in windows)
