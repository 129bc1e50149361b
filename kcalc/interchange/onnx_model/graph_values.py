"""Values and nodes of an ONNX graph in the form that rules use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ..trace import NotRead, Op
from .reasons import reason_for

Array = np.ndarray
FLOAT, INT, BOOL = "float", "int", "bool"


@dataclass(frozen=True, eq=False)
class Value:
    """An array of the graph: a constant, or the output of an operation.

    ``array``: the constant; ``op``: the name of the operation in the trace.

    ``parameter``: the name of the model parameter that a constant equals (the first name if there
    are several). ``maker``: the node that computed the value, with its input values.
    """

    shape: tuple[int, ...]
    kind: str = FLOAT
    op: str | None = None
    array: Array | None = None
    parameter: str | None = None
    maker: Node | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numbers(self) -> Array:
        """Return the array of a value that is a constant."""
        assert self.array is not None
        return self.array

    @property
    def number(self) -> int | float | None:
        """Return the number in a constant of size 1 (integers as int), else None."""
        if self.array is None or self.array.size != 1:
            return None
        found = self.array.reshape(-1)[0].item()
        if isinstance(found, float) and found.is_integer() and abs(found) < 2**53:
            return int(found)
        return found if isinstance(found, int | float) else None


def kind_of(array: Array) -> str:
    """Return the kind of an array: FLOAT, INT or BOOL."""
    return BOOL if array.dtype == bool else INT if np.issubdtype(array.dtype, np.integer) else FLOAT


def constant(array: Array, parameter: str | None = None) -> Value:
    """Return a constant as a value."""
    return Value(tuple(array.shape), kind_of(array), array=array, parameter=parameter)


@dataclass(frozen=True, eq=False)
class Node:
    """A node with its input values.

    ``inputs`` contains None for missing optional inputs. ``label``: the preferred name of its
    operation; ``reader``: the :class:`Context` that collects the operations.
    """

    op: str
    domain: str
    name: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    proto: Any = None
    label: str = ""
    reader: Any = None

    @property
    def what(self) -> str:
        """Return a description of the node for messages."""
        return (
            f"{self.op} node {self.name[:80]!r}"
            if self.name
            else f"{self.op} node that makes {str(self.outputs[:1])[2:-3][:80]!r}"
        )

    def fail(self, text: str) -> KcalcError:
        """Return an error whose message names the node."""
        return KcalcError(f"onnx: {self.what}: {text}")

    def value(self, index: int) -> Value:
        """Return a required input."""
        found = self.optional(index)
        if found is None:
            raise self.fail(f"input {index} is missing")
        return found

    def optional(self, index: int) -> Value | None:
        """Return an input, or None if it is missing."""
        return self.inputs[index] if index < len(self.inputs) else None

    def given(self) -> tuple[Value, ...]:
        """Return all inputs, none of which may be missing."""
        return tuple(self.value(i) for i in range(len(self.inputs)))

    def _attribute(self, name: str, kind: int) -> Any:
        found = self.attributes.get(name)
        if found is not None and found.type != kind:
            raise self.fail(f"its attribute {name} is of the wrong type")
        return found

    def whole(self, name: str, default: int = 0) -> int:
        """Return an integer attribute."""
        found = self._attribute(name, 2)
        return default if found is None else int(found.i)

    def real(self, name: str, default: float) -> float:
        """Return a float attribute, in single precision as in the file."""
        found = self._attribute(name, 1)
        return default if found is None else float(found.f)

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        found = self._attribute(name, 3)
        return default if found is None else found.s.decode("utf-8", "replace")

    def wholes(self, name: str) -> tuple[int, ...] | None:
        """Return an attribute that is a list of integers, or None if it is missing."""
        found = self._attribute(name, 7)
        return None if found is None else tuple(found.ints)

    def tensor(self, name: str) -> Any:
        """Return a tensor attribute, or None if it is missing."""
        found = self._attribute(name, 4)
        return None if found is None else found.t

    def graph(self, name: str) -> Any:
        """Return an attribute that is a subgraph."""
        found = self._attribute(name, 5)
        if found is None:
            raise self.fail(f"it has no subgraph {name}")
        return found.g

    def constants(self, index: int, name: str) -> tuple[int, ...] | None:
        """Return integers given as the attribute ``name`` or as input ``index``.

        Returns None if they are missing or depend on the input.
        """
        if name in self.attributes:
            return self.wholes(name)
        found = self.optional(index)
        if found is None or found.array is None:
            return None
        if found.array.size > 1024 or kind_of(found.array) == FLOAT:
            raise self.fail(f"its {name} must be a short list of integers")
        return tuple(int(v) for v in found.array.reshape(-1))

    # -- operations --------------------------------------------------------------------------------

    def at(self, part: str) -> Node:
        """Return a copy of the node with a label for one of its several operations."""
        return replace(self, label=f"{self.label}.{part}")

    def emit(
        self,
        form: type[Op],
        shape: Sequence[int],
        reads: Sequence[Value],
        kind: str = FLOAT,
        /,
        **fields: Any,
    ) -> Value:
        """Add an operation, and return the value that it outputs."""
        to, shape = self.reader, tuple(int(k) for k in shape)
        if len(shape) > to.limits.rank or any(not 1 <= k <= to.limits.extent for k in shape):
            raise self.fail(f"its output would have the shape {str(shape)[:80]}")
        names = tuple(to.name_of(value) for value in reads)
        name = to.names(self.label)
        to.wishes[name] = self.label
        to.ops[name] = form(name=name, shape=shape, reads=names, source=self.what, **fields)
        return Value(shape, kind, op=name, maker=self)

    def unread(self, what: str = "", reason: str = "") -> Sequence[Value]:
        """Add unread operations, and return them as the outputs of this node."""
        told = reason_for(self)
        fields = {"what": what or told[0], "reason": reason or told[1]}
        reads = [value for value in self.inputs if value is not None]
        shapes = zip(self.reader.shapes_of(self), self.outputs, strict=False)
        return [
            self.emit(NotRead, shape, reads, kind, **fields) if name else constant(np.zeros(0))
            for (shape, kind), name in shapes
        ]

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Return sorted nonnegative axes.

        Raises: KcalcError if an axis does not exist or occurs twice.
        """
        found = tuple(sorted(a + rank if a < 0 else a for a in axes))
        if any(not 0 <= a < rank for a in found) or len(set(found)) != len(found):
            raise self.fail(f"the axes {tuple(axes)[:8]} do not fit an array of {rank} axes")
        return found

    def axis(self, axis: int, rank: int) -> int:
        """Return a nonnegative axis."""
        return self.axes((axis,), rank)[0]


Made = Value | Sequence[Value] | None  # the outputs; None if the node is not read
Rule = Callable[[Node], Made]
RULES: dict[tuple[str, str], Rule] = {}  # {(domain, operator): rule}


def rule(*names: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Register a function that reads the named operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(((domain, name) for name in names), function))
        return function

    return register
