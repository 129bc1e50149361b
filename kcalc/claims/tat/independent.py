"""Activations, Gaussian integrals and networks that are independent of the library."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import acos, pi, sqrt
from typing import Any

import numpy as np
import sympy as sp
from numpy.polynomial.legendre import leggauss
from sympy import Rational

from ... import Activation, Network, activations
from ... import layers as L
from ..bench import Array, Bench
from ..families import subnetworks as subnetworks
from ..functions import FUNCTIONS, density

Function = Callable[[Any], Any]
Node = Any

# -- activations with their first two derivatives --------------------------------------------------


NAMES = (
    "tanh",
    "erf",
    "sin",
    "sigmoid",
    "softplus",
    "swish",
    "gelu",
    "gaussian",
    "atan",
    "asinh",
    "cos",
)
SMOOTH = {name: (f.value, f.slope, f.bend) for name in NAMES for f in [FUNCTIONS[name]]}


def transformed(name: str, constants: Any) -> list[Function]:
    """Return gamma (phi(alpha x + beta) + delta) and its first two derivatives.

    ``constants`` are the constants of a shaped activation.
    """
    alpha, beta, gamma, delta = (getattr(constants, k) for k in ("alpha", "beta", "gamma", "delta"))
    phi, slope, bend = SMOOTH[name]
    return [
        lambda x: gamma * (phi(alpha * x + beta) + delta),
        lambda x: gamma * alpha * slope(alpha * x + beta),
        lambda x: gamma * alpha**2 * bend(alpha * x + beta),
    ]


def leaky(slope: float) -> Function:
    """Return the function max(x, 0) + slope min(x, 0)."""
    return lambda x: np.maximum(x, 0) + slope * np.minimum(x, 0)


def tailored(slope: float) -> Function:
    """Return sqrt(2/(1 + slope^2)) times :func:`leaky`."""
    return lambda x: sqrt(2 / (1 + slope**2)) * leaky(slope)(x)


def tailored_rectifier(slope: float) -> Activation:
    """Return :func:`tailored` as an activation of the library, with Q(q) = q."""
    scale = sqrt(2 / (1 + slope**2))
    return activations.abrelu(slope * scale, scale)


def tailored_map(slope: float, c: Any) -> Any:
    """Compute C of a tailored rectifier from the angle t: cos t + k (sin t - t cos t)."""
    t = np.arccos(np.clip(c, -1, 1))
    return np.cos(t) + corner(slope) * (np.sin(t) - t * np.cos(t))


def tailored_slope(slope: float, c: Any) -> Any:
    """Compute C' of a tailored rectifier."""
    return 1 - corner(slope) * np.arccos(np.clip(c, -1, 1))


def corner(slope: Any) -> Any:
    """Compute k = (1 - a)^2/(pi (1 + a^2))."""
    return (1 - slope) ** 2 / (pi * (1 + slope**2))


# -- Gaussian integrals ----------------------------------------------------------------------------

_STEP = 0.1
_POINTS = _STEP * np.arange(-95, 96)
_WEIGHTS = _STEP * density(_POINTS)


def one(f: Function) -> float:
    """Compute E f(z) by the trapezoidal rule, for a function that is analytic near the real line.

    The error is e^(-2 pi d/h), where d is the width of the strip of analyticity.
    """
    return float(np.sum(_WEIGHTS * f(_POINTS)))


def pair(f: Function, g: Function, c: float, q1: float = 1.0, q2: float = 1.0) -> float:
    """Compute E f(u) g(v) for analytic functions, variances q1, q2 and correlation c."""
    x, y = _POINTS[:, None], _POINTS[None, :]
    second = g(sqrt(q2) * (c * x + sqrt((1 - c) * (1 + c)) * y))
    return float(_WEIGHTS @ (f(sqrt(q1) * _POINTS) * (second @ _WEIGHTS)))


