"""Kernel rules over pairs of locations: dense convolutions, mean pooling and flattening, exactly.

The numbers of a state are arrays. With P locations per image, images in leading axes: where all pairs of locations are followed q1 is
``(..., P, 1)``, q2 ``(..., 1, P)`` and the gap ``(..., P, P)``; where equal locations suffice all three are ``(..., P)``. Rules that act on
each location by itself are those of :class:`kcalc.calculi.kernel.Kernel`; an Affine and a Pool mix locations:

    K'[p, p'] = sigma_w^2 / taps * sum_t K[p + t, p' + t] + sigma_b^2        K'[p, p'] = mean over s, t in the windows of K[p + s, p' + t]

A location with q = 0 (a black pixel, padding) carries the constant 0: activations see phi(0) there, its gap is 1 and counts nowhere.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ... import layers as L
from ...activations import Activation
from ...errors import KcalcError
from ...fields.jets import Jet
from ..atoms import Atom, Pair
from ..channels import Channels
from ..checks import check_variance
from ..kernel import LOCATIONS, Kernel
from ..second_moments import Moments, Part
from ..tangent import CENTRE, refuse_jumps
from .geometry import Mixing, Window
from .local import LocationAlgebra, local_gap, local_q
from .plan import Place, mixes

Node = Hashable
Number = Any
Array = np.ndarray
DENSE = "dense Gaussian weights, Var W = sigma_w^2 / (taps x channels); zero padding counts as zeros"
WEIGHTED = "weighted mean pooling averages over its random weights, which all channels share (exact for many locations per window)"
NEAR = 0.01  # gaps below are computed from differences
LOST = 1e-13  # a pooled q below this part of the mean q has cancelled


def defect(a: Array, b: Array, signs: Array, full: bool) -> Array:
    """``sum_k sign_k (a_k - b_k)^2 / 2`` of vectors (..., P, k) of norm 1 (or 0: then it is 1), at equal locations or at all pairs."""
    if full:
        value = 1 - np.matmul(a * signs, np.swapaxes(b, -1, -2))
        one, two = a[..., :, None, :], b[..., None, :, :]
    else:
        value = 1 - np.einsum("...k,...k->...", a * signs, b)
        one, two = a, b
    near = value < NEAR
    if near.any():
        exact = np.zeros(int(near.sum()))
        for k, sign in enumerate(signs):
            left, right = (np.broadcast_to(side[..., k], value.shape)[near] for side in (one, two))
            exact += sign * (left - right) ** 2 / 2
        value[near] = exact
    return value


def _added(parts: Sequence[Any]) -> Array:
    out = parts[0]
    for part in parts[1:]:
        out = out + part
    return out


@dataclass
class LocationKernel(Kernel):
    """The calculus of kernel maps over pairs of locations, in float64; gaps are jets of order 1 (tangent kernels) or 0.

    ``places``: the plan of the network; ``parents``: what every node reads; ``delta``: convolutions have their centre tap alone;
    ``fan_in``: channels one tap reads, for the standard parameterisation; ``seeds``: as in :class:`kcalc.calculi.tangent.Tangent`;
    ``pooled``: {Pool node: [(q1, q2) per channel group]} from the images by themselves, None while they are read by themselves: then
    ``recorded`` collects them.
    """

    places: Mapping[Node, Place] = field(default_factory=dict)
    parents: Mapping[Node, Sequence[Node]] = field(default_factory=dict)
    delta: bool = False
    tangent: bool = True
    fan_in: Mapping[Node, int] | None = None
    seeds: Mapping[Node, float] | None = None
    pooled: Mapping[Node, Sequence[tuple[Array, Array]]] | None = None
    recorded: dict[Node, list[Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.algebra = LocationAlgebra(self.field, False)

    # -- forms of numbers --------------------------------------------------------------------------------------------------------------

    def first(self, value: Number, node: Node) -> Array:
        """A number of the first image as ``(..., P)``."""
        return np.asarray(value)[..., 0] if self.places[node].full and np.ndim(value) else np.asarray(value)

    def second(self, value: Number, node: Node) -> Array:
        """A number of the second image as ``(..., P)``."""
        return np.asarray(value)[..., 0, :] if self.places[node].full and np.ndim(value) else np.asarray(value)

    def lifted(self, one: Array, two: Array, node: Node) -> tuple[Array, Array]:
        """``(..., P)`` of either image in the form of a node's state."""
        return (one[..., :, None], two[..., None, :]) if self.places[node].full else (one, two)

    def entered(self, node: Node, q: tuple[Array, Array], mean: tuple[Array, Array], gap: Array) -> Channels:
        """The state of an Input node from its q values and means ``(..., P)`` and the gaps in the node's form."""
        q1, q2 = self.lifted(*q, node)
        mean1, mean2 = self.lifted(*mean, node)
        jet = Jet((gap, np.zeros_like(gap))) if self.tangent else Jet((gap,))
        return Channels.one(Pair.of(Atom(node, Moments(q1, q2, jet, mean1, mean2), self._bit(), gaussian=False, raw=True)))

    # -- rules -------------------------------------------------------------------------------------------------------------------------

    def rule(self, layer: L.Layer, node: Node, inputs: Sequence[Channels]) -> Channels:
        """The state a layer emits. Raises: NoRule, FreshnessError, KcalcError naming the node."""
        if isinstance(layer, L.Affine):
            return self._affine(layer, node, inputs[0])
        if isinstance(layer, L.Pool) and mixes(layer, self.places[node]):
            return self._pool(layer, node, inputs[0])
        if isinstance(layer, L.TokenMix):
            return self._mean_pool(node, inputs[0])
        if isinstance(layer, L.Product):
            inputs = [self._broadcast(state, parent, node) for state, parent in zip(inputs, self.parents[node], strict=True)]
        if isinstance(layer, L.GroupNorm):
            return self._group_norm(layer, node, inputs[0])
        if isinstance(layer, L.Flatten | L.Pool):
            return inputs[0]
        if isinstance(layer, L.LayerNorm | L.RMSNorm):
            self._check_several(node)
            self._refuse_dead(node, inputs[0])
        if isinstance(layer, L.Nonlinear) and self.tangent:
            refuse_jumps(layer, node)
        return super().rule(layer, node, inputs)

    def _affine(self, layer: L.Affine, node: Node, below: Channels) -> Channels:
        place = self.places[node]
        window = place.window
        assert isinstance(window, Window)
        if layer.kernel not in (1, (1,) * len(place.shape)):
            self.note(node, LOCATIONS if self.delta else DENSE, "convention")
            if self.delta and self.tangent:
                self.note(node, CENTRE, "convention")
        gaussian = self._grouped(layer, node, below)
        weight = self.field.number(layer.sigma_w) ** 2 / window.taps
        extra = self._constant(layer, node, below, gaussian)
        q1, q2, gap = self._convolved(below, window, weight, extra, node)
        factor = 1.0 if self.seeds is None else self.seeds.get(node, 0.0)
        if self.tangent and factor:
            own = self._own(layer, node, below, gap, q1, q2)
            gap = Jet((gap.value, gap.coefficients[1] - factor * own))
        one, two = self.lifted(q1, q2, node)
        pair = Pair.of(Atom(node, Moments(one, two, gap, 0, 0), self._bit(), gaussian))
        return Channels.one(self._checked(pair, node))

    def _constant(self, layer: L.Affine, node: Node, below: Channels, many: bool) -> list[tuple[float, Array, Array]]:
        """What an Affine adds to the covariance beside its taps: (sign, v1, v2) for ``sign v1 v2``, v in the form (..., P)."""
        out = []
        bias = self.field.number(layer.sigma_b)
        if bias:
            out.append((1.0, np.asarray(bias), np.asarray(bias)))
        if layer.standardised:
            if not many:
                raise KcalcError(f"node {node!r} standardises weights over one input channel, which leaves none; use standardised=False")
            source, window = self.parents[node][0], self.places[node].window
            assert isinstance(window, Window)
            means = [form(value, source) for form, value in zip((self.first, self.second), self._means(below, node), strict=True)]
            if any(np.any(mean) for mean in means):
                sigma, shape = self.field.number(layer.sigma_w), self.places[source].count
                spread = [np.broadcast_to(m, (*m.shape[:-1], shape)) if m.ndim else np.full(shape, m) for m in means]
                out.append((-1.0, *(sigma * window.summed(m) / window.taps for m in spread)))
        return out

    def _convolved(
        self, below: Channels, window: Window, weight: float, extra: Sequence[tuple[float, Array, Array]], node: Node
    ) -> tuple[Array, Array, Jet]:
        """(q1, q2) as (..., P) and the gap of a sum over taps: ``1 - C = sum_k (a_k - b_k)^2 / 2 + sum_k a_k b_k gap_k``.

        a and b are the two sides' amplitudes over their own norms, so that near-duplicates keep their digits.
        """
        source = self.parents[node][0]
        groups = [(float(share) * weight, pair.moments) for share, pair in below.groups]
        sides = []
        for side, form in enumerate((self.first, self.second)):
            squares = [s * window.unfolded(form((m.q1, m.q2)[side], source)) for s, m in groups]
            total = _added([*(part.sum(axis=-1) for part in squares), *(e[0] * e[1 + side] ** 2 for e in extra)])
            roots = [np.sqrt(part) for part in squares]
            constants = [np.broadcast_to(np.asarray(e[1 + side])[..., None], (*total.shape, 1)) for e in extra]
            sides.append((self._settled(total, squares, node), np.concatenate([*roots, *constants], axis=-1)))
        (q1, a1), (q2, a2) = sides
        inverse1, inverse2 = (np.where(q > 0, 1 / np.sqrt(np.where(q > 0, q, 1)), 0.0) for q in (q1, q2))
        signs = np.array([1.0] * (a1.shape[-1] - len(extra)) + [e[0] for e in extra])
        base = defect(a1 * inverse1[..., None], a2 * inverse2[..., None], signs, self.places[node].full)
        shrink1, shrink2 = self.lifted(inverse1, inverse2, node)
        losses = [[s * part for part in self._deficit(m)] for s, m in groups]
        lost = [self._gathered(_added(parts), window, node) * shrink1 * shrink2 for parts in zip(*losses, strict=True)]
        return q1, q2, Jet((np.clip(base + lost[0], 0.0, 2.0), *lost[1:]))

    def _settled(self, total: Array, squares: Sequence[Array], node: Node) -> Array:
        """q values after constants were taken off; refused where nothing but rounding is left."""
        whole = _added([part.sum(axis=-1) for part in squares])
        if np.any((total <= 1e-14 * whole) & (whole > 0) & np.isfinite(whole)):
            raise KcalcError(f"node {node!r} standardises weights over channels that are all equal, so its output is 0")
        return total

    @staticmethod
    def _deficit(m: Moments) -> list[Array]:
        joint = np.sqrt(m.q1) * np.sqrt(m.q2)
        return [joint * part for part in m.gap.coefficients]

    def _gathered(self, values: Array, window: Window, node: Node) -> Array:
        """Sums over taps of numbers in the form of the node below, in the form of this one."""
        if self.places[node].full:
            return window.summed_pairs(values)
        if self.places[self.parents[node][0]].full:
            values = np.diagonal(values, axis1=-2, axis2=-1)
        return window.summed(values)

    def _own(self, layer: L.Affine, node: Node, below: Channels, gap: Jet, q1: Array, q2: Array) -> Array:
        """The kernel of a layer's own parameters over sqrt(q1 q2)."""
        if self.fan_in is None:
            return 1 - gap.value
        if layer.standardised:
            raise KcalcError(f"node {node!r} has standardised weights, for which the standard parameterisation has no rule; use 'ntk'")
        window = self.places[node].window
        assert isinstance(window, Window)
        joints = [float(s) * np.sqrt(p.moments.q1) * np.sqrt(p.moments.q2) * (1 - p.moments.gap.value) for s, p in below.groups]
        own = self.fan_in[node] * self._gathered(_added(joints), window, node) + (1 if layer.bias else 0)
        one, two = self.lifted(q1, q2, node)
        return self._over_norm(own, one, two, node)

    def _over_norm(self, tangent: Array, q1: Array, q2: Array, node: Node) -> Array:
        """A tangent kernel over sqrt(q1 q2); refused where it goes on although q = 0."""
        norm = np.sqrt(q1) * np.sqrt(q2)
        dead = norm == 0
        if np.any(dead & (np.abs(tangent) > 0)):
            raise KcalcError(
                f"node {node!r} is 0 at {self._location(q1, q2, node)}, but its gradient is not (as with biases that start at 0), and what "
                "activations make of that at infinite width is not defined; use parameterization='ntk', bias=False or sigma_b > 0"
            )
        return np.where(dead, 0.0, tangent / np.where(dead, 1.0, norm))

    def _pool(self, layer: L.Pool, node: Node, below: Channels) -> Channels:
        window = self.places[node].window
        assert window is not None
        if layer.kind == "weighted_mean":
            assert isinstance(window, Window)
            self.note(node, WEIGHTED)
            return below.map(lambda pair: self._weighted(pair, window, node))
        return self._mean_pool(node, below)

    def _broadcast(self, state: Channels, parent: Node, node: Node) -> Channels:
        """A factor of one location (a gate made of a global mean) in the form of a product of many."""
        if not self.places[node].full or self.places[parent].full:
            return state

        def lifted(pair: Pair) -> Pair:
            m = pair.moments
            q1, q2 = self.lifted(np.atleast_1d(m.q1), np.atleast_1d(m.q2), node)
            mean1, mean2 = self.lifted(np.atleast_1d(m.mean1), np.atleast_1d(m.mean2), node)
            gap = Jet(tuple(np.asarray(part)[..., None] for part in m.gap.coefficients))
            made = Pair.of(Atom(parent, Moments(q1, q2, gap, mean1, mean2), pair.support, pair.gaussian))
            return replace(made, window=pair.window)

        return state.map(lifted)

    def _mean_pool(self, node: Node, below: Channels) -> Channels:
        """Fixed weights over locations: means over windows, or a matrix."""
        window = self.places[node].window
        assert window is not None
        order: list[Pair] = []

        def change(pair: Pair) -> Pair:
            order.append(pair)
            return self._averaged(pair, window, node, len(order) - 1)

        return below.map(change)

    def _weighted(self, pair: Pair, window: Window, node: Node) -> Pair:
        q1, q2, gap = self._convolved(Channels.one(pair), window, 1 / window.taps, (), node)
        whole = window.taps / window.counts  # windows cut by the border are scaled up
        one, two = self.lifted(q1 * whole, q2 * whole, node)
        return self._checked(Pair.of(Atom(node, Moments(one, two, gap, 0, 0), self._bit(), False)), node)

    def _averaged(self, pair: Pair, window: Window | Mixing, node: Node, group: int) -> Pair:
        """One group of channels averaged over windows."""
        m, place, source = pair.moments, self.places[node], self.parents[node][0]
        joint = np.sqrt(m.q1) * np.sqrt(m.q2)
        shares = np.outer(window.counts, window.counts)
        below = [joint * part for part in (1 - m.gap.value, *(-a for a in m.gap.coefficients[1:]))]
        if not self.places[source].full:  # one location
            below = [np.asarray(part)[..., None] for part in below]
        kernels = [window.summed_apart(part) / shares for part in below]
        if not place.full:
            kernels = [np.diagonal(part, axis1=-2, axis2=-1) for part in kernels]
        if self.pooled is None:
            own = np.diagonal(kernels[0], axis1=-2, axis2=-1) if place.full else kernels[0]
            sizes = np.where(own > LOST * window.greatest(self._spread(self.first(m.q1, source), source)), own, 0.0)
            self.recorded.setdefault(node, []).append(sizes)
            q1, q2 = self.lifted(sizes, sizes, node)
        else:
            q1, q2 = self.lifted(*self.pooled[node][group], node)
        norm = np.sqrt(q1) * np.sqrt(q2)
        gap = np.clip(np.where(norm > 0, 1 - kernels[0] / np.where(norm > 0, norm, 1.0), 1.0), 0.0, 2.0)
        if self.pooled is None and place.full:
            gap[..., np.arange(place.count), np.arange(place.count)] = 0.0
        elif self.pooled is None:
            gap = np.zeros_like(gap)
        rest = [-self._over_norm(part, q1, q2, node) for part in kernels[1:]]
        means = [self._pooled_mean(form(v, source), window, node) for form, v in ((self.first, m.mean1), (self.second, m.mean2))]
        mean1, mean2 = self.lifted(means[0], means[1], node)
        raw = any(t.atom.raw for t in pair.terms)
        atom = Atom(node, Moments(q1, q2, Jet((gap, *rest)), mean1, mean2), pair.support, pair.gaussian, raw, mixed=True)
        return self._checked(Pair.of(atom), node)

    def _pooled_mean(self, mean: Array, window: Window | Mixing, node: Node) -> Array:
        return window.summed(self._spread(mean, self.parents[node][0])) / window.counts

    def _spread(self, values: Array, node: Node) -> Array:
        """A number per location of a node where there may be one for all of them."""
        count = self.places[node].count
        return np.broadcast_to(values, (*np.shape(values)[:-1], count)) if np.ndim(values) else np.full(count, values)

    def _group_norm(self, layer: L.GroupNorm, node: Node, below: Channels) -> Channels:
        """Centred and divided by the statistics over all locations: the same shift and scale at each of them."""
        if not all(t.atom.raw for pair in below.pairs for t in pair.terms):  # of an image that is given, one channel has statistics too
            self._check_several(node)
        self._check_groups(layer, node, below)
        mean1, mean2 = self._means(below, node)
        q1, q2, _ = self.whole(below)
        sides = []
        for q, mean, form in ((q1, mean1, self.first), (q2, mean2, self.second)):
            centre = self._spread(form(mean, node), node).mean(axis=-1, keepdims=True)
            variance = self._spread(form(q, node), node).mean(axis=-1, keepdims=True) - centre**2
            check_variance(self.field, variance, centre**2, node)
            sides.append((1 / np.sqrt(variance), -centre / np.sqrt(variance)))
        (s1, t1), (s2, t2) = sides
        scales, shifts = self.lifted(s1, s2, node), self.lifted(t1, t2, node)
        return below.map(lambda pair: self._affinely(pair, scales, shifts if np.any(t1) or np.any(t2) else (0, 0), node))

    # -- local maps --------------------------------------------------------------------------------------------------------------------

    def _local_q(self, phi: Activation, q: Number) -> tuple[Number, Number]:
        return local_q(phi, q)

    def _local_gap(self, phi: Activation, gap: Number, q1: Number, q2: Number) -> Number:
        return local_gap(phi, gap, q1, q2)

    # -- checks ------------------------------------------------------------------------------------------------------------------------

    def _mixed(self, parts: Sequence[Part], node: Node) -> tuple[Number, Number, Number]:
        q1, q2, gap = self.algebra.mix(parts)
        self._check(q1, q2, node)
        return q1, q2, self._clipped(gap)

    def _checked(self, pair: Pair, node: Node) -> Pair:
        self._check(pair.moments.q1, pair.moments.q2, node)
        return replace(pair, moments=replace(pair.moments, gap=self._clipped(pair.moments.gap)))

    def _check(self, q1: Number, q2: Number, node: Node) -> None:
        for q in (q1, q2):
            bad = ~(np.isfinite(q) & (np.asarray(q) >= 0))
            if np.any(bad):
                raise KcalcError(
                    f"node {node!r} has q = {np.asarray(q)[bad].ravel()[0]} at a location: q values must stay finite and >= 0; they "
                    "explode before this node (kc.gain(activation) gives the sigma_w that keeps q)"
                )

    def _refuse_dead(self, node: Node, below: Channels) -> None:
        q1, q2, _ = self.whole(below)
        if np.any(np.asarray(q1) == 0) or np.any(np.asarray(q2) == 0):
            where = self._location(q1, q2, node)
            raise KcalcError(f"node {node!r} normalises its input, which is 0 at {where}; add a bias (sigma_b > 0) before it")

    def _location(self, q1: Array, q2: Array, node: Node) -> str:
        for q, form in ((q1, self.first), (q2, self.second)):
            dead = np.argwhere(form(q, node) == 0)
            if dead.size:
                return f"location {tuple(int(i) for i in np.unravel_index(dead[0][-1], self.places[node].shape))} of an image"
        return "a location of an image"
