"""One run of a captured program, for the sizes of what its operations return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .captured import Program
from .copies import copied
from .examples import undisturbed


def mean_squares(program: Program, names: Sequence[str]) -> dict[str, float]:
    """{operation: the mean square of its output} on the arrays that the model was read with.

    Empty where it was read with shapes alone, or does not run again.
    """
    if program.arguments is None or not program.given_arrays:
        return {}
    wanted = {node: name for node, name in reversed(program.names.items()) if name in set(names)}
    runner = _Noting(program, wanted)
    try:
        with undisturbed(), torch.no_grad():
            runner.run(*_inputs(program))
    except Exception:  # the user's operations may raise anything
        return {}
    return runner.found


def own_gradients(model: Any, program: Program) -> list[str]:
    """The classes of ``torch.autograd.Function`` that a model calls, by one run of a copy."""
    if program.arguments is None or isinstance(model, torch.jit.ScriptModule):
        return []
    try:
        with undisturbed(), torch.enable_grad():
            found = copied(model)(*program.arguments)
    except Exception:  # the user's operations may raise anything
        return []
    waiting = [leaf.grad_fn for leaf in pytree.tree_leaves(found) if hasattr(leaf, "grad_fn")]
    names: dict[str, None] = {}
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        function = getattr(node, "_forward_cls", None)
        if function is not None:
            names[function.__name__] = None
        waiting += [before for before, _ in node.next_functions]
    return list(names)


def _inputs(program: Program) -> list[Any]:
    """The values of the placeholders of the captured graph in their order."""
    captured = program.captured
    leaves = pytree.tree_leaves(program.arguments)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    given = dict(zip(captured.entries, tensors, strict=True))
    stored = {node: tensor for node, (tensor, _) in captured.held.items()}
    known = {**captured.given, **stored, **given}
    return [known.get(node) for node in captured.graph.nodes if node.op == "placeholder"]


class _Noting(torch.fx.Interpreter):
    """Runs a graph and notes mean squares at some nodes."""

    def __init__(self, program: Program, wanted: dict[Any, str]) -> None:
        super().__init__(program.captured.module, graph=program.captured.graph)
        self.wanted, self.found = wanted, dict[str, float]()

    def run_node(self, n: Any) -> Any:
        """The value of a node."""
        value = super().run_node(n)
        if n in self.wanted and isinstance(value, torch.Tensor) and value.is_floating_point():
            self.found.setdefault(self.wanted[n], float(value.double().square().mean()))
        return value
