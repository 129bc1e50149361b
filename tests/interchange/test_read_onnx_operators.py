"""ONNX operators: all elementwise ones, and others in the forms that exporters seldom write.

The trace computes what onnxruntime computes, or it says why not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_graphs import node, one, ran, weights
from refusals import refused
from trace_values import values_of

import kcalc as kc
from kcalc.interchange.onnx_model import trace_onnx
from kcalc.interchange.read import read
from kcalc.interchange.trace import NotRead

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

Case = tuple[list[Any], list[Any], dict[str, Any], int]
A, F = np.array, np.float32
NONE = np.zeros(0, F)
SQUARE, FLAT = [2, 3, 4, 5], [2, 6]


def graph(*nodes: Any, shape: Any = FLAT, opset: int = 17, **held: Any) -> Case:
    return [*nodes], shape, held, opset


def case(
    op: str,
    inputs: str = "x",
    shape: list[Any] = FLAT,
    opset: int = 17,
    outputs: str = "y",
    **more: Any,
) -> Case:
    """One node: one letter names a constant, words name attributes."""
    held = {key: value for key, value in more.items() if len(key) == 1}
    made = node(op, inputs, outputs, **{k: v for k, v in more.items() if k not in held})
    return graph(made, shape=shape, opset=opset, **held)


def conv(inputs: str = "x w", **more: Any) -> Case:
    return case("Conv", inputs, [1, 2, 5, 5], w=weights(3, 2, 2, 2), **more)


def folded(op: str, inputs: str = "a", opset: int = 17, whole: bool = False, **more: Any) -> Case:
    """One node that reads constants only; a feature map is added to its output."""
    nodes, _, held, _ = case(op, inputs, FLAT, opset, "c", **more)
    tail = [node("Cast", "c", "d", to=TensorProto.FLOAT)] if whole else []
    nodes += [*tail, node("Add", f"x {'d' if whole else 'c'}", "y")]
    return graph(*nodes, shape=[2, 3], opset=opset, **held)


def rotary(shape: Any = (2, 3, 4, 8), rows: int = 4, width: int = 2, **more: Any) -> Case:
    """A rotary embedding with angles for every example, or with positions."""
    inputs, examples = ("x c s p", ()) if "p" in more else ("x c s", (2,))
    held = {name: weights(*examples, rows, width) for name in "cs"}
    return case("RotaryEmbedding", inputs, [*shape], 23, **held, **more)


def attention(op: str, inputs: str, *nodes: Any, opset: int = 23, **more: Any) -> Case:
    """Attention of two heads, with queries Q, keys K and values V."""
    held = {name: weights(6, 6) for name in "qkv"} | {k: v for k, v in more.items() if len(k) == 1}
    first = [node("MatMul", f"x {name}", name.upper()) for name in "qkv"]
    told = {k: v for k, v in more.items() if len(k) > 1}
    last = helper.make_node(op, ["" if i == "-" else i for i in inputs.split()], ["y"], **told)
    return graph(*first, *nodes, last, shape=[2, 4, 6], opset=opset, **held)


def proto_of(found: Case) -> Any:
    nodes, shape, held, opset = found
    return one(*nodes, shape=shape, opset=opset, **held)


NAMES = """
    Abs Asinh Atan Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu Mish
    Neg Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Tanh
    ThresholdedRelu
