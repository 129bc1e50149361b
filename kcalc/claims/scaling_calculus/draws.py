"""Networks with random weights, evaluated forward and backward in NumPy, without the calculus."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from ... import Network, scaling
from ... import layers as L
from .. import functions
from ..bench import STATEMENT, Array, Bench, worst
from ..claim import Evidence
from ..functions import Function

Node = Hashable
_OWN: dict[str, tuple[Function, Function]] = {
    "leaky_relu(1/5)": (lambda x: np.where(x > 0, x, x / 5), lambda x: np.where(x > 0, 1.0, 0.2)),
    "identity": (lambda x: x, np.ones_like),
}
FUNCTIONS = {name: (f.value, f.slope) for name, f in functions.FUNCTIONS.items()} | _OWN
LAWS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "gaussian": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-(3**0.5), 3**0.5, shape),
    "laplace": lambda rng, shape: rng.laplace(0, 0.5**0.5, shape),
    "sparse": lambda rng, shape: (
        rng.choice([-1.0, 1.0], shape) * (rng.random(shape) < 0.2) * 5**0.5
    ),
}


def taps_of(
    sizes: tuple[int, int], window: int, stride: int, padding: Any
) -> tuple[Array, tuple[int, int]]:
    """Return the input position of each (output position, tap), and the size of the output.

    Taps outside the image have position -1.
    """
    lines = []
    for size in sizes:
        count = -(-size // stride) if padding != "valid" else (size - window) // stride + 1
        before = max((count - 1) * stride + window - size, 0) // 2 if padding != "valid" else 0
        lines.append([[i * stride - before + j for j in range(window)] for i in range(count)])
    rows, columns = lines
    out = [
        [_place(r, c, sizes, padding) for r in row for c in column]
        for row in rows
        for column in columns
    ]
    return np.array(out), (len(rows), len(columns))


def _place(r: int, c: int, sizes: tuple[int, int], padding: Any) -> int:
    if padding == "circular":
        r, c = r % sizes[0], c % sizes[1]
    return r * sizes[1] + c if 0 <= r < sizes[0] and 0 <= c < sizes[1] else -1


def _gathered(x: Array, places: Array) -> Array:
    return np.concatenate([x, np.zeros((x.shape[0], 1, x.shape[2]))], axis=1)[:, places]


def _scattered(g: Array, places: Array, size: int) -> Array:
    out = np.zeros((g.shape[0], size + 1, g.shape[3]))
    for tap in range(places.shape[1]):
        for output, place in enumerate(places[:, tap]):
            out[:, place] += g[:, output, tap]
    return out[:, :size]


class Draws:
    """``draws`` networks, each with separate weights, input and cotangent at the outputs.

    Inputs and cotangents are standard normals by default.

    ``x`` and ``g`` are the feature maps and gradients, {node: (draws, positions, channels)}.
    ``squares`` contains the mean of gW^2 for each draw, {Affine: (draws,)}, and ``nu`` the same
    mean divided by E W^2. ``given`` sets ``x``, the input of every draw, or the ``mean`` and
    ``std`` of random inputs.
    """

    def __init__(
        self,
        bench: Bench,
        network: Network,
        quick: int,
        full: int | None = None,
        law: str = "gaussian",
        **given: Any,
    ) -> None:
        self.network, self.bench, self.law, self.given = network, bench, law, given
        self.draws = len(bench.rounds(quick, full))
        self.x: dict[Node, Array] = {}
        self.squares: dict[Node, Array] = {}
        self.variance: dict[Node, float] = {}
        self._shape: dict[Node, Any] = {}
        self._back: dict[Node, Callable[[Array], list[Array]]] = {}
        for node, layer, parents in network.steps():
            self._forward(
                node,
                layer,
                [self.x[p] for p in parents],
                self._shape[parents[0]] if parents else None,
            )
        noise = bench.rng.standard_normal
        self.g = self.back({node: noise(self.x[node].shape) for node in network.outputs})
        self.nu: dict[Node, Array] = {
            node: square / self.variance[node] for node, square in self.squares.items()
        }

    def back(self, sent: dict[Node, Array]) -> dict[Node, Array]:
        """Compute the gradients at all nodes from cotangents at some nodes; update ``squares``."""
        g = {node: sent.get(node, 0.0) + np.zeros_like(x) for node, x in self.x.items()}
        for node, _, parents in reversed(list(self.network.steps())):
            for parent, part in zip(parents, self._back[node](g[node]), strict=True):
                g[parent] = g[parent] + part
        return g

    def f(self, node: Node) -> Array:
        """Return the mean square of a feature map for each draw."""
        return (self.x[node] ** 2).mean(axis=(1, 2))

    def b(self, node: Node) -> Array:
        """Return the mean square of the gradient at a node for each draw."""
        return (self.g[node] ** 2).mean(axis=(1, 2))

    def ratios(self, found: Any, what: str, about: str = STATEMENT) -> Evidence:
        """Compare nu of every weight with the gamma of a :class:`kcalc.Scaling`."""
        nu = {str(node): value for node, value in self.nu.items()}
        return worst(nu, {str(n): w.gamma for n, w in found.weights.items()}, what, about)

    def _forward(self, node: Node, layer: Any, xs: list[Array], shape: Any) -> None:
        self._shape[node] = shape
        match layer:
            case L.Input():
                self._shape[node] = layer.image_shape
                size = (
                    1 if layer.image_shape is None else layer.image_shape[0] * layer.image_shape[1]
                )
                shape = (self.draws, size, layer.features or 1)
                drawn = self.bench.rng.standard_normal
                given = self.given.get
                self.x[node] = (
                    np.tile(self.given["x"], (self.draws, 1, 1))
                    if "x" in self.given
                    else given("mean", 0.0) + given("std", 1.0) * drawn(shape)
                )
                self._back[node] = lambda g: []
            case L.Affine():
                self._affine(node, layer, xs[0], shape)
            case L.Nonlinear():
                value, slope = FUNCTIONS[layer.activation.name]
                self.x[node], steep = value(xs[0]), slope(xs[0])
                self._back[node] = lambda g: [g * steep]
            case L.Sum():
                weights = [float(w) for w in layer.weights or (1,) * len(xs)]
                self.x[node] = np.sum([w * x for w, x in zip(weights, xs, strict=True)], axis=0)
                self._back[node] = lambda g: [w * g for w in weights]
            case L.Concat():
                ends = np.cumsum([x.shape[2] for x in xs])[:-1]
                self.x[node] = np.concatenate(xs, axis=2)
                self._back[node] = lambda g: np.split(g, ends, axis=2)
            case L.Scale():
                self.x[node] = float(layer.factor) * xs[0]
                self._back[node] = lambda g: [float(layer.factor) * g]
            case L.Dropout():
                mask = (self.bench.rng.uniform(size=xs[0].shape) >= layer.rate) / (1 - layer.rate)
                self.x[node] = mask * xs[0]
                self._back[node] = lambda g: [g * mask]
            case L.Flatten():
                self._shape[node] = None
                self.x[node] = xs[0].reshape(self.draws, 1, -1)
                self._back[node] = lambda g: [g.reshape(xs[0].shape)]
            case L.Pool():
                self._pool(node, layer, xs[0], shape)
            case _:
                raise TypeError(layer)

    def _affine(self, node: Node, layer: Any, x: Array, shape: Any) -> None:
        n, m = x.shape[2], layer.features
        places = np.zeros((1, 1), int)
        if shape is not None:
            places, self._shape[node] = taps_of(shape, layer.kernel, layer.stride, layer.padding)
        taps = places.shape[1]
        self.variance[node] = float(layer.sigma_w) ** 2 / (n * taps)
        weight = self.variance[node] ** 0.5 * LAWS[self.law](
            self.bench.rng, (self.draws, taps * n, m)
        )
        seen = _gathered(x, places).reshape(self.draws, places.shape[0], taps * n)
        self.x[node] = seen @ weight

        gram, size = seen @ np.swapaxes(seen, 1, 2), taps * n * m

        def back(g: Array) -> list[Array]:
            squares = (gram * (g @ np.swapaxes(g, 1, 2))).sum(axis=(1, 2))  # |seen^T g|^2
            self.squares[node] = squares / size
            down = (g @ np.swapaxes(weight, 1, 2)).reshape(self.draws, places.shape[0], taps, n)
            return [_scattered(down, places, x.shape[1])]

        self._back[node] = back

    def _pool(self, node: Node, layer: Any, x: Array, shape: Any) -> None:
        places, self._shape[node] = taps_of(
            shape, layer.window, layer.stride or layer.window, "valid"
        )
        seen = _gathered(x, places)
        share = np.full_like(seen, 1 / places.shape[1])
        if layer.kind == "max":
            share = np.zeros_like(seen)
            np.put_along_axis(share, seen.argmax(axis=2)[:, :, None], 1.0, axis=2)
        self.x[node] = (seen * share).sum(axis=2)
        self._back[node] = lambda g: [_scattered(share * g[:, :, None], places, x.shape[1])]


def measured(
    bench: Bench, network: Network, quick: int, full: int | None = None, **given: Any
) -> tuple[Any, Draws]:
    """Return the :class:`kcalc.Scaling` of a network, and random draws of it."""
    return scaling(network), Draws(bench, network, quick, full, **given)


def compared(
    bench: Bench,
    network: Network,
    found: Any,
    draws: int,
    what: str,
    law: str = "gaussian",
    **given: Any,
) -> Iterator[Evidence]:
    """Compare f and b of every node and nu of every weight with random networks."""
    run = Draws(bench, network, draws, law=law, **given)
    nodes = list(network)
    yield worst(
        {n: run.f(n) for n in nodes},
        {n: found.tensors[n].forward for n in nodes},
        f"{what}: f of every node",
    )
    yield worst(
        {n: run.b(n) for n in nodes},
        {n: found.tensors[n].backward for n in nodes},
        f"{what}: b of every node",
    )
    yield run.ratios(found, f"{what}: nu = gamma")
