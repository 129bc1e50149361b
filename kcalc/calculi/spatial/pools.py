"""Fixed weights over locations: means over windows, weighted means and matrices.

``K'[p, p'] = mean over s, t in the windows of K[p + s, p' + t]``
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...fields.jets import Jet
from ...foundation.errors import KcalcError
from ..atoms import Atom, Pair
from ..channels import Channels
from ..kernel import Kernel
from ..second_moments import Moments
from ..windows import Gather, Mixing, TapWindow
from .convolutions import Convolutions
from .forms import Forms

Node = Hashable
Array = np.ndarray
WEIGHTED = (
    "weighted mean pooling averages over its random weights, which all channels share (exact "
    "in the limit of many locations per window)"
)
LOST = 1e-13  # a pooled q below this fraction of its upper bound is set to 0


@dataclass(frozen=True)
class Pools:
    """The rules for pooling and for matrices over locations.

    ``pooled`` is {Pool node: [(q1, q2) per channel group]}, computed in a first pass that pairs
    every image with itself. During the first pass, ``pooled`` is None, and ``recorded`` collects
    {Pool node: [q per channel group]}.
    """

    kernel: Kernel
    forms: Forms
    convolutions: Convolutions
    pooled: Mapping[Node, Sequence[tuple[Array, Array]]] | None = None
    recorded: dict[Node, list[Array]] = field(default_factory=dict)

    def weighted_mean(self, node: Node, below: Channels) -> Channels:
        """Apply weighted means whose random weights are shared by all channels."""
        window = self.forms.places[node].window
        assert isinstance(window, TapWindow)
        self.kernel.note(node, WEIGHTED)
        return below.map(lambda pair: self._weighted(pair, window, node))

    def mean(self, node: Node, below: Channels) -> Channels:
        """Apply fixed weights over locations: means over windows, or a matrix."""
        window = self.forms.places[node].window
        assert isinstance(window, TapWindow | Mixing)
        order: list[Pair] = []

        def change(pair: Pair) -> Pair:
            order.append(pair)
            return self._averaged(pair, window, node, len(order) - 1)

        return below.map(change)

    def _weighted(self, pair: Pair, window: TapWindow, node: Node) -> Pair:
        q1, q2, gap = self.convolutions.convolved(
            Channels.one(pair), window, 1 / window.taps, (), node
        )
        whole = window.taps / window.counts  # means over the image locations, without padding
        one, two = self.forms.lifted(q1 * whole, q2 * whole, node)
        return self.kernel.statistics.checked(
            self.kernel.ledger.fresh(node, Moments(one, two, gap), gaussian=False), node
        )

    def gathered(self, pair: Pair, node: Node) -> Pair:
        """Return one group of channels at locations that copy another location or contain 0.

        If two locations read different channels of one location, their second moment is the product
        of the means.
        """
        m, place, source = pair.moments, self.forms.places[node], self.forms.parents[node][0]
        window, full = place.window, self.forms.places[source].full
        assert isinstance(window, Gather)
        at, dead = np.maximum(window.sources, 0), window.sources < 0

        def own(value: Any, factor: float) -> Array:
            values = self.forms.spread(np.asarray(value), source)[..., at]
            return np.where(dead, 0.0, factor * values)

        q1, q2 = (own(v, window.factor) for v in self.forms.sides((m.q1, m.q2), source))
        size = np.sqrt(window.factor)
        mean1, mean2 = (own(v, size) for v in self.forms.sides((m.mean1, m.mean2), source))
        q1, q2 = self.forms.lifted(q1, q2, node)
        mean1, mean2 = self.forms.lifted(mean1, mean2, node)
        parts = [self._picked(part, at, full, place.full) for part in m.gap.coefficients]
        apart = window.channels[:, None] != window.channels[None] if place.full else False
        if np.any(apart):
            if pair.raw:
                raise KcalcError(
                    f"node {node!r} turns channels of an image into locations, but their "
                    "correlation is unknown; put an Affine before it"
                )
            norm = np.sqrt(q1) * np.sqrt(q2)
            cosine = mean1 * mean2 / np.where(norm > 0, norm, 1.0)
            parts = [np.where(apart, 0.0 if i else 1 - cosine, p) for i, p in enumerate(parts)]
        gone = dead[:, None] | dead[None] if place.full else dead
        parts = [np.where(gone, 0.0 if i else 1.0, p) for i, p in enumerate(parts)]
        moments = Moments(q1, q2, Jet(tuple(parts)), mean1, mean2)
        return Pair.of(Atom(node, moments, pair.support, pair.gaussian, pair.raw, mixed=True))

    def _picked(self, values: Any, at: Array, full: bool, wanted: bool) -> Array:
        """Select values for pairs of locations at the locations ``at``."""
        values = np.asarray(values)
        if full and wanted:
            return values[..., at[:, None], at[None]]
        if full:
            return values[..., at, at]
        picked = np.broadcast_to(values, (*values.shape[:-1], at.max() + 1))[..., at]
        return (
            picked if not wanted else np.broadcast_to(picked[..., None], (*picked.shape, len(at)))
        )

    def _averaged(self, pair: Pair, window: TapWindow | Mixing, node: Node, group: int) -> Pair:
        """Average one group of channels over windows."""
        m, place, source = pair.moments, self.forms.places[node], self.forms.parents[node][0]
        joint = np.sqrt(m.q1) * np.sqrt(m.q2)
        shares = np.outer(window.counts, window.counts)
        below = [joint * part for part in (1 - m.gap.value, *(-a for a in m.gap.coefficients[1:]))]
        if not self.forms.places[source].full:  # the input has only one location
            below = [np.asarray(part)[..., None] for part in below]
        kernels = [window.summed_apart(part) / shares for part in below]
        if not place.full:
            kernels = [np.diagonal(part, axis1=-2, axis2=-1) for part in kernels]
        if self.pooled is None:
            own = np.diagonal(kernels[0], axis1=-2, axis2=-1) if place.full else kernels[0]
            sizes = np.where(
                own
                > LOST * window.greatest(self.forms.spread(self.forms.first(m.q1, source), source)),
                own,
                0.0,
            )
            self.recorded.setdefault(node, []).append(sizes)
            q1, q2 = self.forms.lifted(sizes, sizes, node)
        else:
            q1, q2 = self.forms.lifted(*self.pooled[node][group], node)
        norm = np.sqrt(q1) * np.sqrt(q2)
        gap = np.clip(
            np.where(norm > 0, 1 - kernels[0] / np.where(norm > 0, norm, 1.0), 1.0), 0.0, 2.0
        )
        if self.pooled is None and place.full:
            gap[..., np.arange(place.count), np.arange(place.count)] = 0.0
        elif self.pooled is None:
            gap = np.zeros_like(gap)
        rest = [-self.forms.over_norm(part, q1, q2, node) for part in kernels[1:]]
        means = [
            self._pooled_mean(mean, window, node)
            for mean in self.forms.sides((m.mean1, m.mean2), source)
        ]
        mean1, mean2 = self.forms.lifted(means[0], means[1], node)
        atom = Atom(
            node,
            Moments(q1, q2, Jet((gap, *rest)), mean1, mean2),
            pair.support,
            pair.gaussian,
            pair.raw,
            mixed=True,
        )
        return self.kernel.statistics.checked(Pair.of(atom), node)

    def _pooled_mean(self, mean: Array, window: TapWindow | Mixing, node: Node) -> Array:
        return window.summed(self.forms.spread(mean, self.forms.parents[node][0])) / window.counts
