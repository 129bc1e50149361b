"""Convert elementwise JAX operations to functions of SymPy expressions.

An operation is a primitive, or a jaxpr that contains only elementwise primitives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import sympy as sp

from .. import elementary
from ..elementary import ONE, TWO, Function, condition, is_condition, truncated
from ..fusion import exact_number
from .named import named_function
from .stops import own_derivative, still, with_slope


def select(which: Any, *cases: Any) -> Any:
    """Return ``cases[which]``; ``which`` is a relation or an integer."""
    if len(cases) == 2:
        test = condition(which)
        if test in (sp.true, sp.false):
            return cases[test == sp.true]
        if any(is_condition(case) for case in cases):
            return sp.Or(
                sp.And(test, condition(cases[1])), sp.And(sp.Not(test), condition(cases[0]))
            )
        return sp.Piecewise((cases[1], test), (cases[0], True))
    if getattr(which, "is_Integer", False):
        return cases[int(which)]
    return sp.Piecewise(
        *((case, sp.Eq(which, k)) for k, case in enumerate(cases[:-1])), (cases[-1], True)
    )


def _remainder(x: Any, y: Any) -> Any:
    return sp.sign(x) * sp.Mod(sp.Abs(x), sp.Abs(y))


def _rounded(x: Any) -> Any:
    return sp.sign(x) * sp.floor(sp.Abs(x) + sp.Rational(1, 2))


TABLE: dict[str, Function] = {
    **ONE,
    **TWO,
    "add_any": TWO["add"],
    "cbrt": lambda x: sp.sign(x) * sp.Abs(x) ** sp.Rational(1, 3),
    "clamp": lambda low, x, high: sp.Min(sp.Max(x, low), high),
    "erf_inv": sp.erfinv,
    "erfc": lambda x: 1 - sp.erf(x),
    "is_finite": lambda x: sp.true,
    "logistic": ONE["sigmoid"],
    "rem": _remainder,
    "round": _rounded,
    "select_n": select,
}
OF_TRUTHS = ("and", "or", "xor", "not")
LABELS = {
    "logistic": "sigmoid",
    "integer_pow": "pow",
    "select_n": "where",
    "add_any": "add",
    "convert_element_type": "cast",
}
PASSING = (
    "copy",
    "copy_p",
    "reduce_precision",
    "optimization_barrier",
    "real",
    "sharding_constraint",
    "name",
    "pvary",
    "device_put",
    "mesh_cast",
    "reshard",
    "cast",
)
SHAPED = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims")


def function_of(primitive: str, params: dict[str, Any], kinds: Sequence[Any]) -> Function | None:
    """Return the elementwise function of a primitive, or None if it is not elementwise.

    ``kinds``: the dtypes of its inputs.
    """
    if primitive == "integer_pow":
        power = int(params["y"])
        return lambda x: x**power
    if primitive == "convert_element_type":
        return _conversion(np.dtype(kinds[0]), params["new_dtype"])
    if primitive == "stop_gradient":
        return still
    if primitive in PASSING:
        return lambda x: x
    whole = bool(kinds) and kinds[0] is not None and np.issubdtype(kinds[0], np.integer)
    # on integers, these act on bits or truncate
    if primitive not in TABLE or (whole and primitive in (*OF_TRUTHS, "div")):
        return None
    function = TABLE[primitive]
    return (
        function
        if primitive in (*OF_TRUTHS, "select_n")
        else lambda *values: function(*map(elementary.number, values))
    )


def _conversion(before: Any, after: Any) -> Function | None:
    import jax.numpy as jnp

    if before == np.dtype(bool):
        return lambda x: elementary.number(condition(x))
    if np.dtype(after) == np.dtype(bool):
        return condition
    if jnp.issubdtype(before, jnp.floating) and jnp.issubdtype(after, jnp.integer):
        return truncated
    return lambda x: x


def number(value: Any) -> Any:
    """Convert a NumPy scalar for SymPy; integers stay exact."""
    item = value.item()
    if isinstance(item, bool):
        return sp.true if item else sp.false
    if isinstance(item, int):
        return sp.Integer(item)
    if item != item:
        return sp.nan
    if item in (float("inf"), float("-inf")):
        return sp.oo if item > 0 else -sp.oo
    return exact_number(item, value.dtype)


def closed_function(jaxpr: Any, consts: Sequence[Any]) -> Function | None:
    """Return a jaxpr of elementwise primitives as a function of SymPy expressions.

    The function takes one expression per input. Returns None if the jaxpr contains other primitives
    or has several outputs.
    """
    if len(jaxpr.outvars) != 1 or any(np.size(c) != 1 for c in consts):
        return None
    if any(map(makes_complex, jaxpr.eqns)):
        return None
    functions = []
    for eqn in jaxpr.eqns:
        inner = inner_jaxpr(eqn)
        if len(eqn.outvars) != 1:
            return None
        if inner is not None:
            own = own_derivative(eqn)
            if isinstance(own, str) and own:
                return None
            function = named_function(called(eqn), inner) or closed_function(
                inner.jaxpr, inner.consts
            )
            if function is not None and own:
                function = with_slope(function, own) if len(eqn.invars) == 1 else None
        elif eqn.primitive.name in SHAPED and _spreads(eqn):
            function = _first
        else:
            function = function_of(eqn.primitive.name, eqn.params, [_dtype(v) for v in eqn.invars])
        if function is None:
            return None
        functions.append((eqn, function))

    def run(*values: Any) -> Any:
        known = dict(zip(jaxpr.invars, values, strict=True)) | {
            v: number(np.asarray(c)) for v, c in zip(jaxpr.constvars, consts, strict=True)
        }
        for eqn, function in functions:
            known[eqn.outvars[0]] = function(*(_read(known, v) for v in eqn.invars))
        return _read(known, jaxpr.outvars[0])

    return run


def makes_complex(eqn: Any) -> bool:
    """Whether an equation returns complex numbers."""
    return any(map(_complex, eqn.outvars))


def reads_complex(eqn: Any) -> bool:
    """Whether an equation reads complex numbers."""
    return any(map(_complex, eqn.invars))


def _complex(variable: Any) -> bool:
    import jax.numpy as jnp

    dtype = getattr(variable.aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.complexfloating)


def _first(x: Any, *_: Any) -> Any:
    return x


def _dtype(variable: Any) -> Any:
    dtype = getattr(variable.aval, "dtype", np.dtype(float))
    return dtype if isinstance(dtype, np.dtype) else np.dtype(float)


def _spreads(eqn: Any) -> bool:
    """Whether a shape operation does nothing, or only broadcasts a single number."""
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    return before == after or int(np.prod(before)) == 1


def _read(known: dict[Any, Any], variable: Any) -> Any:
    return number(np.asarray(variable.val)) if hasattr(variable, "val") else known[variable]


def inner_jaxpr(eqn: Any) -> Any:
    """Return the closed jaxpr that an equation (jit, custom derivatives, remat) calls once.

    Returns None for other equations.
    """
    from jax.extend.core import ClosedJaxpr, Jaxpr

    name = eqn.primitive.name
    if name in ("scan", "while", "cond"):
        return None
    for key in ("call_jaxpr", "jaxpr", "fun_jaxpr"):
        found = eqn.params.get(key)
        if isinstance(found, ClosedJaxpr):
            return found
        if isinstance(found, Jaxpr) and not found.constvars:
            return ClosedJaxpr(found, ())
    return None


def called(eqn: Any) -> str:
    """Return the name of the function that an equation calls."""
    name = eqn.params.get("name")
    if isinstance(name, str):
        return name
    inner = inner_jaxpr(eqn)
    info = getattr(getattr(inner, "jaxpr", None), "debug_info", None)
    return str(getattr(info, "func_name", None) or getattr(info, "func_src_info", "") or "").split(
        " at "
    )[0]