"""
BEHIND = {"Softsign": "Acos Asin Atanh Tan", "Exp": "Log Sqrt"}  # within the domain
THREE, SIX = A([-3.0, 1.5, 2.0], F), np.arange(6, dtype=F)
READ: dict[str, Case] = {
    "repeated once": case("Tile", "x r", r=[1, 1]),
    # -- moving
    "flatten from the end": case("Flatten", "x", SQUARE, axis=4),
    "flatten in the middle": case("Flatten", "x", SQUARE, axis=-1),
    "squeeze all": case("Squeeze", "x", [2, 1, 3, 1]),
    "squeeze some": case("Squeeze", "x a", [2, 1, 3, 1], a=[-1]),
    "unsqueeze": case("Unsqueeze", "x a", a=[-1, 1]),
    "reshape to itself": case("Reshape", "x s", s=[0, 6]),
    "transpose by default": case("Transpose"),
    "transpose to itself": case("Transpose", perm=[0, 1]),
    "one array joined": case("Concat", axis=1),
    "nothing padded": case("Pad", "x p", p=[0, 0, 0, 0]),
    "nothing dropped": case("Dropout", "x r", r=F(0)),
    "upsample nothing": case("Upsample", "x s", [1, 2, 2, 3], 9, s=A([1, 1, 1, 1], F)),
    "resize to sizes": case("Resize", "x e e s", [1, 2, 2, 3], 13, e=NONE, s=[1, 2, 4, 9]),
    "resize 10": case("Resize", "x s", [1, 2, 2, 3], 10, s=A([1, 1, 2, 1], F)),
    "expand nothing": case("Expand", "x s", s=[1, 6]),
    "expand": case("Expand", "x s", [2, 3, 1, 1], s=[1, 1, 4, 5]),
    # -- weights
    "convolution": conv(strides=[1, 2], dilations=[2, 1], pads=[0, 1, 1, 0]),
    "convolution of 1 axis": case("Conv", "x w", [1, 2, 5], w=weights(3, 2, 2)),
    "gemm with an array": case("Gemm", "x w c", [2, 3], w=weights(3, 4), c=weights(2, 4), beta=0.5),
    "gemm with a column": case("Gemm", "x w c", [2, 3], w=weights(3, 4), c=weights(2, 1)),
    "gemm with a number": case("Gemm", "x w c", [2, 3], w=weights(3, 4), c=F(2), beta=0.5),
    "one matrix in a pile": case("MatMul", "x w", [2, 5, 3], w=weights(1, 3, 4)),
    "a matrix for every location": case("MatMul", "x w", SQUARE, w=weights(3, 5, 2)),
    "times a vector": case("MatMul", "x w", SQUARE, w=weights(5)),
    "a vector times": case("MatMul", "w x", SQUARE, w=weights(4)),
    "a matrix from the left": case("MatMul", "w x", SQUARE, w=weights(6, 4)),
    "einsum, order and spaces": case(
        "Einsum", "w x", [2, 4, 3], equation="dc, ntc -> ntd", w=weights(5, 3)
    ),
    "einsum along locations": case(
        "Einsum", "x w", [2, 4, 3], equation="ntc,ts->nsc", w=weights(4, 5)
    ),
    "einsum that moves": case("Einsum", "x w", [2, 4, 3], equation="ntc,cd->ndt", w=weights(3, 5)),
    # -- parts and softmax
    "split by sizes": case("Split", "x s", s=[2, 4], outputs="a y", axis=1),
    "split in one": case("Split", "x", FLAT, 18, axis=1, num_outputs=1),
    "split unevenly": case("Split", "x", [2, 8], 18, "a b y", axis=1, num_outputs=3),
    "slice everything": case("Slice", "x s e", s=[0, 0], e=[9, 9]),
    "slice": case("Slice", "x s e", s=[0, 1], e=[9, 9]),
    "slice by attributes": case("Slice", "x", FLAT, 9, starts=[1], ends=[3], axes=[1]),
    "one location": case("Gather", "x i", [2, 6, 4], axis=1, i=-1),
    "softmax": case("Softmax", "x", [2, 3, 4], 11, axis=2),
    "angles of some channels": rotary(rotary_embedding_dim=4),
    "angles of pairs": rotary(interleaved=1, rotary_embedding_dim=4),
    "angles by position": rotary([2, 4, 24], 9, 4, p=[[0, 1, 2, 3], [5, 6, 7, 8]], num_heads=3),
    "a mask that nothing reads": graph(helper.make_node("Dropout", ["x"], ["y", ""])),
    # -- pools and means
    "mean of locations": case("GlobalAveragePool", "x", SQUARE),
    "largest location": case("GlobalMaxPool", "x", SQUARE),
    "sum": case("ReduceSum", "x a", SQUARE, a=[2, 3], keepdims=0),
    "largest": case("ReduceMax", "x", SQUARE, axes=[-1]),
    "sum of nothing": case(
        "ReduceSum", "x a", SQUARE, a=np.zeros(0, np.int64), noop_with_empty_axes=1
    ),
    # -- normalisation
    **{
        f"standardised over {axes}": case(
            "MeanVarianceNormalization", "x", SQUARE, 13, axes=list(axes)
        )
        for axes in ((0, 2, 3), (0, 1, 2), (2, 3), (1, 2, 3), (3,))
    },
    # -- elementwise
    **{op: case(op, shape=[6, 6], opset=20) for op in NAMES.split()},
    **{
        op: graph(node(first, "x", "a"), node(op, "a", "y"))
        for first, ops in BEHIND.items()
        for op in ops.split()
    },
    "Acosh": graph(node("Abs", "x", "a"), node("Exp", "a", "b"), node("Acosh", "b", "y")),
    "Celu of 2": case("Celu", alpha=2.0),
    "as in hard swish": case("HardSigmoid", alpha=1 / 6, beta=0.5),
    "threshold of -1": case("ThresholdedRelu", alpha=-1.0),
    "bounded above": case("Clip", opset=10, max=1.0),
    **{
        op: graph(node("Exp", "x", "a"), node(op, "a x" if op == "Pow" else "x a", "y"))
        for op in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "PRelu")
    },
    **{
        op: graph(
            *(node("Relu", "x", "a"), node(op, "x a", "t"), node("Not", "t", "n")),
            node("Where", "n x k", "y"),
            k=F(7),
        )
        for op in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")
    },
    **{
        op: graph(
            *(node("Greater", "x z", "p"), node("Less", "x o", "q")),
            *(node(op, "p q", "t"), node("Cast", "t", "y", to=1)),
            z=F(0),
            o=F(1),
        )
        for op in ("And", "Or", "Xor")
    },
    "sum of one": case("Sum"),
    "infinite bounds": case("Clip", "x a b", a=F(-np.inf), b=F(np.inf)),
    "relu as clip": case("Clip", "x a", a=F(0)),
    "odd slope": case("LeakyRelu", alpha=0.012345),
    "quick gelu": case("QuickGelu", domain="com.microsoft"),
    "gelu with bias": case("BiasGelu", "x b", domain="com.microsoft", b=weights(6)),
    "fast gelu with bias": case("FastGelu", "x b", domain="com.microsoft", b=weights(6)),
    "no cast": case("Cast", to=1),
    "chosen everywhere": case("Where", "m x f", [2, 1], m=A([True] * 4), f=F(0)),
    "groups with gains": graph(
        node("Reshape", "x r", "a"),
        node("InstanceNormalization", "a g b", "c"),
        node("Reshape", "c s", "y"),
        shape=SQUARE,
        r=[0, 3, -1],
        s=SQUARE,
        g=A([1, 2, 3], F),
        b=np.zeros(3, F),
    ),
    "masked elsewhere": case("Where", "m x f", m=A([False] + [True] * 5), f=F(-np.inf)),
    "whole quotient": folded("Div", "a b", whole=True, a=[-5, 4, 7], b=[3, -3, 2]),
    "padded by edges": folded("Pad", "a p", a=THREE[:2], p=[0, 1], mode="edge"),
    "length of a number": folded("ReduceL1", a=F(-3)),
    "squares over no axis": folded("ReduceSumSquare", "a", 18, noop_with_empty_axes=1, a=THREE),
    "cut 9": folded("Slice", "a", 9, starts=[1], ends=[4], axes=[0], a=SIX),
    "matrices": folded("MatMul", "a b", a=weights(2, 4), b=weights(4, 3)),
    "a float": graph(node("Constant", "", "c", value_float=0.3), node("Add", "x c", "y")),
}


@pytest.mark.parametrize("name", READ)
def test_the_trace_computes_what_onnxruntime_computes(name: str) -> None:
    proto = proto_of(READ[name])
    x = 2 * np.random.default_rng(1).standard_normal(READ[name][1]).astype(F)
    (truth,), (got,) = ran(proto, x), values_of(trace_onnx(proto), x.astype(float))
    assert got.shape == truth.shape
    assert got == pytest.approx(truth, rel=1e-5, abs=2e-6)


TWO = {"q_num_heads": 2, "kv_num_heads": 2}
UNREAD: dict[str, tuple[Case, str]] = {
    "resize by half_pixel_symmetric": (
        case(
            "Resize",
            "x e s",
            [1, 1, 2, 2],
            19,
            e=NONE,
            s=A([1, 1, 2, 2], F),
            coordinate_transformation_mode="half_pixel_symmetric",
        ),
        "by integer factors",
    ),
    "resize some axes": (
        case("Resize", "x e s", [1, 1, 2, 2], 18, e=NONE, s=A([2, 2], F), axes=[2, 3]),
        "by integer factors",
    ),
    "positions from the input": (
        graph(
            node("Cast", "x", "z", to=7),
            node("ReduceMax", "z a", "p", keepdims=0),
            node("RotaryEmbedding", "x c s p", "y", num_heads=3),
            shape=[2, 4, 24],
            opset=23,
            a=[2],
            c=weights(9, 4),
            s=weights(9, 4),
        ),
        "positions of the tokens depend on the input",
    ),
    "constant keys": (attention("Attention", "Q c c", c=weights(2, 4, 6), **TWO), "averages"),
    "heads first": (case("Attention", "x x x", [2, 2, 4, 3], 23), "averages"),
    "padded twice": (
        graph(
            node("Pad", "x p", "a", mode="reflect"),
            node("Conv", "a w", "y", pads=[1, 1, 1, 1]),
            shape=SQUARE,
            p=[0, 0, 1, 1, 0, 0, 1, 1],
            w=weights(2, 3, 3, 3),
        ),
        "after reflect padding",
    ),
    "padded channels": (
        graph(
            node("Pad", "x p", "a"),
            node("Conv", "a w", "y"),
            shape=SQUARE,
            p=[0, 1, 1, 1, 0, 0, 1, 1],
            w=weights(2, 4, 3, 3),
        ),
        "not a border of zeros",
    ),
    "turned weights from the input": (case("ConvTranspose", "x x", [1, 1, 4, 4]), "are constant"),
    "turned with automatic padding": (
        case("ConvTranspose", "x w", SQUARE, w=weights(3, 2, 3, 3), auto_pad="SAME_UPPER"),
        "are constant",
    ),
    "rows of matrices": (
        graph(node("Cast", "x", "i", to=7), node("Gather", "t i", "y"), t=weights(5, 3, 2)),
        "looks up an embedding",
    ),
    "entries by the input": (
        graph(node("Cast", "x", "i", to=7), node("Gather", "x i", "y", axis=1)),
        "selects channels or locations",
    ),
    "entries of a table": (
        graph(node("Cast", "x", "i", to=7), node("GatherElements", "t i", "y"), t=weights(5, 6)),
        "selects channels or locations",
    ),
    "entries of rows": (
        case("GatherElements", "x i", axis=1, i=A([[0, 1], [1, 2]])),
        "selects channels or locations",
    ),
    "repeated examples": (case("Tile", "x r", r=[2, 1]), "repeats channels or examples"),
    "weights from the input": (case("Conv", "x x", [1, 1, 4, 4]), "depend on the input"),
    "gemm of examples": (case("Gemm", "w x", [2, 3], w=weights(4, 2)), "examples"),
    "gemm transposed": (case("Gemm", "x w", [2, 3], transA=1, w=weights(2, 2)), "examples"),
    "mixed examples": (case("MatMul", "w x", [2, 3], w=weights(6, 2)), "examples"),
    "einsum of one": (case("Einsum", "x", [2, 4, 3], equation="ntc->nct"), "one constant matrix"),
    "einsum of examples": (
        case("Einsum", "x w", [2, 3], equation="nc,nm->mc", w=weights(2, 4)),
        "one constant matrix",
    ),
    "einsum of dots": (
        case("Einsum", "x w", [2, 4, 3], equation="...c,cd->...d", w=weights(3, 5)),
        "one constant matrix",
    ),
    "slice backwards": (
        case("Slice", "x s e a t", s=[-1], e=[-9], a=[1], t=[-1]),
        "some channels or locations",
    ),
    "softmax of the rest": (
        graph(node("Softmax", "x", "a", axis=1), node("Relu", "a", "y"), shape=[2, 3, 4], opset=11),
        "couples the channels",
    ),
    "windows with holes": (
        case("MaxPool", "x", SQUARE, kernel_shape=[2, 2], dilations=[2, 2]),
        "windows have gaps",
    ),
    "standardised oddly": (case("MeanVarianceNormalization", "x", SQUARE, 13, axes=[0, 2]), ""),
    "bounds that cross": (case("Clip", "x a b", a=F(2), b=F(1)), ""),
    "a bound from the input": (
        graph(node("ReduceMax", "x", "m", keepdims=0), node("Clip", "x m", "y")),
        "",
    ),
    "a rate from the input": (
        graph(
            node("ReduceMax", "x", "m", keepdims=0),
            node("Sigmoid", "m", "s"),
            node("Dropout", "x s", "y"),
        ),
        "",
    ),
    "repeated channels": (case("Expand", "x s", [2, 1], s=[1, 4]), ""),
    "infinity added": (case("Add", "x f", f=F(-np.inf)), "infinity"),
    "heads repeated": (
        graph(
            node("ReduceMax", "x", "m", axes=[1]),
            node("Transpose", "m", "t", perm=[0, 1, 3, 2]),
            node("MatMul", "x t", "y"),
            shape=SQUARE,
        ),
        "",
    ),
    "a frame of ones": (
        graph(
            node("Pad", "x p v", "a"),
            node("Conv", "a w", "y"),
            shape=SQUARE,
            p=[0, 0, 1, 1, 0, 0, 1, 1],
            v=F(1),
            w=weights(2, 3, 3, 3),
        ),
        "",
    ),
    "a mask for more": (
        case("Where", "m f x", [1, 6], m=A([[True] + [False] * 5] * 2), f=F(-np.inf)),
        "infinity",
    ),
    "whole quotient": (
        graph(
            node("Cast", "x", "a", to=7),
            node("Div", "a k", "b"),
            node("Cast", "b", "y", to=1),
            k=A(2),
        ),
        "",
    ),
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_has_no_rule_is_said_and_has_the_shape_of_onnxruntime(name: str) -> None:
    found, words = UNREAD[name]
    proto = proto_of(found)
    trace = trace_onnx(proto)
    unread = [op for op in trace.ops if isinstance(op, NotRead)]
    assert any(words in op.reason for op in unread)
    assert all(op.reason and op.source for op in unread)
    truth = ran(proto, np.abs(np.random.default_rng(1).standard_normal(found[1])).astype(F))[0]
    assert next(op.shape for op in trace.ops if op.name == trace.outputs[0]) == truth.shape
    assert read(proto).fidelity.level == "not read"


def test_quantised_products_are_named_once_the_file_tells_their_shapes() -> None:
    proto = one(
        node("Cast", "x", "a", to=2),
        node("MatMulInteger", "a w", "b"),
        node("Cast", "b", "y", to=1),
        shape=FLAT,
        w=np.ones((6, 4), np.uint8),
    )
    with refused("MatMulInteger node.*run onnx.shape_inference on the model first"):
        trace_onnx(proto)
    ops = trace_onnx(onnx.shape_inference.infer_shapes(proto)).ops
    found = [op for op in ops if isinstance(op, NotRead)]
    assert [(op.what, op.shape) for op in found] == [("quantised layer", (2, 4))]


OF_INPUT = node("MatMul", "x m", "a"), node("Unsqueeze", "a u", "M")
ATTENTION: dict[str, tuple[Case, str]] = {
    "angles of the input": (
        case("RotaryEmbedding", "x x x", [2, 3, 4, 8], 23),
        "its angles depend on the input",
    ),
    "a mask of the input": (
        attention("Attention", "Q K V M", *OF_INPUT, m=weights(6, 4), u=[1], **TWO),
        "its mask depends on the input",
    ),
    "a mask of everything": (
        attention("Attention", "Q K V m", m=np.zeros((4, 4)) > 0, q=np.zeros((6, 6), F), **TWO),
        "it averages feature maps",
    ),
    "a cache": (
        attention("Attention", "Q K V - p p", p=weights(2, 2, 4, 3), **TWO),
        "a cache of earlier keys",
    ),
}


def test_a_rule_that_fails_leaves_nothing(monkeypatch: Any, internal_errors: None) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("the works")

    monkeypatch.setattr("kcalc.interchange.onnx_model.attention._joined", fail)
    found: Any = read(proto_of(attention("Attention", "Q K V", **TWO)))
    assert any("KeyError" in note.text for note in found.notes)
    assert [type(op).__name__ for op in found.trace.ops] == ["Entry", *["Linear"] * 3, "NotRead"]


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_that_is_not_read(name: str) -> None:
    found, words = ATTENTION[name]
    notes = read(proto_of(found)).notes
    assert any(words in note.text for note in notes), [note.text for note in notes]


def test_blocks_of_locations_become_channels() -> None:
    network = read(proto_of(case("SpaceToDepth", shape=[1, 2, 4, 6], blocksize=2))).network
    assert [layer for _, layer, _ in network.steps()][1:] == [kc.layers.PixelShuffle((2, 2), True)]


MS: dict[str, Any] = {"domain": "com.microsoft", "num_heads": 2, "opset": 17}
PACKED: dict[str, Any] = {**MS, "shape": [2, 4, 6], "w": weights(6, 18), "b": weights(18)}
REFUSED: dict[str, tuple[Case, str]] = {
    "angles": (rotary(width=3), "do not fit 8 channels of 4 tokens"),
    "positions": (
        rotary([2, 4, 24], 3, 4, p=[[0, 1, 2, 3]] * 2, num_heads=3),
        "not all in the range of its 3 angles",
    ),
    "heads": (
        attention("Attention", "Q K V", q_num_heads=4, kv_num_heads=4),
        "cannot be split into 4 equal heads",
    ),
    "sizes of heads": (
        case("Attention", "x w b", qkv_hidden_sizes=[6, 6, 5], **PACKED),
        "cannot produce queries, keys and values of sizes",
    ),
    "a mask": (
        case("Attention", "x w b m", m=np.ones((2, 4), np.int32), **PACKED),
        "run onnxruntime.tools.symbolic_shape_infer",
    ),
    "weights of the input": (case("Attention", "x x b", **PACKED), "'y'"),
    "values of fewer tokens": (
        attention(
            "MultiHeadAttention", "Q K W", node("Slice", "V s e a", "W"), s=[1], e=[4], a=[1], **MS
        ),
        "do not fit together",
    ),
    "one scale": (
        case("Resize", "x r s", SQUARE, r=NONE, s=A([2.0], F), mode="nearest"),
        "",
    ),
    "a bias of heads": (attention("MultiHeadAttention", "Q K V b", b=weights(18), **MS), "'y'"),
    "constant keys": (attention("MultiHeadAttention", "Q c c", c=weights(2, 4, 6), **MS), "'y'"),
    "turned weights": (case("ConvTranspose", "x w", SQUARE, w=weights(2, 2, 3, 3)), "do not fit"),
    "turned strides": (
        case("ConvTranspose", "x w", SQUARE, w=weights(3, 2, 3, 3), strides=[1]),
        "do not fit its window",
    ),
    "a row of blocks": (case("DepthToSpace", "x", [1, 4, 2], blocksize=2), "into blocks of size 2"),
    "odd blocks": (case("DepthToSpace", "x", [1, 5, 2, 3], blocksize=2), "into blocks of size 2"),
    "repeats": (case("Tile", "x r", r=[1, 0]), "do not match the 2 axes"),
    "axes": (case("Unsqueeze", "x a", a=list(range(20))), "its output would have the shape"),
    "a size of the input": (
        graph(node("Cast", "x", "z", to=7), node("ConstantOfShape", "z", "y")),
        "is not in the file",
    ),
    "a branch of the input": (
        graph(
            node("ReduceMax", "x", "m", keepdims=0),
            node("Greater", "m z", "c"),
            node("If", "c", "y"),
            z=F(0),
        ),
        "run onnx.shape_inference",
    ),
    "nothing to multiply with": (
        graph(helper.make_node("MatMul", ["x", ""], ["y"])),
        "input 1 is missing",
    ),
    "negative padding of a pool": (
        case("MaxPool", "x", SQUARE, kernel_shape=[2, 2], pads=[-1, 0, 0, 0]),
        "",
    ),
    "squeezed too much": (case("Squeeze", "x a", a=[1]), "removes the axes"),
    "two open sizes": (case("Reshape", "x s", s=[-1, -1]), "requests the invalid shape"),
    "wrong order": (case("Transpose", perm=[0]), "is not a permutation of 2 axes"),
    "rate": (case("Dropout", "x r", r=F(1.5)), "its rate must be in \\[0, 1\\), got 1.5"),
    "joined": (case("Concat", "x w", axis=0, w=weights(2, 5)), "cannot be concatenated"),
    "padding": (case("Pad", "x p", p=[0, 1, 1]), "3 padding values for 2 axes"),
    "expanded": (case("Expand", "x s", s=[0, 6]), "requests the invalid shape"),
    "axes of floats": (
        case("Squeeze", "x a", [2, 1], a=A([1.0], F)),
        "must be a short list of integers",
    ),
    "axes twice": (case("Unsqueeze", "x a", a=[1, 1]), "do not fit an array of 4 axes"),
    "bias": (conv("x w b", b=weights(2)), r"a bias of shape \(2,\) does not fit 3 channels"),
    "negative padding": (conv(pads=[-1, 0, 0, 0]), "no rule for it.*'y'"),
    "automatic padding": (conv(auto_pad="ODD"), "auto_pad must be .*, got 'ODD'"),
    "strides": (conv(strides=[1]), "do not match 2 location axes"),
    "no strides": (conv(strides=[0, 1]), "must be positive"),
    "whole weights": (case("MatMul", "x w", [2, 3], w=np.ones((3, 2), np.int64)), "integers"),
    "gemm": (case("Gemm", "x w", [2, 3, 2], w=weights(2, 2)), "must be matrices"),
    "gemm misfit": (case("Gemm", "x w", [2, 3], w=weights(2, 2)), "for 2 channels"),
    "gemm with more": (
        case("Gemm", "x w c", [2, 3], w=weights(3, 4), c=weights(3, 2, 4)),
        "it cannot add an array",
    ),
    "product misfit": (case("MatMul", "x w", [2, 3], w=weights(4, 2)), "do not fit"),
    "a number": (case("MatMul", "x w", [2, 3], w=F(2)), "single number"),
    "einsum misfit": (
        case("Einsum", "x w", [2, 4, 3], equation="ntc,cd->ntd", w=weights(4, 5)),
        "do not fit",
    ),
    "parts": (
        case("Split", "x s", outputs="a y", axis=1, s=[2, 3]),
        "do not add up to the length of axis 1",
    ),
    "place": (case("Gather", "x i", axis=1, i=6), "index 6 from an axis of length 6"),
    "pooled vector": (case("MaxPool", kernel_shape=[2]), "but its input has shape"),
    "no locations": (case("GlobalMaxPool"), "has none"),
    "batch norm": (
        case("BatchNormalization", "x g g g g", SQUARE, g=weights(4)),
        "each have 3 entries, one per channel",
    ),
    "instance norm": (
        case("InstanceNormalization", "x g g", SQUARE, g=weights(4)),
        "each have 3 entries, one per channel",
    ),
    "group norm": (
        case("GroupNormalization", "x g g", SQUARE, 21, g=weights(3), num_groups=2),
        "cannot be split into 2 equal groups",
    ),
    "slope": (case("HardSigmoid", alpha=-1.0), "not positive"),
    "infinite slope": (case("LeakyRelu", alpha=np.inf), "do not fit"),
    "attribute": (case("Softmax", axis="1"), "attribute axis is of the wrong type"),
    "branch": (case("If", "c", c=True), "no subgraph then_branch"),
    "text": (folded("Constant", "", value_string="a"), "not a tensor of numbers"),
    "nothing to cast to": (folded("Cast", a=SIX, to=8), "does not support"),
    "nothing to cast a feature map to": (case("Cast", to=8), "does not support"),
    "fill": (
        folded("ConstantOfShape", "s", s=[3], value=helper.make_tensor("v", 1, [2], [1.0, 2.0])),
        "not a single number",
    ),
    "expanded constant": (folded("Expand", "a s", a=SIX, s=[0]), ""),
    "negative size": (folded("ConstantOfShape", "s", s=[-3]), "would make"),
    "remainder by 0": (folded("Mod", "a b", whole=True, a=[1], b=[0]), "ZeroDiv"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_nodes_that_do_not_fit_are_refused_by_name(name: str) -> None:
    found, words = REFUSED[name]
    with refused(f"^onnx: .*{words}") as caught:
        trace_onnx(proto_of(found))
    assert any(found[0][place].op_type in str(caught.value) for place in (0, -1))
