"""Networks with random weights, run forward and back in plain NumPy, a fresh network per draw.

No kcalc rule is used.

Arrays are (draws, locations, channels). Weights, inputs and cotangents are independent from draw to
draw, so that second moments come with a standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_oracle import starts, taps, two

from kcalc.network import layers

Array = np.ndarray
Node = Hashable
FUNCTIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
    "leaky_relu(1/5)": (lambda x: np.where(x > 0, x, x / 5), lambda x: np.where(x > 0, 1.0, 0.2)),
    "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    "identity": (lambda x: x, np.ones_like),
}
LAWS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "gaussian": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-(3**0.5), 3**0.5, shape),
    "laplace": lambda rng, shape: rng.laplace(0, 0.5**0.5, shape),
    "ternary": lambda rng, shape: rng.choice([-1.0, 0, 0, 1], shape) * 2**0.5,
}


@dataclass(frozen=True)
class Mean:
    """A sample mean with its standard error."""

    value: float
    error: float

    def off(self, expected: float) -> float:
        """How many standard errors ``expected`` lies away."""
        return abs(self.value - expected) / max(self.error, 1e-13 * abs(expected))


def mean_of(samples: Array) -> Mean:
    """Of one number per draw."""
    return Mean(float(samples.mean()), float(samples.std(ddof=1) / len(samples) ** 0.5))


@dataclass(frozen=True)
class Measured:
    """{node: E x^2}, {node: E g^2} by location, means over channels; {Affine: nu}.

    All :class:`Mean`.
    """

    forward: dict[Node, Mean]
    backward: dict[Node, Mean]
    ratio: dict[Node, Mean]
    forward_maps: dict[Node, Array]
    scalars: dict[Node, Mean]


def sources(
    sizes: tuple[int, int], window: tuple[int, int], stride: tuple[int, int], padding: Any
) -> tuple[Array, tuple[int, int]]:
    """(output locations, taps) of input locations, -1 outside, and the output's extents."""
    rows, columns = (
        starts(n, k, s, padding, i)
        for i, (n, k, s) in enumerate(zip(sizes, window, stride, strict=True))
    )
    out = np.full((len(rows) * len(columns), window[0] * window[1]), -1)
    for a, b, i, j, r, c in taps(rows, columns, window, sizes, padding):
        out[a * len(columns) + b, i * window[1] + j] = r * sizes[1] + c
    return out, (len(rows), len(columns))


def gathered(x: Array, places: Array) -> Array:
    """(draws, output locations, taps, channels), 0 outside."""
    padded = np.concatenate([x, np.zeros((x.shape[0], 1, x.shape[2]))], axis=1)
    return padded[:, places]


def scattered(g: Array, places: Array, size: int) -> Array:
    """The transpose of :func:`gathered`."""
    out = np.zeros((g.shape[0], size + 1, g.shape[3]))
    for tap in range(places.shape[1]):
        for output, place in enumerate(places[:, tap]):
            out[:, place] += g[:, output, tap]
    return out[:, :size]


