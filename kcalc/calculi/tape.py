"""Computations recorded once and replayed for any c.

The rules of a calculus treat a :class:`TapeNumber` like any other number. A :class:`Replay` repeats
the recorded computation without calling the rules.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")
Node = Hashable


@dataclass(eq=False, slots=True)
class TapeNumber:
    """A number that depends on numbers that are given later.

    ``steps`` lists (function, arguments) for all such numbers of one computation in order, with
    None for given numbers. ``place`` is the index of this number.
    """

    steps: list[tuple[Callable[..., Any], tuple[Any, ...]] | None]
    place: int

    __array_ufunc__ = None  # NumPy arrays on the left then defer to this arithmetic

    def later(self, function: Callable[..., Any], *arguments: Any) -> TapeNumber:
        """Return the number ``function(*arguments)`` and record it in the computation."""
        self.steps.append((function, arguments))
        return TapeNumber(self.steps, len(self.steps) - 1)

    def __add__(self, other: Any) -> TapeNumber:
        if isinstance(other, int) and other == 0:  # the start of a sum
            return self
        return self.later(operator.add, self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> TapeNumber:
        return self.later(operator.sub, self, other)

    def __rsub__(self, other: Any) -> TapeNumber:
        return self.later(operator.sub, other, self)

    def __mul__(self, other: Any) -> TapeNumber:
        return self.later(operator.mul, self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> TapeNumber:
        return self.later(operator.truediv, self, other)


def recordable(function: Callable[P, Result]) -> Callable[P, Result]:
    """Record calls to a function in which a positional argument is a :class:`TapeNumber`."""

    @wraps(function)
    def recording(*arguments: P.args, **named: P.kwargs) -> Any:
        for argument in arguments:
            if isinstance(argument, TapeNumber):
                return argument.later(partial(function, **named), *arguments)
        return function(*arguments, **named)

    return recording


def tape_inputs(nodes: Iterable[Node]) -> dict[Node, TapeNumber]:
    """Return {node: a number that is given later}, for one computation."""
    nodes = tuple(nodes)
    steps: list[Any] = [None] * len(nodes)
    return {node: TapeNumber(steps, place) for place, node in enumerate(nodes)}


class Replay:
    """``results``, {node: deferred number}, as a function of ``given``, {node: given number}.

    Only the steps needed for the results run, and numbers are dropped after their last use.
    """

    def __init__(
        self, given: Mapping[Node, TapeNumber], results: Mapping[Node, TapeNumber]
    ) -> None:
        self.given = {node: number.place for node, number in given.items()}
        self.results = {node: number.place for node, number in results.items()}
        used = set(self.results.values())
        found = []
        for steps in {id(number.steps): number.steps for number in results.values()}.values():
            for place, step in reversed(list(enumerate(steps))):
                if step is not None and place in used:
                    read = {a.place for a in step[1] if isinstance(a, TapeNumber)}
                    found.append((place, *step, read - used))
                    used |= read
        self.steps = found[::-1]

    def __call__(self, values: Mapping[Node, Any]) -> dict[Node, Any]:
        """Compute {node: result} for given values of the numbers that the tape reads."""
        known = {place: values[node] for node, place in self.given.items()}
        for place, function, arguments, last in self.steps:
            known[place] = function(
                *[known[a.place] if isinstance(a, TapeNumber) else a for a in arguments]
            )
            for read in last:
                del known[read]
        return {node: known[place] for node, place in self.results.items()}
