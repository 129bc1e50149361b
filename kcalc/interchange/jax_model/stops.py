"""The gradients of a jaxpr: stops, and functions with custom derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from ..fusion import Still
from ..surrogates import DIRECTIONS, Slope, distance, slope_from
from .jaxpr_values import KnownArray

OWN = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
COMPUTED = ("call_jaxpr", "fun_jaxpr")  # parameters of OWN; the others are rules for derivatives
INSIDE = ("f", "transforms", "func", "args", "__func__", "__wrapped__")
LIBRARY = "/jax/_src/"  # custom derivatives here are true; names here tell what is computed
WRAPPERS = tuple(
    f"{LIBRARY}{name}.py"
    for name in ("api_util", "custom_derivatives", "interpreters/partial_eval", "linear_util")
)
STEP, CLOSE = 3e-3, 0.02  # finite-difference step and tolerance, in single precision
SUMS = ("add", "sub", "neg", "add_any", "reduce_sum", "cumsum", "concatenate", "pad", "select_n")
MOVES = (
    *("reshape", "squeeze", "expand_dims", "transpose", "slice", "rev", "broadcast_in_dim", "copy"),
    *("copy_p", "split", "dynamic_slice", "gather", "convert_element_type", "reduce_precision"),
    *("dynamic_update_slice", "scatter", "optimization_barrier", "sharding_constraint"),
)
PRODUCTS = ("mul", "dot_general", "conv_general_dilated")
QUOTIENTS = ("div",)


def trained(name: str, values: Iterable[KnownArray]) -> bool | str:
    """Whether the results of a primitive applied to known arrays are trained.

    The rules are the same as for PyTorch (:func:`kcalc.interchange.torch_model.stops.trained`).
    Constants are not parameters.
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
    """Stop the gradient of an expression; comparisons have no gradient and stay unchanged."""
    return Still(x) if hasattr(x, "is_number") and not hasattr(x, "rel_op") else x


def own_derivative(eqn: Any) -> Slope | str:
    """Return the slope that a custom derivative computes, or a description if the slope is unknown.

    Returns "" if the call has no custom derivative, or if the custom derivative is the true one.
    """
    if eqn.primitive.name not in OWN or _of_library(eqn) or not _differs(eqn):
        return ""
    return _slope(eqn) or f"the function {_name(eqn)} with a custom derivative"


def with_slope(function: Callable[..., Any], found: Slope) -> Callable[..., Any]:
    """Return an elementwise function of one expression with the given slope as its gradient."""

    def run(x: Any) -> Any:
        passed = found.passed(x)
        return Still(function(x) - passed) + passed

    return run


def _of_library(eqn: Any) -> bool:
    """Whether both a function and its custom derivative are JAX's own.

    Users may give a function of JAX another derivative.
    """
    computed = [eqn.params[key] for key in COMPUTED if key in eqn.params]
    files = _files([rule for key, rule in eqn.params.items() if key not in COMPUTED])
    return (
        all(is_library(getattr(jaxpr, "jaxpr", jaxpr)) for jaxpr in computed)
        and bool(files)
        and all(LIBRARY in file for file in files)
    )


def _files(rules: list[Any]) -> set[str]:
    """Return the source files of the functions in rules, without those of JAX's wrappers."""
    found: set[str] = set()
    seen: dict[int, Any] = {}
    left = list(rules)
    while left:
        rule = left.pop()
        if id(rule) in seen:
            continue
        seen[id(rule)] = rule
        if isinstance(rule, tuple | list):
            left.extend(rule)
        elif isinstance(rule, FunctionType):
            found.add(rule.__code__.co_filename.replace("\\", "/"))
            for cell in rule.__closure__ or ():
                with suppress(ValueError):  # a name without a value
                    left.append(cell.cell_contents)
        elif isinstance(rule, partial | MethodType) or type(rule).__module__.startswith("jax"):
            left.extend(getattr(rule, key, None) for key in INSIDE)  # of JAX: wrapped, compiled
    return {file for file in found if not file.endswith(WRAPPERS)}


def is_library(jaxpr: Any) -> bool:
    """Whether a jaxpr is the code of a function of JAX, not of a function with the same name."""
    info = getattr(jaxpr, "debug_info", None)
    return LIBRARY in str(getattr(info, "func_src_info", "")).replace("\\", "/")


def _name(eqn: Any) -> str:
    name = eqn.params.get("name")
    jaxpr = eqn.params.get("call_jaxpr", eqn.params.get("fun_jaxpr"))
    info = getattr(getattr(jaxpr, "jaxpr", jaxpr), "debug_info", None)
    told = name if isinstance(name, str) else str(getattr(info, "func_src_info", "") or "")
    return told.split(" at ")[0] or eqn.primitive.name


def equation_function(eqn: Any, reads: Sequence[Any]) -> Callable[..., Any]:
    """Return a function that computes an equation from the arrays that it reads."""
    from jax.extend import core

    jaxpr = core.Jaxpr((), reads, eqn.outvars, [eqn], eqn.effects)
    return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))


def _reads(eqn: Any) -> list[Any]:
    return list(dict.fromkeys(v for v in eqn.invars if not hasattr(v, "val")))


def _differs(eqn: Any) -> bool:
    """Whether a custom derivative differs from the true one; True if it cannot be evaluated."""
    try:
        return max(_apart(eqn, seed) for seed in range(DIRECTIONS)) > CLOSE
    except Exception:  # a user's rule may not run on these arrays
        return True


def _apart(eqn: Any, seed: int) -> float:
    """Return the relative difference of the custom and true derivatives in a random direction."""
    import jax
    import jax.numpy as jnp

    chance, run = np.random.default_rng(seed), equation_function(eqn, _reads(eqn))
    kinds = [v.aval for v in _reads(eqn)]
    places = tuple(i for i, k in enumerate(kinds) if jnp.issubdtype(k.dtype, jnp.floating))
    points = [
        chance.standard_normal(k.shape).astype(k.dtype)
        if i in places
        else np.ones(k.shape, k.dtype)
        for i, k in enumerate(kinds)
    ]
    ways = {i: chance.standard_normal(kinds[i].shape).astype(kinds[i].dtype) for i in places}

    def value(*arrays: Any) -> Any:
        weigh = np.random.default_rng(seed + DIRECTIONS)
        return sum(
            jnp.sum(o * weigh.standard_normal(o.shape).astype(o.dtype))
            for o in run(*arrays)
            if jnp.issubdtype(o.dtype, jnp.floating)
        )

    def at(shift: float) -> float:
        moved = (
            p + np.asarray(shift * ways[i], p.dtype) if i in ways else p
            for i, p in enumerate(points)
        )
        return float(value(*moved))

    grads = jax.grad(value, argnums=places)(*points)
    slopes = [np.ravel(np.asarray(g, float) * ways[i]) for i, g in zip(places, grads, strict=True)]
    moved = (at(STEP) - at(-STEP)) / (2 * STEP)
    return distance(np.concatenate([np.zeros(1), *slopes]), moved)


def _slope(eqn: Any) -> Slope | None:
    import jax
    import jax.numpy as jnp

    reads = _reads(eqn)
    if len(reads) != 1 or len(eqn.outvars) != 1:
        return None
    shape, dtype = reads[0].aval.shape, reads[0].aval.dtype
    if eqn.outvars[0].aval.shape != shape:
        return None
    run, size = equation_function(eqn, _reads(eqn)), max(prod(shape), 1)
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
