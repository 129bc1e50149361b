"""Kernel maps: how q values and c values travel through a network.

State of a feature map, per group of channels: ``(q1, q2, gap, mean1, mean2)`` for two inputs, ``gap = 1 - c``, and
what it is made of (:mod:`kcalc.calculi.freshness`). The rules are those of [DKS sec. 5, 8, 14, 19], corrected.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatchmethod
from typing import Any

import numpy as np

from ..activations import Activation, activation, combine
from ..compose import no_rule
from ..errors import FreshnessError, KcalcError
from ..fields import NUMPY
from ..jets import Jet
from ..layers import Affine, Concat, Dropout, Flatten, Identity, Input, Layer, LayerNorm, Nonlinear, Pool, RMSNorm, Scale, Sum
from ..maps import Assumption
from ..network import sum_weights
from .channels import Channels, overlaid
from .checks import check_q, check_variance, is_one, plain
from .freshness import Algebra, Atom, Pair, Term, disjoint, opened
from .second_moments import Moments, Part, agree, is_zero

Number = Any
Node = Hashable

FEW = 64  # channels per group under which a grouped convolution is far from Gaussian
LOCATIONS = "convolutions are Delta-initialised: only the centre tap is non-zero [DKS sec. 5.3]"
POOLING = {
    "max": "max pooling is treated as the identity (exact when the pooled locations agree) [DKS sec. 20.2]",
    "mean": "mean pooling is treated as the identity, as if it were weighted mean pooling [DKS sec. 20.1]",
    "weighted_mean": "weighted mean pooling keeps q and averages c over locations; treated as the identity [DKS sec. 20.1.2]",
}


@dataclass
class Kernel:
    """The calculus of kernel maps over one number system.

    ``uniform``: both inputs have the same q, so second-input numbers repeat the first's. ``follow_c``: carry the gap, a
    :class:`Jet` in c (otherwise q alone, where q may be a Jet). ``channels``: channel counts of the Concat nodes;
    ``widths``: how many channels grouped Affine nodes read, where known.
    ``assume_independent``: go on where a hypothesis fails, recording it in ``notes``.
    """

    field: Any = NUMPY
    uniform: bool = False
    follow_c: bool = True
    channels: Mapping[Node, Sequence[Any]] | None = None
    assume_independent: bool = False
    widths: Mapping[Node, int | None] | None = None

    def __post_init__(self) -> None:
        self.algebra = Algebra(self.field, self.uniform)
        self.notes: dict[tuple[Node, str], Assumption] = {}
        self._posts: dict[Any, Pair] = {}
        self._bits = 0

    # -- entry -----------------------------------------------------------------------------------------------------

    def start(self, node: Node, q1: Number, q2: Number, gap: Number) -> Channels:
        """The state of an Input node."""
        atom = Atom(node, Moments(q1, q2, gap, 0, 0), self._bit(), gaussian=False, raw=True)
        return Channels.one(Pair.of(atom))

    def _bit(self) -> int:
        self._bits += 1
        return 1 << self._bits

    def note(self, node: Node, text: str, kind: str = "heuristic") -> None:
        """Record an assumption made at a node."""
        self.notes.setdefault((node, text), Assumption(node, text, kind))

    # -- rules -----------------------------------------------------------------------------------------------------

    @singledispatchmethod
    def rule(self, layer: Layer, node: Node, inputs: Sequence[Channels]) -> Channels:
        """The state a layer emits. Raises: NoRule, FreshnessError, KcalcError naming the node."""
        raise no_rule("kernel maps", layer, node)

    @rule.register
    def _(self, layer: Affine, node: Node, inputs: Sequence[Channels]) -> Channels:
        """``q -> sigma_w^2 q + sigma_b^2``, ``q - mean^2`` for q if standardised, likewise the cross moment: fresh and Gaussian."""
        (below,) = inputs
        if layer.kernel not in (1, (1, 1)):
            self.note(node, LOCATIONS, "convention")
        scale, shift = self._sigmas(layer, node)
        weight, bias = scale * scale, shift * shift
        gaussian = self._grouped(layer, node, below)
        passed = self._centred(below, node, gaussian) if layer.standardised else self._parts(below)
        parts = [part.times(weight) for part in passed]
        if not is_zero(bias):
            parts.append(Part(bias, bias, bias, ratio=1))
        q1, q2, gap = self._mixed(parts, node)
        return Channels.one(Pair.of(Atom(node, Moments(q1, q2, gap, 0, 0), self._bit(), gaussian)))

    def _sigmas(self, layer: Affine, node: Node) -> tuple[Number, Number]:
        """(sigma_w, sigma_b) of an Affine in the field."""
        return self.field.number(layer.sigma_w), self.field.number(layer.sigma_b)

    @rule.register
    def _(self, layer: Nonlinear, node: Node, inputs: Sequence[Channels]) -> Channels:
        return inputs[0].map(lambda pair: self._activated(layer.activation, pair, node))

    @rule.register
    def _(self, layer: Sum, node: Node, inputs: Sequence[Channels]) -> Channels:
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
                    raise FreshnessError(f"{error}; or pass assume_independent=True to treat the addends as independent") from None
            self.note(node, "the addends are treated as independent and centred, which they are not")
            parts = [self.algebra.own(p.moments).times(w * w) for p, w in zip(pairs, weights, strict=True)]
            q1, q2, gap = self._mixed(parts, node)
            return Pair.of(Atom(node, Moments(q1, q2, gap, 0, 0), self._bit(), all(p.gaussian for p in pairs)))

        return overlaid(inputs, add, node)

    @rule.register
    def _(self, layer: Concat, node: Node, inputs: Sequence[Channels]) -> Channels:
        return Channels.joined(inputs, (self.channels or {}).get(node, (1,) * len(inputs)), node)

    @rule.register
    def _(self, layer: Scale, node: Node, inputs: Sequence[Channels]) -> Channels:
        factor = self.field.number(layer.factor)
        return inputs[0].map(lambda pair: self._affinely(pair, (factor, factor), (0, 0), node))

    @rule.register
    def _(self, layer: LayerNorm, node: Node, inputs: Sequence[Channels]) -> Channels:
        """``c -> (sqrt(q1 q2) c - mu1 mu2) / sqrt((q1 - mu1^2)(q2 - mu2^2))`` over all channels, q -> 1."""
        (below,) = inputs
        mean1, mean2 = self._means(below, node)
        q1, q2, _ = self.algebra.mix(self._parts(below))
        return self._divided(below, q1, q2, mean1, mean2, node)

    @rule.register
    def _(self, layer: RMSNorm, node: Node, inputs: Sequence[Channels]) -> Channels:
        """``q -> 1``, c kept."""
        (below,) = inputs
        q1, q2, _ = self.algebra.mix(self._parts(below))
        return self._divided(below, q1, q2, 0, 0, node)

    @rule.register
    def _(self, layer: Pool, node: Node, inputs: Sequence[Channels]) -> Channels:
        self.note(node, POOLING[layer.kind])
        return inputs[0]

    @rule.register
    def _(self, layer: Dropout, node: Node, inputs: Sequence[Channels]) -> Channels:
        self.note(node, "dropout is the identity (evaluation)", "convention")
        return inputs[0]

    @rule.register(Identity)
    @rule.register(Flatten)
    def _(self, layer: Identity | Flatten, node: Node, inputs: Sequence[Channels]) -> Channels:
        return inputs[0]

    @rule.register
    def _(self, layer: Input, node: Node, inputs: Sequence[Channels]) -> Channels:
        raise KcalcError(f"no value is given for the input {node!r}; give one for every input, {{input: value}}")

    # -- activations -----------------------------------------------------------------------------------------------

    def _activated(self, phi: Activation, pair: Pair, node: Node) -> Pair:
        """phi of a centred Gaussian; of a function of one Gaussian, the two fused; otherwise refused."""
        if pair.gaussian:
            source, scale = self._gaussian_source(pair, node)
            return replace(self._post(phi, source, scale, node), window=pair.window)
        fused = self._fusion(phi, pair, node)
        if fused is not None:
            self.note(node, f"{phi.name} is fused with the functions before it into one activation of one Gaussian", "exact")
            return replace(self._post(fused[0], fused[1], 1, node), window=pair.window)
        if not self.assume_independent:
            raise FreshnessError(
                f"node {node!r}: {phi.name} sees {self._describe(pair)}, not a fresh Gaussian pre-activation; put an Affine layer "
                "in front of it (net.preactivated() rewrites a ResNet as V2), or pass assume_independent=True to treat it as Gaussian"
            )
        self.note(node, f"{phi.name} sees {self._describe(pair)}, treated as a centred Gaussian of the same q and c")
        return self._post(phi, Atom(node, replace(pair.moments, mean1=0, mean2=0), self._bit(), True), 1, node)

    @staticmethod
    def _describe(pair: Pair) -> str:
        atoms = [t.atom for t in opened(pair.terms)]
        if any(a.raw for a in atoms):
            return "a raw network input"
        others = [a for a in atoms if not a.gaussian]
        kinds = [f"{a.activation.name} at {a.node!r}" if a.activation else f"the depthwise layer {a.node!r}" for a in others]
        shown = ", ".join(kinds[:3]) + (", ..." if len(kinds) > 3 else "")
        return f"a sum with {shown}" if len(atoms) > 1 else f"the output of {shown or 'a shifted Gaussian'}"

    def _gaussian_source(self, pair: Pair, node: Node) -> tuple[Atom, Number]:
        if len(pair.terms) == 1 and agree(pair.terms[0].a1, pair.terms[0].a2) and not isinstance(pair.terms[0].a1, Jet):
            scale = pair.terms[0].a1
            if np.ndim(scale) == 0:
                return pair.terms[0].atom, scale
        return Atom(node, pair.moments, pair.support, True, terms=pair.terms), 1

    def _post(self, phi: Activation, source: Atom, scale: Number, node: Node) -> Pair:
        """``phi(scale * source)`` with its moments: local q and c maps, and the channel mean."""
        key = (phi, id(source), scale)
        if key in self._posts:  # the same function of the same Gaussian, as in a dense block: one atom, computed once
            return self._posts[key]
        m, square = source.moments, scale * scale
        q1 = square * m.q1 if not is_one(square) else m.q1
        q2 = q1 if self.uniform else (square * m.q2 if not is_one(square) else m.q2)
        out1, mean1 = self._local_q(phi, q1)
        out2, mean2 = (out1, mean1) if self.uniform else self._local_q(phi, q2)
        gap = self._local_gap(phi, m.gap, q1, q2)
        atom = Atom(node, Moments(out1, out2, gap, mean1, mean2), source.support, False, activation=phi, source=source, scale=scale)
        self._posts[key] = self._checked(Pair.of(atom), node)
        return self._posts[key]

    def _local_q(self, phi: Activation, q: Number) -> tuple[Number, Number]:
        if isinstance(q, Jet):
            return q.compose(phi.q_series(q.value, 2, q.order)), q.compose(phi.q_series(q.value, 1, q.order))
        return phi.second_moment(q, self.field), phi.mean(q, self.field)

    def _local_gap(self, phi: Activation, gap: Number, q1: Number, q2: Number) -> Number:
        if not self.follow_c:
            return 0
        series = phi.taylor(gap.value, q1, q2, gap.order, self.field)
        return (-gap).compose([series[0], *(-a for a in series[1:])])

    def _fusion(self, phi: Activation, pair: Pair, node: Node) -> tuple[Activation, Atom] | None:
        """phi after a function of one Gaussian as one activation of that Gaussian, if that is what it sees."""
        if all(t.atom.gaussian for t in pair.terms) and agree(pair.shift1, pair.shift2) and plain(pair.shift1):
            centred = self._affinely(pair, (1, 1), (-pair.shift1, -pair.shift2), node)
            return phi.transformed(input_shift=pair.shift1), Atom(node, centred.moments, pair.support, True, terms=pair.terms)
        for terms in (pair.terms, opened(pair.terms)):
            sources = {id(t.atom if t.atom.gaussian else t.atom.source): t.atom if t.atom.gaussian else t.atom.source for t in terms}
            (source, *others) = sources.values()
            numbers = [n for t in terms for n in (t.a1, t.a2)] + [pair.shift1, pair.shift2]
            if source is None or others or not all(plain(n) for n in numbers):
                continue
            if any(type(n).__name__ == "arb" for n in numbers):
                raise FreshnessError(f"node {node!r} fuses activations with certified coefficients: it has numbers, but no enclosure")
            if all(agree(t.a1, t.a2) for t in terms) and agree(pair.shift1, pair.shift2):
                pieces = [(t.a1, t.atom.activation or activation("identity"), t.atom.scale if t.atom.activation else 1) for t in terms]
                inner = combine(pieces)
                if not is_zero(pair.shift1):
                    inner = inner.transformed(output_shift=pair.shift1)
                return phi.composed(inner), source
        return None

    # -- moments ---------------------------------------------------------------------------------------------------

    def _parts(self, state: Channels) -> list[Part]:
        """Second moments over all channels: groups weighted by their share."""
        if len(state.groups) == 1:
            return [self.algebra.own(state.pairs[0].moments)]
        return [self.algebra.own(p.moments).times(self._share(f)) for f, p in state.groups]

    def _share(self, fraction: Any) -> Number:
        return self.field.number(fraction)

    def _means(self, state: Channels, node: Node) -> tuple[Number, Number]:
        """The means over all channels."""
        if any(t.atom.raw for pair in state.pairs for t in pair.terms):
            self.note(node, "the network input has channel mean 0", "convention")
        return state.average(_mean1, self.field), state.average(_mean2, self.field)

    def _centred(self, state: Channels, node: Node, many: bool) -> list[Part]:
        """Second moments about the channel means; ``many`` channels must be there to standardise weights over."""
        if not many:
            raise KcalcError(f"node {node!r} standardises weights over one input channel, which leaves none; use standardised=False")
        mean1, mean2 = self._means(state, node)
        if is_zero(mean1) and is_zero(mean2):
            return self._parts(state)
        q1, q2, _ = self.algebra.mix(self._parts(state))
        for q, mean in ((q1, mean1), (q2, mean2)):
            check_variance(self.field, q - mean * mean, q, node)
        return [*self._parts(state), Part.of_means(mean1, mean2, sign=-1)]

    def whole(self, state: Channels) -> tuple[Number, Number, Number]:
        """(q1, q2, gap) over all channels of a feature map."""
        if len(state.groups) == 1:
            m = state.pairs[0].moments
            return m.q1, m.q2, m.gap
        q1, q2, gap = self.algebra.mix(self._parts(state))
        return q1, q2, self._clipped(gap)

    def mean(self, state: Channels) -> float:
        """The mean over all channels of a feature map, as a float."""
        return float(state.average(_mean1, self.field))

    def _mixed(self, parts: Sequence[Part], node: Node) -> tuple[Number, Number, Number]:
        q1, q2, gap = self.algebra.mix(parts)
        check_q(self.field, q1, node)
        if not self.uniform:
            check_q(self.field, q2, node)
        return q1, q2, self._clipped(gap)

    def _clipped(self, gap: Number) -> Number:
        """Keep rounding from carrying c out of [-1, 1]."""
        if not self.follow_c:
            return 0
        if self.field is NUMPY:
            return Jet((np.clip(gap.value, 0.0, 2.0), *gap.coefficients[1:]))
        return gap

    def _checked(self, pair: Pair, node: Node) -> Pair:
        check_q(self.field, pair.moments.q1, node)
        if not self.uniform:
            check_q(self.field, pair.moments.q2, node)
        return replace(pair, moments=replace(pair.moments, gap=self._clipped(pair.moments.gap)))

    def _affinely(self, pair: Pair, scale: tuple[Number, Number], shift: tuple[Number, Number], node: Node) -> Pair:
        """``scale_j f_j + shift_j`` with its moments."""
        (s1, s2), (t1, t2), m = scale, shift, pair.moments
        if self.uniform:
            s2, t2 = s1, t1
        mean1 = s1 * m.mean1 + t1
        mean2 = mean1 if self.uniform else s2 * m.mean2 + t2
        if is_zero(t1) and is_zero(t2):
            q1 = s1 * s1 * m.q1
            q2 = q1 if self.uniform else s2 * s2 * m.q2
            gap = m.gap
        else:
            parts = [self.algebra.own(m).scaled(s1 * s1, s2 * s2, s1 * s2)]
            crossed = s1 * m.mean1 * t2 + s2 * m.mean2 * t1 + t1 * t2
            parts.append(Part(2 * s1 * m.mean1 * t1 + t1 * t1, 2 * s2 * m.mean2 * t2 + t2 * t2, crossed))
            q1, q2, gap = self._mixed(parts, node)
        terms = tuple(Term(s1 * t.a1, s2 * t.a2, t.atom) for t in pair.terms)
        shift1, shift2 = (t if is_zero(old) else s * old + t for s, old, t in ((s1, pair.shift1, t1), (s2, pair.shift2, t2)))
        return Pair(Moments(q1, q2, gap, mean1, mean2), terms, shift1, shift2, pair.window)

    def _divided(self, below: Channels, q1: Number, q2: Number, mean1: Number, mean2: Number, node: Node) -> Channels:
        """``(f_j - mean_j) / sqrt(q_j - mean_j^2)``, every group alike."""
        var1 = q1 - mean1 * mean1
        var2 = var1 if self.uniform else q2 - mean2 * mean2
        for var in (var1, var2):
            check_variance(self.field, var, q1, node)
        s1 = 1 / self.algebra.root(var1)
        s2 = s1 if self.uniform else 1 / self.algebra.root(var2)
        t1, t2 = (0 if is_zero(mean) else -mean * scale for mean, scale in ((mean1, s1), (mean2, s2)))
        out = below.map(lambda pair: self._affinely(pair, (s1, s2), (t1, t2), node))
        if len(out.groups) == 1:
            one = q1 * 0 + 1  # by definition, and free of rounding
            moments = replace(out.pairs[0].moments, q1=one, q2=one if self.uniform else q2 * 0 + 1)
            return Channels.one(replace(out.pairs[0], moments=moments))
        return out

    def _grouped(self, layer: Affine, node: Node, below: Channels) -> bool:
        """Whether an affine output is Gaussian; records what grouped convolutions assume."""
        if layer.groups == 1:
            return True
        if len(below.groups) > 1 and not self.assume_independent:
            raise FreshnessError(
                f"node {node!r} is a grouped Affine after a concatenation of unlike feature maps, so its groups differ; "
                "put an Affine with groups=1 in between, or pass assume_independent=True"
            )
        if len(below.groups) > 1:
            self.note(node, "the groups of the convolution are treated as alike")
        width = (self.widths or {}).get(node)
        fan_in = width // layer.groups if width is not None else None
        if fan_in == 1 or (fan_in is None and layer.groups == layer.features):
            return False
        if fan_in is not None and fan_in < FEW:
            self.note(node, f"each group of the convolution reads {fan_in} channels only, treated as many")
        else:
            self.note(node, "each group of the convolution has many channels", "convention")
        return True

    def _note_raw_mean(self, pairs: Sequence[Pair], node: Node) -> None:
        raw = dict.fromkeys(t.atom.node for p in pairs for t in p.terms if t.atom.raw)
        if len(raw) > 1:
            self.note(node, f"the inputs {', '.join(map(repr, raw))} are taken as uncorrelated", "convention")
        if raw and not all(is_zero(p.moments.mean1) for p in pairs):
            self.note(node, "the network input has channel mean 0", "convention")


def _mean1(pair: Pair) -> Number:
    return pair.moments.mean1


def _mean2(pair: Pair) -> Number:
    return pair.moments.mean2
