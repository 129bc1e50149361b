"""Calls to ATen operators, with their arguments by name and their place in the user's model."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..trace import Compute, NotRead, Op
from .examples import is_library
from .graph_values import Const, PaddedTensor, Ragged, Stale, TensorRef, is_traced

if TYPE_CHECKING:
    from .walker import Walker

COMPOSITE = (
    "torch.nn.modules.container.",
    "torch.nn.modules.transformer.",
    "torch.nn.modules.rnn.",
    "MultiheadAttention",
)
WHOLE = ("MultiheadAttention",)  # modules that are reported as one operation
SPOKEN = {
    "_native_batch_norm_legit": "batch_norm",
    "_native_batch_norm_legit_functional": "batch_norm",
    "native_batch_norm": "batch_norm",
    "_native_batch_norm_legit_no_training": "batch_norm",
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "native_dropout": "dropout",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "_unsafe_view": "view",
    "addmm": "linear",
    "mm": "linear",
    "convolution": "conv",
    "max_pool1d_with_indices": "max_pool1d",
    "max_pool2d_with_indices": "max_pool2d",
    "max_pool3d_with_indices": "max_pool3d",
    "rsub": "sub",
    "_to_copy": "to",
    "truediv": "div",
}

# operators that may return their input, although their schema does not show it
UNTOLD = (
    "dropout",
    "feature_dropout",
    "alpha_dropout",
    "feature_alpha_dropout",
    "type_as",
)


@dataclass(frozen=True, eq=False)
class Call:
    """A call to an operator.

    The call contains the plain name of the operator ("conv2d"), the arguments by name, and the
    node. ``walker``: the reader that reads the call.
    """

    walker: Walker
    node: Any
    kind: str
    args: Mapping[str, Any]
    shape: tuple[int, ...] = ()
    dtype: Any = None
    stack: tuple[tuple[str, str], ...] = field(default=())

    def __getitem__(self, name: str) -> Any:
        return self.args.get(name)

    @property
    def spoken(self) -> str:
        """Return the usual name of the operator."""
        return SPOKEN.get(self.kind, self.kind.strip("_"))

    @property
    def path(self) -> str:
        """Return the path of the module that makes the call."""
        return self.stack[-1][0] if self.stack else ""

    def within(self, package: str) -> bool:
        """Whether a module around the call has a class from a package."""
        return any(kind.startswith(package) for _, kind in self.stack)

    def wish(self, parameter: str | None = None) -> str:
        """Return the preferred label of the call's operation.

        The label is the module's path if this is the module's only operation, else the path and the
        operator.
        """
        path = self.path
        if path and parameter is not None and parameter.rpartition(".")[0] == path:
            return path
        kind = self.stack[-1][1] if self.stack else ""
        if path and kind.startswith("torch.nn.") and not any(part in kind for part in COMPOSITE):
            return path
        return f"{path}.{self.spoken}" if path else self.spoken

    @property
    def source(self) -> str:
        """Return the module and line of the call in the user's model."""
        kind = self.stack[-1][1].rpartition(".")[2] if self.stack else ""
        module = f"{self.path} ({kind})" if self.path else kind
        line = _line(self.node.meta.get("stack_trace"))
        return ", ".join(part for part in (module, line) if part)

    @property
    def operand(self) -> Any:
        """Return the first array among the arguments."""
        return self["input"] if self["self"] is None else self["self"]

    @property
    def several(self) -> bool:
        """Whether the call returns several arrays."""
        return isinstance(self.node.meta.get("val"), list | tuple)

    @property
    def axes(self) -> tuple[int, ...]:
        """Return the sorted nonnegative axes in the argument ``dim``."""
        dims, rank = self["dim"], len(self.operand.shape)
        return tuple(
            sorted(int(d) % rank for d in (dims if isinstance(dims, list | tuple) else [dims]))
        )

    # -- writing the trace -------------------------------------------------------------------------

    def read(self, value: Any) -> str:
        """Return the name of the operation that outputs a value."""
        return self.walker.read(value, self.path)

    def emit(
        self,
        kind: type[Op],
        reads: Iterable[str],
        owner: str | None = None,
        /,
        **fields: Any,
    ) -> TensorRef:
        """Add an operation to the trace.

        ``fields`` may override the label (``wish``) and the ``shape`` of the call.
        """
        name = self.walker.names(fields.pop("wish", None) or self.wish(owner))
        shape = tuple(concrete(n) for n in fields.pop("shape", self.shape))
        self.walker.ops[name] = kind(
            name=name, shape=shape, reads=tuple(reads), source=self.source, **fields
        )
        whole = next((path for path, cls in self.stack if cls.endswith(WHOLE)), None)
        if whole:
            self.walker.whole[name] = whole
        return TensorRef(name, shape, self.dtype)

    def unread(self, what: str, reason: str, *hidden: Any) -> Any:
        """Report the call as not read, with one placeholder for each array that it returns.

        ``hidden``: inputs that are not among its arguments.
        """
        arrays = sources([*leaves(self.args), *hidden])
        # Boolean arrays such as masks are not feature maps
        features = [leaf for leaf in arrays if str(getattr(leaf, "dtype", "")) != "torch.bool"]
        told = dict.fromkeys(map(self.read, features or arrays))
        fields: dict[str, Any] = {"what": what, "reason": reason}
        if not self.several:
            fields["is_complex"] = bool(getattr(self.dtype, "is_complex", False))
            fields["compute"] = None if hidden else computed_by(self, list(told))
            return self.emit(NotRead, told, **fields)
        used = {user.args[1] for user in self.node.users if user.target is operator.getitem}
        out: list[Any] = []
        for i, part in enumerate(self.node.meta["val"]):
            shape, dtype = described(part)
            keep = i in used and dtype is not None
            made = self.emit(NotRead, told, shape=shape, **fields) if keep else None
            out.append(None if made is None else TensorRef(made.name, shape, dtype))
        return tuple(out)