def homogeneous_pair(f: Function, g: Function, c: float) -> float:
    """Compute E f(u) g(v) at q = 1 for f and g with f(s x) = s f(x), s > 0, and a kink at 0.

    The value is an integral over the angle, split at the kinks, multiplied by E r^2 = 2.
    """
    t = acos(c)
    kinks = sorted({-pi / 2, pi / 2, t - pi / 2, t + pi / 2, 3 * pi / 2})
    nodes, weights = leggauss(24)
    total = 0.0
    for low, high in itertools.pairwise(kinks):
        angle = (low + high) / 2 + (high - low) / 2 * nodes
        total += (high - low) / 2 * (weights @ (f(np.cos(angle)) * g(np.cos(angle - t))))
    return total / pi


# -- networks --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dag:
    """A network of combined layers and normalised sums of affine layers.

    ``nodes`` are ("phi", (parent,), ()) or ("sum", parents, squared weights).
    Node 0 is the input; ``squares`` are fractions of small integers that add up to 1.
    """

    nodes: tuple[tuple[str, tuple[int, ...], tuple[Any, ...]], ...]

    def values(
        self, start: Any, r: Function, number: Function = float, mix: Function | None = None
    ) -> list[Any]:
        """Compute the value of every node from the definition of U_{f,r}; r is the layer map."""
        found = [start]
        for kind, parents, squares in self.nodes:
            if kind == "phi":
                found.append(r(found[parents[0]]))
            else:
                found.append(
                    sum(
                        (number(w) * found[p] for w, p in zip(squares, parents, strict=True)),
                        start=0 * found[0],
                    )
                )
        return found

    def __call__(self, start: Any, r: Function, number: Function = float) -> Any:
        return self.values(start, r, number)[-1]

    def derivatives(
        self, c: Any, maps: Sequence[Function], number: Function = float
    ) -> tuple[Any, ...]:
        """Compute (C_f, C_f') or (C_f, C_f', C_f'') at c by the chain rule.

        ``maps`` contains the local map and its derivatives.
        """

        def step(jet: tuple[Any, ...]) -> tuple[Any, ...]:
            first = maps[1](jet[0])
            out = (maps[0](jet[0]), first * jet[1])
            return (
                out
                if len(maps) == 2
                else (*out, maps[2](jet[0]) * jet[1] * jet[1] + first * jet[2])
            )

        start = (c, 1 + 0 * c) if len(maps) == 2 else (c, 1 + 0 * c, 0 * c)
        found: list[tuple[Any, ...]] = [start]
        for kind, parents, squares in self.nodes:
            if kind == "phi":
                found.append(step(found[parents[0]]))
            else:
                terms = [
                    [number(w) * part for part in found[p]]
                    for w, p in zip(squares, parents, strict=True)
                ]
                found.append(
                    tuple(sum(parts[1:], start=parts[0]) for parts in zip(*terms, strict=True))
                )
        return found[-1]

    def network(self, phi: str | Activation) -> Network:
        """Build the library's network, with an Affine before every nonlinear layer and addend."""
        steps: list[tuple[str, L.Layer, tuple[str, ...]]] = [("n0", L.Input(), ())]
        for i, (kind, parents, squares) in enumerate(self.nodes, 1):
            affine = tuple(f"w{i}_{j}" for j in range(len(parents)))
            steps += [
                (name, L.Affine(), (f"n{p}",)) for name, p in zip(affine, parents, strict=True)
            ]
            weights = tuple(sp.sqrt(w) for w in squares)
            layer: L.Layer = L.Nonlinear(phi) if kind == "phi" else L.Sum(weights)  # pyright: ignore[reportArgumentType]
            steps.append((f"n{i}", layer, affine))
        return Network.from_steps(steps)

    @property
    def depth(self) -> int:
        """The number of nonlinear layers."""
        return sum(kind == "phi" for kind, _, _ in self.nodes)


