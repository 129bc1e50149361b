"""Check the arrays that are passed to a model.

The arrays must fit the model, and JAX must not have rounded them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from ..foundation.errors import KcalcError

Node = Hashable
Array = Any
REMEDY = (
    "call it inside `with model.precision():` (or jax.enable_x64(True)), where jax keeps float64"
)


def doubles_off(dtype: str) -> bool:
    """Whether ``dtype`` is float64 although JAX traces float64 arrays as float32."""
    import jax

    config: Any = jax.config
    return dtype == "float64" and not config.jax_enable_x64


def refuse_rounded(named: Iterable[tuple[str, Any]]) -> None:
    """Raise KcalcError for arrays that JAX traces in less than double precision.

    Without this error, the lower precision would go unnoticed.
    """
    import jax.numpy as jnp
    from jax.core import Tracer

    for what, array in named:
        if (
            isinstance(array, Tracer)
            and jnp.issubdtype(array.dtype, jnp.floating)
            and array.dtype != jnp.float64
        ):
            raise KcalcError(
                f"{what} is {array.dtype} inside the caller's jit, vmap or grad, but the model is "
                f"float64; {REMEDY}"
            )


def refuse_traced(what: str, tree: Any) -> None:
    """Raise KcalcError if ``tree`` is traced.

    JAX would otherwise draw random numbers in single precision.
    """
    import jax
    from jax.core import Tracer

    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree)):
        raise KcalcError(
            f"{what} of a float64 model cannot be drawn inside the caller's jit, vmap or grad; "
            f"{REMEDY}"
        )


def same_batch(arrays: Mapping[Node, Array], axes: Mapping[Node, int]) -> None:
    """Raise KcalcError unless all inputs have the same leading axes.

    ``axes`` contains the number of axes of one example for each input.
    """
    leading = {
        node: tuple(array.shape[: array.ndim - axes[node]]) for node, array in arrays.items()
    }
    if len(set(leading.values())) > 1:
        listed = ", ".join(f"{node!r}: {shape}" for node, shape in leading.items())
        raise KcalcError(
            f"the inputs must have the same leading (batch) axes, got {listed}; pass the same "
            "number of examples for each input"
        )


def array_like(values: Any) -> bool:
    """Whether ``values`` is an array of real numbers."""
    import jax.numpy as jnp

    dtype = getattr(values, "dtype", None)
    if dtype is None or not hasattr(values, "shape"):
        return False
    try:
        return bool(jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer))
    except TypeError:
        return False
