"""The tangent kernel of softmax attention from draws of its weights.

Derivatives of ``E A V B^T`` in the covariances of scores.

For weights A of one sequence and B of another one, ``P_a = diag(a) - a a^T`` the derivative of
softmax, and a matrix W over keys, let

    R(W)_ik = sum_jl W_jl (P_(A_i) V P_(B_k))_jl
            = [A (W o V) B^T - ((A W) o (A V)) B^T - A ((V B^T) o (W B^T)) + (A W B^T) o (A V
            B^T)]_ik

By Price's theorem the tangent kernel of ``E A V B^T`` is
``A Theta_V B^T + Theta_G o R(H) + G o R(Theta_H)``. For heads of finite width G and H are the
products of the queries and keys that were drawn, over that width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...fields.jets import Jet

Array = np.ndarray
Grams = tuple[Array, Array] | None


@dataclass
class Blocks:
    """Covariances of queries (times ``factor``), keys and values, cut by pairs of sequences.

    They are jets over all places.
    """

    factor: float
    queries: Jet
    keys: Jet
    values: Jet
    sequences: int

    def _of(self, jet: Jet, order: int, one: int, two: int) -> Array:
        whole = jet.coefficients[order]
        count = whole.shape[-1] // self.sequences
        return whole[one * count : (one + 1) * count, two * count : (two + 1) * count]

    def tangent(self, one: int, two: int, weights: Array, softmax: Array, drawn: Grams) -> Array:
        """The sum over draws for tokens of sequence ``one`` and of sequence ``two``.

        ``weights``: (draws, sequences, rows, keys), what values are read with; ``softmax``: their
        part that depends on scores; ``drawn``: queries and keys (draws, sequences, places, width)
        or None.
        """
        g, h = (self._of(jet, 0, one, two) for jet in (self.queries, self.keys))
        g = g * self.factor
        if drawn is not None:
            g, h = (x[:, one] @ x[:, two].swapaxes(-1, -2) / x.shape[-1] for x in drawn)
        v, values = (self._of(self.values, order, one, two) for order in (0, 1))
        read = (weights[:, one] @ values @ weights[:, two].swapaxes(-1, -2)).sum(axis=0)
        a, b = softmax[:, one], softmax[:, two].swapaxes(-1, -2)
        by_queries, by_keys = (_response(a, b, v, w) for w in (h, self._of(self.keys, 1, one, two)))
        moved = self.factor * self._of(self.queries, 1, one, two)
        return read + moved * by_queries.sum(axis=0) + (g * by_keys).sum(axis=0)


def _response(a: Array, b: Array, v: Array, w: Array) -> Array:
    """R(w) of every draw; ``a``: (draws, rows, keys), ``b``: (draws, keys, rows)."""
    av, aw, vb, wb = a @ v, a @ w, v @ b, w @ b
    return (a @ (w * v) - aw * av) @ b - a @ (vb * wb) + (aw @ b) * (av @ b)
