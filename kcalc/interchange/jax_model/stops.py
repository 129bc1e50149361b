"""What gradients see of a jaxpr: stops, and functions with derivatives of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import numpy as np

from ..fusion import Still
from ..surrogates import Slope, slope_from
from .jaxpr_values import Known

OWN = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
LIBRARY = "/jax/_src/"  # whose functions have the derivatives of their values
STEP, CLOSE = 1e-2, 0.05  # in single precision
SUMS = ("add", "sub", "neg", "add_any", "reduce_sum", "cumsum", "concatenate", "pad", "select_n")
MOVES = (
    *("reshape", "squeeze", "expand_dims", "transpose", "slice", "rev", "broadcast_in_dim", "copy"),
    *("copy_p", "split", "dynamic_slice", "gather", "convert_element_type", "reduce_precision"),
    *("dynamic_update_slice", "scatter", "optimization_barrier", "sharding_constraint"),
)
PRODUCTS = ("mul", "dot_general", "conv_general_dilated")
QUOTIENTS = ("div",)


def trained(name: str, values: Iterable[Known]) -> bool | str:
    """Whether the numbers that a primitive makes of known arrays are trained.

    As in PyTorch (:func:`kcalc.interchange.torch_model.stops.trained`); a constant is no parameter.
    """
    given = list(values)
    own = [value for value in given if value.origins]
    moved = [value for value in own if value.trained is not False]
    if not own:
        return True
    if not moved or name == "stop_gradient":
        return False
    if any(value.trained == "indirectly" for value in moved):
        return "indirectly"
    one = len(moved) == 1
    plain = name in SUMS or name in MOVES
    scaled = one and (name in PRODUCTS or (name in QUOTIENTS and moved[0] is given[0]))
    return True if plain or scaled else "indirectly"


def still(x: Any) -> Any:
    """An expression that gradients do not see; a comparison has none."""
    return Still(x) if hasattr(x, "is_number") and not hasattr(x, "rel_op") else x


def own_derivative(eqn: Any) -> Slope | str:
    """The derivative of a call that is not that of its values: a slope, or words for it.

    "" for derivatives that are.
    """
    if eqn.primitive.name not in OWN or _of_library(eqn) or not _differs(eqn):
        return ""
    return _slope(eqn) or f"the function {_name(eqn)} with a derivative of its own"


def with_slope(function: Callable[..., Any], found: Slope) -> Callable[..., Any]:
    """An elementwise function of one expression with the gradient of another one."""

    def run(x: Any) -> Any:
        passed = found.passed(x)
        return Still(function(x) - passed) + passed

    return run


def _rules(eqn: Any) -> list[Any]:
    """What JAX says of the rules of a function's derivatives."""
    return [getattr(rule, "debug_info", None) for rule in eqn.params.values()]


def _of_library(eqn: Any) -> bool:
    places = [str(getattr(info, "func_src_info", "")) for info in _rules(eqn) if info is not None]
    return any(LIBRARY in place.replace("\\", "/") for place in places)


def _name(eqn: Any) -> str:
    name = eqn.params.get("name")
    jaxpr = eqn.params.get("call_jaxpr", eqn.params.get("fun_jaxpr"))
    info = getattr(getattr(jaxpr, "jaxpr", jaxpr), "debug_info", None)
    told = name if isinstance(name, str) else str(getattr(info, "func_src_info", "") or "")
    return told.split(" at ")[0] or eqn.primitive.name


def _function(eqn: Any) -> Callable[..., Any]:
    from jax.extend import core

    reads = [v for v in dict.fromkeys(v for v in eqn.invars if not hasattr(v, "val"))]
    closed = core.ClosedJaxpr(core.Jaxpr((), reads, eqn.outvars, [eqn], eqn.effects), ())
    return core.jaxpr_as_fun(closed)


def _differs(eqn: Any) -> bool:
    """Whether the derivative along one direction differs from differences of the values."""
    import jax
    import jax.numpy as jnp

    chance = np.random.default_rng(5)
    reads = list(dict.fromkeys(v for v in eqn.invars if not hasattr(v, "val")))
    real = [jnp.issubdtype(v.aval.dtype, jnp.floating) for v in reads]
    points = [
        chance.standard_normal(v.aval.shape).astype(v.aval.dtype)
        if floats
        else np.ones(v.aval.shape, v.aval.dtype)
        for v, floats in zip(reads, real, strict=True)
    ]
    ways = [
        chance.standard_normal(p.shape).astype(p.dtype) * (1.0 if floats else 0.0)
        for p, floats in zip(points, real, strict=True)
    ]
    run = _function(eqn)

    def value(*arrays: Any) -> Any:
        outs = run(*arrays)
        rng = np.random.default_rng(7)
        return sum(
            jnp.sum(o * rng.uniform(0.5, 1.5, o.shape).astype(o.dtype))
            for o in outs
            if jnp.issubdtype(o.dtype, jnp.floating)
        )

    places = tuple(i for i, floats in enumerate(real) if floats)
    try:
        found = jax.grad(value, argnums=places)(*points)
        along = sum(float(np.vdot(np.asarray(g), ways[i])) for i, g in zip(places, found, strict=True))
        up, down = (
            [(p + sign * STEP * w).astype(p.dtype) for p, w in zip(points, ways, strict=True)]
            for sign in (1, -1)
        )
        moved = float(value(*up) - value(*down)) / (2 * STEP)
    except Exception:  # a user's rule may not run on these arrays
        return True
    size = abs(along) + abs(moved)
    return size > CLOSE and abs(along - moved) > CLOSE * size


def _slope(eqn: Any) -> Slope | None:
    import jax
    import jax.numpy as jnp

    reads = list(dict.fromkeys(v for v in eqn.invars if not hasattr(v, "val")))
    if len(reads) != 1 or len(eqn.outvars) != 1:
        return None
    shape, dtype = reads[0].aval.shape, reads[0].aval.dtype
    if eqn.outvars[0].aval.shape != shape:
        return None
    run, size = _function(eqn), max(prod(shape), 1)
    rate = jax.jit(jax.grad(lambda x, w: jnp.sum(run(x)[0] * w)))

    def factors(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
        rows: list[np.ndarray] = []
        for start in range(0, len(points), size):
            cut = slice(start, start + size)
            x, w = (np.resize(a[cut], size).reshape(shape).astype(dtype) for a in (points, weights))
            rows.append(np.asarray(rate(x, w), np.float64).ravel()[: len(points[cut])])
        return np.concatenate(rows)

    try:
        return slope_from(factors)
    except Exception:  # a user's rule may not run on these arrays
        return None

