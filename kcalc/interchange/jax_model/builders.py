"""Detect functions that build a model instead of mapping arrays to arrays."""

from __future__ import annotations

import inspect
from typing import Any

from ...foundation.errors import KcalcError

FRAMEWORKS = {
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "flax": "Flax",
    "equinox": "Equinox",
    "haiku": "Haiku",
}
CALL_FIRST = "call it first and read the model that it returns, as in kc.read({}(...), *inputs)"


def no_inputs(function: Any) -> str:
    """Return why a function that takes no arguments cannot be read, or "" if it takes arguments."""
    try:
        taken = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ""
    return (
        ""
        if taken
        else f"{_name(function)} takes no input; if it builds a model, {_first(function)}"
    )


def built_by(function: Any, error: BaseException) -> str:
    """Return why a function that failed while building a layer cannot be read, else ""."""
    trace = error.__traceback__
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        root = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if frame.f_code.co_name == "__init__" and root in FRAMEWORKS:
            return _told(function, f"layers of {FRAMEWORKS[root]}")
    return ""


def check_returned(function: Any, returned: Any) -> Any:
    """Return the result of a function after checking it.

    Raises: KcalcError if it contains a model.
    """
    import jax

    leaves = jax.tree.leaves(returned, is_leaf=lambda value: _framework(value) is not None)
    for leaf in leaves:
        if (framework := _framework(leaf)) is not None:
            kind = f"a model of {framework} ({type(leaf).__name__})"
            raise KcalcError(f"jax: {_told(function, kind)}")
    return returned


def _framework(value: Any) -> str | None:
    """Return the name of a module's framework."""
    for base in type(value).__mro__:
        root = base.__module__.split(".")[0]
        if root in FRAMEWORKS and base.__name__ in ("Module", "Layer"):
            return FRAMEWORKS[root]
    return None


def _told(function: Any, what: str) -> str:
    return f"{_name(function)} builds {what}, so it is not a function of arrays; {_first(function)}"


def _first(function: Any) -> str:
    name = _name(function)
    return CALL_FIRST.format(name if name.isidentifier() else "build")


def _name(function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "the function" if name == "<lambda>" else str(name)
