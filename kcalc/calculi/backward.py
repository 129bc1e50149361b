"""Backward rules for gradients: how a layer transforms the covariance of the gradients after it.

A message is d K_out / d K for the covariance K of a node's channels, per group of channels. It is
the mean product of the gradients of one output channel at two inputs, summed over the channels of
the group. Messages use the same number type as the forward kernel calculus: floats for two inputs,
arrays over all pairs of tokens.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import singledispatchmethod
from itertools import pairwise
from math import inf, prod
from typing import Any, NoReturn

import numpy as np

from ..activations import Activation
from ..fields.jets import Jet
from ..foundation.errors import KcalcError
from ..maps.maps import Assumption
from ..network import primitives as P
from ..network.compose import no_rule, rule_of_guest, unknown_gradient
from ..network.network import Network
from ..network.primitives import owner
from .channels import Channels
from .kernel import Kernel
from .second_moments import Moments, is_zero
from .tangent import has_infinite_slope, refuse_jumps

Node = Hashable
Number = Any
Groups = list[Number]
INDIRECT = (
    "its weights are functions of trained parameters (spectral or weight normalisation, another "
    "parametrisation), whose gradients are left out; the gradients of its input and output are "
    "exact"
)


class Backward:
    """The rules of the backward fold: messages from a layer to the nodes that it reads.

    ``states`` are the states of the kernel calculus ``kernel``. ``apart``: whether the states
    describe pairs, either of inputs or of tokens. If so, messages are products of the gradients at
    both members of a pair; otherwise they are squared gradients at one input.
    """

    def __init__(
        self, kernel: Kernel, states: Mapping[Node, Channels], apart: bool = False
    ) -> None:
        self.kernel, self.states, self.apart = kernel, states, apart
        self._slopes = dict[Any, tuple[Moments, Number]]()

    @singledispatchmethod
    def rule(
        self, op: P.Primitive, node: Node, message: Groups, reads: Sequence[Node]
    ) -> list[Groups]:
        """Return one message for each node that the primitive reads, in slot order."""
        if (guest := rule_of_guest("gradients", op)) is not None:
            return guest(self, op, node, message, reads)
        raise no_rule("gradients", op, node)

    @rule.register
    def _(self, op: P.Fresh, node: Node, message: Groups, reads: Sequence[Node]) -> list[Groups]:
        sent = float(op.sigma_w) ** 2 * summed(message)
        return [[sent * float(share) for share, _ in self.states[reads[0]].groups]]

    @rule.register
    def _(
        self, op: P.Post | P.Surrogate, node: Node, message: Groups, reads: Sequence[Node]
    ) -> list[Groups]:
        if all(map(is_zero, message)):  # unchanged by any slope, finite or not
            return [message]
        pairs = self.states[reads[0]].pairs
        factors = [self.slope(op, node, pair.moments) for pair in pairs]
        return [[m * f for m, f in zip(message, factors, strict=True)]]

    def slope(self, op: P.Post | P.Surrogate, node: Node, moments: Moments) -> Number:
        """Return ``E phi'(z1) phi'(z2)`` of the two pre-activations: C' times ``Q / q``.

        Q and q are geometric means over the two inputs. If the activation has a surrogate gradient,
        the slope of the surrogate replaces phi'. Raises: KcalcError for activations that jump.
        """
        own = isinstance(op, P.Post)
        phi = op.activation if own else op.slope
        key = (phi, own, id(moments))  # kept alive, so their ids are not reused
        if key not in self._slopes:
            made = self._slope(phi, node, moments) if own else self._product(phi, moments)
            self._slopes[key] = moments, made
        return self._slopes[key][1]

    def _product(self, slope: Activation, moments: Moments) -> Number:
        """Return ``E slope(z1) slope(z2)`` for the two pre-activations."""
        local, geometric = self.kernel.activations.local, self.kernel.algebra.moments.geometric
        q1, q2, gap = moments.q1, moments.q2, moments.gap.value
        left = local.gap(slope, Jet((gap if self.apart else gap * 0,)), q1, q2).value
        return geometric(local.q(slope, q1)[0], local.q(slope, q2)[0]) * (1 - left)

    def _slope(self, phi: Activation, node: Node, moments: Moments) -> Number:
        refuse_jumps(phi, node)
        local, geometric = self.kernel.activations.local, self.kernel.algebra.moments.geometric
        q1, q2, gap = moments.q1, moments.q2, moments.gap.value
        jet = Jet((gap if self.apart else gap * 0, gap * 0 + 1))
        sizes = (local.q(phi, q1)[0], local.q(phi, q2)[0])
        return local.gap(phi, jet, q1, q2).coefficients[1] * geometric(*sizes) / geometric(q1, q2)

    def mean_slope(self, op: P.Post | P.Surrogate, node: Node, read: Node) -> float:
        """Return ``E phi'(z)^2`` for an activation, averaged over channels and tokens.

        The mean is infinite for activations that jump, if no surrogate gradient is defined.
        """
        if isinstance(op, P.Post) and has_infinite_slope(op.activation):
            return inf
        slopes = (
            (float(share), self.slope(op, node, pair.moments))
            for share, pair in self.states[read].groups
        )
        return sum(share * float(np.mean(_own(slope))) for share, slope in slopes)

    @rule.register
    def _(self, op: P.Mix, node: Node, message: Groups, reads: Sequence[Node]) -> list[Groups]:
        weights = [float(w) ** 2 for w in op.weights]
        return [
            [w * m for m in self._regrouped(message, node, parent)]
            for w, parent in zip(weights, reads, strict=True)
        ]

    @rule.register
    def _(self, op: P.Prod, node: Node, message: Groups, reads: Sequence[Node]) -> list[Groups]:
        """Multiply the message to each factor by the covariances of the other factors."""
        out = []
        for slot, parent in enumerate(reads):
            others = [self._covariances(node, read) for k, read in enumerate(reads) if k != slot]
            out.append(
                self._regrouped(
                    [m * prod(q) for m, *q in zip(message, *others, strict=True)], node, parent
                )
            )
        return out

    @rule.register
    def _(self, op: P.Join, node: Node, message: Groups, reads: Sequence[Node]) -> list[Groups]:
        out, start = [], 0
        for parent in reads:
            stop = start + len(self.states[parent].groups)
            out.append(message[start:stop])
            start = stop
        return out

    @rule.register
    def _(self, op: P.Norm, node: Node, message: Groups, reads: Sequence[Node]) -> list[Groups]:
        if op.over == "batch":
            return [self._through_batch(op, node, message, reads[0])]
        statistics, geometric = self.kernel.statistics, self.kernel.algebra.moments.geometric
        sizes = [
            statistics.variances(one, node) if op.centred else statistics.whole(one)[:2]
            for one in self.states[reads[0]].divisors(op.groups)
        ]
        return [[m / geometric(*size) for m, size in zip(message, sizes, strict=True)]]

    def _through_batch(self, op: P.Norm, node: Node, message: Groups, read: Node) -> Groups:
        """Pass on the gradients with respect to the example itself, in a large batch.

        The gradients with respect to each of the other examples vanish.
        """
        left, geometric = 1 - float(op.batch_c), self.kernel.algebra.moments.geometric
        moments = [pair.moments for pair in self.states[read].pairs]
        return [m / (left * geometric(k.q1, k.q2)) for m, k in zip(message, moments, strict=True)]

    @rule.register
    def _(self, op: P.Stop, node: Node, message: Groups, reads: Sequence[Node]) -> list[Groups]:
        """Pass no message; raise an error if a gradient exists but is unknown."""
        if op.unknown and not all(map(is_zero, message)):
            raise unknown_gradient(op.unknown, node)
        return [[0.0 * m for m in message]]

    @rule.register
    def _(self, op: P.Mask, node: Node, message: Groups, reads: Sequence[Node]) -> list[Groups]:
        """Pass gradients through active dropout, whose mask has entries m with mean 1.

        If r is the fraction of kept entries, E m^2 = 1 / r for one example, and E m m' = 1 for two
        examples.
        """
        if not op.drops or self.apart:
            return [message]
        return [[m / (1 - float(op.rate)) for m in message]]

    @rule.register
    def _(
        self,
        op: P.Window | P.Passing,
        node: Node,
        message: Groups,
        reads: Sequence[Node],
    ) -> list[Groups]:
        """Treat the layer as in kernel maps: as a permutation of positions or as the identity."""
        if not isinstance(op, P.Blend) or op.matrix is None:
            return [message]
        assert op.permutes is not None  # the forward pass rejects other matrices
        return [[op.permutes**2 * m for m in message]]

    def _covariances(self, node: Node, parent: Node) -> Groups:
        """The covariance of ``parent`` at the two inputs in every group of ``node``.

        The covariance is the q value if both inputs are the same.
        """
        moments = [self.states[parent].pairs[place].moments for place in self._places(node, parent)]
        geometric = self.kernel.algebra.moments.geometric
        return [geometric(m.q1, m.q2) * (1 - m.gap.value) if self.apart else m.q1 for m in moments]

    def _places(self, node: Node, parent: Node) -> list[int]:
        """For every group of ``node``, the index of the group of ``parent`` that contains it."""
        edges = self.states[parent].edges
        middles = [(low + high) / 2 for low, high in pairwise(self.states[node].edges)]
        return [bisect(edges, middle) - 1 for middle in middles]

    def _regrouped(self, message: Groups, node: Node, parent: Node) -> Groups:
        """Sum a message over the groups of ``node`` that each group of ``parent`` contains."""
        out: Groups = [0.0] * len(self.states[parent].groups)
        for place, value in zip(self._places(node, parent), message, strict=True):
            out[place] = out[place] + value
        return out


def _own(numbers: Number) -> Number:
    """Return the entries of an array over token pairs at which both tokens are the same."""
    return numbers if np.ndim(numbers) < 2 else np.diagonal(numbers, axis1=-2, axis2=-1)


def summed(message: Groups) -> Number:
    """The sum of a message over all groups of channels."""
    return message[0] if len(message) == 1 else sum(message)


def added(one: Groups, two: Groups) -> Groups:
    """The sum of two messages."""
    return [a + b for a, b in zip(one, two, strict=True)]


def mean_slopes(network: Network, backward: Backward, every: bool = True) -> dict[Node, float]:
    """Return {node: E phi'(z)^2} for all activations.

    If ``every`` is false, only activations of Gaussians are included.
    """
    return {
        owner(node): backward.mean_slope(op, node, reads[0])
        for node, op, reads in network.operations
        if isinstance(op, P.Post | P.Surrogate)
        and (every or all(pair.gaussian for pair in backward.states[reads[0]].pairs))
    }


def parameters(network: Network) -> dict[Node, tuple[Node, P.Fresh]]:
    """Return {node with parameters: (feature map that the parameters produce, primitive)}.

    The feature map is a node of the lowered network.
    """
    return {
        owner(node): (node, op) for node, op, _ in network.operations if isinstance(op, P.Fresh)
    }


def own_parameters(network: Network) -> dict[Node, tuple[Node, P.Fresh]]:
    """Return :func:`parameters` without weights that are computed from other parameters."""
    found = parameters(network)
    return {node: pair for node, pair in found.items() if pair[1].trained != "indirectly"}


def left_out(network: Network) -> tuple[Assumption, ...]:
    """Return notes on the weights whose gradients are not computed."""
    made = parameters(network).keys() - own_parameters(network).keys()
    return tuple(Assumption(node, INDIRECT, "heuristic") for node in network if node in made)


def refuse_shared_in_batches(notes: Iterable[Assumption]) -> NoReturn:
    """With BatchNorm, reject sums whose addends share weights."""
    note = next(note for note in notes if note.kind == "exact")
    raise KcalcError(
        f"node {note.node!r}: {note.text}, which is not supported for gradients through BatchNorm; "
        "put an Affine in between, or remove the norm with net.without_normalization()"
    )


def refuse_shared(notes: Iterable[Assumption]) -> None:
    """For tokens followed one by one, reject sums whose addends share weights.

    The notes name these sums.
    """
    for note in notes:
        if note.kind == "exact":
            raise KcalcError(
                f"node {note.node!r}: {note.text.partition('; ')[0]}, which is not supported for "
                "gradients over tokens that are followed one by one. If the tokens are "
                "exchangeable, pass their number, tokens=T, and token_cosine=, without sampling=. "
                "If the network has no attention, omit tokens="
            )
