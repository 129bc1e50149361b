"""Kernel maps of networks of polynomials, computed as functions of a few Gaussians on a grid that
integrates them exactly.

A channel of a feature map is an array of its values at all points, for either input; nothing here
knows what a cross term is.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
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
KINDS = (
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
)


@dataclass(frozen=True)
class Functions:
    """A feature map: (share of the channels, values for the first input, values for the second)."""

    groups: tuple[tuple[Fraction, Array, Array], ...]


class Grid:
    """Points (a, b) for every Gaussian.

    (sqrt(q1) a, sqrt(q2) (c a + sqrt(1 - c^2) b)) is the pair of its values.
    """

    def __init__(self) -> None:
        nodes, weights = hermegauss(POINTS)
        self.axes = np.meshgrid(*[nodes] * (2 * GAUSSIANS), indexing="ij", sparse=True)
        self.weights = weights / weights.sum()

    def mean(self, values: Array) -> float:
        """The expectation; axes of length 1 are Gaussians that do not matter."""
        while values.ndim:
            values = values[0] if len(values) == 1 else np.tensordot(self.weights, values, 1)
        return float(values)


GRID = Grid()


class Oracle:
    """(q1, q2, c) of every node, and the tangent kernel by nudging the covariances of the
    Gaussians.
    """

    def __init__(self, c: float, q1: float, q2: float, nudge: float = 0.0) -> None:
        self.entry, self.nudge, self.used = (q1, q2, c), nudge, 0
        self.cosines: dict[Node, tuple[float, float, float]] = {}

    def table(self, state: Functions) -> tuple[float, float, float, float, float]:
        """(E f1^2, E f2^2, E f1 f2, E f1, E f2) over channels."""
        sums = np.zeros(5)
        for share, one, two in state.groups:
            sums += float(share) * np.array(
                [GRID.mean(v) for v in (one * one, two * two, one * two, one, two)]
            )
        return tuple(map(float, sums))  # type: ignore[return-value]

    def gaussian(self, q1: float, q2: float, joint: float) -> Functions:
        a, b = GRID.axes[2 * self.used : 2 * self.used + 2]
        self.used += 1
        c = joint / np.sqrt(q1 * q2)
        return Functions(
            ((Fraction(1), np.sqrt(q1) * a, np.sqrt(q2) * (c * a + np.sqrt(1 - c * c) * b)),)
        )

    def rule(self, layer: Any, node: Node, inputs: Sequence[Any]) -> Any:
        """The state a layer emits; None stands for the network's input."""
        if isinstance(layer, L.Affine):
            q1, q2, c = self.entry
            own = (q1, q2, c * np.sqrt(q1 * q2)) if inputs[0] is None else self.table(inputs[0])[:3]
            first, second, joint = (
                float(layer.sigma_w) ** 2 * v + float(layer.sigma_b) ** 2 for v in own
            )
            return self.gaussian(first, second, joint + self.nudge * joint)
        if isinstance(layer, L.Nonlinear):
            function = sp.lambdify(X, layer.activation.expr)
            return Functions(
                tuple((share, function(one), function(two)) for share, one, two in inputs[0].groups)
            )
        if isinstance(layer, L.Scale):
            return Functions(
                tuple(
                    (share, float(layer.factor) * one, float(layer.factor) * two)
                    for share, one, two in inputs[0].groups
                )
            )
        if isinstance(layer, L.Concat):
            return Functions(
                tuple(
                    (share / len(inputs), one, two)
                    for state in inputs
                    for share, one, two in state.groups
                )
            )
        if isinstance(layer, L.LayerNorm | L.RMSNorm):
            q1, q2, _, mean1, mean2 = self.table(inputs[0])
            mean1, mean2 = (mean1, mean2) if isinstance(layer, L.LayerNorm) else (0.0, 0.0)
            one, two = np.sqrt(q1 - mean1**2), np.sqrt(q2 - mean2**2)
            return Functions(
                tuple(
                    (share, (f - mean1) / one, (g - mean2) / two)
                    for share, f, g in inputs[0].groups
                )
            )
        weights = (
            [float(w) for w in sum_weights(layer, len(inputs))]
            if isinstance(layer, L.Sum)
            else None
        )
        groups = []
        for low, high in itertools.pairwise(
            sorted({edge for state in inputs for edge in _edges(state)})
        ):
            parts = [_at(state, low) for state in inputs]
            groups.append(
                (high - low, *(_joined([part[i] for part in parts], weights) for i in (0, 1)))
            )
        return Functions(tuple(groups))

    def read(self, network: kc.Network) -> dict[Node, Any]:
        states: dict[Node, Any] = {}
        for node, layer, parents in network.steps():
            states[node] = (
                None
                if isinstance(layer, L.Input)
                else self.rule(layer, node, [states[p] for p in parents])
            )
        return states


