"""Copies of JAX models that run the user's code with some calls edited.

The functions below take a JAX function or module, the tree of its new parameters, the edited calls
as {place: action}, and the removed normalisation and dropout modules as {module: whether its bias
stays}. A copied module is an instance of a subclass with the same name, so it has the methods,
fields and state of the user's class.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ..edits import Action, Place
from .interpreter import edited_call

Calls = Mapping[Place, Action]
Gone = Mapping[str, bool]


class EditedFunction:
    """A JAX function with edits. It takes the same arguments as the original."""

    def __init__(self, function: Any, calls: Calls) -> None:
        functools.update_wrapper(self, function)
        self.function, self.calls = function, calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with its edits, and return the result."""
        return edited_call(self.function, self.calls, args, kwargs)

    def __repr__(self) -> str:
        name = getattr(self.function, "__qualname__", repr(self.function))
        count = len(self.calls)
        return f"<{name}, edited: {count} call{'s' if count != 1 else ''}>"


def function(model: Any, params: Any, calls: Calls, gone: Gone) -> tuple[Any, Any]:
    """Return the edited function and its parameters."""
    del gone  # functions have no modules
    return EditedFunction(model, calls), params


def subclass(cls: type, made: tuple[Any, ...] = (), **own: Any) -> type:
    """Return a subclass with the same name.

    ``made``: a function of this package and its arguments, with which unpickling recreates the
    subclass.
    """

    def __reduce_ex__(self: Any, protocol: Any) -> Any:  # noqa: N807
        found = super(new, self).__reduce_ex__(protocol)
        return (_again, made, *found[2:])

    named = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    named |= {"__reduce_ex__": __reduce_ex__} if made else {}
    new: Any = type(cls)(cls.__name__, (cls,), named | own)
    return new


def _again(maker: Any, *arguments: Any) -> Any:
    return object.__new__(maker(*arguments))


def with_bias(x: Any, bias: Any, axis: int = -1) -> Any:
    """Add a bias that has one entry per index of ``axis``, or the shape of the array."""
    if bias is None:
        return x
    if bias.ndim == 1:
        bias = bias.reshape([-1 if a == axis % x.ndim else 1 for a in range(x.ndim)])
    return x + bias.astype(x.dtype)


# -- NNX -------------------------------------------------------------------------------------------


def nnx(model: Any, params: Any, calls: Calls, gone: Gone) -> Any:
    """Return an edited copy of an NNX module."""
    from flax import nnx as library

    new = library.clone(model)
    library.update(new, params)
    nodes = {".".join(map(str, path)): node for path, node in library.iter_graph(new)}
    for path, serves in gone.items():
        nodes[path].__class__ = _gone_nnx(type(nodes[path]), serves)
    if calls:
        new.__class__ = _edited_nnx(type(new), tuple(calls.items()))
    return new


@lru_cache(maxsize=1000)
def _gone_nnx(cls: type, serves: bool) -> type:
    def __call__(self: Any, x: Any, *_: Any, **__: Any) -> Any:  # noqa: N807
        bias = getattr(self, "bias", None) if serves else None
        axis = getattr(self, "axis", -1)
        return with_bias(x, None if bias is None else bias[...], axis)

    return subclass(cls, (_gone_nnx, cls, serves), __call__=__call__)


@lru_cache(maxsize=1000)
def _edited_nnx(cls: Any, edits: tuple[Any, ...]) -> type:
    from flax import nnx as library

    calls = dict(edits)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        graph, state = library.split(self)

        def run(state: Any, args: Any, kwargs: Any) -> Any:
            module = library.merge(graph, state)
            return cls.__call__(module, *args, **kwargs), library.state(module)

        made, after = edited_call(run, calls, (state, args, kwargs), {})
        _update(self, state, after)
        return made

    call = functools.wraps(cls.__call__)(__call__)
    return subclass(cls, (_edited_nnx, cls, edits), __call__=call)


def _update(module: Any, before: Any, after: Any) -> None:
    """Update the state of a module with the values that a call has changed."""
    import jax
    from flax import nnx as library

    known = dict(library.to_flat_state(before))
    changed = [
        (path, value)
        for path, value in library.to_flat_state(after)
        if path not in known or not _same(jax.tree.leaves(value), jax.tree.leaves(known[path]))
    ]
    if changed:
        library.update(module, library.from_flat_state(changed))


