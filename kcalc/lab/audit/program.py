"""One run of a PyTorch model as a graph of operations, weights and intermediate tensors.

The run is recorded below autograd, where every module consists of ATen operations. Views of the
same memory are distinguished by their layout. No rules for layers are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...foundation.process_state import cached_property
from .held import held, returned
from .operations import DATALESS, TABLES
from .places import run_at


@dataclass(eq=False)
class Value:
    """One tensor of a run.

    ``op`` is the operation without its overload, such as "addmm"; it is "input", "parameter",
    "buffer" or "constant" if no operation made the tensor. ``inputs`` are the values that the
    operation read, in the order of its arguments, and ``numbers`` are its other arguments.
    ``flavour`` is "data" if the value depends on the model's numeric inputs, "weight" if it depends
    only on parameters, and "other" otherwise. ``weights`` are the parameters in a value of flavour
    "weight". ``module`` is the module that created the value, and ``ids`` says whether the value
    depends on the inputs at all. ``place`` is the line of the model's source that created the
    value, and ``call`` is the number of the operation in the run. If a later operation overwrites
    the tensor, ``kept`` is a copy of it, and ``edge`` is its place in the gradient graph.
    """

    index: int
    op: str
    inputs: tuple[Value, ...]
    numbers: tuple[Any, ...]
    tensor: Any
    flavour: str
    weights: tuple[str, ...] = ()
    module: str = ""
    ids: bool = False
    ancestors: int = 0
    place: str = ""
    call: int = -1
    kept: Any = None
    edge: Any = None

    @property
    def content(self) -> Any:
        """Return the tensor as it was when the value was made."""
        return self.tensor if self.kept is None else self.kept

    @property
    def data(self) -> tuple[Value, ...]:
        """Return the inputs whose flavour is "data"."""
        return tuple(value for value in self.inputs if value.flavour == "data")

    def depends_on(self, other: Value) -> bool:
        """Return whether the value was computed from ``other``, or is the same value."""
        return self is other or bool(self.ancestors >> other.index & 1)


@dataclass
class Program:
    """All values of one run in order, and the result in the form that the model returned.

    ``kept`` contains values that the model keeps in attributes, such as an auxiliary loss.
    ``numbers`` lists the values that became Python numbers (``item``, ``tolist``, ``numpy``), with
    the source lines. ``find`` returns the value of a tensor.
    """

    values: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    result: Any = None
    kept: list[Value] = field(default_factory=list)
    numbers: list[tuple[Value, str]] = field(default_factory=list)
    find: Callable[[Any], Value | None] = lambda _: None

    @cached_property
    def readers(self) -> dict[int, list[Value]]:
        """Return {index of a value: the values that read it}."""
        found: dict[int, list[Value]] = {}
        for value in self.values:
            for source in value.inputs:
                found.setdefault(source.index, []).append(value)
        return found


def run_recorded(
    model: Any,
    call: Callable[[], Any],
    inputs: Any,
    changed: Callable[[int, str, Any], Any] | None = None,
) -> Program:
    """Run ``call`` on a model and record the operations.

    ``inputs`` is a nested container with the model's input tensors. ``changed`` takes the number,
    name and result of an operation and returns the result with which the run continues.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.overrides import TorchFunctionMode
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    leaving = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__)
    run = _Run()
    for name, parameter in model.named_parameters():
        run.leaf("parameter", parameter, "weight", (name,))
    for _, buffer in model.named_buffers():
        run.leaf("buffer", buffer, "other")
    for leaf in pytree.tree_leaves(inputs):
        if isinstance(leaf, torch.Tensor):
            run.leaf("input", leaf, "data" if leaf.is_floating_point() else "other", ids=True)

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func._schema.is_mutable and args and isinstance(args[0], torch.Tensor):
                run.keep(args[0])
            out = func(*args, **(kwargs or {}))
            if changed is not None:
                out = changed(run.calls, func._schema.name, out)
            run.note(func, args, kwargs or {}, out)
            return out

    class Leaving(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func in leaving:
                run.numbered(args[0])
            return func(*args, **(kwargs or {}))

    with _places(model, run), sdpa_kernel(SDPBackend.MATH), unchecked(), Leaving(), Recorder():
        result = call()
    program = Program(run.values, result=result, numbers=run.numbers, find=run.known)
    kept = (run.known(tensor) for tensor in held(model).values() if tensor.grad_fn is not None)
    program.kept = [value for value in kept if value is not None]
    program.outputs = [value for leaf in returned(result) if (value := run.known(leaf)) is not None]
    return program


@contextmanager
def unchecked() -> Iterator[None]:
    """Run layers in reentrant checkpoints directly, because checkpoints hide them from autograd."""
    from torch.utils import checkpoint

    kept = checkpoint.CheckpointFunction

    class Plain:
        @staticmethod
        def apply(function: Any, preserved: bool, *args: Any) -> Any:
            return function(*args)

    checkpoint.CheckpointFunction = Plain  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        checkpoint.CheckpointFunction = kept


class _Run:
    """The values recorded so far, identified by the memory and layout of their tensors."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.places: dict[tuple[Any, ...], Value] = {}
        self.stored: dict[int, set[tuple[Any, ...]]] = {}
        self.stack: list[str] = [""]
        self.calls = 0
        self.numbers: list[tuple[Value, str]] = []

    def _add(self, value: Value) -> Value:
        self.values.append(value)
        self._place(_key(value.tensor), value)
        return value

    def _place(self, key: tuple[Any, ...], value: Value) -> None:
        self.places[key] = value
        self.stored.setdefault(key[0], set()).add(key)

    def leaf(
        self, op: str, tensor: Any, flavour: str, weights: tuple[str, ...] = (), ids: bool = False
    ) -> Value:
        """Add a tensor that no operation made."""
        return self._add(
            Value(len(self.values), op, (), (), tensor, flavour, weights, self.stack[-1], ids)
        )

    def known(self, tensor: Any) -> Value | None:
        """Return the value of a tensor, or None if no value uses its memory.

        A layout that no recorded operation made is treated as a view of the last value in that
        memory, preferably of a value of the same size. (``transpose_`` in a compiled operation
        changes a layout unnoticed.)
        """
        key = _key(tensor)
        if key in self.places or key[0] not in self.stored:
            return self.places.get(key)
        inside = [self.places[place] for place in self.stored[key[0]]]
        source = max(inside, key=lambda v: (v.tensor.numel() == tensor.numel(), v.index))
        return self._made("alias", (source,), (), tensor)

    def note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Add the values that an operation returned."""
        import torch
        from torch.utils import _pytree as pytree

        name = func._schema.name.split("::")[-1]
        if name == "_local_scalar_dense":
            self.numbered(args[0])
        leaves = pytree.tree_leaves((args, kwargs))
        inputs = tuple(
            self.known(leaf) or self.leaf("constant", leaf, "other")
            for leaf in leaves
            if isinstance(leaf, torch.Tensor)
        )
        numbers = tuple(leaf for leaf in leaves if not isinstance(leaf, torch.Tensor))
        made = [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        for tensor in made:
            value = self._made(name, inputs, numbers, tensor)
            value.call = self.calls
            if name.endswith("_") and func._schema.is_mutable:
                self._written(tensor, value)
        self.calls += 1

    def keep(self, tensor: Any) -> None:
        """Keep copies of the data in some memory, because an operation overwrites it."""
        from torch.autograd.graph import get_gradient_edge

        for place in self.stored.get(_key(tensor)[0], ()):
            value = self.places[place]
            if value.flavour == "data" and value.kept is None:
                value.kept = value.tensor.detach().clone()
                if value.tensor.requires_grad:
                    value.edge = get_gradient_edge(value.tensor)

    def numbered(self, tensor: Any) -> None:
        """Record that a tensor was converted to Python numbers."""
        value = self.known(tensor)
        if value is not None:
            self.numbers.append((value, run_at()))

    def _made(
        self, name: str, inputs: tuple[Value, ...], numbers: tuple[Any, ...], tensor: Any
    ) -> Value:
        flavour, weights = _flavour(name, inputs, tensor)
        value = Value(len(self.values), name.rstrip("_") or name, inputs, numbers, tensor, flavour)
        value.weights, value.module, value.place = weights, self.stack[-1], run_at()
        value.ids = any(i.ids for i in inputs) and name not in DATALESS
        for source in inputs:
            value.ancestors |= source.ancestors | 1 << source.index
        return self._add(value)

    def _written(self, tensor: Any, value: Value) -> None:
        """Update other views of memory that an in-place operation has changed."""
        key = _key(tensor)
        for other in [place for place in self.stored.get(key[0], ()) if place != key]:
            old = self.places[other]
            part, whole = _written_over(tensor, old.tensor)
            if whole:
                self._made("alias", (value,), (), old.tensor)
            elif part:
                self._made("slice_scatter", (old, value), (), old.tensor)


def _key(tensor: Any) -> tuple[Any, ...]:
    try:
        memory = tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):  # raised for sparse and quantised tensors
        return (id(tensor),)
    return (memory, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))


