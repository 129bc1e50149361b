"""Kernel maps that follow each token separately, with sampled attention in every layer.

They support causal masks, rotary embeddings and given tokens. The tokens of all sequences are
numbered consecutively, as P = sequences x tokens positions, and the values of a state are arrays
over (chain, position, position). Layers that act on each token separately use the rules of kernel
maps. Attention is sampled:

    s = G^(1/2) Z H^(T/2)                                          for wide heads
    s = q k^T / sqrt(d_k),  q = G^(1/2) Z_q,  k = H^(1/2) Z_k      if d_k is given

with independent standard normal Z, masked and passed through softmax. ``A V A^T`` is averaged over
the draws of a layer. This average is unbiased for one layer; its error propagates through the later
layers. Chains are independent, and their spread gives the error of a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from itertools import combinations, combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cholesky

from ...fields import NUMPY
from ...fields.jets import Jet
from ...foundation.errors import KcalcError
from ...network import primitives as P
from ...network.score_biases import alibi_slopes
from ..atoms import Atom, Pair
from ..channel_statistics import AssumptionLog, Statistics
from ..channels import Channels
from ..checks import check_q
from ..freshness import Algebra
from ..kernel import Kernel
from ..kernel_activations import Activations
from ..location_maps import LocationMaps
from ..second_moments import Moments, is_zero
from ..tangent import Tangent
from .causal import exact_mask, masked
from .class_token import attended, exact_class_token
from .closed import TIED, check_tied, closed_form, is_tied, linear_in_scores, mixed, tied
from .exchangeable import (
    Relation,
    TokenState,
    assumed_of,
    by_relation,
    check_length,
    check_reads,
    joined,
    row_mean,
    token_matrix,
)
from .pairs import PairMoments
from .rotary import turned, turns
from .sampling import Draws
from .score_slopes import Blocks, Grams
from .softmax_rows import factor
from .weights import distance_buckets, mean_over_visible, visible, weights_of

Node = Hashable
Array = np.ndarray
NUMBERS = 1 << 20  # the number of scores drawn at once
ALMOST_ZERO = 1e-13  # relative to the mean q value: added to a diagonal to ensure a Cholesky factor
ALIBI_HEADS = 8  # number of heads assumed for the slopes if it is unknown
SLOPES = (
    f"ALiBi slopes are computed for {ALIBI_HEADS} heads; pass heads= for another number of heads"
)
ENTROPIES = 2  # the random number stream for rows
LARGEST_DRAWN = 1e200  # the largest variance of scores whose squares do not overflow


def token_kernel(assume_independent: bool) -> Kernel:
    """The kernel calculus over arrays of pairs of tokens."""
    moments = PairMoments(NUMPY, False)
    statistics = Statistics(moments, AssumptionLog(), True, assume_independent, check_q)
    algebra = Algebra(moments)
    return Kernel(statistics, algebra, Activations(statistics, algebra, LocationMaps()))


@dataclass
class Sampled:
    """The calculus with ``part`` for layers that act on each token, and with sampled attention.

    ``part``: the calculus of kernel maps, or of tangent kernels, over :func:`token_kernel`.
    ``draws``: the draws and chains; ``sequences``: the number of sequences. ``slopes``: also follow
    the derivatives of the covariances between different sequences. ``exact``: use the exact rules
    after a class token, unless sampling was requested. ``scores``: record variances of scores and
    entropies of rows in ``rows``.
    """

    part: Kernel | Tangent
    draws: Draws
    sequences: int
    slopes: bool = False
    exact: bool = True
    scores: bool = False

    def __post_init__(self) -> None:
        self.kernel = self.part.kernel if isinstance(self.part, Tangent) else self.part
        self.tangent = isinstance(self.part, Tangent)
        self.notes, self.whole = self.kernel.notes, self.kernel.whole
        self.sampled = False
        self.layers: dict[Node, int] = {}  # attention that is sampled, counted from 1
        # {attention: (variance of scores, entropy of rows), per chain, of the first sequence}
        self.rows: dict[Node, tuple[Array, Array]] = {}
        self.entropies: dict[tuple[Node, int], list[Array]] = {}
        self.keeps = False  # whether draws are cached; they are the same at every call
        self.drawn_before: dict[tuple[Node, int], list[Drawn]] = {}
        self.read: tuple[Array, Array, Jet, Jet] | None = None  # the last covariance read
        self.length, self.added = 1, 0  # numbers of tokens, and of class tokens among them
        self.class_token = False  # whether a class token has occurred
        self.tick: Callable[[int], Any] = lambda _: None  # receives the number of draws made

    def start(self, node: Node, covariance: Array | Jet) -> TokenState:
        """Return the state of an Input node, given the covariance (P, P) of all tokens.

        If the covariance is a jet, it has shape (1, P, P).
        """
        made = covariance if isinstance(covariance, Jet) else covariance[None]
        table = made.value if isinstance(made, Jet) else made
        self.length, self.added = table.shape[-1] // self.sequences, 0
        return self._state(node, made, self.length, raw=True)

    def _state(
        self,
        node: Node,
        made: Array | Jet,
        count: int | None,
        raw: bool = False,
        below: Sequence[Pair] = (),
        means: tuple[Any, Any] = (0, 0),
        gaussian: bool = False,
    ) -> TokenState:
        """The state with a given covariance; a jet also carries the tangent kernel.

        ``below``: the feature map of which the state is a linear function; ``means``: the channel
        means, a column and a row.
        """
        parts = made.coefficients if isinstance(made, Jet) else (made,)
        covariance, tangent = np.asarray(parts[0]), parts[1] if len(parts) > 1 else None
        q = np.diagonal(covariance, axis1=-2, axis2=-1)
        self.kernel.statistics.check(NUMPY, q, node)
        norm = self.kernel.algebra.moments.geometric(q[..., :, None], q[..., None, :])
        gap = 1 - covariance / norm
        places = np.arange(q.shape[-1])
        gap[..., places, places] = 0.0
        followed = self.tangent or self.slopes
        first = () if not followed else (gap * 0,) if tangent is None else (-tangent / norm,)
        moments = Moments(
            q[..., :, None], q[..., None, :], Jet((np.clip(gap, 0.0, 2.0), *first)), *means
        )
        support = self.kernel.ledger.bit() | joined(below)
        atom = Atom(node, moments, support, gaussian, raw, mixed=not raw)
        return TokenState({Relation.FIRST_INPUT: Channels.one(Pair.of(atom))}, count)

    def covariance(self, state: TokenState) -> Array:
        """The covariance of all tokens, (chains, P, P)."""
        return self.joint(state).value

    def joint(self, state: TokenState) -> Jet:
        """The covariance of all tokens, with the tangent kernel as its first order."""
        q1, q2, gap = self.whole(state.relations[Relation.FIRST_INPUT])
        if self.read is not None:  # queries, keys and values usually read the same feature map
            one, two, other, made = self.read
            if gap.value is other.value and np.array_equal(q1, one) and np.array_equal(q2, two):
                return made
        made = (1 - gap) * self.kernel.algebra.moments.geometric(q1, q2)
        self.read = q1, q2, gap, made
        return made

    @singledispatchmethod
    def rule(self, op: P.Primitive, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        """Return the state that a primitive emits.

        Raises: KcalcError in the same cases as for kernel maps.
        """
        if isinstance(op, P.Norm) and op.over == "positions":
            raise KcalcError(
                f"node {node!r} normalises over tokens, which is not supported if tokens are "
                "followed one by one; use LayerNorm"
            )
        return by_relation({Relation.FIRST_INPUT: self.part}, op, node, inputs)

    @rule.register
    def _(self, op: P.Positions, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        count = op.count or self.length
        check_length(op, node, count, self.added)
        apart = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
        own = (
            np.ones(apart.shape)
            if op.form == "constant"
            else _waves(apart)
            if op.form == "sinusoidal"
            else (apart == 0).astype(float)
        )
        return self._state(node, np.tile(own, (1, self.sequences, self.sequences)), count, raw=True)

    @rule.register
    def _(self, op: P.Prefix, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        """Put a class token, independent of the tokens, before the tokens of every sequence."""
        tokens, front = inputs
        count, more = tokens.count, front.count or 1
        if count is None:
            raise KcalcError(
                f"node {node!r} adds a class token after the tokens were pooled; add it before "
                "the pooling"
            )
        places = self._places(count, more)
        own, first = (self.joint(state).coefficients for state in (tokens, front))
        parts = [_blocks(one, two, places) for one, two in zip(own, first, strict=True)]
        pairs = [pair for state in inputs for pair in state.relations[Relation.FIRST_INPUT].pairs]
        self.length, self.added, self.class_token = count + more, self.added + more, True
        return self._state(
            node,
            Jet(tuple(parts)),
            self.length,
            below=pairs,
            means=self._prefixed_means(node, inputs, places),
            gaussian=all(pair.gaussian for pair in pairs),
        )

    def _places(self, count: int, more: int) -> tuple[Array, Array]:
        """Return the positions of tokens and of prepended tokens, over all sequences.

        Every sequence has ``count`` tokens, preceded by ``more`` tokens.
        """
        every = np.arange(self.sequences * (count + more)).reshape(self.sequences, -1)
        return every[:, more:].ravel(), every[:, :more].ravel()

    def _prefixed_means(
        self, node: Node, inputs: Sequence[TokenState], places: tuple[Array, Array]
    ) -> tuple[Any, Any]:
        """The channel means of a sequence with prepended tokens, as a column and a row."""
        means = [
            self.kernel.statistics.means(state.relations[Relation.FIRST_INPUT], node)[0]
            for state in inputs
        ]
        if all(map(is_zero, means)):
            return 0, 0
        chains = max(np.shape(mean)[0] if np.ndim(mean) > 2 else 1 for mean in means)
        column = np.zeros((chains, sum(map(len, places)), 1))
        for place, mean in zip(places, means, strict=True):
            column[:, place] = mean
        return column, np.swapaxes(column, -1, -2)

    @rule.register
    def _(self, op: P.Attend, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        self._check(op, node, inputs)
        rows, columns = (state.count or 1 for state in inputs[:2])
        if rows != columns and (op.masks or op.identity != 0):
            raise KcalcError(
                f"node {node!r} has a mask or adds the token itself, so it needs as many queries "
                f"as keys, but has {rows} queries and {columns} keys"
            )
        values = inputs[2].relations[Relation.FIRST_INPUT]
        means = [
            row_mean(op, node, self._constant(mean, node))
            for mean in self.kernel.statistics.means(values, node)
        ]
        made = self._read(op, node, inputs, (rows, columns))
        return self._state(node, made, rows, below=values.pairs, means=(means[0], means[1]))

    def _read(
        self, op: P.Attend, node: Node, inputs: Sequence[TokenState], counts: tuple[int, int]
    ) -> Array | Jet:
        """Return the covariance of the outputs of all tokens, using a formula if there is one."""
        queries, keys, values = map(self.joint, inputs)
        made = self._covariance_read(op, node, inputs, (queries, keys, values), counts)
        if self.scores:
            self.rows[node] = self._rows(op, node, (queries.value, keys.value), counts)
        return made

    def _covariance_read(
        self,
        op: P.Attend,
        node: Node,
        inputs: Sequence[TokenState],
        read: Sequence[Jet],
        counts: tuple[int, int],
    ) -> Array | Jet:
        queries, keys, values = read
        if is_tied(inputs):
            self.kernel.note(node, TIED, "convention")
            return tied(op, queries.value, values, self.sequences)
        if self.by_class_token(op):
            made = attended(op, (queries, keys, values), self.sequences)
            if made is not None:
                self.kernel.note(node, assumed_of(op, None), "convention")
                return made
        self.kernel.note(node, assumed_of(op, op.sampled_width), "convention")
        if exact_mask(op) and not self.tangent:
            made = masked(op, queries.value, keys.value, values.value, self.sequences)
            if made is not None:
                return made[None]
        if closed_form(op, False):
            factors = self.sequences, float(factor(op))
            return linear_in_scores(op, queries, keys, values, *factors)
        self._check_scores(op, node, queries.value, keys.value)
        if op.alibi and op.heads is None:
            self.kernel.note(node, SLOPES, "convention")
        self.layers[node] = len(self.layers) + 1
        wide = [
            [
                np.broadcast_to(part, (len(self.draws.chains), *part.shape[1:]))
                for part in jet.coefficients
            ]
            for jet in (queries, keys, values)
        ]
        found = []
        for place, chain in enumerate(self.draws.chains):
            read = [Jet(tuple(part[place] for part in parts)) for parts in wide]
            found.append(self._attended(op, node, read, counts, chain))
        return Jet(tuple(map(np.stack, zip(*(jet.coefficients for jet in found), strict=True))))

    def _rows(
        self, op: P.Attend, node: Node, covariances: tuple[Array, Array], counts: tuple[int, int]
    ) -> tuple[Array, Array]:
        """Return (variance of scores, entropy of rows) of the first sequence, per chain."""
        found = []
        for place, chain in enumerate(self.draws.chains):
            queries, keys = (
                one[min(place, len(one) - 1), :count, :count]
                for one, count in zip(covariances, counts, strict=True)
            )
            entropies = self.entropies.get((node, chain))
            if entropies is None:  # a formula was used, and nothing was drawn
                rng = np.random.default_rng((self.draws.seed, len(self.rows), chain, ENTROPIES))
                scores = _Scores(op, queries, keys, 1, *counts)
                entropies = [
                    row_entropies(op, weights_of(op, scores.drawn(rng, 1)[0][:, 0], np))
                    for _ in range(self.draws.count)
                ]
            found.append((score_variance(op, queries, keys), np.mean(np.concatenate(entropies))))
        variances, entropies = np.array(found).T
        return variances, entropies

    def by_class_token(self, op: P.Attend) -> bool:
        """Whether the exact rules after a class token apply to an attention layer."""
        return self.exact and self.class_token and exact_class_token(op)

    @staticmethod
    def _constant(mean: Any, node: Node) -> Any:
        """Return a mean that all tokens share, per chain.

        Raises: KcalcError if the means differ.
        """
        if np.ndim(mean) < 2:
            return mean
        least, most = (f(mean, axis=(-2, -1), keepdims=True) for f in (np.min, np.max))
        if (most - least > 1e-13 * np.abs(most)).any():
            raise KcalcError(
                f"node {node!r} reads values whose channel means differ between tokens; put an "
                f"Affine layer before the values"
            )
        return most

    def _attended(
        self, op: P.Attend, node: Node, read: Sequence[Jet], counts: tuple[int, int], chain: int
    ) -> Jet:
        """Return the mean of ``A V A^T`` over the draws of one chain, with its tangent kernel."""
        (queries, keys, values), (rows, columns), n = read, counts, self.sequences
        drops = None
        if isinstance(self.part, Tangent):
            ntk, sigma = self.part.fan_in is None, 0.0 if op.relative is None else op.relative[0]
            biases = sigma**2 if ntk else 1.0
            drops = Blocks(op, float(factor(op)), queries, keys, values, n, biases)
        apart = values.value.reshape(n, columns, n, columns).swapaxes(1, 2)
        total = np.zeros((n, n, rows, rows))
        first = np.zeros_like(total) if self.tangent else total
        parts = (total, first) if self.tangent else (total,)
        for drawn in self.drawn(op, node, (queries.value, keys.value), counts, chain):
            for one, two in combinations_with_replacement(range(n), 2):
                read_by = drawn.weights[:, one] @ apart[one, two]
                total[one, two] += np.matmul(read_by, drawn.weights[:, two].swapaxes(1, 2)).sum(0)
                if drops is not None:
                    first[one, two] += drops.tangent(
                        one, two, drawn.weights, drawn.plain, drawn.grams
                    )
            if self.scores:
                own = row_entropies(op, drawn.plain[:, 0])
                self.entropies.setdefault((node, chain), []).append(own)
            self.tick(len(drawn.weights))
        for one, two in combinations(range(n), 2):  # covariances are symmetric
            for part in parts:
                part[two, one] = part[one, two].T
        draws = self.draws.count
        return Jet(tuple(part.swapaxes(1, 2).reshape(n * rows, n * rows) / draws for part in parts))

    def layer(self, node: Node) -> int:
        """The index of a node's sampled attention; 0 if its values were not sampled."""
        return self.layers.get(node, 0)

    def drawn(
        self,
        op: P.Attend,
        node: Node,
        covariances: tuple[Array, Array],
        counts: tuple[int, int],
        chain: int,
    ) -> Iterator[Drawn]:
        """The draws of a node's attention in one chain, the same at every call.

        ``covariances``: the covariances of queries and of keys, each (positions, positions);
        ``counts``: the numbers of rows and columns.
        """
        self.sampled, key = True, (node, chain)
        if key in self.drawn_before:
            yield from self.drawn_before[key]
            return
        made = list[Drawn]()
        for found in self._drawn(op, node, covariances, counts, chain):
            if self.keeps:
                made.append(found)
            yield found
        if made:
            self.drawn_before[key] = made

    def _drawn(
        self,
        op: P.Attend,
        node: Node,
        covariances: tuple[Array, Array],
        counts: tuple[int, int],
        chain: int,
    ) -> Iterator[Drawn]:
        rng = np.random.default_rng((self.draws.seed, self.layer(node), chain))
        (rows, columns), n, draws = counts, self.sequences, self.draws.count
        scores = _Scores(op, *covariances, n, rows, columns)
        most = max(1, NUMBERS // (n * rows * columns))
        for start in range(0, draws, most):
            drawn, grams = scores.drawn(rng, min(most, draws - start))
            plain = weights_of(op, drawn, np)
            weights = plain
            if op.centre != 0:
                weights = plain - float(op.centre) * mean_over_visible(op, rows, columns)
            if op.identity != 0:
                weights = weights + float(op.identity) * np.eye(rows)
            yield Drawn(weights, plain, grams)

    def _check_scores(self, op: P.Attend, node: Node, queries: Array, keys: Array) -> None:
        """Reject scores that overflow."""
        largest = (
            np.diagonal(queries, axis1=-2, axis2=-1).max()
            * np.diagonal(keys, axis1=-2, axis2=-1).max()
            * float(factor(op))
        )
        if not largest <= LARGEST_DRAWN:
            raise KcalcError(
                f"the attention scores of node {node!r} have variance {largest:.3g}, which is "
                "too large; lower sigma_w of the Affine layers for queries and keys, or put a "
                "norm before them"
            )

    def _check(self, op: P.Attend, node: Node, inputs: Sequence[TokenState]) -> None:
        if is_tied(inputs):
            return check_tied(op, node)
        check_reads(op, node, inputs)
        if op.scale == "linear" and (op.rotary or op.biased or op.normaliser != "softmax"):
            raise KcalcError(
                f"node {node!r}: scores divided by key_width vanish for wide heads; remove "
                "rotary, ALiBi and relative, or use scale='sqrt'"
            )
        if op.rotary is not None and op.key_width is None:
            raise KcalcError(
                f"node {node!r} rotates queries and keys (rotary), so its angles depend on "
                "key_width; pass key_width, the number of channels per head"
            )

    @rule.register
    def _(self, op: P.Window, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        """Average the tokens of a sequence, or multiply them by a matrix."""
        (below,) = inputs
        mixing = mixing_of(op, node, below.count or 1)
        if mixing is None:
            return below
        pairs = below.relations[Relation.FIRST_INPUT].pairs
        return self._state(
            node,
            mixed(np.kron(np.eye(self.sequences), mixing), self.joint(below)),
            None if getattr(op, "matrix", None) is None else len(mixing),
            below=pairs,
            means=self._means(below, node, mixing),
            gaussian=len(pairs) == 1 and pairs[0].gaussian,
        )

    def _means(self, below: TokenState, node: Node, mixing: Array) -> tuple[Any, Any]:
        """The channel means of sums over tokens, as a column and a row."""
        one, two = self.kernel.statistics.means(below.relations[Relation.FIRST_INPUT], node)
        if is_zero(one) and is_zero(two):
            return 0, 0
        whole = np.kron(np.eye(self.sequences), mixing)
        column = np.broadcast_to(one, (*np.shape(one)[:-2], whole.shape[1], 1))
        made = whole @ column
        return made, np.swapaxes(made, -1, -2)

    @rule.register
    def _(self, op: P.Reshape, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        """Turn tokens into channels, whose covariance is the mean over equal positions."""
        (below,) = inputs
        count = below.count or 1
        shape = (-1, self.sequences, count, self.sequences, count)
        parts = (
            np.einsum("xsata->xst", part.reshape(shape)) / count
            for part in self.joint(below).coefficients
        )
        pairs, mean = below.relations[Relation.FIRST_INPUT].pairs, np.full((1, count), 1 / count)
        means = self._means(below, node, mean)
        return self._state(node, Jet(tuple(parts)), None, below=pairs, means=means)


def mixing_of(op: P.Window, node: Node, count: int) -> Array | None:
    """The matrix that a primitive applies to the tokens of a sequence.

    The result is None if the primitive leaves the tokens unchanged. Raises: KcalcError for windows
    of tokens.
    """
    matrix = getattr(op, "matrix", None)
    if matrix is not None:
        return token_matrix(matrix, node, count)
    if not op.mixes:
        return None
    if not isinstance(op, P.Blend) or op.weighted or op.window is not None:
        raise KcalcError(
            f"node {node!r} ({op.kind}) pools windows of tokens, which is not supported; use the "
            "mean over all tokens, L.Pool('mean')"
        )
    return np.full((1, count), 1 / count)


class Drawn(NamedTuple):
    """Draws of one attention layer, as arrays (draws, sequences, rows, keys).

    ``weights``: the weights applied to the values; ``plain``: the part of these weights that
    depends on the scores; ``grams``: the queries and keys, if they were drawn.
    """

    weights: Array
    plain: Array
    grams: Grams


class _Scores:
    """Draws of attention scores, masked, per sequence."""

    def __init__(
        self, op: P.Attend, queries: Array, keys: Array, sequences: int, rows: int, columns: int
    ) -> None:
        self.op, self.sequences, self.rows, self.columns = op, sequences, rows, columns
        scale = float(factor(op))
        right = root(keys)
        left = right if np.array_equal(queries, keys) else root(queries)
        self.left, self.right = left * math.sqrt(scale), right
        self.bias = np.where(visible(op, rows, columns), 0.0, -np.inf)
        self.turns = (
            None
            if op.rotary is None
            else turns(float(op.rotary), op.key_width or 2, max(rows, columns))
        )

    def drawn(self, rng: np.random.Generator, draws: int) -> tuple[Array, Grams]:
        """Return the scores of one head per draw, with the queries and keys if they were drawn.

        The scores have shape (draws, sequences, rows, columns).
        """
        grams: Grams = None
        op, one, two, n = self.op, self.left.shape[0], self.right.shape[0], self.sequences
        if op.sampled_width is None:
            normal = rng.standard_normal((draws, one, two))
            left, right = (x.reshape(n, -1, x.shape[-1]) for x in (self.left, self.right))
            scores = np.stack([left[k] @ normal @ right[k].T for k in range(n)], axis=1)
        else:
            q, k = (
                root @ rng.standard_normal((draws, len(root), op.sampled_width))
                for root in (self.left, self.right)
            )
            q, k = q.reshape(draws, n, self.rows, -1), k.reshape(draws, n, self.columns, -1)
            if self.turns is not None:
                q, k = (turned(x, self.turns[: x.shape[2]]) for x in (q, k))
            scores = q @ k.swapaxes(-1, -2) / math.sqrt(op.sampled_width)
            grams = (q, k)
        scores = scores + self.bias
        if op.relative is not None:
            table = op.relative[0] * rng.standard_normal((draws, op.relative[1]))
            scores = scores + table[:, None, distance_buckets(op, self.rows, self.columns)]
        if not op.alibi:
            return scores, grams
        slopes = alibi_slopes(op.heads or ALIBI_HEADS)
        slopes = slopes[rng.integers(len(slopes), size=(draws, 1, 1, 1))]
        return scores - slopes * np.abs(
            np.arange(self.rows)[:, None] - np.arange(self.columns)
        ), grams


def score_variance(op: P.Attend, queries: Array, keys: Array) -> float:
    """The expected variance of a row's scores about their mean.

    The variance is averaged over the rows that see several tokens. ``queries`` and ``keys`` are
    covariances over tokens.
    """
    rows, columns = len(queries), len(keys)
    apart = np.arange(columns)[:, None] - np.arange(columns)
    if op.rotary is not None:
        speeds = turns(float(op.rotary), op.key_width or 2, 2)[1]
        keys = keys * np.cos(speeds * apart[..., None]).mean(axis=-1)
    sees = visible(op, rows, columns).astype(float)
    count = sees.sum(axis=1)
    own = sees @ np.diagonal(keys) - ((sees @ keys) * sees).sum(axis=1) / count
    spread = float(factor(op)) * np.diagonal(queries) * own
    if op.relative is not None:
        sizes = (sees[:, :, None] * _buckets(op, rows, columns)).sum(axis=1)
        spread = spread + op.relative[0] ** 2 * (count - np.square(sizes).sum(axis=1) / count)
    if op.alibi:
        far = np.abs(np.arange(rows)[:, None] - np.arange(columns)) * sees
        squares = np.square(far).sum(axis=1) - far.sum(axis=1) ** 2 / count
        spread = spread + np.square(alibi_slopes(op.heads or ALIBI_HEADS)).mean() * squares
    several = count > 1
    return float((spread[several] / (count[several] - 1)).mean()) if several.any() else np.nan


def _buckets(op: P.Attend, rows: int, columns: int) -> Array:
    """Return a mask (rows, columns, buckets) that marks the bias bucket used by each score."""
    assert op.relative is not None
    return distance_buckets(op, rows, columns)[..., None] == np.arange(op.relative[1])


def row_entropies(op: P.Attend, weights: Array) -> Array:
    """The mean entropy of the rows that see several tokens, for weights (draws, rows, keys)."""
    several = visible(op, *weights.shape[-2:]).sum(axis=1) > 1
    weights = weights[:, several]
    bits = weights * np.log(np.where(weights > 0, weights, 1.0))
    return -bits.sum(axis=-1).mean(axis=-1)


def _blocks(one: Array, two: Array, places: tuple[Array, Array]) -> Array:
    """Return block-diagonal matrices for two independent groups of positions."""
    total = sum(map(len, places))
    whole = np.zeros((max(len(one), len(two)), total, total))
    for part, place in zip((one, two), places, strict=True):
        whole[:, place[:, None], place] = part
    return whole


def _waves(apart: Array, width: int = 512) -> Array:
    """The cosine between two sinusoidal position vectors.

    The cosine is the mean of ``cos(d theta_f)`` with ``theta_f = 10000^(-2 f / width)``.
    """
    angles = 10000.0 ** (-2.0 * np.arange(width // 2) / width)
    by_distance = np.cos(np.arange(len(apart))[:, None] * angles).mean(axis=1)
    return by_distance[apart]


def root(covariance: Array) -> Array:
    """Return a square root of a matrix that is positive semidefinite up to rounding errors."""
    lifted = np.array(covariance)
    lifted.flat[:: len(lifted) + 1] += ALMOST_ZERO * np.trace(covariance) / len(covariance)
    try:  # SciPy's function is twice as fast as NumPy's
        return cholesky(lifted, lower=True, overwrite_a=True, check_finite=False)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return vectors * np.sqrt(np.maximum(values, 0.0))
