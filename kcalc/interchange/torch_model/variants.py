"""Numbers that a captured graph holds and that depend on the batch size or on the mode.

The model is captured once more with one more example, and once in the other mode. Numbers that
differ become functions of the number of examples, or of ``module.training``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ...foundation.errors import KcalcError
from .builder import GraphBuilder
from .capture import capture
from .captured import Captured, Program
from .copies import copied
from .counting import batch_size, resized
from .examples import undisturbed

BATCH_NORM = nn.modules.batchnorm._BatchNorm
COUNT = "operations that are left alone are for {} examples at a time, as they were read"
MODE = "operations that are left alone run as in {}, also in the other mode"
Place = tuple[Any, int]  # (node, index among the leaves of its arguments)


class Mode(nn.Module):
    """A number for training and one for evaluation."""

    def __init__(self, training: Any, evaluation: Any) -> None:
        super().__init__()
        self.in_training, self.in_evaluation = training, evaluation

    def forward(self) -> Any:
        """The number of the present mode."""
        return self.in_training if self.training else self.in_evaluation


class Literals:
    """The arguments of copied operations. ``remarks``: numbers that stay as they were read."""

    def __init__(self, model: Any, program: Program, example: Callable[[], Any]) -> None:
        self.model, self.program, self.example = model, program, example
        self.remarks: list[str] = []
        self._counted: dict[Place, tuple[int, int]] | None = None
        self._modes: dict[Place, tuple[Any, Any]] = {}
        self._size: Any = None

    def of(self, node: Any, new: Callable[[Any], Any], root: GraphBuilder) -> tuple[Any, Any]:
        """The arguments of a node of the model's graph in the new graph."""
        leaves, tree = pytree.tree_flatten((node.args, node.kwargs))
        if any(isinstance(leaf, bool | int | float) for leaf in leaves):
            self._compare()
        made = []
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.fx.Node):
                made.append(new(leaf))
            elif (node, i) in self._modes:
                made.append(self._mode(node, self._modes[node, i], root))
            elif self._counted and (node, i) in self._counted:
                made.append(self._of_count(*self._counted[node, i], root))
            else:
                made.append(leaf)
        return pytree.tree_unflatten(made, tree)

    def _of_count(self, factor: int, rest: int, root: GraphBuilder) -> Any:
        """``factor`` times the number of examples, and ``rest``."""
        call = root.graph.call_function
        if self._size is None:
            self._size = call(torch.ops.aten.sym_size.int, (self.example(), 0))
        made = self._size if factor == 1 else call(operator.mul, (self._size, factor))
        return call(operator.add, (made, rest)) if rest else made

    def _mode(self, node: Any, numbers: tuple[Any, Any], root: GraphBuilder) -> Any:
        module = Mode(*numbers)
        path = _path(node)
        try:
            module.training = self.model.get_submodule(path).training
        except AttributeError:
            module.training = bool(self.model.training)
        return root.inner_call(module, f"mode_{path or 'model'}")

    # -- the other captures ------------------------------------------------------------------------

    def _compare(self) -> None:
        """Capture the model once more each way, at the first number that is met."""
        if self._counted is not None:
            return
        arguments, self._counted = self.program.arguments, {}
        if arguments is None:
            self.remarks += [COUNT.format(self._examples()), MODE.format("the mode it was read in")]
            return
        count = batch_size(arguments)
        more = self._captured(resized(arguments, count + 1), None)
        differing = None if more is None else self._differing(more)
        if differing is None or not all(map(_are_sizes, differing.values())):
            self.remarks.append(COUNT.format(count))
        else:
            self._counted = {
                place: (two - one, one - (two - one) * count)
                for place, (one, two) in differing.items()
            }
        self._compare_modes(arguments)

    def _compare_modes(self, arguments: tuple[Any, ...]) -> None:
        for node in self.program.captured.graph.nodes:
            if flag := _of_batch_norm(self.model, node):
                self._modes[node, flag] = (True, False)
        training = bool(getattr(self.model, "training", False))
        other = self._captured(arguments, not training)
        differing = None if other is None else self._differing(other)
        if differing is None:
            self.remarks.append(MODE.format("training" if training else "evaluation"))
        else:
            self._modes |= {
                place: pair if training else pair[::-1] for place, pair in differing.items()
            }

    def _captured(self, arguments: tuple[Any, ...], training: bool | None) -> Captured | None:
        """The model captured on other arguments or in a mode; None where that is refused."""
        try:
            with undisturbed():
                model = self.model if training is None else copied(self.model).train(training)
            return capture(model, arguments)
        except KcalcError:
            return None

    def _differing(self, other: Captured) -> dict[Place, tuple[Any, Any]] | None:
        """{place: (its number, that in the other graph)}; None where operators differ."""
        return _differing(self.program.captured.graph, other.graph)

    def _examples(self) -> int:
        return int(self.program.captured.entries[0].meta["val"].shape[0])


def _differing(graph: Any, other: Any) -> dict[Place, tuple[Any, Any]] | None:
    nodes, twins = list(graph.nodes), list(other.nodes)
    if len(nodes) != len(twins):
        return None
    found: dict[Place, tuple[Any, Any]] = {}
    for node, twin in zip(nodes, twins, strict=True):
        if node.op != twin.op or (node.op == "call_function" and node.target != twin.target):
            return None
        leaves, tree = pytree.tree_flatten((node.args, node.kwargs))
        others, its = pytree.tree_flatten((twin.args, twin.kwargs))
        if tree != its:
            return None
        for i, (one, two) in enumerate(zip(leaves, others, strict=True)):
            if isinstance(one, torch.fx.Node) != isinstance(two, torch.fx.Node):
                return None
            if not isinstance(one, torch.fx.Node) and one != two:
                found[node, i] = (one, two)
    return found


def _are_sizes(pair: tuple[Any, Any]) -> bool:
    return all(isinstance(n, int) and not isinstance(n, bool) for n in pair)


def _path(node: Any) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return stack[-1][0] if stack else ""


def _of_batch_norm(model: Any, node: Any) -> int:
    """The place of the flag of training of a BatchNorm that keeps averages; 0 for other nodes."""
    if "batch_norm" not in str(node.target) or not isinstance(model, nn.Module):
        return 0
    try:
        module = model.get_submodule(_path(node))
    except AttributeError:
        return 0
    if not isinstance(module, BATCH_NORM) or module.running_mean is None:
        return 0
    names = [argument.name for argument in node.target._schema.arguments]
    return names.index("training") if "training" in names else 0
