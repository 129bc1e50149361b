"""Claims about products of weights along paths (sec. 7, Propositions 2 and 3).

The claims are checked on small networks, over all sign combinations of the weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod, sqrt
from typing import NamedTuple

import numpy as np
from sympy import Rational

from ... import moments
from ..bench import Array, Bench, counterexample, equal
from ..claim import Evidence
from .draws import EXCESS, densenet, resnet, vanilla
from .paper import claim


class Step(NamedTuple):
    """A weight on a path: its layer, input unit and output unit, and whether a relu follows."""

    layer: int
    read: int
    unit: int
    gated: bool


Route = tuple[Step, ...]
Moments = Callable[[Step], tuple[float, float]]
"""(E w^2, E w^4) of the weight of a step."""


@dataclass(frozen=True)
class Unit:
    """A unit: its values for all signs, and the products of weights along the paths to it."""

    value: Array
    paths: dict[Route, Array]


@dataclass
class Signs:
    """Weights of random magnitude with all 2^count combinations of signs.

    This is a symmetric distribution without atoms, conditional on |w|.
    """

    count: int
    rng: np.random.Generator
    sizes: dict[tuple[int, int, int], float] = field(default_factory=dict)
    layers: int = 0

    def inputs(self, n: int) -> list[Unit]:
        """Return n inputs with generic values, each with the empty path."""
        return [
            Unit(np.full(2**self.count, v), {(): np.ones(2**self.count)})
            for v in self.rng.uniform(0.5, 1.5, n)
        ]

    def affine(self, below: list[Unit], n: int, gated: bool = True) -> list[Unit]:
        """Return n units that read all units of ``below``, with a relu if ``gated``."""
        self.layers += 1
        return [self._unit(below, unit, gated) for unit in range(n)]

    def _unit(self, below: list[Unit], unit: int, gated: bool) -> Unit:
        columns, value = [], np.zeros(2**self.count)
        for read, source in enumerate(below):
            bit, size = len(self.sizes), self.rng.uniform(0.5, 1.5)
            self.sizes[self.layers, read, unit] = size
            columns.append(size * (1 - 2 * (np.arange(2**self.count) >> bit & 1)))
            value = value + columns[-1] * source.value
        on = value > 0 if gated else np.ones(value.shape, dtype=bool)
        paths = {
            (*route, Step(self.layers, read, unit, gated)): product * columns[read] * on
            for read, source in enumerate(below)
            for route, product in source.paths.items()
        }
        return Unit(value * on, paths)

    def moments(self, step: Step) -> tuple[float, float]:
        """Return (E w^2, E w^4) for the weight of a step, whose magnitude is fixed."""
        size = self.sizes[step.layer, step.read, step.unit]
        return size**2, size**4


def _skip(below: list[Unit], branch: list[Unit]) -> list[Unit]:
    return [Unit(a.value + b.value, a.paths | b.paths) for a, b in zip(below, branch, strict=True)]


def _vanilla(bench: Bench, widths: Sequence[int]) -> tuple[Signs, list[Unit]]:
    signs = Signs(sum(a * b for a, b in itertools.pairwise(widths)), bench.rng)
    units = signs.inputs(widths[0])
    for n in widths[1:]:
        units = signs.affine(units, n)
    return signs, units


def _resnet(bench: Bench, blocks: int, n: int) -> tuple[Signs, list[Unit]]:
    signs = Signs(2 * blocks * n * n, bench.rng)
    units = signs.inputs(n)
    for _ in range(blocks):
        units = _skip(units, signs.affine(signs.affine(units, n), n, gated=False))
    return signs, units


def _densenet(bench: Bench, first: int, count: int, n: int) -> tuple[Signs, list[Unit]]:
    signs = Signs(sum(n * (first + n * i) for i in range(count)), bench.rng)
    every = signs.inputs(first)
    units = every
    for _ in range(count):
        units = signs.affine(every, n)
        every = every + units
    return signs, units


def _networks(bench: Bench) -> Iterator[tuple[str, Signs, list[Unit]]]:
    for widths in bench.size(
        ((2, 2, 2), (3, 2, 1)), ((2, 2, 2), (3, 2, 1), (2, 2, 2, 2), (3, 3, 2))
    ):
        yield f"vanilla {'-'.join(map(str, widths))}", *_vanilla(bench, widths)
    for blocks, n in bench.size(((1, 2),), ((1, 2), (2, 2), (3, 1))):
        yield f"ResNet, {blocks} blocks of width {n}", *_resnet(bench, blocks, n)
    for first, count, n in bench.size(((2, 2, 2),), ((2, 2, 2), (2, 3, 1))):
        yield f"DenseNet, {count} layers of width {n}", *_densenet(bench, first, count, n)


def _square(route: Route, of: Moments) -> float:
    """Return the product of E q^2 over the weights q of a path."""
    return prod(of(step)[0] * (0.5 if step.gated else 1) for step in route)


def _fourth(four: Sequence[Route], of: Moments) -> float:
    """Return the product over layers in Prop. 3 for paths (t1, t2, s1, s2), with all pairings."""
    total = 1.0
    for layer in {step.layer for route in four for step in route}:
        t1, t2, s1, s2 = (
            next((step for step in route if step.layer == layer), None) for route in four
        )
        pair = (
            (t1, s1)
            if t1 == t2 and s1 == s2
            else (t1, t2)
            if (t1, t2) in ((s1, s2), (s2, s1))
            else None
        )
        if pair is None:
            return 0.0
        total *= _pair(*pair, of)
    return total


def _pair(a: Step | None, b: Step | None, of: Moments) -> float:
    """Return E(q_a^2 q_b^2) for two steps in a layer; None means that a path skips the layer."""
    if a is None or b is None:
        return _square(tuple(step for step in (a, b) if step is not None), of)
    if a == b:
        return of(a)[1] * (0.5 if a.gated else 1)
    gates = 1 if not a.gated else 0.5 if a.unit == b.unit else 0.25
    return of(a)[0] * of(b)[0] * gates


@claim("PLG-prop2", "Sec. 7, Proposition 2, eqs. 32 to 36")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for paths $\gamma_1,\gamma_2$ to the same unit, $E(Q_{\gamma_1}Q_{\gamma_2})$ is 0 if they
    differ, and $\prod_lE(q_{\gamma,l}^2)$ if $\gamma_1=\gamma_2=\gamma$

    Under: independent symmetric weights; relu only directly after weights

    But: only for weights without atoms; with random signs as weights, $w\cdot y=0$ may have a
    positive probability
    """
    for name, signs, units in _networks(bench):
        found, truth = [], []
        for unit in units:
            routes, products = list(unit.paths), np.array(list(unit.paths.values()))
            found += (products @ products.T / products.shape[1]).ravel().tolist()
            truth += [
                _square(a, signs.moments) if a == b else 0.0
                for a, b in itertools.product(routes, routes)
            ]
        yield equal(
            found,
            truth,
            f"{name}: all pairs of paths, all {2**signs.count} sign combinations of weights with "
            f"random magnitudes",
            1e-11,
        )
    w = np.array(list(itertools.product([-1.0, 1.0], repeat=2)))
    crossed = (w[:, 0] * w[:, 1] * (w.sum(axis=1) > 0)).mean()
    yield counterexample(
        crossed, "two signs and y = (1, 1): $E(w_1w_2z)=1/4$, not 0", value=crossed
    )


