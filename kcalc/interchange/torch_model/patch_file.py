"""Definitions for the files of patches, which need PyTorch but not kcalc.

A patch writes the definitions that it needs into its file, together with ``init``.
"""

from __future__ import annotations

import copy
import functools
import types
from dataclasses import dataclass
from typing import Any

import torch

from .weights import drawn, standardised, turned

OPERATORS: dict[str, Any] = {}


def shaped(owner: Any, number: int, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` as in the shaped network if ``init`` has set up the model."""
    if isinstance(function, str):
        function = _named(function)
    change = (getattr(owner, "shaped_calls", None) or {}).get(number)
    return function(*args, **kwargs) if change is None else change(function, args, kwargs)


def _named(name: str) -> Any:
    """Return an operator or a method of a tensor as a function."""
    return OPERATORS.get(name) or (lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs))


@dataclass
class Scaled:
    """Changes f(x) to scale * (f(a x + b) + shift); ``inputs``: (place of an argument, a, b)."""

    inputs: Any = ()
    scale: float = 1.0
    shift: float = 0.0

    def __call__(self, function: Any, args: Any, kwargs: Any) -> Any:
        for place, a, b in self.inputs:
            change = functools.partial(_affine, a=a, b=b)
            if isinstance(place[0], str):
                kwargs = _put(kwargs, place, change)
            else:
                args = _put(args, place, change)
        return _affine(_affine(function(*args, **kwargs), 1.0, self.shift), self.scale, 0.0)


@dataclass
class Taken:
    """Changes f(x, ...) to scale * (function(a x + b) + shift), where x is one argument."""

    place: Any
    function: Any = None
    a: float = 1.0
    b: float = 0.0
    scale: float = 1.0
    shift: float = 0.0

    def __call__(self, function: Any, args: Any, kwargs: Any) -> Any:
        x = _affine(_found(args, kwargs, self.place), self.a, self.b)
        x = x if self.function is None else self.function(x)
        return _affine(_affine(x, 1.0, self.shift), self.scale, 0.0)


@dataclass
class Written:
    """Writes the result of a change into the argument that the call writes into.

    ``copied``: whether the call gets a copy of this argument.
    """

    place: Any
    change: Any
    copied: bool = False

    def __call__(self, function: Any, args: Any, kwargs: Any) -> Any:
        into = _found(args, kwargs, self.place)
        if self.copied and isinstance(self.place[0], str):
            kwargs = _put(kwargs, self.place, torch.clone)
        elif self.copied:
            args = _put(args, self.place, torch.clone)
        found = self.change(function, args, kwargs)
        return found if found is into else into.copy_(found)


@dataclass
class ArrayFirst:
    """Applies a change that was recorded for ``x * 2`` to ``2 * x`` as well."""

    change: Any

    def __call__(self, function: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(args[0], torch.Tensor):
            return self.change(function, args, kwargs)
        return self.change(lambda x, y: function(y, x), args[::-1], kwargs)


@dataclass
class Visits:
    """Applies a separate change (or no change) at each visit of a call."""

    changes: Any
    count: int = 0

    def __call__(self, function: Any, args: Any, kwargs: Any) -> Any:
        if self.count == len(self.changes):
            raise RuntimeError(f"a loop of the shaped network can run only {self.count} times")
        self.count += 1
        change = self.changes[self.count - 1]
        return function(*args, **kwargs) if change is None else change(function, args, kwargs)


@dataclass
class Into:
    """Applies changes inside a function that a call runs or has as an argument."""

    shaped_calls: Any
    argument: Any = None

    def __call__(self, function: Any, args: Any, kwargs: Any) -> Any:
        if self.argument is None:
            return function(*args, **kwargs, here=self)
        inner = functools.partial(_found(args, kwargs, (self.argument,)), here=self)
        if isinstance(self.argument, str):
            return function(*args, **{**kwargs, self.argument: inner})
        return function(*args[: self.argument], inner, *args[self.argument + 1 :], **kwargs)


def _found(args: Any, kwargs: Any, place: Any) -> Any:
    values = kwargs if isinstance(place[0], str) else args
    return functools.reduce(lambda value, part: value[part], place, values)


def _put(values: Any, place: Any, change: Any) -> Any:
    first, *rest = place
    new = _put(values[first], rest, change) if rest else change(values[first])
    if isinstance(values, dict):
        return {**values, first: new}
    made = [*values[:first], new, *values[first + 1 :]]
    return tuple(made) if isinstance(values, tuple) else made


def _affine(x: Any, a: float, b: float) -> Any:
    x = x if a == 1.0 else x * a
    return x if b == 0.0 else x + b


class Part:
    """A class to put before the class of a module, with its ``forward`` in the shaped network."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        state = self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__
        return _empty, type(self).__bases__, state


class Whole(Part):
    """A class to put before the class of a module whose ``forward`` changes as one call."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return shaped(self, 0, super().forward, *args, **kwargs)  # pyright: ignore


@functools.lru_cache(maxsize=100)
def _joined(part: type, kind: type) -> Any:
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    made = type(kind)(kind.__name__, (part, kind), names)
    for name, function in vars(part).items():
        if isinstance(function, types.FunctionType):
            setattr(made, name, function)  # set afterwards, because a metaclass may wrap it
    return made


def _empty(part: type, kind: type) -> Any:
    made = _joined(part, kind)
    return made.__new__(made)


def _join(module: Any, part: type) -> None:
    module.__class__ = _joined(part, type(module))


def _give(module: Any, calls: Any) -> None:
    module.shaped_calls = copy.deepcopy(calls)


def _count(module: Any) -> None:
    """Reset the visits at the beginning of every run."""
    module.shaped_visits = [*_visits(module.shaped_calls)]
    if module.shaped_visits:
        module.register_forward_pre_hook(_begin)
        module.register_forward_hook(_end)


def _visits(calls: Any) -> Any:
    for change in calls.values():
        if isinstance(change, Visits):
            yield change
        for inner in change.changes if isinstance(change, Visits) else (change,):
            yield from _visits(getattr(inner, "shaped_calls", {}))


def _begin(module: Any, args: Any) -> None:
    for visits in module.shaped_visits:
        visits.count = 0


def _end(module: Any, args: Any, result: Any) -> None:
    for visits in module.shaped_visits:
        if 0 < visits.count < len(visits.changes):
            raise RuntimeError(
                f"a loop of the shaped network ran {visits.count} times instead of "
                f"{len(visits.changes)} times"
            )


def _drop(model: Any, name: str) -> None:
    home, _, leaf = name.rpartition(".")
    module = model.get_submodule(home)
    (module._parameters if leaf in module._parameters else module._buffers)[leaf] = None


def _add_bias(model: Any, name: str) -> None:
    layer = model.get_submodule(name.rpartition(".")[0])
    layer.bias = torch.nn.Parameter(layer.weight.new_zeros(len(layer.weight)))


def _slow(model: Any) -> None:
    """Switch off fast paths that skip the modules of a layer."""
    for layer in model.modules():
        if isinstance(layer, torch.nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0


# functions that set a parameter


def _fill(tensor: Any, number: float, law: str, generator: Any, rows: Any = None) -> None:
    tensor[slice(None) if rows is None else rows] = number


def _multiply(tensor: Any, number: float, law: str, generator: Any, rows: Any = None) -> None:
    tensor[slice(None) if rows is None else rows] *= number


def _normal(
    tensor: Any, number: float, law: str, generator: Any, rows: Any = None, padding: bool = False
) -> None:
    part = slice(None) if rows is None else rows
    size = tensor[part].shape
    fresh = number * torch.randn(size, dtype=torch.float64, generator=generator)
    if padding:  # rows of zeros stay 0
        fresh[(tensor[part] == 0).all(-1).cpu()] = 0.0
    tensor[part] = fresh.to(tensor.device, tensor.dtype)


def _draw(
    tensor: Any, number: float, law: str, generator: Any, shape: Any, groups: int = 1
) -> None:
    fresh = drawn(shape, groups, law, number, generator, tensor.dtype)
    tensor.copy_(fresh.reshape(tensor.shape))


def _draw_rows(
    tensor: Any,
    number: float,
    law: str,
    generator: Any,
    shape: Any,
    groups: int = 1,
    spread: Any = (),
    standard: bool = False,
    transposed: bool = False,
    **stored: Any,
) -> None:
    fresh = drawn(shape, groups, law, number, generator, tensor.dtype, spread)
    fresh = standardised(fresh) if standard else fresh
    fresh = turned(fresh, groups) if transposed else fresh
    _store(tensor, fresh.shape, lambda old: fresh.to(tensor.device, tensor.dtype), **stored)


def _multiply_layer(
    tensor: Any, number: float, law: str, generator: Any, shape: Any, **stored: Any
) -> None:
    _store(tensor, shape, lambda old: old * number, **stored)


def _each(change: Any) -> Any:
    """Apply a change to every block of a parameter along its first axis, as for stacked experts."""

    def changed(tensor: Any, *args: Any, **more: Any) -> None:
        for block in tensor:
            change(block, *args, **more)

    return changed


def _store(
    tensor: Any, shape: Any, new: Any, flipped: bool = False, rows: Any = None, height: int = 0
) -> None:
    shape = tuple(shape) if rows is None else (height, *shape[1:])
    kept = tensor.reshape(shape[::-1] if flipped else shape).clone()
    view, part = kept.T if flipped else kept, slice(None) if rows is None else rows
    view[part] = new(view[part])
    tensor.copy_(kept.reshape(tensor.shape))
