"""Chebyshev series in one variable with low-rank coefficients that depend on two rows.

The series is sum_k T_k(x) sum_r s_kr b_kr(row) b_kr(column). The b_kr are Chebyshev series in log
q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.fft import dct

from ...fields.chebyshev import clenshaw as summed
from ...foundation.process_state import cached_property

Array = np.ndarray

CUT = 1e-14
"""Coefficients below this fraction of the largest one are dropped."""
_PAIRS = 8192  # pairs computed at once


def series(values: Array, axis: int) -> Array:
    """Return Chebyshev coefficients of functions, given their values at the nodes."""
    found = dct(values, type=2, axis=axis) / values.shape[axis]
    np.moveaxis(found, axis, 0)[0] /= 2
    return found


def needed(coefficients: Array, axis: int) -> int:
    """Return the number of leading coefficients along an axis that exceed rounding."""
    sizes = np.abs(np.moveaxis(coefficients, axis, 0)).reshape(coefficients.shape[axis], -1).max(1)
    return 1 + int(np.flatnonzero(sizes > CUT * sizes.max()).max(initial=0))


def waves(x: Any, count: int, xp: Any = np) -> Any:
    """Return T_0 to T_(count - 1) at x (n,), clipped to [-1, 1], as an array (n, count)."""
    return xp.cos(xp.arccos(xp.clip(x, -1.0, 1.0))[:, None] * xp.arange(count))


@dataclass(frozen=True, eq=False)
class LowRank:
    """The coefficients of a series in x, symmetric in the two rows.

    ``ranks`` contains the number of products for each degree. ``basis`` (sum of the ranks, count)
    contains the Chebyshev coefficients of the products' factors, as functions of log q. ``signs``
    contains the signs of the products.
    """

    ranks: tuple[int, ...]
    basis: Array
    signs: Array

    @classmethod
    def of(cls, coefficients: Array) -> LowRank:
        """Factorise coefficients in both log q and x, given with shape (norms, norms, degrees)."""
        ranks, bases, signs = [], [], []
        largest = np.abs(coefficients).max()
        for degree in range(needed(coefficients, 2)):
            matrix = coefficients[..., degree]
            values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
            keep = np.abs(values) > CUT / 4 * largest
            ranks.append(int(keep.sum()))
            bases.append((vectors[:, keep] * np.sqrt(np.abs(values[keep]))).T)
            signs.append(np.sign(values[keep]))
        return cls(tuple(ranks), np.concatenate(bases), np.concatenate(signs))

    @property
    def count(self) -> int:
        """The number of Chebyshev coefficients of a factor."""
        return self.basis.shape[1]

    @cached_property
    def _place(self) -> Array:
        ranks = np.array(self.ranks)
        return np.arange(max(1, ranks.max())) < ranks[:, None]

    def padded(self, factors: Array) -> Array:
        """Return factors (sum of the ranks, n) as (n, degrees, largest rank), padded with 0."""
        out = np.zeros((factors.shape[1], *self._place.shape))
        out[:, self._place] = factors.T
        return out

    def summed(self, x: Any, one: Array, two: Array, xp: Any = np) -> Any:
        """Return the series at x (rows, columns), given ``waves`` of rows and columns."""
        if xp is np:
            first = self.basis @ one[:, : self.count].T
            second = (self.basis @ two[:, : self.count].T) * self.signs[:, None]
            return clenshaw(x, self.ranks, first, second)
        # (count, degrees, rank)
        wide = self.padded(self.basis)
        signed = self.padded(self.basis * self.signs[:, None])
        sides = (
            xp.einsum("nc,cdr->dnr", wave[:, : self.count], side, precision="highest")
            for wave, side in ((one, wide), (two, signed))
        )
        return scanned(x, *sides)

    def paired(self, x: Array, one: Array, two: Array) -> Array:
        """Return the series at x (n,), given the ``waves`` of both rows of each pair."""
        out = np.empty(x.size)
        starts = np.concatenate([[0], np.cumsum(self.ranks)[:-1]]).astype(int)
        some = np.array(self.ranks) > 0
        for first in range(0, x.size, _PAIRS):
            here = slice(first, first + _PAIRS)
            sides = (self.basis @ wave[here, : self.count].T for wave in (one, two))
            products = next(sides) * next(sides) * self.signs[:, None]
            coefficients = np.zeros((len(self.ranks), products.shape[1]))
            coefficients[some] = np.add.reduceat(products, starts[some], axis=0)
            out[here] = summed(coefficients, x[here])
        return out


def clenshaw(x: Array, ranks: tuple[int, ...], one: Array, two: Array) -> Array:
    """Return the sum of (one_k^T two_k) T_k(x) over the degrees k, each with ranks[k] factors."""
    product, last, before, new = (np.zeros(x.shape) for _ in range(4))
    double, stop = 2 * x, len(one)
    for degree in range(len(ranks) - 1, -1, -1):
        rank = ranks[degree]
        np.multiply(double if degree else x, last, out=new)
        new -= before
        if rank:
            np.matmul(one[stop - rank : stop].T, two[stop - rank : stop], out=product)
            new += product
        stop -= rank
        last, before, new = new, last, before
    return last


def scanned(x: Any, one: Any, two: Any) -> Any:
    """Return the sum of :func:`clenshaw` in JAX, for factors (degrees, rows or columns, rank)."""
    import jax.numpy as jnp
    from jax import lax

    def step(carry: Any, factors: Any) -> Any:
        last, before = carry
        product = jnp.matmul(factors[0], factors[1].T, precision=lax.Precision.HIGHEST)
        return (2 * x * last - before + product, last), None

    zero = jnp.zeros_like(x)
    (last, before), _ = lax.scan(step, (zero, zero), (one, two), reverse=True)
    return last - x * before
