"""Trace Equinox modules, which take a single example, on several examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from ...foundation.errors import KcalcError
from ..trace import Trace
from .functions import is_array, is_key, of_shapes, parameter_names, traced
from .markers import dropped, normalised

KINDS = ("LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm", "Dropout")


@dataclass(frozen=True, eq=False)
class Boxed:
    """A wrapper around a model's state, so that the state does not count as an example input."""

    state: Any


def _is_state(value: Any) -> bool:
    import equinox as eqx

    return isinstance(value, eqx.nn.State)


def trace_equinox(model: Any, inputs: Sequence[Any]) -> Trace:
    """Trace an Equinox module called on one example.

    Each of ``inputs`` is one example, the shape of several examples, or the state of the module.

    Raises: KcalcError if the module cannot be traced.
    """
    import equinox as eqx
    import jax

    if not callable(model):
        raise KcalcError(
            f"equinox: {type(model).__name__} has no __call__, so it cannot be read; pass a "
            "function of (params, x)"
        )
    kinds = {kind: name for name in KINDS if (kind := _library(name)) is not None}

    def is_known(node: Any) -> bool:
        return type(node) in kinds

    names = {
        id(node): jax.tree_util.keystr(path, simple=True, separator=".")
        for path, node in _nodes(model, is_known)
    }
    order = [names.get(id(node)) for _, node in _nodes(model, is_known)]

    def run(params: Any, *values: Any, evaluating: bool = False) -> Any:
        params = eqx.nn.inference_mode(params) if evaluating else params
        labels = iter(order)

        def stand_in(node: Any) -> Any:
            label = next(labels)
            return (
                _stand_in()(node, kinds[type(node)], label or kinds[type(node)].lower())
                if is_known(node)
                else node
            )

        marked = jax.tree.map(stand_in, params, is_leaf=is_known)
        opened = [value.state if isinstance(value, Boxed) else value for value in values]
        return marked(*opened, **_missing_key(model, len(values)))

    def trace(shown: Sequence[Any]) -> Trace:
        names = parameter_names(type(model).__call__)[1:]
        evaluation = partial(run, evaluating=True)
        more: dict[str, Any] = {"channel_axis": 1, "single": True, "evaluation": evaluation}
        return traced("equinox", "equinox", model, run, model, shown, names, **more)

    given = [Boxed(value) if _is_state(value) else value for value in inputs]
    try:
        return trace(of_shapes(given, model, skipped=1))
    except KcalcError as error:
        if error.__cause__ is None:
            raise
        raise KcalcError(f"{error}{_hint(trace, given, model)}") from error.__cause__


def _hint(trace: Callable[[Sequence[Any]], Trace], given: Sequence[Any], model: Any) -> str:
    """Return a hint if a call failed because the examples have one axis too many or too few.

    The hint is "" if the call also fails with the corrected number of axes.
    """
    import jax

    whole = of_shapes(given, model)
    one = jax.tree.map(
        lambda leaf: _example(leaf) if is_array(leaf) and not is_key(leaf) else leaf, whole
    )
    shape = next(
        (
            tuple(leaf.shape)
            for leaf in jax.tree.leaves(whole)
            if is_array(leaf) and not is_key(leaf)
        ),
        (),
    )
    from_shapes = any(old is not new for old, new in zip(given, whole, strict=True))
    try:
        trace(whole if from_shapes else one)
    except KcalcError:
        return ""
    if from_shapes:
        return (
            f". The model takes one example of shape {shape}, but a shape must start with the "
            f"number of examples; pass {(1, *shape)}"
        )
    return (
        f". The model takes one example at a time, without a batch axis; pass x[0] or the shape "
        f"{shape}"
    )


def _example(array: Any) -> Any:
    """Return the shape and dtype of the first of several examples."""
    import jax

    return jax.ShapeDtypeStruct(array.shape[1:], array.dtype)


def _nodes(model: Any, is_leaf: Callable[[Any], bool]) -> list[tuple[Any, Any]]:
    import jax

    return jax.tree_util.tree_flatten_with_path(model, is_leaf=is_leaf)[0]


def _library(name: str) -> Any:
    import equinox as eqx

    return getattr(eqx.nn, name, None)


def _missing_key(model: Any, given: int) -> dict[str, Any]:
    """Return a random key as a keyword argument if the model requires one, else {}."""
    import jax

    try:
        parameters = list(inspect.signature(type(model).__call__).parameters.items())[1:]
    except (TypeError, ValueError):
        return {}
    return (
        {"key": jax.random.key(0)}
        if any(
            n == "key" and (k >= given or p.kind is p.KEYWORD_ONLY)
            for k, (n, p) in enumerate(parameters)
        )
        else {}
    )


@cache
def _stand_in() -> Any:
    """Return the class of modules that stand in for normalisation and dropout layers."""
    import equinox as eqx
    import jax

    class StandIn(eqx.Module):
        """Stands in for ``inner``, a normalisation or dropout layer, and marks its input."""

        inner: Any
        kind: str = eqx.field(static=True)
        label: str = eqx.field(static=True)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
            state = next((a for a in args if isinstance(a, eqx.nn.State)), None)
            x, inference = jax.numpy.asarray(x), kwargs.get("inference")
            found = _marked(self.inner, self.kind, self.label, x, inference)
            return found if state is None else (found, state)

    return StandIn


def _marked(layer: Any, kind: str, label: str, x: Any, inference: bool | None) -> Any:
    if kind == "Dropout":
        on = not (layer.inference if inference is None else inference)
        return dropped(x, float(layer.p), label, on)
    arrays: dict[str, Any] = {
        "gain": getattr(layer, "weight", None),
        "bias": getattr(layer, "bias", None),
    }
    every = tuple(range(x.ndim))
    if kind == "BatchNorm":
        return normalised(x, "batch", every[1:], layer.eps, label, over_examples=True, **arrays)
    if kind == "GroupNorm":
        return normalised(x, "group", every, layer.eps, label, groups=layer.groups, **arrays)
    return normalised(x, "rms" if kind == "RMSNorm" else "layer", every, layer.eps, label, **arrays)
