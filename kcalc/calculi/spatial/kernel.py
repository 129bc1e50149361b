"""Exact kernel rules over pairs of locations: dense convolutions, mean pooling, flattening.

The values of a state are arrays, with P locations per image and images in the leading axes. If all
pairs of locations are followed, q1 has shape ``(..., P, 1)``, q2 has ``(..., 1, P)`` and the gap
has ``(..., P, P)``. If equal locations suffice, all three are ``(..., P)``. Layers that act on each
location separately use the rules of :class:`kcalc.calculi.kernel.Kernel`; an Affine and a Pool mix
locations:

    K'[p, p'] = sigma_w^2 / taps * sum_t K[p + t, p' + t] + sigma_b^2
    K'[p, p'] = mean over s, t in the windows of K[p + s, p' + t].

At a location with q = 0 (a black pixel, padding), the feature map is the constant 0, and an
activation is the constant phi(0). The gap at such a location is set to 1, and its weight in every
sum is 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, singledispatchmethod

import numpy as np

from ...fields import NUMPY
from ...fields.jets import Jet
from ...foundation.errors import KcalcError
from ...network import primitives as P
from ...network.compose import refuse_dropping
from ..atoms import Atom, Pair
from ..channel_statistics import AssumptionLog, Statistics, check_groups
from ..channels import Channels
from ..checks import check_several, check_variance
from ..freshness import Algebra
from ..kernel import Kernel
from ..kernel_activations import Activations
from ..location_maps import LocationMaps
from ..second_moments import Moments
from ..tangent import Tangent, refuse_jumps
from ..zero_inputs import ZeroMoments, ZeroProducts, check_not_negative
from .convolutions import Convolutions, ConvolutionWeights
from .forms import Forms
from .plan import mixes
from .pools import Pools

Node = Hashable
Array = np.ndarray


def location_kernel(
    forms: Forms,
    weights: ConvolutionWeights,
    assume_independent: bool,
    pooled: Mapping[Node, Sequence[tuple[Array, Array]]] | None,
) -> LocationKernel:
    """The calculus of kernel maps over pairs of locations, in float64.

    See :class:`Pools` for ``pooled``.
    """
    moments = ZeroMoments(NUMPY, False)
    statistics = Statistics(moments, AssumptionLog(), True, assume_independent, check_not_negative)
    algebra = Algebra(moments, ZeroProducts(moments))
    kernel = Kernel(statistics, algebra, Activations(statistics, algebra, LocationMaps()))
    convolutions = Convolutions(kernel, forms, weights)
    return LocationKernel(kernel, forms, convolutions, Pools(kernel, forms, convolutions, pooled))


@dataclass
class LocationKernel:
    """The calculus of kernel maps over pairs of locations.

    ``kernel`` contains the rules for layers that act on each location separately. ``convolutions``
    contains the rule for new weights, and ``pools`` the rules for pooling and for matrices over
    locations.
    """

    kernel: Kernel
    forms: Forms
    convolutions: Convolutions
    pools: Pools

    def __post_init__(self) -> None:
        self.notes, self.whole, self.tangent = (
            self.kernel.notes,
            self.kernel.whole,
            self.convolutions.weights.tangent,
        )
        self.gradual = Tangent(self.kernel, {})  # for operations with a custom gradient

    def entered(
        self, node: Node, q: tuple[Array, Array], mean: tuple[Array, Array], gap: Array
    ) -> Channels:
        """The state of an Input node.

        The state is built from the q values and means ``(..., P)`` of the node, and from gaps in
        the shape that the node uses.
        """
        q1, q2 = self.forms.lifted(*q, node)
        mean1, mean2 = self.forms.lifted(*mean, node)
        jet = Jet((gap, np.zeros_like(gap))) if self.tangent else Jet((gap,))
        return self.kernel.start(node, q1, q2, jet, mean1, mean2)

    @singledispatchmethod
    def rule(self, op: P.Primitive, node: Node, inputs: Sequence[Channels]) -> Channels:
        """The state that a primitive emits.

        Raises: NoRule, FreshnessError, KcalcError naming the node.
        """
        refuse_dropping("kernel maps over locations", op, node)
        return self.kernel.rule(op, node, inputs)

    @rule.register
    def _(self, op: P.Fresh, node: Node, inputs: Sequence[Channels]) -> Channels:
        return self.convolutions.emitted(op, node, inputs[0])

    @rule.register
    def _(self, op: P.Post, node: Node, inputs: Sequence[Channels]) -> Channels:
        if self.tangent:
            refuse_jumps(op.activation, node)
        return self.kernel.rule(op, node, inputs)

    @rule.register
    def _(self, op: P.Stop | P.Surrogate, node: Node, inputs: Sequence[Channels]) -> Channels:
        return (self.gradual if self.tangent else self.kernel).rule(op, node, inputs)

    @rule.register
    def _(self, op: P.Prod, node: Node, inputs: Sequence[Channels]) -> Channels:
        lifted = [
            self._broadcast(state, parent, node)
            for state, parent in zip(inputs, self.forms.parents[node], strict=True)
        ]
        return self.kernel.rule(op, node, lifted)

    @rule.register
    def _(self, op: P.Norm, node: Node, inputs: Sequence[Channels]) -> Channels:
        if op.over == "positions":
            return self._group_norm(op, node, inputs[0])
        if op.over == "channels":
            check_several(op, node)
            self._refuse_dead(node, inputs[0])
        return self.kernel.rule(op, node, inputs)

    @rule.register
    def _(self, op: P.Window, node: Node, inputs: Sequence[Channels]) -> Channels:
        """Apply a matrix, a window of several locations, or the identity."""
        if not mixes(op, self.forms.places[node]):
            return inputs[0]
        if isinstance(op, P.Blend) and op.weighted:
            return self.pools.weighted_mean(node, inputs[0])
        return self.pools.mean(node, inputs[0])

    @rule.register
    def _(self, op: P.Moving, node: Node, inputs: Sequence[Channels]) -> Channels:
        if op.mixes:
            return self.pools.mean(node, inputs[0])
        return inputs[0].map(lambda pair: self.pools.gathered(pair, node))

    def _broadcast(self, state: Channels, parent: Node, node: Node) -> Channels:
        """Broadcast a factor with one location (a gate from a global mean) over all locations."""
        if not self.forms.places[node].full or self.forms.places[parent].full:
            return state

        def lifted(pair: Pair) -> Pair:
            m = pair.moments
            q1, q2 = self.forms.lifted(np.atleast_1d(m.q1), np.atleast_1d(m.q2), node)
            mean1, mean2 = self.forms.lifted(np.atleast_1d(m.mean1), np.atleast_1d(m.mean2), node)
            gap = Jet(tuple(np.asarray(part)[..., None] for part in m.gap.coefficients))
            made = Pair.of(
                Atom(parent, Moments(q1, q2, gap, mean1, mean2), pair.support, pair.gaussian)
            )
            return made.at(pair.window)

        return state.map(lifted)

    def _group_norm(self, op: P.Norm, node: Node, below: Channels) -> Channels:
        """Normalise over all channels and locations; subtract the mean first if centred."""
        # one channel of a given image suffices for statistics over locations
        if not all(t.atom.raw for pair in below.pairs for t in pair.terms):
            check_several(op, node)
        check_groups(self.kernel.statistics, op, node, below)
        return below.normalised(op.groups, partial(self._over_locations, op, node))

    def _over_locations(self, op: P.Norm, node: Node, below: Channels) -> Channels:
        mean1, mean2 = self.kernel.statistics.means(below, node) if op.centred else (0, 0)
        q1, q2, _ = self.kernel.whole(below)
        sides = []
        for q, mean, form in ((q1, mean1, self.forms.first), (q2, mean2, self.forms.second)):
            centre = self.forms.spread(form(mean, node), node).mean(axis=-1, keepdims=True)
            variance = (
                self.forms.spread(form(q, node), node).mean(axis=-1, keepdims=True) - centre**2
            )
            check_variance(self.kernel.field, variance, centre**2, node)
            sides.append((1 / np.sqrt(variance), -centre / np.sqrt(variance)))
        (s1, t1), (s2, t2) = sides
        scales, shifts = self.forms.lifted(s1, s2, node), self.forms.lifted(t1, t2, node)
        return below.map(
            lambda pair: self.kernel.statistics.affinely(
                pair, scales, shifts if np.any(t1) or np.any(t2) else (0, 0), node
            )
        )

    def _refuse_dead(self, node: Node, below: Channels) -> None:
        q1, q2, _ = self.kernel.whole(below)
        if np.any(np.asarray(q1) == 0) or np.any(np.asarray(q2) == 0):
            where = self.forms.location(q1, node)
            raise KcalcError(
                f"node {node!r} normalises its input, which is 0 at {where}; add a bias (sigma_b "
                f"> 0) before it"
            )
