"""Traces written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import sympy as sp

import kcalc as kc
from kcalc.interchange.recognise import recognise
from kcalc.interchange.trace import Entry, Held, Linear, Names, Op, Pointwise, Trace  # fmt: skip

RNG = np.random.default_rng(0)


class Tape:
    """Writes a trace: every call adds an operation and returns its name."""

    def __init__(self, *shape: int, axis: int = 1) -> None:
        self.names, self.shapes, self.axis = Names(), {"x": shape}, axis
        self.ops: list[Op] = [Entry(name=self.names("x"), shape=shape)]

    def add(
        self,
        op: type[Op],
        wish: str,
        shape: tuple[int, ...],
        reads: tuple[str, ...],
        /,
        **more: Any,
    ) -> str:
        name = self.names(wish)
        self.ops.append(op(name=name, shape=shape, reads=reads, **more))
        self.shapes[name] = shape
        return name

    def dense(
        self, read: str, out: int, wish: str = "fc", parameter: str | None = None, **more: Any
    ) -> str:
        *shape, width = self.shapes[read]
        weight = RNG.standard_normal((out, width)) / math.sqrt(width)
        name = parameter or f"{wish}{len(self.ops)}"
        given = {"weight": weight, "parameter": name, "axis": len(shape), "out_axis": len(shape)}
        return self.add(Linear, wish, (*shape, out), (read,), **given, **more)

    def conv(self, read: str, out: int) -> str:
        """3 x 3, padded to the size of what it reads."""
        n, c, *size = self.shapes[read]
        weight = RNG.standard_normal((out, c, 3, 3))
        places = {"stride": (1, 1), "padding": ((1, 1),) * 2, "dilation": (1, 1)}
        given = {"weight": weight, "parameter": f"conv{len(self.ops)}", "axis": 1, "out_axis": 1}
        return self.add(Linear, "conv", (n, out, *size), (read,), **given, **places)

    def apply(self, function: Callable[..., Any], *reads: str, label: str = "f") -> str:
        shapes = np.broadcast_shapes(*(self.shapes[r] for r in reads))
        return self.add(Pointwise, label, shapes, reads, function=function, label=label)

    def held(self, value: Any, parameter: str | None = None) -> str:
        array = np.asarray(value, dtype=float)
        return self.add(Held, "held", array.shape, (), value=array, parameter=parameter)

    def read(self, *ends: str, sigmas: bool = False) -> kc.Reading:
        return recognise(Trace("test", tuple(self.ops), ends, channel_axis=self.axis), sigmas)


def relu(x: Any) -> Any:
    return sp.Max(x, 0)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + sp.exp(-x))


def layers_of(reading: kc.Reading) -> list[Any]:
    return [layer for _, layer, _ in reading.network.steps()]