def _quadruples(
    bench: Bench, units: list[Unit], most: int
) -> list[tuple[int, int, int, int, int, int]]:
    """Return (unit t, its paths t1, t2, unit s, its paths s1, s2), all or ``most`` random ones.

    Random choices include paired paths.
    """
    counts = [len(unit.paths) for unit in units]
    if sum(n * n for n in counts) ** 2 <= most:
        ends = [(t, a, b) for t, n in enumerate(counts) for a in range(n) for b in range(n)]
        return [(*first, *second) for first in ends for second in ends]
    out = []
    for _ in range(most):
        t = bench.whole(0, len(units))
        s = t if bench.rng.random() < 0.5 else bench.whole(0, len(units))
        a, b = bench.wholes(0, counts[t], 2)
        c, d = bench.wholes(0, counts[s], 2)
        kind = bench.whole(0, 4)
        out.append(
            [(t, a, b, s, c, d), (t, a, a, s, c, c), (t, a, b, t, a, b), (t, a, b, t, b, a)][kind]
        )
    return out


def _summed(signs: Signs, units: list[Unit], of: Moments, entry: float) -> float:
    """Compute E|y|^4 as the sum over all quadruples of paths from inputs of equal size."""
    routes = [list(unit.paths) for unit in units]
    pairs = [(a, b) for own in routes for a in own for b in own]
    return entry**4 * sum(_fourth((*first, *second), of) for first in pairs for second in pairs)


