"""Expressions as lists of steps that run on numbers of any kind, such as balls or jets of balls.

SymPy differentiates only one function at a time. Computing f'' of a product of functions therefore
takes a few products of numbers instead of a symbolic derivative of the product.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import sympy as sp

from ..foundation.errors import KcalcError, glimpse
from .expressions import FUNCTIONS, Fold, inside, rational

Step = Callable[[list[Any], Any], Any]

U = sp.Symbol("u", real=True)
ORDER = 4
_SOFTPLUS = "softplus"
_FORMS: dict[Any, Any] = {
    sp.tanh: (sp.tanh(U), sp.sech(U) ** 2),
    sp.acosh: (sp.acosh(U), 1 / sp.sqrt(U**2 - 1)),
    _SOFTPLUS: (sp.log(1 + sp.exp(U)), (1 + sp.tanh(U / 2)) / 2),
}
"""{function: (f, f')}, for functions whose SymPy derivatives have poor enclosures."""
_REWRITTEN: dict[Any, Callable[[Any], Any]] = {
    sp.csch: lambda u: 1 / sp.sinh(u),
    sp.coth: lambda u: sp.cosh(u) / sp.sinh(u),
    sp.sec: lambda u: 1 / sp.cos(u),
    sp.csc: lambda u: 1 / sp.sin(u),
    sp.cot: lambda u: sp.cos(u) / sp.sin(u),
}


@lru_cache(maxsize=64)
def coefficients(kind: Any) -> tuple[sp.Expr, ...]:
    """Return f(u), f'(u), f''(u)/2 ... for a function of one variable, as expressions in u."""
    found = list(_FORMS[kind] if kind in _FORMS else (kind(U), sp.diff(kind(U), U)))
    while len(found) <= ORDER:
        found.append(sp.diff(found[-1], U) / len(found))
    return tuple(found)


@lru_cache(maxsize=1024)
def power_terms(exponent: Any) -> tuple[tuple[Any, Any], ...]:
    """Return (exponent - k, binomial(exponent, k)) for nonzero Taylor coefficients of a power."""
    weights = [(exponent - k, sp.binomial(exponent, k)) for k in range(ORDER + 1)]
    return tuple((e, weight) for e, weight in weights if weight != 0)


@lru_cache(maxsize=64)
def taylor_program(kind: Any, order: int) -> Program:
    """Return a program for the Taylor coefficients of a function of one variable."""
    return Program(coefficients(kind)[: order + 1], U)


class Program(Fold[int]):
    """Expressions in one symbol as a list of steps. Equal subexpressions are evaluated once.

    Raises KcalcError for functions that have no enclosures.
    """

    def __init__(self, exprs: Sequence[sp.Expr], symbol: sp.Symbol) -> None:
        super().__init__(symbol)
        self.steps: list[Step] = []
        self.outputs = [self(expr) for expr in exprs]

    def run(self, x: Any, numbers: Any) -> list[Any]:
        """Return the values of the expressions at x, computed with ``numbers``."""
        values = [x]
        for step in self.steps:
            values.append(step(values, numbers))
        return [values[place] for place in self.outputs]

    def function_of(self, numbers: Any) -> Callable[[Any], Any]:
        """Return the first expression as a function of x, computed with ``numbers``."""
        if self.outputs == [1] == [len(self.steps)]:
            (step,) = self.steps
            return lambda x: step([x], numbers)
        return lambda x: self.run(x, numbers)[0]

    def record(self, step: Step) -> int:
        """Add a step and return its index among the values."""
        self.steps.append(step)
        return len(self.steps)

    def applied(self, function: Callable[[Any], Any], argument: Any) -> int:
        """Add the step that applies a function of numbers."""
        place = self(argument)
        return self.record(lambda values, numbers: function(values[place]))

    def variable(self, expr: Any) -> int:
        return 0

    def number(self, expr: Any) -> int:
        return self.record(lambda values, numbers: 0 * values[0] + numbers.number(expr))

    def sum(self, terms: Sequence[Any]) -> int:
        return self._combination(sp.Add, terms, operator.add)

    def product(self, factors: Sequence[Any]) -> int:
        return self._combination(sp.Mul, factors, operator.mul)

    def _combination(self, kind: Any, parts: Sequence[Any], join: Callable[[Any, Any], Any]) -> int:
        constant = kind(*(part for part in parts if self.is_number(part)))
        first, *others = [self(part) for part in parts if not self.is_number(part)]
        is_bare = constant == kind.identity

        def step(values: list[Any], numbers: Any) -> Any:
            total = values[first]
            for place in others:
                total = join(total, values[place])
            return total if is_bare else join(total, numbers.number(constant))

        return self.record(step)

    def power(self, base: Any, exponent: Any) -> int:
        if not self.is_number(exponent):
            if not self.is_number(base) or not base.is_positive:
                raise KcalcError(
                    f"{glimpse(base**exponent)} has no certified enclosures, because a variable "
                    "exponent needs a positive constant base"
                )
            # make the base exact, because SymPy rounds the logarithm of a float
            return self(sp.exp(exponent * sp.log(rational(base)), evaluate=False))
        place = self(base)
        return self.record(lambda values, numbers: numbers.power(values[place], exponent))

    def function(self, kind: Any, *arguments: Any) -> int:
        if kind not in FUNCTIONS:
            raise KcalcError(
                f"{kind.__name__}, which occurs in {glimpse(kind(*arguments))}, has no certified "
                "enclosures; evaluate it in double precision by omitting the digits and the field"
            )
        (argument,) = arguments
        inner = self(argument)
        return self.record(lambda values, numbers: numbers.function(kind, values[inner]))

    def corner(self, kind: Any, *arguments: Any) -> int:
        """Add the step for a function with corners.

        It selects a branch, or encloses both branches if the sign of the argument is uncertain.
        """
        is_extreme = kind in (sp.Max, sp.Min)
        first, *others = map(self, arguments if is_extreme else arguments[:1])
        side = -1 if kind is sp.Min else 1

        def extreme(values: list[Any], numbers: Any) -> Any:
            total = values[first]
            for place in others:
                other = values[place]
                total = _chosen(numbers, side * (total + -1 * other), total, other)
            return total

        def switch(values: list[Any], numbers: Any) -> Any:
            u = values[first]
            if kind is sp.Abs:
                return _chosen(numbers, u, u, -1 * u)
            return _chosen(numbers, u, 0 * u + 1, 0 * u + (-1 if kind is sp.sign else 0))

        return self.record(extreme if is_extreme else switch)

    def choice(self, rows: list[tuple[Any, Any]]) -> int:
        places = [self(value) for value, _ in rows]
        return self.record(
            lambda values, numbers: numbers.joined([values[place] for place in places])
        )


class Derivable(Program):
    """Programs that run on jets. Functions whose derivatives have poor enclosures are rewritten."""

    def function(self, kind: Any, *arguments: Any) -> int:
        argument = arguments[0]
        inner = inside(argument) if kind is sp.log and isinstance(argument, sp.cosh) else None
        exponent = logistic(argument) if kind is sp.log else None
        if kind in _REWRITTEN:
            return self(_REWRITTEN[kind](argument))
        if inner is not None:  # log cosh u = log(1 + e^(2u)) - u - log 2
            return self(sp.log(1 + sp.exp(2 * inner), evaluate=False) - inner - sp.log(2))
        if exponent is not None:
            return self.applied_kind(_SOFTPLUS, exponent)
        if kind is sp.exp:
            parts: Any = argument.as_independent(self.symbol, as_Add=False)
            factor, power = parts
            if factor.is_negative and power.is_Pow and power.exp.is_negative:
                place = self(power.base)
                return self.record(lambda v, numbers: numbers.flat(v[place], factor, -power.exp))
        if kind is sp.gamma:
            raise KcalcError(f"{glimpse(kind(argument))} has no certified derivatives")
        return super().function(kind, *arguments)

    def applied_kind(self, kind: Any, argument: Any) -> int:
        """Add the step for a function whose derivatives are in ``_FORMS``."""
        place = self(argument)
        return self.record(lambda values, numbers: numbers.function(kind, values[place]))

    def power(self, base: Any, exponent: Any) -> int:
        inner = logistic(base) if exponent.is_number and exponent.is_negative else None
        if inner is not None:  # 1/(1 + e^g) = (1 - tanh(g/2))/2
            return self(((1 - sp.tanh(inner / 2)) / 2) ** -exponent)
        return super().power(base, exponent)


def logistic(expr: Any) -> Any:
    """Return g if the expression is 1 + e^g, otherwise None."""
    rest = expr - 1
    return inside(rest) if isinstance(rest, sp.exp) else None


def _chosen(numbers: Any, level: Any, positive: Any, negative: Any) -> Any:
    """Return one of two values according to the sign of ``level``, or an enclosure of both."""
    side = numbers.sign(level)
    return positive if side > 0 else negative if side < 0 else numbers.joined([positive, negative])
