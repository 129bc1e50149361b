"""Elementwise functions that several frameworks provide, as functions of SymPy expressions.

The expressions have the same forms as in the catalogue of activations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy as sp
from sympy.logic.boolalg import Boolean

from ..activations import X, activation

Function = Callable[..., Any]
HALF = sp.Rational(1, 2)


def named(name: str) -> Function:
    """Return the expression of a registered activation."""
    return lambda x: activation(name).expr.xreplace({X: sp.sympify(x)})


def is_condition(expr: Any) -> bool:
    """Whether an expression is a Boolean; symbols are assumed to be numbers."""
    return isinstance(expr, Boolean | bool) and not isinstance(expr, sp.Expr)


def number(expr: Any) -> Any:
    """Return a condition as the number 0 or 1, and anything else unchanged."""
    return sp.Piecewise((1, expr), (0, True)) if is_condition(expr) else expr


def condition(expr: Any) -> Any:
    """Return the Boolean ``expr != 0`` for a number, and a condition unchanged."""
    return expr if is_condition(expr) else sp.Ne(expr, 0)


def truncated(x: Any) -> Any:
    """Round towards 0."""
    return sp.sign(x) * sp.floor(sp.Abs(x))


def of_conditions(function: Function) -> Function:
    """Return a function of Booleans that also accepts numbers."""
    return lambda *values: function(*map(condition, values))


def elu(x: Any, alpha: Any = 1, scale: Any = 1, inside: Any = 1) -> Any:
    """Return the exponential linear unit ``scale * alpha * (exp(inside x) - 1)``, or ``scale * x``.

    The first form applies for x < 0.
    """
    return sp.Piecewise((scale * alpha * (sp.exp(inside * x) - 1), x < 0), (scale * x, True))


def celu(x: Any, alpha: Any = 1) -> Any:
    """Return the continuously differentiable exponential linear unit of x."""
    return sp.Piecewise((alpha * (sp.exp(x / alpha) - 1), x < 0), (x, True))


def leaky(x: Any, slope: Any) -> Any:
    """Return the leaky rectifier of x, with the given slope below 0."""
    return sp.Piecewise((slope * x, x < 0), (x, True))


def shrunk(x: Any, threshold: Any, bias: Any) -> Any:
    """Return 0 if abs(x) is below the threshold, else x shifted towards 0 by ``bias``."""
    return sp.Piecewise((x + bias, x < -threshold), (0, x < threshold), (x - bias, True))


def swish(x: Any, beta: Any = 1) -> Any:
    """Return x multiplied by the logistic function of ``beta x``."""
    return x / (1 + sp.exp(-beta * x))


def _of_sympy(*names: str) -> dict[str, Function]:
    return {name: getattr(sp, name) for name in names}


ONE: dict[str, Function] = {
    **_of_sympy("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "digamma"),
    **_of_sympy("erf", "exp", "floor", "log", "sign", "sin", "sinh", "sqrt", "tan", "tanh"),
    **{name: named(name) for name in ("mish", "relu", "sigmoid", "softplus", "softsign")},
    "abs": sp.Abs,
    "ceil": sp.ceiling,
    "exp2": lambda x: 2**x,
    "expm1": lambda x: sp.exp(x) - 1,
    "hardswish": named("hard_swish"),
    "lgamma": sp.loggamma,
    "log1p": lambda x: sp.log(1 + x),
    "log_sigmoid": lambda x: -sp.log(1 + sp.exp(-x)),
    "neg": lambda x: -x,
    "not": of_conditions(sp.Not),
    "reciprocal": lambda x: 1 / x,
    "round": lambda x: sp.floor(x + HALF),
    "rsqrt": lambda x: 1 / sp.sqrt(x),
    "selu": named("selu"),
    "square": lambda x: x**2,
}
TWO: dict[str, Function] = {
    "add": lambda x, y: x + y,
    "and": of_conditions(sp.And),
    "atan2": sp.atan2,
    "div": lambda x, y: x / y,
    "eq": sp.Eq,
    "ge": sp.Ge,
    "gt": sp.Gt,
    "le": sp.Le,
    "logaddexp": lambda x, y: sp.log(sp.exp(x) + sp.exp(y)),
    "lt": sp.Lt,
    "max": sp.Max,
    "min": sp.Min,
    "mul": lambda x, y: x * y,
    "ne": sp.Ne,
    "or": of_conditions(sp.Or),
    "pow": lambda x, y: x**y,
    "sub": lambda x, y: x - y,
    "xor": of_conditions(sp.Xor),
}
