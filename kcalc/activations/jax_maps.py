"""Local kernel quantities for JAX arrays.

The quantities are computed from closed forms that are accurate in floating point. If an activation
has no such forms, C is interpolated in a table and the moments are computed by NumPy. Both then
require concrete q values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from kcalc.fields import Field, Number
from kcalc.fields.jax_field import is_jax, jax_field, precision
from kcalc.foundation.errors import KcalcError

from ..fields.tables import Table, tabulate


def taylor(phi: Any, gap: Any, q1: Number, q2: Number, order: int, field: Field) -> tuple[Any, ...]:
    """Return (1 - C, C', ..., C^(order)/order!) at c = 1 - gap as JAX arrays.

    The arrays have the precision of the arguments and are nan for gaps outside [0, 2].

    They are differentiable with respect to gap and, with a closed form, to q1 and q2. An infinite
    C' at c = +-1 is returned as inf, but gradients use the finite C' one rounding unit away from c.

    Raises KcalcError if there is no closed form and q is traced, q has several values, or the order
    is above 1.
    """
    import jax.numpy as jnp

    with precision(gap, q1, q2):
        gap, q1, q2 = jnp.asarray(gap), _checked(q1), _checked(q2)
        shape = jnp.broadcast_shapes(gap.shape, np.shape(q1), np.shape(q2))
        margin = 1e-12 if gap.dtype == jnp.float64 else 1e-6
        inside = jnp.where((gap >= -margin) & (gap <= 2 + margin), gap, jnp.nan)
        inside = jnp.broadcast_to(jnp.where(inside < 0, 0, jnp.where(inside > 2, 2, inside)), shape)
        parts = _closed(phi, inside, q1, q2, order, field) if phi.closed_in_numpy else None
        if parts is None:
            phi.refuse_rough("C maps in JAX")
            parts = _tabulated(phi, inside, q1, q2, order)
        return tuple(jnp.broadcast_to(part, shape) for part in parts)


def cosine(phi: Any, c: Any, q1: Any = 1, q2: Any = None) -> Any:
    """Return C(c, q1, q2) for JAX arrays, in their precision; nan for |c| > 1 beyond rounding.

    Gradients and exceptions are the same as for :func:`taylor`.
    """
    field = jax_field()
    one = field.number(q1)
    two = one if q2 is None else field.number(q2)
    with precision(c, one, two):
        return 1 - taylor(phi, 1 - field.number(c), one, two, 0, field)[0]


def moment(
    phi: Any,
    quantity: str,
    closed: Callable[[Number, Field], Number | None],
    q: Number,
    field: Field,
) -> Any:
    """Return ``quantity`` ("mean", "second_moment", "mean_slope" or "q_slope") of phi at q.

    Returns a JAX array if q is a JAX array, otherwise a float.

    Raises KcalcError for q <= 0, and for a traced q if there is no closed form.
    """
    import jax.numpy as jnp

    with precision(q):
        q = _checked(q)
        exact = closed(q, field) if phi.closed_in_numpy else None
        if exact is None:
            exact = getattr(phi, quantity)(_concrete(phi, q, "q"))
        return (
            jnp.broadcast_to(jnp.asarray(exact, dtype=q.dtype), q.shape)
            if is_jax(q)
            else float(exact)
        )


def _is_traced(q: Number) -> bool:
    from jax.core import Tracer

    return isinstance(q, Tracer)


def _checked(q: Number) -> Number:
    """Return q, after checking that it is positive if its value is known."""
    if not _is_traced(q) and not np.all(np.asarray(q) > 0):
        raise KcalcError(
            f"a q value is a mean square and must be > 0, got {np.min(np.asarray(q)):g}"
        )
    return q


def _concrete(phi: Any, q: Number, what: str) -> np.ndarray:
    if _is_traced(q):
        raise KcalcError(
            f"{phi.name!r} has no closed form for JAX, so {what} must be a concrete number and "
            "not one traced by jit, vmap or grad"
        )
    return np.asarray(q, dtype=np.float64)


# --- closed forms ---------------------------------------------------------------------------------


def _closed(
    phi: Any, gap: Any, q1: Number, q2: Number, order: int, field: Field
) -> tuple[Any, ...] | None:
    if phi._closed_gap(0.5, 1.0, 1.0, field) is None:
        return None
    rest = phi._closed_taylor(gap, q1, q2, order, field) if order else ()
    return None if rest is None else (_value(phi, gap, q1, q2, field), *rest[1:])


def _value(phi: Any, gap: Any, q1: Number, q2: Number, field: Field) -> Any:
    """Return 1 - C, using the closed form of C' (if there is one) to differentiate it.

    Automatic differentiation would give nan at c = +-1, where the angle has infinite slope.
    """
    import jax
    import jax.numpy as jnp

    traced = [q for q in (q1, q2) if is_jax(q)]

    def both(given: tuple[Any, ...]) -> list[Number]:
        left = iter(given)
        return [next(left) if is_jax(q) else q for q in (q1, q2)]

    def closed(u: Any, *given: Any) -> Any:
        return jnp.broadcast_to(phi._closed_gap(u, *both(given), field), u.shape)

    def rate(u: Any, *given: Any) -> Any:
        eps = jnp.finfo(u.dtype).eps
        here, near = (
            phi._closed_derivatives(v, *both(given), field)[0]
            for v in (u, jnp.where(u < 1, u + eps, u - eps))
        )
        return jnp.where(jnp.isfinite(here), here, near)

    if phi._closed_derivatives(0.5, 1.0, 1.0, field) is None:
        return closed(gap, *traced)
    function = jax.custom_jvp(closed)

    @function.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        moved = rate(*primals) * tangents[0]
        if len(primals) > 1:
            moved = (
                moved
                + jax.jvp(lambda *given: closed(primals[0], *given), primals[1:], tangents[1:])[1]
            )
        return function(*primals), moved

    return function(gap, *traced)


# --- tables ---------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def local_table(phi: Any, q1: float, q2: float) -> Table:
    """Return the cached table of C(., q1, q2) for phi."""
    return tabulate(lambda gap: phi.taylor(gap, q1, q2)[0], name=phi.name)


def _tabulated(phi: Any, gap: Any, q1: Number, q2: Number, order: int) -> tuple[Any, ...]:
    import jax
    import jax.numpy as jnp

    if order > 1:
        raise KcalcError(
            f"{phi.name!r} has no closed form for JAX, and its table has only a first "
            f"derivative; use NumPy for order {order}"
        )
    first, second = _concrete(phi, q1, "q1"), _concrete(phi, q2, "q2")
    if first.size != 1 or second.size != 1:
        raise KcalcError(
            f"{phi.name!r} has no closed form for JAX; pass one q1 and one q2 at a time"
        )
    table = local_table(phi, float(first.item()), float(second.item()))
    if order == 0:
        return (table.gap(gap),)
    return jax.jvp(table.gap, (gap,), (jnp.ones_like(gap),))
