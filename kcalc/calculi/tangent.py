"""The tangent kernel as a calculus: kernel maps with their derivatives with respect to covariances.

Let ``k`` be the covariance of one channel of a feature map at two inputs. By Price's theorem,
``d E[f(u) g(v)] / dk = E[f'(u) g'(v)]``. The right-hand side is the factor by which an activation
multiplies a tangent kernel. So the kernel calculus also computes the tangent kernel if it keeps
terms of first order in a perturbation ``e`` of the covariances. Every Affine adds ``e`` times the
kernel of its parameters to the covariance of its output; the coefficient of ``e`` at the network's
output is the tangent kernel. Sums, shared branches, fusions and norms need no extra rules. After a
stop-gradient, a feature map is a copy without a perturbation. In sums with the original, values
include all cross terms, but perturbations include only the cross terms of parts that are not
stopped.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..activations import Activation
from ..fields.jets import Jet
from ..foundation.errors import KcalcError
from ..network.compose import no_rule, rule_of_guest, unknown_gradient
from ..network.layers import Affine, ClassToken, Embedding, Positions
from ..network.network import Network
from ..network.notes import TIED
from ..network.primitives import Blend, Fresh, Norm, Post, Primitive, Stop, Surrogate, owner
from .atoms import Atom, Pair, Term, with_all_below
from .channels import Channels
from .kernel import Kernel
from .second_moments import Moments, is_zero

WHOLE = 1 - 1e-9  # E |z|^-p is infinite for p >= 1

Node = Hashable
Number = Any
PARAMETERIZATIONS = ("ntk", "standard")
ACROSS = (
    "the outputs of other examples of the batch, which BatchNorm also reads, are treated as "
    "fixed; kc.gradients includes them"
)
CENTRE = "only the centre tap of a Delta-initialised convolution is counted as a parameter"


@dataclass
class Tangent:
    """The calculus of tangent kernels over the number system of ``kernel``.

    Gaps are jets of order one.

    ``seeds`` is {node with parameters: weight of the kernel of its parameters}, with weight 0 for
    all other nodes. A weight is a number or an array that broadcasts against the states. None gives
    every node the weight 1. ``fan_in`` is {node with parameters: number of addends in its outputs}
    for the standard parameterisation, and None for the NTK parameterisation, where
    ``f = sigma_w W x / sqrt(fan_in) + sigma_b b``, and W and b have unit variance. A trained table
    of token ids or positions is an Affine without bias that reads one-hot vectors, so its kernel is
    the covariance of its rows. ``unseen``: the nodes of the lowered network that no gradient of an
    output reaches. [DKS sec. 24]
    """

    kernel: Kernel
    seeds: Mapping[Node, Any] | None = None
    fan_in: Mapping[Node, int] | None = None
    unseen: frozenset[Node] = frozenset()

    def __post_init__(self) -> None:
        self.start, self.whole, self.notes = self.kernel.start, self.kernel.whole, self.kernel.notes
        self.uniform = self.kernel.uniform
        self._stopped: dict[Atom, Atom] = {}

    def rule(self, op: Primitive, node: Node, inputs: Sequence[Channels]) -> Channels:
        """Return the state that a primitive emits.

        New weights add ``e`` times the kernel of their parameters to the covariance of their
        output.
        """
        if isinstance(op, Post) and has_infinite_slope(op.activation):
            if node not in self.unseen and not all(map(_still, inputs[0].pairs)):
                refuse_jumps(op.activation, node)
            state = self.kernel.rule(op, node, inputs)
            return state.map(lambda pair: self.stopped(Stop(origin=op.origin), pair, node))
        if isinstance(op, Norm) and op.over == "batch" and op.batch_c is not None:
            self.kernel.note(node, ACROSS)
        if isinstance(op, Blend) and op.random and op.permutes is None:
            raise no_rule("tangent kernels", op, node)
        if (guest := rule_of_guest("tangent kernels", op)) is not None:
            return guest(self, op, node, inputs)
        state = self.kernel.rule(op, node, inputs)
        if isinstance(op, Stop):
            return state.map(lambda pair: self.stopped(op, pair, node))
        if isinstance(op, Surrogate):
            return self.surrogate(op, node, state, inputs[0])
        if not isinstance(op, Fresh):
            return state
        if not op.one_tap:
            self.kernel.note(node, CENTRE, "convention")
        weight = 1 if self.seeds is None else self.seeds.get(owner(node), 0)
        if op.trained is False or (isinstance(weight, int) and weight == 0):
            return state
        refuse_indirect(op, node)
        return state.map(
            lambda pair: self._seeded(pair, weight * self._parameters(op, node, pair, inputs[0]))
        )

    def _parameters(self, op: Fresh, node: Node, pair: Pair, below: Channels) -> Number:
        """The kernel of the layer's parameters, divided by sqrt(q1 q2).

        In the NTK parameterisation, the quotient is the cosine c of the layer's output, because the
        parameters' kernel equals the covariance of the output. In the standard parameterisation, it
        is ``(fan_in E x1 x2 + 1) / sqrt(q1 q2)``, without the 1 if the layer has no bias. Here x is
        the layer's input, and q1 and q2 are the q values of its output. Only trained parameters
        count.
        """
        field, geometric = self.kernel.field, self.kernel.algebra.moments.geometric
        weights, biases = op.trains
        if self.fan_in is None:
            whole = 1 - pair.moments.gap.value
            if weights and biases:
                return whole
            shift = field.number(op.sigma_b) ** 2 / geometric(pair.moments.q1, pair.moments.q2)
            return whole - shift if weights else shift
        if op.standardised and weights:
            raise KcalcError(
                f"node {node!r} has standardised weights, which the standard parameterisation "
                "does not support; use parameterization='ntk'"
            )
        q1, q2, gap = self.whole(below)
        bias = field.number(1 if op.bias and biases else 0)
        count = field.number(self.fan_in[owner(node)] if weights else 0)
        joint = count * geometric(q1, q2) * (1 - gap.value) + bias
        return joint / geometric(pair.moments.q1, pair.moments.q2)

    def stopped(self, op: Stop, pair: Pair, node: Node) -> Pair:
        """A copy of a feature map without gradients: the same values without a perturbation.

        Raises: KcalcError if the gradient is unknown.
        """
        if op.unknown and not _still(pair):
            raise unknown_gradient(op.unknown, node)
        return replace(
            pair, moments=pair.moments.fixed, terms=tuple(map(self._fixed_term, pair.terms))
        )

    def _fixed_term(self, term: Term) -> Term:
        return replace(term, atom=self._fixed(term.atom))

    def _fixed(self, atom: Atom) -> Atom:
        """The copy of an atom without a perturbation, built from such copies of its parts."""
        for one in with_all_below([atom]):  # oldest first
            if one in self._stopped:
                continue
            if one.live is not None:
                self._stopped[one] = one
                continue
            known = self._stopped
            self._stopped[one] = replace(
                one,
                moments=one.moments.fixed,
                terms=tuple(replace(t, atom=known[t.atom]) for t in one.terms),
                source=None if one.source is None else known[one.source],
                factors=tuple(
                    replace(
                        pair,
                        moments=pair.moments.fixed,
                        terms=tuple(replace(t, atom=known[t.atom]) for t in pair.terms),
                    )
                    for pair in one.factors
                ),
                live=one,
            )
        return self._stopped[atom]

    def surrogate(self, op: Surrogate, node: Node, state: Channels, below: Channels) -> Channels:
        """Return the activation's values, and multiply the perturbation by ``E slope(u) slope(v)``.

        Nothing else may depend on the same weights, because its cross moments would need the
        surrogate slope.
        """
        local, geometric = self.kernel.activations.local, self.kernel.algebra.moments.geometric

        def replaced(source: Pair, pair: Pair) -> Pair:
            m, made = source.moments, pair.moments
            (one, _), (two, _) = (local.q(op.slope, q) for q in (m.q1, m.q2))
            gap = local.gap(op.slope, Jet((m.gap.value, 0 * m.gap.value)), m.q1, m.q2)
            slopes = geometric(one, two) * (1 - gap.value)
            rate = slopes * m.gap.coefficients[1] * geometric(m.q1, m.q2)
            moved = Jet((made.gap.value, _over(rate, geometric(made.q1, made.q2))))
            moments = replace(made, gap=moved)
            return Pair.of(Atom(node, moments, source.support, False, surrogate=True)).at(
                pair.window
            )

        groups = zip(below.groups, state.groups, strict=True)
        return Channels(tuple((share, replaced(old, new)) for (share, old), (_, new) in groups))

    @staticmethod
    def _seeded(pair: Pair, amount: Number) -> Pair:
        """The output of an Affine, a single atom, with ``e * amount`` added to its cosine."""
        (term,) = pair.terms
        old = pair.moments
        gap = Jet((old.gap.value, old.gap.coefficients[1] - amount))
        moments = Moments(old.q1, old.q2, gap, old.mean1, old.mean2)
        return replace(
            pair, moments=moments, terms=(replace(term, atom=replace(term.atom, moments=moments)),)
        )

    def kernels(self, state: Channels) -> tuple[Number, Number]:
        """Return (NNGP, NTK): the mean covariance over channels, and its first order in ``e``."""
        q1, q2, gap = self.whole(state)
        norm = self.kernel.algebra.moments.geometric(q1, q2)
        return norm * (1 - gap.value), -norm * gap.coefficients[1]


def unseen_nodes(network: Network) -> frozenset[Node]:
    """The nodes of the lowered network that no gradient of an output reaches."""
    seen = set(network.outputs)
    for node, op, reads in reversed(network.operations):
        if node in seen and not (isinstance(op, Stop) and not op.unknown):
            seen.update(reads)
    return frozenset(node for node, _, _ in network.operations if node not in seen)


def with_separate_parameters(network: Network) -> Network:
    """Return the network, written out if one of its nodes contains several layers of weights."""
    made = [owner(node) for node, op, _ in network.operations if isinstance(op, Fresh)]
    return network.written_out() if len(set(made)) < len(made) else network


def parameter_nodes(network: Network) -> tuple[Node, ...]:
    """The nodes with parameters, trained or frozen.

    These are Affine layers, embeddings, learned positions and class tokens, in order.
    """
    tables = [n for n in network.nodes_of(Positions) if network.layer(n).kind != "sinusoidal"]
    found = {*network.nodes_of(Affine, Embedding, ClassToken), *tables}
    return tuple(node for node in network if node in found)


def tied_heads(network: Network) -> tuple[Node, ...]:
    """The readouts that share weights with an embedding, in a network read from a model."""
    return tuple(a.node for a in network.assumptions if TIED in a.text)


def refuse_tied(network: Network) -> None:
    """Reject a readout tied to an embedding, because its tangent kernel has cross terms."""
    for node in tied_heads(network):
        raise KcalcError(
            f"node {node!r} is a readout tied to an embedding, and there is no rule for the "
            "cross terms between the two in the tangent kernel. Use a separate readout, or pass "
            "assume_independent=True to ignore the cross terms"
        )


def _still(pair: Pair) -> bool:
    """Whether a feature map has no perturbation."""
    return is_zero(pair.moments.gap.coefficients[1])


def _over(rate: Number, norm: Number) -> Number:
    """Return ``rate / norm``, or 0 if a feature map is 0."""
    if not isinstance(norm, np.ndarray) or norm.all():
        return rate / norm
    return np.where(norm == 0, 0.0, rate / np.where(norm == 0, 1.0, norm))


def trained_part(op: Fresh, covariance: Number) -> Number:
    """The part of the covariance of a layer's output that comes from trained weights and biases."""
    weights, biases = op.trains
    if weights and biases:
        return covariance
    shift = float(op.sigma_b) ** 2
    return (covariance - shift) * weights + shift * biases


