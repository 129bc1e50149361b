"""Derivatives of ``E A V B^T`` with respect to covariances of scores, from draws of the weights.

A and B are the weights of two sequences, and ``P_a = diag(a) - a a^T`` is the derivative of
softmax. For a matrix W over keys let:

    R(W)_ik = sum_jl W_jl (P_(A_i) V P_(B_k))_jl. As a matrix:
    R(W) = A (W o V) B^T - ((A W) o (A V)) B^T - A ((V B^T) o (W B^T)) + (A W B^T) o (A V B^T).

By Price's theorem the tangent kernel of ``E A V B^T`` is
``A Theta_V B^T + Theta_G o R(H) + G o R(Theta_H)``. For heads of finite width, G and H are the
products of the drawn queries and keys divided by that width; for rotated heads they depend on
positions as in :mod:`.rotary`. Learned biases of scores add ``sum_u D_u V E_u^T`` times the kernel
of the biases. Here D_u and E_u are the derivatives of A and B with respect to the bias of distance
bucket u. Let N be the covariance of the gradients at the outputs. The gradients at values, queries
and keys then have the covariances:

    A^T N A,    N o R(H),    R'(N o G).

Here A = B and ``R'(M)_jl = sum_ik M_ik (P_(A_i) V P_(A_k))_jl``. As a matrix it
is ``V o (A^T M A) - ((A^T M) o (V A^T)) A - its transpose + A^T (M o (A V A^T)) A``.
Softmax with a sink has the same derivative.
Weights that are functions f of single scores have ``P_a = diag(f')``: all terms but the first are
0, and f' replaces A.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...fields.jets import Jet
from ...network import primitives as P
from .rotary import apart, by_angle, turns
from .weights import distance_buckets

Array = np.ndarray
Grams = tuple[Array, Array] | None


@dataclass
class Blocks:
    """Covariances of queries (times ``factor``), keys and values, in blocks for pairs of sequences.

    The covariances are jets over the positions of all sequences.
    """

    op: P.Attend
    factor: float
    queries: Jet
    keys: Jet
    values: Jet
    sequences: int
    biases: float = 0.0  # the tangent kernel of a distance bucket's bias

    def _of(self, jet: Jet, order: int, one: int, two: int) -> Array:
        whole = jet.coefficients[order]
        count = whole.shape[-1] // self.sequences
        return whole[one * count : (one + 1) * count, two * count : (two + 1) * count]

    def tangent(self, one: int, two: int, weights: Array, softmax: Array, drawn: Grams) -> Array:
        """The tangent kernel between tokens of sequences ``one`` and ``two``, summed over draws.

        ``weights``: (draws, sequences, rows, keys), the weights applied to the values; ``softmax``:
        the part of these weights that depends on scores; ``drawn``: queries and keys (draws,
        sequences, positions, width) or None.
        """
        g, h = (self._of(jet, 0, one, two) for jet in (self.queries, self.keys))
        g = g * self.factor
        if drawn is not None:
            g, h = (x[:, one] @ x[:, two].swapaxes(-1, -2) / x.shape[-1] for x in drawn)
        v, values = (self._of(self.values, order, one, two) for order in (0, 1))
        moved = self.factor * self._of(self.queries, 1, one, two)
        keys = self._of(self.keys, 1, one, two)
        read = (weights[:, one] @ values @ weights[:, two].swapaxes(-1, -2)).sum(axis=0)
        a, b = softmax[:, one], softmax[:, two]
        if self.op.relative is not None:
            read = read + self.biases * by_biases(self.op, a, b, v).sum(axis=0)
        if self.op.rotary is not None and drawn is not None:
            return read + self._turned(one, two, (a, b), v, drawn)
        by_queries, by_keys = (response(self.op, a, b, v, w) for w in (h, keys))
        return read + moved * by_queries.sum(axis=0) + (g * by_keys).sum(axis=0)

    def _turned(
        self,
        one: int,
        two: int,
        rows: tuple[Array, Array],
        v: Array,
        drawn: tuple[Array, Array],
    ) -> Array:
        """Like :meth:`tangent` for rotated queries and keys, angle by angle."""
        queries, keys = drawn
        moved = self.factor * self._of(self.queries, 1, one, two)
        other, out = self._of(self.keys, 1, one, two), np.zeros(moved.shape)
        speeds = turns(float(self.op.rotary or 1), queries.shape[-1], 2)[1]
        by_keys, by_queries = (by_angle(x[:, one], x[:, two]) for x in (keys, queries))
        for speed, of_keys, of_queries in zip(speeds, by_keys, by_queries, strict=True):
            for turn, product, own in zip((np.cos, np.sin), of_keys, of_queries, strict=True):
                rows_apart, keys_apart = (turn(speed * apart(x)) for x in (moved, other))
                out += moved * rows_apart * response(self.op, *rows, v, product).sum(axis=0)
                out += (own * response(self.op, *rows, v, other * keys_apart)).sum(axis=0)
        return out


def response(op: P.Attend, a: Array, b: Array, v: Array, w: Array) -> Array:
    """Return R(w), defined in the module docstring, for every draw.

    ``a``, ``b``: weights (draws, rows, keys).
    """
    a, b = slopes(op, a), slopes(op, b).swapaxes(-1, -2)
    moved = (a @ (w * v)) @ b
    if op.normaliser != "softmax":
        return moved
    av, aw, vb, wb = a @ v, a @ w, v @ b, w @ b
    return moved - (aw * av) @ b - a @ (vb * wb) + (aw @ b) * (av @ b)


def both(op: P.Attend, a: Array, v: Array, w: Array, m: Array) -> tuple[Array, Array]:
    """Return R(w) with A = B, and R'(m), for every draw; ``v``, ``w`` and ``m`` are symmetric."""
    a = slopes(op, a)
    turned = a.swapaxes(-1, -2)
    back = turned @ m
    moved, direct = (a @ (w * v)) @ turned, v * (back @ a)
    if op.normaliser != "softmax":
        return moved, direct
    av, aw = a @ v, a @ w
    read = av @ turned
    crossed, other = (aw * av) @ turned, (back * av.swapaxes(-1, -2)) @ a
    moved += (aw @ turned) * read - crossed - crossed.swapaxes(-1, -2)
    direct += turned @ (m * read) @ a - other - other.swapaxes(-1, -2)
    return moved, direct


