"""Dense networks drawn and differentiated in NumPy, and random networks.

Independent truth for exact moments. Nothing here knows the recursion: weights are drawn, feature
maps computed, and matrices of cotangents propagated backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp

from kcalc.network import layers
from kcalc.network.network import Network

Array = np.ndarray
Node = Hashable

# The functions of known activations and their derivatives, written out.
FUNCTIONS: dict[str, Any] = {
    "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
    "leaky_relu(1/5)": (lambda x: np.where(x > 0, x, x / 5), lambda x: np.where(x > 0, 1.0, 0.2)),
}


@dataclass(frozen=True)
class Estimate:
    """A sample mean and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, sample: Array) -> Any:
        return cls(float(sample.mean()), float(sample.std(ddof=1) / np.sqrt(sample.size)))

    def deviation(self, expected: float) -> float:
        """How far the expected value is, in standard errors (rounding counts as none)."""
        distance = abs(self.mean - expected)
        return 0.0 if distance <= 1e-10 * abs(expected) else distance / max(self.error, 1e-300)


def run(
    network: Network,
    entries: Callable[[Node, tuple[int, int]], Array],
    inputs: Callable[[Any], Array],
    cotangents: Callable[[Array], Array],
    rng: np.random.Generator | None = None,
) -> tuple[dict[Node, Array], dict[Node, Array]]:
    """({node: values}, {node: gradients}), (draws, channels) and (draws, cotangents, channels).

    ``entries(node, (out, in))`` has shape (draws, out, in) and variance 1, ``inputs`` gives the
    values of an input layer, and ``cotangents`` those of the values of the first output.
    """
    values: dict[Node, Array] = {}
    back: dict[Node, Callable[[Array], list[Array]]] = {}
    for node, layer, parents in network.steps():
        if parents:
            xs = [values[p] for p in parents]
            values[node], back[node] = _step(layer, xs, lambda s, n=node: entries(n, s), rng)
        else:
            values[node], back[node] = inputs(layer), lambda g: []
    many, out = max(map(len, values.values())), network.outputs[0]
    start = cotangents(values[out])
    gradients = {node: np.zeros((many, start.shape[1], v.shape[1])) for node, v in values.items()}
    gradients[out] += start
    for node, _, parents in reversed(list(network.steps())):
        for parent, sent in zip(parents, back[node](gradients[node]), strict=True):
            gradients[parent] += sent
    return values, gradients


def _step(layer: Any, xs: list[Array], entries: Any, rng: Any) -> tuple[Array, Any]:
    """What a layer makes of its inputs, and of the gradient of that."""
    match layer:
        case layers.Affine():
            n = xs[0].shape[1]
            weight = entries((layer.features, n)) * float(layer.sigma_w) / np.sqrt(n)
            return (weight @ xs[0][..., None])[..., 0], lambda g: [g @ weight]
        case layers.Sum():
            weights = [float(w) for w in layer.weights or (1,) * len(xs)]
            total = sum(w * x for w, x in zip(weights, xs, strict=True))
            return total, lambda g: [w * g for w in weights]
        case layers.Concat():
            ends = np.cumsum([x.shape[1] for x in xs])[:-1]
            draws = max(map(len, xs))
            equal = [np.broadcast_to(x, (draws, x.shape[1])) for x in xs]
            return np.concatenate(equal, axis=1), lambda g: np.split(g, ends, axis=2)
        case layers.Nonlinear():
            own = (layer.activation, layer.activation.numeric(1))
            function, derivative = FUNCTIONS.get(layer.activation.name, own)
            slope = np.asarray(derivative(xs[0]))[:, None]
            return np.asarray(function(xs[0])), lambda g: [g * slope]
        case layers.Scale():
            factor = float(layer.factor)
        case layers.Dropout():
            rate = float(layer.rate)
            factor = (rng.uniform(size=xs[0].shape) >= rate) / (1 - rate)
            return factor * xs[0], lambda g: [factor[:, None] * g]
        case _:
            factor = 1.0
    return factor * xs[0], lambda g: [factor * g]


def propagated(
    network: Network, entries: Callable[[Node, tuple[int, int]], Array], x: Array | None = None
) -> Any:
    """(|y|^2 by node, |J|^2 by Affine) for many weights, of an input of norm 1 and entries of one
    size and alternating signs if none is given.
    """

    def given(layer: Any) -> Array:
        signs = np.where(np.arange(layer.features) % 2, -1.0, 1.0)
        return (signs / np.sqrt(layer.features) if x is None else x)[None]

    values, gradients = run(network, entries, given, lambda out: np.eye(out.shape[1])[None])
    many = max(map(len, values.values()))
    squares = {n: np.broadcast_to(np.sum(v**2, axis=1), many) for n, v in values.items()}
    return squares, {
        node: np.sum(gradients[node] ** 2, axis=(1, 2)) * squares[network.parents(node)[0]]
        for node in network.nodes_of(layers.Affine)
    }


def deviations(moments: Any, network: Network, seed: int) -> dict[Any, float]:
    """{(what, node): standard errors between predicted and drawn E s and E s^2} of all nodes and
    weights.
    """
    rng = np.random.default_rng(seed)

    def entries(node: Node, shape: tuple[int, int]) -> Array:
        return rng.standard_normal((4000, *shape))

    parts = [propagated(network, entries) for _ in range(3)]
    found: dict[Any, float] = {}
    for place, table in enumerate((moments.nodes, moments.weights)):
        for node, moment in table.items():
            sample = np.concatenate([part[place][node] for part in parts])
            found["yJ"[place], 2, node] = Estimate.of(sample).deviation(moment.mean)
            found["yJ"[place], 4, node] = Estimate.of(sample**2).deviation(moment.fourth)
    return found


# -- networks --------------------------------------------------------------------------------------


def crelu(depth: int, n: int, alpha: Any) -> Network:
    """y = W [relu(y), relu(-y)] repeated after a first linear layer.

    Entries of weights have variance alpha/n.
    """
    steps: list[Any] = [
        ("x", layers.Input(n), ()),
        ("W0", layers.Affine(n, sigma_w=sp.sqrt(alpha)), ("x",)),
    ]
    for i in range(1, depth + 1):
        steps += [
            (f"p{i}", layers.Nonlinear("relu"), (f"W{i - 1}",)),
            (f"m{i}", layers.Scale(-1), (f"W{i - 1}",)),
            (f"n{i}", layers.Nonlinear("relu"), (f"m{i}",)),
            (f"c{i}", layers.Concat(), (f"p{i}", f"n{i}")),
            (f"W{i}", layers.Affine(n, sigma_w=sp.sqrt(2 * alpha)), (f"c{i}",)),
        ]
    return Network.from_steps(steps)
