"""Values of a jaxpr's variables while it is read.

A value is an array that depends on no input, or the output of an operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..trace import Linear, Op, Pooling

Step = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class View:
    """A parameter, and the steps (reshapes, transposes, slices) that turn it into an array."""

    leaf: str
    steps: tuple[Step, ...] = ()

    def of(self, array: Any) -> Any:
        """Apply the steps to the parameter's ``array``."""
        for step in self.steps:
            array = step(array)
        return array

    def then(self, step: Step) -> View:
        """Return the view after another ``step``."""
        return replace(self, steps=(*self.steps, step))


@dataclass(frozen=True, eq=False)
class KnownArray:
    """An array that depends on no input.

    ``origins``: the parameters it was computed from, slices by their indices; ``random``: whether
    it was drawn inside the model; ``view``: how it comes from one parameter, None if numbers
    changed. Axes along which it was broadcast have stride 0. ``trained``: as of a
    :class:`kcalc.interchange.trace.Linear`.
    """

    array: Any
    origins: frozenset[str] = frozenset()
    random: bool = False
    view: View | None = None
    trained: bool | str = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the array."""
        return tuple(self.array.shape)

    @property
    def number(self) -> Any:
        """Return the single number in a constant, as a NumPy scalar.

        None for parameters, random numbers and arrays of several numbers.
        """
        if (
            self.origins
            or self.random
            or not isinstance(self.array, np.ndarray)
            or self.array.size == 0
        ):
            return None
        small = self.compact()
        return small.flat[0] if small.size == 1 or bool((small == small.flat[0]).all()) else None

    def compact(self) -> np.ndarray:
        """Return the array with axes along which it was broadcast reduced to size 1."""
        array = self.array
        return array[
            tuple(
                slice(0, 1) if step == 0 and size > 1 else slice(None)
                for step, size in zip(array.strides, array.shape, strict=True)
            )
        ]


@dataclass(frozen=True, eq=False)
class Ref:
    """The output of operation ``name``, with its axes in another order.

    Axis i is axis ``order[i]`` of the operation's output.

    ``shape`` is larger than the operation's if an axis of size 1 was broadcast.
    """

    name: str
    order: tuple[int, ...]
    shape: tuple[int, ...]

    def turned(self, turn: Iterable[int]) -> Ref:
        """Return the array with its axis ``turn[i]`` as axis i."""
        axes = tuple(turn)
        order, shape = (tuple(v[a] for a in axes) for v in (self.order, self.shape))
        return Ref(self.name, order, shape)

    def without(self, axes: Iterable[int], name: str) -> Ref:
        """Return the array without some axes, which the output of operation ``name`` lacks."""
        gone = set(axes)
        bases = {self.order[a] for a in gone}
        kept = self.turned(a for a in range(len(self.shape)) if a not in gone)
        return Ref(name, tuple(b - sum(g < b for g in bases) for b in kept.order), kept.shape)


def made_shape(eqn: Any) -> tuple[int, ...]:
    """Return the shape of the first output of an equation."""
    return tuple(map(int, eqn.outvars[0].aval.shape))


Value = KnownArray | Ref


class Padded(Op):
    """A border of the constant ``value``, or of numbers by the ``mode`` of a Linear.

    (low, high) per axis.

    It becomes part of the window operation after it; elsewhere it is not read.
    """

    pads: tuple[tuple[int, int], ...]
    value: float
    mode: str = "zeros"


PADDINGS = {"circular": "wrap", "reflect": "reflect", "replicate": "edge"}  # as in jnp.pad


class WindowSum(Op):
    """Sums over padded windows, which become means if divided by the number of entries.

    Otherwise they are not read.
    """

    pooling: Pooling


class DroppedOut(Op):
    """Entries set to 0 at random: dropout if they are rescaled, else not read.

    ``kept``: the fraction kept in this draw of ``count``.
    """

    kept: float
    count: int


@dataclass(frozen=True, eq=False)
class Recipe:
    """The place of the numbers of a :class:`kcalc.interchange.trace.Linear` in the parameters.

    It consists of views that give its weight and its bias.
    """

    op: Linear
    weight: View | None
    bias: View | None = None
    origins: frozenset[str] = frozenset()