def _edges(state: Functions) -> list[Fraction]:
    return list(itertools.accumulate((share for share, _, _ in state.groups), initial=Fraction(0)))


def _at(state: Functions, low: Fraction) -> tuple[Array, Array]:
    edges = _edges(state)
    return next(
        (one, two) for (_, one, two), end in zip(state.groups, edges[1:], strict=True) if low < end
    )


def _joined(parts: list[Array], weights: list[float] | None) -> Array:
    out = parts[0] * (1.0 if weights is None else weights[0])
    for k, part in enumerate(parts[1:], 1):
        out = out * part if weights is None else out + weights[k] * part
    return out


def node_values(
    network: kc.Network, c: float, q1: float, q2: float
) -> dict[Node, tuple[float, float, float]]:
    """{node: (q1, q2, c)} of all nodes but the input."""
    oracle = Oracle(c, q1, q2)
    found = {}
    for node, state in oracle.read(network).items():
        if state is not None:
            first, second, joint = oracle.table(state)[:3]
            found[node] = (first, second, joint / np.sqrt(first * second))
    return found


def output_values(
    network: kc.Network, c: float, q1: float, q2: float
) -> tuple[float, float, float]:
    """(q1, q2, c) of the output."""
    oracle = Oracle(c, q1, q2)
    first, second, joint = oracle.table(oracle.read(network)[network.outputs[0]])[:3]
    return first, second, joint / np.sqrt(first * second)


def tangent(network: kc.Network, c: float, q1: float, q2: float) -> float:
    """The tangent kernel of the output.

    Every Affine's covariance k adds e k, and this is the derivative in e.
    """

    def kernel(nudge: float) -> float:
        oracle = Oracle(c, q1, q2, nudge)
        return oracle.table(oracle.read(network)[network.outputs[0]])[2]

    h = 1e-3
    around = {k: kernel(k * h) for k in (-3, -2, -1, 1, 2, 3)}
    return (
        45 * (around[1] - around[-1]) - 9 * (around[2] - around[-2]) + around[3] - around[-3]
    ) / (60 * h)


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
        if (kind == "affine" and affine == GAUSSIANS) or (
            kind not in SINGLE and len({width[p] for p in parents}) > 1
        ):
            continue
        layer = {
            "affine": lambda: L.Affine(
                4, sigma_w=rng.uniform(0.6, 1.2), sigma_b=rng.choice([0, 0.3])
            ),
            "phi": lambda: L.Nonlinear(kc.activation(rng.choice(POLYNOMIALS))),
            "sum": lambda parents=parents: L.Sum([rng.uniform(-1.2, 1.2) for _ in parents]),
            "product": L.Product,
            "scale": lambda: L.Scale(rng.choice([-0.7, 1.3])),
            "norm": L.LayerNorm,
            "rms": L.RMSNorm,
            "concat": L.Concat,
        }[kind]()
        name = f"{kind}{i}"
        channels = sum(width[p] for p in parents) if kind == "concat" else width[parents[0]]
        tried = [*steps, (name, layer, parents)]
        if channels > 16 or _degree(tried) > 2 * POINTS - 1 or not _followed(tried):
            continue
        steps, affine, width[name] = (
            tried,
            affine + (kind == "affine"),
            4 if kind == "affine" else channels,
        )
        if len(steps) > size:
            break
    return kc.Network.from_steps(steps, [steps[-1][0]])


def _degree(steps: Sequence[Any]) -> int:
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
    return 2 * degree[steps[-1][0]]


def _followed(steps: Sequence[Any]) -> bool:
    try:
        kc.node_values(kc.Network.from_steps(steps, [steps[-1][0]]), 0.3, 0.8, 1.3)
    except kc.KcalcError:
        return False
    return True
