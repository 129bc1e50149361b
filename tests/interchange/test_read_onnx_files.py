"""ONNX files at their edges: tensors in every storage, inputs as declared and as told, functions,
subgraphs, names, shapes left open.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from onnx_graphs import F32, model, node, one, weights
from refusals import refused

import kcalc as kc
from kcalc.interchange.onnx_model import Limits, trace_onnx
from kcalc.interchange.read import read
from kcalc.interchange.trace import Linear, NotRead

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

L = kc.layers
CHOICE = np.array(True)


def tensor(data_type: int, dims: list[int], **fields: Any) -> Any:
    found = TensorProto(name="t", data_type=data_type, dims=dims)
    for field, values in fields.items():
        getattr(found, field).extend(values)
    return found


def adds(held: Any) -> Any:
    """x + the tensor."""
    constant = node("Constant", "", "t", value=held)
    return one(constant, node("Cast", "t", "f", to=F32), node("Add", "x f", "y"), shape=[2, 3])


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (tensor(1, [3], float_data=[1.0]), "declares 3 numbers, but it contains 1"),
        (tensor(2, [1], int32_data=[-1]), "its element type cannot"),
        (tensor(10, [1], int32_data=[70000]), "its element type cannot"),
        (tensor(12, [1], uint64_data=[2**40]), "its element type cannot"),
    ],
)
def test_tensors_whose_numbers_do_not_fit_are_refused(held: Any, words: str) -> None:
    with refused(f"onnx: tensor 't'.*{words}"):
        trace_onnx(adds(held))


def test_tensors_are_bounded_and_kept_elsewhere_only_for_files() -> None:
    with refused("'t'.*4000.*100"):
        trace_onnx(adds(tensor(1, [1000])), limits=Limits(file_bytes=100))
    with refused("10.*bytes"):
        trace_onnx(
            one(node("MatMul", "x w", "y"), shape=[2, 3], w=weights(3, 4)),
            limits=Limits(file_bytes=10),
        )
    elsewhere = tensor(1, [3])
    elsewhere.data_location = 1
    with refused("'t'.*numbers"):
        trace_onnx(adds(elsewhere))


def declared(*sizes: Any, **types: Any) -> Any:
    proto = one(node("Relu", "x", "y"), shape=sizes)
    for kind in types:
        getattr(proto.graph.input[0].type, kind).SetInParent()
    return proto


def two() -> Any:
    return model([node("Add", "x z", "y")], {"x": [2, 3], "z": [2, 3]}, ["y"])


def doubled() -> Any:
    proto = two()
    proto.graph.input[1].name = "x"
    return proto


INPUTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "sequence": (lambda: declared(2, sequence_type=True), {}, "reads only tensors"),
    "negative": (lambda: declared(2, -3), {}, "negative size"),
    "number": (lambda: declared(), {}, "single number"),
    "extent": (lambda: declared(2, 2**41), {}, "which no array can have"),
    "twice": (doubled, {}, "'x' occurs twice"),
    "which": (two, {"shapes": (2, 3)}, "pass shapes={name: shape}"),
    "no shape": (two, {"examples": [3, 4]}, "example array or a shape"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_that_cannot_be_are_refused(name: str) -> None:
    make, told, words = INPUTS[name]
    with refused(f"onnx: .*{words}"):
        trace_onnx(make(), **told)


def test_told_shapes_stand_in_for_undeclared_and_open_ones() -> None:
    bare = declared(2, 3)
    bare.graph.input[0].type.tensor_type.ClearField("shape")
    assert read(bare, shapes={"x": (4, 7)}).network.layer("x") == L.Input(7)
    assert read(declared(0, 3), np.zeros((5, 3))).network.layer("x") == L.Input(3)
    single = two()
    # an input with a default is a constant
    single.graph.initializer.append(numpy_helper.from_array(weights(2, 3), "z"))
    assert [op.name for op in trace_onnx(single, shapes=(2, 3)).ops] == ["x", "z", "add"]


def test_attributes_stand_once() -> None:
    proto = one(node("Elu", "x", "y", alpha=1.0))
    proto.graph.node[0].attribute.append(helper.make_attribute("alpha", 2.0))
    with refused("Elu.*'alpha'"):
        trace_onnx(proto)


def branch(*nodes: Any, **held: Any) -> Any:
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items()]
    return helper.make_graph(
        list(nodes), "g", [], [helper.make_tensor_value_info("t", F32, None)], tensors
    )


def test_branches_hold_constants_of_their_own_and_are_nested_finitely() -> None:
    w = weights(3, 4)
    chosen = branch(node("MatMul", "x w", "t"), w=w)
    proto = one(node("If", "c", "y", then_branch=chosen, else_branch=chosen), c=CHOICE)
    (found,) = (op for op in trace_onnx(proto).ops if isinstance(op, Linear))
    assert found.weight == pytest.approx(w.T) and found.parameter == "w"
    inner, last = branch(node("Relu", "x", "t")), branch(node("Tanh", "x", "t"))
    for _ in range(30):
        inner = branch(node("If", "c", "t", then_branch=inner, else_branch=last))
    with refused("nested.*24"):
        trace_onnx(one(node("If", "c", "y", then_branch=inner, else_branch=inner), c=CHOICE))


def test_names_of_files_that_are_no_text_are_refused() -> None:
    data = model([node("Relu", "xxxx", "yyyy")], {"xxxx": [2, 3]}, ["yyyy"]).SerializeToString()
    for text in (b"xxxx", b"Relu"):
        with refused("^onnx.*malformed"):
            trace_onnx(onnx.ModelProto.FromString(data.replace(text, b"\xff\xfe\xfd\xfc")))


def test_shapes_behind_an_unknown_operator_must_be_declared_in_full() -> None:
    proto = one(node("Special", "x", "h", domain="com.acme"), node("Relu", "h", "y"))
    proto.graph.value_info.append(helper.make_tensor_value_info("h", F32, ["N", "C"]))
    with refused("shape.*'h'"):
        trace_onnx(proto)


def test_without_the_onnx_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with refused(r"pip install 'kcalc\[onnx\]'"):
        trace_onnx("model.onnx")


DYNAMIC = [
    node("ReduceMax", "x", "m", keepdims=1, axes=[0, 1]),
    node("Reshape", "m one", "n"),
    node("Cast", "n", "k", to=TensorProto.INT64),
    node("Concat", "k k", "kk", axis=0),
]


def dynamic(*nodes: Any) -> Any:
    return one(*DYNAMIC, *nodes, shape=[2, 3], one=np.array([1]))


@pytest.mark.parametrize(
    "last",
    [
        node("Squeeze", "x k", "y"),
        node("Unsqueeze", "x k", "y"),
        node("Pad", "x k", "y"),
        node("Split", "x k", "y z"),
        node("ReduceSum", "x k", "y"),
        node("Tile", "x k", "y"),
        node("Slice", "x one one k", "y"),
    ],
    ids=lambda n: f"{n.op_type} {len(n.input)}",
)
def test_shapes_that_depend_on_the_input_are_read_only_where_the_file_tells_them(last: Any) -> None:
    proto = dynamic(last)
    with refused(f"{last.op_type} node that makes 'y': kcalc has no rule for it"):
        trace_onnx(proto)
    for name in last.output:
        proto.graph.value_info.append(helper.make_tensor_value_info(name, F32, [2, 4]))
    made = trace_onnx(proto).ops[-1]
    assert isinstance(made, NotRead) and made.shape == (2, 4) and made.reason
    assert read(proto).fidelity.level == "not read"


def test_an_expansion_to_an_unknown_shape_has_the_sizes_that_are_certain() -> None:
    trace = trace_onnx(dynamic(node("Expand", "x kk", "y")))
    assert isinstance(trace.ops[-1], NotRead) and trace.ops[-1].shape == (2, 3)
