"""Activations at many locations, each with its own q value >= 0.

Where q = 0 the pre-activation is the constant 0 and the activation the constant phi(0). Its cosine
with phi(v) at a location of positive q is ``sign(phi(0)) E phi(v) / sqrt(E phi(v)^2)``; that of two
locations of q = 0 is 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from ...activations import Activation
from ...fields.jets import Jet
from ...foundation.errors import FreshnessError, KcalcError
from ..atoms import Atom
from ..field_maps import FieldMaps
from ..local_tables import LocalTable, local_table
from ..products import Products
from ..second_moments import Part, SecondMoments
from .series import expansion, has_series, series_taylor

Number = Any
Node = Any
Array = np.ndarray
MOST = 5000  # pairs of q values to integrate numerically, tens of milliseconds each
TABLED = 500  # pairs of q values from which on a table is made
WIDEST = 12  # range of log q of a table


class LocationMoments(SecondMoments):
    """Second moments where q may be 0 at some locations; the gap is 1 there."""

    def mix(self, parts: Iterable[Part]) -> tuple[Number, Number, Number]:
        """(q1, q2, gap) of a sum of parts."""
        with np.errstate(all="ignore"):
            q1, q2, gap = super().mix(parts)
        dead = (np.asarray(q1) == 0) | (np.asarray(q2) == 0)
        if not dead.any():
            return q1, q2, gap
        if not isinstance(gap, Jet):
            return q1, q2, np.where(dead, 1.0, gap)
        return (
            q1,
            q2,
            Jet(
                (
                    np.where(dead, 1.0, gap.value),
                    *(np.where(dead, 0.0, part) for part in gap.coefficients[1:]),
                )
            ),
        )


class LocationProducts(Products):
    """Cross moments of atoms where q may be 0 at some locations."""

    def _mean_slope(self, phi: Activation, q: Number) -> Number:
        """E phi'(sqrt(q) z); at q = 0 that of q = 1, as the covariance it multiplies is 0 there."""
        values = np.asarray(q)
        return super()._mean_slope(phi, np.where(values > 0, values, 1.0))

    def _crossed(self, a: Atom, b: Atom, node: Node) -> tuple[Part, Part]:
        for source in (a.source, b.source):
            if source is not None and any(
                np.any(np.asarray(q) == 0) for q in (source.moments.q1, source.moments.q2)
            ):
                raise FreshnessError(
                    f"node {node!r} adds activations that share weights, and their "
                    f"pre-activations are 0 at some location; use sigma_b > 0"
                )
        return super()._crossed(a, b, node)


def _at_zero(phi: Activation) -> float:
    """phi(0). Raises: KcalcError where phi jumps there."""
    if any(k == 0 and jump for k, jump in zip(phi.kink_points, phi.jump_sizes(0), strict=True)):
        raise KcalcError(
            f"{phi.name} jumps at 0, and at some location (a black pixel, padding) its input is 0 "
            f"with certainty; use sigma_b > 0"
        )
    return float(phi(0.0))


def _moments(phi: Activation, q: Array) -> tuple[Array, Array]:
    """(E phi^2, E phi) at positive q values."""
    series = None if phi.closed_in_numpy else expansion(phi, q)
    if series is not None:
        return series.size, series.mean
    return np.asarray(phi.second_moment(q)), np.asarray(phi.mean(q))


class LocationMaps(FieldMaps):
    """Local maps applied elementwise to arrays of q values >= 0."""

    def q(self, phi: Activation, q: Array) -> tuple[Array, Array]:
        """(E phi(sqrt(q) z)^2, E phi(sqrt(q) z))."""
        dead = np.asarray(q) == 0
        size, mean = _moments(phi, np.where(dead, 1.0, q))
        if not dead.any():
            return size, mean
        constant = _at_zero(phi)
        return np.where(dead, constant**2, size), np.where(dead, constant, mean)

    def gap(self, phi: Activation, gap: Jet, q1: Array, q2: Array) -> Jet:
        """``1 - C`` behind phi, a jet of order 0 or 1; gap and q values broadcast together."""
        dead1, dead2 = np.asarray(q1) == 0, np.asarray(q2) == 0
        live1, live2 = np.where(dead1, 1.0, q1), np.where(dead2, 1.0, q2)
        parts = _taylor(phi, gap.value, live1, live2, gap.order)
        if dead1.any() or dead2.any():
            alone = _constant_gap(phi, dead1, live1, dead2, live2)
            dead = dead1 | dead2
            parts = (
                np.where(dead, alone, parts[0]),
                *(np.where(dead, 0.0, part) for part in parts[1:]),
            )
        return (-gap).compose([parts[0], *(-part for part in parts[1:])])


def _constant_gap(phi: Activation, dead1: Array, q1: Array, dead2: Array, q2: Array) -> Array:
    """``1 - C`` where one pre-activation or both are 0, as marked by ``dead1`` and ``dead2``."""
    constant = _at_zero(phi)
    if constant == 0:
        return np.ones(())
    cosines = []
    for q in (q1, q2):
        size, mean = _moments(phi, q)
        cosines.append(np.sign(constant) * mean / np.sqrt(size))
    return 1 - np.where(dead1, np.where(dead2, 1.0, cosines[1]), cosines[0])


def _taylor(phi: Activation, gap: Array, q1: Array, q2: Array, order: int) -> tuple[Array, ...]:
    if phi.closed_in_numpy:
        return phi.taylor(gap, q1, q2, order)
    series = [expansion(phi, q) for q in (q1, q2)]
    if series[0] is not None and series[1] is not None:
        return series_taylor(series[0], series[1], np.asarray(gap), order)
    distinct = len(
        {
            (a, b)
            for a, b in zip(*(q.ravel().tolist() for q in np.broadcast_arrays(q1, q2)), strict=True)
        }
    )
    table = _table(phi, np.concatenate([q1.ravel(), q2.ravel()])) if distinct > TABLED else None
    if table is not None:
        shape = np.broadcast_shapes(np.shape(gap), q1.shape, q2.shape)
        flat = (np.broadcast_to(a, shape).ravel() for a in (np.asarray(gap), q1, q2))
        return tuple(part.reshape(shape) for part in table.paired(*flat))[: order + 1]
    if distinct > MOST:
        raise _too_many(phi, distinct)
    return phi.taylor(gap, q1, q2, order)


def _table(phi: Activation, q: Array) -> LocalTable | None:
    """A table for these q values, which may be too great for Hermite series; None without one."""
    low, high = (float(np.log(value)) for value in (q.min(), q.max()))
    return _kept_table(phi, math.floor(low), math.floor(high) + 1)


@lru_cache(maxsize=32)
def _kept_table(phi: Activation, low: int, high: int) -> LocalTable | None:
    return local_table(phi, low, high, polar=True) if high - low <= WIDEST else None


def refuse_many(phi: Activation, q: Array, node: Node) -> None:
    """Refuse more than MOST pairs of positive q values where phi needs numerical integrals.

    Raises: KcalcError naming the node.
    """
    pairs = q.size * (q.size + 1) // 2
    if pairs <= MOST or phi.closed_in_numpy or has_series(phi, q):
        return
    if _table(phi, q) is None:
        raise _too_many(phi, pairs, f"node {node!r}: ")


def _too_many(phi: Activation, pairs: int, where: str = "") -> KcalcError:
    return KcalcError(
        f"{where}{phi.name} has neither a closed form, nor a fast Hermite series, nor an accurate "
        f"table, and these images give {pairs} pairs of q values before it, each of which takes "
        "tens of milliseconds; put a LayerNorm or RMSNorm before it, or use fewer or smaller images"
    )
