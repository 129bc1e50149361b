"""Convert kcalc's activations to PyTorch functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import sympy as sp
import torch
from torch.nn import functional

from ...activations import Activation, X
from ...activations.pieces import resolve, switch_points
from ...foundation.errors import KcalcError
from ...foundation.process_state import lambdify

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]


def _softplus(x: Tensor) -> Tensor:
    """Return log(1 + e^x) exactly. PyTorch's softplus is x for x > 20, with an error of 2e-9."""
    return torch.logaddexp(x, torch.zeros_like(x))


BUILT_IN: dict[str, Function] = {
    **{
        name: getattr(torch, name)
        for name in [
            "relu",
            "tanh",
            "sigmoid",
            "erf",
            "sin",
            "cos",
            "exp",
            "abs",
            "atan",
            "asinh",
            "square",
        ]
    },
    **{
        name: getattr(functional, name)
        for name in ["gelu", "elu", "selu", "celu", "relu6", "softsign"]
    },
    "swish": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "softplus": _softplus,
    "mish": lambda x: x * torch.tanh(_softplus(x)),
    "hard_tanh": functional.hardtanh,
    "hard_swish": functional.hardswish,
    "hard_sigmoid": functional.hardsigmoid,
    "identity": lambda x: x,
    "logcosh": lambda x: x.abs() + torch.log1p(torch.exp(-2 * x.abs())) - math.log(2),
}
SAME = (
    "exp",
    "log",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "sqrt",
    "sign",
    "floor",
)
MODULES = [
    {name: getattr(torch, name) for name in (*SAME, "erfinv", "digamma")}
    | {"Abs": torch.abs, "ceiling": torch.ceil, "loggamma": torch.lgamma},
    "math",
]


@lru_cache(maxsize=512)
def torch_function(phi: Activation) -> Function:
    """Return phi as an elementwise function of float tensors; constants have double precision.

    Raises: KcalcError if the activation is a callable, or if PyTorch lacks one of its functions.
    """
    change = phi.transformation
    if change is not None:
        inner = torch_function(phi.base)
        numbers = (change.input_scale, change.input_shift, change.output_scale, change.output_shift)
        a, b, scale, shift = (float(value) for value in numbers)
        return lambda x: scale * (inner(a * x + b) + shift)
    phi.refuse_numeric_only("PyTorch function")
    if phi.name in BUILT_IN and _is_registered(phi):
        return BUILT_IN[phi.name]
    return _pieces(phi)


def _is_registered(phi: Activation) -> bool:
    from ...activations import activation

    return activation(phi.name) == phi


def _pieces(phi: Activation) -> Function:
    """Compile the expression of an activation piece by piece.

    Each smooth piece is evaluated only inside its interval, so it cannot overflow elsewhere.
    """
    expr = phi.stable[0] if phi.stable else phi.expr
    points = sorted({*phi.kinks, *switch_points(expr)}, key=float)
    if not points:
        return _compiled(phi, expr)
    edges = [float(point) for point in points]
    functions = [_compiled(phi, resolve(expr, points, i)) for i in range(len(points) + 1)]

    def whole(x: Tensor) -> Tensor:
        out = functions[0](x.clamp(max=edges[0]))
        for function, low, high in zip(functions[1:], edges, [*edges[1:], None], strict=True):
            out = torch.where(x < low, out, function(x.clamp(low, high)))
        return out

    return whole


def _compiled(phi: Activation, expr: Any) -> Function:
    if not expr.has(X):
        value = float(expr)
        return lambda x: torch.full_like(x, value)
    numbers = (
        e
        for e in sp.preorder_traversal(expr)
        if isinstance(e, sp.Expr) and e.is_number and not (e.is_Integer or e.is_Float)
    )
    # constants such as sqrt(3) too, because torch.sqrt takes tensors only
    rounded = expr.xreplace({n: sp.N(n, 17) for n in numbers})
    function = lambdify(X, rounded, MODULES, cse=True)
    try:
        function(torch.zeros(1, dtype=torch.float64))
    except (NameError, TypeError, AttributeError) as error:
        raise KcalcError(
            f"activation {phi.name!r}: {str(expr)[:80]} contains a function that PyTorch "
            "does not have"
        ) from error
    return function
