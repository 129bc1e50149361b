"""Read an ONNX graph node by node; fold constants and turn other nodes into operations."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...foundation.errors import KcalcError
from ..batches import of_batches
from ..internal_errors import internal_error
from ..rewriting.norms import Norms
from ..trace import Entry, Names, Op, Trace, needed
from . import attention, linear, normal, pools  # noqa: F401  # register rules
from .context import Context
from .entries import entry_shapes
from .folding import fold
from .graph_values import FLOAT, INT, RULES, Node, Value, constant
from .limits import Limits
from .model_file import STANDARD, asks_for_sizes, load, opset_of
from .naming import Labels, clean
from .tensors import to_array
from .unsupported_shapes import inferred_types

MISFITS = (
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    ArithmeticError,
    AttributeError,
    MemoryError,
)
STEP = re.compile(r"\.(add|sub|mul|div|reshape)$")  # the last operator of a module
Known = dict[str, Value]
Shape = Sequence[int]


def trace_onnx(
    model: str | os.PathLike[str] | Any,
    examples: Sequence[Any] = (),
    shapes: Mapping[str, Shape] | Shape | None = None,
    limits: Limits | None = None,
) -> Trace:
    """Return an ONNX model as a trace.

    ``model``: the path of an .onnx file, or an ``onnx.ModelProto``. ``examples``: one array or
    shape for every input, needed only if the model leaves sizes other than the batch size open.
    ``shapes``: alternatively, {input name: shape}, or one shape if there is one input. ``limits``:
    limits on the cost of reading. Nothing in the file is executed, and external data is read only
    from the folder of the file.

    Raises: KcalcError if the onnx package is missing; if the file is not a model, too large or
    truncated; if the opset is unknown or below 9; and for open sizes, unsorted graphs and duplicate
    names.
    """
    limits = limits or Limits()
    proto, folder = load(model, limits)
    if not proto.graph.node and not proto.graph.input:
        raise KcalcError("onnx: the model is empty, or the file is not an ONNX model")
    try:
        entries = entry_shapes(proto.graph, examples, shapes, limits)
        size = next(iter(entries.values()))[0]

        def traced(count: int) -> Trace:
            batched = [name for name, shape in entries.items() if shape[0] == size]
            several = {name: (count, *entries[name][1:]) for name in batched}
            return OnnxReader(proto, folder, limits).trace({**entries, **several})

        return of_batches(size, traced, lambda _: not asks_for_sizes(proto))
    except KcalcError:
        raise
    except MISFITS as error:  # protobuf returns names that are not UTF-8 as bytes
        raise KcalcError(
            "onnx: the file is malformed, because its names or parts are inconsistent "
            f"({type(error).__name__})"
        ) from None


class Scope:
    """The names that are defined in a graph and in the graphs around it."""

    def __init__(self, outer: Scope | None = None) -> None:
        self.outer = outer
        self.known: Known = {}
        self.tensors: dict[str, Any] = {}
        self.omitted: set[str] = set()  # inputs of a function that its caller leaves out

    def omits(self, name: str) -> bool:
        """Whether a name is an input of a function that its caller leaves out."""
        holds = name in self.known or name in self.tensors
        outer = self.outer is not None and not holds and self.outer.omits(name)
        return name in self.omitted or outer

    def set(self, name: str, value: Value) -> None:
        """Define a name.

        Raises: KcalcError if the name is already in use.
        """
        if name in self.known or name in self.tensors:
            raise KcalcError(f"onnx: the name {name[:80]!r} is used for two arrays")
        self.known[name] = value

    def holder(self, name: str) -> Scope | None:
        """Return the innermost scope that defines a name, or None."""
        scope: Scope | None = self
        while scope is not None and name not in scope.known and name not in scope.tensors:
            scope = scope.outer
        return scope


class OnnxReader(Context):
    """Reads one model."""

    def trace(self, entries: Mapping[str, tuple[int, ...]]) -> Trace:
        """Return the trace of the whole model."""
        scope = Scope()
        graph = self.model.graph
        integers = {
            i.name
            for i in graph.input
            if i.type.tensor_type.elem_type in (2, 3, 4, 5, 6, 7, 12, 13)
        }
        for name, shape in entries.items():
            label = self.names(clean(name) or "input")
            self.ops[label] = Entry(name=label, shape=shape, source=f"input {name[:80]!r}")
            scope.set(name, Value(shape, INT if name in integers else FLOAT, op=label))
        ends = self.run_graph(graph, scope, 0)
        outputs = dict.fromkeys(value.op for value in ends if value.op is not None)
        if any(value.op is None for value in ends):
            self.remarks.append("outputs that do not depend on an input are left out")
        made = self._with_norms(outputs)
        found = needed(made, outputs)
        ops = tuple(op for op in made.values() if op.name in found)
        unused = [op.name for op in self.ops.values() if isinstance(op, Entry) and op not in ops]
        if unused:
            self.remarks.append(f"the outputs do not depend on the input {', '.join(unused[:4])}")
        names = Names()
        new = {op.name: names(self.wishes.get(op.name, op.name)) for op in ops}
        ops = tuple(
            replace(op, name=new[op.name], reads=tuple(new[name] for name in op.reads))
            for op in ops
        )
        return Trace(
            "onnx",
            ops,
            tuple(new[o] for o in outputs),
            channel_axis=1,
            remarks=tuple(self.remarks),
            model=self.model,
        )

    def _with_norms(self, outputs: Iterable[str]) -> dict[str, Op]:
        """Combine normalisations into single operations, each named after its module."""
        ops = Norms(self.ops, tuple(outputs), 1).run().ops
        for name, op in ops.items():
            if op is not self.ops[name]:
                self.wishes[name] = STEP.sub("", self.wishes[name])
        return ops

    # -- graphs ------------------------------------------------------------------------------------

    def run_graph(self, graph: Any, scope: Scope, depth: int) -> list[Value]:
        """Read a graph, and return the values of its outputs."""
        for tensor in graph.initializer:
            if tensor.name in scope.tensors or not tensor.name:
                raise KcalcError(
                    f"onnx: the initializer {tensor.name[:80]!r} occurs twice, or has no name"
                )
            scope.tensors[tensor.name] = tensor
        if graph.sparse_initializer:
            raise KcalcError(
                "onnx: sparse initializers are not supported; store the weights as ordinary tensors"
            )
        self.run_nodes(graph.node, scope, depth, self.opset)
        return [self.look_up(item.name, scope, "the graph's output") for item in graph.output]

    def run_nodes(
        self,
        nodes: Any,
        scope: Scope,
        depth: int,
        opset: int,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        """Read nodes in file order."""
        if depth > self.limits.depth:
            raise KcalcError(
                f"onnx: functions or subgraphs are nested more than {self.limits.depth} levels deep"
            )
        labels = Labels(nodes)
        made = {name for node in nodes for name in node.output}
        for proto in nodes:
            self.budget.step()
            what = f"{proto.op_type} node {proto.name[:80]!r}"
            inputs = tuple(
                None if not name or scope.omits(name) else self.look_up(name, scope, what, made)
                for name in proto.input
            )
            node = Node(
                proto.op_type,
                "" if proto.domain in STANDARD else proto.domain,
                proto.name,
                inputs,
                tuple(proto.output),
                _attributes(proto, given or {}),
                opset,
                proto,
                labels(proto),
                self,
            )
            results = self.run_node(node, scope, depth)
            for i, name in enumerate(node.outputs):
                if name:
                    scope.set(
                        name,
                        results[i]
                        if i < len(results)
                        else self.further_output(node, results[0], i),
                    )

    def look_up(self, name: str, scope: Scope, reader: str, made: set[str] | None = None) -> Value:
        """Return the value with the given name.

        Raises: KcalcError if the name is not defined yet.
        """
        holder = scope.holder(name)
        if holder is None:
            why = (
                "which comes later or depends on it (a cycle)"
                if made and name in made
                else "which no node in the file produces"
            )
            raise KcalcError(f"onnx: {reader} reads {name[:80]!r}, {why}")
        if name not in holder.known:
            array = to_array(holder.tensors[name], self.folder, self.limits.file_bytes)
            holder.known[name] = constant(array, parameter=name)
        return holder.known[name]

    def run_node(self, node: Node, scope: Scope, depth: int) -> Sequence[Value]:
        """Read a node, and return the values of its outputs."""
        made = len(self.ops)
        try:
            function = self.functions.get((node.domain, node.op)) or self.functions.get(
                (node.proto.domain, node.op)
            )
            if function is not None:
                return self.run_function(function, node, depth)
            if node.op == "If" and not node.domain:
                return self.run_if(node, scope, depth)
            folded = fold(node)
            if folded is not None:
                return folded
            rule = RULES.get((node.domain, node.op))
            found = rule(node) if rule is not None else None
            found = node.unread() if found is None else found
            return [found] if isinstance(found, Value) else found
        except KcalcError:
            raise
        except Exception as error:  # a failure in one part must not stop the rest from being read
            if isinstance(error, MISFITS) and not _sound(node):
                raise node.fail(
                    f"its attributes do not fit the shapes of its inputs ({type(error).__name__})"
                ) from None
            for name in list(self.ops)[made:]:
                del self.ops[name]
            return node.unread(node.op[:60], internal_error(error, f"the rule for {node.what}"))

    def run_function(self, function: Any, node: Node, depth: int) -> Sequence[Value]:
        """Read a call to a local function in a new scope, and return the values of its outputs."""
        scope = Scope()
        inputs = dict(zip(function.input, node.inputs, strict=False))
        for name in function.input:
            if (value := inputs.get(name)) is None:
                scope.omitted.add(name)
            else:
                scope.set(name, value)
        given = {a.name: a for a in function.attribute_proto} | node.attributes
        self.run_nodes(
            function.node, scope, depth + 1, opset_of(function.opset_import, self.opset), given
        )
        return [
            self.look_up(name, scope, f"function {function.name[:80]!r}")
            for name in function.output
        ]

    def run_if(self, node: Node, scope: Scope, depth: int) -> Sequence[Value]:
        """Read the branch that a constant condition selects."""
        test = node.value(0)
        if test.array is None or test.array.size != 1:
            return node.unread()
        branch = node.graph("then_branch" if bool(test.array.reshape(-1)[0]) else "else_branch")
        return self.run_graph(branch, Scope(scope), depth + 1)


def _sound(node: Node) -> bool:
    """Whether the onnx package accepts a node. If it does, the file is not the problem."""
    finite = all(math.isfinite(a.f) for a in node.attributes.values() if a.type == 1)
    known = all(value is None or value.array is not None for value in node.inputs)
    return finite and not known and None not in inferred_types(node)


def _attributes(proto: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a node by name.

    A reference to an attribute of the enclosing function is replaced with that attribute.
    """
    found: dict[str, Any] = {}
    for attribute in proto.attribute:
        if attribute.name in found:
            raise KcalcError(
                f"onnx: {proto.op_type} node {proto.name[:80]!r} sets the attribute "
                f"{attribute.name[:80]!r} twice"
            )
        if not attribute.ref_attr_name:
            found[attribute.name] = attribute
        elif attribute.ref_attr_name in given:
            found[attribute.name] = given[attribute.ref_attr_name]
    return found
