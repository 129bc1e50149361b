"""Kernel maps over tokens that are alike: attention, exactly, at every number of tokens.

All tokens of a sequence have one q value and any two of them one cosine, ``K_st = p + (q - p)[s = t]``, and two sequences
have one cosine at equal places and one at different places. Every layer but attention acts on these pairs of tokens one
by one: the state of a feature map is one state of the kernel calculus per *relation* of two tokens.

    "one"    two tokens of the first sequence            "same"   equal places of the two sequences
    "two"    two tokens of the second sequence           "other"  different places of the two sequences

Attention joins them. With G, H, V the covariances of queries, keys and values and ``t^2 = G_ii (H_s - H_d)``

    q' = V_d + (V_s - V_d) S_self(T, t^2)        K'_ik = V_d + (V_s - V_d) S(T, t1^2, t2^2, G_ik (H_s - H_d))

where ``_s`` are equal places, ``_d`` different ones, and S is the overlap of softmax rows (:mod:`kcalc.gaussian.softmax`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatchmethod
from typing import Any

from ...fields.jets import Jet
from ...foundation.errors import FreshnessError, KcalcError
from ...network import primitives as P
from ..atoms import Atom, Pair, disjoint
from ..channels import Channels
from ..second_moments import Moments
from .overlaps import checked_variance, overlap, overlap_gap, self_overlap

Number = Any
Node = Hashable
ONE, TWO, SAME, OTHER = "one", "two", "same", "other"
ANY = 0  # tokens of what is the same in every sequence
FOLLOW = "kc.node_values(net, tokens=..., sampling=kc.Sampling())"
ONE_BY_ONE = (
    "after which tokens are no longer alike; kc.node_values(net, tokens=...) follows them one by one and samples the attention, "
    "or build the network without"
)
HEADS = "many heads, with wide queries and keys: scores are Gaussian, and the mean over heads is an expectation"
LINEAR = "scores are q . k / key_width of independent queries and keys, which vanish for wide heads: every token is read alike"


@dataclass(frozen=True)
class TokenState:
    """The state of a feature map: one of the kernel calculus per relation of two tokens; ``count``: tokens, None after pooling."""

    relations: Mapping[str, Channels]
    count: int | None


@dataclass(frozen=True)
class Shape:
    """What attention does to values besides softmax: ``diagonal`` on the token itself, ``spread`` on all, ``mean`` on their mean."""

    diagonal: Number
    spread: Number
    mean: Number

    @classmethod
    def of(cls, op: P.Attend, tokens: int, field: Any) -> Shape:
        """``a I + A - c 1 1^T / T``: ``a^2``, ``(2 a (1 - c) + c^2 - 2 c) / T`` and ``(a + 1 - c)^2``."""
        a, c = field.number(op.identity), field.number(op.centre)
        return cls(a * a, (2 * a * (1 - c) + c * c - 2 * c) / tokens, (a + 1 - c) ** 2)


def unlike(op: P.Primitive | None) -> str:
    """What in a primitive tells tokens apart, in words; empty where nothing does."""
    if isinstance(op, P.Positions):
        return "sinusoidal positions" if op.form == "sinusoidal" else ""
    if not isinstance(op, P.Attend):
        return ""
    return " and ".join(name for name, there in (("a causal mask", op.causal), ("rotary", op.rotary), ("ALiBi", op.alibi)) if there)


def by_relation(kernels: Mapping[str, Any], op: P.Primitive, node: Node, inputs: Sequence[TokenState]) -> TokenState:
    """What a primitive emits that acts on each token by itself. Raises: KcalcError for unequal numbers of tokens."""
    counts = {state.count for state in inputs if state.count != ANY} or {ANY}
    if len(counts) > 1:
        listed = ", ".join("pooled" if n is None else f"{n} tokens" for n in sorted(counts, key=lambda n: n or 0))
        raise KcalcError(f"node {node!r} reads feature maps of different numbers of tokens ({listed})")
    made = {name: kernel.rule(op, node, [s.relations[name] for s in inputs]) for name, kernel in kernels.items()}
    return TokenState(made, counts.pop())


def check_reads(op: P.Attend, node: Node, inputs: Sequence[TokenState]) -> None:
    """What attention reads: tokens, and queries and keys that are Gaussian with weights of their own.

    Raises: KcalcError, FreshnessError naming the node.
    """
    queries, keys, values = inputs
    if keys.count is None or values.count is None:
        raise KcalcError(f"node {node!r} attends to a feature map whose tokens were pooled; attend before the pooling")
    if keys.count != values.count:
        raise KcalcError(f"node {node!r} has {keys.count} keys and {values.count} values; take both from one sequence")
    if op.identity != 0 and queries.count != keys.count:
        raise KcalcError(f"node {node!r} adds each token to what it reads, but has {queries.count} queries and {keys.count} keys")
    pairs = [state.relations[ONE].pairs for state in inputs]
    for what, group in zip(("queries", "keys"), pairs, strict=False):
        if not all(pair.gaussian for pair in group):
            raise FreshnessError(f"node {node!r}: its {what} are no fresh Gaussian feature map; put an Affine layer before them")
    if not disjoint([_joined(group) for group in pairs]):
        raise FreshnessError(f"node {node!r}: queries, keys and values share weights; give each of them an Affine layer of its own")


class Exchangeable:
    """The calculus: the rules of ``kernels``, one per relation, and rules of its own where tokens meet.

    ``kernels``: {relation: a calculus of kernel maps or of tangent kernels}. Without "two" both sequences have the same numbers.
    """

    def __init__(self, kernels: Mapping[str, Any]) -> None:
        self.parts = dict(kernels)
        self.plain = {name: getattr(kernel, "kernel", kernel) for name, kernel in kernels.items()}
        self.uniform = TWO not in kernels
        self.main = SAME if SAME in kernels else ONE
        self.field, self.note = self.plain[ONE].field, self.plain[ONE].note

    @property
    def notes(self) -> dict[Any, Any]:
        """The assumptions made on the way."""
        return {key: note for kernel in self.plain.values() for key, note in kernel.notes.items()}

    def start(self, node: Node, moments: Mapping[str, tuple[Number, Number, Number]], count: int) -> TokenState:
        """The state of an Input node from {relation: (q1, q2, gap)}."""
        return TokenState({name: kernel.start(node, *moments[name]) for name, kernel in self.parts.items()}, count)

    def whole(self, state: TokenState) -> tuple[Number, Number, Number]:
        """(q1, q2, gap) of equal places of two sequences, or of two tokens where there is one sequence."""
        return self.parts[self.main].whole(state.relations[self.main])

    def token_cosines(self, state: TokenState) -> tuple[Number, Number]:
        """The cosine of two tokens of the first sequence, and of the second."""
        one, two = (1 - self.parts[name].whole(state.relations[name])[2].value for name in (ONE, ONE if self.uniform else TWO))
        return one, two

    def kernels(self, state: TokenState) -> tuple[Number, Number]:
        """(NNGP, NTK) at equal places."""
        return self.parts[self.main].kernels(state.relations[self.main])

    @singledispatchmethod
    def rule(self, op: P.Primitive, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        """The state a primitive emits: by the kernel calculus for every relation. Raises: as that does."""
        return by_relation(self.parts, op, node, inputs)

    @rule.register
    def _(self, op: P.Attend, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        """Raises: KcalcError for causal masks and positions in scores, which leave tokens unlike; FreshnessError for shared weights."""
        queries, keys, _ = inputs
        self._check(op, node, inputs)
        self.note(node, LINEAR if op.scale == "linear" else HEADS, "convention")
        shape = Shape.of(op, keys.count or 1, self.field)
        rows = {name: self._row(op, node, name, inputs, shape) for name in (ONE, TWO) if name in self.parts}
        made = {name: self._emitted(node, name, row.q, row.q, row.gap) for name, row in rows.items()}
        first, second = rows[ONE], rows.get(TWO, rows[ONE])
        for name, diagonal in ((SAME, shape.diagonal), (OTHER, 0)):
            if name in self.parts:
                gap = self._crossed(op, name, inputs, (first, second), shape, diagonal)
                made[name] = self._emitted(node, name, first.q, second.q, gap)
        return TokenState(made, queries.count)

    def _row(self, op: P.Attend, node: Node, name: str, inputs: Sequence[TokenState], shape: Shape) -> _Row:
        """What attention makes of two tokens of one sequence."""
        (g, _, g_gap), (h, _, h_gap), (v, _, v_gap) = (self.plain[name].whole(s.relations[name]) for s in inputs)
        tokens = inputs[1].count or 1
        variance = checked_variance(_value(factor(op) * g * h * h_gap), node)
        alone = self_overlap(tokens, variance)
        apart = v * v_gap
        q = _value(v * (1 - v_gap) * shape.mean + apart * (shape.diagonal + shape.spread + alone))
        gap = apart * (shape.diagonal + overlap_gap(tokens, variance, _value(variance * g_gap))) / q
        return _Row(variance, alone, q, gap if isinstance(gap, Jet) else Jet((gap,)))

    def _crossed(
        self, op: P.Attend, name: str, inputs: Sequence[TokenState], sequences: tuple[_Row, _Row], shape: Shape, diagonal: Number
    ) -> Jet:
        """The gap between a token of the first sequence and one of the second, at equal or different places."""
        kernel = self.plain[name]
        tokens = inputs[1].count or 1
        norms, same, other = [], [], []
        for state in inputs:
            q1, q2, gap = self.plain[SAME].whole(state.relations[SAME])
            norms.append(kernel.algebra.moments.geometric(q1, q2))
            same.append(gap)
            other.append(self.plain[OTHER].whole(state.relations[OTHER])[2])
        one, two = sequences
        g, h, v = norms
        query_gap = (same if name == SAME else other)[0]
        keys, values = other[1] - same[1], v * (other[2] - same[2])  # H_s - H_d over h, V_s - V_d
        if not self.uniform:
            covariance = factor(op) * h * g * (1 - query_gap) * keys
            rows = diagonal + shape.spread + overlap(tokens, one.variance, two.variance, covariance)
            joint = v * (1 - other[2]) * shape.mean + values * rows
            return 1 - joint / kernel.algebra.moments.geometric(one.q, two.q)
        own_keys, own_values = (self.plain[ONE].whole(s.relations[ONE])[2].value for s in inputs[1:])
        below = factor(op) * g * h * ((own_keys - other[1]) + same[1] + query_gap * keys)
        deficit = v * (other[2] - own_values) * shape.mean  # of E f1^2 over E f1 f2, in small terms
        deficit = deficit + v * ((own_values - other[2]) + same[2]) * (diagonal + shape.spread + one.alone)
        deficit = deficit + values * overlap_gap(tokens, one.variance, below) + v * own_values * (shape.diagonal - diagonal)
        return deficit / one.q

    def _emitted(self, node: Node, name: str, q1: Number, q2: Number, gap: Jet) -> Channels:
        kernel = self.plain[name]
        kernel.statistics.check(kernel.field, q1, node)
        moments = Moments(q1, q2, gap, 0, 0)
        return Channels.one(Pair.of(Atom(node, moments, kernel.ledger.bit(), gaussian=False, mixed=True)))

    def _check(self, op: P.Attend, node: Node, inputs: Sequence[TokenState]) -> None:
        if apart := unlike(op):
            raise KcalcError(f"node {node!r} attends with {apart}, {ONE_BY_ONE}")
        if op.normaliser != "softmax":
            raise KcalcError(f"node {node!r} attends with normaliser {op.normaliser!r}; follow tokens one by one, {FOLLOW}")
        check_reads(op, node, inputs)

    @rule.register
    def _(self, op: P.Positions, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        """Learned vectors of different positions are orthogonal, those of equal ones the same."""
        if apart := unlike(op):
            raise KcalcError(f"node {node!r} adds {apart}, {ONE_BY_ONE}")
        made = {name: kernel.positioned(node, op.form == "learned" and name != SAME) for name, kernel in self.plain.items()}
        return TokenState(made, ANY)

    @rule.register
    def _(self, op: P.Window, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        """The mean over all tokens: ``(K_s + (T - 1) K_d) / T``. Raises: KcalcError for other windows and matrices."""
        (below,) = inputs
        if not op.mixes and getattr(op, "matrix", None) is None:
            return below
        if not isinstance(op, P.Blend) or op.matrix is not None or op.window is not None or op.weighted or below.count is None:
            raise KcalcError(
                f"node {node!r} ({op.kind}) mixes tokens otherwise than by attention or a mean over all of them; follow tokens one by one "
                "with kc.node_values(net, tokens=..., sampling=kc.Sampling())"
            )
        return self._mean(below, node)

    def _mean(self, below: TokenState, node: Node) -> TokenState:
        count: Number = below.count
        rest = 1 - 1 / count
        read = {name: self.plain[name].whole(below.relations[name]) for name in self.parts}
        sizes = {name: _value(read[name][0] * (1 - read[name][2] * rest)) for name in (ONE, TWO) if name in read}
        one, two = sizes[ONE], sizes.get(TWO, sizes[ONE])
        made = {}
        for name, kernel in self.plain.items():
            q1, q2 = (sizes[name],) * 2 if name in sizes else (one, two)
            if name in sizes:
                gap = read[name][2] * 0
            elif self.uniform:
                gap = (read[SAME][2] + (count - 1) * (read[OTHER][2] - read[ONE][2].value)) * (read[ONE][0] / (count * one))
            else:
                geometric = kernel.algebra.moments.geometric
                joint = 1 - read[SAME][2] / count - read[OTHER][2] * rest
                gap = 1 - joint * (geometric(*read[SAME][:2]) / geometric(one, two))
            pairs = below.relations[name].pairs
            means = kernel.statistics.means(below.relations[name], node)
            gaussian = len(pairs) == 1 and pairs[0].gaussian
            atom = Atom(node, Moments(q1, q2, gap, *means), _joined(pairs), gaussian, mixed=True)
            made[name] = Channels.one(Pair.of(atom))
        return TokenState(made, None)

    @rule.register
    def _(self, op: P.Reshape, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        """Tokens become channels: equal places are all that is left."""
        (below,) = inputs
        if below.count is None:
            return below

        def alone(pair: Pair) -> Pair:
            return replace(pair, moments=replace(pair.moments, gap=pair.moments.gap * 0))

        made = {n: s.map(alone) if n in (ONE, TWO) else below.relations[SAME] for n, s in below.relations.items()}
        return TokenState(made, None)


def factor(op: P.Attend) -> Number:
    """What the variance of scores is multiplied by: 1 for scores over ``sqrt(key_width)``."""
    if op.scale == "linear":
        return 0
    return 1 if op.scale == "sqrt" else float(op.scale) ** 2 * (op.key_width or 1)


@dataclass(frozen=True)
class _Row:
    """Attention of one sequence: the variance of scores, S_self, and (q, gap) of what it emits."""

    variance: Number
    alone: Number
    q: Number
    gap: Jet


def _value(number: Number) -> Number:
    """A number; a jet without higher orders as its value."""
    return number.value if isinstance(number, Jet) and number.order == 0 else number


def _joined(pairs: Sequence[Pair]) -> int:
    mask = 0
    for pair in pairs:
        mask |= pair.support
    return mask
