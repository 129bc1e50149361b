"""ONNX models as users export them.

a zoo against networks written by hand, a forward pass, control flow, and files that mean harm.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest
from onnx_graphs import F32, model, node, one, weights
from trace_values import values_of

import kcalc as kc
from kcalc.interchange.onnx_model import trace_onnx
from kcalc.interchange.read import read
from kcalc.interchange.trace import Linear, NotRead

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")
from onnx import helper  # noqa: E402
from torch import nn  # noqa: E402
from torch_zoo import ZOO  # noqa: E402

L = kc.layers


def exported(module: Any, shape: tuple[int, ...], **options: Any) -> Any:
    """A torch model in training mode as ONNX by the exporter that needs nothing else."""
    file, mode = io.BytesIO(), torch.onnx.TrainingMode.TRAINING
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.randn(shape),),
            file,
            dynamo=False,
            training=mode,
            do_constant_folding=False,
            input_names=["x"],
            **options,
        )
    return onnx.load_model_from_string(file.getvalue())


def of_zoo(name: str) -> tuple[Any, kc.Network, tuple[int, ...]]:
    module, (shape,), twin = ZOO[name]()
    return module, twin, shape


def zoo() -> dict[str, tuple[Any, kc.Network, tuple[int, ...]]]:
    def entry(modules: tuple[Any, ...], shape: tuple[int, ...], *layers: Any) -> Any:
        width, sides = (shape[-1], shape[1:-1]) if len(shape) < 4 else (shape[1], shape[2:])
        return nn.Sequential(*modules), kc.chain(L.Input(width, sides or None), *layers), shape

    mish = kc.activation("softplus").expr.subs(kc.activations.X, kc.activation("mish").expr)
    return {
        "vgg": of_zoo("vgg"),
        "mobile": entry(
            (
                nn.Conv2d(4, 8, 1, bias=False),
                nn.ReLU6(),
                nn.Conv2d(8, 8, 3, padding=1, groups=8),
                nn.Hardswish(),
                nn.GroupNorm(2, 8),
            ),
            (2, 4, 8, 8),
            L.Affine(8, bias=False),
            L.Nonlinear("relu6"),
            L.Affine(8, 3, groups=8),
            L.Nonlinear("hard_swish"),
            L.GroupNorm(2),
        ),
        "tokens": entry(
            (
                *(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU()),
                *(nn.Linear(16, 8), nn.Mish(), nn.Softplus()),
                *(nn.Linear(8, 4, bias=False), nn.SiLU()),
            ),
            (2, 5, 8),
            L.LayerNorm(),
            L.Affine(16),
            L.Nonlinear("gelu"),
            L.Affine(8),
            L.Nonlinear(kc.activation(mish)),
            L.Affine(4, bias=False),
            L.Nonlinear("swish"),
        ),
        "resnet v2": of_zoo("resnet_v2_bottleneck"),
    }


@pytest.mark.parametrize("name", ["vgg", "mobile", "tokens", "resnet v2"])
@pytest.mark.parametrize("opset", [11, 17])
def test_exported_models_are_the_networks_written_by_hand(name: str, opset: int) -> None:
    module, twin, shape = zoo()[name]
    axes = {"dynamic_axes": {"x": {0: "N"}}}
    found = read(exported(module, shape, opset_version=opset, **axes), sigmas=False)
    assert found.fidelity.counts.get("not read", 0) == 0
    assert found.network.isomorphic(twin), "\n".join(map(str, found.network.steps()))


def test_labels_are_the_paths_of_modules() -> None:
    module, _, shape = of_zoo("resnet_v2_bottleneck")
    network = read(exported(module, shape)).network
    assert {"stem", "blocks.0.conv1", "blocks.0.shortcut", "blocks.2.bn2", "fc"} <= {
        str(n) for n in network
    }


# -- control flow, functions, what is not read -----------------------------------------------------


def test_functions_of_the_file_are_read_through() -> None:
    """Inputs and attributes may be left out: Clip has no upper bound, LeakyRelu a slope of 0.01."""
    body = [node("Clip", "p low high", "z"), node("LeakyRelu", "z", "o")]
    body[1].attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=1))
    imports, names = [helper.make_opsetid("", 17)], ["p", "low", "high"]
    function = helper.make_function("own", "Gate", names, ["o"], body, imports, ["slope"])
    calls = (
        node("Gate", "x a", "h", domain="own", slope=0.25),
        node("Gate", "h a", "y", domain="own"),
    )
    trace = trace_onnx(one(*calls, functions=[function], a=np.float32(-1)))
    assert [op.label for op in trace.ops[1:]] == ["clip", "leaky_relu"] * 2
    (y,) = values_of(trace, np.array([[-3.0, 0.5, 9.0]]))
    assert y.tolist() == [[-0.0025, 0.5, 9.0]]


def test_labels_of_metadata() -> None:
    made = node("Relu", "x", "y")
    made.metadata_props.add(key="other", value="")
    made.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'block.act', 'relu']")
    assert trace_onnx(one(made)).ops[-1].name == "block.act"


@pytest.mark.parametrize(
    ("nodes", "what"),
    [
        ([node("MatMul", "x xt", "y")], "product of feature maps"),
        ([node("CumSum", "x ax", "y")], "running sum"),
        ([node("Split", "x", "a b", axis=1), node("Mul", "a b", "y")], "slice"),
        ([node("ConvTranspose", "x k", "y", pads=[3, 3])], "transposed convolution"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_reported_and_the_rest_read(nodes: list[Any], what: str) -> None:
    first = [node("MatMul", "u w", "x"), node("Transpose", "x", "xt", perm=[0, 2, 1])]
    held = {"w": weights(6, 6), "ax": np.array(1), "k": weights(4, 4, 3)}
    proto = model([*first, *nodes], {"u": ["N", 4, 6]}, ["y"], held)
    proto.graph.value_info.append(helper.make_tensor_value_info("y", F32, ["N", 4, 6]))
    found = [op for op in trace_onnx(proto).ops if isinstance(op, NotRead)]
    assert what in [op.what for op in found] and all(op.reason for op in found)
    assert len(read(proto).network.nodes_of(L.Affine)) == 1


def test_shared_and_folded_weights() -> None:
    w = weights(6, 6)

    def linear(*nodes: Any, **held: Any) -> list[Linear]:
        ops = trace_onnx(one(*nodes, shape=["N", 6], w=w, **held)).ops
        return [op for op in ops if isinstance(op, Linear)]

    last = node("Gemm", "b w", "y", transB=1)
    found = linear(node("MatMul", "x w", "a"), node("MatMul", "a v", "b"), last, v=w.copy())
    assert [op.parameter for op in found] == ["w", "w", "w"]
    standardised, *_ = linear(
        node("ReduceMean", "w", "m", axes=[1]),
        node("Sub", "w m", "c"),
        node("Mul", "c c", "s"),
        node("ReduceMean", "s", "v", axes=[1]),
        node("Sqrt", "v", "r"),
        node("Div", "c r", "u"),
        node("Gemm", "x u", "y", transB=1),
    )
    assert standardised.weight.mean(1) == pytest.approx(0, abs=1e-6)
    assert (standardised.weight**2).mean(1) == pytest.approx(1, abs=1e-5)
