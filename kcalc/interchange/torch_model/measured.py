"""Run a captured program to measure mean squares of its feature maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .captured import TorchProgram
from .examples import undisturbed


def mean_squares(program: TorchProgram, names: Sequence[str]) -> dict[str, float]:
    """Return {operation: mean square of its output} for the example inputs of the reading.

    The result is empty if the model was read with shapes, or if it cannot run again.
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


def _inputs(program: TorchProgram) -> list[Any]:
    """Return the values of the placeholders of the captured graph in order."""
    captured = program.captured
    leaves = pytree.tree_leaves(program.arguments)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    given = dict(zip(captured.entries, tensors, strict=True))
    stored = {node: tensor for node, (tensor, _) in captured.held.items()}
    known = {**captured.given, **stored, **given}
    return [known.get(node) for node in captured.graph.nodes if node.op == "placeholder"]


class _Noting(torch.fx.Interpreter):
    """Runs a graph and records the mean squares of some nodes."""

    def __init__(self, program: TorchProgram, wanted: dict[Any, str]) -> None:
        super().__init__(program.captured.module, graph=program.captured.graph)
        self.wanted, self.found = wanted, dict[str, float]()

    def run_node(self, n: Any) -> Any:
        """Run a node, and record the mean square of its value."""
        value = super().run_node(n)
        if n in self.wanted and isinstance(value, torch.Tensor) and value.is_floating_point():
            self.found.setdefault(self.wanted[n], float(value.double().square().mean()))
        return value
