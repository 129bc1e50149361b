"""Read Conv, ConvTranspose, Gemm, MatMul and Einsum with one constant operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..geometry import turned_weights
from ..products import dense_product, summed_and_new
from ..trace import Linear, Op, Pointwise, Reshape
from .gates import product
from .geometry import OnnxWindow, window_of
from .graph_values import Array, Made, Node, Value, rule
from .shapes import image_padding

BOTH = (
    "product of feature maps",
    "it multiplies two arrays that both depend on the input (attention, bilinear layers); kcalc "
    "has no rule for this",
)
MIXES = ("matrix product", "it mixes the examples of a batch")


@rule("Conv")
def conv(node: Node) -> Made:
    """Read a convolution with constant weights, (outputs, inputs / groups, window...)."""
    x, w, b = node.value(0), node.value(1), node.optional(2)
    if w.array is None or (b is not None and b.array is None):
        return node.unread("convolution", "its weights depend on the input")
    x, around, mode = unpadded(x)
    groups, extent = node.whole("group", 1), w.shape[2:]
    if (
        x.rank < 3
        or w.rank != x.rank
        or groups < 1
        or x.shape[1] != w.shape[1] * groups
        or w.shape[0] % groups
    ):
        raise node.fail(
            f"weights of shape {w.shape} in {groups} groups do not fit an array of shape {x.shape}"
        )
    found = window_of(node, x.shape[2:], extent, around)
    if found is None:
        return node.unread("convolution", "its padding is negative or depends on the input")
    if mode != "zeros" and found.padding != around:
        reason = f"it adds zeros around an image after {mode} padding"
        return node.unread("convolution", reason)
    found = replace(found, mode=mode)
    if b is not None and b.shape != (w.shape[0],):
        raise node.fail(f"a bias of shape {b.shape} does not fit {w.shape[0]} channels")
    return _linear(
        node,
        x,
        w,
        w.numbers,
        (1, 1),
        (*x.shape[:1], w.shape[0], *found.sizes),
        b,
        window=found,
        groups=groups,
    )


@rule("ConvTranspose")
def conv_transpose(node: Node) -> Made:
    """Read a transposed convolution with weights (inputs, outputs / groups, window...)."""
    x, w, b = node.value(0), node.value(1), node.optional(2)
    rank, groups = x.rank - 2, node.whole("group", 1)
    if w.array is None or (b is not None and b.array is None) or "output_shape" in node.attributes:
        return None
    if rank < 1 or w.rank != x.rank or x.shape[1] != w.shape[0] or groups < 1:
        raise node.fail(f"weights of shape {w.shape} do not fit an array of shape {x.shape}")
    if w.shape[0] % groups or node.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    one, kernel = (1,) * rank, w.shape[2:]
    stride, dilation = node.wholes("strides") or one, node.wholes("dilations") or one
    cut, more = node.wholes("pads") or (0,) * 2 * rank, node.wholes("output_padding")
    more = more or (0,) * rank
    if (
        not len(stride) == len(dilation) == len(more) == len(cut) / 2 == rank
        or min(*stride, *dilation, *kernel) < 1
    ):
        raise node.fail("its strides, dilations and pads do not fit its window")
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    pads = [(r - a, r - b + m) for r, a, b, m in zip(reach, cut, cut[rank:], more, strict=False)]
    sizes = tuple(
        (n - 1) * s + 1 + low + high - r
        for n, s, (low, high), r in zip(x.shape[2:], stride, pads, reach, strict=True)
    )
    if min(k for pair in pads for k in pair) < 0 or min(sizes) < 1:
        return None
    turned = turned_weights(w.numbers, groups)
    spread = tuple(stride) if max(stride) > 1 else ()
    window = OnnxWindow(one, tuple(pads), tuple(dilation), sizes)
    shape = (x.shape[0], len(turned), *sizes)
    told = {"window": window, "groups": groups, "spread": spread}
    return _linear(node, x, w, turned, (1, 1), shape, b, **told)


def unpadded(x: Value) -> tuple[Value, tuple[tuple[int, int], ...] | None, str]:
    """Return (input, padding, mode) of the Pad on location axes that made ``x``.

    For other values, return (x, None, "zeros").
    """
    return image_padding(x) or (x, None, "zeros")


def _linear(
    node: Node,
    x: Value,
    owner: Value,
    weight: Array,
    axes: tuple[int, int],
    shape: Sequence[int],
    bias: Value | None = None,
    bias_array: Array | None = None,
    window: OnnxWindow | None = None,
    groups: int = 1,
    **fields: Any,
) -> Value:
    """Add a layer that acts on one axis; ``axes``: the axis in the input and in the output."""
    if not np.issubdtype(weight.dtype, np.floating) or weight.size == 0:
        raise node.fail("its weights are integers or empty; kcalc reads only float models")
    if window is not None:
        given = ("stride", "padding", "mode", "dilation")
        fields |= {name: getattr(window, name) for name in given}
    if bias is not None and bias_array is None:
        bias_array = bias.numbers
    return node.emit(
        Linear,
        shape,
        (x,),
        weight=weight,
        parameter=node.reader.owner(owner),
        axis=axes[0],
        out_axis=axes[1],
        bias=bias_array,
        bias_parameter=None if bias is None else bias.parameter,
        groups=groups,
        **fields,
    )


@rule("Gemm")
def gemm(node: Node) -> Made:
    """Read alpha A B + beta C with constant B."""
    x, w, c = node.value(0), node.value(1), node.optional(2)
    if x.rank != 2 or w.rank != 2:
        raise node.fail(f"its inputs must be matrices, got shapes {x.shape} and {w.shape}")
    if w.array is None:
        return node.unread(
            *(BOTH if x.array is None else ("matrix product", "it mixes the examples of a batch")),
        )
    if node.whole("transA"):
        return node.unread(*MIXES)
    alpha, beta = node.real("alpha", 1.0), node.real("beta", 1.0)
    weight = w.numbers if node.whole("transB") else w.numbers.T
    weight = weight if alpha == 1 else (weight * alpha).astype(weight.dtype)
    if weight.shape[1] != x.shape[1]:
        raise node.fail(
            f"weights for {weight.shape[1]} channels do not fit an array of shape {x.shape}"
        )
    size = weight.shape[0]
    bias = (
        None
        if c is None
        or c.array is None
        or beta == 0
        or c.shape not in ((), (1,), (size,), (1, 1), (1, size))
        else c
    )
    values = (
        None
        if bias is None
        else np.broadcast_to(
            bias.numbers.reshape(-1) * np.asarray(beta, bias.numbers.dtype), (size,)
        )
    )
    made = _linear(node, x, w, weight, (1, 1), (x.shape[0], size), bias, values)
    if c is None or bias is not None or beta == 0:
        return made
    shape = np.broadcast_shapes(made.shape, c.shape)
    if shape != made.shape:
        raise node.fail(
            f"it cannot add an array of shape {c.shape} to an array of shape {made.shape}"
        )
    function = (lambda y, z: y + z) if beta == 1 else (lambda y, z: y + beta * z)
    return node.at("add").emit(Pointwise, shape, (made, c), function=function, label="add")


@rule("MatMul")
def matmul(node: Node) -> Made:
    """Read a matrix product with one constant operand as a layer.

    The weights act on the last axis, or on the second to last if they are the left operand.
    """
    x, w = node.value(0), node.value(1)
    if x.array is None and w.array is None:
        return product(node, *BOTH)
    left = w.array is None
    x, w = (w, x) if left else (x, w)
    array = w.numbers
    while array.ndim > 2 and array.shape[0] == 1 and array.ndim <= max(x.rank, 2):
        array = array[0]
    if array.ndim > 2:
        return product(
            node,
            "batched matrix product",
            "it multiplies every location by a different matrix",
        )
    if array.ndim < 1 or x.rank < 1:
        raise node.fail("it multiplies by a single number")
    axis = x.rank - 1 if not left or x.rank == 1 else x.rank - 2
    if axis == 0:
        return node.unread(*MIXES)
    vector = array.ndim == 1
    weight = array[None] if vector else array if left else array.T
    if weight.shape[1] != x.shape[axis]:
        raise node.fail(f"weights of shape {w.shape} do not fit an array of shape {x.shape}")
    shape = [weight.shape[0] if i == axis else k for i, k in enumerate(x.shape)]
    made = _linear(node, x, w, weight, (axis, axis), shape)
    if vector:
        return node.at("squeeze").emit(
            Reshape,
            [k for i, k in enumerate(shape) if i != axis],
            (made,),
        )
    return made


def dense(node: Node, x: Value, w: Value, bias: Value | None) -> Value:
    """Read x W + b over the last axis."""
    axis, array = x.rank - 1, w.numbers.T
    return _linear(node, x, w, array, (axis, axis), (*x.shape[:-1], array.shape[0]), bias)


@rule("Einsum")
def einsum(node: Node) -> Made:
    """Read Einsum of one feature map and constant weights as a layer."""
    if len(node.inputs) != 2:
        return None
    source, _, target = node.text("equation", "").replace(" ", "").partition("->")
    terms, values = source.split(","), node.given()
    constants = [i for i in (0, 1) if values[i].array is not None]
    if len(terms) != 2 or len(constants) != 1 or not all(map(str.isalpha, (*terms, target))):
        return None if constants else node.unread(*BOTH)
    x, w = values[1 - constants[0]], values[constants[0]]
    words = terms[1 - constants[0]], terms[constants[0]], target
    if summed_and_new(words) is None or words[0][0] not in target:
        return None
    sizes = dict(zip(words[0], x.shape, strict=True))
    if any(sizes.get(c, n) != n for c, n in zip(words[1], w.shape, strict=True)):
        raise node.fail(f"weights of shape {w.shape} do not fit an array of shape {x.shape}")
    sizes |= dict(zip(words[1], w.shape, strict=True))

    def layer(
        x: Value, order: Sequence[int], axis: int, out_axis: int, shape: Sequence[int]
    ) -> Value:
        weight = w.numbers.transpose(order).reshape(shape[out_axis], -1)
        return _linear(node, x, w, weight, (axis, out_axis), shape)

    def move(kind: type[Op], shape: Sequence[int], x: Value, **fields: Any) -> Value:
        return node.emit(kind, shape, (x,), **fields)

    return dense_product(words, sizes, x, move, layer)


@rule("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")
def sparse(node: Node) -> Made:
    """Report integer and quantised products as not read."""
    return node.unread(
        "quantised layer",
        "its weights are integers with scales; read the model before quantisation",
    )
