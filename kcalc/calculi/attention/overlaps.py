"""Overlaps of softmax rows, elementwise and to first order.

The numbers that attention adds to kernel maps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import numpy as np

from ...fields.jets import Jet
from ...foundation.errors import KcalcError
from ...gaussian import softmax

Number = Any
Array = np.ndarray
LARGEST_VARIANCE = 400.0  # of scores: what the quadrature of softmax rows is made for
KEPT = 1 << 14


@lru_cache(KEPT)
def _own(tokens: int, variance: float) -> tuple[float, float]:
    """S_self and its derivative by the variance."""
    full = softmax.Overlap(tokens, variance, variance, variance)
    return softmax.self_overlap(
        tokens, variance
    ), full.by_covariance + full.by_variance1 + full.by_variance2


@lru_cache(KEPT)
def _value(tokens: int, variance1: float, variance2: float, covariance: float) -> tuple[float]:
    return (softmax.Overlap(tokens, variance1, variance2, covariance).value,)


@lru_cache(KEPT)
def _slope(tokens: int, variance1: float, variance2: float, covariance: float) -> tuple[float]:
    return (softmax.Overlap(tokens, variance1, variance2, covariance).by_covariance,)


@lru_cache(KEPT)
def _gap(tokens: int, variance: float, below: float) -> tuple[float]:
    return (softmax.overlap_gap(tokens, variance, below),)


@lru_cache(KEPT)
def _gap_slopes(tokens: int, variance: float, below: float) -> tuple[float, float]:
    """The derivatives of S_self - S by the variance and by the distance ``below``.

    The derivative by the variance is at a fixed distance.
    """
    at = softmax.Overlap(tokens, variance, variance, variance - below)
    return _own(tokens, variance)[
        1
    ] - at.by_covariance - at.by_variance1 - at.by_variance2, at.by_covariance


_sink = lru_cache(KEPT)(softmax.sink_overlap)
_sink_own = lru_cache(KEPT)(softmax.sink_self_overlap)


def sink_overlaps(
    tokens: int,
    variance1: Array,
    variance2: Array,
    covariance: Array,
    common: tuple[Array, Array, Array],
) -> list[Array]:
    """The two numbers of :func:`kcalc.gaussian.softmax.sink_overlap`, elementwise."""
    bound, most = (np.sqrt(a) * np.sqrt(b) for a, b in ((variance1, variance2), common[:2]))
    arguments = (
        variance1,
        variance2,
        np.clip(covariance, -bound, bound),
        *common[:2],
        np.clip(common[2], -most, most),
    )
    return _each(lambda t, v1, v2, k, *both: _sink(t, v1, v2, k, both), tokens, *arguments)


def sink_self_overlaps(tokens: int, variance: Array, common: Array) -> list[Array]:
    """The two numbers of :func:`kcalc.gaussian.softmax.sink_self_overlap`, elementwise."""
    return _each(_sink_own, tokens, variance, common)


def _each(function: Callable[..., tuple[float, ...]], tokens: int, *numbers: Number) -> list[Array]:
    """The results of ``function`` at the entries of arrays."""
    arrays = np.broadcast_arrays(*(np.asarray(n, dtype=float) for n in numbers))
    rows = [
        function(tokens, *entry)
        for entry in zip(*(a.ravel().tolist() for a in arrays), strict=True)
    ]
    return [np.array(column).reshape(arrays[0].shape)[()] for column in zip(*rows, strict=True)]


def _parts(number: Number) -> tuple[Number, Number | None]:
    """A number and the coefficient of its first order, None where it has none."""
    if not isinstance(number, Jet):
        return number, None
    if number.order > 1:
        raise KcalcError(
            "maps of networks with attention have first derivatives only; ask for order 1"
        )
    return number.value, number.coefficients[1] if number.order else None


def _composed(value: Array, arguments: list[tuple[Number, Array]]) -> Number:
    """The value, as a jet where an argument is one.

    The first order of the jet is the sum of those of the arguments times the derivatives.
    """
    moving = [(first, slope) for first, slope in arguments if first is not None]
    return Jet((value, sum(first * slope for first, slope in moving))) if moving else value


def checked_variance(variance: Number, node: Hashable) -> Number:
    """The variance of scores.

    Raises: KcalcError naming the node where it is too large for the quadrature.
    """
    value = np.asarray(_parts(variance)[0])
    if not np.all(value <= LARGEST_VARIANCE):
        raise KcalcError(
            f"node {node!r}: its attention scores have variance {float(np.max(value)):.3g}, and "
            f"softmax rows are computed up to "
            f"{LARGEST_VARIANCE:g}; lower sigma_w of the Affine layers that make queries and "
            f"keys, or put a norm before them"
        )
    return variance


def self_overlap(tokens: int, variance: Number) -> Number:
    """S_self, an array or a jet."""
    value, first = _parts(variance)
    if first is None:
        return _each(lambda t, v: (softmax.self_overlap(t, v),), tokens, value)[0]
    plain, slope = _each(_own, tokens, value)
    return _composed(plain, [(first, slope)])


def overlap(tokens: int, variance1: Array, variance2: Array, covariance: Number) -> Number:
    """S at variances that are arrays and a covariance that may be a jet.

    Rounding may not carry it beyond the root of their product.
    """
    value, first = _parts(covariance)
    bound = np.sqrt(variance1) * np.sqrt(variance2)
    arguments = (tokens, variance1, variance2, np.clip(value, -bound, bound))
    plain = _each(_value, *arguments)[0]
    return plain if first is None else _composed(plain, [(first, _each(_slope, *arguments)[0])])


def overlap_gap(tokens: int, variance: Number, below: Number) -> Number:
    """S_self - S at the covariance ``variance - below``; arrays or jets."""
    (value, first), (distance, moving) = _parts(variance), _parts(below)
    arguments = (tokens, value, np.clip(distance, 0, 2 * np.asarray(value)))
    plain = _each(_gap, *arguments)[0]
    if first is None and moving is None:
        return plain
    by_variance, by_distance = _each(_gap_slopes, *arguments)
    return _composed(plain, [(first, by_variance), (moving, by_distance)])
