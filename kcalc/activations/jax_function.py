"""Activations and their derivatives as JAX functions that do not overflow.

The gradients of these functions are the derivatives of the activation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any

import sympy as sp

from kcalc.activations.cancellation import NearZero, kept
from kcalc.activations.pieces import X, series_near_zero, smooth_pieces, switch_points
from kcalc.foundation.errors import KcalcError
from kcalc.foundation.plain_arguments import whole
from kcalc.foundation.process_state import lambdify

LONGEST = 2**31 - 1  # the largest integer that JAX takes without conversion
JaxFunction = Callable[[Any], Any]


@lru_cache(maxsize=512)
def jax_function(phi: Any, n: int = 0) -> JaxFunction:
    """Return phi^(n) as an elementwise function of JAX arrays, for jit, vmap and grad.

    The function is right-continuous at kinks. Its gradient is ``jax_function(phi, n + 1)``, which
    is itself differentiable; delta functions at kinks are ignored. Results have the dtype of the
    argument (float32 or float64); integers are converted to floats. Raises KcalcError if n is not
    an integer >= 0, and for functions that JAX lacks.
    """
    import jax
    import jax.numpy as jnp

    n = whole(n, "the order of a derivative")
    phi.refuse_symbols("its value in JAX")
    values = phi.jax_values(n)

    @jax.custom_jvp
    def function(x: Any) -> Any:
        return jnp.broadcast_to(values(x), x.shape).astype(x.dtype)

    @function.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        return function(*primals), jax_function(phi, n + 1)(*primals) * tangents[0]

    def entry(x: Any) -> Any:
        array = jnp.asarray(x)
        if jnp.issubdtype(array.dtype, jnp.complexfloating) or array.dtype == bool:
            raise KcalcError(
                f"an activation takes real numbers, but its input has dtype {array.dtype}"
            )
        if not jnp.issubdtype(array.dtype, jnp.floating):
            array = array * 1.0
        if array.dtype != jnp.float64:
            return function(array)
        with jax.enable_x64(True):
            return function(array)

    return entry


def differentiated(function: JaxFunction, n: int) -> JaxFunction:
    """Return the n-th derivative of an elementwise function, by forward-mode differentiation."""
    import jax
    import jax.numpy as jnp

    if n == 0:
        return function
    before = differentiated(function, n - 1)
    return lambda x: jax.jvp(before, (x,), (jnp.ones_like(x),))[1]


def piecewise(phi: Any, n: int) -> JaxFunction:
    """Return phi^(n) from the activation's expression."""
    return _pieces(stable_derivative(phi, n), phi)


def stable_derivative(phi: Any, n: int) -> Any:
    """Return phi^(n), derived from the overflow-free expressions in ``phi.stable`` if possible."""
    if not phi.stable:
        return phi.derivative_expr(n)
    last = min(n, len(phi.stable) - 1)
    return sp.diff(phi.stable[last], X, n - last)


def _pieces(expr: sp.Expr, phi: Any) -> JaxFunction:
    """Return a function that evaluates ``expr`` piece by piece.

    Each piece is only evaluated at arguments from its interval, so unused pieces do not overflow.
    """
    import jax.numpy as jnp

    points = tuple(sorted({*phi.kinks, *switch_points(expr)}, key=float))
    if not points:
        return _compiled(expr, phi.name)
    functions = [_compiled(piece, phi.name) for piece in smooth_pieces(expr, points)]
    edges = [float(p) for p in points]
    inside = [edges[0] - 1, *((a + b) / 2 for a, b in pairwise(edges)), edges[-1] + 1]

    def values(x: Any) -> Any:
        out = jnp.full(x.shape, jnp.nan, x.dtype)
        for index, function in enumerate(functions):
            here = jnp.full(x.shape, True)
            if index:
                here &= x >= edges[index - 1]
            if index < len(edges):
                here &= x < edges[index]
            out = jnp.where(here, function(jnp.where(here, x, inside[index])), out)
        return out

    return values


def _compiled(piece: sp.Expr, name: str) -> JaxFunction:
    """Compile a smooth expression to a JAX function.

    Raises KcalcError for functions that JAX lacks, in some cases only when the result is called.
    """
    import jax

    special = jax.scipy.special
    known = {
        "erf": special.erf,
        "erfc": special.erfc,
        "gamma": special.gamma,
        "loggamma": special.gammaln,
    }
    try:
        written = kept(piece).replace(
            lambda part: part.is_Integer and abs(part) > LONGEST, lambda part: sp.Float(part, 17)
        )
        function = lambdify([X], written, modules=[known, "jax"], cse=True)
    except NotImplementedError as error:
        raise KcalcError(f"{piece} in activation {name!r} has no JAX form") from error

    def values(x: Any) -> Any:
        try:
            return function(x)
        except NameError as error:
            raise KcalcError(f"activation {name!r} has no JAX form: {error}") from error

    series = series_near_zero(piece)
    return values if series is None else _beside(series, values)


def _beside(series: NearZero, function: JaxFunction) -> JaxFunction:
    """Return a function that uses the series near 0 and ``function`` elsewhere."""
    import jax.numpy as jnp

    def values(x: Any) -> Any:
        near = jnp.abs(x) < series.radius
        return jnp.where(
            near, series(jnp.where(near, x, 0)), function(jnp.where(near, series.radius, x))
        )

    return values
