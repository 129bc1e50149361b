"""Statistics over the channels of a feature map (means, variances, norms), with their checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..fields import NUMPY
from ..fields.jets import Jet
from ..foundation.errors import FreshnessError, KcalcError
from ..maps.maps import Assumption
from ..network.primitives import Fresh, Norm, owner
from .atoms import Atom, Pair, Term, raw_inputs
from .channels import Channels
from .checks import check_q, check_variance
from .second_moments import Moments, Part, SecondMoments, is_zero
from .tape import recordable

Number = Any
Two = tuple[Number, Number]
Node = Hashable
FEW = 64  # channels per group below which a grouped convolution is far from Gaussian
SMALL = 1e-3  # a variance below this fraction of q is not computed as the difference q - mean^2


CENTRED = "the network input has channel mean 0"


@dataclass
class AssumptionLog:
    """The assumptions made during a pass over a network, and the number of bits in use.

    Every layer of new weights and every input gets one bit for the supports of atoms.
    """

    notes: dict[tuple[Node, str], Assumption] = field(default_factory=dict)
    bits: int = 0

    def note(self, node: Node, text: str, kind: str = "heuristic") -> None:
        """Record an assumption made at a node."""
        self.notes.setdefault((owner(node), text), Assumption(owner(node), text, kind))

    def bit(self) -> int:
        """Return a new bit, for a layer of new weights or an input."""
        self.bits += 1
        return 1 << self.bits

    def fresh(self, node: Node, moments: Moments, gaussian: bool = True, raw: bool = False) -> Pair:
        """Return a feature map independent of earlier ones; ``raw``: whether it is an input."""
        return Pair.of(Atom(node, moments, self.bit(), gaussian, raw))


@dataclass
class Statistics:
    """Second moments of the channels of feature maps, over one number system.

    ``follow_c``: carry the gap as a :class:`Jet` in c; otherwise carry only q, which may be a Jet.
    ``assume_independent``: if a hypothesis fails, record a note instead of raising an error.
    ``check(field, q, node)`` raises KcalcError for a q value that is not allowed.
    """

    moments: SecondMoments
    ledger: AssumptionLog
    follow_c: bool = True
    assume_independent: bool = False
    check: Callable[[Any, Number, Node], None] = check_q

    def __post_init__(self) -> None:
        self.field, self.uniform, self.note = (
            self.moments.field,
            self.moments.uniform,
            self.ledger.note,
        )

    def parts(self, state: Channels) -> list[Part]:
        """Return the second moments over all channels, with each group weighted by its share."""
        if len(state.groups) == 1:
            return [self.moments.own(state.pairs[0].moments)]
        return [self.moments.own(p.moments).times(self.field.number(f)) for f, p in state.groups]

    def means(self, state: Channels, node: Node) -> tuple[Number, Number]:
        """Return the means over all channels, for both inputs."""
        if any(pair.raw for pair in state.pairs):
            self.note(node, CENTRED, "convention")
        return state.average(_mean1, self.field), state.average(_mean2, self.field)

    def centred(self, op: Fresh, state: Channels, node: Node, many: bool) -> list[Part]:
        """Return second moments about the channel means, for standardised weights.

        ``many``: whether a group has many channels. Raises: KcalcError if there is only one
        channel.
        """
        if not many or op.reads == 1:
            raise KcalcError(
                f"node {node!r} standardises its weights over a single input channel, so all of "
                "them are 0; use standardised=False"
            )
        mean1, mean2 = self.means(state, node)
        if is_zero(mean1) and is_zero(mean2):
            return self.parts(state)
        q1, q2, _ = self.moments.mix(self.parts(state))
        centred = self._about_mean(state, (q1, q2), (mean1, mean2), node)
        if centred is not None:
            return [self.moments.own(centred)]
        return [*self.parts(state), Part.of_means(mean1, mean2, sign=-1)]

    def _about_mean(self, state: Channels, q: Two, mean: Two, node: Node) -> Moments | None:
        """Return the moments about the means if ``q - mean^2`` would lose digits, else None.

        Raises: KcalcError if ``q - mean^2`` has too few digits.
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
            digits = f"c values are accurate to about {int(15 + math.log10(share))} digits"
            text = f"the variance over channels is {share:.1g} times q, so {digits}"
            self.note(node, text, "convention")
        return found

    def _centred_activation(self, state: Channels) -> Moments | None:
        """Return the moments about the mean for one activation of a Gaussian, else None.

        The variance is ``Q (1 - C(0))`` of the local maps. With ``J = sqrt(q1 q2)``, means ``m_j``
        and standard deviations ``s_j``,
        ``1 - c = (J gap - (m1 s2 - m2 s1)^2 / (J + m1 m2 + s1 s2)) / (s1 s2)``.
        """
        terms = state.pairs[0].terms
        if len(terms) != 1 or len(state.groups) > 1:
            return None
        (term,) = terms
        atom, m = term.atom, term.atom.moments
        if atom.activation is None or atom.source is None:
            return None
        square, phi, source = atom.scale * atom.scale, atom.activation, atom.source.moments
        one, two = (phi.taylor(np.ones(()), square * q, None, 0)[0] for q in (source.q1, source.q2))
        var1, var2 = m.q1 * one, m.q2 * two
        if not self.follow_c:
            gap: Number = 0
        elif self.uniform:
            gap = m.gap * (1 / one)
        else:
            joint, left = self.moments.geometric(m.q1, m.q2), self.moments.geometric(var1, var2)
            apart = (m.mean1 * np.sqrt(var2) - m.mean2 * np.sqrt(var1)) ** 2
            gap = (m.gap * joint - apart / (joint + m.mean1 * m.mean2 + left)) * (1 / left)
        return Moments(term.a1**2 * var1, term.a2**2 * var2, gap)

    def whole(self, state: Channels) -> tuple[Number, Number, Number]:
        """Return (q1, q2, gap) over all channels of a feature map."""
        if len(state.groups) == 1:
            m = state.pairs[0].moments
            return m.q1, m.q2, m.gap
        q1, q2, gap = self.moments.mix(self.parts(state))
        return q1, q2, self._clipped(gap)

    def variances(self, state: Channels, node: Node) -> tuple[Number, Number]:
        """Return the variances over all channels of a feature map, for both inputs."""
        q1, q2, _ = self.whole(state)
        one, two = self.means(state, node)
        if is_zero(one) and is_zero(two):
            return q1, q2
        centred = self._about_mean(state, (q1, q2), (one, two), node)
        return (q1 - one * one, q2 - two * two) if centred is None else (centred.q1, centred.q2)

    def variance(self, state: Channels) -> float:
        """Return the variance over all channels of a feature map, as a float."""
        q, mean = float(self.whole(state)[0]), float(state.average(_mean1, self.field))
        left = q - mean * mean
        centred = self._centred_activation(state) if left < SMALL * q else None
        return left if centred is None else float(centred.q1)

    def mixed(self, parts: Sequence[Part], node: Node) -> tuple[Number, Number, Number]:
        q1, q2, gap = self.moments.mix(parts)
        self._check(q1, q2, node)
        kept = len(parts) == 1 and gap is getattr(parts[0], "gap", None)
        return q1, q2, gap if kept else self._clipped(gap)

    def _check(self, q1: Number, q2: Number, node: Node) -> None:
        self.check(self.field, q1, node)
        if not self.uniform:
            self.check(self.field, q2, node)

    @recordable
    def _clipped(self, gap: Number) -> Number:
        """Clip c to [-1, 1] to remove rounding errors."""
        if not self.follow_c:
            return 0
        return Jet((self.field.clipped(gap.value), *gap.coefficients[1:]))

    def checked(self, pair: Pair, node: Node) -> Pair:
        m = pair.moments
        self._check(m.q1, m.q2, node)
        if not self.follow_c:
            return pair
        clipped = Moments(m.q1, m.q2, self._clipped(m.gap), m.mean1, m.mean2)
        return Pair(clipped, pair.terms, pair.shift1, pair.shift2, pair.window)

    def affinely(
        self, pair: Pair, scale: tuple[Number, Number], shift: tuple[Number, Number], node: Node
    ) -> Pair:
        """Return ``scale_j f_j + shift_j`` with its moments."""
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
            parts = [self.moments.own(m).scaled(s1 * s1, s2 * s2, s1 * s2)]
            crossed = s1 * m.mean1 * t2 + s2 * m.mean2 * t1 + t1 * t2
            parts.append(
                Part(2 * s1 * m.mean1 * t1 + t1 * t1, 2 * s2 * m.mean2 * t2 + t2 * t2, crossed)
            )
            q1, q2, gap = self.mixed(parts, node)
        terms = tuple(Term(s1 * t.a1, s2 * t.a2, t.atom) for t in pair.terms)
        shift1, shift2 = (
            t if is_zero(old) else s * old + t
            for s, old, t in ((s1, pair.shift1, t1), (s2, pair.shift2, t2))
        )
        return Pair(Moments(q1, q2, gap, mean1, mean2), terms, shift1, shift2, pair.window)

    def dropped(self, pair: Pair, keep: Number, node: Node, same: bool) -> Pair:
        """Return a feature map after dropout, where ``keep`` is the fraction of kept entries.

        The output is ``f + f (m / keep - 1)`` with a mask m for each example. The second term is
        noise of mean 0 that has no covariance with f or any other feature map. ``same``: whether
        both examples have the same mask.
        """
        m, share = pair.moments, (1 - keep) / keep
        q1 = share * m.q1
        q2 = q1 if self.uniform else share * m.q2
        gap = m.gap if same or not self.follow_c else _apart(m.gap)
        support = pair.support | self.ledger.bit()
        noise = Pair.of(Atom(node, Moments(q1, q2, gap), support, False, noise=True))
        parts = [self.moments.own(m), self.moments.own(noise.moments)]
        q1, q2, gap = self.mixed(parts, node)
        moments = Moments(q1, q2, gap, m.mean1, m.mean2)
        return Pair(moments, (*pair.terms, *noise.terms), pair.shift1, pair.shift2, pair.window)

    def divided(
        self, below: Channels, q1: Number, q2: Number, mean1: Number, mean2: Number, node: Node
    ) -> Channels:
        """Return ``(f_j - mean_j) / sqrt(q_j - mean_j^2)`` for every group of channels."""
        centred = self._about_mean(below, (q1, q2), (mean1, mean2), node)
        if centred is not None:
            return Channels.one(self._standardised(below.pairs[0], centred, node))
        var1 = q1 - mean1 * mean1
        var2 = var1 if self.uniform else q2 - mean2 * mean2
        s1 = 1 / self.moments.root(var1)
        s2 = s1 if self.uniform else 1 / self.moments.root(var2)
        t1, t2 = (
            0 if is_zero(mean) else -mean * scale for mean, scale in ((mean1, s1), (mean2, s2))
        )
        out = below.map(lambda pair: self.affinely(pair, (s1, s2), (t1, t2), node))
        if len(out.groups) == 1:
            one = q1 * 0 + 1  # exact by definition
            moments = replace(out.pairs[0].moments, q1=one, q2=one if self.uniform else q2 * 0 + 1)
            return Channels.one(replace(out.pairs[0], moments=moments))
        return out

    def _standardised(self, pair: Pair, centred: Moments, node: Node) -> Pair:
        """Return one activation minus its mean, divided by its standard deviation.

        ``centred``: the activation's moments about its mean.
        """
        (term,) = pair.terms
        s1, s2 = term.a1 / np.sqrt(centred.q1), term.a2 / np.sqrt(centred.q2)
        one, m = centred.q1 * 0 + 1, term.atom.moments
        moments = Moments(one, one if self.uniform else centred.q2 * 0 + 1, centred.gap)
        made = Pair(moments, (Term(s1, s2, term.atom),), -s1 * m.mean1, -s2 * m.mean2, pair.window)
        return self.checked(made, node)

    def batched(self, pair: Pair, between: Number, node: Node) -> Pair:
        """Return one group of channels after batch normalisation.

        ``between``: the c value of any two examples of the batch.
        """
        m = pair.moments
        check_variance(self.field, m.q1 * (1 - between), m.q1, node)
        one, gap = m.q1 * 0 + 1, self._clipped(self._in_batch(m.gap, between, node))
        moments = Moments(one, one if self.uniform else m.q2 * 0 + 1, gap)
        return Pair.of(Atom(node, moments, pair.support, pair.gaussian)).at(pair.window)

    @recordable
    def _in_batch(self, gap: Number, between: Number, node: Node) -> Number:
        """Return the gap after batch normalisation.

        Raises: KcalcError for inputs that no such batch can contain.
        """
        if not self.follow_c:
            return gap
        found = gap * (1 / (1 - between))
        if self.field is NUMPY and np.any(found.value > 2 + 1e-9):
            least = 2 * float(between) - 1
            raise KcalcError(
                f"node {node!r}: c = {1 - float(np.max(gap.value)):.6g} is too small, because "
                f"any two inputs in a batch with pairwise c = {float(between):.6g} have c >= "
                f"{least:.6g}. Use kc.large_batch(net, c=...) with a smaller c"
            )
        return found


