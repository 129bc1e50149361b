"""Random networks, with slopes, q values and c values computed without the calculi."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp
from sympy import Rational

from ... import Network
from ... import layers as L
from ..bench import Bench
from ..families import subnetworks
from .normal_means import Phi

Node = Hashable
PYTHAGOREAN = ((3, 4, 5), (4, 3, 5), (5, 12, 13), (12, 5, 13), (8, 15, 17))


def random_network(
    bench: Bench, phi: Any, size: int, norms: bool = False, plain: bool = False
) -> Network:
    """Build a random directed acyclic graph of layers with one input and one output.

    It consists of combined layers, weighted sums and concatenations. All weights are rational.

    ``norms`` adds LayerNorms and pools. ``plain`` adds sums that are not normalised.
    """
    steps: list[tuple[Any, Any, tuple[Any, ...]]] = [
        ("input", L.Input(), ()),
        ("stem", L.Affine(), ("input",)),
    ]
    maps, sinks = ["stem"], {"stem"}

    def add(name: str, layer: Any, *parents: str) -> str:
        steps.append((name, layer, parents))
        sinks.difference_update(parents)
        return name

    def combined(i: str, source: str) -> str:
        return add(f"affine_{i}", L.Affine(), add(f"phi_{i}", L.Nonlinear(phi), source))

    def weights() -> tuple[Any, ...]:
        a, b, c = PYTHAGOREAN[bench.whole(0, len(PYTHAGOREAN))]
        return (Rational(a, c), Rational(b, c) if not plain else Rational(bench.whole(1, 9), 4))

    for i in range(size):
        u, v = (maps[-1 - bench.whole(0, min(3, len(maps)))] for _ in range(2))
        kind = bench.rng.random()
        if kind < 0.35:
            new = combined(str(i), u)
        elif kind < 0.7:
            new = add(f"sum_{i}", L.Sum(weights()), u, combined(str(i), v))
        elif kind < 0.85 or not norms:
            channels = (bench.whole(1, 5), bench.whole(1, 5))
            parts = (add(f"left_{i}", L.Nonlinear(phi), u), add(f"right_{i}", L.Nonlinear(phi), v))
            new = add(f"joined_{i}", L.Affine(), add(f"concat_{i}", L.Concat(channels), *parts))
        else:
            layer = L.LayerNorm() if bench.rng.random() < 0.5 else L.Pool("weighted_mean")
            new = add(f"affine_{i}", L.Affine(), add(f"norm_{i}", layer, u))
        maps.append(new)
        sinks.add(new)
    ends = sorted(sinks)
    if len(ends) > 1:
        parts = [combined(f"end_{i}", end) for i, end in enumerate(ends)]
        add(
            "ends",
            L.Affine(),
            add("gathered", L.Sum((sp.sqrt(Rational(1, len(parts))),) * len(parts)), *parts),
        )
    return Network.from_steps(steps)


def _rational(value: Any) -> Any:
    return Rational(value)


def weights_of(layer: Any, count: int) -> tuple[Any, ...]:
    """Return the weights of a sum of ``count`` feature maps."""
    return layer.weights or (1,) * count


def channels_of(layer: Any, count: int) -> list[int]:
    """Return the channel counts of ``count`` concatenated feature maps."""
    return [int(k) for k in layer.channels or (1,) * count]


def shares(layer: Any, count: int) -> list[Fraction]:
    """Return the share of each parent in a normalised sum or a concatenation."""
    if isinstance(layer, L.Sum):
        squares = [_rational(w**2) for w in weights_of(layer, count)]
        return [Fraction(int(s.p), int(s.q)) for s in squares]
    whole = channels_of(layer, count)
    return [Fraction(k, sum(whole)) for k in whole]


def slopes(
    network: Network, psi: Any, entry: Node | None = None, inside: frozenset[Node] | None = None
) -> dict[Node, Any]:
    """Compute C'(1) at every node by the chain rule, for nonlinear layers with slope psi.

    ``entry`` and ``inside`` restrict this to the subnetwork of the nodes ``inside`` that reads
    ``entry``.
    """
    found: dict[Node, Any] = {} if entry is None else {entry: Fraction(1)}
    for node, layer, parents in network.steps():
        if inside is not None and node not in inside:
            continue
        below = [found[p] for p in parents]
        if not parents:
            found[node] = Fraction(1)
        elif isinstance(layer, L.Nonlinear):
            found[node] = psi * below[0]
        elif isinstance(layer, L.Sum | L.Concat):
            parts = zip(shares(layer, len(below)), below, strict=True)
            found[node] = sum(s * b for s, b in parts)
        else:
            found[node] = below[0]
    return found


def largest_slope(network: Network, psi: Any) -> Any:
    """Compute mu(psi) from its definition."""
    return max(
        slopes(network, psi, entry, inside)[end] for inside, entry, end in subnetworks(network)
    )


@dataclass(frozen=True)
class State:
    """q values, covariance and channel means of one feature map for two inputs."""

    q1: float
    q2: float
    covariance: float
    mean1: float = 0.0
    mean2: float = 0.0

    @property
    def c(self) -> float:
        """The cosine."""
        return self.covariance / np.sqrt(self.q1 * self.q2)

    def mapped(
        self, f: Callable[[float], float], g: Callable[[float], float] | None = None
    ) -> State:
        """Return the state with f applied to all second moments and g to all means."""
        return State(
            f(self.q1),
            f(self.q2),
            f(self.covariance),
            *((g or f)(m) for m in (self.mean1, self.mean2)),
        )


def added(states: Sequence[State], weights: Sequence[float], means: Sequence[float]) -> State:
    """Return the weighted sum of states."""
    rows = np.array([[s.q1, s.q2, s.covariance] for s in states])
    centres = np.array([[s.mean1, s.mean2] for s in states])
    return State(*(np.asarray(weights) @ rows), *(np.asarray(means) @ centres))


def values(
    network: Network, c: float, q1: float, q2: float, known: Mapping[Any, Phi]
) -> dict[Node, State]:
    """Compute the :class:`State` of every node by quadrature.

    ``known`` is {activation: its NumPy form}.
    """
    found: dict[Node, State] = {}
    for node, layer, parents in network.steps():
        below = [found[p] for p in parents]
        if not parents:
            found[node] = State(q1, q2, c * np.sqrt(q1 * q2))
        elif isinstance(layer, L.Affine):
            gain, shift = float(layer.sigma_w) ** 2, float(layer.sigma_b) ** 2
            found[node] = below[0].mapped(lambda v, g=gain, b=shift: g * v + b, lambda _: 0.0)
        elif isinstance(layer, L.Nonlinear):
            phi, b = known[layer.activation], below[0]
            moment = phi.moment(np.clip(b.c, -1, 1), b.q1, b.q2)
            found[node] = State(
                phi.q_map(b.q1), phi.q_map(b.q2), moment, phi.mean(b.q1), phi.mean(b.q2)
            )
        elif isinstance(layer, L.LayerNorm):
            b = below[0]
            v1, v2 = b.q1 - b.mean1**2, b.q2 - b.mean2**2
            found[node] = State(
                1.0, 1.0, (b.covariance - b.mean1 * b.mean2) / float(np.sqrt(v1 * v2))
            )
        elif isinstance(layer, L.Sum):
            w = [float(v) for v in weights_of(layer, len(below))]
            found[node] = added(below, [v**2 for v in w], w)
        elif isinstance(layer, L.Concat):
            k = np.array(channels_of(layer, len(below)))
            found[node] = added(below, list(k / k.sum()), list(k / k.sum()))
        else:
            found[node] = below[0]
    return found


def weighed_slope(network: Network, q: float, own: Phi, phi: object) -> float:
    """Compute C'(1) at the output by the chain rule, for inputs with q value ``q``.

    At sums, the slopes are weighted by the q values of the addends. ``own`` is the NumPy form of
    ``phi``.
    """
    states, found = values(network, 1.0, q, q, {phi: own}), dict[Node, Any]()
    for node, layer, parents in network.steps():
        below = [found[p] for p in parents]
        if isinstance(layer, L.Nonlinear):
            found[node] = own.slope(states[parents[0]].q1) * below[0]
        elif len(below) > 1:
            given = (
                [float(w) ** 2 for w in weights_of(layer, len(below))]
                if isinstance(layer, L.Sum)
                else channels_of(layer, len(below))
            )
            parts = [s * states[p].q1 for s, p in zip(given, parents, strict=True)]
            found[node] = sum(s * b for s, b in zip(parts, below, strict=True)) / sum(parts)
        else:
            found[node] = below[0] if below else 1.0
    return found[network.outputs[0]]
