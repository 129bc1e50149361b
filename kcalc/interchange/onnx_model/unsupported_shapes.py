"""Find the output shapes of operators that no rule reads.

An output shape equals the input shape, is declared in the file, or is inferred by the onnx package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .entries import OPEN_BATCH
from .graph_values import BOOL, FLOAT, INT, Node, Value
from .model_file import package
from .tensors import TYPES

if TYPE_CHECKING:
    from .context import Context

Found = tuple[tuple[int, ...], str]
SAME = frozenset(
    (
        "Softmax",
        "LogSoftmax",
        "Hardmax",
        "LRN",
        "LpNormalization",
        "CumSum",
        "CumProd",
        "Trilu",
        "Bernoulli",
        "RandomNormalLike",
        "RandomUniformLike",
        "QuantizeLinear",
        "DequantizeLinear",
        "BatchNormalization",
        "LayerNormalization",
        "InstanceNormalization",
        "GroupNormalization",
        "Clip",
        "MeanVarianceNormalization",
        "RMSNormalization",
        "SimplifiedLayerNormalization",
        "RotaryEmbedding",
        "ReverseSequence",
        "Dropout",
        "Round",
        "IsNaN",
        "IsInf",
    )
)
FLOATS = (1, 10, 11, 16)
PLAIN = (1, 2, 3, 6, 7, 8)  # attribute types for numbers and strings
# {domain: how to add the shapes of its operators to a file}
INFERRED = {
    "": "run onnx.shape_inference on the model first",
    "com.microsoft": "run onnxruntime.tools.symbolic_shape_infer on the model first",
}


def shapes_of(node: Node) -> list[Found]:
    """Return (shape, kind) for every output.

    Raises: KcalcError if a shape is unknown.
    """
    if (
        node.op in SAME
        and node.inputs
        and node.inputs[0] is not None
        and not node.domain
        and len(node.outputs) == 1
    ):
        return [(node.inputs[0].shape, node.inputs[0].kind)]
    told = [_declared(node.reader, name) for name in node.outputs]
    if all(found is not None or not name for found, name in zip(told, node.outputs, strict=True)):
        return [found or ((1,), FLOAT) for found in told]
    inferred = _inferred(node)
    out = [first or second for first, second in zip(told, inferred, strict=True)]
    missing = [
        name for name, found in zip(node.outputs, out, strict=True) if found is None and name
    ]
    if missing:
        text = f"kcalc has no rule for it, and the shape of {missing[0][:80]!r} is not in the file"
        remedy = INFERRED.get(node.domain, "add the shape to the model's value_info")
        raise node.fail(f"{text}; {remedy}")
    return [found or ((1,), FLOAT) for found in out]


def _of_type(declared: Any) -> Found | None:
    """Return (shape, kind) of a declared type, or None if a size after the batch size is open."""
    if (
        declared is None
        or not declared.HasField("tensor_type")
        or not declared.tensor_type.HasField("shape")
    ):
        return None
    sizes = [
        d.dim_value if d.HasField("dim_value") else None for d in declared.tensor_type.shape.dim
    ]
    kind = (
        FLOAT
        if declared.tensor_type.elem_type in FLOATS
        else BOOL
        if declared.tensor_type.elem_type == 9
        else INT
    )
    if any(k is None or k < 1 for k in sizes[1:]):
        return None
    return tuple(OPEN_BATCH if k is None or k < 1 else int(k) for k in sizes), kind


def _declared(reader: Context, name: str) -> Found | None:
    return _of_type(reader.declared.get(name))


def _inferred(node: Node) -> list[Found | None]:
    """Infer the output shapes of a single node with the onnx package."""
    return [_of_type(found) for found in inferred_types(node)]


def plain_node(node: Node) -> Any:
    """Return a copy of a node for shape inference, with new names and without tensors or graphs."""
    onnx = package()
    inputs = ["" if value is None else f"i{i}" for i, value in enumerate(node.inputs)]
    proto = onnx.helper.make_node(node.op, inputs, [f"o{i}" for i in range(len(node.outputs))])
    for name, attribute in node.attributes.items():
        if attribute.type in PLAIN:
            proto.attribute.add().CopyFrom(attribute)
            proto.attribute[-1].name = name
    return proto


def inferred_types(node: Node) -> list[Any]:
    """Infer the types of a node's outputs with the onnx package; unknown types are None."""
    onnx = package()
    nothing: list[Any] = [None] * len(node.outputs)
    if node.domain or any(a.type in (5, 10) for a in node.attributes.values()):
        return nothing
    given = {f"i{i}": value for i, value in enumerate(node.inputs) if value is not None}
    try:
        schema = onnx.defs.get_schema(node.op, node.opset, "")
        small = {
            name: onnx.numpy_helper.from_array(value.array, name)
            for name, value in given.items()
            if value.array is not None and value.array.size <= 1024
        }
        found = onnx.shape_inference.infer_node_outputs(
            schema,
            plain_node(node),
            {name: _type_of(onnx, value) for name, value in given.items()},
            small,
            None,
            opset_imports=[onnx.helper.make_opsetid("", node.opset)],
        )
    except Exception:  # the C++ code of the package raises its own classes
        return nothing
    return [found.get(f"o{i}") for i in range(len(node.outputs))]


def _type_of(onnx: Any, value: Value) -> Any:
    element = {FLOAT: 1, INT: 7, BOOL: 9}[value.kind]
    if value.array is not None:
        element = next((k for k, row in TYPES.items() if row[0] == value.array.dtype.name), element)
    return onnx.helper.make_tensor_type_proto(element, value.shape)
