"""Activations at many locations, each with a separate q value >= 0."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from ..activations import Activation
from ..foundation.errors import KcalcError
from ..foundation.guests import KERNELS
from .hermite_series import expansion, has_series, series_taylor
from .zero_inputs import ZeroMaps

Node = Any
Array = np.ndarray
MOST = 5000  # largest number of pairs of q values to integrate numerically, tens of ms each
TABLED = 500  # a table is built for at least this many pairs of q values
WIDEST = 12  # range of log q of a table


class LocationMaps(ZeroMaps):
    """Local maps, computed from Hermite series if that is faster."""

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
        table = _table(phi, np.concatenate([q1.ravel(), q2.ravel()])) if distinct > TABLED else None
        if table is not None:
            shape = np.broadcast_shapes(np.shape(gap), q1.shape, q2.shape)
            flat = (np.broadcast_to(a, shape).ravel() for a in (np.asarray(gap), q1, q2))
            return tuple(part.reshape(shape) for part in table.paired(*flat))[: order + 1]
        if distinct > MOST:
            raise _too_many(phi, distinct)
        return phi.taylor(gap, q1, q2, order)


def _table(phi: Activation, q: Array) -> Any:
    """Return a table for q values that may be too large for Hermite series, or None."""
    low, high = (float(np.log(value)) for value in (q.min(), q.max()))
    return _kept_table(phi, math.floor(low), math.floor(high) + 1)


@lru_cache(maxsize=32)
def _kept_table(phi: Activation, low: int, high: int) -> Any:
    if high - low > WIDEST:
        return None
    return KERNELS["local table", "rows"](phi, low, high, polar=True)


def refuse_many(phi: Activation, q: Array, node: Node) -> None:
    """Reject more than MOST pairs of positive q values if phi needs numerical integrals.

    Raises: KcalcError naming the node.
    """
    pairs = q.size * (q.size + 1) // 2
    if pairs <= MOST or phi.closed_in_numpy or has_series(phi, q):
        return
    if _table(phi, q) is None:
        raise _too_many(phi, pairs, f"node {node!r}: ")


def _too_many(phi: Activation, pairs: int, where: str = "") -> KcalcError:
    return KcalcError(
        f"{where}{phi.name} has no closed form, no fast Hermite series and no accurate table. "
        f"These images have {pairs} pairs of q values before it, each of which takes tens of "
        "milliseconds; put a LayerNorm or RMSNorm before it, or use fewer or smaller images"
    )
