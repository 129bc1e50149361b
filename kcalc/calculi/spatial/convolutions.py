"""Convolutions over locations: sums over the taps of a window, and kernels of their parameters.

``K'[p, p'] = sigma_w^2 / taps * sum_t K[p + t, p' + t] + sigma_b^2``, where p and p' are locations
of two images.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...fields.jets import Jet
from ...foundation.errors import KcalcError
from ...network import primitives as P
from ..channel_statistics import grouped
from ..channels import Channels
from ..kernel import DELTA_CONVOLUTIONS, Kernel
from ..second_moments import Moments
from ..tangent import CENTRE, refuse_indirect
from ..windows import TapWindow
from .forms import Forms

Node = Hashable
Array = np.ndarray
DENSE = (
    "dense Gaussian weights, Var W = sigma_w^2 / (taps x channels); zero padding counts as zeros"
)
NEAR = 0.01  # smaller gaps 1 - c are computed from differences of vectors


def defect(a: Array, b: Array, signs: Array, full: bool) -> Array:
    """Return ``1 - sum_k sign_k a_k b_k`` for vectors (..., P, k).

    For each of the vectors, ``sum_k sign_k a_k^2`` must be 1 or 0. Small values are computed as
    ``sum_k sign_k (a_k - b_k)^2 / 2``. ``full``: whether to compute all pairs of locations, (...,
    P, P), or only equal locations, (..., P).
    """
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


@dataclass(frozen=True)
class ConvolutionWeights:
    """The initialisation of convolutions, and the parameters that the tangent kernel includes.

    ``delta``: whether only the centre tap of a convolution is non-zero. ``tangent``: whether gaps
    are jets of order 1 that carry tangent kernels. ``fan_in``: {Affine: channels read by one tap}
    for the standard parameterisation, otherwise None. ``seeds``: see
    :class:`kcalc.calculi.tangent.Tangent`.
    """

    delta: bool = False
    tangent: bool = True
    fan_in: Mapping[Node, int] | None = None
    seeds: Mapping[Node, float] | None = None


@dataclass(frozen=True)
class Convolutions:
    """The rule for new weights."""

    kernel: Kernel
    forms: Forms
    weights: ConvolutionWeights

    def emitted(self, op: P.Fresh, node: Node, below: Channels) -> Channels:
        """Return the state of the output of new weights."""
        window = self.forms.places[node].window
        assert isinstance(window, TapWindow)
        if not op.one_tap:
            self.kernel.note(
                node, DELTA_CONVOLUTIONS if self.weights.delta else DENSE, "convention"
            )
            if self.weights.delta and self.weights.tangent:
                self.kernel.note(node, CENTRE, "convention")
        gaussian = grouped(self.kernel.statistics, op, node, below)
        weight = self.kernel.field.number(op.sigma_w) ** 2 / window.taps
        extra = self._constant(op, node, below, gaussian)
        q1, q2, gap = self.convolved(below, window, weight, extra, node)
        factor = 1.0 if self.weights.seeds is None else self.weights.seeds.get(node, 0.0)
        if self.weights.tangent and factor and op.trained is not False:
            refuse_indirect(op, node)
            own = self._own(op, node, below, gap, q1, q2)
            gap = Jet((gap.value, gap.coefficients[1] - factor * own))
        one, two = self.forms.lifted(q1, q2, node)
        pair = self.kernel.ledger.fresh(node, Moments(one, two, gap), gaussian)
        return Channels.one(self.kernel.statistics.checked(pair, node))

    def _constant(
        self, op: P.Fresh, node: Node, below: Channels, many: bool
    ) -> list[tuple[float, Array, Array]]:
        """Return the terms ``sign v1 v2`` that an Affine adds to the covariance besides its taps.

        Biases have sign 1, and the subtracted means of standardised weights have sign -1. v1 and
        v2, (..., P), belong to the two images. ``many``: whether there are several input channels.
        """
        out = []
        bias = self.kernel.field.number(op.sigma_b)
        if bias:
            out.append((1.0, np.asarray(bias), np.asarray(bias)))
        if op.standardised:
            if not many:
                raise KcalcError(
                    f"node {node!r} standardises its weights over a single input channel, so all "
                    "of them are 0; use standardised=False"
                )
            source, window = self.forms.parents[node][0], self.forms.places[node].window
            assert isinstance(window, TapWindow)
            means = self.forms.sides(self.kernel.statistics.means(below, node), source)
            if any(np.any(mean) for mean in means):
                sigma, shape = self.kernel.field.number(op.sigma_w), self.forms.places[source].count
                spread = [
                    np.broadcast_to(m, (*m.shape[:-1], shape)) if m.ndim else np.full(shape, m)
                    for m in means
                ]
                out.append((-1.0, *(sigma * window.summed(m) / window.taps for m in spread)))
        return out

    def convolved(
        self,
        below: Channels,
        window: TapWindow,
        weight: float,
        extra: Sequence[tuple[float, Array, Array]],
        node: Node,
    ) -> tuple[Array, Array, Jet]:
        """Return (q1, q2) as (..., P), and the gap of a sum over taps k.

        ``1 - C = sum_k (a_k - b_k)^2 / 2 + sum_k a_k b_k gap_k``. Here a_k and b_k are the square
        roots of the two images' addends of q1 and q2, divided by sqrt(q1) and sqrt(q2). This form
        keeps the digits of 1 - C for near-duplicates.
        """
        source = self.forms.parents[node][0]
        groups = [(float(share) * weight, pair.moments) for share, pair in below.groups]
        sides = []
        for side, form in enumerate((self.forms.first, self.forms.second)):
            squares = [s * window.unfolded(form((m.q1, m.q2)[side], source)) for s, m in groups]
            total = _added(
                [
                    *(part.sum(axis=-1) for part in squares),
                    *(e[0] * e[1 + side] ** 2 for e in extra),
                ]
            )
            roots = [np.sqrt(part) for part in squares]
            constants = [
                np.broadcast_to(np.asarray(e[1 + side])[..., None], (*total.shape, 1))
                for e in extra
            ]
            sides.append(
                (self._settled(total, squares, node), np.concatenate([*roots, *constants], axis=-1))
            )
        (q1, a1), (q2, a2) = sides
        inverse1, inverse2 = (
            np.where(q > 0, 1 / np.sqrt(np.where(q > 0, q, 1)), 0.0) for q in (q1, q2)
        )
        signs = np.array([1.0] * (a1.shape[-1] - len(extra)) + [e[0] for e in extra])
        base = defect(
            a1 * inverse1[..., None], a2 * inverse2[..., None], signs, self.forms.places[node].full
        )
        shrink1, shrink2 = self.forms.lifted(inverse1, inverse2, node)
        losses = [[s * part for part in self._deficit(m)] for s, m in groups]
        lost = [
            self.forms.gathered(_added(parts), window, node) * shrink1 * shrink2
            for parts in zip(*losses, strict=True)
        ]
        return q1, q2, Jet((np.clip(base + lost[0], 0.0, 2.0), *lost[1:]))

    def _settled(self, total: Array, squares: Sequence[Array], node: Node) -> Array:
        """Check the q values ``total`` and return them.

        Raises: KcalcError if the subtracted means leave less than 1e-14 of the sum over taps.
        """
        whole = _added([part.sum(axis=-1) for part in squares])
        if np.any((total <= 1e-14 * whole) & (whole > 0) & np.isfinite(whole)):
            raise KcalcError(
                f"node {node!r} standardises weights over channels that are all equal, so its "
                f"output is 0"
            )
        return total

    @staticmethod
    def _deficit(m: Moments) -> list[Array]:
        joint = np.sqrt(m.q1) * np.sqrt(m.q2)
        return [joint * part for part in m.gap.coefficients]

    def _own(
        self, op: P.Fresh, node: Node, below: Channels, gap: Jet, q1: Array, q2: Array
    ) -> Array:
        """Return the kernel of a layer's parameters, divided by sqrt(q1 q2) of its output."""
        weights, biases = op.trains
        if self.weights.fan_in is None:
            whole = 1 - gap.value
            if weights and biases:
                return whole
            one, two = self.forms.lifted(q1, q2, node)
            shift = np.full_like(whole, self.kernel.field.number(op.sigma_b) ** 2)
            part = self.forms.over_norm(shift, one, two, node)
            return whole - part if weights else part
        if op.standardised and weights:
            raise KcalcError(
                f"node {node!r} has standardised weights, which the standard parameterisation "
                "does not support; use parameterization='ntk'"
            )
        window = self.forms.places[node].window
        assert isinstance(window, TapWindow)
        joints = [
            float(s) * np.sqrt(p.moments.q1) * np.sqrt(p.moments.q2) * (1 - p.moments.gap.value)
            for s, p in below.groups
        ]
        gathered = self.forms.gathered(_added(joints), window, node)
        own = self.weights.fan_in[node] * gathered * weights + (1 if op.bias and biases else 0)
        one, two = self.forms.lifted(q1, q2, node)
        return self.forms.over_norm(own, one, two, node)
