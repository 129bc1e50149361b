"""Checks of arrays that are passed to a model.

They test whether arrays fit the model, and whether JAX has rounded them.
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
    """Whether a model of this dtype is float64 while JAX traces every float64 as float32."""
    import jax

    config: Any = jax.config
    return dtype == "float64" and not config.jax_enable_x64


def refuse_rounded(named: Iterable[tuple[str, Any]]) -> None:
    """Reject arrays that JAX traces in less than double precision.

    Raises: KcalcError for such arrays, because the lower precision would go unnoticed.
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
                f"{what} came as {array.dtype} into the caller's jit, vmap or grad, but the model "
                f"is float64; {REMEDY}"
            )


def refuse_traced(what: str, tree: Any) -> None:
    """Raises: KcalcError if ``tree`` is traced, since JAX would draw in single precision."""
    import jax
    from jax.core import Tracer

    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree)):
        raise KcalcError(
            f"{what} of a float64 model cannot be drawn inside the caller's jit, vmap or grad; "
            f"{REMEDY}"
        )


def same_batch(arrays: Mapping[Node, Array], axes: Mapping[Node, int]) -> None:
    """Raises: KcalcError unless all inputs have the same leading axes.

    ``axes`` is the number of axes of an example of each input.
    """
    leading = {
        node: tuple(array.shape[: array.ndim - axes[node]]) for node, array in arrays.items()
    }
    if len(set(leading.values())) > 1:
        listed = ", ".join(f"{node!r}: {shape}" for node, shape in leading.items())
        raise KcalcError(
            f"the inputs must have the same axes of examples, got {listed}; give equally many "
            "examples of each"
        )


def array_like(values: Any) -> bool:
    """Whether something is an array of real numbers."""
    import jax.numpy as jnp

    dtype = getattr(values, "dtype", None)
    if dtype is None or not hasattr(values, "shape"):
        return False
    try:
        return bool(jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer))
    except TypeError:
        return False
