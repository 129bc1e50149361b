"""Dense networks drawn and differentiated in NumPy, and random networks.

Independent truth for exact moments.

Nothing here knows the recursion: weights are drawn, feature maps computed, Jacobians propagated
backwards as matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp

from kcalc.network import layers
from kcalc.network.network import Network, sum_weights

Array = np.ndarray
Node = Hashable

LAWS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "gaussian": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-(3**0.5), 3**0.5, shape),
    "laplace": lambda rng, shape: rng.laplace(0, 0.5**0.5, shape),
    "rademacher": lambda rng, shape: rng.choice([-1.0, 1.0], shape),
}


@dataclass(frozen=True)
class Estimate:
    """A sample mean and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, sample: Array) -> Estimate:
        return cls(float(sample.mean()), float(sample.std(ddof=1) / np.sqrt(sample.size)))

    def deviation(self, expected: float) -> float:
        """How far the expected value is, in standard errors (rounding counts as none)."""
        distance = abs(self.mean - expected)
        return 0.0 if distance <= 1e-10 * abs(expected) else distance / max(self.error, 1e-300)


def flat_input(n: int) -> Array:
    """All entries of one size, norm 1, signs alternating."""
    return np.where(np.arange(n) % 2, -1.0, 1.0) / np.sqrt(n)


def draw(
    network: Network,
    draws: int,
    rng: np.random.Generator,
    laws: dict[Node, str] | str = "gaussian",
    x: Array | None = None,
) -> Any:
    """(|y|^2 by node, |J|^2 by Affine) of many draws, each an array of shape (draws,)."""

    def entries(node: Node, shape: tuple[int, int]) -> Array:
        return LAWS[laws if isinstance(laws, str) else laws[node]](rng, (draws, *shape))

    return propagated(network, entries, x)


def propagated(
    network: Network, entries: Callable[[Node, tuple[int, int]], Array], x: Array | None = None
) -> Any:
    """(|y|^2 by node, |J|^2 by Affine) for many weights.

    ``entries(node, (out, in))`` has shape (many, out, in) and variance 1.
    """
    values: dict[Node, Array] = {}
    weights: dict[Node, Array] = {}
    for node, layer, parents in network.steps():
        below = [values[p] for p in parents]
        if isinstance(layer, layers.Affine):
            n = below[0].shape[1]
            weights[node] = entries(node, (layer.features, n)) * float(layer.sigma_w) / np.sqrt(n)  # type: ignore[arg-type]
            values[node] = np.einsum(
                "bij,bj->bi", weights[node], np.broadcast_to(below[0], (len(weights[node]), n))
            )
        elif isinstance(layer, layers.Input):
            values[node] = (flat_input(layer.features) if x is None else x)[None]  # type: ignore[arg-type]
        elif isinstance(layer, layers.Sum):
            values[node] = sum(
                float(w) * h for w, h in zip(sum_weights(layer, len(below)), below, strict=True)
            )  # type: ignore[assignment]
        elif isinstance(layer, layers.Concat):
            many = max(len(h) for h in below)
            values[node] = np.concatenate(
                [np.broadcast_to(h, (many, h.shape[1])) for h in below], axis=1
            )
        elif isinstance(layer, layers.Scale):
            values[node] = float(layer.factor) * below[0]
        elif isinstance(layer, layers.Nonlinear):
            values[node] = np.asarray(layer.activation(below[0]))
        else:
            values[node] = below[0]
    many = max(len(v) for v in values.values())
    values = {node: np.broadcast_to(v, (many, v.shape[1])) for node, v in values.items()}
    return {node: np.sum(v**2, axis=1) for node, v in values.items()}, _jacobians(
        network, values, weights
    )


def _jacobians(
    network: Network, values: dict[Node, Array], weights: dict[Node, Array]
) -> dict[Node, Array]:
    out = network.outputs[0]
    draws, n = values[out].shape
    back: dict[Node, Array] = {node: np.zeros((draws, n, v.shape[1])) for node, v in values.items()}
    back[out] = back[out] + np.eye(n)
    found: dict[Node, Array] = {}
    for node, layer, parents in reversed(list(network.steps())):
        own = back[node]
        if isinstance(layer, layers.Affine):
            found[node] = np.sum(own**2, axis=(1, 2)) * np.sum(values[parents[0]] ** 2, axis=1)
            back[parents[0]] += own @ weights[node]
        elif isinstance(layer, layers.Sum):
            for w, p in zip(sum_weights(layer, len(parents)), parents, strict=True):
                back[p] += float(w) * own
        elif isinstance(layer, layers.Concat):
            start = 0
            for p in parents:
                stop = start + values[p].shape[1]
                back[p] += own[:, :, start:stop]
                start = stop
        elif isinstance(layer, layers.Nonlinear):
            slope = np.asarray(layer.activation.numeric(1)(values[parents[0]]))
            back[parents[0]] += own * slope[:, None, :]
        elif isinstance(layer, layers.Scale):
            back[parents[0]] += float(layer.factor) * own
        elif not isinstance(layer, layers.Input):
            back[parents[0]] += own
    return found