def by_biases(op: P.Attend, a: Array, b: Array, v: Array) -> Array:
    """Return ``sum_u D_u V E_u^T`` for every draw of weights ``a`` and ``b`` (draws, rows, keys).

    D_u and E_u are the derivatives of the weights with respect to the bias of bucket u.
    """
    one, two = (_moved(op, x) for x in (a, b))
    return np.einsum("dujk,duik->dij", one @ v, two, optimize=True).swapaxes(-1, -2)


def _moved(op: P.Attend, weights: Array) -> Array:
    """Return weight derivatives with respect to score biases, (draws, buckets, rows, keys)."""
    assert op.relative is not None
    buckets = distance_buckets(op, *weights.shape[-2:])
    own = np.arange(op.relative[1])[:, None, None] == buckets
    moved = slopes(op, weights)[:, None] * own
    if op.normaliser != "softmax":
        return moved
    return moved - weights[:, None] * moved.sum(axis=-1, keepdims=True)


def pulled(op: P.Attend, a: Array, v: Array, m: Array) -> Array:
    """Return R'(m), defined in the module docstring, for every draw.

    ``a``: weights (draws, rows, keys).
    """
    a = slopes(op, a)
    turned = a.swapaxes(-1, -2)
    back = turned @ m
    direct = v * (back @ a)
    if op.normaliser != "softmax":
        return direct
    av = a @ v
    crossed = (back * av.swapaxes(-1, -2)) @ a
    return direct - crossed - crossed.swapaxes(-1, -2) + turned @ (m * (av @ turned)) @ a


def slopes(op: P.Attend, weights: Array) -> Array:
    """Return f' for weights that are functions f of single scores, with 0 at masked scores.

    For softmax, return the weights themselves.
    """
    if op.normaliser == "sigmoid":
        return weights * (1 - weights)
    if op.normaliser == "relu":
        return (weights > 0) / weights.shape[-1]
    return (weights != 0).astype(float) if op.normaliser == "identity" else weights
