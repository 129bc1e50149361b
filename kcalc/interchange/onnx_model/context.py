"""The state that the rules for ONNX operators share.

The state contains the operations made so far and the remaining limits. It also turns constants
into operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...foundation.errors import KcalcError
from ..trace import Array, Held, Names, NotRead, Op
from ..weight_statistics import NamesOfArrays
from .graph_values import Node, Value, constant
from .limits import Limits, RemainingLimits
from .model_file import count_nodes, opset_of
from .naming import clean
from .tensors import tensor_bytes
from .unsupported_shapes import Found, shapes_of


class Context:
    """The state while a model is read; ``ops`` grows with every node."""

    def __init__(self, model: Any, folder: Path | None, limits: Limits) -> None:
        self.model, self.folder, self.limits = model, folder, limits
        self.opset = opset_of(model.opset_import)
        count = count_nodes(model, limits)
        if sum(map(tensor_bytes, model.graph.initializer)) > limits.file_bytes:
            raise KcalcError(
                f"onnx: the tensors of the model take more than {limits.file_bytes} bytes"
            )
        self.budget = RemainingLimits(
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

    def name_of(self, value: Value) -> str:
        """Return the name of a value's operation. For a constant, make the operation first."""
        if value.op is not None:
            return value.op
        if id(value) not in self._held:
            name = self.names(clean(value.parameter or "") or "constant")
            self.ops[name] = Held(
                name=name,
                shape=value.shape,
                value=value.numbers,
                parameter=value.parameter,
                source=name,
            )
            self._held[id(value)] = (value, name)
        return self._held[id(value)][1]

    def owner(self, value: Value) -> str:
        """Return a key that is the same for all constants that are the same weights.

        Constants are the same weights if their bytes are equal, or if they are the same parameter
        under two names.
        """
        array = value.numbers
        self._asked += 1
        name = value.parameter or f"computed {self._asked}"
        if array.size < 16 or (array == array.flat[0]).all():
            return name
        return self._owners.first(array, name)

    def computed(self, node: Node, arrays: Sequence[Array], kept: bool = False) -> Sequence[Value]:
        """Wrap arrays that were computed from constants as values.

        ``kept``: whether the arrays contain the values of the first input in a different shape or
        order, and are therefore still the same parameter.
        """
        parameter = node.value(0).parameter if kept and node.inputs else None
        return [replace(constant(array, parameter), maker=node) for array in arrays]

    def shapes_of(self, node: Node) -> list[Found]:
        """Return (shape, kind) for every output of a node whose operator has no rule."""
        return shapes_of(node)

    def further_output(self, node: Node, first: Value, index: int) -> Value:
        """Return an output that no rule computes, such as a mask, indices or statistics.

        The output matters only if another node reads it.
        """
        reads = [value for value in node.inputs[:1] if value is not None]
        reason = f"only the first output of {node.op[:60]} is read"
        further = replace(node, label=f"{node.op.lower()}.{index}"[:80])
        return further.emit(
            NotRead,
            first.shape,
            reads,
            what=f"output {index} of {node.op[:60]}",
            reason=reason,
        )


def _declared(graph: Any) -> dict[str, Any]:
    """Return {name: declared type} of the arrays in the main graph."""
    return {item.name: item.type for item in (*graph.output, *graph.value_info)}
