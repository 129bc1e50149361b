"""Singular values of the Jacobians between nodes of a network at initialisation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np

from ..backend import Model
from ..backend.initialisers import random_bits
from ..calculi.gradients import gradients
from ..foundation.errors import KcalcError, glimpse
from ..foundation.guests import DRAWINGS
from ..foundation.printing import Shown, plain, shown
from ..network.network import Network
from .inputs import InputPairs
from .probes import Probes, measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Node = Hashable
Array = Any


@dataclass(frozen=True, eq=False)
class Jacobians(Shown):
    """Singular values of d node / d start at one position.

    The derivative is with respect to a common shift of all positions of ``start``.

    ``values[node]`` contains the singular values in descending order, shape (draws, k), where k is
    the smaller number of channels. ``mean_square[node]`` is |J|^2 divided by the number of channels
    of the node, shape (draws,). ``expected[node]`` is the mean square at infinite width. Nodes for
    which the theory gives no value are missing from ``expected``.
    """

    start: Node
    values: dict[Node, np.ndarray]
    mean_square: dict[Node, np.ndarray]
    expected: dict[Node, float]

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot histograms of the singular values."""
        return DRAWINGS["Jacobians"](
            {f"d {node} / d {self.start}": s for node, s in self.values.items()}, ax=ax
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data."""
        rows = {
            node: {"singular_values": values, "mean_square": self.mean_square[node]}
            for node, values in self.values.items()
        }
        return {"start": str(self.start), "nodes": plain(rows), "expected": plain(self.expected)}

    def _frame(self) -> list[dict[str, Any]]:
        return [
            {
                "node": str(node),
                "draw": draw,
                "rank": place + 1,
                "singular_value": value,
                "mean_square": self.mean_square[node][draw],
            }
            | {"expected": self.expected.get(node)}
            for node, values in self.values.items()
            for (draw, place), value in np.ndenumerate(values)
        ]

    def _rows(self) -> list[tuple[str, ...]]:
        head = ("node", "largest s", "median s", "|J|^2 / channels", "expected")
        rows = [
            (s[:, 0].mean(), np.median(s), self.mean_square[node].mean(), self.expected.get(node))
            for node, s in self.values.items()
        ]
        names = map(str, self.values)
        return [head, *((n, *(shown(v, 4) for v in r)) for n, r in zip(names, rows, strict=True))]

    def __repr__(self) -> str:
        return f"Jacobians({len(self.values)} nodes with respect to {self.start!r})"


def layer_jacobians(
    model: Model,
    nodes: Sequence[Node] | None = None,
    start: Node = None,
    key: Any = 0,
    draws: int = 1,
    q: float = 1.0,
    heuristic: bool = False,
) -> Jacobians:
    """Compute the singular values of ``d node / d start`` for random weights and inputs.

    The random input has mean square ``q``.

    Parameters: ``nodes`` defaults to four nodes spread over the network and its first output.
    ``start`` may be any node before ``nodes`` and defaults to the first input. Returns: a
    :class:`Jacobians`. Raises: KcalcError for unknown nodes and for nodes that do not depend on
    ``start``.
    """
    import jax

    network = model.network
    start = network.inputs[0] if start is None else start
    chosen = spread(network) if nodes is None else tuple(nodes)
    for node in (start, *chosen):
        network.layer(node)
    cases = InputPairs.of(network, 1.0, q, None)
    shapes = cases.shapes(model)
    plan = model.plan()
    probes = Probes(model, plan)

    def one(k: Array) -> list[Array]:
        ours, weights = jax.random.split(k)
        inputs = {n: x[0, 0, 0] for n, x in cases.draw(ours, model, shapes, 1).items()}
        return probes.jacobians(plan.draw(weights, model._dtype), inputs, start, chosen)

    keys = jax.random.split(random_bits(key), draws) if draws > 1 else random_bits(key)[None]
    purpose = ("jacobians", start, chosen, *cases.key)
    drawn = measure(model, plan, purpose, one, keys)
    matrices = dict(zip(chosen, drawn, strict=True))
    for node, matrix in matrices.items():
        if not np.isfinite(matrix).all():
            raise KcalcError(
                f"node {node!r}: its Jacobian overflows; use a dtype of higher precision or fewer "
                "layers"
            )
        if not matrix.any():
            raise KcalcError(
                f"node {node!r} does not depend on {glimpse(start)}; choose nodes after it"
            )
    values = {node: np.linalg.svd(matrix, compute_uv=False) for node, matrix in matrices.items()}
    squares = {
        node: (matrix**2).sum(axis=(1, 2)) / matrix.shape[1] for node, matrix in matrices.items()
    }
    return Jacobians(start, values, squares, _expected(network, start, chosen, q, heuristic))


def spread(network: Network) -> tuple[Node, ...]:
    """Return four nodes spread evenly over the network, and its first output."""
    last = network.outputs[0]
    inner = [node for node in network if node not in network.inputs and node != last]
    places = [round(i) for i in np.linspace(0, len(inner) - 1, min(4, len(inner)))] if inner else []
    return tuple(dict.fromkeys([*(inner[i] for i in places), last]))


def _expected(
    network: Network, start: Node, nodes: Sequence[Node], q: float, heuristic: bool
) -> dict[Node, float]:
    """Return {node: |J|^2 / channels at infinite width}; empty unless ``start`` is an input."""
    found: dict[Node, float] = {}
    if start not in network.inputs:
        return found
    for node in nodes:
        try:
            before = _up_to(network, node)
            known = gradients(before, q, node, assume_independent=heuristic).nodes
        except KcalcError:
            continue
        if start in known:  # missing if the theory covers only the gradients of weights
            found[node] = known[start]
    return found


def _up_to(network: Network, node: Node) -> Network:
    """Return the subnetwork that ends at a node."""
    needed = {node, *nx.ancestors(network.graph, node)}
    return Network.from_steps([step for step in network.steps() if step[0] in needed], [node])
