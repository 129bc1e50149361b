"""Compute operations on constants with the reference implementation of the onnx package.

Shape inference checks the size of every result first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from . import elementwise
from .graph_values import Array, Node, Value
from .model_file import package
from .tensors import TYPES, to_array
from .unsupported_shapes import inferred_types, plain_node

KEPT = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Cast"}
REDUCED = {
    f"Reduce{kind}" for kind in ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "SumSquare")
}
MOVED = {"Range", "Expand", "Tile", "Gather", "GatherElements", "Concat", "Slice", "Split", "Pad"}
EVALUATED = {*KEPT, *REDUCED, *MOVED, *elementwise.PLAIN, "MatMul", "Clip", "Mod", "Trilu"}
MISFIT = "its attributes do not match the constants that it reads"
NUMBERS = "biuf"  # kinds of NumPy types that count as numbers


def fold(node: Node) -> Sequence[Value] | None:
    """Return the outputs of a node as constants.

    Returns None if the outputs depend on the input, or if kcalc does not fold the operator.
    """
    told = TOLD.get(node.op)
    known = all(value is None or value.array is not None for value in node.inputs)
    if node.domain or (told is None and not (known and node.op in EVALUATED)):
        return None
    if told is not None:
        array = told(node)
        return None if array is None else node.reader.computed(node, [array])
    return node.reader.computed(node, evaluated(node), node.op in KEPT)


def _room(node: Node, shape: Sequence[int], itemsize: int) -> None:
    if any(k < 0 for k in shape) or len(shape) > node.reader.limits.rank:
        raise node.fail(f"it would make an array of shape {str(tuple(shape))[:80]}")
    node.reader.budget.fold(max(prod(shape), 1), itemsize, node.what)


def evaluated(node: Node) -> list[Array]:
    """Compute the outputs of a node with known inputs."""
    from onnx.reference import ReferenceEvaluator

    given = {f"i{i}": value.array for i, value in enumerate(node.inputs) if value is not None}
    _check(node, [array for array in given.values() if array is not None])
    helper, proto = package().helper, plain_node(node)
    function = helper.make_function(
        "", "folded", list(given), proto.output, [proto], [helper.make_opsetid("", node.opset)]
    )
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(function).run(None, given, {})
    except Exception as error:  # the package raises its own classes
        raise node.fail(f"{MISFIT} ({type(error).__name__})") from None
    return [_plain(node, array) for array in found]


def _check(node: Node, arrays: list[Array]) -> None:
    """Reject operations that need too much memory or time, and unsupported element types.

    Raises: KcalcError.
    """
    if node.op == "Cast" and node.whole("to") not in TYPES:
        raise node.fail("it casts to an element type that kcalc does not support")
    if node.op in ("Div", "Mod") and arrays[1].dtype.kind in "iu" and not arrays[1].all():
        raise ZeroDivisionError
    if node.op == "MatMul" and arrays[0].ndim:
        _room(node, (arrays[0][..., 0].size * arrays[1].size // 16 + 1,), 8)
    for found in inferred_types(node):
        if found is None or not all(d.HasField("dim_value") for d in found.tensor_type.shape.dim):
            raise node.fail(MISFIT)
        itemsize = np.dtype(TYPES.get(found.tensor_type.elem_type, ("", "<f8"))[1]).itemsize
        _room(node, [d.dim_value for d in found.tensor_type.shape.dim], itemsize)


def _plain(node: Node, array: Any) -> Array:
    """Convert an array to a NumPy element type; bfloat16 becomes float32."""
    array = np.asarray(array)
    array = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    if array.dtype.kind not in NUMBERS:
        raise node.fail(f"its result has type {array.dtype.name}, which kcalc does not support")
    return array


def _constant(node: Node) -> Array:
    tensor = node.tensor("value")
    if tensor is not None:
        return to_array(tensor, node.reader.folder, node.reader.limits.file_bytes)
    for name, kind, field, dtype in (
        ("value_float", 1, "f", np.float32),
        ("value_int", 2, "i", np.int64),
        ("value_floats", 6, "floats", np.float32),
        ("value_ints", 7, "ints", np.int64),
    ):
        found = node.attributes.get(name)
        if found is not None and found.type == kind:
            return np.array(getattr(found, field), dtype=dtype)
    raise node.fail("its value is not a tensor of numbers but a string or a sparse tensor")


def _shape(node: Node) -> Array:
    shape = node.value(0).shape
    end = node.whole("end", len(shape))
    return np.array(shape[node.whole("start", 0) : end], dtype=np.int64)


def _filled(node: Node) -> Array | None:
    if node.value(0).array is None:
        return None
    shape, tensor = node.constants(0, "shape") or (), node.tensor("value")
    value = np.zeros(1, np.float32)
    if tensor is not None:
        value = to_array(tensor, node.reader.folder, node.reader.limits.file_bytes)
    if value.size != 1:
        raise node.fail("its value is not a single number")
    _room(node, shape, value.dtype.itemsize)
    return np.full(shape, value.reshape(-1)[0])


# operators whose attribute is a tensor, and operators that read no arrays
TOLD: dict[str, Callable[[Node], Array | None]] = {
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Shape": _shape,
    "Size": lambda node: np.array(prod(node.value(0).shape), dtype=np.int64),
}
