"""Kernel maps: how q values and c values propagate through a network.

The state of a feature map has, for each group of channels, ``(q1, q2, gap, mean1, mean2)`` for two
inputs, with ``gap = 1 - c``, and an expression in atoms (:mod:`kcalc.calculi.freshness`). The rules
follow [DKS sec. 5 to 7, 9, 19], with corrections.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from typing import Any, TypeVar

import numpy as np

from ..fields import NUMPY
from ..foundation.errors import FreshnessError, KcalcError, NoRule
from ..foundation.guests import KERNELS
from ..foundation.plain_arguments import truth
from ..maps.maps import Assumption
from ..network import primitives as P
from ..network.compose import interpret, no_rule, rule_of_guest
from ..network.network import Network
from .atoms import Atom, Pair, disjoint
from .channel_statistics import (
    CENTRED,
    AssumptionLog,
    Statistics,
    check_groups,
    grouped,
    note_raw_means,
    note_raw_pairs,
)
from .channels import Channels, combine_channel_groups
from .checks import check_several
from .field_maps import FieldMaps, field_maps_of
from .freshness import Algebra
from .kernel_activations import Activations
from .second_moments import Moments, Part, SecondMoments, is_zero
from .varying import varying_values

Number = Any
State = TypeVar("State")
Node = Hashable

EQUAL_POSITIONS = (
    "statistics over locations: all locations are assumed to have the same q value and mean "
    "(exact if they do)"
)
EQUAL_EXAMPLES = (
    "batch normalisation of a large batch whose examples all have the same q value and pairwise c "
    "value here (kc.large_batch)"
)
DELTA_CONVOLUTIONS = (
    "convolutions are Delta-initialised: only the centre tap is non-zero [DKS sec. 5.3]"
)
WIDE_PADDING = (
    "the padding is wider than half of the window: whichever tap Delta initialisation "
    "uses, it reads only padding at some locations, which then contain only the bias; all "
    "locations are assumed to read the image"
)
TOKENS_NEEDED = (
    "attends over tokens, and kernel maps need their number: pass tokens=, as in kc.c_map(net, "
    "tokens=128), and token_cosine=, the cosine between two tokens of the same input (0 by "
    "default)"
)
POOLING = {
    "max": "max pooling is treated as the identity (exact when all positions of a pooling window "
    "have the same feature vector) "
    "[DKS sec. 20.2]",
    "mean": "mean pooling is treated as the identity, as if it were weighted mean pooling [DKS "
    "sec. 20.1]",
    "weighted_mean": "weighted mean pooling keeps q and averages c over locations; treated as the "
    "identity [DKS sec. 20.1.2]",
}
GAUSSIAN = (
    "weights over tokens are treated as new Gaussian weights, and all tokens as having the same "
    "q value (exact for many uncorrelated tokens)"
)
MASKS = (
    "dropout is active, as in training, and every example has a separate mask, so C(1) < 1, and "
    "two copies of an input count as different examples"
)
SAME_MASKS = "dropout is active, as in training: gradients are for one example with one mask"
INTERPOLATION = (
    "linear interpolation is treated as the identity, like mean pooling (exact if the positions "
    "that it mixes have the same feature vector)"
)


@dataclass
class Kernel:
    """The calculus of kernel maps: one rule per primitive; :func:`kernel_over` constructs it.

    ``same_masks``: whether both inputs are the same example, so that active dropout uses one mask
    for both.
    """

    statistics: Statistics
    algebra: Algebra
    activations: Activations
    same_masks: bool = False

    def __post_init__(self) -> None:
        moments, self.ledger = self.statistics.moments, self.statistics.ledger
        self.field, self.uniform = moments.field, moments.uniform
        self.note, self.whole = self.ledger.note, self.statistics.whole

    @property
    def notes(self) -> dict[tuple[Node, str], Assumption]:
        """{(node, text): assumption} recorded by the rules so far."""
        return self.ledger.notes

    def start(
        self, node: Node, q1: Number, q2: Number, gap: Number, mean1: Number = 0, mean2: Number = 0
    ) -> Channels:
        """The state of an Input node."""
        self._unit = (q1 * 0 + 1, q2 * 0 + 1, gap * 0)
        moments = Moments(q1, q2, gap, mean1, mean2)
        return Channels.one(self.ledger.fresh(node, moments, gaussian=False, raw=True))

    @singledispatchmethod
    def rule(self, op: P.Primitive, node: Node, inputs: Sequence[Channels]) -> Channels:
        """The state that a primitive emits.

        Raises: NoRule, FreshnessError, KcalcError naming the node.
        """
        if (guest := rule_of_guest("kernel maps", op)) is not None:
            return guest(self, op, node, inputs)
        raise (
            NoRule(f"node {node!r} {TOKENS_NEEDED}")
            if isinstance(op, P.Attend)
            else no_rule("kernel maps", op, node)
        )

    @rule.register
    def _(self, op: P.Fresh, node: Node, inputs: Sequence[Channels]) -> Channels:
        """Map ``q -> sigma_w^2 q + sigma_b^2``, and likewise for the cross moment.

        The output is a new Gaussian atom. For standardised weights, ``q - mean^2`` replaces q.
        """
        (below,) = inputs
        if not op.one_tap:
            self.note(node, DELTA_CONVOLUTIONS, "convention")
        if _reaches_beyond(op):
            self.note(node, WIDE_PADDING)
        scale, shift = self._sigmas(op, node)
        weight, bias = scale * scale, shift * shift
        gaussian = grouped(self.statistics, op, node, below)
        passed = (
            self.statistics.centred(op, below, node, gaussian)
            if op.standardised
            else self.statistics.parts(below)
        )
        parts = [part.times(weight) for part in passed]
        if not is_zero(bias):
            parts.append(Part(bias, bias, bias, ratio=1))
        moments = Moments(*self.statistics.mixed(parts, node))
        return Channels.one(self.ledger.fresh(node, moments, gaussian))

    def _sigmas(self, op: P.Fresh, node: Node) -> tuple[Number, Number]:
        """Return (sigma_w, sigma_b) of new weights, as numbers of the field."""
        return self.field.number(op.sigma_w), self.field.number(op.sigma_b)

    @rule.register
    def _(self, op: P.Post | P.Surrogate, node: Node, inputs: Sequence[Channels]) -> Channels:
        return inputs[0].map(lambda pair: self.activations.activated(op.activation, pair, node))

    @rule.register
    def _(self, op: P.Mix, node: Node, inputs: Sequence[Channels]) -> Channels:
        """Return ``sum_i w_i f_i`` with its cross terms.

        Independent centred addends give ``q = sum_i w_i^2 q_i``.
        """
        weights = [self.field.number(w) for w in op.weights]
        if len(weights) == 1:
            factor = (weights[0], weights[0])
            return inputs[0].map(
                lambda pair: self.statistics.checked(
                    self.statistics.affinely(pair, factor, (0, 0), node), node
                )
            )

        def add(pairs: Sequence[Pair]) -> Pair:
            note_raw_means(self.ledger, pairs, node)
            try:
                found = self.statistics.checked(
                    self.algebra.weighted_sum(pairs, weights, node), node
                )
                if not disjoint([p.support for p in pairs]):
                    self.note(
                        node, "the addends share weights; their cross terms are computed", "exact"
                    )
                return found
            except FreshnessError as error:
                if not self.statistics.assume_independent:
                    raise FreshnessError(
                        error.message,
                        "; or pass assume_independent=True to treat the addends as independent",
                    ) from None
            note_raw_pairs(self.ledger, pairs, node)
            self.note(
                node, "the addends are treated as independent and centred, which they are not"
            )
            parts = [
                self.algebra.moments.own(p.moments).times(w * w)
                for p, w in zip(pairs, weights, strict=True)
            ]
            moments = Moments(*self.statistics.mixed(parts, node))
            return self.ledger.fresh(node, moments, all(p.gaussian for p in pairs))

        return combine_channel_groups(inputs, add, node)

    @rule.register
    def _(self, op: P.Prod, node: Node, inputs: Sequence[Channels]) -> Channels:
        """Return ``prod_i f_i``; q values, c values and means of independent factors multiply."""
        if any(pair.raw for state in inputs for pair in state.pairs):
            self.note(node, CENTRED, "convention")
        return combine_channel_groups(
            inputs, lambda pairs: self.activations.product(pairs, node), node
        )

    @rule.register
    def _(self, op: P.Join, node: Node, inputs: Sequence[Channels]) -> Channels:
        return Channels.joined(inputs, op.channels, node)

    @rule.register
    def _(self, op: P.Norm, node: Node, inputs: Sequence[Channels]) -> Channels:
        """Map ``c -> (sqrt(q1 q2) c - mu1 mu2) / sqrt((q1 - mu1^2)(q2 - mu2^2))`` and q -> 1.

        The means mu and the q values are taken over all channels. An RMSNorm does not centre, so it
        leaves c unchanged. For statistics over positions, all positions are assumed to have the
        same q value and mean. Groups of channels that each lie in one part of a concatenation use
        the q value and mean of that part. For a large batch, ``c -> (c - b) / (1 - b)``, where
        ``b`` is the c value between examples of the batch [De and Smith 2020].
        """
        (below,) = inputs
        if op.over == "batch":
            if op.batch_c is None or not op.centred:
                raise no_rule("kernel maps", op, node)
            between = self.field.number(op.batch_c)
            self.note(node, EQUAL_EXAMPLES, "heuristic")
            return below.map(lambda pair: self.statistics.batched(pair, between, node))
        check_several(op, node)
        check_groups(self.statistics, op, node, below)
        if op.over == "positions":
            self.note(node, EQUAL_POSITIONS, "convention")

        def normalised(state: Channels) -> Channels:
            mean1, mean2 = self.statistics.means(state, node) if op.centred else (0, 0)
            q1, q2, _ = self.algebra.moments.mix(self.statistics.parts(state))
            return self.statistics.divided(state, q1, q2, mean1, mean2, node)

        return below.normalised(op.groups, normalised)

    @rule.register
    def _(self, op: P.Window, node: Node, inputs: Sequence[Channels]) -> Channels:
        """Windows act as the identity.

        A permutation of positions preserves q (times the square of a common factor) and c.
        """
        (below,) = inputs
        if not isinstance(op, P.Blend) or op.matrix is None:
            if op.mixes:
                self.note(node, POOLING[op.pooling])
            return below
        size, array = op.permutes, np.array(op.matrix)
        if size is None and op.random:
            self.note(node, GAUSSIAN)
            return below.map(lambda pair: self._mixed(pair, op, node))
        if size is None:
            raise no_rule("kernel maps", op, node)
        stays = np.array_equal(array, array[0, 0] * np.eye(*array.shape))
        signs = set(np.sign(array[array != 0]))
        if len(signs) > 1:
            self._check_centred(below, node)
        factor = self.field.number(min(signs) * size if len(signs) == 1 else size)
        if not stays:
            self.note(
                node,
                "tokens are only permuted; all tokens are assumed to have the same q value and "
                "mean",
                "convention",
            )
        return below.map(
            lambda pair: self._with_permuted_tokens(
                self.statistics.affinely(pair, (factor, factor), (0, 0), node), node, stays
            )
        )

    def _mixed(self, pair: Pair, op: P.Blend, node: Node) -> Pair:
        """Mix positions with new Gaussian weights."""
        square, m = self.field.number(op.square), pair.moments
        return self.ledger.fresh(node, Moments(square * m.q1, square * m.q2, m.gap))

    def _check_centred(self, below: Channels, node: Node) -> None:
        """Reject a change of sign if a group of channels has a mean, even if the means sum to 0."""
        self.statistics.means(below, node)  # records the assumption that inputs have channel mean 0
        if not all(
            is_zero(mean)
            for pair in below.pairs
            for mean in (pair.moments.mean1, pair.moments.mean2)
        ):
            raise KcalcError(
                f"node {node!r} changes the sign of some tokens of a feature map whose mean is "
                "not 0, so its tokens are no longer exchangeable; use the same sign for all rows "
                "of the matrix, or put the TokenMix after an Affine"
            )

    @staticmethod
    def _with_permuted_tokens(pair: Pair, node: Node, stays: bool) -> Pair:
        """Return the feature map with its tokens permuted: the same moments, but a new atom.

        ``stays``: the matrix is a multiple of the identity, so the atoms are kept.
        """
        if stays:
            return pair
        atom = Atom(node, pair.moments, pair.support, pair.gaussian, pair.raw, mixed=True)
        return Pair.of(atom).at(pair.window)

    @rule.register
    def _(self, op: P.Positions, node: Node, inputs: Sequence[Channels]) -> Channels:
        return self.position_state(node, False)

    def position_state(self, node: Node, different_positions: bool) -> Channels:
        """The state of vectors that distinguish positions.

        The vectors are the same for all inputs at one position, and orthogonal at
        ``different_positions``.
        """
        one1, one2, none = self._unit
        moments = Moments(one1, one2, none + 1 if different_positions else none)
        return Channels.one(self.ledger.fresh(node, moments, gaussian=False, raw=True))

    @rule.register
    def _(self, op: P.Mask, node: Node, inputs: Sequence[Channels]) -> Channels:
        """Map ``q -> q / r`` for a kept fraction r and keep the covariances, or change nothing."""
        if not op.drops:
            self.note(node, "dropout is the identity, as in evaluation", "convention")
            return inputs[0]
        self.note(node, SAME_MASKS if self.same_masks else MASKS, "convention")
        keep = 1 - self.field.number(op.rate)
        return inputs[0].map(
            lambda pair: self.statistics.dropped(pair, keep, node, self.same_masks)
        )

    @rule.register
    def _(
        self,
        op: P.Passing,
        node: Node,
        inputs: Sequence[Channels],
    ) -> Channels:
        if isinstance(op, P.Moving) and op.mixes:
            self.note(node, INTERPOLATION)
        return inputs[0]


def _reaches_beyond(layer: P.Fresh) -> bool:
    """Whether, on some axis, no tap reads the image at both the first and the last output.

    The check assumes strides of 1.
    """
    if isinstance(layer.padding, str):
        return False
    pads = layer.padding if isinstance(layer.padding, tuple) else (layer.padding,)
    taps = layer.kernel if isinstance(layer.kernel, tuple) else (layer.kernel,)
    steps = layer.dilation if isinstance(layer.dilation, tuple) else (layer.dilation,)
    most = max(map(len, (pads, taps, steps)))
    axes = zip(*(v * most if len(v) == 1 else v for v in (pads, taps, steps)), strict=False)
    return any(2 * pad > (tap - 1) * step for pad, tap, step in axes)


def kernel_over(
    field: Any = NUMPY,
    uniform: bool = False,
    follow_c: bool = True,
    assume_independent: bool = False,
    local: Any = None,
) -> Kernel:
    """The kernel calculus over a number system.

    ``uniform``: both inputs have the same q and mean, so both use the first input's values.
    ``follow_c``: carry the gap as a :class:`Jet` in c; otherwise carry only q, which may be a Jet.
    ``assume_independent``: if a hypothesis of the calculus fails, record a note instead of raising
    an error. ``local``: the local maps of activations; by default ``FieldMaps(field)``.
    """
    moments = SecondMoments(field, uniform)
    statistics = Statistics(moments, AssumptionLog(), follow_c, assume_independent)
    algebra = Algebra(moments)
    return Kernel(statistics, algebra, Activations(statistics, algebra, local or FieldMaps(field)))


class KernelReading:
    """A network with the options of the kernel calculus.

    ``assume`` is ``assume_independent``. ``said`` describes the inputs; None means vectors.
    """

    said: Any = None

    def __init__(self, network: Network, assume: bool) -> None:
        self.network, self.assume = network, truth(assume, "assume_independent")

    def plain_kernel(
        self,
        field: Any = NUMPY,
        uniform: bool = True,
        follow_c: bool = True,
        local: FieldMaps | None = None,
    ) -> Kernel:
        """The calculus of kernel maps over a number system, at one token.

        ``local`` replaces the local maps of activations of the number system.
        """
        if local is None and ("kernel maps", field.kind) in KERNELS:
            return KERNELS["kernel maps", field.kind](uniform, follow_c, self.assume)
        local = local or field_maps_of(self.network, field)
        return kernel_over(field, uniform, follow_c, self.assume, local)

    def interpreted(self, kernel: Any, inputs: dict[Node, State]) -> dict[Node, State]:
        """The state of every node."""
        with np.errstate(all="ignore"):  # the rules raise a KcalcError that names the node
            return interpret(self.network, kernel, inputs)

    def require_closed(self) -> None:
        """Raise KcalcError if the reading has only values: no enclosures, formulas or matrices."""

    def noting(self, first: Assumption, notes: Iterable[Assumption]) -> tuple[Assumption, ...]:
        """Return the notes of one reading, preceded by the assumptions common to every reading."""
        said = () if self.said is None else self.said.assumptions(self.network)
        varying = varying_values(self.network)
        return (first, *said, *self.network.assumptions, *varying, *notes)