def computed_by(call: Call, reads: list[str]) -> Compute | None:
    """Return a function that computes a call from the arrays that it reads, or None.

    Operators that draw random numbers or write in place are excluded, and so are integer arrays.
    """
    args = call.walker.resolved(call.node)
    traced = [leaf for leaf in leaves(list(args)) if is_traced(leaf)]
    real = all(
        isinstance(leaf, TensorRef)
        and leaf.name in reads
        and (leaf.dtype.is_floating_point or leaf.dtype.is_complex)
        for leaf in traced
    )
    if not traced or not real or is_random(call.node) or in_place(call.node):
        return None
    target = call.node.target

    def compute(arrays: Sequence[Any]) -> Any:
        import torch
        from torch.fx.node import map_aggregate

        given = dict(zip(reads, arrays, strict=True))

        def number(leaf: Any) -> Any:
            if isinstance(leaf, TensorRef):
                return torch.as_tensor(np.array(given[leaf.name]))
            if not isinstance(leaf, Const):
                return leaf
            tensor, wide = leaf.tensor, leaf.tensor.dtype.is_complex
            exact = tensor.dtype.is_floating_point or wide
            return tensor.to(torch.complex128 if wide else torch.float64) if exact else tensor

        with torch.no_grad():
            found, named = map_aggregate(args, number)
            return target(*found, **named).resolve_conj().numpy()

    return compute


def sources(values: Iterable[Any]) -> list[Any]:
    """Return the arrays among some values, replacing arrays of unknown size by their sources."""
    arrays = [
        leaf for leaf in values if isinstance(leaf, TensorRef | PaddedTensor | Stale | Ragged)
    ]
    return [source for leaf in arrays for source in getattr(leaf, "sources", (leaf,))]


