"""The equations of a model, to be run with some of their results exchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...foundation.process_state import cached_property
from .jaxpr_values import Ref, Value
from .markers import DROP, NORMALISE, run_mark
from .pointwise import inner_jaxpr
from .stops import equation_function

Path = tuple[int, ...]
Key = Any  # a number, one for every value; a constant stands for itself in Constant


@dataclass(frozen=True, eq=False)
class Constant:
    """An array that an equation or the program holds."""

    value: Any


@dataclass(frozen=True, eq=False)
class Equation:
    """An equation, the keys of the values it reads and makes, and what these were read as."""

    eqn: Any
    reads: tuple[Key, ...]
    makes: tuple[Key, ...]
    values: tuple[Value | None, ...]


@dataclass(frozen=True, eq=False)
class Program:
    """A model's jaxpr beside the values that its reading gave every equation.

    ``args``: the values of its inputs; ``made``: {place of an equation: its values, None where it
    ran several times}; ``joined``: {the sum of a layer and its bias: the layer}.
    """

    closed: Any
    args: list[Value]
    made: dict[Path, list[Value] | None]
    joined: dict[str, str]

    def name(self, value: Value | None) -> str | None:
        """The operation of the trace whose output a value is; None for constants and others.

        The output of a layer is that with its bias, and that without it has no name.
        """
        if not isinstance(value, Ref) or value.name in self._bare:
            return None
        return self.joined.get(value.name, value.name)

    def names(self) -> frozenset[str]:
        """The operations of the trace whose outputs the equations make."""
        equations, _, _ = self.flat(lambda name: True)
        values = (value for equation in equations for value in equation.values)
        found = (self.name(value) for value in (*self.args, *values))
        return frozenset(name for name in found if name is not None)

    @cached_property
    def _bare(self) -> set[str]:
        return set(self.joined.values())

    def flat(
        self, wanted: Callable[[str], bool]
    ) -> tuple[list[Equation], tuple[Key, ...], tuple[Key, ...]]:
        """(the equations, those of called functions in the place of the calls; inputs; outputs).

        ``wanted``: whether the output of an operation is asked for by itself.
        """
        equations: list[Equation] = []
        count = iter(range(10**12))

        def run(jaxpr: Any, consts: Sequence[Any], given: Sequence[Key], path: Path) -> list[Key]:
            known: dict[Any, Key] = dict(zip(jaxpr.constvars, map(Constant, consts), strict=True))
            known |= dict(zip(jaxpr.invars, given, strict=True))
            for place, eqn in enumerate(jaxpr.eqns):
                here = (*path, place)
                reads = tuple(_key(known, v) for v in eqn.invars)
                inner = inner_jaxpr(eqn)
                if inner is not None and self._opens(eqn, here, wanted):
                    makes = tuple(run(inner.jaxpr, inner.consts, reads, here))
                else:
                    makes = tuple(next(count) for _ in eqn.outvars)
                    found = self.made.get(here) or [None] * len(makes)
                    equations.append(Equation(eqn, reads, makes, tuple(found)))
                known.update(zip(eqn.outvars, makes, strict=True))
            return [_key(known, v) for v in jaxpr.outvars]

        inputs = tuple(next(count) for _ in self.closed.jaxpr.invars)
        outputs = run(self.closed.jaxpr, self.closed.consts, inputs, ())
        return equations, inputs, tuple(outputs)

    def _opens(self, eqn: Any, path: Path, wanted: Callable[[str], bool]) -> bool:
        """Whether a call is replaced by the equations of the function that it calls.

        Functions with derivatives of their own are called as they are, so that they keep these,
        unless something inside of them is wanted.
        """
        if not eqn.primitive.name.startswith("custom_"):
            return True
        outside = set(map(self.name, self.made.get(path) or ()))
        inside = (
            self.name(value)
            for place, values in self.made.items()
            if place[: len(path)] == path and place != path
            for value in values or ()
        )
        return any(name is not None and name not in outside and wanted(name) for name in inside)


def _key(known: Mapping[Any, Key], variable: Any) -> Key:
    return Constant(variable.val) if hasattr(variable, "val") else known[variable]


def evaluated(eqn: Any, values: Sequence[Any], channel_axis: int) -> Sequence[Any]:
    """The results of an equation for given arrays."""
    if eqn.primitive.name in (NORMALISE, DROP):
        return [run_mark(eqn, values, channel_axis)]
    pairs = zip(eqn.invars, values, strict=True)
    reads = {v: x for v, x in pairs if not hasattr(v, "val")}  # each variable once
    return equation_function(eqn, list(reads))(*reads.values())
