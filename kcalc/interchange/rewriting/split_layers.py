"""Split a layer into separate layers if a model uses its outputs in parts.

The two halves of a random weight matrix, for example, form two independent branches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, permutations
from math import prod

import numpy as np

from ..internal_errors import internal_error
from ..layout import channel_axes, reshaped_axis
from ..trace import (
    Drop,
    Entry,
    Held,
    Join,
    Linear,
    Normalise,
    Op,
    Part,
    Pass,
    Pointwise,
    Pooling,
    Reorder,
    Repeat,
    Reshape,
    Trace,
    Transpose,
)
from .editing import Rows, TraceEditor, span
from .numbers import through

LARGEST = 2**24  # arrays with more entries are not followed
MOVES = (Reshape, Transpose, Pass, Part, Reorder)
PIECES = 32  # maximum number of layers into which a layer is split


class NoPartError(Exception):
    """Raised if a part of an array is not read as a separate layer. The message is the reason."""


def with_parts(trace: Trace) -> TraceEditor:
    """Turn every part of a layer's outputs into a separate layer.

    The parts must share no weights. A part is traced back to its layer through reshapes,
    elementwise functions, dropout and depthwise convolutions. If the parts of a layer overlap, or
    if the whole layer is read too, the layer becomes the concatenation of its smallest parts. A
    part stays unchanged, with a note that states the reason, if it does not come from a layer or if
    it selects locations.
    """
    banned: dict[str, str] = {}
    pieces: dict[str, list[Rows]] = {}
    while True:
        edit = _Parts(trace, banned)
        edit.divide(pieces)
        edit.run()
        blame = edit.blamed()
        if not blame:
            return edit
        for made, (cuts, why) in blame.items():
            name, own = edit.layers.get(made, (made, ()))  # a part may be split again
            layer = edit.given[name]
            assert isinstance(layer, Linear)
            cuts = [tuple(own[row] for row in cut) if own else cut for cut in cuts]
            runs = _runs([*pieces.pop(name, ()), *cuts], len(layer.weight))
            if layer.groups > 1 or len(runs) > PIECES:
                banned[name] = why
            else:
                pieces[name] = runs


class _Parts(TraceEditor):
    def __init__(self, trace: Trace, banned: Mapping[str, str]) -> None:
        super().__init__({op.name: op for op in trace.ops}, trace.outputs)
        self.given = dict(self.ops)
        self.banned, self.axes = banned, channel_axes(trace)
        self.made: dict[tuple[str, Rows], str] = {}
        # {new layer: (layer of the trace that it is a part of, indices of its outputs)}
        self.layers: dict[str, tuple[str, Rows]] = {}

    def run(self) -> None:
        for op in [op for op in self.ops.values() if isinstance(op, Part)]:
            before = dict(self.ops)
            try:
                self._resolve(op)
                continue
            except NoPartError as error:
                reason = str(error)
            except Exception as error:
                reason = internal_error(error, f"the part {op.name!r}")
            self.ops = before
            self.made = {key: name for key, name in self.made.items() if name in self.ops}
            self.ops[op.name] = replace(op, reason=reason) if reason else op

    def divide(self, pieces: Mapping[str, Sequence[Rows]]) -> None:
        """Replace each layer with the concatenation of layers that produce parts of its outputs."""
        for name, parts in pieces.items():
            layer = self.ops[name]
            reads = tuple(self._cut(layer, rows) for rows in parts)
            self.ops[name] = layer.become(Join, reads=reads, axis=self._axis(layer))
        self.made = {}

    def blamed(self) -> dict[str, tuple[list[Rows], str]]:
        """Return {layer whose parts share weights: (the parts, the reason)}."""
        live = self.reached()
        cuts: dict[str, list[Rows]] = {}
        for (name, rows), made in self.made.items():
            if made in live and isinstance(self.ops[name], Linear):
                cuts.setdefault(name, []).append(rows)
        out = {}
        for name, parts in cuts.items():
            if name in live:
                why = f"{name} is also read as a whole, so its parts would share weights"
                out[name] = parts, f"{why} with it"
            elif sum(map(len, parts)) > len(set().union(*parts)):
                why = f"the parts of {name} overlap, so they share weights"
                out[name] = parts, why
        return out

    # -- one part ----------------------------------------------------------------------------------

    def _resolve(self, part: Part) -> None:
        chain: list[Op] = [part]
        while isinstance(origin := self.ops[chain[-1].reads[0]], MOVES):
            chain.append(origin)
        axis = self._axis(origin)
        places = np.arange(self._countable(origin), dtype=np.int64).reshape(origin.shape)
        there = through(places, chain)
        width = origin.shape[axis]
        rows = np.unique(there // prod(origin.shape[axis + 1 :]) % width)
        if len(rows) == width:
            examples = len(np.unique(there // prod(origin.shape[1:]))) < origin.shape[0]
            whole = (
                "examples, so examples would act on each other"
                if examples
                else "locations, each of which has a different kernel"
            )
            raise NoPartError(f"it is a part of the {whole}")
        taken = places.take(rows, axis=axis)
        made = self._cut(origin, tuple(rows.tolist()))
        shape = list(origin.shape)
        shape[axis] = len(rows)
        if taken.shape == there.shape and (sorted_as := _channel_order(taken, there, axis)):
            self.ops[part.name] = part.become(Reorder, reads=(made,), axis=axis, order=sorted_as)
            return
        order = _order(taken, there)
        if order != tuple(range(len(order))):
            turned = [shape[i] for i in order]
            told = {"name": self.names(f"{part.name}.turned"), "shape": tuple(turned)}
            made = self.add(part.become(Transpose, **told, reads=(made,), order=order), part)
            shape = turned
        self.ops[part.name] = part.moved(tuple(shape), made)

    def _countable(self, op: Op) -> int:
        if prod(op.shape) > LARGEST:
            raise NoPartError(
                "the array is too large for its entries to be tracked individually; pass "
                "smaller example inputs"
            )
        return prod(op.shape)

    def _axis(self, op: Op) -> int:
        if isinstance(op, Linear):
            return op.out_axis
        if isinstance(op, Entry):
            raise NoPartError("")
        axis = self.axes.get(op.name)
        if axis is None:
            raise NoPartError("")
        return axis

    def _cut(self, op: Op, rows: Rows) -> str:
        """Return the name of an operation that computes some channels of ``op``."""
        key = (op.name, rows)
        if key not in self.made:
            self.made[key] = made = self._made(op, rows)
            self.axes.setdefault(made, self._axis(op))
        return self.made[key]

    def _made(self, op: Op, rows: Rows) -> str:
        axis = self._axis(op)
        if op.name in self.banned:
            raise NoPartError(self.banned[op.name])
        shape = tuple(len(rows) if i == axis else n for i, n in enumerate(op.shape))
        name = self.names(f"{op.name}[{span(rows)}]")
        if isinstance(op, Linear):
            return self.add(self._layer(op, rows, shape, name), op)
        part = partial(replace, op, name=name, shape=shape, whole=op.whole or op.name)
        if isinstance(op, Pass | Drop | Repeat) or (
            isinstance(op, Pooling) and axis not in op.axes and len(op.shape) == self._rank(op)
        ):
            return self.add(part(reads=(self._cut(self.ops[op.reads[0]], rows),)), op)
        if isinstance(op, Pointwise):
            return self.add(
                part(reads=tuple(self._operand(n, op, axis, rows) for n in op.reads)), op
            )
        if isinstance(op, Normalise) and op.kind == "batch":
            gain, bias, *running = (
                None if array is None else array[list(rows)]
                for array in (op.gain, op.bias, *(op.running or ()))
            )
            read = self._cut(self.ops[op.reads[0]], rows)
            known = tuple(running) or None
            return self.add(part(reads=(read,), running=known, gain=gain, bias=bias), op)
        if isinstance(op, Join) and op.axis == axis:
            return self._joined(op, rows, shape, name)
        if isinstance(op, Reorder) and op.axis == axis:
            wanted = [op.order[row] for row in rows]
            read = self._cut(self.ops[op.reads[0]], tuple(sorted(wanted)))
            order = tuple(sorted(wanted).index(row) for row in wanted)
            made = part(reads=(read,), order=order)
            return read if order == tuple(range(len(order))) else self.add(made, op)
        if isinstance(op, Reshape | Transpose):
            return self._carried(op, rows, shape, name)
        raise NoPartError(
            "each of its parts is computed from several parts of an array, so they are not "
            "independent"
        )

    def _rank(self, op: Op) -> int:
        return len(self.ops[op.reads[0]].shape)

    def _layer(self, op: Linear, rows: Rows, shape: tuple[int, ...], name: str) -> Linear:
        chosen = list(rows)
        own = chosen if op.rows is None else [op.rows[i] for i in chosen]
        first, before = self.layers.get(op.name, (op.name, range(len(op.weight))))
        self.layers[name] = first, tuple(before[i] for i in chosen)
        part = replace(
            op,
            name=name,
            shape=shape,
            whole=op.whole or op.name,
            weight=np.asarray(op.weight)[chosen],
            bias=None if op.bias is None else np.asarray(op.bias)[chosen],
            rows=tuple(own),
        )
        if op.groups == 1:
            return part
        if op.groups == op.weight.shape[0] and op.weight.shape[1] == 1:
            return replace(part, groups=len(rows), reads=(self._cut(self.ops[op.reads[0]], rows),))
        raise NoPartError("it is a part of the output of a grouped convolution")

    def _operand(self, name: str, op: Op, axis: int, rows: Rows) -> str:
        read = self.ops[name]
        place = axis - (len(op.shape) - len(read.shape))
        if place < 0 or read.shape[place] == 1:
            return name
        if not isinstance(read, Held):
            if self._axis(read) != place:
                raise NoPartError("it combines channels of one array with locations of another")
            return self._cut(read, rows)
        value = np.asarray(read.value).take(list(rows), axis=place)
        return self.add(
            replace(read, name=self.names(f"{name}[{span(rows)}]"), shape=value.shape, value=value),
            read,
        )

    def _joined(self, op: Join, rows: Rows, shape: tuple[int, ...], name: str) -> str:
        start, reads = 0, []
        for read in op.reads:
            size = self.ops[read].shape[op.axis]
            mine = tuple(i - start for i in rows if start <= i < start + size)
            if mine:
                reads.append(read if len(mine) == size else self._cut(self.ops[read], mine))
            start += size
        return (
            reads[0]
            if len(reads) == 1
            else self.add(replace(op, name=name, shape=shape, reads=tuple(reads)), op)
        )

    def _carried(
        self, op: Reshape | Transpose, rows: Rows, shape: tuple[int, ...], name: str
    ) -> str:
        before, axis = self.ops[op.reads[0]], self._axis(self.ops[op.reads[0]])
        if isinstance(op, Reshape):
            there = reshaped_axis(before.shape, op.shape, axis)
            if there is None or there[0] != "kept":
                raise NoPartError(
                    "it is a part of an axis in which a reshape merged channels and locations"
                )
        read = self._cut(before, rows)
        whole = op.whole or op.name
        return self.add(replace(op, name=name, shape=shape, whole=whole, reads=(read,)), op)


def _channel_order(taken: np.ndarray, wanted: np.ndarray, axis: int) -> tuple[int, ...]:
    """Return the permutation along an axis that turns ``taken`` into ``wanted``.

    Returns () if they are equal, or differ in another way.
    """
    first, other = (
        np.moveaxis(a, axis, 0).reshape(a.shape[axis], -1)[:, 0] for a in (taken, wanted)
    )
    order = np.searchsorted(first, other).clip(max=len(first) - 1)
    alike = (taken.take(order, axis) == wanted).all()
    plain = (order == np.arange(len(order))).all()
    return tuple(order.tolist()) if alike and not plain else ()


def _order(taken: np.ndarray, wanted: np.ndarray) -> tuple[int, ...]:
    """Return the order of axes that turns ``taken`` into ``wanted``."""
    if taken.size == wanted.size and taken.ndim <= 6:
        for order in permutations(range(taken.ndim)):
            if (taken.transpose(order).ravel() == wanted.ravel()).all():
                return order
    raise NoPartError("it selects from both channels and locations, or it permutes the channels")


def _runs(parts: Sequence[Rows], count: int) -> list[Rows]:
    """Split ``count`` outputs into the longest runs that belong to the same parts."""
    inside = [set(part) for part in parts]
    groups = groupby(range(count), lambda row: [row in part for part in inside])
    return [tuple(run) for _, run in groups]