@recordable
def _apart(gap: Jet) -> Jet:
    """Return the gap of two uncorrelated feature maps, which is 1 for all inputs."""
    return Jet((0 * gap.value + 1, *(0 * gap.value for _ in gap.coefficients[1:])))


def check_groups(statistics: Statistics, op: Norm, node: Node, below: Channels) -> None:
    """Reject groups with one channel, and groups with channels from different feature maps."""
    width = op.reads
    if op.groups > 1 and width == op.groups:
        over = ""
        if op.over == "positions":
            over = " over its locations (instance normalisation)"
        raise KcalcError(
            f"node {node!r} normalises every channel separately{over}, but kernel maps need "
            "statistics over many channels; use fewer groups, or remove the norm with "
            "net.without_normalization()"
        )
    if op.groups > 1 and not below.split_by(op.groups):
        if not statistics.assume_independent:
            raise FreshnessError(
                f"node {node!r} normalises groups of a concatenation of different feature maps, "
                "and some groups contain channels from several of them; use groups=1 or LayerNorm",
                ", or pass assume_independent=True to normalise all groups in the same way",
            )
        statistics.note(
            node, "every group of channels is normalised by the statistics of all channels"
        )
    if op.groups > 1 and width is not None and width // op.groups < FEW:
        statistics.note(
            node, f"each group has only {width // op.groups} channels, but kernel maps assume many"
        )


