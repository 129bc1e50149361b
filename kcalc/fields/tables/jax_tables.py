"""Tables evaluated by JAX, inside jit and vmap.

An evaluation requires one gather and one Horner pass. The gradient is the table's slope.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from .dyadic import BITS, DEGREE, OCTAVES, PARTS, ROWS


def table_function(
    kind: str, coefficients: np.ndarray, end_slopes: tuple[np.ndarray, np.ndarray]
) -> Callable[[Any], Any]:
    """Return a function that evaluates a table on JAX arrays, in the precision of the array.

    Half-precision arrays are evaluated in float32.

    ``kind`` is "value" (c -> C), "slope" (c -> C'), "gap" (1 - c -> 1 - C) or "angle" (theta ->
    arccos C). The result is nan outside the domain.
    """
    import jax
    import jax.numpy as jnp

    known: dict[bool, tuple[Any, Any]] = {}

    def data(double: bool) -> tuple[Any, Any]:
        if double not in known:
            kept = np.float64 if double else np.float32
            with jax.ensure_compile_time_eval():
                known[double] = (
                    jnp.asarray(coefficients.astype(kept)),
                    jnp.asarray(end_slopes[0 if double else 1].astype(kept)),
                )
        return known[double]

    def evaluate(x: Any) -> Any:
        given = x.dtype
        if not jnp.issubdtype(given, jnp.floating):
            raise KcalcError(
                f"the argument of a table must be a JAX array of real floats, got {given}"
            )
        if given == jnp.float64:
            with jax.enable_x64(True):
                return _kernels()[kind](x, *data(True))
        return _kernels()[kind](x.astype(jnp.float32), *data(False)).astype(given)

    return evaluate


@lru_cache(maxsize=1)
def _kernels() -> dict[str, Callable[..., Any]]:
    """Return the compiled functions (x, coefficients, end slopes) -> values for all tables."""
    import jax
    import jax.numpy as jnp

    def outside(x: Any, low: float, high: float) -> Any:
        margin = 1e-12 if x.dtype == jnp.float64 else 1e-6
        return ~((x >= low - margin) & (x <= high + margin))

    def drop(w: Any, upper: Any, coefficients: Any, ends: Any) -> tuple[Any, Any]:
        return _drop_and_rate(w, upper, coefficients, ends)

    def at_cosine(c: Any, coefficients: Any, ends: Any) -> tuple[Any, Any]:
        upper = c < 0
        value, rate = drop(1 - jnp.abs(c), upper, coefficients, ends)
        bad = outside(c, -1, 1)
        return jnp.where(bad, jnp.nan, 1 - value), jnp.where(
            bad, jnp.nan, jnp.where(upper, -rate, rate)
        )

    def at_gap(gap: Any, coefficients: Any, ends: Any) -> tuple[Any, Any]:
        upper = gap > 1
        value, rate = drop(jnp.where(upper, 2 - gap, gap), upper, coefficients, ends)
        bad = outside(gap, 0, 2)
        return jnp.where(bad, jnp.nan, value), jnp.where(
            bad, jnp.nan, jnp.where(upper, -rate, rate)
        )

    def at_angle(theta: Any, coefficients: Any, ends: Any) -> tuple[Any, Any]:
        upper = theta > jnp.pi / 2
        distance = 2 * jnp.sin(jnp.where(upper, jnp.pi - theta, theta) / 2) ** 2
        value, rate = drop(distance, upper, coefficients, ends)
        value, rate = jnp.clip(value, 0, 2), jnp.where(upper, -rate, rate)
        sine, bad = jnp.sqrt(value * (2 - value)), outside(theta, 0, jnp.pi)
        turned = jnp.where(
            sine > 0, rate * jnp.sin(theta) / jnp.where(sine > 0, sine, 1), jnp.sqrt(jnp.abs(rate))
        )
        return jnp.where(
            bad, jnp.nan, 2 * jnp.arctan2(jnp.sqrt(value), jnp.sqrt(2 - value))
        ), jnp.where(bad, jnp.nan, turned)

    pairs = {"value": at_cosine, "gap": at_gap, "angle": at_angle}
    return {kind: jax.jit(_differentiable(pair)) for kind, pair in pairs.items()} | {
        "slope": jax.jit(_once(lambda c, coefficients, ends: at_cosine(c, coefficients, ends)[1]))
    }


def _differentiable(pair: Callable[..., tuple[Any, Any]]) -> Callable[..., Any]:
    """Return a function whose value and derivative are the results (value, slope) of ``pair``."""
    import jax

    rate = _once(lambda *arguments: pair(*arguments)[1])

    @jax.custom_jvp
    def value(x: Any, coefficients: Any, ends: Any) -> Any:
        return pair(x, coefficients, ends)[0]

    @value.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        return value(*primals), rate(*primals) * tangents[0]

    return value


def _once(rate: Callable[..., Any]) -> Callable[..., Any]:
    """Return a version of ``rate`` that raises an error when it is differentiated.

    Otherwise the derivative of its bit operations would silently be zero.
    """
    import jax

    protected = jax.custom_jvp(rate)

    @protected.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        raise KcalcError(
            "a table has only a first derivative; for higher orders use .derivative(n) of the map"
        )

    return protected


def _drop_and_rate(w: Any, upper: Any, coefficients: Any, ends: Any) -> tuple[Any, Any]:
    """Return (1 - C, its derivative) at the distance w from the lower or the ``upper`` end.

    See :func:`kcalc.fields.tables.dyadic.locate`.
    """
    import jax.numpy as jnp
    from jax import lax

    double = w.dtype == jnp.float64
    integer, mantissa, bias = (jnp.int64, 52, 1023) if double else (jnp.int32, 23, 127)
    bits = lax.bitcast_convert_type(w, integer)
    side = jnp.where(upper, ROWS, 0).astype(jnp.int32)
    row = jnp.clip(
        (bits >> (mantissa - BITS)) - (((bias - OCTAVES) << BITS) - 1), 0, ROWS - 1
    ).astype(jnp.int32)
    one = bias << mantissa
    t = lax.bitcast_convert_type(((bits << BITS) & ((1 << mantissa) - 1)) | one, w.dtype) - 1.5
    octave = lax.bitcast_convert_type(bits & ((2 * bias + 1) << mantissa), w.dtype)

    def column(k: int) -> Any:
        return coefficients[k].at[row + side].get(mode="promise_in_bounds")

    value, rate = column(DEGREE), jnp.zeros_like(w)
    for k in range(DEGREE - 1, -1, -1):
        rate = rate * t + value
        value = value * t + column(k)
    inner = rate * PARTS / jnp.where(row > 0, octave, 1)
    return value, jnp.where(row > 0, inner, jnp.where(upper, ends[1], ends[0]))