class Run:
    """One batch of draws of a network."""

    def __init__(
        self,
        network: Any,
        features: Mapping[Node, int],
        draws: int,
        seed: int,
        law: str,
        moment: float,
    ) -> None:
        self.network, self.features, self.draws = network, features, draws
        self.rng, self.law, self.moment = np.random.default_rng(seed), LAWS[law], moment
        self.x: dict[Node, Array] = {}
        self.shape: dict[Node, Any] = {}
        self.back: dict[Node, Callable[[Array], list[Array]]] = {}
        self.gradient: dict[Node, Array] = {}
        self.variance: dict[Node, float] = {}
        self.scalar: dict[Node, Array] = {}
        for node, layer, parents in network.steps():
            self.forward(
                node, layer, [self.x[p] for p in parents], [self.shape[p] for p in parents]
            )
        self.g: dict[Node, Array] = {node: np.zeros_like(x) for node, x in self.x.items()}
        for node in network.outputs:
            self.g[node] += self.rng.standard_normal(self.x[node].shape)
        for node, _, parents in reversed(list(network.steps())):
            for parent, sent in zip(parents, self.back[node](self.g[node]), strict=True):
                self.g[parent] += sent

    def forward(self, node: Node, layer: Any, xs: list[Array], shapes: list[Any]) -> None:
        self.shape[node] = shapes[0] if shapes else None
        match layer:
            case layers.Input():
                self.shape[node] = layer.image_shape
                size = (
                    1 if layer.image_shape is None else layer.image_shape[0] * layer.image_shape[1]
                )
                self.x[node] = self.moment**0.5 * self.rng.standard_normal(
                    (self.draws, size, layer.features or self.features[node])
                )
                self.back[node] = lambda g: []
            case layers.Affine():
                self.affine(node, layer, xs[0], shapes[0])
            case layers.Nonlinear():
                f, d = FUNCTIONS[layer.activation.name]
                self.x[node], slope = f(xs[0]), d(xs[0])
                self.back[node] = lambda g: [g * slope]
            case layers.Sum():
                weights = [float(w) for w in layer.weights or (1,) * len(xs)]
                self.x[node] = np.sum([w * x for w, x in zip(weights, xs, strict=True)], axis=0)
                self.back[node] = lambda g: [w * g for w in weights]
            case layers.Concat():
                ends = np.cumsum([x.shape[2] for x in xs])[:-1]
                self.x[node] = np.concatenate(xs, axis=2)
                self.back[node] = lambda g: np.split(g, ends, axis=2)
            case layers.Scale():
                u = float(layer.factor)
                self.x[node] = u * xs[0]

                def scaled(g: Array) -> list[Array]:
                    self.scalar[node] = (g * xs[0]).sum(axis=(1, 2)) ** 2 / u**2
                    return [u * g]

                self.back[node] = scaled
            case layers.Dropout():
                mask = (self.rng.uniform(size=xs[0].shape) >= float(layer.rate)) / (
                    1 - float(layer.rate)
                )
                self.x[node] = mask * xs[0]
                self.back[node] = lambda g: [g * mask]
            case layers.Flatten():
                self.shape[node] = None
                self.x[node] = xs[0].reshape(self.draws, 1, -1)
                self.back[node] = lambda g: [g.reshape(xs[0].shape)]
            case layers.Pool():
                self.pool(node, layer, xs[0], shapes[0])
            case _:
                raise AssertionError(layer)

    def affine(self, node: Node, layer: Any, x: Array, shape: Any) -> None:
        n, m, groups = x.shape[2], layer.features or self.features[node], layer.groups
        places = np.zeros((1, 1), int)
        if shape is not None:
            places, self.shape[node] = sources(
                shape, two(layer.kernel), two(layer.stride), layer.padding
            )
        taps = places.shape[1]
        self.variance[node] = float(layer.sigma_w) ** 2 / (n / groups * taps)
        weight = self.variance[node] ** 0.5 * self.law(
            self.rng, (self.draws, groups, taps, n // groups, m // groups)
        )
        seen = gathered(x, places).reshape(self.draws, places.shape[0], taps, groups, n // groups)
        self.x[node] = np.einsum("dptgc,dgtco->dpgo", seen, weight, optimize=True).reshape(
            self.draws, places.shape[0], m
        )

        def back(g: Array) -> list[Array]:
            parted = g.reshape(self.draws, places.shape[0], groups, m // groups)
            own = np.einsum("dptgc,dpgo->dgtco", seen, parted, optimize=True)
            self.gradient[node] = (own**2).mean(axis=(1, 2, 3, 4))
            down = np.einsum("dpgo,dgtco->dptgc", parted, weight, optimize=True).reshape(
                self.draws, places.shape[0], taps, n
            )
            return [scattered(down, places, x.shape[1])]

        self.back[node] = back

    def pool(self, node: Node, layer: Any, x: Array, shape: Any) -> None:
        window = shape if layer.window is None else two(layer.window)
        stride = window if layer.stride is None else two(layer.stride)
        places, out = sources(shape, window, stride, layer.padding)
        self.shape[node] = None if layer.window is None else out
        inside = places >= 0
        seen = gathered(x, places)
        if layer.kind == "mean":
            share = inside[None, :, :, None] / inside.sum(axis=1)[None, :, None, None]
        else:
            seen = np.where(inside[None, :, :, None], seen, -np.inf)
            share = np.zeros_like(seen)
            np.put_along_axis(share, seen.argmax(axis=2)[:, :, None], 1.0, axis=2)
        self.x[node] = (np.where(inside[None, :, :, None], seen, 0) * share).sum(axis=2)
        self.back[node] = lambda g: [scattered(share * g[:, :, None], places, x.shape[1])]


def measure(
    network: Any,
    features: Mapping[Node, int] | None = None,
    draws: int = 4000,
    seed: int = 0,
    law: str = "gaussian",
    moment: float = 1.0,
) -> Measured:
    """Second moments over ``draws`` networks."""
    run = Run(network, features or {}, draws, seed, law, moment)
    forward = {node: mean_of((x**2).mean(axis=(1, 2))) for node, x in run.x.items()}
    backward = {node: mean_of((g**2).mean(axis=(1, 2))) for node, g in run.g.items()}
    ratio = {node: mean_of(g / run.variance[node]) for node, g in run.gradient.items()}
    maps = {node: (x**2).mean(axis=(0, 2)) for node, x in run.x.items()}
    return Measured(
        forward,
        backward,
        ratio,
        maps,
        {node: mean_of(values) for node, values in run.scalar.items()},
    )