def _written_over(tensor: Any, other: Any) -> tuple[bool, bool]:
    """Return whether a view of some memory covers a part of another view, and all of it."""
    import torch

    if tensor.dtype != other.dtype:  # as of complex numbers and their real and imaginary parts
        return True, tensor.nbytes >= other.nbytes
    mask = torch.zeros(tensor.untyped_storage().nbytes() // tensor.element_size(), dtype=torch.bool)
    own, inside = (
        mask.as_strided(view.shape, view.stride(), view.storage_offset())
        for view in (tensor, other)
    )
    own.fill_(True)
    return bool(inside.any()), bool(inside.all())


def _flavour(name: str, inputs: tuple[Value, ...], tensor: Any) -> tuple[str, tuple[str, ...]]:
    if name in DATALESS or not (tensor.is_floating_point() or tensor.is_complex()):
        return "other", ()
    if any(value.flavour == "data" for value in inputs):
        return "data", ()
    weights = dict.fromkeys(name for value in inputs for name in value.weights)
    if not weights:
        return "other", ()
    by_ids = any(value.ids for value in inputs)
    return ("data", ()) if by_ids or name in TABLES else ("weight", tuple(weights))


@contextmanager
def _places(model: Any, run: _Run) -> Iterator[None]:
    """Keep track of the path of the module that is running."""
    handles: list[Any] = []
    for path, module in model.named_modules():

        def begin(*_: Any, path: str = path) -> None:
            run.stack.append(path)

        def end(*_: Any) -> None:
            run.stack.pop()

        try:
            # the first of all hooks, because ``end`` also runs if another hook raises an error
            handles.append(module.register_forward_pre_hook(begin, prepend=True))
            handles.append(module.register_forward_hook(end, always_call=True))
        except (AttributeError, RuntimeError, TypeError):  # ScriptModules accept no hooks
            continue
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
