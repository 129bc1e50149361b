"""The JAX number system: closed forms on accelerators, inside jit and vmap.

Gradients stay finite at c = +-1.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError
from .systems import NUMPY, Field, Number, sine_excess_at


def is_jax(value: object) -> bool:
    """Whether ``value`` is a JAX array or tracer. The check does not import JAX."""
    array = getattr(sys.modules.get("jax"), "Array", None)
    return array is not None and isinstance(value, array)


def jax_arrays(*values: Any) -> list[Any]:
    """Return the JAX arrays among the arguments, including the values of mappings."""
    parts = (v.values() if isinstance(v, Mapping) else (v,) for v in values)
    return [part for several in parts for part in several if is_jax(part)]


def precision(*arguments: Any) -> AbstractContextManager[Any]:
    """Return a context with double precision if an argument has double precision.

    Outside this context, JAX would silently round the argument to single precision.
    """
    import jax

    double = any(is_jax(x) and x.dtype == np.float64 for x in arguments)
    return jax.enable_x64(True) if double else nullcontext()


def within(cosine: Any, low: float) -> Any:
    """Check that the c values in a JAX array are in [low, 1] up to rounding, and return them.

    If the array is traced, values outside become nan. Otherwise, they cause a KcalcError.
    """
    import jax.numpy as jnp
    from jax.core import Tracer

    margin = 1e-12 if cosine.dtype == jnp.float64 else 1e-6
    inside = (cosine >= low - margin) & (cosine <= 1 + margin)
    if not isinstance(cosine, Tracer) and not bool(inside.all()):
        raise KcalcError(f"a c value is a cosine and must be in [{low:.6g}, 1] here")
    return jnp.where(inside, cosine, jnp.nan)


def on_host(function: Callable[[Any], Any], array: Any) -> Any:
    """Apply a NumPy function of doubles to a JAX array, also inside compiled code.

    The function maps shape (k, ...) to shape (...). Doubles are passed as pairs of integers,
    because JAX would otherwise round them to single precision in its callback threads, unless
    double precision is enabled for the whole process.
    """
    import jax
    import jax.numpy as jnp

    double = array.dtype == jnp.float64

    def whole(bits: Any) -> Any:
        given = np.ascontiguousarray(bits).view(np.float64)[..., 0] if double else np.asarray(bits)
        parts = np.moveaxis(given.reshape(-1, *array.shape), 1, 0)  # vmap adds axes in front
        out = np.ascontiguousarray(function(parts.astype(np.float64)), array.dtype)
        out = out.reshape((*given.shape[: given.ndim - array.ndim], *array.shape[1:]))
        return out[..., None].view(np.uint32) if double else out

    if not double:
        like = jax.ShapeDtypeStruct(array.shape[1:], array.dtype)
        return jax.pure_callback(whole, like, array, vmap_method="broadcast_all")
    like = jax.ShapeDtypeStruct((*array.shape[1:], 2), jnp.uint32)
    bits = jax.lax.bitcast_convert_type(array, jnp.uint32)
    made = jax.pure_callback(whole, like, bits, vmap_method="broadcast_all")
    return jax.lax.bitcast_convert_type(made, jnp.float64)


class JaxField(Field):
    """JAX arrays of floats, float32 or float64, elementwise. Created by :func:`jax_field`.

    Numbers that are not JAX arrays stay Python floats. They are computed in double precision and
    adopt the precision of the arrays that they are combined with. The derivatives of ``angle`` and
    ``sine`` that are infinite at a gap of 0 or 2 are replaced by their values one rounding unit
    away.
    """

    name = "jax"
    pi = math.pi

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        functions = {
            "sqrt": jnp.sqrt,
            "exp": jnp.exp,
            "expm1": jnp.expm1,
            "log": jnp.log,
            "sin": jnp.sin,
            "cos": jnp.cos,
            "tan": jnp.tan,
            "atan": jnp.arctan,
            "asin": jnp.arcsin,
            "acos": jnp.arccos,
            "erf": jax.scipy.special.erf,
            "erfc": jax.scipy.special.erfc,
            "abs": jnp.abs,
            "cosh": jnp.cosh,
            "sinh": jnp.sinh,
            "tanh": jnp.tanh,
        } | _angles()
        for name, function in functions.items():
            setattr(self, name, _either(function, getattr(NUMPY, name)))

    def clipped(self, gap: Number) -> Number:
        """Clip the gap to [0, 2] to remove rounding errors, with a derivative of 1 everywhere."""
        import jax.numpy as jnp
        from jax.lax import stop_gradient

        return gap + stop_gradient(jnp.clip(gap, 0.0, 2.0) - gap)

    def number(self, value: object) -> Number:
        """Return JAX arrays of floats unchanged, and integers as floats.

        Other arrays become JAX arrays, and other numbers become Python floats.

        Raises KcalcError for complex and Boolean arrays, and for values that NumPy's field rejects.
        """
        import jax.numpy as jnp

        if not is_jax(value):
            plain = NUMPY.number(value)
            return jnp.asarray(plain) if getattr(plain, "ndim", 0) else float(plain)
        kind = value.dtype  # type: ignore[attr-defined]
        if jnp.issubdtype(kind, jnp.floating):
            return value
        if jnp.issubdtype(kind, jnp.integer):
            return value * 1.0  # type: ignore[operator]
        raise KcalcError(f"a JAX array must contain real numbers, got {kind}")


def _either(function: Callable[[Any], Any], plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that calls ``function`` for JAX arrays and ``plain`` for Python floats."""
    return lambda x: function(x) if is_jax(x) else float(plain(x))


def _angles() -> dict[str, Callable[[Any], Any]]:
    """Return angle, sine and sine_excess, with derivatives 1/sin, cos/sin and angle."""
    import jax
    import jax.numpy as jnp

    @jax.custom_jvp
    def angle(gap: Any) -> Any:
        return 2 * jnp.arctan2(jnp.sqrt(gap), jnp.sqrt(2 - gap))

    @jax.custom_jvp
    def sine(gap: Any) -> Any:
        return jnp.sqrt(gap * (2 - gap))

    @jax.custom_jvp
    def sine_excess(gap: Any) -> Any:
        return sine_excess_at(angle(gap), jnp)

    def positive_sine(gap: Any) -> Any:
        return jnp.sqrt(jnp.maximum(gap * (2 - gap), 2 * jnp.finfo(gap.dtype).eps))

    angle.defjvps(lambda dot, value, gap: dot / positive_sine(gap))
    sine.defjvps(lambda dot, value, gap: dot * (1 - gap) / positive_sine(gap))
    sine_excess.defjvps(lambda dot, value, gap: dot * angle(gap))
    return {"angle": angle, "sine": sine, "sine_excess": sine_excess}


@lru_cache(maxsize=1)
def jax_field() -> JaxField:
    """Return the field of JAX arrays. JAX is imported on the first call."""
    return JaxField()
