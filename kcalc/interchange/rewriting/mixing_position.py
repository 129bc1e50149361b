"""Find where an operation that mixes tokens belongs among a model's operations.

The mixing is moved out of the reshapes that split the channels into heads. The result is compared
with the model on random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..layout import channel_axes, reshaped_axis
from ..trace import Entry, Held, Linear, Mixed, Op, Pass, Reshape, Trace, Transpose
from .biases import join_biases
from .editing import TraceEditor
from .numbers import DoubleEvaluation

MOVES = (Reshape, Transpose, Pass)


class MixingPlacement(TraceEditor):
    """Inserts Mixed operations where the channels are not split into heads."""

    def __init__(self, trace: Trace) -> None:
        super().__init__({op.name: op for op in trace.ops}, trace.outputs)
        join_biases(self)
        trace = replace(trace, ops=tuple(self.ordered().values()))
        self.ops = {op.name: op for op in trace.ops}
        self.trace, self.wishes = trace, dict[str, str]()
        self.axes, self.examples = channel_axes(trace), example_axes(self.ops)
        self.facts = DoubleEvaluation(self.ops, {}, lambda _: None)

    def _placed(self, core: Mixed) -> bool:
        """Insert a Mixed where the channels are not split; return False if this is impossible."""
        channels = self.axes.get(core.reads[0])
        self.ops[core.name] = core
        if (
            self.examples[core.reads[0]] == 0
            and channels is not None
            and channels != core.axis
            and core.axis != 0
        ):
            return True
        for first, layer in self._upward(core.reads[0]):
            for last, second in self._downward(core.name):
                made = self._equal(core, first, layer, last, second)
                if made is not None:
                    self._installed(core, made, last)
                    return True
        return False

    def _upward(self, name: str) -> Iterator[tuple[str, Linear | None]]:
        """Yield (array, layer or None) for the arrays from which the values can be computed.

        The values of attention are obtained from the array by applying the layer, if any, and
        rearranging entries.
        """
        layer: Linear | None = None
        while True:
            if self.examples[name] == 0 and (layer is not None or self.axes.get(name) is not None):
                yield name, layer
            op = self.ops[name]
            if isinstance(op, Linear) and layer is None and not op.kernel:
                layer = op
            elif not isinstance(op, MOVES):
                return
            name = op.reads[0]

    def _downward(self, name: str) -> Iterator[tuple[str, Linear | None]]:
        """Yield (array, layer or None) for the arrays that can be computed from the mixed values.

        The array is obtained from the values by rearranging entries and applying the layer, if any.
        """
        layer: Linear | None = None
        readers = self.readers()
        while True:
            yield name, layer
            if len(readers[name]) != 1 or not readers[name][0]:
                return
            name = readers[name][0]
            op = self.ops[name]
            if isinstance(op, Linear) and layer is None and not op.kernel:
                layer = op
            elif not isinstance(op, MOVES):
                return

    def _equal(
        self, core: Mixed, first: str, layer: Linear | None, last: str, second: Linear | None
    ) -> list[Op] | None:
        """Return operations that compute ``last`` from ``first`` without rearranging entries.

        Returns None if no such operations reproduce the original results on random numbers.
        """
        rank, size = len(self.ops[first].shape), core.matrix.shape[1]
        channels = rank - 1 if layer is not None or second is not None else self.axes[first]
        for axis in (
            a for a in range(1, rank) if a != channels and self.ops[first].shape[a] == size
        ):
            made = self._chain(core, first, layer, second, axis)
            wide = all(
                op.weight.shape[1] == self.width(made, op.reads[0])
                for op in made
                if isinstance(op, Linear)
            )
            if made[-1].shape != self.ops[last].shape or not wide:
                continue
            random = np.random.default_rng(0)

            def leaf(op: Op, random: np.random.Generator = random) -> np.ndarray:
                return random.standard_normal(op.shape)

            given = {first: random.standard_normal(self.ops[first].shape)}
            expected = DoubleEvaluation(self.ops, given, leaf)(last)
            found = DoubleEvaluation({**self.ops, **{op.name: op for op in made}}, given, leaf)(
                made[-1].name
            )
            if (
                expected is not None
                and found is not None
                and np.allclose(expected, found, rtol=1e-9, atol=1e-9)
            ):
                return made
        return None

    def width(self, made: list[Op], name: str) -> int:
        """Return the size of the last axis of an operation, which may be in ``made``."""
        return next((op for op in made if op.name == name), self.ops.get(name, made[0])).shape[-1]

    def _chain(
        self, core: Mixed, first: str, layer: Linear | None, second: Linear | None, axis: int
    ) -> list[Op]:
        made: list[Op] = []
        shape = self.ops[first].shape
        last = len(shape) - 1

        def linear(op: Linear, read: str) -> Linear:
            wide = (*shape[:-1], op.weight.shape[0])
            return replace(
                op, name=self._named(op.name), shape=wide, reads=(read,), axis=last, out_axis=last
            )

        if layer is not None:
            made.append(linear(layer, first))
            shape = made[-1].shape
        mixed_shape = tuple(len(core.matrix) if i == axis else n for i, n in enumerate(shape))
        made.append(
            replace(
                core,
                name=self._named(core.name),
                shape=mixed_shape,
                reads=(made[-1].name if made else first,),
                axis=axis,
            )
        )
        shape = mixed_shape
        if second is not None:
            made.append(linear(second, made[-1].name))
        return made

    def _named(self, wish: str) -> str:
        wish = self.wishes.get(wish, wish)
        name = self.names(wish)
        self.wishes[name] = wish
        return name

    def _installed(self, core: Mixed, made: list[Op], last: str) -> None:
        """Replace the old operations with new ones, but keep the names that others read."""
        old = self.ops[last]
        for op in made:
            self.add(op, core)
        self.ops[last] = old.become(Pass, reads=(made[-1].name,))
        self._renamed([(op.name, self.wishes[op.name]) for op in made])
        self.facts.ops = self.ops
        current = replace(self.trace, ops=tuple(self.ordered().values()))
        self.axes, self.examples = channel_axes(current), example_axes(self.ordered())

    def _renamed(self, pairs: list[tuple[str, str]]) -> None:
        """Give new operations the names of operations that are no longer needed."""
        live = self.reached()
        self.ops = {
            name: op for name, op in self.ops.items() if name in live or isinstance(op, Entry)
        }
        names = {new: wish for new, wish in pairs if wish not in self.ops and new in self.ops}
        self.ops = {
            names.get(name, name): replace(
                op, name=names.get(name, name), reads=tuple(names.get(r, r) for r in op.reads)
            )
            for name, op in self.ops.items()
        }
        self.born = {names.get(new, new): old for new, old in self.born.items()}


def example_axes(ops: dict[str, Op]) -> dict[str, int | None]:
    """Return {operation: batch axis of its output}.

    The axis is None if a reshape may have mixed the examples with other axes.
    """
    out: dict[str, int | None] = {}
    for name, op in ops.items():
        known = [out[read] for read in op.reads if not isinstance(ops[read], Held)]
        axis = 0 if not known else known[0] if len(set(known)) == 1 else None
        if axis is not None and isinstance(op, Transpose):
            axis = op.order.index(axis)
        elif axis and isinstance(op, Reshape):
            there = reshaped_axis(ops[op.reads[0]].shape, op.shape, axis)
            axis = there[1] if there is not None and there[0] == "kept" else None
        out[name] = axis
    return out
