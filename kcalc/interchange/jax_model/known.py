"""Evaluate equations with known inputs, and track how their results depend on parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from .jaxpr_values import KnownArray, View, made_shape

MOVING = (
    "reshape",
    "squeeze",
    "expand_dims",
    "transpose",
    "slice",
    "rev",
    "broadcast_in_dim",
    "copy",
    "copy_p",
    "stop_gradient",
    "split",
)


def plain(array: Any) -> Any:
    """Convert an array to NumPy; random keys stay unchanged."""
    import jax
    import jax.numpy as jnp

    return array if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else np.asarray(array)


def constants_of(closed: Any) -> list[KnownArray]:
    """Return the constants of a closed jaxpr, including random keys."""
    arrays = [plain(array) for array in closed.consts]
    return [KnownArray(array, random=not isinstance(array, np.ndarray)) for array in arrays]


def given(array: Any) -> Any:
    """Convert an array to JAX; random keys stay unchanged."""
    import jax.numpy as jnp

    return jnp.asarray(array) if isinstance(array, np.ndarray) else array


def moved(eqn: Any, values: list[KnownArray]) -> list[Any] | None:
    """Evaluate a broadcast or transpose as a NumPy view, which has stride 0 on broadcast axes."""
    array = values[0].array if values else None
    if not isinstance(array, np.ndarray):
        return None
    if eqn.primitive.name == "broadcast_in_dim" and len(values) == 1:
        shape, places = made_shape(eqn), eqn.params["broadcast_dimensions"]
        full = [1] * len(shape)
        for axis, place in enumerate(places):
            full[place] = array.shape[axis]
        index: list[Any] = [None] * len(shape)
        for place in places:
            index[place] = slice(None)
        return [np.broadcast_to(array[tuple(index)], shape)]
    if eqn.primitive.name == "dynamic_slice":
        return [array[spans_of(eqn, values)]]
    if eqn.primitive.name == "transpose":
        return [np.transpose(array, eqn.params["permutation"])]
    return None


def spans_of(eqn: Any, values: list[KnownArray]) -> tuple[slice, ...]:
    """Return the slices that a dynamic_slice equation with known start indices selects."""
    sizes = eqn.params["slice_sizes"]
    starts = [int(np.asarray(v.array)) for v in values[1:]]
    starts = [min(max(s, 0), n - k) for s, n, k in zip(starts, values[0].shape, sizes, strict=True)]
    return tuple(slice(s, s + k) for s, k in zip(starts, sizes, strict=True))


def view_after(eqn: Any, values: list[KnownArray], index: int) -> View | None:
    """Return an output as a view of a parameter, or None if it is not such a view."""
    name = eqn.primitive.name
    if name == "convert_element_type" and len(values) == 1 and values[0].view is not None:
        return values[0].view
    if name == "dynamic_slice" and values[0].view is not None:
        spans = spans_of(eqn, values)
        return values[0].view.then(lambda array: array[spans])
    if name not in MOVING or len(values) != 1 or values[0].view is None:
        return None
    before = values[0].array
    if name == "broadcast_in_dim" and eqn.outvars[index].aval.size > before.size:
        places = eqn.params["broadcast_dimensions"]
        ones = [
            before.shape[places.index(a)] if a in places else 1
            for a in range(eqn.outvars[index].aval.ndim)
        ]
        # a view cannot represent broadcast entries
        return values[0].view.then(lambda array: array.reshape(ones))
    if any(step == 0 and size > 1 for step, size in zip(before.strides, before.shape, strict=True)):
        return values[0].view if name == "broadcast_in_dim" else None
    primitive, params, many = eqn.primitive, eqn.params, eqn.primitive.multiple_results

    def step(array: Any) -> Any:
        found = primitive.bind(array, **params)
        return found[index] if many else found

    return values[0].view.then(step)


def part(eqn: Any, values: list[KnownArray], index: int) -> str:
    """Describe the indices of a slice."""
    params = eqn.params
    if eqn.primitive.name == "dynamic_slice":
        return ",".join(f"{s.start}:{s.stop}" for s in spans_of(eqn, values))
    if eqn.primitive.name == "split":
        start = sum(params["sizes"][:index])
        return f"axis {params['axis']}: {start}:{start + params['sizes'][index]}"
    spans = zip(
        params["start_indices"],
        params["limit_indices"],
        params["strides"] or [1] * len(params["start_indices"]),
        strict=True,
    )
    return ",".join(f"{a}:{b}" + (f":{s}" if s != 1 else "") for a, b, s in spans)