@claim("PLG-prop3", "Sec. 7, Proposition 3, eqs. 37 and 38")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for paths $t_1,t_2$ to one unit and $s_1,s_2$ to another,
    $E(Q_{t_1}Q_{t_2}Q_{s_1}Q_{s_2})=\prod_lE\xi_l$. Here $\xi=q_{t_1}^2q_{s_1}^2$ if
    $q_{t_1}=q_{t_2}$ and $q_{s_1}=q_{s_2}$; $\xi=q_{t_1}^2q_{t_2}^2$ if $q_{t_1}=q_{s_1}$ and
    $q_{t_2}=q_{s_2}$, or if $q_{t_1}=q_{s_2}$ and $q_{t_2}=q_{s_1}$; otherwise $\xi=0$

    Under: independent symmetric weights without atoms; relu only directly after weights

    Printed: $\xi=0$ if $q_{t_1}=q_{s_2}$ and $q_{t_2}=q_{s_1}$
    """
    w = np.array(list(itertools.product([-1.0, 1.0], repeat=2)))
    crossed = (w[:, 0] ** 2 * w[:, 1] ** 2 * (w @ [1.0, sqrt(2)] > 0)).mean()
    yield counterexample(
        crossed,
        "one relu unit of two inputs, $t_1=s_2$ along $w_1$, $t_2=s_1$ along $w_2$: "
        "$E(w_1^2w_2^2z)=1/2$, not 0",
        value=crossed,
    )
    for name, signs, units in _networks(bench):
        routes = [list(unit.paths) for unit in units]
        products = [np.array(list(unit.paths.values())) for unit in units]
        found, truth = [], []
        for t, a, b, s, c, d in _quadruples(
            bench, units, bench.size(3000, 20000 if signs.count <= 12 else 500)
        ):
            found.append(
                ((products[t][a] * products[t][b]) @ (products[s][c] * products[s][d]))
                / 2**signs.count
            )
            truth.append(
                _fourth((routes[t][a], routes[t][b], routes[s][c], routes[s][d]), signs.moments)
            )
        yield equal(
            found,
            truth,
            f"{name}: quadruples of paths, all {2**signs.count} signs",
            1e-11,
            nonzero=int(np.count_nonzero(truth)),
        )
    for name, net, (signs, units), variances in (
        ("vanilla 2-2-2", vanilla([2, 2, 2]), _vanilla(bench, (2, 2, 2)), {1: 1.0, 2: 1.0}),
        (
            "ResNet, a block",
            resnet(1, 2, 2, Rational(1, 2)),
            _resnet(bench, 1, 2),
            {1: 0.5, 2: 0.25},
        ),
        ("DenseNet, two layers", densenet(2, 2), _densenet(bench, 2, 2, 2), {1: 1.0, 2: 0.5}),
    ):
        for law, excess in EXCESS.items():

            def of(
                step: Step, excess: float = excess, variances: dict[int, float] = variances
            ) -> tuple[float, float]:
                return variances[step.layer], (3 + excess) * variances[step.layer] ** 2

            yield equal(
                _summed(signs, units, of, 0.5**0.5),
                moments(net, weights=law, jacobian=False).out.fourth,
                f"{name}, {law}: the sum over quadruples is kcalc's E|y|^4",
                1e-11,
            )
