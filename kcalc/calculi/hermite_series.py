"""Local maps at many q values: Hermite coefficients of ``phi(sqrt(q) z)`` interpolated in log q.

``phi(sqrt(q) z) / sqrt(Q(q)) = sum_n b_n(q) h_n(z)``, so
``C(c, q1, q2) = sum_n b_n(q1) b_n(q2) c^n``. The b_n are analytic in log q; they are interpolated
at Chebyshev points on each octave of q, and the interpolants are cached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

import numpy as np

from ..activations import Activation
from ..fields.chebyshev import fitted, points
from ..foundation.process_state import cached_property
from ..gaussian.expectations.single import hermite, second_moment

Array = np.ndarray
POINTS = 18  # Chebyshev points per octave of q
LAST = 3e-14  # largest interpolation coefficient of the three highest degrees
HIDDEN = 1e-15  # largest share of Q(q) in the unknown coefficients
INSIDE = 0.9  # |c| up to which a short series suffices
CHUNK = 4096  # pairs of q values in one batch of long series
NOISE = 6e-16  # coefficients below this are rounding errors
REPEATED = 4096  # maximum number of q values with cached series
OCTAVES = 64  # maximum number of octaves of q in one call
LONGEST, STEP, REACH = 4096, 0.02, 13.0  # terms of long series; step and range of z
FLAT = 1e-13  # largest estimated error of C' near c = 1
SMALL = 1e-18  # terms with n b_n b'_n below this are left out


@dataclass(frozen=True, eq=False)
class Octave:
    """b_n and log Q / ``scale`` as Chebyshev series in log2 q on [low, low + 1].

    The columns are b_0 ... b_terms and the logarithm.
    """

    low: int
    coefficients: Array
    scale: float

    def __call__(self, q: Array) -> Array:
        """Return (b_0, ..., b_terms, log Q / scale) as columns, one row per q."""
        return (
            np.polynomial.chebyshev.chebvander(2 * (np.log2(q) - self.low) - 1, POINTS - 1)
            @ self.coefficients
        )


def _coefficients(phi: Activation, q: Array, sizes: Array) -> Array | None:
    """Return rows b_0, b_1, ... for several q; None if unknown or longer than LONGEST."""
    found = [hermite(phi, float(value)) for value in q]
    rows = [
        np.append(f.mean, f.coefficients) / np.sqrt(size)
        for f, size in zip(found, sizes, strict=True)
    ]
    if max(row.size for row in rows) > LONGEST:
        return None
    if all(
        f.complete or (f.tail <= HIDDEN * size and _negligible(row))
        for row, f, size in zip(rows, found, sizes, strict=True)
    ):
        return np.array(list(zip_longest(*rows, fillvalue=0.0))).T
    if phi.kink_points:
        return None
    longer = [
        _continued(phi, float(value), float(size), row)
        for value, size, row in zip(q, sizes, rows, strict=True)
    ]
    return None if any(row is None for row in longer) else np.array(longer)


def _negligible(b: Array) -> bool:
    """Whether the last 8 coefficients suggest that the remainder of sum n b_n^2 is below FLAT."""
    return float(np.abs(b[-8:]).max() * b.size) ** 2 <= FLAT


def _continued(phi: Activation, q: float, size: float, known: Array) -> Array | None:
    """Return LONGEST coefficients by the trapezoid rule, or None if not accurate to LAST.

    They are compared with the coefficients ``known``, with the coefficients for twice the step, and
    with Parseval's sum 1.
    """
    z, functions = _hermite_functions()
    values = (
        phi.numeric(0)(np.sqrt(q) * z) * np.exp(-(z**2) / 4) * (STEP / np.sqrt(2 * np.pi * size))
    )
    b = functions @ values
    coarse = 2 * (functions[:, ::2] @ values[::2])
    agrees = (
        np.abs(b - coarse).max() <= LAST
        and np.abs(b[: known.size] - known).max() <= LAST
        and abs(float(b @ b) - 1) <= LAST
    )
    return b if agrees and _negligible(b) else None


@lru_cache(maxsize=1)
def _hermite_functions() -> tuple[Array, Array]:
    """Return nodes z and rows h_n(z) exp(-z^2/4), n < LONGEST."""
    count = 2 * round(REACH / STEP / 2)
    z = np.arange(-count, count + 1) * STEP
    rows = np.empty((LONGEST, z.size))
    rows[0] = np.exp(-(z**2) / 4)
    rows[1] = z * rows[0]
    for n in range(2, LONGEST):
        rows[n] = (z * rows[n - 1] - np.sqrt(n - 1) * rows[n - 2]) / np.sqrt(n)
    return z, rows


@lru_cache(maxsize=256)
def octave(phi: Activation, low: int) -> Octave | None:
    """Return the table for 2^low <= q <= 2^(low + 1).

    The result is None if the series of phi is not known up to rounding errors.
    """
    q = 2.0 ** (low + (points(POINTS) + 1) / 2)
    sizes = np.array([second_moment(phi, float(value)) for value in q])
    if not np.all(np.isfinite(sizes) & (sizes > 0)):
        return None
    found = _coefficients(phi, q, sizes)
    if found is None:
        return None
    found = found[:, : 1 + max(np.flatnonzero(np.abs(found).max(axis=0) > NOISE), default=0)]
    rows = np.concatenate([found, np.log(sizes / sizes[0])[:, None]], axis=1)
    coefficients = fitted(rows)
    return (
        Octave(low, coefficients, float(sizes[0]))
        if np.abs(coefficients[-3:]).max() <= LAST
        else None
    )


@dataclass(frozen=True, eq=False)
class Expansion:
    """The b_n and Q at an array of q values; ``b`` has n as axis 0, then the axes of q."""

    b: Array
    size: Array

    @property
    def mean(self) -> Array:
        """E phi(sqrt(q) z)."""
        return self.b[0] * np.sqrt(self.size)

    @cached_property
    def single(self) -> Array | None:
        """The b_n, if they are the same at all q values."""
        rows = self.b.reshape(len(self.b), -1)
        return (
            rows[:, 0] if np.array_equal(rows, np.broadcast_to(rows[:, :1], rows.shape)) else None
        )


def expansion(phi: Activation, q: Array) -> Expansion | None:
    """Return the series of phi at positive q values of any shape.

    The result is None if the series is not known up to rounding errors.
    """
    if q.size > REPEATED:
        found = _expanded(phi, q.ravel())
    else:  # cached, because rows and columns have the same q values, and so do values and gradients
        found = _repeated(phi, np.ascontiguousarray(q, dtype=float).tobytes())
    if found is None:
        return None
    return Expansion(found.b.reshape(-1, *q.shape), found.size.reshape(q.shape))


@lru_cache(maxsize=8)
def _repeated(phi: Activation, q: bytes) -> Expansion | None:
    return _expanded(phi, np.frombuffer(q))


def _expanded(phi: Activation, flat: Array) -> Expansion | None:
    places = np.floor(np.log2(flat)).astype(int)
    lows = np.unique(places)
    if lows.size > OCTAVES:
        return None
    tables = [table for low in lows if (table := octave(phi, int(low))) is not None]
    if len(tables) < lows.size:
        return None
    terms = max(table.coefficients.shape[1] - 1 for table in tables)
    b, size = np.zeros((terms, flat.size)), np.empty(flat.size)
    for table in tables:
        here = places == table.low
        rows = table(flat[here])
        b[: rows.shape[1] - 1, here] = rows[:, :-1].T
        size[here] = table.scale * np.exp(rows[:, -1])
    return Expansion(b, size)


def series_taylor(first: Expansion, second: Expansion, gap: Array, order: int) -> tuple[Array, ...]:
    """Return (1 - C, C')[: order + 1] at c = 1 - gap, for broadcast arrays and order 0 or 1.

    1 - C keeps its relative accuracy near c = 1.
    """
    terms = _needed(first, second)
    shape = np.broadcast_shapes(first.size.shape, second.size.shape, gap.shape)
    short = math.ceil(math.log(SMALL) / math.log(INSIDE))
    if (
        first.single is not None
        and second.single is not None
        and np.array_equal(first.single, second.single)
    ):
        return _at_one_q(first.single[:terms], np.broadcast_to(gap, shape), order)
    if terms <= 2 * short:
        return _everywhere(first.b, second.b, np.broadcast_to(gap, shape), terms)[: order + 1]
    out = _inside(first.b[:short], second.b[:short], 1 - gap, shape)
    ends = np.flatnonzero(np.abs(1 - np.broadcast_to(gap, shape)) > INSIDE)
    rows, columns = (
        np.broadcast_to(np.arange(e.size.size).reshape(e.size.shape), shape).ravel()[ends]
        for e in (first, second)
    )
    one = first.b.reshape(len(first.b), -1)
    two = second.b.reshape(len(second.b), -1)
    gaps = np.broadcast_to(gap, shape).ravel()[ends]
    for start in range(0, ends.size, CHUNK):
        part = slice(start, start + CHUNK)
        found = _everywhere(one[:, rows[part]], two[:, columns[part]], gaps[part], terms)
        for target, values in zip(out, found, strict=True):
            target.ravel()[ends[part]] = values
    return out[: order + 1]


def _at_one_q(b: Array, gap: Array, order: int) -> tuple[Array, ...]:
    """Return (1 - C, C')[: order + 1] if all q values are the same.

    ``1 - C = gap sum_m c^m sum_{n > m} b_n^2``.
    """
    c, squares = 1 - gap, b * b
    drop, tails = np.zeros(gap.shape), np.cumsum(squares[::-1])[::-1]
    for tail in tails[:0:-1]:
        drop *= c
        drop += tail
    drop *= gap
    if order == 0:
        return (drop,)
    slope, terms = np.zeros(gap.shape), np.arange(1, len(b)) * squares[1:]
    for term in terms[::-1]:
        slope *= c
        slope += term
    return drop, slope


def _inside(b1: Array, b2: Array, c: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return 1 - sum b_n b'_n c^n and its slope, for |c| < INSIDE, where few terms are needed.

    The slope is sum n b_n b'_n c^(n-1).
    """
    value, slope = np.zeros(shape), np.zeros(shape)
    for n in range(min(len(b1), len(b2)) - 1, -1, -1):
        product = b1[n] * b2[n]
        value *= c
        value += product
        if n:
            slope *= c
            slope += n * product
    return 1 - value, slope


def _everywhere(b1: Array, b2: Array, gap: Array, terms: int) -> tuple[Array, Array]:
    """Return 1 - C and the slope of C, for every c.

    ``1 - C = sum_n (b_n - b'_n)^2 / 2 + gap sum_m c^m sum_{n > m} b_n b'_n``.
    """
    c, suffix, drop, slope, apart = 1 - gap, *(np.zeros(gap.shape) for _ in range(4))
    for n in range(terms - 1, -1, -1):
        apart += (b1[n] - b2[n]) ** 2 / 2
        if n:
            product = b1[n] * b2[n]
            suffix += product
            drop *= c
            drop += suffix
            slope *= c
            slope += n * product
    for rest in (b1, b2):
        apart += (rest[terms:] ** 2).sum(axis=0) / 2
    return apart + gap * drop, slope


def has_series(phi: Activation, q: Array) -> bool:
    """Whether :func:`expansion` has a series at each of these positive q values."""
    lows = np.unique(np.floor(np.log2(q.ravel())).astype(int))
    return lows.size <= OCTAVES and all(octave(phi, int(low)) is not None for low in lows)


def _needed(first: Expansion, second: Expansion) -> int:
    """Return the number of terms after which n b_n b'_n is below SMALL at all pairs of q."""
    known = min(first.b.shape[0], second.b.shape[0])
    one, two = (np.abs(side.b[:known]).reshape(known, -1).max(axis=1) for side in (first, second))
    return max(
        int(np.count_nonzero(np.maximum.accumulate((np.arange(known) * one * two)[::-1]) > SMALL)),
        1,
    )
