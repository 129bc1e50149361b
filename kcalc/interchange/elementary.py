"""The elementwise functions that frameworks share, of SymPy expressions.

They have the forms that the catalogue of activations uses.
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
    """The expression of a registered activation."""
    return lambda x: activation(name).expr.xreplace({X: sp.sympify(x)})


def is_condition(expr: Any) -> bool:
    """Whether an expression is a truth value; a symbol is both, and stands for a number."""
    return isinstance(expr, Boolean | bool) and not isinstance(expr, sp.Expr)


def number(expr: Any) -> Any:
    """A condition as the number 0 or 1; everything else as it is."""
    return sp.Piecewise((1, expr), (0, True)) if is_condition(expr) else expr


def condition(expr: Any) -> Any:
    """A number as the condition that it is not 0."""
    return expr if is_condition(expr) else sp.Ne(expr, 0)


def truncated(x: Any) -> Any:
    """The whole part, towards 0."""
    return sp.sign(x) * sp.floor(sp.Abs(x))


def of_conditions(function: Function) -> Function:
    """A function of truth values that takes numbers for them, too."""
    return lambda *values: function(*map(condition, values))


ONE: dict[str, Function] = {
    "abs": sp.Abs,
    "acos": sp.acos,
    "acosh": sp.acosh,
    "asin": sp.asin,
    "asinh": sp.asinh,
    "atan": sp.atan,
    "atanh": sp.atanh,
    "ceil": sp.ceiling,
    "cos": sp.cos,
    "cosh": sp.cosh,
    "digamma": sp.digamma,
    "erf": sp.erf,
    "exp": sp.exp,
    "exp2": lambda x: 2**x,
    "expm1": lambda x: sp.exp(x) - 1,
    "floor": sp.floor,
    "hardswish": named("hard_swish"),
    "lgamma": sp.loggamma,
    "log": sp.log,
    "log1p": lambda x: sp.log(1 + x),
    "mish": named("mish"),
    "neg": lambda x: -x,
    "not": of_conditions(sp.Not),
    "reciprocal": lambda x: 1 / x,
    "relu": named("relu"),
    "round": lambda x: sp.floor(x + HALF),
    "rsqrt": lambda x: 1 / sp.sqrt(x),
    "sigmoid": named("sigmoid"),
    "sign": sp.sign,
    "sin": sp.sin,
    "sinh": sp.sinh,
    "softplus": named("softplus"),
    "softsign": named("softsign"),
    "sqrt": sp.sqrt,
    "square": lambda x: x**2,
    "tan": sp.tan,
    "tanh": sp.tanh,
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
