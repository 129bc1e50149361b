"""Distinguish the kinds of JAX models and get their parameters."""

from __future__ import annotations

import sys
from typing import Any

from ...foundation.errors import KcalcError


def is_of(model: Any, module: str, name: str) -> bool:
    """Whether a model is an instance of a framework's class, without importing the framework."""
    loaded = sys.modules.get(module)
    kind = getattr(loaded, name, None)
    return isinstance(kind, type) and isinstance(model, kind)


def kind_of(model: Any) -> str:
    """Return the kind of a model: "nnx", "linen", "equinox", "keras" or "function".

    A Linen module is passed as a pair (module, variables), and a function as a pair (function,
    parameters).

    Raises: KcalcError for other objects.
    """
    pair = isinstance(model, tuple) and len(model) == 2
    if pair and is_of(model[0], "flax.linen", "Module"):
        return "linen"
    for kind, module, name in (
        ("nnx", "flax.nnx", "Module"),
        ("equinox", "equinox", "Module"),
        ("keras", "keras", "Layer"),
    ):
        if is_of(model, module, name):
            return kind
    if callable(model[0] if pair else model) and not is_of(model, "flax.linen", "Module"):
        return "function"
    raise KcalcError(
        f"these edits are for a JAX model, but a {type(model).__name__} was passed; pass an NNX, "
        "Equinox or Keras model, (module, variables) or (function, parameters)"
    )


def split(kind: str, model: Any) -> tuple[Any, Any]:
    """Return (function or module, tree of its current parameters)."""
    if kind == "linen" or (kind == "function" and isinstance(model, tuple)):
        return model
    if kind == "function":
        return model, ()
    if kind == "nnx":
        from flax import nnx

        return model, nnx.split(model)[1]
    if kind == "keras":
        from .keras import state_of

        return model, state_of(model)
    return model, model
