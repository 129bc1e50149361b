"""Gradients at each token separately, with sampled attention in every layer.

A message contains, for each group of channels, the covariance N of the gradients at all tokens of a
node, summed over the channels of the group: an array ``d K_out / d K`` of shape (chains, positions,
positions). Layers that act on each token separately use the rules of :class:`Backward` over pairs
of tokens. Attention uses the same draws as the kernel maps, with the derivatives of
:mod:`.score_slopes`.

Rotary embeddings rotate the queries and keys of a head, and their gradients rotate back. For them,
the products ``n_ij`` of a row's gradient with the values that the row may read are also sampled,
with ``Cov(n_ij, n_kl) = N_ik V_jl``, and propagated through the head:

    ds_ij = A_ij (n_ij - sum_l A_il n_il),   dq = ds k / sqrt(d_k),   dk = ds^T q / sqrt(d_k)
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import singledispatchmethod

import numpy as np

from ...network import primitives as P
from ..backward import Backward, Groups, summed
from ..second_moments import is_zero
from .class_token import sent
from .closed import closed_form, gradients, is_tied
from .exchangeable import Relation, TokenState
from .rotary import turned, turns
from .sampled import Drawn, Sampled, mixing_of, root
from .score_slopes import both, by_biases, slopes
from .softmax_rows import factor

Node = Hashable
Array = np.ndarray
PRODUCTS = 4  # draws of products of gradients and values per draw of a rotated head


class SampledBackward:
    """The rules of the backward fold in the chains of one sequence.

    ``kernel`` is the forward calculus, and ``states`` are its results.
    """

    def __init__(self, kernel: Sampled, states: Mapping[Node, TokenState]) -> None:
        self.kernel, self.states = kernel, states
        self.own = Backward(
            kernel.kernel,
            {node: state.relations[Relation.FIRST_INPUT] for node, state in states.items()},
            True,
        )
        # squared gradients of score biases, per chain
        self.biases = dict[Node, Array]()

    def start(self, output: Node, covariance: Array) -> dict[Node, Groups]:
        """Return the initial messages: 0, or a covariance (positions, positions) at the output."""
        nothing = np.zeros((1, 1, 1))
        start = {node: [nothing] * len(state.groups) for node, state in self.own.states.items()}
        return start | {output: self._shared(output, covariance[None])}

    def covariance(self, node: Node) -> Array:
        """Return the covariance at a node, (chains or 1, positions, positions)."""
        return self.kernel.covariance(self.states[node])

    def count(self, node: Node) -> int:
        """The number of tokens of a node, 1 after pooling."""
        return self.states[node].count or 1

    @singledispatchmethod
    def rule(
        self, op: P.Primitive, node: Node, message: Groups, reads: Sequence[Node]
    ) -> list[Groups]:
        """Return one message for each node that the primitive reads, in slot order."""
        return self.own.rule(op, node, message, reads)

    @rule.register
    def _(self, op: P.Window, node: Node, message: Groups, reads: Sequence[Node]) -> list[Groups]:
        (below,) = reads
        mixing = mixing_of(op, node, self.count(below))
        if mixing is None:
            return [message]
        return [self._shared(below, mixing.T @ summed(message) @ mixing)]

    @rule.register
    def _(self, op: P.Prefix, node: Node, message: Groups, reads: Sequence[Node]) -> list[Groups]:
        """Each token receives the gradient at its position."""
        more = self.count(reads[1])
        total = _whole(message, self.count(node))
        return [
            self._shared(read, total[:, cut, cut])
            for read, cut in zip(reads, (slice(more, None), slice(more)), strict=True)
        ]

    @rule.register
    def _(self, op: P.Reshape, node: Node, message: Groups, reads: Sequence[Node]) -> list[Groups]:
        """Each token receives the gradient of its own channels, uncorrelated with other tokens."""
        (below,) = reads
        count = self.count(below)
        return [self._shared(below, np.eye(count) / count * summed(message))]

    def _shared(self, node: Node, total: Array) -> Groups:
        """Split the message for all channels into one message per group of channels."""
        return [float(share) * total for share, _ in self.own.states[node].groups]

    @rule.register
    def _(self, op: P.Attend, node: Node, message: Groups, reads: Sequence[Node]) -> list[Groups]:
        rows = self.count(reads[0])
        total = _whole(message, rows)
        if is_zero(total):
            return [self._shared(read, np.zeros((1, 1, 1))) for read in reads]
        covariances = [self.covariance(read) for read in reads]
        alike = is_tied([self.states[read] for read in reads])
        varied, sent = max(map(len, (total, *covariances))) > 1, []
        for place in range(len(self.kernel.draws.chains)):
            made, exact = self._sent(
                op,
                node,
                total[min(place, len(total) - 1)],
                [part[min(place, len(part) - 1)] for part in covariances],
                (place, alike),
            )
            sent.append(made)
            if exact and not varied:
                break  # every chain is the same
        return [
            self._shared(read, np.stack(made))
            for read, made in zip(reads, zip(*sent, strict=True), strict=True)
        ]

    def _sent(
        self,
        op: P.Attend,
        node: Node,
        total: Array,
        read: Sequence[Array],
        where: tuple[int, bool],
    ) -> tuple[tuple[Array, ...], bool]:
        """The covariances of the gradients at queries, keys and values in one chain.

        ``where``: the index of the chain, and whether queries and keys are the same. The second
        result states whether the covariances are exact.
        """
        (queries, keys, values), scale = read, float(factor(op))
        (place, alike), chains = where, self.kernel.draws.chains
        if closed_form(op, alike):
            return gradients(op, alike, read, scale, total), True
        if self.kernel.by_class_token(op):
            known = sent(op, read, total)
            if known is not None:
                return known, True
        counts, chain, draws = (len(queries), len(keys)), chains[place], self.kernel.draws
        to_queries, to_keys, to_values = (np.zeros_like(part) for part in read)
        noise = np.random.default_rng((draws.seed, self.kernel.layer(node), chain, 1))
        roots = None if op.rotary is None else (root(total), root(values))
        for drawn in self.kernel.drawn(op, node, (queries, keys), counts, chain):
            weights, plain = drawn.weights[:, 0], drawn.plain[:, 0]
            flat = weights.reshape(-1, weights.shape[-1])
            to_values += flat.T @ (total @ weights).reshape(flat.shape)
            if op.relative is not None:
                sums = by_biases(op, plain, plain, values) * total
                share = self.biases.setdefault(node, np.zeros(len(chains)))
                share[place] += op.relative[0] ** 2 * float(sums.sum()) / draws.count
            if roots is not None:
                made = _through_turns(op, drawn, roots, noise)
                to_queries, to_keys = to_queries + scale * made[0], to_keys + made[1]
            elif scale:
                g, h = scale * queries, keys
                if drawn.grams is not None:
                    g, h = (x[:, 0] @ x[:, 0].swapaxes(-1, -2) / x.shape[-1] for x in drawn.grams)
                responded, pulled = both(op, plain, values, h, total * g)
                to_queries += scale * total * responded.sum(axis=0)
                to_keys += pulled.sum(axis=0)
        return tuple(part / draws.count for part in (to_queries, to_keys, to_values)), False


def _whole(message: Groups, count: int) -> Array:
    """Return the message for all channels, with shape (chains, count, count)."""
    total = np.asarray(summed(message))
    return np.broadcast_to(total, (len(total), count, count))


def _through_turns(
    op: P.Attend, drawn: Drawn, roots: tuple[Array, Array], rng: np.random.Generator
) -> tuple[Array, Array]:
    """Covariances of the gradients at rotated queries (divided by the scale) and rotated keys.

    ``roots``: square roots of the covariances of the gradients at the outputs, and of the values.
    """
    assert drawn.grams is not None and op.rotary is not None
    q, k = (x[:, 0] for x in drawn.grams)
    plain, width = drawn.plain[:, 0], q.shape[-1]
    angles = turns(float(op.rotary), width, max(q.shape[1], k.shape[1]))
    found: list[Array | float] = [0.0, 0.0]
    for _ in range(PRODUCTS):
        normal = rng.standard_normal((len(plain), len(roots[0]), len(roots[1])))
        products = roots[0] @ normal @ roots[1].T
        ds = slopes(op, plain) * products
        if op.normaliser == "softmax":
            ds -= plain * ds.sum(axis=-1, keepdims=True)
        for place, moved in enumerate((ds @ k, ds.swapaxes(-1, -2) @ q)):
            back = turned(moved, -angles[: moved.shape[1]]) / math.sqrt(width)
            found[place] = found[place] + (back @ back.swapaxes(-1, -2)).sum(axis=0) / PRODUCTS
    return np.asarray(found[0]), np.asarray(found[1])