Rule = Callable[[Call], Any]
RULES: dict[str, Rule] = {}  # {operator: rule}


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Register a function that reads the named operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def leaves(tree: Any) -> list[Any]:
    """Return the values in nested lists, tuples and dictionaries."""
    if isinstance(tree, list | tuple):
        return [leaf for part in tree for leaf in leaves(part)]
    if isinstance(tree, Mapping):
        return leaves(list(tree.values()))
    return [tree]


def _line(trace: Any) -> str:
    """Return the innermost line of the user's code in a stack trace, such as "model.py:12"."""
    found = ""
    for file, number in re.findall(r'File "([^"]+)", line (\d+)', trace or ""):
        if not is_library(file):
            found = f"{file.rsplit('/', 1)[-1]}:{number}"
    return found


def call_of(walker: Walker, node: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Return the call of a node, given the values of its arguments."""
    target = node.target
    schema = getattr(target, "_schema", None)
    name = (
        schema.name.partition("::")[2]
        if schema is not None
        else getattr(target, "__name__", str(target))
    )
    named: dict[str, Any] = {}
    if schema is None:
        named = {str(i): value for i, value in enumerate(args)} | kwargs
    else:
        for i, argument in enumerate(schema.arguments):
            if i < len(args) and not argument.kwarg_only:
                named[argument.name] = args[i]
            elif argument.name in kwargs:
                named[argument.name] = kwargs[argument.name]
            else:
                named[argument.name] = argument.default_value
    shape, dtype = described(node.meta.get("val"))
    stack = tuple(
        (re.sub(r"@\d+", "", path), str(kind))
        for path, kind in (node.meta.get("nn_module_stack") or {}).values()
    )
    return Call(walker, node, name, named, shape, dtype, stack)


def described(value: Any) -> tuple[tuple[int, ...], Any]:
    """Return the shape and dtype of a node's value, or of its first value if there are several.

    Returns () and None if the shape depends on the data.
    """
    if isinstance(value, list | tuple):
        return described(value[0]) if value else ((), None)
    if hasattr(value, "shape") and sized(value):
        return tuple(concrete(n) for n in value.shape), value.dtype
    return (), None


def sized(value: Any) -> bool:
    """Whether a node's value is a number or has a size that does not depend on the data."""
    if isinstance(value, list | tuple):
        return all(map(sized, value))
    if hasattr(value, "shape"):
        return all(map(sized, value.shape))
    return isinstance(value, int) or not hasattr(value, "node") or value.node.hint is not None


def concrete(size: Any) -> int:
    """Return a size as an integer; symbolic sizes take their value for the example inputs."""
    if isinstance(size, int):
        return size
    hint = getattr(getattr(size, "node", None), "hint", None)
    return int(hint) if hint is not None else int(size)


def in_place(node: Any) -> bool:
    """Whether a node's operator writes into its first argument."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.arguments:
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and alias.is_write


def hands_on(node: Any) -> bool:
    """Whether the result of a call shares the memory of its first argument.

    Some operators (contiguous, to, reshape, flatten) return a view or a copy, depending on their
    arguments. So the call is repeated on fake arrays. If this fails, the schema of the operator
    decides.
    """
    schema = getattr(node.target, "_schema", None)
    if schema is None or not node.args or not hasattr(node.args[0], "meta"):
        return False
    if (
        all(out.alias_info is None for out in schema.returns)
        and schema.name.rpartition("::")[2] not in UNTOLD
    ):
        return False
    from torch.utils import _pytree as pytree

    try:
        args, kwargs = pytree.tree_map(
            lambda leaf: leaf.meta["val"] if hasattr(leaf, "meta") else leaf,
            (node.args, node.kwargs),
        )
        with args[0].fake_mode:
            out = node.target(*args, **kwargs)
        first = out[0] if isinstance(out, list | tuple) else out
        return first.untyped_storage()._cdata == args[0].untyped_storage()._cdata
    except (
        Exception
    ):  # the graph does not describe its arrays, or the operator cannot run on fake arrays
        return True


def is_random(node: Any) -> bool:
    """Whether a node's operator draws random numbers."""
    import torch

    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
