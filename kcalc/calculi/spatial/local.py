"""Activations at many locations, each with its own q value >= 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...activations import Activation
from ...foundation.errors import KcalcError
from ..zero_inputs import ZeroMaps
from .series import expansion, has_series, series_taylor

Node = Any
Array = np.ndarray
MOST = 5000  # pairs of q values to integrate numerically, tens of milliseconds each


class LocationMaps(ZeroMaps):
    """Local maps by Hermite series where they are faster."""

    def moments(self, phi: Activation, q: Array) -> tuple[Array, Array]:
        series = None if phi.closed_in_numpy else expansion(phi, q)
        return super().moments(phi, q) if series is None else (series.size, series.mean)

    def taylor(
        self, phi: Activation, gap: Array, q1: Array, q2: Array, order: int
    ) -> tuple[Array, ...]:
        if phi.closed_in_numpy:
            return phi.taylor(gap, q1, q2, order)
        series = [expansion(phi, q) for q in (q1, q2)]
        if series[0] is not None and series[1] is not None:
            return series_taylor(series[0], series[1], np.asarray(gap), order)
        pairs = (q.ravel().tolist() for q in np.broadcast_arrays(q1, q2))
        distinct = len(set(zip(*pairs, strict=True)))
        if distinct > MOST:
            raise _too_many(phi, distinct)
        return phi.taylor(gap, q1, q2, order)


def refuse_many(phi: Activation, q: Array, node: Node) -> None:
    """Refuse more than MOST pairs of positive q values where phi needs numerical integrals.

    Raises: KcalcError naming the node.
    """
    pairs = q.size * (q.size + 1) // 2
    if pairs > MOST and not phi.closed_in_numpy and not has_series(phi, q):
        raise _too_many(phi, pairs, f"node {node!r}: ")


def _too_many(phi: Activation, pairs: int, where: str = "") -> KcalcError:
    return KcalcError(
        f"{where}{phi.name} has neither a closed form nor a fast Hermite series, and these images "
        f"give {pairs} pairs of q values before it, each of which takes tens of milliseconds; put "
        "a LayerNorm or RMSNorm before it, or use fewer or smaller images"
    )
