"""A plain simulator of networks at initialisation.

Real random features, no kernel calculus anywhere.

A network is run on two inputs whose mean squares and cosine are exact. Width is finite, weights are
random, and what is reported per node is the measured mean square, the measured cosine, and their
standard errors over independent draws.

An affine layer is not formed as a matrix. For two fixed input vectors the rows of a Gaussian weight
matrix (and the bias) give independent pairs of Gaussians with covariance
``sigma_w^2 h_i . h_j / fan_in + sigma_b^2``, whatever the two vectors are, so drawing those pairs
is exact in distribution and costs O(width). ``matrices=True`` forms the matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import networkx as nx
import numpy as np
from scipy import special, stats

from kcalc.network import layers

Array = np.ndarray
Node = Hashable
ROUNDING = 3e-6  # single precision, accumulated over a deep network

FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "erf": special.erf,
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
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


def affine(
    layer: layers.Affine, h: Array, width: int, rng: np.random.Generator, matrices: bool = False
) -> Array:
    """``W h + b`` for both inputs, shape (2, features).

    Channels in ``groups`` blocks with weights of their own.
    """
    groups, out = layer.groups, layer.features or width
    below = h.reshape(2, groups, -1)
    fan_in, fan_out = below.shape[2], out // groups
    scale, shift = float(layer.sigma_w), float(layer.sigma_b)
    if matrices or fan_in == 1:
        weights = rng.standard_normal((groups, fan_out, fan_in), dtype=np.float32) * np.float32(
            scale / np.sqrt(fan_in)
        )
        bias = shift * rng.standard_normal((groups, fan_out), dtype=np.float32)
        return (
            (np.einsum("gok,igk->igo", weights, below, optimize=True) + bias)
            .reshape(2, out)
            .astype(np.float32)
        )
    k11, k22, k12 = (
        scale**2 * np.einsum("gk,gk->g", below[i], below[j]) / fan_in + shift**2
        for i, j in ((0, 0), (1, 1), (0, 1))
    )
    first = np.sqrt(k11)
    along = np.divide(k12, first, out=np.zeros_like(k12), where=first > 0)
    across = np.sqrt(np.maximum(k22 - along**2, 0))
    noise = rng.standard_normal((2, groups, fan_out), dtype=np.float32)
    upper = first[:, None] * noise[0]
    lower = along[:, None] * noise[0] + across[:, None] * noise[1]
    return np.stack([upper, lower]).reshape(2, out).astype(np.float32)


def layer_norm(h: Array) -> Array:
    """Centred and divided by the standard deviation, each input by itself."""
    centred = h - h.mean(axis=1, keepdims=True)
    return centred / np.sqrt(np.mean(centred**2, axis=1, keepdims=True))


def slot_parents(graph: nx.DiGraph, node: Node) -> list[Node]:
    """The parents of a node in slot order, read off the edges."""
    slots: dict[int, Node] = {}
    for parent, _, data in graph.in_edges(node, data=True):
        taken = data["slot"]
        slots.update(dict.fromkeys(taken if isinstance(taken, tuple) else (taken,), parent))
    return [slots[k] for k in sorted(slots)]


def run(
    graph: nx.DiGraph,
    inputs: Mapping[Node, Array],
    width: int,
    rng: np.random.Generator,
    matrices: bool = False,
) -> dict[Node, Array]:
    """The feature map of every node, shape (2, channels), for one draw of all weights."""
    values: dict[Node, Array] = {}
    for node in nx.lexicographical_topological_sort(graph, key=str):
        layer = graph.nodes[node]["layer"]
        values[node] = (
            inputs[node]
            if isinstance(layer, layers.Input)
            else apply(layer, [values[p] for p in slot_parents(graph, node)], width, rng, matrices)
        )
    return values


def apply(
    layer: layers.Layer,
    below: list[Array],
    width: int,
    rng: np.random.Generator,
    matrices: bool = False,
) -> Array:
    """What one layer emits; draws its weights if it has any."""
    match layer:
        case layers.Affine():
            return affine(layer, below[0], width, rng, matrices)
        case layers.Nonlinear():
            return FUNCTIONS.get(layer.activation.name, layer.activation)(below[0]).astype(
                np.float32
            )
        case layers.Sum():
            weights = layer.weights or (1,) * len(below)
            return sum(np.float32(w) * h for w, h in zip(weights, below, strict=True))
        case layers.Product():
            return np.prod(np.stack(below), axis=0)
        case layers.Concat():
            return np.concatenate(below, axis=1)
        case layers.Scale():
            return np.float32(layer.factor) * below[0]
        case layers.LayerNorm():
            return layer_norm(below[0])
        case layers.RMSNorm():
            return below[0] / np.sqrt(np.mean(below[0] ** 2, axis=1, keepdims=True))
        case layers.Dropout(active=True):
            kept = rng.random(below[0].shape) >= float(layer.rate)
            return (below[0] * kept / (1 - float(layer.rate))).astype(np.float32)
        case layers.Dropout() | layers.Identity() | layers.Flatten() | layers.Pool():
            return below[0]
        case _:
            raise NotImplementedError(type(layer).__name__)
