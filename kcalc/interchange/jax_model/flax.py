"""Trace Flax modules: NNX modules, and Linen modules with their variables."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...foundation.errors import KcalcError
from ..trace import Trace
from .functions import parameter_names, traced
from .markers import dropped, marking, normalised

NORMS = {
    "BatchNorm": "batch",
    "LayerNorm": "layer",
    "RMSNorm": "rms",
    "GroupNorm": "group",
    "InstanceNorm": "group",
}
BY_LOCATION = "it averages over the examples only, for every location and channel"
SOME_LOCATIONS = "its groups do not extend over all locations"
SWITCHES = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "use_running_average": False,
}
_here = threading.local()


def _axes(x: Any, axes: Any) -> tuple[int, ...]:
    listed = axes if isinstance(axes, list | tuple) else (axes,)
    return tuple(sorted(int(a) % x.ndim for a in listed))


def _settings(module: Any, x: Any, name: str) -> dict[str, Any]:
    """Return the kind, axes and groups of an NNX or Linen normalisation module."""
    kind = NORMS[name]
    if kind == "batch":
        kept = _axes(x, module.axis)
        axes = tuple(a for a in range(x.ndim) if a not in kept)
        return {"kind": kind, "axes": axes, "unread": BY_LOCATION if len(kept) > 1 else ""}
    if kind in ("layer", "rms"):
        return {"kind": kind, "axes": _axes(x, module.reduction_axes)}
    if name == "InstanceNorm":
        kept = _axes(x, module.feature_axes)
        return {
            "kind": "group",
            "axes": tuple(a for a in range(1, x.ndim) if a not in kept),
            "groups": x.shape[kept[-1]],
        }
    groups, every = module.num_groups or x.shape[-1] // module.group_size, tuple(range(1, x.ndim))
    over = getattr(module, "reduction_axes", None)
    unread = "" if over is None or _axes(x, over) == every else SOME_LOCATIONS
    return {"kind": "group", "axes": every, "groups": groups, "unread": unread}


def _value(variable: Any) -> Any:
    """Return the array in an NNX variable, or None for None."""
    if variable is None:
        return None
    return variable[...] if hasattr(variable, "__getitem__") else variable


# -- NNX -------------------------------------------------------------------------------------------


def trace_nnx(model: Any, inputs: Sequence[Any]) -> Trace:
    """Trace an NNX module called on the inputs. The state of the original does not change.

    Raises: KcalcError if it cannot be traced.
    """
    from flax import nnx

    graph, state = nnx.split(model)
    call = type(model).__call__ if callable(model) else None
    if call is None:
        raise KcalcError(
            f"flax: {type(model).__name__} has no __call__, so it cannot be read; pass a "
            "function of (params, x)"
        )

    def run(params: Any, *values: Any, evaluating: bool = False) -> Any:
        module = nnx.merge(graph, params)
        if evaluating:
            module.eval()
        _here.paths = {
            id(node): ".".join(map(str, path))
            for path, node in nnx.iter_graph(module)
            if path and isinstance(node, nnx.Module)
        }
        try:
            return module(*values)
        finally:
            _here.paths = None

    names = parameter_names(call)[1:]
    return traced(
        "flax",
        "nnx",
        model,
        run,
        state,
        inputs,
        names,
        context=lambda: marking(_nnx_patches(model)),
        single=False,
        evaluation=partial(run, evaluating=True),
        untrained=nnx.split(model, nnx.Param, ...)[2],
    )


def _nnx_patches(model: Any) -> list[tuple[Any, str, Any]]:
    """Return replacements for the ``__call__`` methods of modules.

    Each replacement enters the name scope of its module. Those for Flax's normalisation and dropout
    modules also leave marks.
    """
    from flax import nnx

    marks = {getattr(nnx, name): _nnx_norm(name) for name in NORMS if hasattr(nnx, name)} | {
        nnx.Dropout: _nnx_dropout
    }
    classes = {type(node) for _, node in nnx.iter_graph(model) if isinstance(node, nnx.Module)}
    out = []
    for kind in {
        base
        for cls in classes
        for base in cls.__mro__
        if "__call__" in base.__dict__ and base not in (object, nnx.Module)
    }:
        own = kind.__dict__["__call__"]
        if inspect.isfunction(own):
            out.append(
                (kind, "__call__", _scoped(_marked(own, marks[kind]) if kind in marks else own))
            )
    return out


def _path(module: Any) -> str | None:
    paths = getattr(_here, "paths", None)
    return None if paths is None else paths.get(id(module), "")


def _scoped(call: Callable[..., Any]) -> Callable[..., Any]:
    """Make a call run in the name scope of its module."""
    import jax

    def scoped(self: Any, *args: Any, **kwargs: Any) -> Any:
        path = _path(self)
        if not path:
            return call(self, *args, **kwargs)
        around = getattr(_here, "around", "")
        _here.around = path
        try:
            with jax.named_scope(
                path.removeprefix(f"{around}.")
                if around and path.startswith(f"{around}.")
                else path
            ):
                return call(self, *args, **kwargs)
        finally:
            _here.around = around

    return scoped


def _marked(own: Callable[..., Any], mark: Callable[..., Any]) -> Callable[..., Any]:
    """Make a call leave a mark while kcalc reads the model; other threads run the original."""

    def marked(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        if _path(self) is None or kwargs.get("mask") is not None:
            return own(self, x, *args, **kwargs)
        return mark(self, x, kwargs)

    return marked


def _nnx_norm(name: str) -> Callable[..., Any]:
    def mark(self: Any, x: Any, _: Any) -> Any:
        arrays = {
            "gain": _value(getattr(self, "scale", None)),
            "bias": _value(getattr(self, "bias", None)),
        }
        if name == "BatchNorm":
            arrays |= {"mean": _value(self.mean), "variance": _value(self.var)}
        return normalised(
            x,
            epsilon=self.epsilon,
            label=_path(self) or name.lower(),
            **_settings(self, x, name),
            **arrays,
        )

    return mark


def _nnx_dropout(self: Any, x: Any, given: Mapping[str, Any]) -> Any:
    on = not _deterministic(self, given.get("deterministic"))
    return dropped(x, self.rate, _path(self) or "dropout", on)


def _deterministic(layer: Any, given: Any) -> bool:
    """Whether a dropout layer does nothing. The argument of the call overrides the attribute."""
    return bool(layer.deterministic if given is None else given)


# -- Linen -----------------------------------------------------------------------------------------


def trace_linen(module: Any, variables: Any, inputs: Sequence[Any]) -> Trace:
    """Trace a Linen module with its variables, applied to the inputs.

    Switches such as ``train`` are set if no input sets them.

    Raises: KcalcError if it cannot be traced.
    """
    import flax.linen as nn
    import jax

    def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        layer, name = context.module, type(context.module).__name__
        if context.method_name != "__call__" or not args or kwargs.get("mask") is not None:
            return call(*args, **kwargs)
        label = ".".join(layer.path) or name.lower()
        if type(layer) is nn.Dropout:
            given = args[1] if len(args) > 1 else kwargs.get("deterministic")
            return dropped(args[0], layer.rate, label, not _deterministic(layer, given))
        if NORMS.get(name) is None or type(layer) is not getattr(nn, name):
            return call(*args, **kwargs)
        found = {
            key: layer.get_variable("params", own)
            for key, own in (("gain", "scale"), ("bias", "bias"))
        }
        found |= {
            key: layer.get_variable("batch_stats", own)
            for key, own in (("mean", "mean"), ("variance", "var"))
        }
        return normalised(
            args[0], epsilon=layer.epsilon, label=label, **_settings(layer, args[0], name), **found
        )

    signature = inspect.signature(type(module).__call__)
    missing = {
        name: SWITCHES[name]
        for place, (name, p) in enumerate(list(signature.parameters.items())[1:])
        if name in SWITCHES and p.default is p.empty and place >= len(inputs)
    }

    def run(params: Any, *values: Any, switches: dict[str, bool] = missing) -> Any:
        keys = {name: jax.random.key(0) for name in ("dropout", "params", "default")}
        with nn.intercept_methods(intercept):
            return module.apply(params, *values, rngs=keys, mutable=True, **switches)[0]

    def evaluation(params: Any, *values: Any) -> Any:
        names = list(signature.parameters)[1:]
        off = {name: not SWITCHES[name] for name in names if name in SWITCHES}
        values = tuple(off.pop(name, value) for name, value in zip(names, values, strict=False))
        return run(params, *values, switches=off)

    if not isinstance(variables, dict) and not hasattr(variables, "items"):
        raise KcalcError(
            "flax: to read a Linen module, pass its variables too: kc.read((module, "
            "variables), x), where variables = module.init(key, x)"
        )
    return traced(
        "flax",
        "linen",
        module,
        run,
        variables,
        inputs,
        parameter_names(type(module).__call__)[1:],
        root=module.name or type(module).__name__,
        single=False,
        evaluation=evaluation,
        untrained={kind: held for kind, held in variables.items() if kind != "params"},
    )
