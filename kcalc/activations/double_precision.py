"""Kernel quantities of an activation, integrated in double precision for arrays of q and c."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kcalc.fields import NUMPY, Number
from kcalc.fields.arguments import TINY
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.expectations import single as expectations
from kcalc.gaussian.expectations.pairs import pair_map, smooth_taylor
from kcalc.gaussian.expectations.quadrature import Array
from kcalc.gaussian.expectations.single import pair_distance

# a product of four such numbers, or of their inverses, is a double with full precision
EXTREME = 1e70
LARGEST = 1e150  # the same for a product of two numbers
MANY = 8
"""For at least this many distinct pairs of q values, smooth activations share one grid."""


def positive(q: Array) -> Array:
    if not (q >= TINY).all():  # np.all is several times slower for the scalars of deep networks
        if not (q > 0).all():
            raise KcalcError(f"a q value is a mean square and must be > 0, got {np.min(q):g}")
        raise KcalcError(
            f"q = {np.min(q)} is too small for double precision; use at least {TINY:.3g}"
        )
    return q


def finite(name: str, q: Array, value: Array) -> Array:
    if not np.isfinite(value).all():
        raise KcalcError(
            f"a Gaussian moment of activation {name!r} is beyond double precision at q = "
            f"{q[~np.isfinite(value)].flat[0]:g}"
        )
    return value


def distinct(columns: Array) -> tuple[Array, Any]:
    """Return the distinct columns of an array, and the index of each column among them."""
    if (columns == columns[:, :1]).all():
        return columns[:, :1], np.zeros(columns.shape[1], dtype=int)
    values, which = np.unique(columns, return_inverse=True)
    numbers = np.zeros(columns.shape[1], dtype=np.int64)
    for row in which.reshape(columns.shape):  # faster than sorting columns
        numbers = numbers * values.size + row
    _, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    return columns[:, first], which.ravel()


def groups(which: Any, count: int) -> list[Any]:
    """Return, for each number from 0 to count - 1, its positions in ``which``."""
    order = np.argsort(which, kind="stable")
    return np.split(order, np.searchsorted(which[order], np.arange(1, count)))[:count]


def _unit_gap(gap: Array) -> Array:
    if ((gap < -1e-12) | (gap > 2 + 1e-12)).any():
        worst = gap.flat[np.argmax(np.abs(gap - 1))]
        raise KcalcError(f"a c value is a cosine and must be in [-1, 1], got {1 - worst:.17g}")
    return np.clip(gap, 0.0, 2.0)


def spread(part: Any, shape: tuple[int, ...]) -> Array:
    """Broadcast ``part`` to ``shape``; return a scalar if ``shape`` is ``()``."""
    array = np.asarray(part, dtype=float)
    return (array if array.shape == shape else np.broadcast_to(array, shape))[()]


def broadcast(gap: Any, q1: Any, q2: Any) -> tuple[Array, Array, Array]:
    """Check ``gap``, ``q1`` and ``q2``, and broadcast them together."""
    first = positive(np.asarray(q1, dtype=float))
    second = first if q2 is q1 else positive(np.asarray(q2, dtype=float))
    gap = _unit_gap(np.asarray(gap, dtype=float))
    if gap.shape == first.shape == second.shape:
        return gap, first, second
    try:
        return np.broadcast_arrays(gap, first, second)  # type: ignore[return-value]
    except ValueError:
        raise KcalcError(
            f"c, q1 and q2 cannot be broadcast together; got shapes {np.shape(gap)}, "
            f"{np.shape(q1)}, {np.shape(q2)}"
        ) from None


def moment(phi: Any, integrate: Callable[..., float], flat: Array) -> Any:
    """Return the moment of phi that ``integrate`` computes, at every q value in ``flat``."""
    (unique,), inverse = distinct(flat.reshape(1, -1))
    with np.errstate(over="ignore"):
        found = _moments_together(phi, integrate, unique)
        if found is None:
            found = np.array([integrate(phi, float(value)) for value in unique])
    return finite(phi.name, unique, found)[inverse].reshape(flat.shape)[()]


def _moments_together(phi: Any, integrate: Callable[..., float], q: Array) -> Array | None:
    """Return the mean or second moment at many q on one grid, or None if no grid suffices."""
    powers: dict[Any, int] = {expectations.mean: 1, expectations.second_moment: 2}
    power = powers.get(integrate)
    if power is None or q.size < MANY:
        return None
    found = expectations.sampled(phi, q)
    return None if found is None else found[1] ** power @ found[0].nodes.w


def series(integrate: Callable[[float], tuple[float, ...]], q: object) -> tuple[Array, ...]:
    """Return the Taylor coefficients in q that ``integrate`` computes, each with the shape of q."""
    flat = positive(np.asarray(NUMPY.number(q), dtype=float))
    (unique,), inverse = distinct(flat.reshape(1, -1))
    rows = np.array([integrate(float(value)) for value in unique])
    return tuple(column[inverse].reshape(flat.shape)[()] for column in rows.T)


def taylor(
    phi: Any, gap: Array, rest: Array, q1: Array, q2: Array, order: int
) -> tuple[Number, ...]:
    """Return the Taylor coefficients of C for arrays of the same shape.

    ``rest`` is 2 - gap with full relative accuracy.
    """
    pairs, inverse = distinct(np.stack([q1.ravel(), q2.ravel()]))
    if pairs.shape[1] >= MANY and order <= 2 and not phi.kink_points:
        found = smooth_taylor(phi, q1.ravel(), q2.ravel(), gap.ravel(), order)
        if found is not None:
            return tuple(part.reshape(gap.shape) for part in found)
    out = np.empty((order + 1, gap.size))
    for index, here in enumerate(groups(inverse, pairs.shape[1])):
        one, two = float(pairs[0, index]), float(pairs[1, index])
        out[:, here] = _normalised(phi, gap.ravel()[here], rest.ravel()[here], one, two, order)
    return tuple(part.reshape(gap.shape)[()] for part in out)


def _normalised(phi: Any, gap: Array, rest: Array, q1: float, q2: float, order: int) -> list[Array]:
    """Return the Taylor coefficients of C for one pair of q values."""
    gamma = pair_map(phi, q1, phi, q2)
    parts = gamma.taylor(gap, order, rest=rest)
    norm = (
        gamma.whole
        if gamma.same
        else float(np.sqrt(phi.second_moment(q1)) * np.sqrt(phi.second_moment(q2)))
    )
    if norm == 0:
        raise KcalcError(
            f"E phi^2 of activation {phi.name!r} vanishes (or underflows) at q = {min(q1, q2):g}, "
            "so its C map is undefined there"
        )
    offset = 0.0 if gamma.same else pair_distance(phi, q1, q2)
    return [offset + parts[0] / norm, *(part / norm for part in parts[1:])]


def cross_drop(phi: Any, other: Any, q1: Any, q2: Any, gap: Any, order: int) -> tuple[Number, ...]:
    """Return the drop of E[phi(u) psi(v)], with psi = ``other``; see ``Activation.cross_drop``."""
    gap, q1, q2 = broadcast(gap, q1, q2)
    out = np.empty((order + 2, gap.size))
    pairs, inverse = distinct(np.stack([q1.ravel(), q2.ravel()]))
    for index in range(pairs.shape[1]):
        here = inverse == index
        with np.errstate(over="ignore"):
            gamma = pair_map(phi, float(pairs[0, index]), other, float(pairs[1, index]))
            out[0, here] = gamma.at_one
            out[1:, here] = gamma.taylor(gap.ravel()[here], order)
        if not np.isfinite(out[:2, here]).all():
            names = " and ".join(dict.fromkeys((phi.name, other.name)))
            raise KcalcError(
                f"the cross moment of {names} is beyond double precision at q = "
                f"{float(pairs[:, index].max()):g}"
            )
    return tuple(part.reshape(gap.shape)[()] for part in out)


def multiplies(q: Array, power: Any) -> bool:
    """Whether products of several q and Q(q) in closed forms neither overflow nor underflow.

    ``power`` is Q(q), or None if it is unknown.
    """
    ranges = ((q, EXTREME), (power, LARGEST))
    return all(
        bool(np.all((size > 1 / EXTREME) & (size < most)))
        for size, most in ranges
        if size is not None
    )
