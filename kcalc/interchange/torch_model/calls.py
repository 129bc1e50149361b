"""A call of an ATen operator: its arguments by name and its place in the user's model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .examples import is_library

COMPOSITE = (
    "torch.nn.modules.container.",
    "torch.nn.modules.transformer.",
    "torch.nn.modules.rnn.",
    "MultiheadAttention",
)
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

# may return their input, unsaid by the schema
UNTOLD = (
    "dropout",
    "feature_dropout",
    "alpha_dropout",
    "feature_alpha_dropout",
    "type_as",
)


@dataclass(frozen=True, eq=False)
class Call:
    """An operator's plain name ("conv2d"), its arguments by name, and the metadata of its node."""

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
        """The usual name of the operator."""
        return SPOKEN.get(self.kind, self.kind.strip("_"))

    @property
    def path(self) -> str:
        """The module it belongs to."""
        return self.stack[-1][0] if self.stack else ""

    def within(self, package: str) -> bool:
        """Whether it belongs to a module of a class of a package."""
        return any(kind.startswith(package) for _, kind in self.stack)

    def wish(self, parameter: str | None = None) -> str:
        """The label that its operation should have.

        The module's path where it is the module's only operation, else path and operator.
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
        """The place in the user's model: module and line."""
        kind = self.stack[-1][1].rpartition(".")[2] if self.stack else ""
        module = f"{self.path} ({kind})" if self.path else kind
        line = _line(self.node.meta.get("stack_trace"))
        return ", ".join(part for part in (module, line) if part)


def _line(trace: Any) -> str:
    """The innermost line of the user's own code in a stack trace, "model.py:12"."""
    found = ""
    for file, number in re.findall(r'File "([^"]+)", line (\d+)', trace or ""):
        if not is_library(file):
            found = f"{file.rsplit('/', 1)[-1]}:{number}"
    return found


def call_of(node: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """The call of a node whose arguments are given as values."""
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
    return Call(node, name, named, shape, dtype, stack)


def described(value: Any) -> tuple[tuple[int, ...], Any]:
    """The shape and dtype of a node's value, or of the first of several."""
    if isinstance(value, list | tuple):
        return described(value[0]) if value else ((), None)
    if hasattr(value, "shape"):
        return tuple(concrete(n) for n in value.shape), value.dtype
    return (), None


def concrete(size: Any) -> int:
    """A size as an integer; of a symbolic one the value that it had for the example inputs."""
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
    """Whether the result of a call lies in the memory of its first argument.

    Many operators (contiguous, to, reshape, flatten) return a view for some arguments and a copy
    for others, so that the call is made once more on arrays without numbers; where that fails, the
    operator's schema decides.
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
    ):  # a graph without descriptions of its arrays, or an operator that does not run on such
        return True


def is_random(node: Any) -> bool:
    """Whether a node's operator draws random numbers."""
    import torch

    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
