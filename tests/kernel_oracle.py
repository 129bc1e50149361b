"""Kernel maps of networks of polynomials, computed as functions of a few Gaussians on a grid that
integrates them exactly.

A channel of a feature map is an array of its values at all points, for either input; nothing here
knows what a cross term is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from fractions import Fraction
from functools import reduce
from itertools import accumulate, pairwise
from operator import mul
from typing import Any

import numpy as np
import sympy as sp
from numpy.polynomial.hermite_e import hermegauss

import kcalc as kc
from kcalc.network import layers as L
from kcalc.network.network import sum_weights

Array = np.ndarray
Node = Hashable
X = sp.Symbol("x", real=True)
POLYNOMIALS = (
    X**2 / 2 - X,
    X**3 / 4 + X**2 / 3 + sp.Rational(1, 2),
    X * sp.Rational(3, 2) + sp.Rational(1, 5),
    -(X**3) / 5 + X / 2 + sp.Rational(1, 3),
)
GAUSSIANS, POINTS = 3, 7
SINGLE = ("affine", "phi", "scale", "norm", "rms")
KINDS = [
    "affine",
    "affine",
    "phi",
    "phi",
    "sum",
    "sum",
    "sum",
    "product",
    "scale",
    "norm",
    "rms",
    "concat",
]
# A feature map: (share of the channels, values for the first input, values for the second) ...
State = Sequence[tuple[Fraction, Array, Array]]

# Points (a, b) for every Gaussian: (sqrt(q1) a, sqrt(q2) (c a + sqrt(1 - c^2) b)) is the pair of
# its values.
NODES, WEIGHTS = hermegauss(POINTS)
AXES = np.meshgrid(*[NODES] * (2 * GAUSSIANS), indexing="ij", sparse=True)


def mean(values: Array) -> float:
    """The expectation; axes of length 1 are Gaussians that do not matter."""
    while values.ndim:
        weights = WEIGHTS / WEIGHTS.sum()
        values = values[0] if len(values) == 1 else np.tensordot(weights, values, 1)
    return float(values)


def table(state: State) -> list[float]:
    """[E f1^2, E f2^2, E f1 f2, E f1, E f2] over channels."""
    rows = [
        [float(share) * mean(v) for v in (one * one, two * two, one * two, one, two)]
        for share, one, two in state
    ]
    return [sum(column) for column in zip(*rows, strict=True)]


def mapped(
    state: State, first: Callable[[Array], Array], second: Callable[[Array], Array]
) -> State:
    return [(share, first(one), second(two)) for share, one, two in state]


def states_of(
    network: kc.Network, c: float, q1: float, q2: float, nudge: float = 0.0
) -> dict[Node, State]:
    """The state of every node but the input, the covariances of Gaussians nudged."""
    unused = iter(zip(AXES[::2], AXES[1::2], strict=True))

    def gaussian(layer: Any, state: State | None) -> State:
        """Behind weights; None stands for the network's input."""
        own = (q1, q2, c * np.sqrt(q1 * q2)) if state is None else table(state)[:3]
        one, two, joint = (float(layer.sigma_w) ** 2 * v + float(layer.sigma_b) ** 2 for v in own)
        (a, b), cosine = next(unused), joint * (1 + nudge) / np.sqrt(one * two)
        mixed = cosine * a + np.sqrt(1 - cosine * cosine) * b
        return [(Fraction(1), np.sqrt(one) * a, np.sqrt(two) * mixed)]

    found: dict[Node, Any] = {}
    for node, layer, parents in network.steps():
        if parents:
            inputs = [found.get(p) for p in parents]
            given = isinstance(layer, L.Affine)
            found[node] = gaussian(layer, inputs[0]) if given else emitted(layer, inputs)
    return found


def emitted(layer: Any, inputs: Sequence[Any]) -> State:
    """The state that a layer without weights emits."""
    state = inputs[0]
    match layer:
        case L.Nonlinear():
            function = sp.lambdify(X, layer.activation.expr)
            return mapped(state, function, function)
        case L.Scale():
            return mapped(state, *[lambda f: float(layer.factor) * f] * 2)
        case L.Concat():
            return [(s / len(inputs), one, two) for state in inputs for s, one, two in state]
        case L.LayerNorm() | L.RMSNorm():
            q1, q2, _, *means = table(state)
            m1, m2 = means if isinstance(layer, L.LayerNorm) else (0.0, 0.0)
            one, two = np.sqrt(q1 - m1**2), np.sqrt(q2 - m2**2)
            return mapped(state, lambda f: (f - m1) / one, lambda f: (f - m2) / two)
    edges = sorted({edge for state in inputs for edge in _edges(state)})
    groups = []
    for low, high in pairwise(edges):
        parts = zip(*(_at(state, low) for state in inputs), strict=True)
        groups.append((high - low, *(_joined(part, layer) for part in parts)))
    return groups


