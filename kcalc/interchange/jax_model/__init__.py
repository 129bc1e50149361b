"""The JAX front end: plain functions, Flax NNX and Linen, Equinox, and Keras on the JAX backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...foundation.errors import KcalcError
from ..example_shapes import is_shape
from ..named_inputs import positional
from ..trace import Trace
from .functions import trace_jax
from .kinds import is_of

__all__ = ["trace_jax", "trace_model"]


def trace_model(model: Any, example_inputs: Sequence[Any]) -> Trace | None:
    """Return the trace of a JAX model of any kind, or None for objects from other frameworks.

    JAX models are NNX, Linen and Equinox modules, Keras models on the JAX backend, and functions of
    the inputs or of parameters and inputs. Pass a Linen module in a pair with its variables, or
    pass the variables as the first input. Raises: KcalcError if a JAX model cannot be traced.
    """
    inputs = tuple(example_inputs)
    if isinstance(model, tuple) and len(model) == 2 and is_of(model[0], "flax.linen", "Module"):
        return _linen(model[0], (model[1], *inputs))
    if is_of(model, "flax.nnx", "Module"):
        from .flax import trace_nnx

        return trace_nnx(model, positional(model, inputs))
    if is_of(model, "flax.linen", "Module"):
        return _linen(model, inputs)
    if is_of(model, "equinox", "Module"):
        from .equinox import trace_equinox

        return trace_equinox(model, positional(model, inputs))
    if is_of(model, "keras", "Layer"):
        from .keras import trace_keras

        return trace_keras(model, inputs)
    if (
        not callable(model)
        or isinstance(model, type)
        or _foreign(model)
        or any(map(_foreign, _leaves(inputs)))
    ):
        return None
    return _function(model, positional(model, inputs))


def _linen(module: Any, inputs: tuple[Any, ...]) -> Trace:
    from .flax import trace_linen

    if len(inputs) < 2:
        raise KcalcError(
            "flax: to read a Linen module, pass its variables and an example input: "
            "kc.read((module, variables), x)"
        )
    return trace_linen(module, inputs[0], positional(module, inputs[1:]))


def _function(model: Any, inputs: tuple[Any, ...]) -> Trace:
    from .functions import is_array

    if not inputs:
        raise KcalcError(
            "to read a JAX function, pass its parameters and an example input: "
            "kc.read(function, params, x)"
        )
    if len(inputs) == 1 or is_array(inputs[0]) or all(map(is_shape, inputs)):
        return trace_jax(model, None, inputs)
    return trace_jax(model, inputs[0], inputs[1:])


def _foreign(value: Any) -> bool:
    """Whether a value belongs to a framework that JAX cannot trace."""
    return any(
        base.__module__.split(".")[0] in ("torch", "tensorflow", "onnx")
        for base in type(value).__mro__
    )


def _leaves(inputs: tuple[Any, ...]) -> list[Any]:
    import jax

    return jax.tree.leaves(inputs)
