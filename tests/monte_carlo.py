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
from typing import Any

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


@dataclass(frozen=True)
class Measured:
    """What a simulation says of one node."""

    q1: Estimate
    q2: Estimate
    c: Estimate

    def deviations(self, expected: tuple[float, float, float]) -> tuple[float, float, float]:
        """Deviations of expected (q1, q2, c)."""
        q1, q2, c = expected
        return (
            self.q1.deviation(float(q1)),
            self.q2.deviation(float(q2)),
            self.c.deviation(float(c)),
        )


def input_pair(rng: np.random.Generator, width: int, c: float, q1: float, q2: float) -> Array:
    """Two vectors, shape (2, width), with channel mean 0, mean squares q1 and q2 and cosine c, all
    exact up to rounding.

    Entries are far from Gaussian (two-sided exponential with a skew), so that nothing may rely on
    Gaussian inputs.
    """
    raw = rng.exponential(size=(2, width)) - 0.4 * rng.exponential(size=(2, width))
    raw -= raw.mean(axis=1, keepdims=True)
    first = raw[0] / np.sqrt(np.mean(raw[0] ** 2))
    other = raw[1] - np.mean(raw[1] * first) * first
    other /= np.sqrt(np.mean(other**2))
    second = c * first + np.sqrt(max(1 - c * c, 0.0)) * other
    return np.stack([np.sqrt(q1) * first, np.sqrt(q2) * second]).astype(np.float32)


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


def simulate(
    network: Any,
    c: float = 0.0,
    q1: float = 1.0,
    q2: float | None = None,
    draws: int = 24,
    width: int = 65536,
    seed: int = 0,
    matrices: bool = False,
) -> dict[Node, Measured]:
    """(q1, q2, c) of every node, measured on ``draws`` independent networks and inputs.

    ``width`` is the number of channels of inputs and affine layers that do not give their own.
    Finite width biases a mean by O(depth / width) and a draw scatters by O(sqrt(depth / width)), so
    the bias stays below a standard error as long as ``draws`` is well below ``width / depth``.
    """
    graph = network.graph
    rng = np.random.default_rng(seed)
    sources = {
        n: data["layer"].features or width
        for n, data in graph.nodes(data=True)
        if isinstance(data["layer"], layers.Input)
    }
    samples: dict[Node, list[tuple[float, float, float]]] = {node: [] for node in graph}
    for _ in range(draws):
        pairs = {
            node: input_pair(rng, k, c, q1, q1 if q2 is None else q2) for node, k in sources.items()
        }
        for node, h in run(graph, pairs, width, rng, matrices).items():
            k = h.shape[1]
            a, b, ab = (float(np.dot(h[i], h[j])) / k for i, j in ((0, 0), (1, 1), (0, 1)))
            samples[node].append((a, b, ab / np.sqrt(a * b)))
    out = {}
    for node, rows in samples.items():
        table = np.array(rows)
        means, errors = table.mean(axis=0), table.std(axis=0, ddof=1) / np.sqrt(draws)
        out[node] = Measured(
            *(Estimate(float(m), float(e), draws) for m, e in zip(means, errors, strict=True))
        )
    return out
