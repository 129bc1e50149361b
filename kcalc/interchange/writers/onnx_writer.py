"""Write ONNX models with functions in the domain "kcalc".

The functions are activations, weighted sums and the normalisation of inputs.

The graph calls every function once on its input x. It contains no initialisers, because initial
weights are data in ONNX.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ...activations import Activation
from ...foundation.extras import imported
from .content import Content, TransformedActivation, WeightedSum
from .lowering import Walk
from .onnx_target import OnnxTarget
from .python_module import formula, refuse_unwritten, where_used
from .stable import constants, stable_form

OPSET, IR = 18, 8
DOMAIN = "kcalc"
FLOAT64 = "_float64"
LOCATIONS = "normalise_locations"


def write_onnx(content: Content) -> str:
    """Return the model as text."""
    from_onnx = _onnx()
    return from_onnx.printer.to_text(onnx_model(content)) + "\n"


def onnx_bytes(content: Content) -> bytes:
    """Return the model as bytes for a file."""
    return onnx_model(content).SerializeToString(deterministic=True)


def _onnx() -> Any:
    imported("onnx.printer")
    return imported("onnx")


def onnx_model(content: Content) -> Any:
    """Return the shaping as an ``onnx.ModelProto``.

    Raises: KcalcError if onnx is not installed, or if an activation has no exported form.
    """
    onnx = _onnx()
    refuse_unwritten(content, "ONNX")
    functions = [
        function for shaped in content.activations for function in activation_functions(shaped)
    ]
    functions += [sum_function(mixed) for mixed in content.sums]
    functions.append(locations_function())
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    shown = [function for function in functions if not function.name.endswith(FLOAT64)]
    calls = [
        helper.make_node(f.name, ["x"] * len(f.input), [f"y{index}"], domain=DOMAIN, name=f.name)
        for index, f in enumerate(shown, 1)
    ]
    shape = ["batch", "channels", "location"]
    outputs = [
        helper.make_tensor_value_info(
            f"y{index}", kind, [None] * 3 if f.name == LOCATIONS else shape
        )
        for index, f in enumerate(shown, 1)
    ]
    graph = helper.make_graph(
        calls, content.method, [helper.make_tensor_value_info("x", kind, shape)], outputs
    )
    model = helper.make_model(
        graph,
        functions=functions,
        opset_imports=_opsets(helper),
        ir_version=IR,
        producer_name="kcalc",
        producer_version=content.version,
    )
    helper.set_model_props(model, properties(content))
    onnx.checker.check_model(model)
    return model


def _opsets(helper: Any) -> list[Any]:
    return [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]


def properties(content: Content) -> dict[str, str]:
    """Return the metadata of the model, {key: JSON text}.

    The metadata contain the settings, the conditions, and tables that map nodes to functions and
    constants.
    """
    conditions = [
        {"condition": n, "target": t, "value": v, "residual": r}
        for n, t, v, r in content.conditions
    ]
    tables = {
        "activations": [(shaped.name, shaped.nodes) for shaped in content.activations],
        "sums": [(mixed.name, mixed.nodes) for mixed in content.sums],
        "sigmas": [(list(pair), nodes) for pair, nodes in content.sigmas.items()],
        "vectors": content.vectors.items(),
        "scales": content.scales.items(),
    }
    data = {
        "method": content.method,
        "options": dict(content.options),
        "conditions": conditions,
        **{
            name: {str(node): value for value, nodes in rows for node in nodes}
            for name, rows in tables.items()
        },
    }
    return {
        f"kcalc.{name}": json.dumps(value, default=str) for name, value in data.items() if value
    }


def _function(name: str, inputs: list[str], target: OnnxTarget, doc: str) -> Any:
    function = target.helper.make_function(
        DOMAIN, name, inputs, ["y"], target.nodes, _opsets(target.helper)[:1]
    )
    function.doc_string = doc
    return function


def activation_functions(shaped: TransformedActivation) -> list[Any]:
    """Return the ONNX function of an activation.

    If the activation uses standard operators that often lack float64 kernels, add a second function
    made of basic operators.
    """
    doc = f"{formula(shaped)} {where_used(shaped.nodes)}"
    target = OnnxTarget("x")
    _activation(target, shaped.activation)
    functions = [_function(shaped.name, ["x"], target, doc)]
    if target.refined:
        target = OnnxTarget("x", basic=True)
        _activation(target, shaped.activation)
        functions.append(
            _function(
                shaped.name + FLOAT64,
                ["x"],
                target,
                f"{doc} Uses only basic operators, for float64.",
            )
        )
    return functions


def _activation(target: OnnxTarget, phi: Activation) -> None:
    a, b, scale, shift = constants(phi)
    u = "x" if a == 1 else target.node("Mul", "x", target.number(a))
    u = u if b == 0 else target.node("Add", u, target.number(b))
    out = Walk(target, u)(stable_form(phi.base))
    out = out if shift == 0 else target.node("Add", out, target.number(shift))
    out = out if scale == 1 else target.node("Mul", out, target.number(scale))
    target.node("Identity", out, output="y")


def sum_function(mixed: WeightedSum) -> Any:
    """Return the ONNX function of a weighted sum."""
    target = OnnxTarget("x1")
    names = [f"x{index}" for index in range(1, len(mixed.weights) + 1)]
    terms = [
        (1, name if w == 1 else target.node("Mul", name, target.number(w)))
        for name, w in zip(names, mixed.weights, strict=True)
    ]
    target.node("Identity", target.add(terms), output="y")
    return _function(
        mixed.name, names, target, f"A sum with fixed weights. {where_used(mixed.nodes)}"
    )


def locations_function() -> Any:
    """Return the ONNX function for per-location normalisation of (batch, channels, *locations).

    The root mean square of the example becomes an additional channel.
    """
    target = OnnxTarget("x")
    node, whole = target.node, lambda *values: target.constant(np.array(values, np.int64))
    x = node("Reshape", "x", whole(0, 0, -1))
    x = node("Div", x, node("ReduceMax", node("Abs", x), whole(1, 2), keepdims=1))
    squares = node("ReduceSum", node("Mul", x, x), whole(1), keepdims=1)
    shape = node("Shape", "x")
    channels = node("Gather", shape, whole(1))
    mean = node(
        "Div", node("ReduceMean", squares, whole(2), keepdims=1), node("CastLike", channels, "x")
    )
    added = node("Expand", node("Sqrt", mean), node("Shape", squares))
    more = node("Add", channels, whole(1))
    length = node(
        "Div", node("CastLike", more, "x"), node("Add", squares, node("Mul", added, added))
    )
    out = node("Mul", node("Concat", x, added, axis=1), node("Sqrt", length))
    rest = node("Slice", shape, whole(2), whole(2**31 - 1))
    node(
        "Reshape",
        out,
        node("Concat", node("Gather", shape, whole(0)), more, rest, axis=0),
        output="y",
    )
    doc = (
        "Per-location normalisation of inputs (batch, channels, ...). It adds a channel and gives "
        "every location mean square 1."
    )
    return _function(LOCATIONS, ["x"], target, doc)
