"""Exact attention over a class token and exchangeable tokens.

A class token precedes the patches of an image. The covariance of two sequences then consists of
five numbers: one for the two class tokens, two for a class token and a patch (one per order), one
for patches at different positions, and the excess for patches at equal positions. Rows of attention
weights over such tokens enter only through a few moments (:mod:`kcalc.gaussian.softmax_groups`), in
which ``E A V B^T`` and its derivatives (:mod:`.score_slopes`) are linear.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from ...fields.jets import Jet
from ...gaussian.softmax_groups import ScorePair, moments
from ...network import primitives as P
from .softmax_rows import factor

Array = np.ndarray
Polynomial = dict[tuple[int, int, int], float]  # {powers of A_0, B_0 and S: coefficient}
MOST_VARIANCE = 30.0  # the largest variance of scores; the grids grow with it
TOLERANCE = 1e-12


class Grouped(NamedTuple):
    """A matrix over one special token and n exchangeable tokens.

    ``first`` is the entry of the special token. ``row`` is the entry (special, other) and
    ``column`` the entry (other, special). ``apart`` is the entry for two different exchangeable
    tokens; ``apart + own`` is their diagonal entry.
    """

    first: float
    row: float
    column: float
    apart: float
    own: float

    @classmethod
    def of(cls, matrix: Array) -> Grouped | None:
        """Return the grouped form of a matrix, or None if the matrix has another form."""
        apart = float(matrix[1, 2])
        first, row, column = (float(matrix[i, j]) for i, j in ((0, 0), (0, 1), (1, 0)))
        found = cls(first, row, column, apart, float(matrix[1, 1]) - apart)
        far = np.abs(matrix - found.spread(len(matrix))).max()
        return found if far <= TOLERANCE * np.abs(matrix).max() else None

    def spread(self, count: int) -> Array:
        """Return the full matrix over ``count`` tokens."""
        out = np.full((count, count), self.apart)
        out[0], out[:, 0], out[0, 0] = self.row, self.column, self.first
        out[range(1, count), range(1, count)] += self.own
        return out

    def at(self, one: int, two: int) -> float:
        """Return the entry for two tokens; 0 is the special token, 1 and 2 are two other tokens."""
        if one and two:
            return self.apart + (self.own if one == two else 0.0)
        return self.column if one else self.row if two else self.first

    def times(self, other: Grouped) -> Grouped:
        """Return the elementwise product of two grouped matrices."""
        apart = self.apart * other.apart
        return Grouped(
            self.first * other.first,
            self.row * other.row,
            self.column * other.column,
            apart,
            (self.apart + self.own) * (other.apart + other.own) - apart,
        )


KINDS = ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2))  # the kinds of token pairs


def exact_class_token(op: P.Attend) -> bool:
    """Whether the row moments apply to an attention layer: unmasked softmax with wide heads.

    As for exchangeable tokens, a key width counts as large unless ``wide=False``.
    """
    plain = op.normaliser == "softmax" and op.scale != "linear" and op.identity == op.centre == 0
    plain = plain and not (op.masks or op.sink or op.biased)
    return plain and op.rotary is None and op.wide is not False


def cut(jet: Jet, sequences: int) -> list[dict[tuple[int, int], Grouped]] | None:
    """Split a jet of covariances into {two sequences: grouped covariance} for each order.

    The result is None if a covariance does not have the grouped form.
    """
    out = []
    for part in jet.coefficients:
        count = part.shape[-1] // sequences
        if len(part) > 1 or count < 4:
            return None
        blocks = part[0].reshape(sequences, count, sequences, count)
        found = {}
        for one, two in product(range(sequences), repeat=2):
            made = Grouped.of(blocks[one, :, two])
            if made is None:
                return None
            found[one, two] = made
        out.append(found)
    return out


def attended(op: P.Attend, read: Sequence[Jet], sequences: int) -> Jet | None:
    """Return the covariance of the outputs of all tokens, with its tangent kernel.

    The result is None if the tokens after the first one are not exchangeable.
    """
    cuts = [cut(jet, sequences) for jet in read]
    if any(part is None for part in cuts):
        return None
    queries, keys, values = (part for part in cuts if part is not None)
    count, orders = read[0].value.shape[-1] // sequences, len(values)
    scale = float(factor(op))
    out = np.empty((orders, sequences, count, sequences, count))
    for one, two in product(range(sequences), repeat=2):
        numbers: list[list[float]] = [[] for _ in range(orders)]
        for kind in KINDS:
            known = _rows(queries[0], keys[0], (one, two), kind, count - 1, scale)
            if known is None:
                return None
            numbers[0].append(reading(known, values[0][one, two]))
            if orders > 1:
                numbers[1].append(
                    reading(known, values[1][one, two])
                    + scale
                    * queries[1][one, two].at(*kind)
                    * response(known, values[0][one, two], keys[0][one, two])
                    + scale
                    * queries[0][one, two].at(*kind)
                    * response(known, values[0][one, two], keys[1][one, two])
                )
        for order, (first, row, column, own, apart) in enumerate(numbers):
            out[order, one, :, two] = Grouped(first, row, column, apart, own - apart).spread(count)
    size = sequences * count
    return Jet(tuple(part.reshape(1, size, size) for part in out))


def sent(op: P.Attend, read: Sequence[Array], behind: Array) -> tuple[Array, Array, Array] | None:
    """Return the covariances of the gradients at queries, keys and values of one sequence.

    ``read``: the covariances of the inputs of attention; ``behind``: the covariance of the
    gradients at its output. The result is None in the same cases as for :func:`attended`.
    """
    found = [Grouped.of(part) if len(part) > 3 else None for part in (*read, behind)]
    if any(part is None for part in found):
        return None
    queries, keys, values, back = (part for part in found if part is not None)
    count, scale = len(behind), float(factor(op))
    n = count - 1
    # the number of pairs of each kind
    pairs = dict(zip(KINDS, (1, n, n, n, n * (n - 1)), strict=True))
    kinds = {  # kinds of pairs of keys, symmetric
        "first": Grouped(1, 0, 0, 0, 0),
        "row": Grouped(0, 1, 1, 0, 0),
        "own": Grouped(0, 0, 0, 0, 1),
        "apart": Grouped(0, 0, 0, 1, -1),
    }
    many = {"first": 1, "row": 2 * n, "own": n, "apart": n * (n - 1)}
    to_queries, to_keys, to_values = {}, dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0.0)
    for kind, times in pairs.items():
        known = _rows({(0, 0): queries}, {(0, 0): keys}, (0, 0), kind, n, scale)
        if known is None:
            return None
        here, g = back.at(*kind), scale * queries.at(*kind)
        to_queries[kind] = scale * here * response(known, values, keys)
        for name, ones in kinds.items():
            share = times * here / many[name]
            to_values[name] += share * reading(known, ones)
            to_keys[name] += share * g * response(known, values, ones)
    first, row, column, own, apart = (to_queries[kind] for kind in KINDS)
    at_keys, at_values = (
        Grouped(x["first"], x["row"], x["row"], x["apart"], x["own"] - x["apart"])
        for x in (to_keys, to_values)
    )
    at_queries = Grouped(first, row, column, apart, own - apart)
    return at_queries.spread(count), at_keys.spread(count), at_values.spread(count)


# -- two rows --------------------------------------------------------------------------------------


def _rows(
    queries: Mapping[tuple[int, int], Grouped],
    keys: Mapping[tuple[int, int], Grouped],
    sequences: tuple[int, int],
    kind: tuple[int, int],
    n: int,
    scale: float,
) -> Mapping | None:
    """Return the moments of two rows of attention weights, or None if no rule applies.

    ``sequences``: the sequences of the two rows; ``kind``: their tokens, as in :meth:`Grouped.at`.
    """
    (one, two), (i, k) = sequences, kind

    def scores(number: str) -> ScorePair | None:
        sizes = []
        for a, b, g in (
            (one, one, queries[one, one].at(i, i)),
            (two, two, queries[two, two].at(k, k)),
            (one, two, queries[one, two].at(i, k)),
        ):
            h = keys[a, b]
            size = h.own if number == "alike" else h.first - h.row - h.column + h.apart
            sizes.append(scale * g * size)
        least = -1e-12 * scale * max(keys[one, one].first, keys[two, two].first)
        if min(sizes[:2]) < least or max(sizes[:2]) > MOST_VARIANCE:
            return None
        first, second = (max(size, 0.0) for size in sizes[:2])
        bound = math.sqrt(first) * math.sqrt(second)
        if abs(sizes[2]) > bound - least:  # may be negative: no Gaussian scores
            return None
        return ScorePair(first, second, max(-bound, min(bound, sizes[2])))

    alike, other = scores("alike"), scores("other")
    return None if alike is None or other is None else moments(n, alike, other)


def reading(known: Mapping, v: Grouped) -> float:
    """Return ``E A V B^T`` for two rows A and B of attention weights with the moments ``known``."""
    return _mean(known, _product(v))


def response(known: Mapping, v: Grouped, w: Grouped) -> float:
    """Return ``E sum_jl W_jl (P_A V P_B)_jl`` with ``P_A = diag(A) - A A^T``.

    A and B are two rows of attention weights with the moments ``known``; see :mod:`.score_slopes`.
    """
    first = reading(known, w.times(v))
    rows = _mean(known, _row_products(v, w, 0)) + v.own * w.own * known["AAB"]
    columns = _mean(known, _row_products(v, w, 1)) + v.own * w.own * known["ABB"]
    return first - rows - columns + _mean(known, _times(_product(v), _product(w)))


A0, B0, S = (1, 0, 0), (0, 1, 0), (0, 0, 1)
ONE = (0, 0, 0)


def _product(x: Grouped) -> Polynomial:
    """Return ``A X B^T`` as a polynomial in the weights of the rows A and B."""
    return {
        ONE: x.apart,
        A0: x.row - x.apart,
        B0: x.column - x.apart,
        (1, 1, 0): x.first - x.row - x.column + x.apart,
        S: x.own,
    }


def _row_products(v: Grouped, w: Grouped, side: int) -> Polynomial:
    """Return ``sum_l B_l (A W)_l (A V)_l`` as a polynomial in the weights of the rows A and B.

    With ``side=1``, return ``sum_j A_j (V B)_j (W B)_j``. Terms that are cubic in single weights
    are left out.
    """
    near, far = ((A0, B0), (B0, A0))[side]
    heads, rests = [], []
    for x in (v, w):
        row, column = ((x.row, x.column), (x.column, x.row))[side]
        heads.append({ONE: column, near: x.first - column})
        rests.append({ONE: x.apart, near: row - x.apart})
    whole: Polynomial = {}
    for part in (
        _times({far: 1.0}, _times(*heads)),
        _times({ONE: 1.0, far: -1.0}, _times(*rests)),
        _times({S: w.own}, rests[0]),
        _times({S: v.own}, rests[1]),
    ):
        for powers, number in part.items():
            whole[powers] = whole.get(powers, 0.0) + number
    return whole


def _times(one: Polynomial, two: Polynomial) -> Polynomial:
    out: Polynomial = {}
    for (a, x), (b, y) in product(one.items(), two.items()):
        powers = (a[0] + b[0], a[1] + b[1], a[2] + b[2])
        out[powers] = out.get(powers, 0.0) + x * y
    return out


def _mean(known: Mapping, polynomial: Polynomial) -> float:
    return sum(number * known[powers] for powers, number in polynomial.items() if number)