def refuse_indirect(op: Fresh, node: Node) -> None:
    """Reject weights that are functions of other trained parameters.

    Raises: KcalcError.
    """
    if op.trained == "indirectly":
        raise KcalcError(
            f"node {owner(node)!r}: its weights are functions of other trained parameters "
            "(spectral or weight normalisation, another parametrisation), which have different "
            "gradients; remove the parametrisation, set trained=True for the kernel of the "
            "weights themselves, or set trained=False to exclude these weights"
        )


def has_infinite_slope(phi: Activation) -> bool:
    """Whether E phi'^2 is infinite or phi jumps; phi' alone does not reveal jumps."""
    return any(phi.jump_sizes(0)) or bool(_steep_points(phi))


def _steep_points(phi: Activation) -> list[float]:
    """The points where phi is so steep that E phi'(z)^2 is infinite."""
    if not phi.rough:
        return []
    pairs = zip(phi.kink_points, phi.strengths(1), strict=True)
    return [float(k) for k, p in pairs if 2 * p >= WHOLE]


def refuse_jumps(phi: Activation, node: Node) -> None:
    """Raise KcalcError if phi jumps, which phi' does not reveal, or if E phi'^2 is infinite."""
    if any(phi.jump_sizes(0)):
        raise KcalcError(
            f"node {node!r}: {phi.name} jumps, so the slope of its C map at c = 1 is infinite "
            "and the kernel calculus cannot compute the tangent kernel (the gradients of a "
            "network ignore the jump). Use a continuous activation"
        )
    if steep := _steep_points(phi):
        raise KcalcError(
            f"node {node!r}: {phi.name} is so steep at x = {steep[0]:.6g} that E phi'(z)^2 is "
            "infinite, and so are the gradients and tangent kernels of the network; use an "
            "activation with bounded slope"
        )
