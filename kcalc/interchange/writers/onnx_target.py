"""Write expressions as ONNX nodes, with a :class:`LanguageTarget` whose values are tensor names.

Constants are stored in float64 and cast to the type of the function's input, so that a function
works in every precision.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import sympy as sp

from ...gaussian.expectations.quadrature import panel_nodes
from .lowering import LanguageTarget

COMPARE = {"<": "Less", "<=": "LessOrEqual", ">": "Greater", ">=": "GreaterOrEqual"}
DIRECT = {name: name.capitalize() for name in ("exp", "log", "sin", "cos", "tanh", "sqrt", "relu")}
DIRECT["modulus"] = "Abs"
STANDARD = {
    name: name.capitalize()
    for name in ["tan", "sinh", "cosh", "asinh", "acosh", "atanh", "atan", "asin", "acos", "erf"]
}
"""Standard operators for which runtimes often lack a float64 kernel."""
NODES, STEP = 24, 0.5
SPLIT, FURTHEST = 2.0, 6.0
HALVINGS, TERMS = 3, 12


class OnnxTarget(LanguageTarget[str]):
    """Collects the ONNX nodes of a function.

    ``basic``: whether to write the functions in ``STANDARD`` with arithmetic, exp, log, sqrt, sin
    and cos only.
    """

    def __init__(self, like: str, basic: bool = False) -> None:
        from onnx import helper, numpy_helper

        self.helper, self.numpy_helper = helper, numpy_helper
        self.like, self.basic, self.nodes = like, basic, []
        self.known: dict[float, str] = {}
        self.numbers: dict[str, float] = {}
        self.count = 0
        self.refined = False

    def node(
        self, operator: str, *inputs: str, output: str | None = None, **attributes: Any
    ) -> str:
        """Add a node with one output, and return its name."""
        self.count += 1
        name = output or f"t{self.count}"
        self.nodes.append(self.helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, values: Any) -> str:
        """Add a constant in the precision of the input; integers stay integers."""
        array = np.asarray(values)
        name = self.node("Constant", value=self.numpy_helper.from_array(array))
        return name if array.dtype == np.int64 else self.node("CastLike", name, self.like)

    def number(self, value: float) -> str:
        if value not in self.known:
            self.known[value] = self.constant(np.float64(value))
            self.numbers[self.known[value]] = value
        return self.known[value]

    def value(self, value: str) -> float | None:
        return self.numbers.get(value)

    def keep(self, value: str) -> str:
        return value

    def add(self, terms: list[tuple[int, str]]) -> str:
        (sign, out), *others = terms
        out = self.node("Neg", out) if sign < 0 else out
        for sign, value in others:
            out = self.node("Sub" if sign < 0 else "Add", out, value)
        return out

    def multiply(self, coefficient: sp.Expr, upper: list[str], lower: list[str]) -> str:
        factors = (
            [] if abs(coefficient) == 1 and upper else [self.number(float(abs(coefficient)))]
        ) + upper
        out = factors[0]
        for factor in factors[1:]:
            out = self.node("Mul", out, factor)
        for factor in lower:
            out = self.node("Div", out, factor)
        return self.node("Neg", out) if coefficient < 0 else out

    def power(self, base: str, exponent: float) -> str:
        if exponent in (2, 3):
            square = self.node("Mul", base, base)
            return square if exponent == 2 else self.node("Mul", square, base)
        return self.node("Pow", base, self.number(exponent))

    def exponential(self, base: float, exponent: str) -> str:
        return self.node("Pow", self.number(base), exponent)

    def least(self, value: str, level: float) -> str:
        return self.node("Min", value, self.number(level))

    def compare(self, sign: str, left: str, right: str) -> str:
        if sign in COMPARE:
            return self.node(COMPARE[sign], left, right)
        same = self.node("Equal", left, right)
        return same if sign == "==" else self.node("Not", same)

    def combine(self, word: str, parts: list[str]) -> str:
        out = parts[0]
        for part in parts[1:]:
            out = self.node("And" if word == "and" else "Or", out, part)
        return out

    def where(self, condition: str, yes: str, no: str) -> str:
        return self.node("Where", condition, yes, no)

    # --- functions --------------------------------------------------------------------------------

    def call(self, function: str, *arguments: str) -> str:
        if function in DIRECT:
            return self.node(DIRECT[function], *arguments)
        if function == "erfc":
            return self.node("Sub", self.number(1.0), self.call("erf", *arguments))
        if function in STANDARD:
            self.refined = True
            if not self.basic:
                return self.node(STANDARD[function], *arguments)
        return getattr(self, f"_{function}")(*arguments)

    def _plus(self, value: str, number: float) -> str:
        return self.node("Add", value, self.number(number))

    def _times(self, value: str, number: float) -> str:
        return self.node("Mul", value, self.number(number))

    def _logistic(self, u: str) -> str:
        """Write 1 / (1 + exp(-u)).

        Runtimes approximate Sigmoid with an absolute error of 1e-7, so x Sigmoid(x) would be
        inaccurate for large negative x.
        """
        return self.node("Reciprocal", self._plus(self.node("Exp", self.node("Neg", u)), 1.0))

    def _softplus(self, u: str) -> str:
        tail = self.node(
            "Log", self._plus(self.node("Exp", self.node("Neg", self.node("Abs", u))), 1.0)
        )
        return self.node("Add", self.node("Relu", u), tail)

    def _logaddexp(self, u: str, v: str) -> str:
        return self.node("Add", v, self._softplus(self.node("Sub", u, v)))

    def _expm1(self, u: str) -> str:
        """Write exp(u) - 1 as tanh(u/2) (exp(u) + 1) to avoid cancellation."""
        return self.node(
            "Mul", self.node("Tanh", self._times(u, 0.5)), self._plus(self.node("Exp", u), 1.0)
        )

    def _log1p(self, u: str) -> str:
        return self.node("Log", self._plus(u, 1.0))

    def _tan(self, u: str) -> str:
        return self.node("Div", self.node("Sin", u), self.node("Cos", u))

    def _sinh(self, u: str) -> str:
        return self._times(
            self.node("Sub", self.node("Exp", u), self.node("Exp", self.node("Neg", u))), 0.5
        )

    def _cosh(self, u: str) -> str:
        return self._times(
            self.node("Add", self.node("Exp", u), self.node("Exp", self.node("Neg", u))), 0.5
        )

    def _root(self, u: str, sign: float, offset: float) -> str:
        """Write sqrt(sign u^2 + offset)."""
        return self.node("Sqrt", self._plus(self._times(self.node("Mul", u, u), sign), offset))

    def _asinh(self, u: str) -> str:
        size = self.node("Abs", u)
        return self.node(
            "Mul",
            self.node("Sign", u),
            self.node("Log", self.node("Add", size, self._root(u, 1.0, 1.0))),
        )

    def _acosh(self, u: str) -> str:
        return self.node("Log", self.node("Add", u, self._root(u, 1.0, -1.0)))

    def _atanh(self, u: str) -> str:
        one = self.number(1.0)
        return self._times(
            self.node("Log", self.node("Div", self.node("Add", one, u), self.node("Sub", one, u))),
            0.5,
        )

    def _halved(self, u: str) -> str:
        """Write tan(a/2) for u = tan a."""
        return self.node("Div", u, self._plus(self._root(u, 1.0, 1.0), 1.0))

    def _atan(self, u: str) -> str:
        """Write atan by halving the angle until |u| < 0.2 and then using the power series."""
        for _ in range(HALVINGS):
            u = self._halved(u)
        square = self.node("Mul", u, u)
        out = self.number((-1.0) ** TERMS / (2 * TERMS + 1))
        for k in range(TERMS - 1, -1, -1):
            out = self._plus(self.node("Mul", out, square), (-1.0) ** k / (2 * k + 1))
        return self._times(self.node("Mul", out, u), 2.0**HALVINGS)

    def _asin(self, u: str) -> str:
        return self._times(
            self._atan(self.node("Div", u, self._plus(self._root(u, -1.0, 1.0), 1.0))), 2.0
        )

    def _acos(self, u: str) -> str:
        return self.node("Sub", self.number(math.pi / 2), self._asin(u))

    def _erf(self, u: str) -> str:
        """Write erf with a Gauss-Legendre rule for |u| < 2, and as 1 - erfc |u| otherwise.

        Both forms are accurate to float64 precision.
        """
        size = self.node("Min", self.node("Abs", u), self.number(FURTHEST))
        near = self._near(self.node("Min", size, self.number(SPLIT)))
        far = self._far(self.node("Max", size, self.number(SPLIT)))
        return self.node(
            "Mul",
            self.node("Sign", u),
            self.node("Where", self.node("Less", size, self.number(SPLIT)), near, far),
        )

    def _near(self, u: str) -> str:
        """Write erf(u) as 2/sqrt(pi) u times the mean of exp(-u^2 t^2) over 0 < t < 1."""
        ((points,), (weights,)) = panel_nodes(np.array([0.0, 1.0]), NODES)
        heights = self.node("Exp", self.node("Mul", self._spread(u), self.constant(-(points**2))))
        return self.node("Mul", u, self._total(heights, 2 / math.sqrt(math.pi) * weights))

    def _far(self, u: str) -> str:
        """Write 1 - erfc(u) with a corrected trapezoid rule of step h [Chiarella, Reichel 1968].

        erfc u = h u e^(-u^2)/pi sum_n e^(-n^2 h^2)/(n^2 h^2 + u^2) - 2/(e^(2 pi u/h) - 1), where n
        runs over all integers.
        """
        squares = (STEP * np.arange(NODES // 2)) ** 2
        inverse = self.node("Reciprocal", self.node("Add", self._spread(u), self.constant(squares)))
        total = self._total(
            inverse, STEP / math.pi * np.exp(-squares) * np.where(squares == 0, 1, 2)
        )
        tail = self.node(
            "Mul",
            self.node("Mul", u, self.node("Exp", self.node("Neg", self.node("Mul", u, u)))),
            total,
        )
        correction = self.node(
            "Div",
            self.number(2.0),
            self._plus(self.node("Exp", self._times(u, 2 * math.pi / STEP)), -1.0),
        )
        return self.node("Add", self.node("Sub", self.number(1.0), tail), correction)

    def _spread(self, u: str) -> str:
        """Write u^2 with a new last axis of size 1."""
        return self.node(
            "Unsqueeze", self.node("Mul", u, u), self.constant(np.array([-1], np.int64))
        )

    def _total(self, terms: str, weights: Any) -> str:
        """Write the weighted sum over the last axis."""
        product = self.node("MatMul", terms, self.constant(weights[:, None]))
        return self.node("Squeeze", product, self.constant(np.array([-1], np.int64)))
