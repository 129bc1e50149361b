"""Read dense layers, convolutions, matrix products and embeddings."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..geometry import turned_weights
from ..products import dense_product, summed_and_new
from ..trace import Linear, Lookup, Op
from .attention import contraction
from .calls import Call, rule
from .graph_values import Const, PaddedTensor, TensorRef, numbers_of
from .unsupported_ops import REASONS

MANY = "kcalc has no rule for weights that do not have two axes; use Linear layers"
MADE = (
    "its weights are computed from the input (a hypernetwork or attention), so they are not "
    "separate Gaussian weights"
)


def identity_of(weight: Const, array: np.ndarray) -> str:
    """Return a key that is the same for all layers with the same weights.

    The key is the name of the parameter or, for computed weights, their sources and a hash.
    """
    if weight.parameter is not None:
        return weight.parameter
    digest = hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=6).hexdigest()
    return f"{', '.join(weight.origins) or 'a constant'} #{digest}"


def _owner(weight: Const) -> str | None:
    """Return the parameter after which the layer is named."""
    return weight.parameter or next(iter(weight.origins), None)


VARIES = "the array that it adds has values for every location or example, not for every channel"


def _bias(bias: Any) -> dict[str, Any]:
    if bias is None:
        return {}
    array = numbers_of(bias.tensor)
    return {
        "bias": array,
        "bias_parameter": identity_of(bias, array) if bias.origins else bias.parameter,
        "bias_trained": bias.trained,
    }


def _known(call: Call, weight: Any, bias: Any) -> Any:
    """Report the call as not read if its weights or bias depend on the input, else return None."""
    if not isinstance(weight, Const):
        return call.unread("a product of two activations", MADE)
    return (
        None
        if bias is None or isinstance(bias, Const)
        else call.unread("a bias computed from the input", MADE)
    )


def dense(
    call: Call,
    source: Any,
    weight: Const,
    bias: Any,
    axis: int,
    out_axis: int,
    flip: bool = False,
    **fields: Any,
) -> Any:
    """Add a dense layer on one axis; ``flip``: whether the weights are (inputs, outputs)."""
    array = numbers_of(weight.tensor)
    array = array.T if flip else array
    call.walker.stored(weight, flip)
    fields |= {"axis": axis, "out_axis": out_axis, **_bias(bias)}
    if bias is not None:
        ones = (1,) * (len(call.shape) - bias.tensor.ndim)
        shape = (*ones, *bias.tensor.shape)
        if any(n != 1 for place, n in enumerate(shape) if place != out_axis):
            return call.unread("a bias", VARIES)
        fields["bias"] = np.array(np.broadcast_to(fields["bias"].ravel(), len(array)))
    return _owned(call, Linear, [call.read(source)], weight, array, **fields)


def _owned(
    call: Call,
    kind: type[Op],
    reads: list[str],
    weight: Const,
    array: np.ndarray,
    **fields: Any,
) -> TensorRef:
    """Add an operation named after the module of its weights."""
    parameter = identity_of(weight, array)
    told = {"weight": array, "parameter": parameter, "trained": weight.trained, **fields}
    return call.emit(kind, reads, _owner(weight), **told)


def _located(call: Call, source: Any, array: np.ndarray, **fields: Any) -> TensorRef:
    """Add a convolution with weights (outputs, inputs / groups, kernel...)."""
    weight = call["weight"]
    call.walker.stored(weight, False)
    groups = int(call["groups"] or 1)
    told = {"axis": 1, "out_axis": 1, "groups": groups, **_bias(call["bias"])}
    reads = [call.read(source)]
    return _owned(call, Linear, reads, weight, array, **told, **fields)


@rule("linear")
def linear(call: Call) -> Any:
    """Read x W^T + b along the last axis."""
    source, weight, bias = call["input"], call["weight"], call["bias"]
    if (
        isinstance(source, Const)
        or not isinstance(weight, Const)
        or (bias is not None and not isinstance(bias, Const))
    ):
        return _known(call, weight, bias) or call.unread("linear", MADE)
    return dense(call, source, weight, bias, len(source.shape) - 1, len(call.shape) - 1)


@rule("matmul", "mm", "bmm", "mv", "dot")
def product(call: Call) -> Any:
    """Read a matrix product x W or W x with constant W."""
    left = call.operand
    right = next(
        call[name] for name in ("other", "mat2", "vec2", "vec", "tensor") if call[name] is not None
    )
    return _matrices(call, left, right, None)


def _matrices(call: Call, left: Any, right: Any, bias: Any) -> Any:
    if isinstance(right, Const) and right.tensor.ndim == 2 and not isinstance(left, Const):
        return dense(call, left, right, bias, len(left.shape) - 1, len(call.shape) - 1, flip=True)
    if (
        isinstance(left, Const)
        and left.tensor.ndim == 2
        and not isinstance(right, Const)
        and len(right.shape) > 1
    ):
        return dense(call, right, left, bias, len(right.shape) - 2, len(call.shape) - 2)
    if isinstance(left, Const) or isinstance(right, Const):
        return contraction(call, left, right, None, "a product with many matrices", MANY)
    return contraction(call, left, right, None, "a product of two activations", MADE)


@rule("addmm")
def addmm(call: Call) -> Any:
    """Read beta * bias + alpha * x W."""
    if (
        call["alpha"] not in (None, 1)
        or call["beta"] not in (None, 1)
        or not isinstance(call["self"], Const)
    ):
        return call.unread(
            "addmm", "it is a scaled matrix product plus an array that depends on the input"
        )
    return _matrices(call, call["mat1"], call["mat2"], call["self"])


@rule("einsum")
def einsum(call: Call) -> Any:
    """Read a contraction of an activation with weights, or of two activations."""
    equation, operands = str(call["equation"]).replace(" ", ""), list(call["tensors"])
    source, _, out = equation.partition("->")
    terms = source.split(",")
    refs = [n for n, value in enumerate(operands) if not isinstance(value, Const)]
    if len(operands) != 2 or len(terms) != 2 or not refs or "->" not in equation or "." in equation:
        return call.unread(
            "einsum",
            "kcalc reads only equations with two operands, an arrow and no ellipsis",
        )
    x, weight = operands[refs[0]], operands[1 - refs[0]]
    words = terms[refs[0]], terms[1 - refs[0]], out
    if len(refs) == 2 or summed_and_new(words) is None or not isinstance(x, TensorRef):
        what = "a contraction " + (
            "of activations" if len(refs) == 2 else "that is not a dense layer on one axis"
        )
        return contraction(call, operands[0], operands[1], equation, "einsum", what)
    sizes = dict(zip(words[0] + words[1], (*x.shape, *weight.shape), strict=True))

    def layer(
        x: TensorRef, order: Any, axis: int, out_axis: int, shape: tuple[int, ...]
    ) -> TensorRef:
        matrix, flip = _matrix(weight, order, shape[out_axis])
        return dense(call, x, matrix, None, axis, out_axis, flip, shape=shape)

    def move(kind: type[Op], shape: tuple[int, ...], x: TensorRef, **fields: Any) -> TensorRef:
        return call.emit(kind, [x.name], shape=shape, **fields)

    return dense_product(words, sizes, x, move, layer)


def _matrix(weight: Const, order: tuple[int, ...], outputs: int) -> tuple[Const, bool]:
    """Reshape weights to a matrix, and return whether it is (inputs, outputs).

    ``order``: the order of their axes that puts outputs before inputs.
    """
    tensor, plain = weight.tensor, tuple(range(len(order)))
    if order == plain:
        return replace(weight, tensor=tensor.reshape(outputs, -1)), False
    if any(order[n:] + order[:n] == plain for n in plain):
        return replace(weight, tensor=tensor.reshape(-1, outputs)), True
    made = tensor.permute(order).reshape(outputs, -1)
    return Const(made, weight.origins, trained=weight.trained), False


@rule("conv1d", "conv2d", "conv3d", "convolution", "_convolution")
def convolution(call: Call) -> Any:
    """Read conv1d, conv2d, conv3d and the general convolution."""
    source, weight, bias = call["input"], call["weight"], call["bias"]
    report = _known(call, weight, bias)
    if report is not None:
        return report
    if call["transposed"]:
        return transposed(call)  # the general operator
    rank = weight.tensor.ndim - 2
    kernel = tuple(weight.tensor.shape[2:])
    stride, dilation = spread(call["stride"], rank, 1), spread(call["dilation"], rank, 1)
    pads, mode = _pads(call["padding"], kernel, dilation), "zeros"
    if isinstance(source, PaddedTensor):
        inner = source.pads[-rank:]
        if any(low or high for low, high in source.pads[:-rank]) or any(
            low < 0 or high < 0 for low, high in inner
        ):
            return call.unread("conv", "its input is cropped, or padded along the channels")
        if source.mode != "constant":
            mode = source.mode
            if any(low or high for low, high in pads):
                reason = (
                    f"zeros are added around an image after {mode} padding; use only one kind of "
                    "padding"
                )
                return call.unread("conv", reason)
        pads = tuple((a + c, b + d) for (a, b), (c, d) in zip(pads, inner, strict=True))
        source = source.source
    if len(source.shape) == rank + 1:
        return call.unread(
            "a convolution of one example", "pass example inputs with a batch axis first"
        )
    told = {"stride": stride, "padding": pads, "mode": mode, "dilation": dilation}
    return _located(call, source, numbers_of(weight.tensor), **told)


def spread(value: Any, rank: int, default: int) -> tuple[int, ...]:
    """Return one number per axis, given a single number or one number per axis."""
    if value is None or (isinstance(value, list | tuple) and not value):
        return (default,) * rank
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return tuple(int(v) for v in (values * rank if len(values) == 1 else values))


def _pads(
    padding: Any, kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Return (low, high) for every axis; with "same", an extra entry comes last as in PyTorch."""
    if padding == "valid":
        return ((0, 0),) * len(kernel)
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((p, p) for p in spread(padding, len(kernel), 0))


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed(call: Call) -> Any:
    """Read a transposed convolution as a convolution of the image with zeros inserted."""
    source, weight, bias = call["input"], call["weight"], call["bias"]
    report = _known(call, weight, bias)
    if report is not None:
        return report
    rank, groups = weight.tensor.ndim - 2, int(call["groups"] or 1)
    stride, dilation = spread(call["stride"], rank, 1), spread(call["dilation"], rank, 1)
    padding, more = spread(call["padding"], rank, 0), spread(call["output_padding"], rank, 0)
    if isinstance(source, PaddedTensor) or len(source.shape) == rank + 1:
        reason = "pad inside the layer, and pass example inputs with a batch axis first"
        return call.unread("a transposed convolution of a padded array", reason)
    kernel = weight.tensor.shape[2:]
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    pads = tuple((r - p, r - p + m) for r, p, m in zip(reach, padding, more, strict=True))
    if min(low for low, _ in pads) < 0:
        return call.unread("a transposed convolution", "its padding crops the image")
    array = turned_weights(numbers_of(weight.tensor), groups)
    told = {"stride": (1,) * rank, "padding": pads, "dilation": dilation, "turned": True}
    told["spread"] = stride if any(s > 1 for s in stride) else ()
    return _located(call, source, array, **told)


