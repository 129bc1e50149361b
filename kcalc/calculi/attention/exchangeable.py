"""Kernel maps over exchangeable tokens: exact attention for any number of tokens.

All tokens of a sequence have the same q value and any two have the same cosine:
``K_st = p + (q - p)[s = t]``. Two sequences have one cosine at equal positions and one at different
positions. Every layer except attention acts on these pairs of tokens separately: the state of a
feature map contains one state of the kernel calculus for each *relation* between two tokens.

    "one"    two tokens of the first sequence       "same"   equal positions of two sequences
    "two"    two tokens of the second sequence      "other"  different positions of two sequences

Attention combines the relations: ``O_ik = V_d R + (V_s - V_d) X``. V is the covariance of the
values, ``_s`` at equal positions and ``_d`` at different positions. X and R are sums over the
weights of rows i and k (:mod:`kcalc.calculi.attention.softmax_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import singledispatchmethod
from typing import Any, NamedTuple

import numpy as np
import sympy as sp

from ...fields import NUMPY
from ...fields.jets import Jet
from ...foundation.errors import FreshnessError, KcalcError
from ...network import primitives as P
from ...network.compose import refuse_dropping
from ...network.masks import words
from ..atoms import Atom, Pair, disjoint
from ..channels import Channels
from ..second_moments import Moments, is_zero
from .softmax_rows import Scores, Sums, rows_of, value

Number = Any
Node = Hashable
ANY = 0  # token count of states that are the same in every sequence
ONE_BY_ONE = (
    "after which tokens are no longer exchangeable; use kc.node_values(net, tokens=...), "
    "kc.gradients, kc.depth_profile, kc.report, or kc.ntk with an array of tokens, which follow "
    "tokens one by one and sample the attention. Maps need a network without"
)
HEADS = (
    "many heads, with wide queries and keys: scores are Gaussian, and the mean over heads is an "
    "expectation"
)
LARGE = (
    "many heads, with key_width = {} assumed large: scores are Gaussian, and the mean over heads "
    "is an expectation"
)
NARROW = "many heads with key_width = {}: the mean over heads is an expectation"
PATCHES = "tokens are the patches into which a layer with stride {} cuts the input"
LINEAR = (
    "scores are q . k / key_width of independent queries and keys, which vanish for wide heads: "
    "all tokens get equal weights"
)


class Relation(StrEnum):
    """The relation between two tokens; see the docstring of this module."""

    FIRST_INPUT = "one"
    SECOND_INPUT = "two"
    SAME_TOKEN = "same"
    OTHER_TOKEN = "other"


@dataclass(frozen=True)
class TokenState:
    """The state of a feature map: one kernel state for each relation between two tokens.

    ``count`` is the number of tokens, None after pooling.
    """

    relations: Mapping[str, Channels]
    count: int | None


def unlike(op: P.Primitive | None, tokens: int) -> str:
    """Describe how a primitive distinguishes the tokens of a sequence.

    The text is empty if the primitive does not distinguish them. ``tokens`` is the number of
    tokens.
    """
    if isinstance(op, P.Positions):
        return "sinusoidal positions" if op.form == "sinusoidal" else ""
    if isinstance(op, P.Prefix):
        return "a class token"
    if not isinstance(op, P.Attend):
        return ""
    places = (
        ("rotary embeddings", op.rotary),
        ("ALiBi", op.alibi),
        ("relative position biases", op.relative is not None),
    )
    return " and ".join([*words(op.masks, tokens), *(name for name, there in places if there)])


def row_mean(op: P.Attend, node: Node, mean: Number) -> Number:
    """Return the channel mean of the output, if the values of all tokens share a channel mean.

    A row of softmax weights sums to one. Raises: KcalcError for other weights.
    """
    if is_zero(mean):
        return 0
    if op.normaliser != "softmax" or op.sink:
        raise KcalcError(
            f"node {node!r} reads values whose channel mean is not 0, and the sum of its "
            "attention weights differs between heads; put an Affine layer before the values"
        )
    return mean * (1 + float(op.identity) - float(op.centre))


def assumed_of(op: P.Attend, width: int | None) -> str:
    """Describe the assumptions that the rules make about an attention layer.

    ``width`` is the number of channels of queries and keys; None means that it is large.
    """
    if width is not None:
        return NARROW.format(width)
    if op.scale == "linear":
        return LINEAR
    return HEADS if op.key_width is None else LARGE.format(op.key_width)


def by_relation(
    kernels: Mapping[str, Any], op: P.Primitive, node: Node, inputs: Sequence[TokenState]
) -> TokenState:
    """Return the output of a primitive that acts on each token separately.

    Raises: KcalcError if the inputs have different numbers of tokens, or if a layer with a stride
    does not read a network input.
    """
    refuse_dropping("kernel maps over tokens", op, node)
    counts = {state.count for state in inputs if state.count != ANY} or {ANY}
    if len(counts) > 1:
        listed = ", ".join(
            "pooled" if n is None else f"{n} tokens" for n in sorted(counts, key=lambda n: n or 0)
        )
        raise KcalcError(
            f"node {node!r} reads feature maps with different numbers of tokens ({listed})"
        )
    if isinstance(op, P.Fresh) and op.steps and counts - {None, ANY}:
        if not all(
            t.atom.raw
            for pair in inputs[0].relations[Relation.FIRST_INPUT].pairs
            for t in pair.terms
        ):
            raise KcalcError(
                f"node {node!r} skips tokens (stride {op.stride}), so its output has fewer "
                "tokens; use stride=1"
            )
        note = getattr(kernels[Relation.FIRST_INPUT], "kernel", kernels[Relation.FIRST_INPUT]).note
        note(node, PATCHES.format(op.stride), "convention")
    made = {
        name: kernel.rule(op, node, [s.relations[name] for s in inputs])
        for name, kernel in kernels.items()
    }
    return TokenState(made, counts.pop())


def check_reads(op: P.Attend, node: Node, inputs: Sequence[TokenState]) -> None:
    """Check that attention reads tokens, and Gaussian queries and keys.

    Queries and keys must have separate weights.

    Raises: KcalcError, FreshnessError naming the node.
    """
    queries, keys, values = inputs
    if keys.count is None or values.count is None:
        raise KcalcError(
            f"node {node!r} attends to a feature map whose tokens were pooled; move the "
            "attention before the pooling"
        )
    if keys.count != values.count:
        raise KcalcError(
            f"node {node!r} has {keys.count} keys and {values.count} values; use one sequence for "
            "both"
        )
    if op.identity != 0 and queries.count != keys.count:
        raise KcalcError(
            f"node {node!r} adds each token to its output, but has {queries.count} queries and "
            f"{keys.count} keys; use one sequence for both"
        )
    pairs = [state.relations[Relation.FIRST_INPUT].pairs for state in inputs]
    for what, group in zip(("queries", "keys"), pairs, strict=False):
        if not all(pair.gaussian for pair in group):
            raise FreshnessError(
                f"the {what} of node {node!r} are not a fresh Gaussian feature map; put an "
                "Affine layer before them"
            )
    if not disjoint([joined(group) for group in pairs]):
        raise FreshnessError(
            f"node {node!r}: queries, keys and values share weights; use a separate Affine layer "
            "for each of them"
        )


def check_length(op: P.Positions, node: Node, tokens: int, added: int = 0) -> None:
    """Raise KcalcError if there are more tokens than the table of positions has rows.

    ``added`` of the tokens are not in the input, such as class tokens.
    """
    if op.length is not None and not isinstance(op.length, sp.Basic) and tokens > op.length:
        most = op.length - added
        raise KcalcError(
            f"node {node!r} has {op.length} positions, but reads {tokens} tokens; pass at most "
            f"{most} (tokens={most}), or use a larger length"
        )


class Exchangeable:
    """The kernel calculus over exchangeable tokens.

    It applies the rules of ``kernels``, one per relation, and adds rules for layers that mix
    tokens.

    ``kernels``: {relation: a calculus of kernel maps or of tangent kernels}. Without "two", both
    sequences have the same values.
    """

    def __init__(self, kernels: Mapping[str, Any]) -> None:
        self.parts = dict(kernels)
        self.plain = {name: getattr(kernel, "kernel", kernel) for name, kernel in kernels.items()}
        self.uniform = Relation.SECOND_INPUT not in kernels
        self.main = Relation.SAME_TOKEN if Relation.SAME_TOKEN in kernels else Relation.FIRST_INPUT
        self.field, self.note = (
            self.plain[Relation.FIRST_INPUT].field,
            self.plain[Relation.FIRST_INPUT].note,
        )

    @property
    def notes(self) -> dict[Any, Any]:
        """The assumptions made so far."""
        return {key: note for kernel in self.plain.values() for key, note in kernel.notes.items()}

    def start(
        self, node: Node, moments: Mapping[str, tuple[Number, Number, Number]], count: int
    ) -> TokenState:
        """Return the state of an Input node from {relation: (q1, q2, gap)}."""
        self._longest = max(count, getattr(self, "_longest", 1))
        return TokenState(
            {name: kernel.start(node, *moments[name]) for name, kernel in self.parts.items()}, count
        )

    def whole(self, state: TokenState) -> tuple[Number, Number, Number]:
        """Return (q1, q2, gap) at equal positions of two sequences.

        For one sequence, the values describe two of its tokens.
        """
        return self.parts[self.main].whole(state.relations[self.main])

    def token_cosines(self, state: TokenState) -> tuple[Number, Number]:
        """Return the cosine between two tokens, for the first and for the second sequence."""
        one, two = (
            1 - self.parts[name].whole(state.relations[name])[2].value
            for name in (
                Relation.FIRST_INPUT,
                Relation.FIRST_INPUT if self.uniform else Relation.SECOND_INPUT,
            )
        )
        return one, two

    def kernels(self, state: TokenState) -> tuple[Number, Number]:
        """Return (NNGP, NTK) at equal positions."""
        return self.parts[self.main].kernels(state.relations[self.main])

    @singledispatchmethod
    def rule(self, op: P.Primitive, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        """Return the output state of a primitive, with one kernel calculus for each relation.

        Raises: the errors of the kernel calculus.
        """
        return by_relation(self.parts, op, node, inputs)

    @rule.register
    def _(self, op: P.Attend, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        """Attention over tokens that stay exchangeable.

        Raises: KcalcError for causal masks and positions in scores, which distinguish tokens;
        FreshnessError for shared weights.
        """
        queries, keys, values_read = inputs
        self._check(op, node, inputs)
        self.note(node, assumed_of(op, op.key_width if op.wide is False else None), "convention")
        tokens = keys.count or 1
        read = {name: self._read(name, inputs) for name in self.parts}
        rows = {name: rows_of(op, tokens, self.plain[name], node) for name in self.parts}
        owns = {
            name: rows[name].own(read[name][0])
            for name in (Relation.FIRST_INPUT, Relation.SECOND_INPUT)
            if name in self.parts
        }
        sizes = {name: value(read[name][1].own(own)) for name, own in owns.items()}
        made = {}
        for name, (scores, values) in read.items():
            first = Relation.SECOND_INPUT if name == Relation.SECOND_INPUT else Relation.FIRST_INPUT
            q1, q2 = (
                sizes[first],
                sizes.get(
                    Relation.FIRST_INPUT if name == Relation.FIRST_INPUT else Relation.SECOND_INPUT,
                    sizes[Relation.FIRST_INPUT],
                ),
            )
            if rows[name].overlaps.rounded and (name in owns or self.uniform):
                gap = (
                    values.drop(owns[first], rows[name].drop(scores, name == Relation.SAME_TOKEN))
                    / q1
                )
            else:
                geometric = self.plain[name].algebra.moments.geometric
                gap = 1 - values.crossed(
                    rows[name].crossed(scores, name == Relation.SAME_TOKEN), geometric
                ) / geometric(q1, q2)
            made[name] = self._emitted(
                op,
                node,
                name,
                (q1, q2, gap if isinstance(gap, Jet) else Jet((gap,))),
                values_read.relations[name],
            )
        return TokenState(made, queries.count)

    def _read(self, name: str, inputs: Sequence[TokenState]) -> tuple[Scores, Values]:
        """Return the inputs of attention for a relation between two tokens."""
        queries, keys, values = inputs
        first, second = (
            (name, name)
            if name in (Relation.FIRST_INPUT, Relation.SECOND_INPUT)
            else (
                Relation.FIRST_INPUT,
                Relation.FIRST_INPUT if self.uniform else Relation.SECOND_INPUT,
            )
        )

        def sizes(state: TokenState) -> tuple[Number, Number]:
            return tuple(self.plain[one].whole(state.relations[one])[0] for one in (first, second))

        def apart(state: TokenState) -> tuple[Number, Number]:
            return tuple(
                value(self.plain[one].whole(state.relations[one])[2]) for one in (first, second)
            )

        def gaps(state: TokenState) -> tuple[Number, Number]:
            if name in (Relation.FIRST_INPUT, Relation.SECOND_INPUT):
                return 0, apart(state)[0]
            return tuple(
                self.plain[one].whole(state.relations[one])[2]
                for one in (Relation.SAME_TOKEN, Relation.OTHER_TOKEN)
            )

        query_gap = self.plain[name].whole(queries.relations[name])[2]
        scores = Scores(*sizes(queries), *sizes(keys), value(query_gap), *gaps(keys), *apart(keys))
        return scores, Values(*sizes(values), *gaps(values), apart(values)[0])

    def _emitted(
        self,
        op: P.Attend,
        node: Node,
        name: str,
        made: tuple[Number, Number, Jet],
        values: Channels,
    ) -> Channels:
        kernel = self.plain[name]
        kernel.statistics.check(kernel.field, made[0], node)
        means = [row_mean(op, node, m) for m in kernel.statistics.means(values, node)]
        return Channels.one(
            Pair.of(
                Atom(
                    node,
                    Moments(*made, *means),
                    kernel.ledger.bit() | joined(values.pairs),
                    gaussian=False,
                    mixed=True,
                )
            )
        )

    def _check(self, op: P.Attend, node: Node, inputs: Sequence[TokenState]) -> None:
        if apart := unlike(op, max(state.count or 1 for state in inputs[:2])):
            raise KcalcError(f"node {node!r} attends with {apart}, {ONE_BY_ONE} {apart}")
        check_reads(op, node, inputs)

    @rule.register
    def _(self, op: P.Positions | P.Prefix, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        """Return the state of learned vectors, which are orthogonal at different positions.

        At equal positions they are the same. Raises: KcalcError for sinusoidal positions and class
        tokens, which distinguish tokens.
        """
        if apart := unlike(op, self._longest):
            raise KcalcError(f"node {node!r} adds {apart}, {ONE_BY_ONE} {apart}")
        assert isinstance(op, P.Positions)
        check_length(op, node, self._longest)
        made = {
            name: kernel.position_state(node, op.form == "learned" and name != Relation.SAME_TOKEN)
            for name, kernel in self.plain.items()
        }
        return TokenState(made, ANY)

    @rule.register
    def _(self, op: P.Window, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        """Return a weighted sum of all tokens, such as their mean or a single token.

        Raises: KcalcError for other windows and matrices.
        """
        (below,) = inputs
        if not op.mixes and getattr(op, "matrix", None) is None:
            return below
        if below.count is None:
            raise KcalcError(
                f"node {node!r} ({op.kind}) mixes tokens that were already pooled; remove this node"
            )
        return self._pooled(below, node, Weights.of(op, node, below.count, self.field))

    def _pooled(self, below: TokenState, node: Node, weights: Weights) -> TokenState:
        """Return the state of a weighted sum of tokens, with covariance ``A K_s + (B - A) K_d``.

        A is the sum of the squared weights, and B is the square of their sum. K_s and K_d are the
        covariances at equal and at different positions.
        """
        squares, rest, whole = weights.squares, weights.rest, weights.total**2
        read = {name: self.plain[name].whole(below.relations[name]) for name in self.parts}
        sizes: dict[str, Any] = {
            name: value(read[name][0] * (whole - read[name][2] * rest))
            for name in (Relation.FIRST_INPUT, Relation.SECOND_INPUT)
            if name in read
        }
        one, two = (
            sizes[Relation.FIRST_INPUT],
            sizes.get(Relation.SECOND_INPUT, sizes[Relation.FIRST_INPUT]),
        )
        made = {}
        for name, kernel in self.plain.items():
            q1, q2 = (sizes[name],) * 2 if name in sizes else (one, two)
            if name in sizes:
                gap = read[name][2] * 0
            elif self.uniform:
                gap = (
                    read[Relation.SAME_TOKEN][2] * squares
                    + (read[Relation.OTHER_TOKEN][2] - read[Relation.FIRST_INPUT][2].value) * rest
                ) * (read[Relation.FIRST_INPUT][0] / one)
            else:
                geometric = kernel.algebra.moments.geometric
                joint = (
                    whole
                    - read[Relation.SAME_TOKEN][2] * squares
                    - read[Relation.OTHER_TOKEN][2] * rest
                )
                gap = 1 - joint * (geometric(*read[Relation.SAME_TOKEN][:2]) / geometric(one, two))
            pairs = below.relations[name].pairs
            means = (
                mean * weights.total
                for mean in kernel.statistics.means(below.relations[name], node)
            )
            gaussian = len(pairs) == 1 and pairs[0].gaussian
            atom = Atom(node, Moments(q1, q2, gap, *means), joined(pairs), gaussian, mixed=True)
            made[name] = Channels.one(Pair.of(atom))
        return TokenState(made, None)

    @rule.register
    def _(self, op: P.Reshape, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        """Turn tokens into channels, so that only equal positions remain."""
        (below,) = inputs
        if below.count is None:
            return below

        def alone(pair: Pair) -> Pair:
            return replace(pair, moments=replace(pair.moments, gap=pair.moments.gap * 0))

        made = {
            n: s.map(alone)
            if n in (Relation.FIRST_INPUT, Relation.SECOND_INPUT)
            else below.relations[Relation.SAME_TOKEN]
            for n, s in below.relations.items()
        }
        return TokenState(made, None)


class Weights(NamedTuple):
    """Statistics of the weights in a sum of exchangeable tokens.

    The statistics are the sum of the squares, the sum of the products of different tokens' weights,
    and the sum of the weights.
    """

    squares: Number
    rest: Number
    total: Number

    @classmethod
    def of(cls, op: P.Window, node: Node, tokens: int, field: Any = NUMPY) -> Weights:
        """Return the weights of a primitive that turns ``tokens`` tokens into one feature map.

        Raises: KcalcError for any other primitive, and for a token that does not exist.
        """
        matrix = getattr(op, "matrix", None)
        pools = isinstance(op, P.Blend) and op.window is None and not op.weighted
        if not pools or (matrix is not None and len(matrix) != 1):
            raise KcalcError(
                f"node {node!r} ({op.kind}) mixes tokens in a way other than attention or one "
                "sum over all tokens; follow the tokens one by one with kc.node_values(net, "
                "tokens=..., sampling=kc.Sampling())"
            )
        if matrix is None:
            share = field.number(1) / tokens
            return cls(share, 1 - share, 1)
        row = [field.number(w) for w in token_matrix(matrix, node, tokens)[0].tolist() if w]
        squares, total = sum(w * w for w in row), sum(row)
        return cls(squares, total**2 - squares, total)


def token_matrix(matrix: Sequence[Sequence[float]], node: Node, tokens: int) -> np.ndarray:
    """Return the matrix of a token mixer over ``tokens`` tokens.

    A matrix that selects a single token, such as the first, may be used for any number of tokens
    large enough to include that token.

    Raises: KcalcError if the matrix does not have ``tokens`` columns.
    """
    array = np.array(matrix)
    (places,) = np.nonzero(array.any(axis=0))
    if len(array) == 1 and len(places) == 1:
        if places[0] >= tokens:
            raise KcalcError(
                f"node {node!r} selects token {places[0]} (counted from 0), but there are only "
                f"{tokens} tokens; pass tokens={places[0] + 1} or more"
            )
        taken = np.zeros((1, tokens))
        taken[0, places[0]] = array[0, places[0]]
        return taken
    if array.shape[1] != tokens:
        raise KcalcError(
            f"node {node!r} mixes {array.shape[1]} tokens, but the sequence has {tokens}; pass "
            f"tokens={array.shape[1]}"
        )
    return array


class Values(NamedTuple):
    """Mean squares and gaps of the values of one or two sequences.

    The gaps are at equal positions, at different positions, and at different positions of the first
    sequence.

    Rows with sums X and R have ``O_ik = V_d R + (V_s - V_d) X``, where V_s and V_d are the
    covariances of the values at equal and at different positions.
    """

    v1: Number
    v2: Number
    same: Number
    other: Number
    apart: Number

    def own(self, rows: Sums) -> Number:
        """Return the mean square of the output for the tokens of the first sequence."""
        return self.v1 * ((1 - self.apart) * rows.sums + self.apart * rows.products)

    def drop(self, own: Sums, lost: Sums) -> Number:
        """Return ``O_ii - O_ik`` as a sum of small terms, for sequences with equal mean squares."""
        keys = self.other - self.same
        common = (1 - self.other) * lost.sums + (self.other - self.apart) * own.sums
        return self.v1 * (
            common + ((self.apart - self.other) + self.same) * own.products + keys * lost.products
        )

    def crossed(self, rows: Sums, geometric: Callable[[Number, Number], Number]) -> Number:
        """Return ``O_ik``, the covariance of the outputs of two tokens."""
        return geometric(self.v1, self.v2) * (
            (1 - self.other) * rows.sums + (self.other - self.same) * rows.products
        )


def joined(pairs: Sequence[Pair]) -> int:
    """Return the bit mask of all affine layers that the feature maps depend on."""
    mask = 0
    for pair in pairs:
        mask |= pair.support
    return mask
