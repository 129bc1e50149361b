"""A graph of PyTorch calls under construction, every call tried on shapes alone as it is added."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...foundation.errors import KcalcError

HOME = "kcalc_modules"  # where the submodules of a new model stand


@dataclass(frozen=True, eq=False)
class Value:
    """A node of the graph and a tensor of its shape without numbers.

    (examples, channels, locations...).
    """

    node: Any
    meta: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape for the example inputs."""
        return tuple(self.meta.shape)


class GraphBuilder:
    """An ``fx.Graph`` and the module that holds its parameters and submodules."""

    def __init__(self) -> None:
        self.root = nn.Module()
        self.graph = torch.fx.Graph()
        self._modules: dict[str, nn.Module] = {}
        self._labels: list[tuple[Value, str]] = []
        self.label = ""
        self._constants = 0

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Value:
        """A call of a function.

        Raises: KcalcError naming the node that is being built if the shapes do not fit.
        """
        metas, nodes = _split(args)
        known, named = _split(tuple(kwargs.values()))
        out = self._tried(lambda: function(*metas, **dict(zip(kwargs, known, strict=True))))
        return Value(
            self.graph.call_function(function, nodes, dict(zip(kwargs, named, strict=True))), out
        )

    def submodule(self, module: nn.Module, value: Value) -> Value:
        """A call of a module that has no parameters of its own."""
        out = self._tried(lambda: module(value.meta))
        return Value(self.graph.call_module(self._home(module, self.label), (value.node,)), out)

    def _home(self, module: nn.Module, wish: str) -> str:
        """The path under which a module stands in the new model."""
        name = base = plain(wish)
        count = 1
        while name in self._modules or hasattr(nn.ModuleDict, name):  # its methods
            count += 1
            name = f"{base}_{count}"
        self._modules[name] = module
        return f"{HOME}.{name}"

    def inner_call(self, module: nn.Module, wish: str) -> Any:
        """The node of a call of a module without inputs."""
        return self.graph.call_module(self._home(module, wish))

    def inner(self, module: nn.Module) -> Any:
        """The node that holds a module, for operators that call it."""
        return self.graph.create_node("get_attr", self._home(module, "graph"))

    def constant(self, tensor: torch.Tensor) -> Any:
        """The node of an array of the model that has no name there."""
        self._constants += 1
        return self.kept(f"kcalc_constant_{self._constants}", tensor, False)

    def kept(self, name: str, tensor: torch.Tensor, trained: bool) -> Any:
        """The node of a copy of a parameter or buffer of the model."""
        copy = tensor.detach().clone()
        value = self.parameter(name, copy, trained)
        if trained and not tensor.requires_grad:
            self.root.get_parameter(name).requires_grad_(False)
        return value.node

    def parameter(self, name: str, tensor: torch.Tensor, trainable: bool = True) -> Value:
        """A parameter (or buffer) under its path."""
        home = self.root
        *path, leaf = name.split(".")
        for part in path:
            if not hasattr(home, part):
                home.add_module(part, nn.Module())
            home = getattr(home, part)
        if hasattr(home, leaf):
            raise KcalcError(
                f"node {self.label!r}: two layers want the parameter {name!r}; a layer that shares "
                f"weights with another, or with one that is left alone, cannot be given new ones: "
                f"leave it out of the shaped part, as kc.shape(reading) does"
            )
        if trainable:
            home.register_parameter(leaf, nn.Parameter(tensor))
        else:
            home.register_buffer(leaf, tensor)
        return Value(self.graph.get_attr(name), tensor.to("meta"))

    def named(self, value: Value, label: str) -> None:
        """Give a node the name of its label, in the end.

        Until then new nodes are named by their operation.
        """
        self._labels.append((value, plain(label)))

    def finish(self, outputs: list[Any]) -> tuple[nn.Module, Any]:
        """The module and the graph with its output: a node, or several."""
        self.graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
        if self._modules:
            home = nn.Module()
            for name, module in self._modules.items():
                home.add_module(name, module)
            self.root.add_module(HOME, home)
        taken = {node.name for node in self.graph.nodes}
        for value, wish in self._labels:
            if wish not in taken:
                taken.add(wish)
                value.node.name = wish
        self.graph.lint()
        return self.root, self.graph

    def _tried(self, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        try:
            return run()
        except KcalcError:
            raise
        except Exception as error:
            reason = str(error).strip().splitlines()[0][:200]
            raise KcalcError(f"node {self.label!r} cannot be built in PyTorch: {reason}") from error


def plain(label: Any) -> str:
    """A label as a Python name."""
    name = re.sub(r"\W", "_", str(label))
    return f"n_{name}" if not name or name[0].isdigit() else name


def _split(tree: Any) -> tuple[Any, Any]:
    """(shapes, nodes) of a nest of arguments."""
    if isinstance(tree, Value):
        return tree.meta, tree.node
    if isinstance(tree, list | tuple):
        pairs = [_split(part) for part in tree]
        return type(tree)(p[0] for p in pairs), type(tree)(p[1] for p in pairs)
    return tree, tree
