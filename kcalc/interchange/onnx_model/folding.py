"""Operations on constants, computed.

a small evaluator whose arrays are counted before they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .graph_values import Array, Node, Value
from .pools import reduced_axes, reduced_shape
from .shapes import equal_parts, permutation, target_shape
from .tensors import TYPES, to_array

if TYPE_CHECKING:
    from .context import Context

BFLOAT16 = 16


def _divide(a: Array, b: Array) -> Array:
    if np.issubdtype(a.dtype, np.integer):
        if not b.all():
            raise ZeroDivisionError
        return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))
    return a / b


ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Abs": np.abs,
    "Add": np.add,
    "And": np.logical_and,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Div": _divide,
    "Equal": np.equal,
    "Exp": np.exp,
    "Floor": np.floor,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Log": np.log,
    "Max": lambda *a: np.max(np.broadcast_arrays(*a), axis=0),
    "Min": lambda *a: np.min(np.broadcast_arrays(*a), axis=0),
    "Mean": lambda *a: sum(a[1:], a[0]) / np.asarray(len(a), a[0].dtype),
    "Mul": np.multiply,
    "Neg": np.negative,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Pow": lambda a, b: np.power(a, b).astype(a.dtype),
    "Reciprocal": lambda a: (1 / a).astype(a.dtype),
    "Relu": lambda a: np.maximum(a, a.dtype.type(0)),
    "Round": np.round,
    "Sigmoid": lambda a: (1 / (1 + np.exp(-a))).astype(a.dtype),
    "Sign": np.sign,
    "Sin": np.sin,
    "Softplus": lambda a: np.logaddexp(a, a.dtype.type(0)),
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
    "Sum": lambda *a: sum(a[1:], a[0]),
    "Tanh": np.tanh,
    "Where": np.where,
    "Xor": np.logical_xor,
}
REDUCED: dict[str, Callable[..., Any]] = {
    "ReduceMean": np.mean,
    "ReduceSum": np.sum,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceL2": lambda a, axis, keepdims: np.sqrt(np.sum(a * a, axis=axis, keepdims=keepdims)),
    "ReduceL1": lambda a, axis, keepdims: np.sum(np.abs(a), axis=axis, keepdims=keepdims),
    "ReduceSumSquare": lambda a, axis, keepdims: np.sum(a * a, axis=axis, keepdims=keepdims),
}
KEPT = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Cast")
Folder = Callable[["Context", Node], Sequence[Array]]


def fold(reader: Context, node: Node) -> Sequence[Value] | None:
    """The outputs of a node as constants, or None.

    None where they depend on the input or no folding is written for the node.
    """
    if node.domain:
        return None
    folder = FOLDERS.get(node.op)
    needs_all = node.op not in ("Shape", "Size")
    if folder is None or (
        needs_all and any(value is not None and value.array is None for value in node.inputs)
    ):
        return None
    with np.errstate(all="ignore"):
        return reader.computed(node, [np.asarray(a) for a in folder(reader, node)], node.op in KEPT)


def _array(node: Node, index: int) -> Array:
    found = node.value(index).array
    assert found is not None
    return found


def _arrays(node: Node) -> list[Array]:
    return [_array(node, i) for i in range(len(node.inputs))]


def _room(reader: Context, node: Node, shape: Sequence[int], dtype: Any) -> None:
    if any(k < 0 for k in shape) or len(shape) > reader.limits.rank:
        raise node.fail(f"it would make an array of shape {str(tuple(shape))[:80]}")
    reader.budget.fold(max(prod(shape), 1), np.dtype(dtype).itemsize, node.what)


def _elementwise(reader: Context, node: Node) -> Sequence[Array]:
    arrays = _arrays(node)
    _room(reader, node, np.broadcast_shapes(*(a.shape for a in arrays)), np.result_type(*arrays))
    return [ELEMENTWISE[node.op](*arrays)]


def _reduced(reader: Context, node: Node) -> Sequence[Array]:
    array = _array(node, 0)
    axes = reduced_axes(node, array.ndim)
    if axes is None:
        raise node.fail("the axes that it needs are missing")
    _room(reader, node, array.shape, array.dtype)
    out = REDUCED[node.op](array, axis=axes, keepdims=bool(node.whole("keepdims", 1)))
    assert out.shape == reduced_shape(array.shape, axes, bool(node.whole("keepdims", 1)))
    return [np.asarray(out).astype(array.dtype)]


def _constant(reader: Context, node: Node) -> Sequence[Array]:
    tensor = node.tensor("value")
    if tensor is not None:
        return [to_array(tensor, reader.folder, reader.limits.file_bytes)]
    for name, kind, field, dtype in (
        ("value_float", 1, "f", np.float32),
        ("value_int", 2, "i", np.int64),
        ("value_floats", 6, "floats", np.float32),
        ("value_ints", 7, "ints", np.int64),
    ):
        found = node.attributes.get(name)
        if found is not None and found.type == kind:
            return [np.array(getattr(found, field), dtype=dtype)]
    raise node.fail("its value is no tensor of numbers (text or a sparse tensor)")


def _shape(reader: Context, node: Node) -> Sequence[Array]:
    shape = node.value(0).shape
    end = node.whole("end", len(shape))
    return [np.array(shape[node.whole("start", 0) : end], dtype=np.int64)]


def _filled(reader: Context, node: Node) -> Sequence[Array]:
    shape = node.constants(0, "shape") or ()
    tensor = node.tensor("value")
    value = (
        np.zeros(1, np.float32)
        if tensor is None
        else to_array(tensor, reader.folder, reader.limits.file_bytes)
    )
    if value.size != 1:
        raise node.fail("its value is not one number")
    _room(reader, node, shape, value.dtype)
    return [np.full(shape, value.reshape(-1)[0])]


def _range(reader: Context, node: Node) -> Sequence[Array]:
    start, limit, delta = (_array(node, i).reshape(-1)[0] for i in range(3))
    count = max(int(np.ceil((float(limit) - float(start)) / float(delta))), 0)
    _room(reader, node, (count,), np.int64)
    return [
        (start + np.arange(count).astype(_array(node, 0).dtype) * delta).astype(
            _array(node, 0).dtype
        )
    ]


def _moved(reader: Context, node: Node) -> Sequence[Array]:
    array = _array(node, 0)
    if node.op == "Transpose":
        return [array.transpose(permutation(node, array.ndim))]
    shape = array.shape if node.op == "Identity" else target_shape(node, array.shape)
    if shape is None:
        raise node.fail("the axes or the shape that it needs are missing")
    return [array.reshape(shape)]


def _cast(reader: Context, node: Node) -> Sequence[Array]:
    array, to = _array(node, 0), node.whole("to")
    if to not in TYPES:
        raise node.fail("it casts to an element type that kcalc does not read")
    dtype = np.dtype("<f4") if to == BFLOAT16 else np.dtype(TYPES[to][1])
    _room(reader, node, array.shape, dtype)
    return [_short(array.astype(dtype)) if to == BFLOAT16 else array.astype(dtype)]


def _short(array: Array) -> Array:
    """Single precision rounded to the nearest number of bfloat16, to even where two are as near."""
    bits = np.ascontiguousarray(array).view("<u4").astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.where(np.isfinite(array), bits.astype("<u4").view("<f4").reshape(array.shape), array)


def _expand(reader: Context, node: Node) -> Sequence[Array]:
    array, shape = _array(node, 0), node.constants(1, "shape") or ()
    if any(k < 1 for k in shape):
        raise node.fail(f"it would make an array of shape {str(shape)[:80]}")
    shape = np.broadcast_shapes(array.shape, shape)
    _room(reader, node, shape, array.dtype)
    return [np.broadcast_to(array, shape).copy()]


def _tile(reader: Context, node: Node) -> Sequence[Array]:
    array, repeats = _array(node, 0), node.constants(1, "repeats") or ()
    if len(repeats) != array.ndim or any(k < 0 for k in repeats):
        raise node.fail("its repeats do not belong to the axes")
    _room(reader, node, [n * k for n, k in zip(array.shape, repeats, strict=True)], array.dtype)
    return [np.tile(array, repeats)]


def _gather(reader: Context, node: Node) -> Sequence[Array]:
    array, indices = _array(node, 0), _array(node, 1)
    axis = node.axis(node.whole("axis", 0), array.ndim)
    _room(
        reader, node, (*array.shape[:axis], *indices.shape, *array.shape[axis + 1 :]), array.dtype
    )
    return [np.take(array, indices.astype(np.int64), axis=axis)]


def _gather_elements(reader: Context, node: Node) -> Sequence[Array]:
    array, indices = _array(node, 0), _array(node, 1).astype(np.int64)
    axis = node.axis(node.whole("axis", 0), array.ndim)
    sizes = [
        (n, m)
        for k, (n, m) in enumerate(zip(array.shape, indices.shape, strict=False))
        if k != axis
    ]
    if array.ndim != indices.ndim or any(m > n for n, m in sizes):
        raise node.fail("its indices do not fit its data")
    _room(reader, node, indices.shape, array.dtype)
    cut = tuple(slice(None) if k == axis else slice(m) for k, m in enumerate(indices.shape))
    return [np.take_along_axis(array[cut], indices, axis=axis)]


def _concat(reader: Context, node: Node) -> Sequence[Array]:
    arrays = _arrays(node)
    _room(reader, node, (sum(a.size for a in arrays),), arrays[0].dtype)
    return [np.concatenate(arrays, axis=node.whole("axis", 0))]


def _slice(reader: Context, node: Node) -> Sequence[Array]:
    array = _array(node, 0)
    starts, ends = node.constants(1, "starts") or (), node.constants(2, "ends") or ()
    axes = node.constants(3, "axes") or tuple(range(len(starts)))
    steps = node.constants(4, "steps") or (1,) * len(starts)
    node.axes(axes, array.ndim)
    cut = [slice(None)] * array.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        cut[axis] = slice(start, None if step < 0 and end < -array.shape[axis] else end, step)
    return [array[tuple(cut)]]


def _split(reader: Context, node: Node) -> Sequence[Array]:
    array, count = _array(node, 0), len(node.outputs)
    axis, sizes = node.axis(node.whole("axis", 0), array.ndim), node.constants(1, "split")
    sizes = equal_parts(array.shape[axis], count) if sizes is None else sizes
    if len(sizes) != count or sum(sizes) != array.shape[axis] or min(sizes) < 0:
        raise node.fail(
            f"parts of sizes {sizes[:8]} do not make up axis {axis} of an array of shape "
            f"{array.shape}"
        )
    return np.split(array, np.cumsum(sizes)[:-1], axis=axis)


def _matmul(reader: Context, node: Node) -> Sequence[Array]:
    a, b = _array(node, 0), _array(node, 1)
    shape = (a[..., :1] if a.ndim else a).shape
    _room(reader, node, (prod(shape) * max(b.size, 1) // 16 + 1,), a.dtype)
    return [np.matmul(a, b)]


def _clip(reader: Context, node: Node) -> Sequence[Array]:
    array, low, high = _array(node, 0), node.optional(1), node.optional(2)
    _room(reader, node, array.shape, array.dtype)
    for bound, name, cut in ((low, "min", np.maximum), (high, "max", np.minimum)):
        number = (
            bound.number
            if bound is not None
            else node.real(name, 0.0)
            if name in node.attributes
            else None
        )
        array = array if number is None else cut(array, number).astype(array.dtype)
    return [array]


def _remainder(reader: Context, node: Node) -> Sequence[Array]:
    """The remainder with the sign of the divisor, or with ``fmod`` that of the dividend."""
    a, b = _arrays(node)
    _room(reader, node, np.broadcast_shapes(a.shape, b.shape), a.dtype)
    if np.issubdtype(b.dtype, np.integer) and not b.all():
        raise ZeroDivisionError
    return [np.fmod(a, b) if node.whole("fmod") else np.mod(a, b)]


def _plain_pad(reader: Context, node: Node) -> Sequence[Array]:
    from .shapes import pads_of

    array, fill = _array(node, 0), node.optional(2)
    pads = pads_of(node, array.ndim)
    if (
        pads is None
        or any(k < 0 for pair in pads for k in pair)
        or node.text("mode", "constant") != "constant"
    ):
        raise node.fail("its padding of a constant is not constant")
    _room(
        reader,
        node,
        [n + low + high for n, (low, high) in zip(array.shape, pads, strict=True)],
        array.dtype,
    )
    return [
        np.pad(
            array,
            pads,
            constant_values=node.real("value", 0.0) if fill is None else fill.number or 0,
        )
    ]


def _triangle(reader: Context, node: Node) -> Sequence[Array]:
    """The upper or the lower triangle of matrices."""
    array, offset = _array(node, 0), node.optional(1)
    k = 0 if offset is None else int(offset.number or 0)
    _room(reader, node, array.shape, array.dtype)
    return [np.triu(array, k) if node.whole("upper", 1) else np.tril(array, k)]


FOLDERS: dict[str, Folder] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(REDUCED, _reduced),
    "Constant": _constant,
    "Shape": _shape,
    "Size": lambda _, node: [np.array(prod(node.value(0).shape), dtype=np.int64)],
    "ConstantOfShape": _filled,
    "Range": _range,
    "Reshape": _moved,
    "Flatten": _moved,
    "Squeeze": _moved,
    "Unsqueeze": _moved,
    "Transpose": _moved,
    "Identity": _moved,
    "Cast": _cast,
    "Expand": _expand,
    "Tile": _tile,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "MatMul": _matmul,
    "Clip": _clip,
    "Pad": _plain_pad,
    "Mod": _remainder,
    "Trilu": _triangle,
}
