"""ONNX models: every elementwise operator against onnxruntime, a zoo against networks written by
hand, forward passes, hostile files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy as sp

from kcalc.interchange.onnx_model import trace_onnx
from kcalc.interchange.trace import Pointwise

pytest.importorskip("onnx")
from onnx_graphs import model, node, ran

RNG = np.random.default_rng(5)


# -- elementwise operators: onnxruntime is the truth -----------------------------------------------

ANY, OPEN = (-4.0, 4.0), (-0.99, 0.99)
NAMES = """
    Abs Atan Asinh Ceil Cos Cosh Erf Exp Floor HardSigmoid HardSwish Neg Relu Elu Celu Selu
    LeakyRelu ThresholdedRelu Shrink Round Sigmoid Sign Sin Sinh Softplus Softsign Tanh Reciprocal
"""
UNARY: dict[str, tuple[str, tuple[float, float], dict[str, Any], int]] = {
    **{op: (op, ANY, {}, 17) for op in NAMES.split()},
    "Mish": ("Mish", ANY, {}, 18),
    **{op: (op, OPEN, {}, 17) for op in ("Acos", "Asin", "Atanh", "Tan")},
    "Acosh": ("Acosh", (1.01, 5.0), {}, 17),
    **{op: (op, (0.05, 5.0), {}, 17) for op in ("Log", "Sqrt")},
    "Gelu": ("Gelu", ANY, {}, 20),
    "Celu 2": ("Celu", ANY, {"alpha": 2.0}, 17),
    "LeakyRelu 0.2": ("LeakyRelu", ANY, {"alpha": 0.2}, 17),
    "Hard torch": ("HardSigmoid", ANY, {"alpha": 1 / 6, "beta": 0.5}, 17),
    "ThresholdedRelu -1": ("ThresholdedRelu", ANY, {"alpha": -1.0}, 17),
    "Clip low": ("Clip", ANY, {"min": -1.0}, 10),
    "Clip high": ("Clip", ANY, {"max": 1.0}, 10),
}


def value_of(proto: Any, *columns: np.ndarray) -> list[float]:
    """The pointwise operation of a model by SymPy, in double precision."""
    (op,) = (op for op in trace_onnx(proto).ops if isinstance(op, Pointwise))
    symbols = sp.symbols(f"a0:{len(columns)}", real=True)
    expr = op.function(*symbols)
    return [
        float(sp.N(expr.subs(dict(zip(symbols, map(float, row), strict=True)))))
        for row in zip(*columns, strict=True)
    ]


@pytest.mark.parametrize("name", UNARY)
def test_unary_operators_are_those_of_onnxruntime(name: str) -> None:
    op, (low, high), attributes, opset = UNARY[name]
    proto = model([node(op, "x", "y", **attributes)], {"x": ["N", 1]}, ["y"], opset=opset)
    x = RNG.uniform(low, high, (24, 1)).astype(np.float32)
    assert value_of(proto, x[:, 0]) == pytest.approx(ran(proto, x)[0][:, 0], rel=2e-5, abs=2e-6)


@pytest.mark.parametrize(
    "op", ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "PRelu"]
)
def test_binary_operators_are_those_of_onnxruntime(op: str) -> None:
    proto = model([node(op, "x y", "z")], {"x": ["N", 1], "y": ["N", 1]}, ["z"])
    x, y = RNG.uniform(0.1, 3, (2, 12, 1)).astype(np.float32)
    x *= 1 if op == "Pow" else -1
    assert value_of(proto, x[:, 0], y[:, 0]) == pytest.approx(ran(proto, x, y)[0][:, 0], rel=1e-5)


@pytest.mark.parametrize(
    "op", ["Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "And", "Or", "Xor"]
)
def test_tests_and_where_are_those_of_onnxruntime(op: str) -> None:
    logical = op in ("And", "Or", "Xor")
    nodes = [node("Greater", "x zero", "p"), node("Less", "x one", "q")] if logical else []
    nodes += [
        node(op, "p q" if logical else "x y", "t"),
        node("Not", "t", "n"),
        node("Where", "n x y", "z"),
        node("Cast", "t", "c", to=1),
        node("Add", "z c", "out"),
    ]
    proto = model(
        nodes,
        {"x": ["N", 1], "y": ["N", 1]},
        ["out"],
        {"zero": np.float32(0), "one": np.float32(1)},
    )
    x, y = RNG.uniform(-2, 2, (2, 16, 1)).astype(np.float32)
    y[:4] = x[:4]
    trace = trace_onnx(proto)
    symbols = dict(zip(("x", "y"), sp.symbols("x y", real=True), strict=True))
    forms: dict[str, Any] = dict(symbols)
    for found in trace.ops:
        if isinstance(found, Pointwise):
            forms[found.name] = found.function(*(forms[r] for r in found.reads))
    expr = forms[trace.outputs[0]]
    pairs = (
        {symbols["x"]: sp.Rational(float(a)), symbols["y"]: sp.Rational(float(b))}
        for a, b in zip(x[:, 0], y[:, 0], strict=True)
    )
    got = [float(expr.subs(pair, simultaneous=True)) for pair in pairs]
    assert got == pytest.approx(ran(proto, x, y)[0][:, 0], rel=1e-6)
