"""ONNX models of a few nodes, and what onnxruntime makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

RNG = np.random.default_rng(5)
F32 = TensorProto.FLOAT


def model(
    nodes: list[Any],
    shapes: dict[str, list[Any]],
    outputs: list[str],
    held: dict[str, Any] | None = None,
    opset: int = 17,
    **more: Any,
) -> Any:
    """A model of nodes; constants that are arrays."""
    inputs = [helper.make_tensor_value_info(name, F32, shape) for name, shape in shapes.items()]
    ends = [helper.make_tensor_value_info(name, F32, None) for name in outputs]
    tensors = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in (held or {}).items()
    ]
    graph = helper.make_graph(nodes, "g", inputs, ends, tensors)
    imports = [
        helper.make_opsetid("", opset),
        *(helper.make_opsetid(d, 1) for d in more.pop("domains", ())),
    ]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, **more)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def one(
    *nodes: Any, shape: Any = ("N", 3), opset: int = 17, functions: Any = (), **held: Any
) -> Any:
    """A model from x to y: its nodes, its constants by name."""
    domains = sorted({n.domain for n in nodes} - {""})
    more = {"functions": functions, "domains": domains}
    return model(list(nodes), {"x": list(shape)}, ["y"], held, opset, **more)


def weights(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def ran(proto: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)})
