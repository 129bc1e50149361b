"""Families of test objects for checks: C maps, activations, networks and inputs."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial.polynomial import polyder, polyval

from .. import Activation, Network, activation, chain, residual
from .. import layers as L
from .bench import Array, Bench

Node = Hashable

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
    """Return the activations with the given names."""
    return [activation(name) for name in names]


@dataclass(frozen=True, eq=False)
class PowerMap:
    """A positive definite C map C(c) = sum b_n c^n, with coefficients b_n >= 0 that add up to 1."""

    weights: Array

    def __call__(self, c: Array | float) -> Any:
        return polyval(np.asarray(c, dtype=float), self.weights)

    def derivative(self, order: int) -> PowerMap:
        """Return the derivative C^(order), whose weights do not add up to 1."""
        return PowerMap(polyder(self.weights, order))

    def iterate(self, c: Array | float, times: int) -> Array:
        """Return C(C(...C(c)))."""
        for _ in range(times):
            c = self(c)
        return np.asarray(c)


def power_maps(
    bench: Bench,
    quick: int,
    full: int | None = None,
    degree: int = 12,
    zero: bool = False,
    odd: bool = False,
) -> list[PowerMap]:
    """Return random positive definite C maps, sparse and dense.

    The number of maps is ``quick`` or ``full``, depending on the budget. If ``zero`` is set, all
    maps have C(0) = 0. If ``odd`` is set, they are odd.
    """
    out = []
    for _ in bench.rounds(quick, full):
        weights = bench.rng.exponential(size=degree + 1) ** bench.uniform(0.5, 6) * (
            bench.rng.random(degree + 1) < bench.uniform(0.2, 1)
        )
        weights[1] += bench.rng.exponential() * (bench.rng.random() < 0.5)
        if zero or odd:
            weights[0] = 0
        if odd:
            weights[::2] = 0
        if not weights.sum() > 0:
            weights[1] = 1.0
        out.append(PowerMap(weights / weights.sum()))
    return out


def graph(**nodes: Any) -> Network:
    """Build a network from its nodes in order, each a layer with the names of its parents.

    Example: ``graph(x=Input(), a=(Affine(), "x"), b=(Affine(), "x"), y=(Sum(), "a", "b"))``.
    """
    rows = {name: node if isinstance(node, tuple) else (node,) for name, node in nodes.items()}
    return Network.from_steps([(name, row[0], row[1:]) for name, row in rows.items()])


def residual_network(bench: Bench, phi: str | Activation = "tanh", blocks: int = 3) -> Network:
    """Return a random network of residual blocks with normalised sums; some blocks are nested."""
    phi = activation(phi)
    parts = [chain(L.Input(), L.Affine())]
    for _ in range(blocks):
        branch = chain(*[chain(L.Nonlinear(phi), L.Affine()) for _ in range(bench.whole(1, 4))])
        weight = bench.uniform(0.2, 0.9)
        if bench.rng.random() < 0.3:
            inner = residual(branch, shortcut_weight=bench.uniform(0.2, 0.9))
            branch = chain(L.Nonlinear(phi), L.Affine(), inner, L.Nonlinear(phi), L.Affine())
        parts.append(residual(branch, shortcut_weight=weight))
        if bench.rng.random() < 0.4:
            parts.append(chain(L.Nonlinear(phi), L.Affine()))
    return chain(*parts, L.Nonlinear(phi), L.Affine())


def unit_rows(bench: Bench, rows: int, columns: int) -> Array:
    """Return random inputs with q = 1, shape (rows, columns)."""
    x = bench.normal(rows, columns)
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True))


@lru_cache(maxsize=32)
def subnetworks(net: Network) -> tuple[tuple[frozenset[Node], Node, Node], ...]:
    """Enumerate all subnetworks as (layers, entry, exit).

    A subnetwork is a set of layers that reads a single feature map from outside, and whose exit is
    the only layer that is used outside.
    """
    steps = [step for step in net.steps() if step[2]]
    names = [name for name, _, _ in steps]
    parents = {name: frozenset(above) for name, _, above in steps}
    users = {name: frozenset(n for n in names if name in parents[n]) for name in names}
    found = []
    for mask in range(1, 1 << len(names)):
        members = frozenset(name for i, name in enumerate(names) if mask >> i & 1)
        outside: frozenset[Node] = frozenset().union(*(parents[name] for name in members)) - members
        if len(outside) != 1:
            continue
        exits = [name for name in members if name in net.outputs or not users[name] <= members]
        if len(exits) == 1:
            found.append((members, next(iter(outside)), exits[0]))
    return tuple(found)
