"""Gradients over exchangeable tokens.

A backward fold computes the covariances of the gradients at one token and between two tokens.

A message ``(one, two)`` of a node contains ``d K_out / d K`` for the covariance K of a token with
itself and with another token, per group of channels. G, H, V and O are the covariances of the
queries, keys, values and outputs of attention. X and R are sums over two rows of attention weights
(:mod:`.softmax_rows`), at equal tokens (_s) and at different tokens (_c). With T tokens, the
messages to the inputs of attention are:

    values:    one' = one X_s + (T - 1) two X_c
               one' + (T - 1) two' = one R_s + (T - 1) two R_c
    queries:   one' = one dO_s/dG,    two' = two dO_c/dG
    keys:      one' = one dO_s/dH_s + (T - 1) two dO_c/dH_s
               (T - 1) two' = one dO_s/dH_d + (T - 1) two dO_c/dH_d.

For softmax, ``dO/dG = dH dV D`` and ``dO/dH_s = -dO/dH_d = dV G D`` with ``D = dS/dkappa``,
``dH = H_s - H_d``, ``dV = V_s - V_d``. Here S is the overlap of two rows, and kappa is the
covariance of their scores.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod

from ...network import primitives as P
from ..backward import Backward, Groups, added
from ..channels import Channels
from .exchangeable import Exchangeable, Relation, TokenState, Weights
from .softmax_rows import rows_of

Node = Hashable


@dataclass(frozen=True)
class Message:
    """``d K_out / d K`` for a token with itself and with another token, per group of channels."""

    one: Groups
    two: Groups


def both_added(first: Message, second: Message) -> Message:
    """The sum of two messages."""
    return Message(added(first.one, second.one), added(first.two, second.two))


class TokenBackward:
    """The rules of the backward fold over exchangeable tokens.

    Layers that act on each token separately use the rules of :class:`Backward` for both parts of a
    message.
    """

    def __init__(self, kernel: Exchangeable, states: Mapping[Node, TokenState]) -> None:
        self.kernel, self.states = kernel, states
        own: dict[Node, Channels] = {
            node: state.relations[Relation.FIRST_INPUT] for node, state in states.items()
        }
        self.one, self.two = (
            Backward(kernel.plain[Relation.FIRST_INPUT], own),
            Backward(kernel.plain[Relation.FIRST_INPUT], own, apart=True),
        )

    def start(self, output: Node) -> dict[Node, Message]:
        """The initial messages: 0 except at the output, whose tokens have independent gradients."""
        groups = {
            node: state.relations[Relation.FIRST_INPUT].groups
            for node, state in self.states.items()
        }
        start = {
            node: Message([0.0] * len(found), [0.0] * len(found)) for node, found in groups.items()
        }
        return start | {
            output: Message(
                [float(share) for share, _ in groups[output]], [0.0] * len(groups[output])
            )
        }

    @singledispatchmethod
    def rule(
        self, op: P.Primitive, node: Node, message: Message, reads: Sequence[Node]
    ) -> list[Message]:
        """Return one message for each node that the primitive reads, in slot order."""
        if not reads:
            return []
        sent = (
            self.one.rule(op, node, message.one, reads),
            self.two.rule(op, node, message.two, reads),
        )
        return [Message(a, b) for a, b in zip(*sent, strict=True)]

    @rule.register
    def _(self, op: P.Attend, node: Node, message: Message, reads: Sequence[Node]) -> list[Message]:
        count, tokens = self.states[reads[0]].count or 1, self.states[reads[1]].count or 1
        equal, different = rows_of(
            op, tokens, self.kernel.plain[Relation.FIRST_INPUT], node
        ).slopes(*(self._numbers(p) for p in reads))
        one, two = sum(message.one), sum(message.two)
        to_queries = (one * equal.queries, two * different.queries)
        one, two = one * count / tokens, two * (count - 1) * count / tokens  # of all rows, per key
        to_values = one * equal.rows.products + two * different.rows.products
        total = one * equal.rows.sums + two * different.rows.sums
        to_keys = one * equal.keys + two * different.keys
        others = one * equal.other_keys + two * different.other_keys
        rest = max(tokens - 1, 1)
        sent = (to_queries, (to_keys, others / rest), (to_values, (total - to_values) / rest))
        return [self._shared(parent, *pair) for parent, pair in zip(reads, sent, strict=True)]

    def _numbers(self, node: Node) -> tuple[float, float]:
        """Return the covariances of a token of a node with itself and with another token."""
        size, _, gap = self.kernel.whole(self.states[node])
        return float(size), float(size * (1 - gap.value))

    def _shared(self, node: Node, one: float, two: float) -> Message:
        """Split values for all channels into a message with one pair per group of channels."""
        shares = [
            float(share) for share, _ in self.states[node].relations[Relation.FIRST_INPUT].groups
        ]
        return Message([one * share for share in shares], [two * share for share in shares])

    @rule.register
    def _(
        self, op: P.Window | P.Reshape, node: Node, message: Message, reads: Sequence[Node]
    ) -> list[Message]:
        """Pass each token the gradient of a sum over tokens, multiplied by the token's weight.

        Messages are means over tokens, and over pairs of different tokens. If tokens are reshaped
        to channels, each token receives a separate gradient.
        """
        count = self.states[reads[0]].count
        if count is None or self.states[node].count is not None:
            return [message]
        if isinstance(op, P.Reshape):
            return [Message([g / count for g in message.one], [0.0] * len(message.one))]
        weights, total = Weights.of(op, node, count), sum(message.one) / count
        rest = weights.rest / max(count - 1, 1)
        return [self._shared(reads[0], total * weights.squares, total * rest)]
