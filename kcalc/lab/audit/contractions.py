"""The contractions of data with weights in a run, and the parameters that make up the weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from .program import Program, Value
from .roots import contraction_weight


@dataclass(frozen=True, eq=False)
class Contraction:
    """A product of data and a weight.

    ``value`` is the result, ``data`` the operand, and ``parameters`` the names of the parameters in
    the weight. ``fan_in`` is the number of terms in each sum, and ``fan_out`` is the number of sums
    in which each entry of the data occurs, ignoring strides. ``axes`` is {parameter: contracted
    axes} if the weight is a view of the parameter. ``entries`` counts the entries of the weight, or
    of one matrix in a stack. ``groups`` is the number of groups of a convolution.
    """

    value: Value
    data: Value
    parameters: tuple[str, ...]
    fan_in: int
    fan_out: int
    axes: dict[str, tuple[int, ...]]
    entries: int
    transposed: bool = False
    groups: int = 1


def contractions(program: Program, parameters: dict[str, Any]) -> list[Contraction]:
    """Return all contractions of a run, in order."""
    found = []
    for value in program.values:
        weight = contraction_weight(value)
        if weight is not None:
            found.append(_contraction(value, weight, parameters))
    return found


def _contraction(value: Value, weight: Value, parameters: dict[str, Any]) -> Contraction:
    data = next(v for v in value.inputs if v.flavour == "data")
    shape = tuple(weight.tensor.shape)
    transposed, groups = False, 1
    if value.op == "convolution":
        flags = [n for n in value.numbers if isinstance(n, bool)]
        groups = max(int(next((n for n in reversed(value.numbers) if isinstance(n, int)), 1)), 1)
        transposed = bool(flags and flags[0])
        kernel = prod(shape[2:])
        fan_in, fan_out = shape[1] * kernel, shape[0] * kernel // groups
        dims: tuple[int, ...] = tuple(range(1, len(shape)))
    elif value.op in ("linear", "mkldnn_linear"):
        fan_in, fan_out, dims = shape[-1], shape[0], (len(shape) - 1,)
    else:
        order = value.inputs.index(data), value.inputs.index(weight)
        dim = len(shape) - 1 if order[1] < order[0] or len(shape) < 2 else len(shape) - 2
        fan_in = shape[dim]
        fan_out = prod(shape[-2:]) // max(fan_in, 1)
        dims = (dim,)
    of = [n for n in weight.weights if parameters[n].ndim > 1]
    of = [n for n in of if not _gain(tuple(parameters[n].shape), shape, dims)]
    names = tuple(of) or weight.weights
    axes = {n: a for n in names if (a := _axes(weight.tensor, dims, parameters[n])) is not None}
    entries = prod(shape if value.op == "convolution" else shape[-2:])
    return Contraction(
        value, data, names, int(fan_in), int(fan_out), axes, entries, transposed, groups
    )


def _gain(sizes: tuple[int, ...], weight: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    """Return whether a parameter multiplies whole rows of a weight, as in standardised weights."""
    one = len(sizes) == len(weight) and all(sizes[d] == 1 for d in dims)
    return one and any(weight[d] > 1 for d in dims)


def _axes(weight: Any, dims: tuple[int, ...], parameter: Any) -> tuple[int, ...] | None:
    """Return the parameter's axes that correspond to a weight's ``dims``, or None if unclear.

    Views are compared by strides, other weights by sizes if these are unambiguous.
    """
    if weight.untyped_storage()._cdata == parameter.untyped_storage()._cdata:
        marks = [(weight.stride(d), weight.shape[d]) for d in dims]
        own = [(parameter.stride(i), parameter.shape[i]) for i in range(parameter.ndim)]
        if all(own.count(mark) == 1 for mark in marks):
            return tuple(own.index(mark) for mark in marks)
    if weight.shape == parameter.shape and len(set(weight.shape)) == weight.ndim:
        return dims
    sizes = [int(weight.shape[d]) for d in dims]
    shape = list(parameter.shape)
    if all(shape.count(size) == 1 for size in sizes):
        return tuple(shape.index(size) for size in sizes)
    return None
