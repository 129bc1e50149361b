"""Find which parameters reach the result of a run, and which paths carry a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .held import returned
from .operations import BIASED, SOFTMAX, SUMS, VIEWS
from .program import Program, Value


def _mask(values: Iterable[Value]) -> int:
    return sum(1 << index for index in {value.index for value in values})


def leaf_of(program: Program, name: str) -> Value | None:
    """Return the value of a parameter, or None if the run does not contain it."""
    return next((v for v in program.values if v.op == "parameter" and v.weights == (name,)), None)


def reached(program: Program, name: str) -> bool:
    """Return whether the result depends on a parameter."""
    leaf = leaf_of(program, name)
    return leaf is not None and any(out.depends_on(leaf) for out in program.outputs)


def foreign(program: Program, original: Any) -> dict[str, str]:
    """Return {parameter of the original that a run of the copy read: the module that read it}."""
    from ...interchange.torch_model import memory

    held = {memory(p): name for name, p in original.named_parameters() if p.numel()}
    found: dict[str, str] = {}
    for value in program.values:
        for read in value.inputs:
            name = held.get(memory(read.tensor)) if read.op == "constant" else None
            if name is not None:
                found.setdefault(name, value.module)
    return found


def leaves_of_gradients(program: Program) -> dict[int, Any]:
    """Return {id: tensor} for leaves that get a gradient from the result or from kept values."""
    return leaves_behind([*returned(program.result), *(v.tensor for v in program.kept)])


def leaves_behind(tensors: list[Any]) -> dict[int, Any]:
    """Return {id: tensor} for the leaves that get a gradient from the given tensors."""
    stack: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen: set[Any] = set()
    found: dict[int, Any] = {}
    while stack:
        function = stack.pop()
        if function in seen:
            continue
        seen.add(function)
        if hasattr(function, "variable"):
            found[id(function.variable)] = function.variable
        stack += [after for after, _ in function.next_functions if after is not None]
    return found


def numeric(value: Value) -> bool:
    """Return whether a value can have a gradient, unlike positions or comparisons."""
    return bool(value.tensor.is_floating_point() or value.tensor.is_complex())


def shifts_batch(program: Program, name: str) -> bool:
    """Return whether a parameter only shifts inputs of batch norms, which subtract the shift."""
    leaf = leaf_of(program, name)
    read = [] if leaf is None or leaf.tensor.ndim != 1 else program.readers.get(leaf.index, [])
    behind = [program.readers.get(value.index, []) for value in read]
    return bool(behind) and all(
        value.op in SUMS | BIASED | {"convolution", "linear"}
        and readers
        and all("batch_norm" in reader.op for reader in readers)
        for value, readers in zip(read, behind, strict=True)
    )


def unreached(program: Program, name: str) -> bool:
    """Return whether a choice closes every path from a parameter to the result.

    Three things close a path: an empty selection, attention to a single key, and a product with
    zeros that a choice made. A choice is an array of integers computed from the inputs, for
    example if a mixture of experts skips some experts.
    """
    inputs = _mask(v for v in program.values if v.op == "input")
    leaf = leaf_of(program, name)
    if leaf is None or not any(out.depends_on(leaf) for out in program.outputs):
        return False
    return not _path(program, name, lambda value, reader: _closed(value, reader, inputs))


def _path(program: Program, name: str, closed: Callable[[Value, Value], bool]) -> bool:
    """Return whether a parameter reaches the result on a path without closed steps.

    A step is a pair (value, reader).
    """
    leaf = leaf_of(program, name)
    outputs = {out.index for out in program.outputs}
    stack, seen = [] if leaf is None else [leaf], set()
    while stack:
        value = stack.pop()
        if value.index in outputs:
            return True
        for reader in program.readers.get(value.index, ()):
            if reader.index not in seen and not closed(value, reader):
                seen.add(reader.index)
                stack.append(reader)
    return False


def _closed(value: Value, reader: Value, inputs: int) -> bool:
    if reader.tensor.numel() == 0:
        return True
    if reader.op in SOFTMAX and reader.tensor.shape[-1] == 1:
        return True
    if reader.op == "mul":
        others = [v for v in reader.inputs if v is not value]
        return any(not bool(v.tensor.any()) and _chosen(v, inputs) for v in others)
    if reader.op == "where" and reader.inputs[0] is not value and len(reader.inputs) == 3:
        condition = reader.inputs[0]
        taken = condition.tensor if value is reader.inputs[1] else ~condition.tensor
        return not bool(taken.any()) and _chosen(condition, inputs)
    return False


def _chosen(value: Value, inputs: int) -> bool:
    """Return whether an array comes from integers (positions, comparisons) computed from inputs."""
    stack, seen = [value], set()
    while stack:
        top = stack.pop()
        if top.index in seen:
            continue
        seen.add(top.index)
        if not numeric(top):
            if top.ancestors & inputs:
                return True
        elif top.op in VIEWS or top.op in ("mul", "div"):
            stack += top.inputs
    return False