@rule("embedding")
def embedding(call: Call) -> Any:
    """Read a lookup of rows of a table by ids from an input."""
    weight, ids = call["weight"], call["indices"]
    if not isinstance(weight, Const) or not isinstance(ids, TensorRef):
        return call.unread(*REASONS["embedding"])
    return _table(call)


@rule("embedding_bag", "_embedding_bag")
def bag(call: Call) -> Any:
    """Read an EmbeddingBag with equally sized bags, as sums or means of rows of a table."""
    weight, ids, offsets = call["weight"], call["indices"], call["offsets"]
    count = math.prod(ids.shape) // max(call.shape[0], 1)
    even = isinstance(offsets, Const) and offsets.tensor.tolist() == list(
        range(0, math.prod(ids.shape), count)
    )
    plain = call["mode"] in (0, 1) and call["per_sample_weights"] is None
    if not isinstance(weight, Const) or not isinstance(ids, TensorRef) or not even or not plain:
        reason = (
            "kcalc reads an EmbeddingBag only if all examples have the same number of ids, the "
            "vectors are added or averaged without weights, and the ids are an input (examples, "
            "ids)"
        )
        return call.unread("an embedding of bags", reason)
    made = _table(call, bag=count, factor=1 / count if call["mode"] == 1 else 1.0)
    return made, None, None, None


def _table(call: Call, **fields: Any) -> TensorRef:
    weight = call["weight"]
    call.walker.stored(weight, False)
    array = numbers_of(weight.tensor)
    return _owned(call, Lookup, [call["indices"].name], weight, array, **fields)
