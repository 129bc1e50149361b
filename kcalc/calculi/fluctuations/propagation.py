"""Fluctuations to leading order in 1/width, from covariances of the kernels of feature maps.

Given the kernel K of its input, an Affine's n channels are independent. So the kernel of phi of
these channels is F(K) plus noise with covariance Cov(phi_a phi_b, phi_c phi_d)/n. Deviations from
infinite width are linear: ``dK = D g + e``, where g is the deviation of the pre-activations'
covariance, D the derivative of the local kernel map, and e the noise. The noise terms of functions
that share Gaussians (as in a ResNet) are correlated. The coefficients of earlier noise in g are
kept as long as a later function uses the same Gaussians.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from .channels import ChannelKernels
from .reading import ChannelGaussian, Function, Groups

Array = np.ndarray
Node = Hashable
Parts = list[tuple[float, Function, bool]]


class Propagation:
    """Covariances of kernels, node by node."""

    def __init__(
        self, functions: Sequence[Function], nodes: Mapping[Node, Groups], channels: ChannelKernels
    ) -> None:
        self.functions, self.channels = functions, channels
        self.g: dict[tuple[int, int], Array] = {}  # Cov(g_v, g_w)
        self.eg: dict[tuple[int, int], Array] = {}  # Cov(e_v, g_w)
        self.ee: dict[tuple[int, int], Array] = {}
        self.held: dict[int, dict[int, Array]] = {}  # g_v = sum_k held[v][k] e_k
        self.due: defaultdict[int, list[Node]] = defaultdict(list)
        self.until: dict[int, int] = {f.id: f.id for f in functions}
        self.used: dict[ChannelGaussian, int] = {}
        for f in functions:
            for _, read, _ in parts_of(f):
                self.until[read.id] = max(self.until[read.id], f.id)
            for atom in f.amounts:
                self.used[atom] = f.id
        for node, groups in nodes.items():
            last = max(g.id for g in groups)
            self.due[last].append(node)
            for g in groups:
                self.until[g.id] = max(self.until[g.id], last)
        self.nodes = nodes

    def run(self) -> dict[Node, tuple[float, float | None, Array]]:
        """Return {node: (q, c, covariance of its kernel)}."""
        found: dict[Node, tuple[float, float | None, Array]] = {}
        live: list[Function] = []
        for f in self.functions:
            self.channels.enter(f)
            self._enter(f, live)
            live.append(f)
            for node in self.due[f.id]:
                found[node] = self._node(self.nodes[node])
            for old in [one for one in live if self.until[one.id] <= f.id]:
                self._drop(old, live)
        return found

    # -- one function ------------------------------------------------------------------------------

    def _enter(self, v: Function, live: list[Function]) -> None:
        parts = parts_of(v)
        zero = np.zeros((self.channels.size,) * 2)
        for w in live:
            self.g[v.id, w.id] = sum(
                (b * self._inherited(p, whole, w) for b, p, whole in parts), zero
            )
            self.g[w.id, v.id] = self.g[v.id, w.id].T
            self.eg[w.id, v.id] = sum(
                (b * self._noise_in(w, p, whole) for b, p, whole in parts), zero
            )
        self.g[v.id, v.id] = sum((b * self._inherited(p, whole, v) for b, p, whole in parts), zero)
        self.held[v.id] = self._holdings(v, parts)
        for w in [*live, v]:
            known = self.held[w.id].items()
            self.eg[v.id, w.id] = sum((self._noises(v, k) @ share.T for k, share in known), zero)
            self.ee[v.id, w.id] = self._noises(v, w.id)
            self.ee[w.id, v.id] = self.ee[v.id, w.id].T

    def _inherited(self, p: Function, whole: bool, w: Function) -> Array:
        """Return Cov(dK_p, g_w) if ``whole``, otherwise Cov(g_p, g_w)."""
        if not whole:
            return self.g[p.id, w.id]
        return self.channels.slope[p.id] @ self.g[p.id, w.id] + self.eg[p.id, w.id]

    def _noise_in(self, w: Function, p: Function, whole: bool) -> Array:
        """Return Cov(e_w, dK_p) if ``whole``, otherwise Cov(e_w, g_p)."""
        if not whole:
            return self.eg[w.id, p.id]
        return self.eg[w.id, p.id] @ self.channels.slope[p.id].T + self.ee[w.id, p.id]

    def _holdings(self, v: Function, parts: Parts) -> dict[int, Array]:
        out: dict[int, Array] = {}
        for b, p, whole in parts:
            slope = self.channels.slope[p.id] if whole else np.eye(self.channels.size)
            for k, share in self.held[p.id].items():
                out[k] = out.get(k, 0) + b * slope @ share
            if whole:
                out[p.id] = out.get(p.id, 0) + b * np.eye(self.channels.size)
        return {
            k: share
            for k, share in out.items()
            if any(self.used[a] >= v.id for a in self.functions[k].amounts)
        }

    def _noises(self, v: Function, k: int) -> Array:
        return self.channels.covariance(v, self.functions[k])

    def _drop(self, old: Function, live: list[Function]) -> None:
        live.remove(old)
        for w in [*live, old]:
            for table in (self.g, self.eg, self.ee):
                table.pop((old.id, w.id), None)
                table.pop((w.id, old.id), None)
        self.held.pop(old.id)

    # -- one node ----------------------------------------------------------------------------------

    def _node(self, groups: Groups) -> tuple[float, float | None, Array]:
        total = sum(g.width for g in groups)
        kernels = [(g.width / total, *self.channels.kernel[g.id]) for g in groups]
        q = sum(share * own for share, own, _ in kernels)
        c = (
            None
            if self.channels.c is None
            else sum(share * own * float(cos) for share, own, cos in kernels if cos is not None) / q
        )
        spread: Any = sum(
            (f.width * h.width / total**2 * self._between(f, h) for f in groups for h in groups),
            np.zeros((self.channels.size,) * 2),
        )
        return q, c, spread

    def _between(self, v: Function, w: Function) -> Array:
        """Return Cov(dK_v, dK_w)."""
        first, second = self.channels.slope[v.id], self.channels.slope[w.id]
        return (
            first @ self.g[v.id, w.id] @ second.T
            + first @ self.eg[w.id, v.id].T
            + self.eg[v.id, w.id] @ second.T
            + self.ee[v.id, w.id]
        )


def parts_of(f: Function) -> Parts:
    """Return the terms of a function's deviation g as (factor, function p, whole).

    A term is the factor multiplied by dK_p if ``whole``, and by g_p otherwise.
    """
    if f.reads:
        return [(f.sigma_w**2 * share, g, True) for share, g in f.reads]
    if f.adds:
        return [(w * w, g, False) for w, g in f.adds]
    return [(1.0, f.inner, False)] if f.inner is not None else []
