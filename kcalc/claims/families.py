"""Families of test objects for checks: C maps, activations, networks, inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..activations import Activation, activation
from ..network.combinators import chain, residual
from ..network.layers import Affine, Concat, Input, Nonlinear, Sum
from ..network.network import Network

Array = np.ndarray

SMOOTH = (
    "tanh",
    "erf",
    "gelu",
    "swish",
    "softplus",
    "sigmoid",
    "sin",
    "atan",
    "mish",
    "asinh",
    "gaussian",
)
KINKED = ("relu", "elu", "selu", "hard_tanh", "relu6", "leaky_relu")


def activations(*names: str) -> list[Activation]:
    """The activations with these names."""
    return [activation(name) for name in names]


@dataclass(frozen=True, eq=False)
class PowerMap:
    """A positive definite C map, C(c) = sum b_n c^n with b_n >= 0 that add up to 1."""

    weights: Array

    def __call__(self, c: Array | float) -> Array:
        return np.polynomial.polynomial.polyval(np.asarray(c, dtype=float), self.weights)

    def derivative(self, order: int) -> PowerMap:
        """The derivative C^(order); its weights do not add up to 1."""
        return PowerMap(np.polynomial.polynomial.polyder(self.weights, order))

    def iterate(self, c: Array | float, times: int) -> Array:
        """C(C(...C(c)))."""
        for _ in range(times):
            c = self(c)
        return np.asarray(c)


def power_maps(
    rng: np.random.Generator, count: int, degree: int = 12, zero: bool = False, odd: bool = False
) -> list[PowerMap]:
    """Random positive definite C maps, sparse and dense; ``zero``: with C(0) = 0; ``odd``: odd."""
    out = []
    for _ in range(count):
        weights = rng.exponential(size=degree + 1) ** rng.uniform(0.5, 6) * (
            rng.random(degree + 1) < rng.uniform(0.2, 1)
        )
        weights[1] += rng.exponential() * (rng.random() < 0.5)
        if zero or odd:
            weights[0] = 0
        if odd:
            weights[::2] = 0
        if not weights.sum() > 0:
            weights[1] = 1.0
        out.append(PowerMap(weights / weights.sum()))
    return out


def residual_network(
    rng: np.random.Generator,
    phi: str | Activation = "tanh",
    blocks: int = 3,
    normalised: bool = True,
) -> Network:
    """A random network of residual blocks, some of them nested, with normalised sums."""
    phi = activation(phi)
    parts = [chain(Input(), Affine())]
    for _ in range(blocks):
        branch = chain(*[chain(Nonlinear(phi), Affine()) for _ in range(int(rng.integers(1, 4)))])
        weight = float(rng.uniform(0.2, 0.9))
        if rng.random() < 0.3:
            inner = residual(branch, shortcut_weight=float(rng.uniform(0.2, 0.9)))
            branch = chain(Nonlinear(phi), Affine(), inner, Nonlinear(phi), Affine())
        parts.append(residual(branch, shortcut_weight=weight))
        if rng.random() < 0.4:
            parts.append(chain(Nonlinear(phi), Affine()))
    return chain(*parts, Nonlinear(phi), Affine())


def unit_rows(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Inputs of q = 1, (rows, columns)."""
    x = rng.normal(size=(rows, columns))
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True))


__all__ = [
    "KINKED",
    "SMOOTH",
    "Concat",
    "PowerMap",
    "Sum",
    "activations",
    "power_maps",
    "residual_network",
    "unit_rows",
]