def grouped(statistics: Statistics, op: Fresh, node: Node, below: Channels) -> bool:
    """Return whether an affine output is Gaussian; note assumptions about grouped convolutions."""
    if op.groups == 1:
        return True
    if len(below.groups) > 1 and not statistics.assume_independent:
        raise FreshnessError(
            f"node {node!r} is a grouped Affine after a concatenation of different feature maps, "
            "so its groups differ; put an Affine with groups=1 in between",
            ", or pass assume_independent=True",
        )
    if len(below.groups) > 1:
        statistics.note(
            node, "the groups of the convolution are treated as identically distributed"
        )
    fan_in = op.reads // op.groups if op.reads is not None else None
    if fan_in == 1 or (fan_in is None and op.groups == op.features):
        return False
    if fan_in is not None and fan_in < FEW:
        statistics.note(
            node,
            f"each group of the convolution reads only {fan_in} channels, but kernel maps assume "
            "many",
        )
    else:
        statistics.note(node, "each group of the convolution has many channels", "convention")
    return True


def note_raw_means(ledger: AssumptionLog, pairs: Sequence[Pair], node: Node) -> None:
    """Record that a sum treats network inputs among its addends as having channel mean 0."""
    if any(p.raw for p in pairs) and not all(is_zero(p.moments.mean1) for p in pairs):
        ledger.note(node, CENTRED, "convention")


def note_raw_pairs(ledger: AssumptionLog, pairs: Sequence[Pair], node: Node) -> None:
    """Record that a sum treats the network inputs among its addends as uncorrelated.

    Only sums that leave out cross terms make this assumption; other sums reject two inputs.
    """
    inputs = dict.fromkeys(a.node for p in pairs for a in raw_inputs(t.atom for t in p.terms))
    if len(inputs) > 1:
        names = ", ".join(map(repr, inputs))
        ledger.note(node, f"the inputs {names} are treated as uncorrelated", "convention")


def _mean1(pair: Pair) -> Number:
    return pair.moments.mean1


def _mean2(pair: Pair) -> Number:
    return pair.moments.mean2
