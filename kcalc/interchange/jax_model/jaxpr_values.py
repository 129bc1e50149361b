"""The values of a jaxpr's variables while kcalc reads it.

A value is a known array, which depends on no input, or the output of an operation.
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
    """A parameter and the steps (reshapes, transposes, slices) that turn it into an array."""

    leaf: str
    steps: tuple[Step, ...] = ()

    def of(self, array: Any) -> Any:
        """Apply the steps to ``array``, which contains the parameter's values."""
        for step in self.steps:
            array = step(array)
        return array

    def then(self, step: Step) -> View:
        """Return the view with an additional last step."""
        return replace(self, steps=(*self.steps, step))


@dataclass(frozen=True, eq=False)
class KnownArray:
    """An array that depends on no input.

    ``origins``: the parameters from which it was computed, with indices for slices; ``random``:
    whether it was drawn inside the model; ``view``: how its entries are taken from one parameter,
    None if they were changed; ``trained``: as in :class:`kcalc.interchange.trace.Linear`. Broadcast
    axes have stride 0.
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
        """Return the common value of a constant's entries as a NumPy scalar, if they are equal.

        Returns None if the entries differ, and for parameters and random numbers.
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
        """Return the array with broadcast axes reduced to size 1."""
        array = self.array
        return array[
            tuple(
                slice(0, 1) if step == 0 and size > 1 else slice(None)
                for step, size in zip(array.strides, array.shape, strict=True)
            )
        ]


@dataclass(frozen=True, eq=False)
class Ref:
    """The output of operation ``name`` with permuted axes.

    Axis i is axis ``order[i]`` of the operation's output.

    ``shape`` is larger than the shape of the operation's output if an axis of size 1 was broadcast.
    """

    name: str
    order: tuple[int, ...]
    shape: tuple[int, ...]

    def turned(self, turn: Iterable[int]) -> Ref:
        """Permute the axes: axis i of the result is axis ``turn[i]`` of this array."""
        axes = tuple(turn)
        order, shape = (tuple(v[a] for a in axes) for v in (self.order, self.shape))
        return Ref(self.name, order, shape)

    def without(self, axes: Iterable[int], name: str) -> Ref:
        """Drop some axes; ``name`` is an operation whose output lacks them."""
        gone = set(axes)
        bases = {self.order[a] for a in gone}
        kept = self.turned(a for a in range(len(self.shape)) if a not in gone)
        return Ref(name, tuple(b - sum(g < b for g in bases) for b in kept.order), kept.shape)


def made_shape(eqn: Any) -> tuple[int, ...]:
    """Return the shape of the first output of an equation."""
    return tuple(map(int, eqn.outvars[0].aval.shape))


Value = KnownArray | Ref


class Padded(Op):
    """Padding with a constant ``value``, or as in the ``mode`` of a Linear.

    The padding is (low, high) for every axis.

    The padding becomes part of the window operation that follows. Without such an operation, the
    padding is not read.
    """

    pads: tuple[tuple[int, int], ...]
    value: float
    mode: str = "zeros"


PADDINGS = {"circular": "wrap", "reflect": "reflect", "replicate": "edge"}  # as in jnp.pad


class WindowSum(Op):
    """Sums over padded windows.

    If they are divided by the number of entries, they are read as means. Otherwise, they are not
    read.
    """

    pooling: Pooling


class DroppedOut(Op):
    """An array with random entries set to 0; read as dropout if the other entries are rescaled.

    ``kept``: the fraction of the ``count`` entries that this draw keeps.
    """

    kept: float
    count: int


@dataclass(frozen=True, eq=False)
class Recipe:
    """The views of parameters from which a Linear gets its weight and bias.

    See :class:`kcalc.interchange.trace.Linear`.
    """

    op: Linear
    weight: View | None
    bias: View | None = None
    origins: frozenset[str] = frozenset()
