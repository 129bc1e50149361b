"""What simulators of networks at initialisation share; no kernel calculus anywhere."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import networkx as nx
import numpy as np
from scipy import special, stats

Array = np.ndarray
Node = Hashable
ROUNDING = 3e-6  # single precision, accumulated over a deep network

FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "erf": special.erf,
    "softplus": lambda x: np.logaddexp(x, 0),
    "leaky_relu(1/5)": lambda x: np.where(x > 0, x, x / 5),
    "identity": lambda x: x,
    "bump": lambda x: x * np.exp(-x * x / 2) + x / 2,
    "sin": np.sin,
}
"""Activations by name, written out; others are evaluated by calling the activation."""


@dataclass(frozen=True)
class Estimate:
    """Sample mean and standard error of one number over ``draws`` independent networks."""

    mean: float
    error: float
    draws: int

    def deviation(self, expected: float) -> float:
        """How far ``expected`` lies from the mean, in standard errors of a normal law.

        The t statistic (Student's, ``draws - 1`` degrees of freedom) is mapped to the normal
        quantile of the same probability; differences at the level of single precision count as
        none.
        """
        distance = abs(self.mean - expected)
        floor = ROUNDING * max(abs(expected), 1e-2)
        if distance <= floor:
            return 0.0
        t = distance / max(self.error, floor / 4)
        return float(stats.norm.isf(np.exp(stats.t.logsf(t, self.draws - 1))))


def slot_parents(graph: nx.DiGraph, node: Node) -> list[Node]:
    """The parents of a node in slot order, read off the edges."""
    slots: dict[int, Node] = {}
    for parent, _, data in graph.in_edges(node, data=True):
        taken = data["slot"]
        slots.update(dict.fromkeys(taken if isinstance(taken, tuple) else (taken,), parent))
    return [slots[k] for k in sorted(slots)]