def chain_of(depth: int) -> Dag:
    """Return a chain of ``depth`` combined layers."""
    return Dag(tuple(("phi", (i,), ()) for i in range(depth)))


def random_dag(bench: Bench, size: int = 10) -> Dag:
    """Return a random network of combined layers and sums that all lead to the last node."""
    nodes: list[tuple[str, tuple[int, ...], tuple[Any, ...]]] = [("phi", (0,), ())]
    unread = {1}
    for i in range(2, size + 1):
        last = i == size
        if len(unread) > 1 and (last or bench.rng.random() < 0.5):
            count = len(unread) if last else 2
            parents = sorted(unread)[:count]
            parts = [bench.whole(1, 5) for _ in parents]
            nodes.append(("sum", tuple(parents), tuple(Rational(p, sum(parts)) for p in parts)))
        else:
            parents = [bench.whole(max(0, i - 3), i)]
            nodes.append(("phi", tuple(parents), ()))
        unread = (unread - set(parents)) | {i}
    if len(unread) > 1:
        nodes.append(
            ("sum", tuple(sorted(unread)), tuple(Rational(1, len(unread)) for _ in unread))
        )
    return Dag(tuple(nodes))


def small_network(bench: Bench, layers: int = 8, phi: str = "relu") -> Network:
    """Build a random network that is small enough to enumerate all sets of layers.

    It has affine and nonlinear layers, sums, and several outputs.
    """
    steps: list[tuple[str, L.Layer, tuple[str, ...]]] = [("x", L.Input(), ())]
    for i in range(layers):
        nodes = [step[0] for step in steps]
        unread = [n for n in nodes if not any(n in step[2] for step in steps)]
        kind = bench.rng.choice(["affine", "phi", "phi", "sum"])
        if i == layers - 1 and len(unread) > 1:
            kind, parents = "sum", unread
        elif kind == "sum":
            pool = (unread + nodes[-3:])[-4:]
            parents = [str(pool[bench.whole(0, len(pool))]) for _ in range(2)]
            parents[0] = unread[0]
        else:
            parents = [str(bench.rng.choice(unread if bench.rng.random() < 0.5 else nodes[-3:]))]
        if kind == "sum":
            parts = [bench.whole(1, 5) for _ in parents]
            layer: L.Layer = L.Sum(tuple(sp.sqrt(Rational(p, sum(parts))) for p in parts))
        else:
            layer = L.Affine() if kind == "affine" else L.Nonlinear(phi)  # pyright: ignore[reportArgumentType]
        steps.append((f"l{i}", layer, tuple(parents)))
    return Network.from_steps(steps)


def read(
    net: Network, members: frozenset[Node], entry: Node, start: Any, r: Function
) -> Mapping[Node, Any]:
    """Compute {node: value} on a set of layers from the definition of U_{g,r}."""
    values = {entry: start}
    for name, layer, parents in net.steps():
        if name not in members:
            continue
        given = [values[p] for p in parents]
        if isinstance(layer, L.Nonlinear):
            values[name] = r(given[0])
        elif isinstance(layer, L.Sum):
            squares = [float(w) ** 2 for w in layer.weights or (1,) * len(given)]
            values[name] = sum(w * v for w, v in zip(squares, given, strict=True)) / sum(squares)
        else:
            values[name] = given[0]
    return values


def greatest(net: Network, start: float, r: Function) -> float:
    """Compute max_g U_{g,r}(start) over all subnetworks."""
    return max(
        (read(net, members, entry, start, r)[out] for members, entry, out in subnetworks(net)),
        default=start,
    )


def forward(bench: Bench, phi: Function, x: Array, widths: Sequence[int]) -> Array:
    """Compute phi(W ... phi(W x)) for rows x, with Gaussian weights of variance 1/fan-in."""
    for width in widths:
        x = phi(x @ bench.normal(x.shape[1], width) / sqrt(x.shape[1]))
    return x
