"""Overlaps of softmax rows, and their first derivatives, in the number systems of kernel maps.

Overlaps are the quantities that attention adds to kernel maps. In double precision they are
computed elementwise over arrays, and JAX calls the same functions from compiled code. In ball
arithmetic they are proven enclosures. In SymPy they are named functions
(:mod:`kcalc.calculi.attention.named`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ...fields import NUMPY
from ...fields.balls import BallField
from ...fields.jax_field import is_jax, jax_field, on_host
from ...fields.jets import Jet
from ...foundation.errors import KcalcError
from ...foundation.guests import KERNELS
from ...gaussian import softmax

Number = Any
Array = np.ndarray
Function = Callable[..., tuple[float, ...]]
LARGEST_VARIANCE = 400.0  # largest score variance for the quadrature of softmax rows
KEPT = 1 << 14


@lru_cache(KEPT)
def _alone(tokens: int, variance: float) -> tuple[float]:
    return (softmax.self_overlap(tokens, variance),)


@lru_cache(KEPT)
def _alone_slope(tokens: int, variance: float) -> tuple[float]:
    """Return the derivative of ``S_self`` with respect to the variance."""
    full = softmax.Overlap(tokens, variance, variance, variance)
    return (full.by_covariance + full.by_variance1 + full.by_variance2,)


@lru_cache(KEPT)
def _value(tokens: int, variance1: float, variance2: float, covariance: float) -> tuple[float]:
    return (softmax.Overlap(tokens, variance1, variance2, covariance).value,)


@lru_cache(KEPT)
def _slope(tokens: int, variance1: float, variance2: float, covariance: float) -> tuple[float]:
    return (softmax.Overlap(tokens, variance1, variance2, covariance).by_covariance,)


@lru_cache(KEPT)
def _slopes(
    tokens: int, variance1: float, variance2: float, covariance: float
) -> tuple[float, float, float]:
    """Return the derivatives of S with respect to both variances and the covariance."""
    row = softmax.Overlap(tokens, variance1, variance2, covariance)
    return row.by_variance1, row.by_variance2, row.by_covariance


@lru_cache(KEPT)
def _gap(tokens: int, variance: float, below: float) -> tuple[float]:
    return (softmax.overlap_gap(tokens, variance, below),)


@lru_cache(KEPT)
def _gap_slopes(tokens: int, variance: float, below: float) -> tuple[float, float]:
    """The derivatives of ``S_self - S`` with respect to the variance and the distance ``below``.

    The derivative with respect to the variance is taken at a fixed distance.
    """
    at = softmax.Overlap(tokens, variance, variance, variance - below)
    alone = _alone_slope(tokens, variance)[0]
    return alone - at.by_covariance - at.by_variance1 - at.by_variance2, at.by_covariance


_sink = lru_cache(KEPT)(softmax.sink_overlap)
_sink_own = lru_cache(KEPT)(softmax.sink_self_overlap)


def sink_overlaps(
    tokens: int,
    variance1: Array,
    variance2: Array,
    covariance: Array,
    common: tuple[Array, Array, Array],
) -> list[Array]:
    """Compute both values of :func:`kcalc.gaussian.softmax.sink_overlap` elementwise."""
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
    """Compute both values of :func:`kcalc.gaussian.softmax.sink_self_overlap` elementwise."""
    return _each(_sink_own, tokens, variance, common)


def _each(function: Callable[..., tuple[float, ...]], tokens: int, *numbers: Number) -> list[Array]:
    """Apply ``function`` to every entry of the arrays."""
    arrays = np.broadcast_arrays(*(np.asarray(n, dtype=float) for n in numbers))
    rows = [
        function(tokens, *entry)
        for entry in zip(*(a.ravel().tolist() for a in arrays), strict=True)
    ]
    return [np.array(column).reshape(arrays[0].shape)[()] for column in zip(*rows, strict=True)]


def _parts(number: Number) -> tuple[Number, Number | None]:
    """Return the value and the first-order coefficient of a number; the latter may be None."""
    if not isinstance(number, Jet):
        return number, None
    if number.order > 1:
        raise KcalcError(
            "only first derivatives are available for maps of networks with attention; use order 1"
        )
    return number.value, number.coefficients[1] if number.order else None


def _composed(value: Array, arguments: list[tuple[Number, Array]]) -> Number:
    """Return the value, or a jet if an argument is a jet.

    The first-order coefficient of the jet is the sum of the arguments' first-order coefficients,
    each multiplied by the derivative with respect to that argument.
    """
    moving = [(first, slope) for first, slope in arguments if first is not None]
    return Jet((value, sum(first * slope for first, slope in moving))) if moving else value


class Overlaps:
    """Overlaps in double precision: numbers, arrays, or jets of first order."""

    rounded = True  # small differences need special formulas

    def checked(self, variance: Number, node: Hashable) -> Number:
        """Check the variance of scores and return it.

        Raises: KcalcError naming the node if the variance is too large for the quadrature.
        """
        value = np.asarray(_parts(variance)[0])
        if not np.all(value <= LARGEST_VARIANCE):
            raise _too_large(f"{float(np.max(value)):.3g}", LARGEST_VARIANCE, node)
        return variance

    def alone(self, tokens: int, variance: Number) -> Number:
        """The overlap ``S_self`` of a row with itself, as an array or a jet."""
        value, first = _parts(variance)
        plain = self._of(_alone, 0, tokens, value)
        if first is None:
            return plain
        return _composed(plain, [(first, self._of(_alone_slope, 0, tokens, value))])

    def pair(self, tokens: int, variance1: Array, variance2: Array, covariance: Number) -> Number:
        """The overlap S of two rows; variances are arrays, and the covariance may be a jet."""
        value, first = _parts(covariance)
        arguments = (tokens, variance1, variance2, value)
        plain = self._of(_value, 0, *arguments)
        return (
            plain if first is None else _composed(plain, [(first, self._of(_slope, 0, *arguments))])
        )

    def gap(self, tokens: int, variance: Number, below: Number) -> Number:
        """Return ``S_self - S`` at the covariance ``variance - below``, for arrays or jets."""
        (value, first), (distance, moving) = _parts(variance), _parts(below)
        plain = self._of(_gap, 0, tokens, value, distance)
        if first is None and moving is None:
            return plain
        by_variance, by_distance = (
            self._of(_gap_slopes, k, tokens, value, distance) for k in (0, 1)
        )
        return _composed(plain, [(first, by_variance), (moving, by_distance)])

    def _of(self, function: Function, place: int, tokens: int, *numbers: Number) -> Array:
        """Evaluate a function of numbers elementwise, and return entry ``place`` of its results."""
        return _each(function, tokens, *_inside(function, *numbers))[place]


def _inside(function: Function, *numbers: Number) -> tuple[Number, ...]:
    """Clip arguments that rounding may have moved out of the domain of a function."""
    if function in (_value, _slope, _slopes):
        one, two, covariance = numbers
        bound = np.sqrt(one) * np.sqrt(two)
        return one, two, np.clip(covariance, -bound, bound)
    if function in (_gap, _gap_slopes):
        variance, below = numbers
        return variance, np.clip(below, 0, 2 * np.asarray(variance))
    return numbers


def _too_large(variance: str, most: float, node: Hashable) -> KcalcError:
    return KcalcError(
        f"the attention scores of node {node!r} have variance {variance}, but softmax rows can "
        f"be computed only up to variance {most:g}; lower sigma_w of the Affine layers for "
        "queries and keys, or put a norm before them"
    )


class JaxOverlaps(Overlaps):
    """Overlaps for JAX arrays, traced or not, with first derivatives.

    NumPy computes them on the host when the compiled function runs, even for float32 arrays.
    """

    # {function: (function, place) of its derivative in each argument}
    slopes: Mapping[Function, tuple[tuple[Function, int], ...]] = {
        _alone: ((_alone_slope, 0),),
        _value: ((_slopes, 0), (_slopes, 1), (_slopes, 2)),
        _gap: ((_gap_slopes, 0), (_gap_slopes, 1)),
    }

    def checked(self, variance: Number, node: Hashable) -> Number:
        """Check the variance of scores, unless it is traced, and return it."""
        from jax.core import Tracer

        known = _parts(variance)[0]
        if not isinstance(known, Tracer):
            super().checked(np.nan_to_num(np.asarray(known)), node)
        return variance

    def _of(self, function: Function, place: int, tokens: int, *numbers: Number) -> Number:
        import jax
        import jax.numpy as jnp

        def made(plain: Array) -> Array:
            bad = ~(np.abs(plain) <= LARGEST_VARIANCE).all(axis=0)  # nan, or too large
            found = _each(function, tokens, *_inside(function, *np.where(bad, 0.0, plain)))[place]
            return np.where(bad, np.nan, found)

        @jax.custom_jvp
        def called(*given: Any) -> Any:
            return on_host(made, jnp.stack(given))

        @called.defjvp
        def _(given: tuple[Any, ...], moved: tuple[Any, ...]) -> tuple[Any, Any]:
            rates = self.slopes.get(function) if place == 0 else None
            if rates is None:
                raise KcalcError("overlaps of softmax rows have only first derivatives in JAX")
            terms = (
                self._of(*rate, tokens, *given) * move
                for rate, move in zip(rates, moved, strict=True)
            )
            return called(*given), sum(terms)

        dtype = jnp.result_type(*(n for n in numbers if is_jax(n)))
        return called(*jnp.broadcast_arrays(*(jnp.asarray(n, dtype) for n in numbers)))


class BallOverlaps:
    """Overlaps in ball arithmetic, as proven enclosures."""

    rounded = False

    def __init__(self, field: BallField) -> None:
        self.field, self.certified = field, KERNELS["softmax", "balls"]

    def checked(self, variance: Number, node: Hashable) -> Number:
        """Check the variance of scores and return it.

        Raises: KcalcError naming the node.
        """
        known = value(variance)
        if not known <= self.certified.MOST_VARIANCE:
            text = f"up to {float(known.upper()):.3g}"
            raise _too_large(text, self.certified.MOST_VARIANCE, node)
        return variance

    def alone(self, tokens: int, variance: Number) -> Number:
        """The overlap ``S_self`` of a row with itself."""
        return self.certified.self_overlap(tokens, value(variance), self.field.digits)

    def pair(self, tokens: int, variance1: Number, variance2: Number, covariance: Number) -> Number:
        """The overlap S of two rows."""
        return self.certified.overlap(
            tokens, (variance1, variance2), value(covariance), self.field.digits
        )


def value(number: Number) -> Number:
    """Return a number, replacing a jet without higher orders by its value."""
    return number.value if isinstance(number, Jet) and number.order == 0 else number


def overlaps_over(field: Any, node: Hashable) -> Any:
    """Return the overlaps of a number system.

    Raises: KcalcError naming the node if none exist.
    """
    if field is NUMPY:
        return Overlaps()
    if isinstance(field, BallField):
        return BallOverlaps(field)
    if field.name == "jax" and field is jax_field():
        return JaxOverlaps()
    raise KcalcError(f"node {node!r}: attention does not support {field}")
