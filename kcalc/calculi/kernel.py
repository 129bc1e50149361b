"""Kernel maps: how q values and c values travel through a network.

State of a feature map, per group of channels: ``(q1, q2, gap, mean1, mean2)`` for two inputs, ``gap = 1 - c``, and
what it is made of (:mod:`kcalc.calculi.freshness`). The rules are those of [DKS sec. 5 to 7, 9, 19], corrected.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatchmethod
from typing import Any

import numpy as np

from .. import layers as L
from ..compose import no_rule
from ..errors import FreshnessError, KcalcError
from ..network import sum_weights
from .atoms import Atom, Pair, disjoint
from .channels import Channels, overlaid
from .kernel_activations import KernelActivations
from .second_moments import Moments, Part, is_zero

Number = Any
Node = Hashable

ALIKE = "statistics over locations: all locations are taken to have one q value and one mean (exact where they do)"
BATCH = "batch normalisation of a large batch whose examples all have the same q value and pairwise c value here (kc.large_batch)"
LOCATIONS = "convolutions are Delta-initialised: only the centre tap is non-zero [DKS sec. 5.3]"
BEYOND = (
    "the padding is wider than half of the window, so that some locations read zeros at any one tap and "
    "hold biases alone; all locations are taken to read the image"
)
POOLING = {
    "max": "max pooling is treated as the identity (exact when the pooled locations agree) [DKS sec. 20.2]",
    "mean": "mean pooling is treated as the identity, as if it were weighted mean pooling [DKS sec. 20.1]",
    "weighted_mean": "weighted mean pooling keeps q and averages c over locations; treated as the identity [DKS sec. 20.1.2]",
}


@dataclass
class Kernel(KernelActivations):
    """The calculus of kernel maps over one number system; see :class:`kcalc.calculi.kernel_moments.KernelMoments` for its settings."""

    @singledispatchmethod
    def rule(self, layer: L.Layer, node: Node, inputs: Sequence[Channels]) -> Channels:
        """The state a layer emits. Raises: NoRule, FreshnessError, KcalcError naming the node."""
        raise no_rule("kernel maps", layer, node)

    @rule.register
    def _(self, layer: L.Affine, node: Node, inputs: Sequence[Channels]) -> Channels:
        """``q -> sigma_w^2 q + sigma_b^2``, ``q - mean^2`` for q if standardised, likewise the cross moment: fresh and Gaussian."""
        (below,) = inputs
        if layer.kernel not in (1, (1, 1)):
            self.note(node, LOCATIONS, "convention")
        if _reaches_beyond(layer):
            self.note(node, BEYOND)
        scale, shift = self._sigmas(layer, node)
        weight, bias = scale * scale, shift * shift
        gaussian = self._grouped(layer, node, below)
        passed = self._centred(below, node, gaussian) if layer.standardised else self._parts(below)
        parts = [part.times(weight) for part in passed]
        if not is_zero(bias):
            parts.append(Part(bias, bias, bias, ratio=1))
        q1, q2, gap = self._mixed(parts, node)
        return Channels.one(Pair.of(Atom(node, Moments(q1, q2, gap, 0, 0), self._bit(), gaussian)))

    def _sigmas(self, layer: L.Affine, node: Node) -> tuple[Number, Number]:
        """(sigma_w, sigma_b) of an Affine in the field."""
        return self.field.number(layer.sigma_w), self.field.number(layer.sigma_b)

    @rule.register
    def _(self, layer: L.Nonlinear, node: Node, inputs: Sequence[Channels]) -> Channels:
        return inputs[0].map(lambda pair: self._activated(layer.activation, pair, node))

    @rule.register
    def _(self, layer: L.Sum, node: Node, inputs: Sequence[Channels]) -> Channels:
        """``sum_i w_i f_i`` with its cross terms; independent centred addends give ``q = sum_i w_i^2 q_i``."""
        weights = [self.field.number(w) for w in sum_weights(layer, len(inputs))]

        def add(pairs: Sequence[Pair]) -> Pair:
            self._note_raw_mean(pairs, node)
            if not disjoint([p.support for p in pairs]):
                self.note(node, "the addends share weights; their cross terms are computed", "exact")
            try:
                return self._checked(self.algebra.weighted_sum(pairs, weights, node), node)
            except FreshnessError as error:
                if not self.assume_independent:
                    raise FreshnessError(error.message, "; or pass assume_independent=True to treat the addends as independent") from None
            self.note(node, "the addends are treated as independent and centred, which they are not")
            parts = [self.algebra.own(p.moments).times(w * w) for p, w in zip(pairs, weights, strict=True)]
            q1, q2, gap = self._mixed(parts, node)
            return Pair.of(Atom(node, Moments(q1, q2, gap, 0, 0), self._bit(), all(p.gaussian for p in pairs)))

        return overlaid(inputs, add, node)

    @rule.register
    def _(self, layer: L.Product, node: Node, inputs: Sequence[Channels]) -> Channels:
        """``prod_i f_i``; of independent factors q values, c values and channel means multiply."""
        if any(t.atom.raw for state in inputs for pair in state.pairs for t in pair.terms):
            self.note(node, "the network input has channel mean 0", "convention")
        return overlaid(inputs, lambda pairs: self._product(pairs, node), node)

    @rule.register
    def _(self, layer: L.Concat, node: Node, inputs: Sequence[Channels]) -> Channels:
        return Channels.joined(inputs, (self.channels or {}).get(node, (1,) * len(inputs)), node)

    @rule.register
    def _(self, layer: L.Scale, node: Node, inputs: Sequence[Channels]) -> Channels:
        factor = self.field.number(layer.factor)
        return inputs[0].map(lambda pair: self._affinely(pair, (factor, factor), (0, 0), node))

    @rule.register
    def _(self, layer: L.LayerNorm, node: Node, inputs: Sequence[Channels]) -> Channels:
        """``c -> (sqrt(q1 q2) c - mu1 mu2) / sqrt((q1 - mu1^2)(q2 - mu2^2))`` over all channels, q -> 1."""
        (below,) = inputs
        self._check_several(node)
        mean1, mean2 = self._means(below, node)
        q1, q2, _ = self.algebra.mix(self._parts(below))
        return self._divided(below, q1, q2, mean1, mean2, node)

    @rule.register
    def _(self, layer: L.RMSNorm, node: Node, inputs: Sequence[Channels]) -> Channels:
        """``q -> 1``, c kept."""
        (below,) = inputs
        self._check_several(node)
        q1, q2, _ = self.algebra.mix(self._parts(below))
        return self._divided(below, q1, q2, 0, 0, node)

    @rule.register
    def _(self, layer: L.GroupNorm, node: Node, inputs: Sequence[Channels]) -> Channels:
        """That of LayerNorm in every group, all locations being alike."""
        (below,) = inputs
        self._check_several(node)
        self._check_groups(layer, node, below)
        self.note(node, ALIKE, "convention")
        mean1, mean2 = self._means(below, node)
        q1, q2, _ = self.algebra.mix(self._parts(below))
        return self._divided(below, q1, q2, mean1, mean2, node)

    @rule.register
    def _(self, layer: L.BatchNorm, node: Node, inputs: Sequence[Channels]) -> Channels:
        """``c -> (c - b) / (1 - b)``, q -> 1, where ``b`` is the c value between the examples of a large batch [De and Smith 2020]."""
        (below,) = inputs
        if layer.batch_c is None:
            raise no_rule("kernel maps", layer, node)
        between = self._batch_c(layer, node, below)
        self.note(node, BATCH, "heuristic")
        return below.map(lambda pair: self._batched(pair, self.field.number(between), node))

    def _batch_c(self, layer: L.BatchNorm, node: Node, below: Channels) -> Number:
        return layer.batch_c

    @rule.register
    def _(self, layer: L.TokenMix, node: Node, inputs: Sequence[Channels]) -> Channels:
        """Tokens that only change places keep q (times the square of a common factor) and c."""
        size, array = layer.permutes, layer.array
        if size is None:
            raise no_rule("kernel maps", layer, node)
        (below,) = inputs
        stays = np.array_equal(array, array[0, 0] * np.eye(*array.shape))
        signs = set(np.sign(array[array != 0]))
        if len(signs) > 1:
            self._check_centred(below, node)
        factor = self.field.number(min(signs) * size if len(signs) == 1 else size)
        if not stays:
            self.note(node, "tokens change places only; all of them are alike", "convention")
        return below.map(lambda pair: self._exchanged(self._affinely(pair, (factor, factor), (0, 0), node), node, stays))

    def _check_centred(self, below: Channels, node: Node) -> None:
        """Refuse a change of sign where one group of channels has a mean, even if the means of all groups cancel."""
        self._means(below, node)  # notes that inputs count as centred
        if not all(is_zero(mean) for pair in below.pairs for mean in (pair.moments.mean1, pair.moments.mean2)):
            raise KcalcError(
                f"node {node!r} changes the sign of some tokens of a feature map whose mean is not 0, so that its tokens are no longer "
                "alike; give all rows of the matrix one sign, or put the TokenMix behind an Affine"
            )

    @staticmethod
    def _exchanged(pair: Pair, node: Node, stays: bool) -> Pair:
        """Other tokens of a feature map: alike, but not the same numbers, so that they are no term of it."""
        if stays:
            return pair
        raw = any(t.atom.raw for t in pair.terms)
        atom = Atom(node, pair.moments, pair.support, pair.gaussian, raw, mixed=True)
        return replace(Pair.of(atom), window=pair.window)

    @rule.register
    def _(self, layer: L.Pool, node: Node, inputs: Sequence[Channels]) -> Channels:
        if layer.mixes:
            self.note(node, POOLING[layer.kind])
        return inputs[0]

    @rule.register
    def _(self, layer: L.Dropout, node: Node, inputs: Sequence[Channels]) -> Channels:
        self.note(node, "dropout is the identity (evaluation)", "convention")
        return inputs[0]

    @rule.register(L.Identity)
    @rule.register(L.Flatten)
    def _(self, layer: L.Identity | L.Flatten, node: Node, inputs: Sequence[Channels]) -> Channels:
        return inputs[0]

    @rule.register
    def _(self, layer: L.Input, node: Node, inputs: Sequence[Channels]) -> Channels:
        raise KcalcError(f"no value is given for the input {node!r}; give one for every input, {{input: value}}")


def _reaches_beyond(layer: L.Affine) -> bool:
    """Whether no tap reads the image both at the first and at the last output (for strides of 1)."""
    if isinstance(layer.padding, str):
        return False
    pads = layer.padding if isinstance(layer.padding, tuple) else (layer.padding,)
    taps = layer.kernel if isinstance(layer.kernel, tuple) else (layer.kernel,)
    pads, taps = (v * max(len(pads), len(taps)) if len(v) == 1 else v for v in (pads, taps))
    return any(2 * pad > tap - 1 for pad, tap in zip(pads, taps, strict=False))
