"""The state that the rules for ONNX operators work on.

The operations made so far, budgets, constants that become operations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ..trace import Array, Held, Names, NotRead, Op
from ..weight_statistics import NamesOfArrays
from .graph_values import FLOAT, Node, Value, constant
from .limits import Budget, Limits
from .model_file import count_nodes, opset_of
from .naming import clean
from .reasons import reason_for
from .tensors import tensor_bytes


class Context(ABC):
    """The state of one reading: ``ops`` fill as nodes are read."""

    def __init__(self, model: Any, folder: Path | None, limits: Limits) -> None:
        self.model, self.folder, self.limits = model, folder, limits
        self.opset = opset_of(model.opset_import)
        count = count_nodes(model, limits)
        if sum(map(tensor_bytes, model.graph.initializer)) > limits.file_bytes:
            raise KcalcError(
                f"onnx: the tensors of the model take more than {limits.file_bytes} bytes"
            )
        self.budget = Budget(
            limits, count, sum(len(t.raw_data) or tensor_bytes(t) for t in model.graph.initializer)
        )
        self.functions = {(f.domain, f.name): f for f in model.functions}
        self.names = Names()
        self.ops: dict[str, Op] = {}
        self.wishes: dict[str, str] = {}
        self.remarks: list[str] = []
        self.declared = _declared(model.graph)
        self._held: dict[int, tuple[Value, str]] = {}
        self._owners = NamesOfArrays()
        self._asked = 0

    def emit(
        self,
        form: type[Op],
        node: Node,
        label: str,
        shape: Sequence[int],
        reads: Sequence[Value],
        dtype: str = FLOAT,
        /,
        **fields: Any,
    ) -> Value:
        """A new operation and the value it makes."""
        shape = tuple(int(k) for k in shape)
        if len(shape) > self.limits.rank or any(not 1 <= k <= self.limits.extent for k in shape):
            raise node.fail(f"its output would have the shape {str(shape)[:80]}")
        names = tuple(self.name_of(value) for value in reads)
        name = self.names(label)
        self.wishes[name] = label
        self.ops[name] = form(name=name, shape=shape, reads=names, source=node.what, **fields)
        return Value(shape, dtype, op=name, maker=node)

    def name_of(self, value: Value) -> str:
        """The operation that makes a value; a constant becomes one here."""
        if value.op is not None:
            return value.op
        if id(value) not in self._held:
            name = self.names(clean(value.parameter or "") or "constant")
            self.ops[name] = Held(
                name=name,
                shape=value.shape,
                value=self.array(value),
                parameter=value.parameter,
                source=name,
            )
            self._held[id(value)] = (value, name)
        return self._held[id(value)][1]

    def array(self, value: Value) -> Array:
        """The array of a constant."""
        assert value.array is not None
        return value.array

    def owner(self, value: Value) -> str:
        """A key, equal for layers that share weights.

        Equal bytes, or a parameter under another name.
        """
        array = self.array(value)
        self._asked += 1
        name = value.parameter or f"computed {self._asked}"
        if array.size < 16 or (array == array.flat[0]).all():
            return name
        return self._owners.first(array, name)

    def computed(self, node: Node, arrays: Sequence[Array], kept: bool = False) -> Sequence[Value]:
        """Constants made of constants.

        ``kept``: the same numbers in another shape or order, so the same parameter.
        """
        parameter = node.value(0).parameter if kept and node.inputs else None
        return [replace(constant(array, parameter), maker=node) for array in arrays]

    def unread(self, node: Node, label: str, what: str = "", reason: str = "") -> Sequence[Value]:
        """Outputs of a node that no rule reads."""
        told = reason_for(node)
        what, reason = what or told[0], reason or told[1]
        reads = [value for value in node.inputs if value is not None]
        found = []
        for (shape, kind), name in zip(self.shapes_of(node), node.outputs, strict=False):
            found.append(
                self.emit(NotRead, node, label, shape, reads, kind, what=what, reason=reason)
                if name
                else constant(np.zeros(0))
            )
        return found

    def further_output(self, node: Node, first: Value, index: int) -> Value:
        """An output that no rule makes: masks, indices, statistics.

        It matters only where something reads it.
        """
        reads = [value for value in node.inputs[:1] if value is not None]
        reason = f"only the first output of {node.op[:60]} is read"
        return self.emit(
            NotRead,
            node,
            f"{node.op.lower()}.{index}"[:80],
            first.shape,
            reads,
            what=f"output {index} of {node.op[:60]}",
            reason=reason,
        )

    @abstractmethod
    def shapes_of(self, node: Node) -> list[tuple[tuple[int, ...], str]]:
        """Shapes and kinds of the outputs of a node without a rule."""


def _declared(graph: Any) -> dict[str, Any]:
    """The declared types of the arrays of the main graph."""
    return {item.name: item.type for item in (*graph.output, *graph.value_info)}
