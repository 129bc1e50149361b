"""Read dot_general and conv_general_dilated."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ..trace import Contract
from .jaxpr_values import KnownArray, Padded, Ref, Value, made_shape
from .reader import JaxReader, inverse, rule

BOTH = "it multiplies two feature maps (attention), and kcalc has no rule for this"


@rule("dot_general")
def _dot(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    first, second = values
    if isinstance(first, Ref) and isinstance(second, Ref):
        return _contraction(reader, eqn, values, "matrix product of activations", BOTH)
    (left, right), (batch_left, batch_right) = eqn.params["dimension_numbers"]
    ref, weight = (first, second) if isinstance(first, Ref) else (second, first)
    assert isinstance(ref, Ref) and isinstance(weight, KnownArray)
    mine, theirs = (tuple(left), tuple(right)) if ref is first else (tuple(right), tuple(left))
    if batch_left or batch_right:
        reason = "every location or group has different weights, and kcalc has no rule for this"
        return _contraction(reader, eqn, values, "batched matrix product", reason)
    ref = reader.spread(ref)
    if 0 in [ref.order[a] for a in mine]:
        return reader.not_read("mixing of examples", "its weights act along the batch axis")
    free = [a for a in range(len(ref.shape)) if a not in mine]
    fresh = [a for a in range(weight.array.ndim) if a not in theirs]
    if not mine:
        return reader.not_read("outer product", "it has no sum over inputs")
    count = prod(weight.shape[a] for a in fresh)
    merged, place = _merged(reader, ref, mine)
    base = reader.ops[merged.name].shape

    def neutral(array: Any) -> Any:
        return array.transpose(*fresh, *theirs).reshape(count, -1)

    shape = tuple(count if axis == place else size for axis, size in enumerate(base))
    name = reader.linear(
        weight, neutral, "dense", shape=shape, reads=(merged.name,), axis=place, out_axis=place
    )
    out = Ref(name, (*merged.order, place), (*(ref.shape[a] for a in free), count))
    if len(fresh) != 1:
        out = reader.reshaped(
            out, [*(ref.shape[a] for a in free), *(weight.shape[a] for a in fresh)]
        )
    if ref is not first:  # move the weight's axes to the front
        total, own = len(out.shape), len(free)
        turn = (*range(own, total), *range(own))
        out = out.turned(turn)
    return [out]


def _contraction(
    reader: JaxReader, eqn: Any, values: list[Value], what: str, reason: str
) -> list[Value]:
    """Read a product of two arrays, neither of which contains the weights of a layer.

    The axes are named as in einsum.
    """
    (left, right), (batch_left, batch_right) = eqn.params["dimension_numbers"]
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    first = [next(letters) for _ in values[0].shape]
    pairs = dict(zip((*right, *batch_right), (*left, *batch_left), strict=True))
    second = [first[pairs[a]] if a in pairs else next(letters) for a in range(len(values[1].shape))]
    batch = [first[a] for a in batch_left]
    own = [c for a, c in enumerate(first) if a not in (*left, *batch_left)]
    other = [c for a, c in enumerate(second) if a not in (*right, *batch_right)]
    reads, terms = [], []
    for value, names in zip(values, (first, second), strict=True):
        if isinstance(value, KnownArray):
            reads.append(reader.held(value, tuple(range(len(names)))))
            terms.append("".join(names))
        else:
            ref = reader.spread(value)
            reads.append(ref.name)
            terms.append("".join(names[v] for v in inverse(ref.order)))
    shape = made_shape(eqn)
    told = {
        "what": what,
        "reason": reason,
        "terms": f"{','.join(terms)}->{''.join((*batch, *own, *other))}",
    }
    return [reader.fresh(reader.add(Contract, what.replace(" ", "_"), shape, reads, **told))]


def _merged(reader: JaxReader, ref: Ref, mine: tuple[int, ...]) -> tuple[Ref, int]:
    """Merge the axes ``mine`` of an array into one axis that follows all other axes.

    Returns: the array, and the merged axis in the operation's output.
    """
    free = [a for a in range(len(ref.shape)) if a not in mine]
    if len(mine) == 1:
        return ref.turned(free), ref.order[mine[0]]
    turned = ref.turned((*free, *mine))
    shape = [*(ref.shape[a] for a in free), prod(ref.shape[a] for a in mine)]
    flat = reader.reshaped(turned, shape, "flatten")
    return Ref(flat.name, flat.order[:-1], flat.shape[:-1]), len(shape) - 1


@rule("conv_general_dilated")
def _convolution(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    ref, weight = values
    params = eqn.params
    if not isinstance(ref, Ref) or not isinstance(weight, KnownArray):
        return reader.not_read("convolution with a feature map as its kernel", BOTH)
    spread = params["lhs_dilation"]
    strided = any(s > 1 for s in spread) and any(s > 1 for s in params["window_strides"])
    if strided or any(low < 0 or high < 0 for low, high in params["padding"]):
        reason = "it crops the image, or dilates it and has a stride above 1"
        return reader.not_read("convolution", reason)
    if params["batch_group_count"] != 1:
        return reader.not_read("convolution in groups of examples", "it couples examples")
    numbers = params["dimension_numbers"]
    ref = reader.spread(ref)
    if ref.order[numbers.lhs_spec[0]] != 0:
        ref = reader.plain(ref)
        if numbers.lhs_spec[0] != 0:
            turn = (
                numbers.lhs_spec[0],
                *(a for a in range(len(ref.shape)) if a != numbers.lhs_spec[0]),
            )
            ref = reader.plain(ref.turned(turn)).turned(inverse(turn))
    spatial = [ref.order[a] for a in numbers.lhs_spec[2:]]
    sort = sorted(range(len(spatial)), key=lambda k: spatial[k])
    axis = ref.order[numbers.lhs_spec[1]]
    pads = [tuple(int(p) for p in params["padding"][k]) for k in sort]
    spread = tuple(int(spread[k]) for k in sort) if any(s > 1 for s in spread) else ()
    name, mode = ref.name, "zeros"
    if not spread:
        name, pads, mode = _unpadded(reader, ref.name, [spatial[k] for k in sort], pads)
    places = (numbers.rhs_spec[0], numbers.rhs_spec[1], *(numbers.rhs_spec[2 + k] for k in sort))

    def neutral(array: Any) -> Any:
        return array.transpose(*places)

    sizes = eqn.outvars[0].aval.shape
    order = [0] * len(sizes)
    order[numbers.out_spec[0]], order[numbers.out_spec[1]] = 0, axis
    for k, place in enumerate(numbers.out_spec[2:]):
        order[place] = spatial[k]
    out = Ref(name, tuple(order), tuple(sizes))
    made = reader.linear(
        weight,
        neutral,
        "conv",
        shape=reader.base_shape(out),
        reads=(name,),
        axis=axis,
        out_axis=axis,
        stride=tuple(int(params["window_strides"][k]) for k in sort),
        padding=tuple(pads),
        mode=mode,
        dilation=tuple(int(params["rhs_dilation"][k]) for k in sort),
        groups=int(params["feature_group_count"]),
        spread=spread,
    )
    return [replace(out, name=made)]


Pads = list[tuple[int, int]]


def _unpadded(reader: JaxReader, name: str, axes: list[int], pads: Any) -> tuple[str, Pads, str]:
    """Return the operation before spatial padding, the total padding, and its mode.

    The total is the sum of this padding and the convolution's padding ``pads``.
    """
    own = [(int(low), int(high)) for low, high in pads]
    op = reader.ops[name]
    if (
        not isinstance(op, Padded)
        or op.value != 0
        or any(pad != (0, 0) for axis, pad in enumerate(op.pads) if axis not in axes)
    ):
        return name, own, "zeros"
    if op.mode != "zeros" and any(low or high for low, high in own):
        return name, own, "zeros"
    around = [op.pads[axis] for axis in axes]
    both = [(low + a, high + b) for (low, high), (a, b) in zip(own, around, strict=True)]
    return op.reads[0], both, op.mode


def sliced_linear(reader: JaxReader, name: str, start: int, stop: int) -> str | None:
    """Return a Linear with only the outputs from ``start`` to ``stop`` of the Linear ``name``.

    Return None if the operation is not a Linear, or has groups.
    """
    recipe = reader.recipes.get(name)
    if recipe is None or recipe.op.groups != 1 or recipe.op.bias is not None:
        return None
    op = recipe.op
    shape = tuple(
        stop - start if axis == op.out_axis else size for axis, size in enumerate(op.shape)
    )
    made = reader.names(name)
    rows = op.rows or tuple(range(op.weight.shape[0]))
    part = replace(
        op, name=made, shape=shape, weight=np.asarray(op.weight[start:stop]), rows=rows[start:stop]
    )
    reader.ops[made] = part
    view = None if recipe.weight is None else recipe.weight.then(lambda array: array[start:stop])
    reader.recipes[made] = replace(recipe, op=part, weight=view)
    return made
