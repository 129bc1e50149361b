"""The state of kernel maps, and the moments that rules put together: what all rules of :class:`kcalc.calculi.kernel.Kernel` stand on."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import FreshnessError, KcalcError
from ..fields import NUMPY
from ..fields.jets import Jet
from ..layers import Affine, GroupNorm
from ..maps import Assumption
from .atoms import Atom, Pair, Term
from .channels import Channels
from .checks import check_q, check_variance
from .freshness import Algebra
from .second_moments import Moments, Part, is_zero

Number = Any
Two = tuple[Number, Number]
Node = Hashable
FEW = 64  # channels per group under which a grouped convolution is far from Gaussian
SMALL = 1e-3  # of q: a variance over channels below it is not taken as the difference q - mean^2


@dataclass
class KernelMoments:
    """One number system, what is noted on the way, and the second moments of feature maps.

    ``uniform``: both inputs have the same q, so second-input numbers repeat the first's. ``follow_c``: carry the gap, a
    :class:`Jet` in c (otherwise q alone, where q may be a Jet). ``channels``: channel counts of the Concat nodes;
    ``widths``: how many channels grouped Affine nodes read, where known.
    ``assume_independent``: go on where a hypothesis of the calculus fails, recording it in ``notes``.
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
        if not many or (self.widths or {}).get(node) == 1:
            raise KcalcError(f"node {node!r} standardises weights over one input channel, which leaves none; use standardised=False")
        mean1, mean2 = self._means(state, node)
        if is_zero(mean1) and is_zero(mean2):
            return self._parts(state)
        q1, q2, _ = self.algebra.mix(self._parts(state))
        centred = self._about_mean(state, (q1, q2), (mean1, mean2), node)
        if centred is not None:
            return [self.algebra.own(centred)]
        return [*self._parts(state), Part.of_means(mean1, mean2, sign=-1)]

    def _about_mean(self, state: Channels, q: Two, mean: Two, node: Node) -> Moments | None:
        """The moments about the channel means where differences would lose digits, else None.

        Raises: KcalcError where the differences ``q - mean^2`` have too few digits.
        """
        left = [size - m * m for size, m in zip(q, mean, strict=True)]
        for variance, size in zip(left, q, strict=True):
            check_variance(self.field, variance, size, node)
        if self.field is not NUMPY or isinstance(left[0], Jet):
            return None
        share = min(float(np.min(variance / size)) for variance, size in zip(left, q, strict=True))
        if share > SMALL:
            return None
        found = self._centred_activation(state)
        if found is None:
            digits = f"c values keep about {int(15 + math.log10(share))} digits"
            text = f"the variance over channels is {share:.1g} of q: {digits}"
            self.note(node, text, "convention")
        return found

    def _centred_activation(self, state: Channels) -> Moments | None:
        """The moments of one activation of a Gaussian about its mean; None for other channels.

        The variance is ``Q (1 - C(0))`` of the local maps, and with ``J = sqrt(q1 q2)``, the means
        ``m_j`` and the standard deviations ``s_j``
        ``1 - c = (J gap - (m1 s2 - m2 s1)^2 / (J + m1 m2 + s1 s2)) / (s1 s2)``.
        """
        terms = state.pairs[0].terms
        if len(terms) != 1 or len(state.groups) > 1:
            return None
        (term,) = terms
        atom, m = term.atom, term.atom.moments
        if atom.activation is None or atom.source is None:
            return None
        if not np.all(np.asarray(term.a1 * term.a2) > 0):
            return None
        square, phi, source = atom.scale * atom.scale, atom.activation, atom.source.moments
        one, two = (phi.taylor(np.ones(()), square * q, None, 0)[0] for q in (source.q1, source.q2))
        var1, var2 = m.q1 * one, m.q2 * two
        if not self.follow_c:
            gap: Number = 0
        elif self.uniform:
            gap = m.gap * (1 / one)
        else:
            joint, left = self.algebra.geometric(m.q1, m.q2), self.algebra.geometric(var1, var2)
            apart = (m.mean1 * np.sqrt(var2) - m.mean2 * np.sqrt(var1)) ** 2
            gap = (m.gap * joint - apart / (joint + m.mean1 * m.mean2 + left)) * (1 / left)
        return Moments(term.a1**2 * var1, term.a2**2 * var2, gap, 0, 0)

    def whole(self, state: Channels) -> tuple[Number, Number, Number]:
        """(q1, q2, gap) over all channels of a feature map."""
        if len(state.groups) == 1:
            m = state.pairs[0].moments
            return m.q1, m.q2, m.gap
        q1, q2, gap = self.algebra.mix(self._parts(state))
        return q1, q2, self._clipped(gap)

    def variance(self, state: Channels) -> float:
        """The variance over all channels of a feature map, as a float."""
        q, mean = float(self.whole(state)[0]), float(state.average(_mean1, self.field))
        left = q - mean * mean
        centred = self._centred_activation(state) if left < SMALL * q else None
        return left if centred is None else float(centred.q1)

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
        return Jet((self.field.clipped(gap.value), *gap.coefficients[1:]))

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
        centred = self._about_mean(below, (q1, q2), (mean1, mean2), node)
        if centred is not None:
            return Channels.one(self._standardised(below.pairs[0], centred, node))
        var1 = q1 - mean1 * mean1
        var2 = var1 if self.uniform else q2 - mean2 * mean2
        s1 = 1 / self.algebra.root(var1)
        s2 = s1 if self.uniform else 1 / self.algebra.root(var2)
        t1, t2 = (0 if is_zero(mean) else -mean * scale for mean, scale in ((mean1, s1), (mean2, s2)))
        out = below.map(lambda pair: self._affinely(pair, (s1, s2), (t1, t2), node))
        if len(out.groups) == 1:
            one = q1 * 0 + 1  # by definition, and free of rounding
            moments = replace(out.pairs[0].moments, q1=one, q2=one if self.uniform else q2 * 0 + 1)
            return Channels.one(replace(out.pairs[0], moments=moments))
        return out

    def _standardised(self, pair: Pair, centred: Moments, node: Node) -> Pair:
        """One activation less its mean, of moments ``centred``, over its standard deviation."""
        (term,) = pair.terms
        s1, s2 = term.a1 / np.sqrt(centred.q1), term.a2 / np.sqrt(centred.q2)
        one, m = centred.q1 * 0 + 1, term.atom.moments
        moments = Moments(one, one if self.uniform else centred.q2 * 0 + 1, centred.gap, 0, 0)
        made = Pair(moments, (Term(s1, s2, term.atom),), -s1 * m.mean1, -s2 * m.mean2, pair.window)
        return self._checked(made, node)

    def _batched(self, pair: Pair, between: Number, node: Node) -> Pair:
        """One group of channels centred and divided by the statistics of a batch whose examples have the c value ``between``."""
        m = pair.moments
        check_variance(self.field, m.q1 * (1 - between), m.q1, node)
        one, gap = m.q1 * 0 + 1, m.gap if not self.follow_c else m.gap * (1 / (1 - between))
        if self.follow_c and self.field is NUMPY and np.any(gap.value > 2 + 1e-9):
            least = 2 * float(between) - 1
            raise KcalcError(
                f"node {node!r}: c = {1 - float(np.max(m.gap.value)):.6g} there, but inputs of a batch with pairwise "
                f"c = {float(between):.6g} have c >= {least:.6g}; take a batch of smaller c, kc.large_batch(net, c=...)"
            )
        moments = Moments(one, one if self.uniform else m.q2 * 0 + 1, self._clipped(gap), 0, 0)
        return replace(Pair.of(Atom(node, moments, pair.support, pair.gaussian)), window=pair.window)

    def _check_several(self, node: Node) -> None:
        """Refuse statistics over one channel."""
        if (self.widths or {}).get(node) == 1:
            raise KcalcError(
                f"node {node!r} normalises over a single channel, which leaves nothing of its size; use more channels, or remove it"
            )

    def _check_groups(self, layer: GroupNorm, node: Node, below: Channels) -> None:
        """Refuse groups of one channel, and of unlike feature maps."""
        width = (self.widths or {}).get(node)
        if layer.groups > 1 and width == layer.groups:
            raise KcalcError(
                f"node {node!r} normalises every channel by itself (instance normalisation): over the locations of one random "
                "function, not over many channels; use fewer groups, or drop it with net.without_normalization()"
            )
        if layer.groups > 1 and len(below.groups) > 1:
            raise FreshnessError(f"node {node!r} normalises groups of a concatenation of unlike feature maps; use groups=1 or LayerNorm")
        if layer.groups > 1 and width is not None and width // layer.groups < FEW:
            self.note(node, f"each group has {width // layer.groups} channels only, treated as many")

    def _grouped(self, layer: Affine, node: Node, below: Channels) -> bool:
        """Whether an affine output is Gaussian; records what grouped convolutions assume."""
        if layer.groups == 1:
            return True
        if len(below.groups) > 1 and not self.assume_independent:
            raise FreshnessError(
                f"node {node!r} is a grouped Affine after a concatenation of unlike feature maps, so its groups differ; "
                "put an Affine with groups=1 in between",
                ", or pass assume_independent=True",
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