def deviations(
    moments: Any,
    network: Network,
    draws: int,
    seed: int,
    laws: Any = "gaussian",
    x: Array | None = None,
    jacobian: bool = True,
) -> dict[Any, float]:
    """{(what, node): standard errors between predicted and drawn E s and E s^2} of all nodes and
    weights.
    """
    rng, batch = np.random.default_rng(seed), max(1, min(draws, 4000))
    parts = [draw(network, batch, rng, laws, x) for _ in range(max(1, draws // batch))]
    found: dict[Any, float] = {}
    tables = [("y", 0, moments.nodes)] + ([("J", 1, moments.weights)] if jacobian else [])
    for name, place, table in tables:
        for node, moment in table.items():
            sample = np.concatenate([part[place][node] for part in parts])
            found[name, 2, node] = Estimate.of(sample).deviation(moment.mean)
            found[name, 4, node] = Estimate.of(sample**2).deviation(moment.fourth)
    return found


# -- networks --------------------------------------------------------------------------------------


def resnet(blocks: int, branch: int, n: int, alpha: Any = 1) -> Network:
    """y + W_m relu(... relu(W_1 y)), hidden weights 2 alpha/n, the last alpha/n."""
    steps: list[Any] = [("x", layers.Input(n), ())]
    tail: Node = "x"
    for b in range(blocks):
        h = tail
        for j in range(branch - 1):
            steps.append(
                (f"W{b}{j}", layers.Affine(n, sigma_w=sp.sqrt(2 * sp.sympify(alpha))), (h,))
            )
            steps.append((f"r{b}{j}", layers.Nonlinear("relu"), (f"W{b}{j}",)))
            h = f"r{b}{j}"
        steps.append(
            (f"W{b}{branch - 1}", layers.Affine(n, sigma_w=sp.sqrt(sp.sympify(alpha))), (h,))
        )
        steps.append((f"y{b}", layers.Sum(), (tail, f"W{b}{branch - 1}")))
        tail = f"y{b}"
    return Network.from_steps(steps)


def densenet(count: int, n: int, alpha: Any = 1, flat: bool = False) -> Network:
    """y_l = relu(W [y_0 ... y_{l-1}]), weights 2 alpha/(n l).

    ``flat``: every Concat lists all, else it extends the one before.
    """
    steps: list[Any] = [("y0", layers.Input(n), ())]
    tail: Node = "y0"
    for i in range(1, count + 1):
        steps.append((f"W{i}", layers.Affine(n, sigma_w=sp.sqrt(2 * sp.sympify(alpha))), (tail,)))
        steps.append((f"y{i}", layers.Nonlinear("relu"), (f"W{i}",)))
        if i < count:
            steps.append(
                (
                    f"c{i}",
                    layers.Concat(),
                    tuple(f"y{j}" for j in range(i + 1)) if flat else (tail, f"y{i}"),
                )
            )
            tail = f"c{i}"
    return Network.from_steps(steps)


def crelu(depth: int, n: int, alpha: Any = 1) -> Network:
    """y = W [relu(y), relu(-y)] repeated after a first linear layer.

    Entries of weights have variance alpha/n.
    """
    steps: list[Any] = [
        ("x", layers.Input(n), ()),
        ("W0", layers.Affine(n, sigma_w=sp.sqrt(sp.sympify(alpha))), ("x",)),
    ]
    for i in range(1, depth + 1):
        steps.append((f"p{i}", layers.Nonlinear("relu"), (f"W{i - 1}",)))
        steps.append((f"m{i}", layers.Scale(-1), (f"W{i - 1}",)))
        steps.append((f"n{i}", layers.Nonlinear("relu"), (f"m{i}",)))
        steps.append((f"c{i}", layers.Concat(), (f"p{i}", f"n{i}")))
        steps.append(
            (f"W{i}", layers.Affine(n, sigma_w=sp.sqrt(2 * sp.sympify(alpha))), (f"c{i}",))
        )
    return Network.from_steps(steps)


ACTIVATIONS = ("relu", "leaky_relu", "abs", "identity", "abrelu")


def random_network(seed: int, size: int = 9) -> Network:
    """A random network of the class.

    Weights, activations after them, sums with fresh addends, stacks, scales, reused nodes.
    """
    rng = np.random.default_rng(seed)
    width = {"x": int(rng.integers(2, 6))}
    steps: list[Any] = [("x", layers.Input(width["x"]), ())]
    linear: list[str] = []
    usable = ["x"]
    for i in range(size):
        kind = rng.choice(["affine", "relu", "relu", "sum", "sum", "concat", "scale"])
        source = str(rng.choice(usable[-4:]))
        name = f"{kind}{i}"
        if kind == "relu" and linear:
            source = str(rng.choice(linear))
            steps.append((name, layers.Nonlinear(str(rng.choice(ACTIVATIONS))), (source,)))
            width[name] = width[source]
        elif kind == "sum":
            other = str(rng.choice(usable[-4:]))
            steps.append(
                (
                    f"W{i}",
                    layers.Affine(width[source], sigma_w=float(rng.uniform(0.5, 1.5))),
                    (other,),
                )
            )
            width[f"W{i}"] = width[source]
            steps.append(
                (
                    name,
                    layers.Sum((float(rng.uniform(0.3, 1)), float(rng.uniform(-1, 1)))),
                    (source, f"W{i}"),
                )
            )
            width[name] = width[source]
        elif kind == "concat":
            other = str(rng.choice(usable[-4:]))
            steps.append((name, layers.Concat(), (source, other)))
            width[name] = width[source] + width[other]
        elif kind == "scale":
            steps.append((name, layers.Scale(float(rng.choice([-0.7, 1.2]))), (source,)))
            width[name] = width[source]
        else:
            width[name] = int(rng.integers(2, 6))
            steps.append(
                (name, layers.Affine(width[name], sigma_w=float(rng.uniform(0.7, 1.6))), (source,))
            )
            linear.append(name)
        usable.append(name)
    read = {p for _, _, parents in steps for p in parents}
    loose = [name for name, _, _ in steps if name not in read]
    steps.append(("join", layers.Concat(), tuple(loose)))
    steps.append(("W", layers.Affine(3), ("join",)))
    steps.append(("out", layers.Nonlinear("relu"), ("W",)))
    return Network.from_steps(steps)
