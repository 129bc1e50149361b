"""Trace Keras 3 models on the JAX backend without changing their variables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...foundation.errors import KcalcError
from ..trace import Trace
from .functions import traced
from .markers import dropped, marking, normalised

DROPS = (
    "Dropout",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
    "AlphaDropout",
    "GaussianDropout",
)

SCALING = (
    "with rms_scaling=True, Keras divides by the standard deviation, not by the root mean square; "
    "use keras.layers.RMSNormalization instead"
)


def trace_keras(model: Any, inputs: Sequence[Any]) -> Trace:
    """Trace a Keras model in training mode.

    Without inputs, use the input shape of the built model. Raises: KcalcError if Keras runs on
    another backend, if the model is not built or has no input shape, or if it cannot be traced.
    """
    import keras

    if keras.backend.backend() != "jax":
        raise KcalcError(
            f"keras uses the {keras.backend.backend()} backend; set the environment variable "
            "KERAS_BACKEND=jax before importing keras"
        )
    shown = tuple(inputs) or (_example(model),)
    if not model.built:
        raise KcalcError(
            f"keras: {model.name!r} has no variables yet; call the model once on an example, "
            "model(x), before reading it"
        )
    trained = list(model.trainable_variables)
    values = _values(model)
    names, state = list(values), state_of(model)

    def run(params: Any, *given: Any, training: bool = True) -> Any:
        arrays = [params.get(name, values[name]) for name in names]
        split = (arrays[: len(trained)], arrays[len(trained) :])
        modes = training and getattr(model, "_call_has_training_arg", True)
        mode = {"training": True} if modes else {}
        return model.stateless_call(*split, *given, **mode)[0]

    axis = -1 if keras.config.image_data_format() == "channels_last" else 1
    return traced(
        "keras",
        "keras",
        model,
        run,
        state,
        shown,
        ["x"],
        channel_axis=axis,
        root=model.name,
        single=False,
        context=lambda: marking(_patches()),
        evaluation=partial(run, training=False),
        untrained={name: state[name] for name in names[len(trained) :] if name in state},
    )


def variables_of(model: Any) -> dict[str, Any]:
    """Return {path: variable}, with trainable variables first."""
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    return dict(zip(_paths(variables, model.name), variables, strict=True))


def _values(model: Any) -> dict[str, Any]:
    return {name: variable.value for name, variable in variables_of(model).items()}


def state_of(model: Any) -> dict[str, Any]:
    """Return {path: array} for a model, without the seeds of random number generators."""
    return {name: value for name, value in _values(model).items() if not _is_seed(value)}


def _is_seed(value: Any) -> bool:
    import numpy as np

    return not np.issubdtype(np.dtype(value.dtype), np.floating) and "float" not in str(value.dtype)


def _paths(variables: list[Any], root: str) -> list[str]:
    """Return distinct paths for variables, without the model's name."""
    out: list[str] = []
    for variable in variables:
        path = variable.path.removeprefix(f"{root}/").replace("/", ".")
        out.append(path if path not in out else f"{path}#{len(out)}")
    return out


def _example(model: Any) -> Any:
    """Return the input shapes that a model declares, for a batch of two examples.

    Raises: KcalcError if the model declares no inputs, or if a shape is not fixed.
    """
    import jax
    import keras

    spec = getattr(model, "inputs", None) or getattr(model, "_inputs", None)
    if not spec:
        raise KcalcError(
            f"keras: {model.name!r} does not specify its input shape; pass an example, as in "
            "kc.read(model, x)"
        )
    given = getattr(model, "input", spec)
    given = given[0] if isinstance(given, list | tuple) and len(given) == 1 else given

    def shape(tensor: Any) -> Any:
        if any(k is None for k in tensor.shape[1:]):
            raise KcalcError(
                f"keras: the input shape {tuple(tensor.shape)} of {model.name!r} is not fixed; "
                "pass an example, as in kc.read(model, x)"
            )
        return jax.ShapeDtypeStruct(
            (2, *tensor.shape[1:]), keras.backend.standardize_dtype(tensor.dtype)
        )

    return jax.tree.map(shape, given, is_leaf=lambda leaf: hasattr(leaf, "shape"))


def _patches() -> list[tuple[Any, str, Any]]:
    import keras

    marks: dict[str, Callable[..., Any]] = {
        "BatchNormalization": _batch,
        "LayerNormalization": _layer,
        "RMSNormalization": _rms,
        "GroupNormalization": _group,
    }
    marks |= dict.fromkeys(DROPS, _dropout)
    found = [
        (getattr(keras.layers, name), mark)
        for name, mark in marks.items()
        if hasattr(keras.layers, name)
    ]
    return [
        (kind, "call", _keeping(kind.__dict__["call"], mark))
        for kind, mark in found
        if "call" in kind.__dict__
    ]


def _keeping(own: Callable[..., Any], mark: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the call of a layer so that it leaves a mark while kcalc reads the model.

    The original call runs if there is a mask, and on other backends or in other threads.
    """
    from jax.core import Tracer

    reader = threading.get_ident()

    def call(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            kwargs.get("mask") is not None
            or not isinstance(inputs, Tracer)
            or threading.get_ident() != reader
        ):
            return own(self, inputs, *args, **kwargs)
        mode = (bool(kwargs.get("training")),) if mark is _dropout else ()
        return mark(self, inputs, *mode)

    return call


def _arrays(layer: Any) -> dict[str, Any]:
    return {
        "gain": _value(getattr(layer, "gamma", getattr(layer, "scale", None))),
        "bias": _value(getattr(layer, "beta", None)),
    }


def _value(variable: Any) -> Any:
    return getattr(variable, "value", None)


def _axes(layer: Any, x: Any) -> tuple[int, ...]:
    given = layer.axis if isinstance(layer.axis, list | tuple) else (layer.axis,)
    return tuple(int(a) % x.ndim for a in given)


def _batch(layer: Any, x: Any) -> Any:
    kept = _axes(layer, x)
    running = {"mean": _value(layer.moving_mean), "variance": _value(layer.moving_variance)}
    axes = [a for a in range(x.ndim) if a not in kept]
    return normalised(x, "batch", axes, layer.epsilon, layer.name, **_arrays(layer), **running)


def _layer(layer: Any, x: Any) -> Any:
    unread = SCALING if getattr(layer, "rms_scaling", False) else ""
    axes, arrays = _axes(layer, x), _arrays(layer)
    return normalised(x, "layer", axes, layer.epsilon, layer.name, unread=unread, **arrays)


def _rms(layer: Any, x: Any) -> Any:
    return normalised(x, "rms", _axes(layer, x), layer.epsilon, layer.name, **_arrays(layer))


def _group(layer: Any, x: Any) -> Any:
    groups = x.shape[_axes(layer, x)[0]] if layer.groups == -1 else layer.groups
    return normalised(
        x, "group", range(1, x.ndim), layer.epsilon, layer.name, groups=groups, **_arrays(layer)
    )


def _dropout(layer: Any, x: Any, on: bool) -> Any:
    return dropped(x, layer.rate, layer.name, on)