def _same(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


# -- Equinox ---------------------------------------------------------------------------------------


def equinox(model: Any, params: Any, calls: Calls, gone: Gone) -> Any:
    """Return an edited copy of an Equinox module."""
    import equinox as eqx
    import jax

    del model  # its parameters are the module itself
    new = params
    kinds = tuple(eqx.nn.__dict__[name] for name in GONE if name in eqx.nn.__dict__)

    def is_known(node: Any) -> bool:
        return type(node) in kinds

    pairs, tree = jax.tree_util.tree_flatten_with_path(new, is_leaf=is_known)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in pairs]
    nodes = [
        _as(node, _gone_equinox(type(node), gone[name])) if name in gone else node
        for name, (_, node) in zip(names, pairs, strict=True)
    ]
    new = jax.tree.unflatten(tree, nodes)
    return _as(new, _edited_equinox(type(new), tuple(calls.items()))) if calls else new


GONE = ("LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm", "Dropout")


def _as(node: Any, cls: type) -> Any:
    """Return an instance of ``cls`` with the fields of ``node``."""
    new = object.__new__(cls)
    for field in dataclasses.fields(node):
        if hasattr(node, field.name):
            object.__setattr__(new, field.name, getattr(node, field.name))
    return new


@lru_cache(maxsize=1000)
def _gone_equinox(cls: type, serves: bool) -> type:
    import equinox as eqx

    def __call__(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        states = [v for v in (*args, kwargs.get("state")) if isinstance(v, eqx.nn.State)]
        made = with_bias(x, getattr(self, "bias", None) if serves else None, 0)
        return (made, states[0]) if states else made

    return subclass(cls, (_gone_equinox, cls, serves), __call__=__call__)


@lru_cache(maxsize=1000)
def _edited_equinox(cls: Any, edits: tuple[Any, ...]) -> type:
    calls = dict(edits)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        return edited_call(cls.__call__, calls, (self, *args), kwargs)

    call = functools.wraps(cls.__call__)(__call__)
    return subclass(cls, (_edited_equinox, cls, edits), __call__=call)


# -- Linen -----------------------------------------------------------------------------------------


def linen(model: Any, params: Any, calls: Calls, gone: Gone) -> tuple[Any, Any]:
    """Return an edited copy of a Linen module, and its variables."""
    if calls or gone:
        fields = [f.name for f in dataclasses.fields(model) if f.init and f.name != "parent"]
        cls = _edited_linen(type(model), tuple(calls.items()), tuple(gone.items()))
        model = cls(**{name: getattr(model, name) for name in fields})
    return model, params


@lru_cache(maxsize=1000)
def _edited_linen(cls: Any, edits: tuple[Any, ...], gone: tuple[tuple[str, bool], ...]) -> Any:
    import flax.linen as nn
    from flax.core import lift
    from flax.linen.transforms import lift_transform

    def edited(fn: Any) -> Any:
        def inner(scopes: Any, repack: Any, variables: Any, rngs: Any, *args: Any, **kw: Any):
            def run(variables: Any, rngs: Any, args: Any, kwargs: Any) -> Any:
                scope = scopes(variables, rngs)
                with nn.intercept_methods(_skipping(dict(gone))):
                    return fn(scope, *args, **kwargs), repack(scope)

            return edited_call(run, dict(edits), (variables, rngs, args, kw), {})

        return lift.pack(inner, (True,), (True,), (True,), name="edited", enable_kwargs=True)

    new = lift_transform(edited, cls)
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(new, name, getattr(cls, name))
    return new


def _skipping(gone: Gone) -> Any:
    """Return a method interceptor that makes removed modules return their input."""
    top: list[int] = []

    def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        top.append(len(module.path))
        path = ".".join(module.path[top[0] :])
        if path not in gone or context.method_name != "__call__" or module.is_initializing():
            return call(*args, **kwargs)
        bias = module.get_variable("params", "bias") if gone[path] else None
        return with_bias(args[0], bias, getattr(module, "axis", -1))

    return intercept