def _edges(state: State) -> list[Fraction]:
    return list(accumulate((share for share, _, _ in state), initial=Fraction(0)))


def _at(state: State, low: Fraction) -> tuple[Array, Array]:
    ends = _edges(state)[1:]
    return next((one, two) for (_, one, two), end in zip(state, ends, strict=True) if low < end)


def _joined(parts: Sequence[Array], layer: Any) -> Array:
    if isinstance(layer, L.Product):
        return reduce(mul, parts)
    weights = sum_weights(layer, len(parts))
    return sum(float(w) * part for w, part in zip(weights, parts, strict=True))


Values = tuple[float, float, float]


def _values(state: State) -> Values:
    first, second, joint, *_ = table(state)
    return first, second, joint / np.sqrt(first * second)


def node_values(network: kc.Network, c: float, q1: float, q2: float) -> dict[Node, Values]:
    """{node: (q1, q2, c)} of all nodes but the input."""
    return {node: _values(state) for node, state in states_of(network, c, q1, q2).items()}


def output_values(network: kc.Network, c: float, q1: float, q2: float) -> Values:
    """(q1, q2, c) of the output."""
    return _values(states_of(network, c, q1, q2)[network.outputs[0]])


def tangent(network: kc.Network, c: float, q1: float, q2: float) -> float:
    """The tangent kernel of the output.

    Every Affine's covariance k adds e k, and this is the derivative in e.
    """
    h = 1e-3

    def around(k: int) -> float:
        def kernel(nudge: float) -> float:
            return table(states_of(network, c, q1, q2, nudge)[network.outputs[0]])[2]

        return kernel(k * h) - kernel(-k * h)

    return (45 * around(1) - 9 * around(2) + around(3)) / (60 * h)


def random_network(seed: int, size: int = 12) -> kc.Network:
    """A random network of these layers whose kernel maps kcalc has.

    What it refuses is left out again.
    """
    rng = random.Random(seed)
    steps: list[Any] = [
        ("x", L.Input(4), ()),
        ("affine0", L.Affine(4, sigma_w=0.9, sigma_b=0.2), ("x",)),
    ]
    width, affine = {"x": 4, "affine0": 4}, 1
    for i in range(1, 4 * size):
        usable = [name for name, *_ in steps[-6:] if name != "x"]
        kind = rng.choice(KINDS)
        parents = tuple(rng.choices(usable, k=1 if kind in SINGLE else rng.randint(2, 3)))
        if kind == "affine":
            parents = (rng.choice(["x", *usable]),)
        unequal = kind not in SINGLE and len({width[p] for p in parents}) > 1
        if unequal or (kind == "affine" and affine == GAUSSIANS):
            continue
        layer = drawn(kind, rng, len(parents))
        channels = sum(width[p] for p in parents) if kind == "concat" else width[parents[0]]
        tried = [*steps, (f"{kind}{i}", layer, parents)]
        if channels > 16 or _degree(tried) > 2 * POINTS - 1 or not _followed(tried):
            continue
        steps, affine = tried, affine + (kind == "affine")
        width[f"{kind}{i}"] = 4 if kind == "affine" else channels
        if len(steps) > size:
            break
    return kc.Network.from_steps(steps, [steps[-1][0]])


def drawn(kind: str, rng: random.Random, reads: int) -> Any:
    match kind:
        case "affine":
            return L.Affine(4, sigma_w=rng.uniform(0.6, 1.2), sigma_b=rng.choice([0, 0.3]))
        case "phi":
            return L.Nonlinear(kc.activation(rng.choice(POLYNOMIALS)))
        case "sum":
            return L.Sum([rng.uniform(-1.2, 1.2) for _ in range(reads)])
        case "scale":
            return L.Scale(rng.choice([-0.7, 1.3]))
    kinds = {"product": L.Product, "norm": L.LayerNorm, "rms": L.RMSNorm, "concat": L.Concat}
    return kinds[kind]()


def _degree(steps: Iterable[Any]) -> int:
    """Twice the degree of the last node in its Gaussians: what the grid must integrate."""
    degree: dict[str, int] = {}
    for name, layer, parents in steps:
        below = [degree[p] for p in parents]
        if isinstance(layer, L.Input | L.Affine):
            degree[name] = 1
        elif isinstance(layer, L.Nonlinear):
            degree[name] = below[0] * int(sp.Poly(layer.activation.expr, X).degree())
        else:
            degree[name] = sum(below) if isinstance(layer, L.Product) else max(below)
    return 2 * degree[name]


def _followed(steps: Sequence[Any]) -> bool:
    try:
        kc.node_values(kc.Network.from_steps(steps, [steps[-1][0]]), 0.3, 0.8, 1.3)
    except kc.KcalcError:
        return False
    return True
