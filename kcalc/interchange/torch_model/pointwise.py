"""Read elementwise operators as functions of SymPy expressions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import sympy as sp

from ..elementary import (
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
    truncated,
)
from ..fusion import exact_number
from ..trace import CAST, Pass, Pointwise
from .attention import masked
from .calls import Call, rule
from .graph_values import Const, PaddedTensor, TensorRef, numbers_of


def _either(test: Any, yes: Any, no: Any) -> Any:
    """Return ``yes`` if the test holds, else ``no``.

    In the result, the piece for x below a threshold comes first, as in the catalogue of
    activations. The value at the threshold does not matter.
    """
    if isinstance(test, sp.Gt | sp.Ge):
        return sp.Piecewise((no, sp.Lt(test.lhs, test.rhs)), (yes, True))
    return sp.Piecewise(
        (yes, sp.Lt(test.lhs, test.rhs) if isinstance(test, sp.Le) else test), (no, True)
    )


def _clamp(x: Any, low: Any, high: Any) -> Any:
    if low is None and high is None:
        return x
    if low is None or high is None:
        return sp.Min(x, high) if low is None else sp.Max(x, low)
    numeric = all(sp.sympify(v).is_number for v in (low, high))
    cut = sp.Piecewise((low, x < low), (x, x < high), (high, True)) if numeric else None
    return cut or sp.Min(sp.Max(x, low), high)


def _softplus(x: Any, beta: Any, _threshold: Any) -> Any:
    return sp.log(1 + sp.exp(beta * x)) / beta


def _gelu(x: Any, approximate: Any) -> Any:
    return named("gelu_tanh" if approximate == "tanh" else "gelu")(x)


def _div(x: Any, y: Any, mode: Any) -> Any:
    if mode == "floor":
        return sp.floor(x / y)
    return sp.sign(x / y) * sp.floor(sp.Abs(x / y)) if mode == "trunc" else x / y


INVERSES = ("sin", "cos", "tan", "sinh", "cosh", "tanh")
# {operator: (array arguments, fixed arguments, function of both)}
TABLE: dict[str, tuple[tuple[str, ...], tuple[str, ...], Function]] = {
    **{
        name: (("self",), (), function)
        for name, function in {
            **ONE,
            **{f"arc{name[1:]}": ONE[name] for name in ONE if name[1:] in INVERSES},
            "relu6": named("relu6"),
            "silu": named("swish"),
            "hardsigmoid": named("hard_sigmoid"),
            "tanhshrink": lambda x: x - sp.tanh(x),
            "absolute": sp.Abs,
            "sign": named("sign"),
            "sgn": named("sign"),
            "log2": lambda x: sp.log(x) / sp.log(2),
            "log10": lambda x: sp.log(x) / sp.log(10),
            "special_erf": sp.erf,
            "erfc": sp.erfc,
            "special_erfc": sp.erfc,
            "erfinv": sp.erfinv,
            "special_expit": named("sigmoid"),
            "special_ndtr": lambda x: (1 + sp.erf(x / sp.sqrt(2))) / 2,
            "special_log_ndtr": lambda x: sp.log((1 + sp.erf(x / sp.sqrt(2))) / 2),
            "sinc": lambda x: sp.sin(sp.pi * x) / (sp.pi * x),
            "special_sinc": lambda x: sp.sin(sp.pi * x) / (sp.pi * x),
            "trunc": truncated,
            "fix": truncated,
            "frac": lambda x: x - truncated(x),
            "deg2rad": lambda x: x * sp.pi / 180,
            "rad2deg": lambda x: x * 180 / sp.pi,
            "logical_not": ONE["not"],
            "bitwise_not": ONE["not"],
            "isnan": lambda _: sp.false,
            "isinf": lambda _: sp.false,
            "isfinite": lambda _: sp.true,
        }.items()
    },
    **{
        name: (("self", "other"), (), function)
        for name, function in {
            **TWO,
            "multiply": TWO["mul"],
            "maximum": sp.Max,
            "minimum": sp.Min,
            "fmax": sp.Max,
            "fmin": sp.Min,
            "hypot": lambda x, y: sp.sqrt(x**2 + y**2),
            "true_divide": TWO["div"],
            "xlogy": lambda x, y: x * sp.log(y),
            "remainder": sp.Mod,
            "floor_divide": lambda x, y: sp.floor(x / y),
            "copysign": lambda x, y: sp.Abs(x) * named("sign")(y),
            "fmod": lambda x, y: x - y * truncated(x / y),
            "less": sp.Lt,
            "greater": sp.Gt,
            "less_equal": sp.Le,
            "greater_equal": sp.Ge,
            "not_equal": sp.Ne,
            **{
                form.format(name): TWO[name]
                for name in ("and", "or", "xor")
                for form in ("logical_{}", "bitwise_{}", "__{}__")
            },
        }.items()
    },
    "add": (("self", "other"), ("alpha",), lambda x, y, a: x + y if a == 1 else x + a * y),
    "sub": (("self", "other"), ("alpha",), lambda x, y, a: x - y if a == 1 else x - a * y),
    "subtract": (("self", "other"), ("alpha",), lambda x, y, a: x - y if a == 1 else x - a * y),
    "rsub": (("self", "other"), ("alpha",), lambda x, y, a: y - x if a == 1 else y - a * x),
    "div": (("self", "other"), ("rounding_mode",), _div),
    "divide": (("self", "other"), ("rounding_mode",), _div),
    "gelu": (("self",), ("approximate",), _gelu),
    "elu": (("self",), ("alpha", "scale", "input_scale"), elu),
    "celu": (("self",), ("alpha",), celu),
    "leaky_relu": (("self",), ("negative_slope",), leaky),
    "hardtanh": (("self",), ("min_val", "max_val"), _clamp),
    "softplus": (("self",), ("beta", "threshold"), _softplus),
    "softshrink": (("self",), ("lambd",), lambda x, k: shrunk(x, k, k)),
    "hardshrink": (("self",), ("lambd",), lambda x, k: shrunk(x, k, 0)),
    "threshold": (
        ("self",),
        ("threshold", "value"),
        lambda x, t, v: sp.Piecewise((v, x <= t), (x, True)),
    ),
    "clamp": (("self", "min", "max"), (), _clamp),
    "clip": (("self", "min", "max"), (), _clamp),
    "clamp_min": (("self", "min"), (), lambda x, low: _clamp(x, low, None)),
    "clamp_max": (("self", "max"), (), lambda x, high: _clamp(x, None, high)),
    "pow": (("self", "exponent"), (), lambda x, y: x**y),
    "float_power": (("self", "exponent"), (), lambda x, y: x**y),
    "heaviside": (
        ("self", "values"),
        (),
        lambda x, v: sp.Piecewise((0, x < 0), (v, sp.Eq(x, 0)), (1, True)),
    ),
    "lerp": (("self", "end", "weight"), (), lambda x, y, w: x + w * (y - x)),
    "addcmul": (("self", "tensor1", "tensor2"), ("value",), lambda x, y, z, v: x + v * y * z),
    "addcdiv": (("self", "tensor1", "tensor2"), ("value",), lambda x, y, z, v: x + v * y / z),
    "where": (
        ("condition", "self", "other"),
        (),
        lambda c, x, y: _either(condition(c), number(x), number(y)),
    ),
    "masked_fill": (
        ("self", "mask", "value"),
        (),
        lambda x, c, v: _either(condition(c), number(v), number(x)),
    ),
    "logit": (("self",), ("eps",), lambda x, _: sp.log(x / (1 - x))),
}
# operators that are logical only for Boolean arguments
BITWISE = {
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_not",
    "__and__",
    "__or__",
    "__xor__",
}
LOGICAL = {
    "where",
    "masked_fill",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
    *BITWISE,
}


@rule(*TABLE)
def pointwise(call: Call) -> Any:
    """Read an operator in TABLE."""
    import torch

    kind = call.kind if call.kind in TABLE else call.kind.rstrip("_")
    if kind in ("masked_fill", "where") and (made := masked(call)) is not None:
        return made
    arrays, closed, function = TABLE[kind]
    truths = call.dtype is torch.bool
    if kind in BITWISE and not truths:
        return call.unread(
            call.spoken,
            "it works on the bits of integers; use Booleans or arithmetic",
        )
    if kind in ("max", "min") and (
        call["other"] is None or not isinstance(call["other"], TensorRef | Const | PaddedTensor)
    ):
        return extremes(call)
    fixed = [call[name] for name in closed]  # the schemas require plain numbers for these arguments
    fixed = [numbers_of(v.tensor).item() if isinstance(v, Const) else v for v in fixed]
    operands = [call[name] for name in arrays]
    if function is _clamp or kind.startswith("clamp"):  # an infinite bound has no effect
        operands, fixed = (
            [None if _infinite(v) else v for v in values] for values in (operands, fixed)
        )
    literals = [_literal(v) for v in fixed]

    def of_operands(*x: Any) -> Any:
        found = function(*x, *literals)
        return condition(found) if truths else found  # sums of Booleans are Booleans

    return applied(call, operands, of_operands, kind in LOGICAL)


def applied(
    call: Call, operands: list[Any], function: Function, logical: bool = False
) -> TensorRef:
    """Add a Pointwise that applies ``function``; plain numbers become part of the function."""
    if any(_infinite(value) for value in operands):
        return call.unread(
            "a mask of infinities",
            "it sets entries to infinity, as attention does before its softmax",
        )
    reads = [
        call.read(value)
        for value in operands
        if isinstance(value, TensorRef | PaddedTensor | Const)
    ]

    def of_arrays(*expressions: Any) -> Any:
        given = iter(expressions if logical else map(number, expressions))
        return function(
            *(
                next(given)
                if isinstance(value, TensorRef | PaddedTensor | Const)
                else _literal(value)
                for value in operands
            )
        )

    return call.emit(Pointwise, reads, function=of_arrays, label=call.spoken)


def _literal(value: Any) -> Any:
    if isinstance(value, bool | int):
        return sp.Integer(int(value))
    return exact_number(value) if isinstance(value, float) else value


def _infinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


@rule("prelu", "_prelu_kernel")
def prelu(call: Call) -> Any:
    """Read PReLU, with one trained slope per channel (axis 1) or one for all."""
    weight = call["weight"]
    if not isinstance(weight, Const):
        return call.unread("prelu", "its slopes depend on the input")
    slopes: np.ndarray = numbers_of(weight.tensor)
    slopes = (
        slopes.reshape(())
        if slopes.size == 1
        else slopes.reshape(-1, *(1,) * (len(call.shape) - 2))
    )
    reads = [call.read(call["self"]), call.walker.held(weight, slopes)]
    return call.emit(Pointwise, reads, function=leaky, label="prelu")


@rule("rrelu")
def rrelu(call: Call) -> Any:
    """Read RReLU with the mean slope, as in evaluation mode.

    A note says that the model draws the slopes at random in training.
    """
    low, high = call["lower"], call["upper"]
    drawn = bool(call["training"]) and low != high
    text = (
        f"in training, its slopes are drawn from [{low:.6g}, {high:.6g}]; it is read with the mean "
        f"slope, as in evaluation mode"
        if drawn
        else ""
    )
    slope = (_literal(low) + _literal(high)) / 2
    reads = [call.read(call["self"])]
    return call.emit(
        Pointwise, reads, function=lambda x: leaky(x, slope), label=call.spoken, text=text
    )


@rule(
    "to",
    "type",
    "_to_copy",
    "float",
    "double",
    "half",
    "bfloat16",
    "type_as",
    "int",
    "long",
    "bool",
)
def cast(call: Call) -> Any:
    """Read a change of dtype: casts between floats do nothing, and conditions become 0 or 1."""
    import torch

    source = call.operand
    before, after = getattr(source, "dtype", None), call.dtype
    if before is torch.bool and after is not torch.bool:
        return applied(call, [source], lambda x: x)
    if after is torch.bool:
        return applied(call, [source], condition, True)
    if (
        getattr(before, "is_floating_point", True)
        and after is not None
        and not after.is_floating_point
        and not after.is_complex
    ):
        return call.unread(
            CAST,
            "it truncates activations; use floor or round if this is intended",
        )
    return call.emit(Pass, [call.read(source)])


def extremes(call: Call) -> Any:
    """Read max and min of an array over an axis or over all axes."""
    from .pooling import over_axes

    return over_axes(call)


@rule("item", "_local_scalar_dense")
def item(call: Call) -> Any:
    """Read ``item``, which takes a number from an array that depends on the input."""
    place = f" at {call.source}" if call.source else ""
    call.walker.remarks.append(
        f"the model takes a number from an array that depends on the input{place}; it was read "
        f"with its value for the example inputs"
    )
    return None
