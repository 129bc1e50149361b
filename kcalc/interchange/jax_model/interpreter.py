"""Run a JAX program with some equations edited.

Functions with custom derivatives, branches, loops and checkpoints are preserved. An equation inside
a loop or call is edited by replacing its jaxpr with an edited jaxpr that has the same inputs and
outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ...activations.jax_function import jax_function
from ...foundation.errors import KcalcError
from ..edits import Exchanged, Scaled, Taken
from .sites import Plan, key_of, plan


def edited_call(
    function: Callable[..., Any], calls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run ``function(*args, **kwargs)`` with edits; ``calls``: {place: action}.

    Arrays are traced; other arguments are passed on unchanged.

    Raises: KcalcError if the program lacks one of the places.
    """
    import jax

    if not calls:
        return function(*args, **kwargs)
    flat, tree = jax.tree.flatten((args, kwargs))
    places = [k for k, leaf in enumerate(flat) if isinstance(leaf, jax.Array | np.ndarray)]
    told: list[Any] = []

    def pure(*arrays: Any) -> list[Any]:
        known = dict(zip(places, arrays, strict=True))
        values = [known.get(k, leaf) for k, leaf in enumerate(flat)]
        own_args, own_kwargs = jax.tree.unflatten(tree, values)
        leaves, form = jax.tree.flatten(function(*own_args, **own_kwargs))
        told[:] = form, [None if _traced(leaf) else leaf for leaf in leaves]
        return [leaf for leaf in leaves if _traced(leaf)]

    arrays = [flat[k] for k in places]
    closed = jax.make_jaxpr(pure)(*arrays)
    form, fixed = told
    made = iter(evaluated(closed, arrays, plan(closed.jaxpr, calls.items())))
    return jax.tree.unflatten(form, [next(made) if leaf is None else leaf for leaf in fixed])


def _traced(leaf: Any) -> bool:
    import jax

    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def evaluated(closed: Any, arrays: Sequence[Any], edits: Plan) -> list[Any]:
    """Return the outputs of a closed jaxpr with the planned edits of its equations."""
    jaxpr, actions = closed.jaxpr, dict(edits)
    known = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    known |= dict(zip(jaxpr.invars, arrays, strict=True))
    for index in _needed(jaxpr, actions):
        eqn, action = jaxpr.eqns[index], actions.get(index)
        read = [v.val if hasattr(v, "val") else known.get(v) for v in eqn.invars]
        found = _bound(eqn, read) if action is None else _edited(eqn, action, read)
        known.update(zip(eqn.outvars, found, strict=True))
    return [v.val if hasattr(v, "val") else known[v] for v in jaxpr.outvars]


def _needed(jaxpr: Any, actions: dict[int, Any]) -> list[int]:
    """Return the indices of equations that the outputs need or that have effects."""
    live, found = {v for v in jaxpr.outvars if not hasattr(v, "val")}, []
    for index in reversed(range(len(jaxpr.eqns))):
        eqn, action = jaxpr.eqns[index], actions.get(index)
        if eqn.effects or not live.isdisjoint(eqn.outvars):
            found.append(index)
            read = eqn.invars
            if isinstance(action, Taken | Exchanged):
                read = [eqn.invars[action.slot[0]]]
            live.update(v for v in read if not hasattr(v, "val"))
    return found[::-1]


def _bound(eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
    """Return the results of an unedited equation."""
    from jax.extend import core

    pairs = zip(eqn.invars, values, strict=True)
    reads = {v: x for v, x in pairs if not hasattr(v, "val")}  # lists each variable once
    jaxpr = core.Jaxpr((), list(reads), eqn.outvars, [eqn], eqn.effects, *_described(eqn, reads))
    return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))(*reads.values())


def _described(eqn: Any, reads: Any) -> list[Any]:
    """Return a list with a jaxpr's debug info, or [] for JAX versions that do not need it."""
    from jax.extend import core

    kind = getattr(core, "DebugInfo", None)
    names = (("",) * len(reads), ("",) * len(eqn.outvars))
    return [] if kind is None else [kind("jit", eqn.primitive.name, *names)]


def _edited(eqn: Any, action: Any, values: list[Any]) -> Sequence[Any]:
    """Return the results of an edited equation."""
    if isinstance(action, tuple):
        return _bound(_with_parts(eqn, action), values)
    if isinstance(action, Scaled):
        for (slot,), a, b in action.inputs:
            values[slot] = _affine(values[slot], a, b)
        (made,) = _bound(_reading(eqn), values)
        return [_like(_affine(made, action.scale, action.scale * action.shift), eqn)]
    x = values[action.slot[0]]
    if isinstance(action, Taken):
        return [_like(x, eqn)]
    made = jax_function(action.activation)(_affine(x, action.a, action.b))
    return [_like(_affine(made, action.scale, action.scale * action.shift), eqn)]


def _reading(eqn: Any) -> Any:
    """Return a copy of an equation in which every argument is a distinct variable."""
    from jax.extend.core import Var

    return eqn.replace(invars=[Var(v.aval) for v in eqn.invars])


def _affine(x: Any, a: float, b: float) -> Any:
    y = x if a == 1 else a * x
    return y if b == 0 else y + b


def _like(x: Any, eqn: Any) -> Any:
    """Convert an array to the dtype of an equation's result.

    Raises: KcalcError if the shape differs from the result's.
    """
    import jax.numpy as jnp

    aval = eqn.outvars[0].aval
    try:
        return jnp.broadcast_to(jnp.asarray(x).astype(aval.dtype), aval.shape)
    except ValueError:
        raise KcalcError(
            f"an array of shape {np.shape(x)} cannot replace the result of "
            f"{eqn.primitive.name}, which has shape {aval.shape}"
        ) from None


def _with_parts(eqn: Any, parts: Any) -> Any:
    """Return a copy of an equation, with the jaxprs that it calls replaced by edited ones."""
    params = dict(eqn.params)
    for part, edits in parts:
        key = key_of(eqn, part)
        if key == "branches":
            branches = list(params[key])
            branches[part] = _rebuilt(branches[part], edits)
            params[key] = tuple(branches)
        else:
            params[key] = _rebuilt(params[key], edits)
    return eqn.replace(params=params)


@lru_cache(maxsize=256)
def _rebuilt(inner: Any, edits: Plan) -> Any:
    """Return a jaxpr (closed or open) with the planned edits.

    Calls with the same arguments return the same object.
    """
    import jax
    from jax.extend.core import ClosedJaxpr

    closed = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())

    def run(*arrays: Any) -> list[Any]:
        return evaluated(closed, arrays, edits)

    avals = [v.aval for v in closed.jaxpr.invars]
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
    made = jax.make_jaxpr(run)(*shapes)
    return made if closed is inner else made.jaxpr
