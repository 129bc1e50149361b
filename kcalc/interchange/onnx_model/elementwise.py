"""Elementwise operators as functions of SymPy expressions.

The expressions have the same forms as in the catalogue of activations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from ..elementary import (
    HALF,
    ONE,
    TWO,
    Function,
    celu,
    condition,
    elu,
    leaky,
    named,
    number,
    shrunk,
    swish,
    truncated,
)
from ..fusion import exact_number
from ..trace import Masked, Pointwise
from .graph_values import BOOL, FLOAT, INT, Made, Node, Value, constant, rule
from .tensors import TYPES

SELU = (
    sp.Float("1.6732632423543772848170429916717", 32),
    sp.Float("1.0507009873554804934193349852946", 32),
)
LARGEST = 3.4e38  # exporters write this number for "no bound"


def single(value: float) -> Any:
    """Return the exact number that a single-precision attribute represents.

    The number is a simple fraction, or the shortest decimal that rounds to the attribute.
    """
    if not np.isfinite(value):
        raise ValueError("not finite")
    near = Fraction(value).limit_denominator(100)
    if np.float32(float(near)) == np.float32(value):
        return sp.Rational(near.numerator, near.denominator)
    return sp.Rational(np.format_float_positional(np.float32(value), unique=True).rstrip("."))


def plain(value: Value) -> Any:
    """Return the number in a constant with one entry, exactly if possible, or None.

    The result is None for constants with several entries and for other values.
    """
    number = value.number
    return (
        None if number is None or value.array is None else exact_number(number, value.array.dtype)
    )


def _where(test: Any, yes: Any, no: Any) -> Any:
    return sp.Piecewise((yes, test), (no, True))


def _clip(x: Any, low: Any, high: Any) -> Any:
    rows = ([(low, x < low)] if low is not None else []) + (
        [(x, x < high)] if high is not None else []
    )
    if high is None:
        return (
            sp.Max(x, 0)
            if low == 0
            else x
            if low is None
            else sp.Piecewise((low, x < low), (x, True))
        )
    return sp.Piecewise(*rows, (high, True))


SHARED = (
    *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos"),
    *("Cosh", "Div", "Erf", "Exp", "Floor", "HardSwish", "Log", "Max", "Min", "Mish", "Mul", "Neg"),
    *("Not", "Or", "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh"),
    *("Softplus", "Softsign", "Sqrt", "Sub", "Tan", "Tanh", "Xor"),
)
PLAIN: dict[str, Function] = {name: (ONE | TWO)[name.lower()] for name in SHARED} | {
    "Equal": lambda a, b: sp.Eq(number(a), number(b)),
    "Greater": sp.Gt,
    "GreaterOrEqual": sp.Ge,
    "Less": sp.Lt,
    "LessOrEqual": sp.Le,
    "Mean": lambda *a: sum(a[1:], a[0]) / len(a),
    "PRelu": leaky,
    "Sum": lambda *a: sum(a[1:], a[0]),
    "Where": lambda t, a, b: _where(condition(t), a, b),
}
TESTS = {"And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Xor"}
LABELS = {
    "Greater": "greater",
    "LeakyRelu": "leaky_relu",
    "PRelu": "prelu",
    "HardSwish": "hard_swish",
    "HardSigmoid": "hard_sigmoid",
}


def is_sixth(node: Node) -> bool:
    """Whether a HardSigmoid is x / 6 + 1 / 2 clipped to [0, 1], as in hard swish."""
    slope, shift = single(node.real("alpha", 0.2)), single(node.real("beta", 0.5))
    return slope == sp.Rational(1, 6) and shift == HALF


def _hard_sigmoid(x: Any, slope: Any, shift: Any) -> Any:
    return sp.Piecewise(
        (0, x < -shift / slope), (slope * x + shift, x < (1 - shift) / slope), (1, True)
    )


def _with_bias(function: Function) -> Function:
    return lambda x, *b: function(x + sum(b))


# {(domain, operator): (function of its inputs and attributes, {attribute: default})}
SET: dict[tuple[str, str], tuple[Function, dict[str, Any]]] = {
    ("", "Elu"): (elu, {"alpha": 1.0}),
    ("", "Celu"): (celu, {"alpha": 1.0}),
    ("", "Selu"): (elu, {"alpha": SELU[0], "gamma": SELU[1]}),
    ("", "HardSigmoid"): (_hard_sigmoid, {"alpha": 0.2, "beta": 0.5}),
    ("", "ThresholdedRelu"): (lambda x, a: sp.Piecewise((x, x > a), (0, True)), {"alpha": 1.0}),
    ("", "Shrink"): (shrunk, {"lambd": 0.5, "bias": 0.0}),
    ("", "Swish"): (swish, {"alpha": 1.0}),
    ("", "LeakyRelu"): (leaky, {"alpha": 0.01}),
    ("", "Affine"): (lambda x, a, b: a * x + b, {"alpha": 1.0, "beta": 0.0}),
    ("com.microsoft", "Gelu"): (named("gelu"), {}),
    ("com.microsoft", "QuickGelu"): (swish, {"alpha": 1.702}),
    ("com.microsoft", "FastGelu"): (_with_bias(named("gelu_tanh")), {}),
    ("com.microsoft", "BiasGelu"): (_with_bias(named("gelu")), {}),
}


def _function(node: Node) -> Function:
    """Return the function of an operator with its attributes filled in."""
    if (node.domain, node.op) == ("", "Gelu"):
        return named("gelu_tanh" if node.text("approximate", "none") == "tanh" else "gelu")
    function, attributes = SET.get((node.domain, node.op), (PLAIN.get(node.op), {}))
    assert function is not None
    given = [_attribute(node.real(name, default)) for name, default in attributes.items()]
    if node.op == "HardSigmoid" and given[0] <= 0:
        raise node.fail(f"its slope alpha = {given[0]} is not positive")
    return lambda *x: function(*x, *given)


def _attribute(value: float) -> Any:
    """Return the exact number of an attribute; rounded constants of SELU are restored."""
    return next((exact for exact in SELU if abs(value - float(exact)) < 1e-6), None) or single(
        value
    )


@rule(*(name for name in PLAIN if name != "Mul"))
def pointwise(node: Node) -> Made:
    """Read an elementwise operator. Single-valued constants become part of the function."""
    if node.op in ("Min", "Max", "Sum", "Mean") and len(node.inputs) == 1:
        return node.value(0)
    if node.op == "Div" and INT in (node.value(0).kind, node.value(1).kind):
        return None  # integer division truncates
    if any(
        isinstance(value.number, float) and not math.isfinite(value.number)
        for value in node.given()
    ):
        return _masked(node)
    shape = np.broadcast_shapes(*(value.shape for value in node.given()))
    if node.op == "Where" and (test := node.value(0).array) is not None:
        chosen = node.value(1 if test.all() else 2)
        if test.all() == test.any() and chosen.shape == shape:
            return chosen
    kind = BOOL if node.op in TESTS else node.value(1 if node.op == "Where" else 0).kind
    return _emit(node, _function(node), node.given(), shape, kind)


@rule("Mul")
def multiplied(node: Node) -> Made:
    """Read Mul as hard swish if a HardSigmoid multiplies its own input, else as a product."""
    for x, other in (node.given(), node.given()[::-1]):
        gate = other.maker
        if gate is not None and gate.op == "HardSigmoid" and gate.value(0) is x and is_sixth(gate):
            return _emit(node, PLAIN["HardSwish"], (x,), x.shape, x.kind)
    return pointwise(node)


@rule("IsNaN", "IsInf")
def infinite(node: Node) -> Made:
    """Read IsNaN and IsInf as false, because exporters use them as guards in softmax."""
    return constant(np.broadcast_to(np.False_, node.value(0).shape))


def _masked(node: Node) -> Made:
    """Read an operator that sets entries to infinity, as attention masks do before a softmax.

    Only Where with a mask that does not depend on the input can be read.
    """
    told = {
        "what": "a mask of infinities",
        "reason": "it sets entries to infinity, as attention does before its softmax",
    }
    if node.op == "Where" and (mask := node.value(0)).array is not None:
        yes, no = node.value(1), node.value(2)
        x, fill, where = (
            (no, yes, mask.array.astype(bool))
            if yes.number is not None
            else (yes, no, ~mask.array.astype(bool))
        )
        if (
            x.op is not None
            and fill.number is not None
            and np.broadcast_shapes(x.shape, where.shape) == x.shape
        ):
            return node.emit(
                Masked,
                x.shape,
                (x,),
                x.kind,
                mask=where,
                value=float(fill.number),
                **told,
            )
    return node.unread(**told)


def _emit(
    node: Node,
    function: Function,
    values: Sequence[Value],
    shape: tuple[int, ...],
    kind: str,
) -> Value:
    reads, places = [], []
    for value in values:
        number = plain(value)
        if number is None:
            reads.append(value)
        places.append(number)
    return node.emit(
        Pointwise,
        shape,
        reads,
        kind,
        function=_closed(function, places),
        label=LABELS.get(node.op, node.op.lower()),
    )


def _closed(function: Function, places: Sequence[Any]) -> Function:
    """Fix some arguments of a function.

    ``places``: the value of each argument to fix, and None for each argument that remains.
    """
    if all(place is None for place in places):
        return function

    def closed(*arguments: Any) -> Any:
        rest = iter(arguments)
        return function(*(next(rest) if place is None else place for place in places))

    return closed


@rule("Clip")
def clip(node: Node) -> Made:
    """Read Clip with bounds that are attributes or inputs."""
    bounds: list[Any] = []
    for index, name in ((1, "min"), (2, "max")):
        given = node.optional(index)
        if given is not None and given.number is None:
            return None
        number = (
            given.number
            if given is not None
            else node.real(name, 0.0)
            if name in node.attributes
            else None
        )
        bounds.append(
            None
            if number is None or abs(number) >= LARGEST
            else plain(given)
            if given is not None
            else single(number)
        )
    low, high = bounds
    if low is None and high is None:
        return node.value(0)
    if low is not None and high is not None and low >= high:
        return None
    x = node.value(0)
    return _emit(node, lambda x: _clip(x, low, high), (x,), x.shape, x.kind)


@rule("Cast", "CastLike")
def cast(node: Node) -> Made:
    """Read Cast and CastLike as elementwise functions.

    Casts between floats do nothing, casts to integers truncate, and Booleans become 0 and 1.
    """
    x = node.value(0)
    if node.op == "Cast" and node.whole("to") not in TYPES:
        raise node.fail("it casts to an element type that kcalc does not support")
    kind = (
        node.value(1).kind
        if node.op == "CastLike"
        else {9: BOOL, 1: FLOAT, 10: FLOAT, 11: FLOAT, 16: FLOAT}.get(node.whole("to"), INT)
    )
    if kind == x.kind or (x.kind == INT and kind == FLOAT):
        return Value(x.shape, kind, x.op, x.array, x.parameter, x.maker)
    function = condition if kind == BOOL else number if x.kind == BOOL else truncated
    return _emit(node, function, (x,), x.shape, kind)


for _domain, _name in (*SET, ("", "Gelu")):
    rule(_name, domain=_domain)(pointwise)
