"""Expressions as lists of steps, run over numbers of any kind: balls, germs, and jets of them.

Derivatives of functions come from SymPy's, one function at a time, so that f'' of a product of
functions costs a few products of numbers and no symbolic derivative of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import sympy as sp

from ...fields.balls import METHODS
from ...foundation.errors import KcalcError, glimpse
from .kinks import rational

Step = Callable[[list[Any], Any], Any]

U = sp.Symbol("u", real=True)
ORDER = 4
CORNERED = (sp.Abs, sp.Max, sp.Min, sp.sign, sp.Heaviside, sp.Piecewise)
_SLOPES: dict[Any, Any] = {sp.tanh: sp.sech(U) ** 2, sp.acosh: 1 / sp.sqrt(U**2 - 1)}
_REWRITTEN: dict[Any, Callable[[Any], Any]] = {
    sp.csch: lambda u: 1 / sp.sinh(u),
    sp.coth: lambda u: sp.cosh(u) / sp.sinh(u),
    sp.sec: lambda u: 1 / sp.cos(u),
    sp.csc: lambda u: 1 / sp.sin(u),
    sp.cot: lambda u: sp.cos(u) / sp.sin(u),
}
_KNOWN = set(METHODS) - {sp.gamma, sp.Abs, *_REWRITTEN}


@lru_cache(maxsize=64)
def coefficients(kind: Any) -> tuple[sp.Expr, ...]:
    """f(u), f'(u), f''(u)/2 ... of a function of one variable, as expressions in u."""
    found = [kind(U), _SLOPES.get(kind, sp.diff(kind(U), U))]
    while len(found) <= ORDER:
        found.append(sp.diff(found[-1], U) / len(found))
    return tuple(found)


@lru_cache(maxsize=1024)
def power_terms(exponent: Any) -> tuple[tuple[Any, Any], ...]:
    """(exponent - k, binomial(exponent, k)) for the Taylor coefficients of a power, but zeros."""
    weights = [(exponent - k, sp.binomial(exponent, k)) for k in range(ORDER + 1)]
    return tuple((e, weight) for e, weight in weights if weight != 0)


@lru_cache(maxsize=64)
def taylor_program(kind: Any, order: int) -> Program:
    """The Taylor coefficients of a function of one variable up to an order, as functions of u."""
    return Program(coefficients(kind)[: order + 1], U)


class Program:
    """Expressions in one symbol as steps, equal parts shared.

    Raises KcalcError for functions that have no enclosures.
    """

    def __init__(self, exprs: Sequence[sp.Expr], symbol: sp.Symbol) -> None:
        self.symbol = symbol
        self.steps: list[Step] = []
        self.places: dict[Any, int] = {}
        self.waving: set[int] = set()
        self.outputs = [self._place(rational(expr)) for expr in exprs]

    def run(self, x: Any, numbers: Any, known: dict[int, Any] | None = None) -> list[Any]:
        """The values of the expressions at x, a number of the kind that ``numbers`` computes with.

        ``known`` keeps those of the steps without sin and cos, for further runs at the same x.
        """
        values = [x]
        for place, step in enumerate(self.steps, start=1):
            if known is None or place in self.waving:
                values.append(step(values, numbers))
            else:
                if place not in known:
                    known[place] = step(values, numbers)
                values.append(known[place])
        return [values[place] for place in self.outputs]

    def _place(self, expr: Any) -> int:
        if expr == self.symbol:
            return 0
        if expr not in self.places:
            step = self._step(expr)
            self.steps.append(step)
            self.places[expr] = len(self.steps)
            if expr.has(sp.sin, sp.cos):
                self.waving.add(len(self.steps))
        return self.places[expr]

    def _step(self, expr: Any) -> Step:
        if not expr.has(self.symbol):
            return lambda values, numbers: 0 * values[0] + numbers.number(expr)
        if isinstance(expr, sp.Add | sp.Mul):
            return self._combination(expr)
        if isinstance(expr, sp.Pow):
            return self._power(expr)
        if isinstance(expr, CORNERED):
            return self._cornered(expr)
        if type(expr) in _REWRITTEN:
            return self._same(_REWRITTEN[type(expr)](expr.args[0]))
        return self._function(expr)

    def _same(self, expr: Any) -> Step:
        place = self._place(expr)
        return lambda values, numbers: values[place]

    def _function(self, expr: Any) -> Step:
        kind = type(expr)
        if kind not in _KNOWN or len(expr.args) != 1:
            raise KcalcError(f"{kind.__name__}, in {glimpse(expr)}, has no certified derivatives")
        argument = expr.args[0]
        inner = self._place(argument)
        if kind in (sp.sin, sp.cos):
            return lambda values, numbers: numbers.circular(values[inner], argument)[kind is sp.cos]
        return lambda values, numbers: numbers.function(kind, values[inner])

    def _combination(self, expr: Any) -> Step:
        is_sum = isinstance(expr, sp.Add)
        constant, variable = expr.as_independent(self.symbol, as_Add=is_sum)
        first, *others = [self._place(part) for part in expr.func.make_args(variable)]
        is_bare = constant == expr.func.identity

        def step(values: list[Any], numbers: Any) -> Any:
            total = values[first]
            for place in others:
                total = total + values[place] if is_sum else total * values[place]
            if is_bare:
                return total
            number = numbers.number(constant)
            return total + number if is_sum else total * number

        return step

    def _power(self, expr: Any) -> Step:
        base, exponent = expr.args
        if exponent.has(self.symbol):
            if base.has(self.symbol) or not base.is_positive:
                why = "a variable exponent needs a positive constant base"
                raise KcalcError(f"{glimpse(expr)} has no certified derivatives: {why}")
            return self._same(sp.exp(exponent * sp.log(base), evaluate=False))
        place = self._place(base)
        return lambda values, numbers: numbers.power(values[place], exponent)

    def _cornered(self, expr: Any) -> Step:
        """Functions with corners, between these: one of their branches, or an enclosure of all."""
        if isinstance(expr, sp.Piecewise):
            branches: Any = expr.args
            places = [self._place(sp.sympify(value)) for value, _ in branches]
            return lambda values, numbers: numbers.joined([values[place] for place in places])
        if isinstance(expr, sp.Max | sp.Min):
            return self._extremum(expr)
        place = self._place(expr.args[0])

        def step(values: list[Any], numbers: Any) -> Any:
            u = values[place]
            if isinstance(expr, sp.Abs):
                return _chosen(numbers, u, u, -1 * u)
            low = -1 if isinstance(expr, sp.sign) else 0
            return _chosen(numbers, u, 0 * u + 1, 0 * u + low)

        return step

    def _extremum(self, expr: Any) -> Step:
        first, *others = [self._place(sp.sympify(arg)) for arg in expr.args]
        side = 1 if isinstance(expr, sp.Max) else -1

        def step(values: list[Any], numbers: Any) -> Any:
            total = values[first]
            for place in others:
                other = values[place]
                total = _chosen(numbers, side * (total + -1 * other), total, other)
            return total

        return step


def _chosen(numbers: Any, level: Any, positive: Any, negative: Any) -> Any:
    """One of two values by the sign of ``level``, or an enclosure of both."""
    side = numbers.sign(level)
    return positive if side > 0 else negative if side < 0 else numbers.joined([positive, negative])
