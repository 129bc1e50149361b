"""Kernel maps over tokens followed one by one, with the attention of every layer sampled: causal masks, rotary and your own tokens.

The tokens of all sequences stand in one row of P = sequences x tokens places; the numbers of a state are arrays over
(chain, place, place). Layers that act on each token by itself have the rules of kernel maps. Attention is drawn:

    s = G^(1/2) Z H^(T/2)  (wide heads)    or    s = q k^T / sqrt(d_k),  q = G^(1/2) Z_q,  k = H^(1/2) Z_k  (d_k given)

with independent standard normal Z, masked and put through softmax; ``A V A^T`` is averaged over the draws of a layer.
That is unbiased for one layer; layers in a row carry the error on. Chains are independent, and their spread is the error
of a result.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from itertools import product

import numpy as np

from ...fields import NUMPY
from ...fields.jets import Jet
from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import whole
from ...foundation.printing import Shown
from ...network import primitives as P
from ..atoms import Atom, Pair
from ..channel_statistics import Ledger, Statistics
from ..channels import Channels
from ..checks import check_q
from ..freshness import Algebra
from ..kernel import Kernel
from ..kernel_activations import Activations
from ..second_moments import Moments, SecondMoments
from ..spatial.local import LocationMaps
from .causal import exact_mask, masked
from .exchangeable import HEADS, ONE, TokenState, by_relation, check_length, check_reads
from .rows import factor
from .weights import weights_of

Node = Hashable
Array = np.ndarray
NUMBERS = 1 << 20  # of scores that are drawn at once
LARGEST_DRAWN = 1e200  # variance of scores, whose squares do not overflow
SAMPLED = "attention is sampled: {draws} draws a layer in each of {chains} independent chains, seed {seed}"


@dataclass(frozen=True)
class Sampling(Shown):
    """How attention is sampled: ``draws`` per layer and chain, ``chains``, ``seed``."""

    draws: int = 8
    chains: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("draws", 1), ("chains", 2), ("seed", 0)):
            object.__setattr__(self, name, whole(getattr(self, name), f"Sampling: {name}", least))


def token_kernel(assume_independent: bool) -> Kernel:
    """The kernel calculus over arrays of pairs of tokens."""
    moments = SecondMoments(NUMPY, False)
    statistics, algebra = Statistics(moments, Ledger(), True, assume_independent, check_q), Algebra(moments)
    return Kernel(statistics, algebra, Activations(statistics, algebra, LocationMaps()))


@dataclass
class Sampled:
    """The calculus: ``kernel`` for layers that act on each token by itself, and draws of attention; ``sequences``: how many there are."""

    kernel: Kernel
    sampling: Sampling
    sequences: int

    def __post_init__(self) -> None:
        self.notes, self.whole = self.kernel.notes, self.kernel.whole
        self._layers, self._length = 0, 1

    def start(self, node: Node, covariance: Array) -> TokenState:
        """The state of an Input node from the covariance of all tokens, (P, P)."""
        self._length = len(covariance) // self.sequences
        return self._state(node, covariance[None], self._length, raw=True)

    def _state(self, node: Node, covariance: Array, count: int | None, raw: bool = False, gaussian: bool = False) -> TokenState:
        q = np.diagonal(covariance, axis1=-2, axis2=-1)
        self.kernel.statistics.check(NUMPY, q, node)
        gap = 1 - covariance / (np.sqrt(q)[..., :, None] * np.sqrt(q)[..., None, :])
        places = np.arange(q.shape[-1])
        gap[..., places, places] = 0.0
        moments = Moments(q[..., :, None], q[..., None, :], Jet((np.clip(gap, 0.0, 2.0),)), 0, 0)
        atom = Atom(node, moments, self.kernel.ledger.bit(), gaussian, raw, mixed=not raw)
        return TokenState({ONE: Channels.one(Pair.of(atom))}, count)

    def covariance(self, state: TokenState) -> Array:
        """The covariance of all tokens, (chains, P, P)."""
        q1, q2, gap = self.whole(state.relations[ONE])
        return self.kernel.algebra.moments.geometric(q1, q2) * (1 - gap.value)

    @singledispatchmethod
    def rule(self, op: P.Primitive, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        """The state a primitive emits. Raises: as kernel maps do."""
        if isinstance(op, P.Norm) and op.over == "positions":
            raise KcalcError(f"node {node!r} normalises over tokens, which has no rule where they are followed one by one; use LayerNorm")
        return by_relation({ONE: self.kernel}, op, node, inputs)

    @rule.register
    def _(self, op: P.Positions, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        check_length(op, node, self._length)
        apart = np.abs(np.subtract.outer(np.arange(self._length), np.arange(self._length)))
        own = np.ones(apart.shape) if op.form == "constant" else _waves(apart) if op.form == "sinusoidal" else (apart == 0).astype(float)
        return self._state(node, np.tile(own, (1, self.sequences, self.sequences)), self._length, raw=True)

    @rule.register
    def _(self, op: P.Attend, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        self._check(op, node, inputs)
        self.kernel.note(node, HEADS, "convention")
        queries, keys, values = map(self.covariance, inputs)
        rows, columns = (state.count or 1 for state in inputs[:2])
        if op.causal and exact_mask(op) and (made := masked(op, queries, keys, values, self.sequences)) is not None:
            return self._state(node, made[None], rows)
        if rows != columns and (op.causal or op.identity != 0):
            raise KcalcError(f"node {node!r} is causal or adds the token itself, and has {rows} queries and {columns} keys")
        self._check_scores(op, node, queries, keys)
        self._layers += 1
        chains = self.sampling.chains
        wide = [np.broadcast_to(part, (chains, *part.shape[1:])) for part in (queries, keys, values)]
        found = [self._attended(op, *(part[chain] for part in wide), rows, columns, chain) for chain in range(chains)]
        return self._state(node, np.stack(found), rows)

    def _attended(self, op: P.Attend, queries: Array, keys: Array, values: Array, rows: int, columns: int, chain: int) -> Array:
        """The mean over draws of ``M V M^T`` in one chain."""
        rng = np.random.default_rng((self.sampling.seed, self._layers, chain))
        n = self.sequences
        scores = _Scores(op, queries, keys, n, rows, columns)
        apart = values.reshape(n, columns, n, columns).swapaxes(1, 2)
        total = np.zeros((n, n, rows, rows))
        most = max(1, NUMBERS // (n * rows * columns))
        for start in range(0, self.sampling.draws, most):
            drawn = scores.drawn(rng, min(most, self.sampling.draws - start))
            weights = weights_of(op, drawn, np) - float(op.centre) / columns
            if op.identity != 0:
                weights += float(op.identity) * np.eye(rows)
            for one, two in product(range(n), repeat=2):
                mixed = weights[:, one] @ apart[one, two]
                total[one, two] += np.tensordot(mixed, weights[:, two], axes=((0, 2), (0, 2)))
        return total.swapaxes(1, 2).reshape(n * rows, n * rows) / self.sampling.draws

    def _check_scores(self, op: P.Attend, node: Node, queries: Array, keys: Array) -> None:
        """Refuse scores that overflow."""
        largest = np.diagonal(queries, axis1=-2, axis2=-1).max() * np.diagonal(keys, axis1=-2, axis2=-1).max() * float(factor(op))
        if not largest <= LARGEST_DRAWN:
            raise KcalcError(
                f"node {node!r}: its attention scores have variance {largest:.3g}; lower sigma_w of the Affine layers that make queries "
                "and keys, or put a norm before them"
            )

    def _check(self, op: P.Attend, node: Node, inputs: Sequence[TokenState]) -> None:
        check_reads(op, node, inputs)
        if op.scale == "linear" and (op.rotary or op.alibi or op.normaliser != "softmax"):
            raise KcalcError(f"node {node!r}: scores over key_width vanish for wide heads; drop rotary and ALiBi, or use scale='sqrt'")
        if op.rotary is not None and op.key_width is None:
            raise KcalcError(f"node {node!r} turns queries and keys (rotary), and the angles need key_width, the channels of a head")

    @rule.register
    def _(self, op: P.Window, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        """The mean over all tokens of a sequence, or a matrix over them."""
        (below,), matrix = inputs, getattr(op, "matrix", None)
        if not op.mixes and matrix is None:
            return below
        count = below.count or 1
        if not isinstance(op, P.Blend) or op.weighted or (matrix is None and op.window is not None):
            raise KcalcError(f"node {node!r} ({op.kind}) pools windows of tokens; use the mean over all of them, L.Pool('mean')")
        mixing = np.full((1, count), 1 / count) if matrix is None else np.array(matrix)
        if mixing.shape[1] != count:
            raise KcalcError(f"node {node!r} mixes {mixing.shape[1]} tokens, and there are {count}")
        whole, pairs = np.kron(np.eye(self.sequences), mixing), below.relations[ONE].pairs
        gaussian = len(pairs) == 1 and pairs[0].gaussian
        return self._state(node, whole @ self.covariance(below) @ whole.T, None if matrix is None else len(mixing), gaussian=gaussian)

    @rule.register
    def _(self, op: P.Reshape, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        """Tokens become channels: the mean of the covariances at equal places."""
        (below,) = inputs
        count = below.count or 1
        grid = self.covariance(below).reshape(-1, self.sequences, count, self.sequences, count)
        return self._state(node, np.einsum("xsatb,ab->xst", grid, np.eye(count)) / count, None)


class _Scores:
    """Draws of attention scores, masked, per sequence."""

    def __init__(self, op: P.Attend, queries: Array, keys: Array, sequences: int, rows: int, columns: int) -> None:
        self.op, self.sequences, self.rows, self.columns = op, sequences, rows, columns
        scale = float(factor(op))
        self.left, self.right = _root(queries) * math.sqrt(scale), _root(keys)
        self.bias = np.zeros((rows, columns))
        if op.causal:
            self.bias[np.triu_indices(rows, 1)] = -np.inf
        self.turns = None if op.rotary is None else _turns(float(op.rotary), op.key_width or 2, max(rows, columns))

    def drawn(self, rng: np.random.Generator, draws: int) -> Array:
        """The scores of one head a draw, (draws, sequences, rows, columns)."""
        op, one, two, n = self.op, self.left.shape[0], self.right.shape[0], self.sequences
        if op.key_width is None:
            full = self.left @ rng.standard_normal((draws, one, two)) @ self.right.T
            grid = full.reshape(draws, n, self.rows, n, self.columns)
            scores = np.stack([grid[:, k, :, k] for k in range(n)], axis=1)
        else:
            q, k = (root @ rng.standard_normal((draws, len(root), op.key_width)) for root in (self.left, self.right))
            q, k = q.reshape(draws, n, self.rows, -1), k.reshape(draws, n, self.columns, -1)
            if self.turns is not None:
                q, k = (_turned(x, self.turns[: x.shape[2]]) for x in (q, k))
            scores = q @ k.swapaxes(-1, -2) / math.sqrt(op.key_width)
        if not op.alibi:
            return scores + self.bias
        heads = op.heads or 8
        slopes = 2.0 ** (-8 * (rng.integers(heads, size=(draws, 1, 1, 1)) + 1) / heads)
        return scores + self.bias - slopes * np.abs(np.arange(self.rows)[:, None] - np.arange(self.columns))


def _turns(base: float, width: int, count: int) -> Array:
    """Angles of rotary embeddings, (positions, width / 2)."""
    return np.arange(count)[:, None] * base ** (-2.0 * np.arange(width // 2) / width)


def _turned(x: Array, angles: Array) -> Array:
    """Pairs of channels, the first half with the second, turned by angles."""
    a, b = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _waves(apart: Array, width: int = 512) -> Array:
    """The cosine of two sinusoidal position vectors: the mean of ``cos(d theta_f)``, ``theta_f = 10000^(-2 f / width)``."""
    angles = 10000.0 ** (-2.0 * np.arange(width // 2) / width)
    by_distance = np.cos(np.arange(len(apart))[:, None] * angles).mean(axis=1)
    return by_distance[apart]


def _root(covariance: Array) -> Array:
    """A root of a positive semidefinite matrix."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return vectors * np.sqrt(np.maximum(values, 0.0))
