"""A captured PyTorch model: a graph of ATen operations, with information about its nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..named_inputs import Call

if TYPE_CHECKING:
    from .call_log import CallGraph


@dataclass(frozen=True, eq=False)
class Captured:
    """A graph with information about its nodes.

    ``held``: {node: (tensor, name)} for parameters, buffers and constants (with name "").
    ``entries``: the nodes that are inputs; ``labels``: their names. ``outputs``: the output nodes.
    ``trainable``: the names of the parameters. ``module``: resolves attributes of the graph.
    ``copied``: whether the named tensors are a private copy. ``calls``: the calls that the model's
    code makes, None if they were not recorded. ``overriding``: the class of the model if it
    overrides ``__call__``, else "". ``own``: {number of a mark: call to an autograd function whose
    backward pass is not the true derivative}.
    """

    module: Any
    graph: Any
    held: dict[Any, tuple[Any, str]]
    entries: tuple[Any, ...]
    outputs: tuple[Any, ...]
    trainable: frozenset[str]
    remarks: tuple[str, ...] = ()
    given: dict[Any, Any] = field(default_factory=dict)
    labels: dict[Any, str] = field(default_factory=dict)
    copied: bool = True
    calls: CallGraph | None = None
    overriding: str = ""
    own: dict[int, Any] = field(default_factory=dict)

    def moves(self, node: Any) -> bool:
        """Whether training changes a tensor of the graph; buffers do not count."""
        return bool(getattr(self.held[node][0], "requires_grad", False))


@dataclass(frozen=True, eq=False)
class TorchProgram:
    """A captured model and the operations of the trace at its nodes.

    ``names``: {node: operation with its value}; ``arguments``: the arguments with which the model
    was captured, None if it cannot be captured again; ``given_arrays``: whether the user gave the
    arguments as arrays rather than shapes.
    """

    captured: Captured
    names: dict[Any, str]
    arguments: Call | None
    given_arrays: bool = False


def nodes_in(values: Any) -> tuple[Any, ...]:
    """Return the distinct nodes in nested results."""
    import torch
    from torch.utils import _pytree as pytree

    return tuple(
        dict.fromkeys(
            value for value in pytree.tree_leaves(values) if isinstance(value, torch.fx.Node)
        )
    )


def identity(tensor: Any) -> tuple[Any, ...]:
    """Return a key that is the same for all tensors in the same memory."""
    try:
        pointer = tensor.untyped_storage().data_ptr()
    except Exception:
        pointer = 0
    if not pointer or not tensor.numel():
        return ("object", id(tensor))
    return (pointer, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))


def shared_memory(model: Any) -> dict[str, str]:
    """Return {parameter: first parameter whose memory it overlaps}.

    Overlapping parameters are views, slices or transposes of each other.
    """
    import torch

    ranges: dict[int, list[tuple[int, int, str]]] = {}
    found: dict[str, str] = {}
    named = (
        model.named_parameters(remove_duplicate=False) if isinstance(model, torch.nn.Module) else ()
    )
    for name, tensor in named:
        memory = identity(tensor)[0]
        if not isinstance(memory, int):
            continue
        start = int(tensor.storage_offset()) * tensor.element_size()
        reach = (
            sum(
                (int(size) - 1) * int(stride)
                for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            )
            + 1
        )
        end = start + reach * tensor.element_size()
        first = next(
            (other for low, high, other in ranges.get(memory, ()) if start < high and low < end),
            None,
        )
        if first is not None and first != name:
            found[name] = found.get(first, first)
        ranges.setdefault(memory, []).append((start, end, name))
    return found


def first_names(tensors: dict[str, Any]) -> dict[tuple[Any, ...], str]:
    """Return {identity of a tensor: its first name}."""
    import torch

    names: dict[tuple[Any, ...], str] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor):
            names.setdefault(identity(tensor), name)
    return names
