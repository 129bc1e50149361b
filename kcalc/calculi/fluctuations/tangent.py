"""The variance of the tangent kernel of one input, and shifts of mean q values, to order 1/width.

The tangent kernel of one output channel is ``Theta = sum_l P_l B_l`` over affine layers: P_l is the
kernel of the layer's trained parameters, ``sigma_w^2 q + sigma_b^2``, and B_l is the squared
gradient at its output. In a random network, all q values and squared gradients are smooth functions
of independent noise variables with variances of order 1/n. So Theta is, to first order, a linear
function of these variables:

- An activation averages phi^2 and ``phi'^2 g^2`` over its n channels, with Gaussian gradients g.
- Vectors of new Gaussians have random squared lengths, with relative variance 2/n.
- Addends of a sum, and gradients that meet at a stream, have random inner products, with variance
  ``q_1 q_2 / n``.

The forward and backward passes share weights, but this contributes covariances of higher order
only.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NoReturn

import numpy as np

from ...foundation.errors import NoRule
from ...foundation.printing import Shown
from ...gaussian.expectations.quadrature import joint_edges, normal_rule, split
from ...maps.maps import Approximable, Assumption
from ...network import primitives as P
from ...network.network import Network
from ...network.primitives import owner
from ..tangent import refuse_indirect, refuse_jumps

Node = Hashable


@dataclass(frozen=True, repr=False)
class TangentVariance(Shown, Approximable):
    """The variance of the tangent kernel of one input over random weights, to order 1/width.

    Attributes
    ----------
    mean
        Theta at infinite width, of one output channel.
    relative
        Var Theta / (E Theta)^2 at the network's widths, the sum of ``parts``.
    width
        The smallest width among the nodes in ``parts``.
    parts
        {node: its contribution to ``relative``}, for the activations, sums and layers whose random
        channels contribute.

    """

    mean: float
    relative: float
    width: int
    parts: dict[Node, float]
    assumptions: tuple[Assumption, ...] = field(default=(), compare=False)
    listed = ("scaled",)

    @property
    def scaled(self) -> float:
        """``width * relative``: n Var Theta / (E Theta)^2 for networks with one hidden width n."""
        return self.width * self.relative

    def _rows(self) -> list[tuple[str, str]]:
        rows = [(str(node), f"{part:.6g}") for node, part in self.parts.items()]
        total = [("Var Theta / (E Theta)^2", f"{self.relative:.6g}"), ("Theta", f"{self.mean:.6g}")]
        return [("node", "part"), *rows, *total]

    def __repr__(self) -> str:
        return f"TangentVariance({self.relative:.4g}, {self.scaled:.4g} / {self.width})"


@dataclass(frozen=True)
class ActivationMoments:
    """Moments of phi(z) and phi'(z) for z with variance q, and some of their q derivatives."""

    square: float
    rate: float  # derivative of E phi^2 in q
    bend: float
    slope: float  # E phi'^2
    tilt: float  # derivative of the slope in q
    noise: np.ndarray  # relative covariance of phi^2 and phi'^2 g^2, times the width


def activation_moments(phi: Any, q: float) -> ActivationMoments:
    """Compute the moments with a quadrature whose edges include phi's kinks."""
    rule = normal_rule(split(joint_edges(phi, q, phi, q, 1), 0.5))
    z, w = rule.z, rule.w / rule.w.sum()
    x = np.sqrt(q) * z
    f, g = phi.numeric(0)(x) ** 2, phi.numeric(1)(x) ** 2
    first, second = (z * z - 1) / (2 * q), (z**4 - 6 * z * z + 3) / (4 * q * q)
    square, slope = float(w @ f), float(w @ g)
    cross = w @ (f * g) / (square * slope) - 1
    noise = np.array([[w @ (f * f) / square**2 - 1, cross], [cross, 3 * (w @ g**2) / slope**2 - 1]])
    return ActivationMoments(
        square,
        float(w @ (f * first)),
        float(w @ (f * second)),
        slope,
        float(w @ (g * first)),
        noise,
    )


@dataclass(frozen=True)
class Noisy:
    """A number with its derivatives with respect to noise variables of variance 1.

    ``rates`` is {(node, which): derivative}.
    """

    value: float
    rates: Mapping[Any, float] = field(default_factory=dict)

    def __add__(self, other: Noisy) -> Noisy:
        keys = {**self.rates, **other.rates}
        rates = {k: self.rates.get(k, 0.0) + other.rates.get(k, 0.0) for k in keys}
        return Noisy(self.value + other.value, rates)

    def __mul__(self, factor: float) -> Noisy:
        return Noisy(factor * self.value, {k: factor * rate for k, rate in self.rates.items()})

    def times(self, other: Noisy) -> Noisy:
        """The product of two noisy numbers."""
        return Noisy(0.0, (self * other.value).rates) + Noisy(
            self.value * other.value, (other * self.value).rates
        )

    def through(self, value: float, rate: float) -> Noisy:
        """Return a function of the number, given the function's value and derivative there."""
        return Noisy(value, {k: rate * r for k, r in self.rates.items()})

    def scattered(self, key: Any) -> Noisy:
        """Return the number multiplied by ``1 + noise``, for the noise variable ``key``."""
        return self + Noisy(0.0, {key: self.value})


class _Program:
    """A network of dense layers, activations of their outputs, and sums with dense outputs."""

    def __init__(self, network: Network, q: float) -> None:
        self.network, self.start = network, q
        self.places: dict[Node, tuple[Node, float]] = {}  # {node: (node it multiplies, factor)}
        self.steps: list[tuple[Node, Any, tuple[Node, ...]]] = []
        self.readers: dict[Node, list[tuple[Node, Any]]] = {}
        for node, op, reads in network.operations:
            if op is None or isinstance(op, P.Mask | P.Reshape) or _is_scale(op):
                place, factor = self.places[reads[0]]
                factor *= float(op.weights[0]) if isinstance(op, P.Mix) else 1.0
                self.places[node] = place, factor
                continue
            self.places[node] = node, 1.0
            self.steps.append((node, op, reads))
            self.readers[node] = []
            for read in reads:
                self.readers[self.places[read][0]].append((node, op))
        widths: Mapping[Node, Any] = network.features
        self.widths = {n: int(widths[owner(n)]) for n in self.readers}
        self.size: dict[Node, Noisy] = {}  # squared length of the sampled vector
        # variance of a channel of new Gaussians, given the nodes below
        self.variance: dict[Node, Noisy] = {}
        self.trained: dict[Node, Noisy] = {}
        self.moments: dict[Node, ActivationMoments] = {}
        self.noises: dict[Any, tuple[Node, int]] = {}

    def noise(self, node: Node, which: Any, width: int) -> Any:
        """Return the key of a new noise variable that averages ``width`` channels of ``node``."""
        self.noises[node, which] = (node, width)
        return node, which

    def stop(self, node: Node, why: str) -> NoReturn:
        """Raise an error because a node has no rule."""
        raise NoRule(
            f"node {owner(node)!r}: the variance of the tangent kernel is computed only for "
            "dense layers, activations of their outputs, and sums with outputs of dense layers; "
            f"{why}. Use kc.verify_kernels to measure any network"
        )

    def forward(self) -> None:
        """Compute q values and the kernels of trained parameters."""
        for node, op, reads in self.steps:
            if isinstance(op, P.Source):
                self.size[node] = Noisy(self.start)
            elif isinstance(op, P.Fresh):
                self._fresh(node, op, reads[0])
            elif isinstance(op, P.Post):
                self._post(node, op, reads[0])
            elif isinstance(op, P.Mix):
                self._sum(node, op, reads)
            else:
                self.stop(node, f"it is a {op.kind}")

    def _fresh(self, node: Node, op: P.Fresh, read: Node) -> None:
        refuse_indirect(op, node)
        place, factor = self.places[read]
        weights, biases = op.trains
        shift = Noisy(float(op.sigma_b) ** 2)
        made = self.size[place] * (factor * float(op.sigma_w)) ** 2
        self.trained[node] = made * float(weights) + shift * float(biases)
        self.variance[node] = made + shift
        readers = self.readers[node]
        if any(isinstance(o, P.Post) for _, o in readers) and len(readers) > 1:
            self.stop(node, "another node also reads this pre-activation")
        length = self.noise(node, "length", self.widths[node])
        self.size[node] = self.variance[node].scattered(length)

    def _post(self, node: Node, op: P.Post, read: Node) -> None:
        refuse_jumps(op.activation, node)
        place, factor = self.places[read]
        if place not in self.variance:
            self.stop(
                node,
                "this activation does not read a dense layer; put an Affine before it",
            )
        if not all(isinstance(o, P.Fresh) for _, o in self.readers[node]):
            self.stop(node, "layers other than an Affine also read this activation")
        below = self.variance[place] * factor**2
        m = self.moments[node] = activation_moments(op.activation, below.value)
        key = self.noise(node, "square", self.widths[node])
        self.size[node] = below.through(m.square, m.rate).scattered(key)

    def _sum(self, node: Node, op: P.Mix, reads: Sequence[Node]) -> None:
        places = [self.places[read] for read in reads]
        older = [p for p, _ in places if not (p in self.variance and len(self.readers[p]) == 1)]
        if len(older) > 1 or len({p for p, _ in places}) < len(places):
            self.stop(node, "all but one of the addends must be outputs of separate dense layers")
        addends = [
            self.size[p] * (float(w) * factor) ** 2
            for w, (p, factor) in zip(op.weights, places, strict=True)
        ]
        self.size[node] = self._met(node, "forward", addends)

    def _met(self, node: Node, which: str, sizes: Sequence[Noisy]) -> Noisy:
        """The squared length of a sum of independent vectors over the channels of ``node``."""
        total = sizes[0]
        for one in sizes[1:]:
            total = total + one
        for i, (one, two) in enumerate(combinations(sizes, 2)):
            key = self.noise(node, (which, i), self.widths[node])
            total = total + Noisy(0.0, {key: 2 * (one.value * two.value) ** 0.5})
        return total

    def backward(self) -> Noisy:
        """Compute Theta of the output from the squared gradients at all nodes."""
        (output,) = self.network.outputs
        place, factor = self.places[output]
        if place not in self.variance or self.readers[place]:
            self.stop(output, "the output does not come from a separate dense layer")
        total, found = Noisy(0.0), {place: Noisy(factor**2)}
        for node, op, _ in reversed(self.steps):
            if node not in found:
                found[node] = self._gradient(node, found)
            if isinstance(op, P.Fresh):
                total = total + self.trained[node].times(found[node])
        return total

    def _gradient(self, node: Node, found: dict[Node, Noisy]) -> Noisy:
        """Compute the squared gradient at a node from those at the nodes that read it."""
        fresh, kept = list[tuple[Node, Noisy]](), list[Noisy]()
        for reader, op in self.readers[node]:
            reads = next(reads for n, _, reads in self.steps if n == reader)
            slots = [i for i, read in enumerate(reads) if self.places[read][0] == node]
            factor = self.places[reads[slots[0]]][1]
            if isinstance(op, P.Fresh):
                fresh.append((reader, found[reader] * (factor * float(op.sigma_w)) ** 2))
            elif isinstance(op, P.Mix):
                kept.append(found[reader] * (factor * float(op.weights[slots[0]])) ** 2)
            else:
                m = self.moments[reader]
                variance = self.variance[node] * factor**2
                slope = variance.through(m.slope, m.tilt)
                key = self.noise(reader, "slope", self.widths[reader])
                return found[reader].times(slope).scattered(key) * factor**2
        if any(n == node and isinstance(o, P.Post) for n, o, _ in self.steps):
            total = Noisy(0.0)  # a Gaussian gradient with the sum as its squared length
            for _, one in fresh:
                total = total + one
            return total
        lengths = [
            one.scattered(self.noise(node, ("gradient", reader), self.widths[node]))
            for reader, one in fresh
        ]
        return self._met(node, "backward", [*kept, *lengths]) if kept or lengths else Noisy(0.0)


def _is_scale(op: Any) -> bool:
    return isinstance(op, P.Mix) and len(op.weights) == 1


def tangent_variance(network: Network, q: float) -> TangentVariance:
    """The variance of the tangent kernel of one input with mean square q, for Gaussian weights.

    Raises: NoRule naming the node at which the calculus stops.
    """
    if len(network.inputs) != 1 or len(network.outputs) != 1:
        raise NoRule("the variance of the tangent kernel needs one input and one output")
    program = _Program(network, q)
    program.forward()
    theta = program.backward()
    if theta.value == 0:
        raise NoRule("no trained parameter reaches the output, so the tangent kernel is 0")
    parts: dict[Node, float] = {}
    used = {owner(node): width for (node, _), (_, width) in program.noises.items()}
    for key, rate in theta.rates.items():
        node, width = program.noises[key]
        variance = 1.0 if isinstance(key[1], tuple) and key[1][0] != "gradient" else 2.0
        if key[1] in ("square", "slope"):
            noise = program.moments[node].noise
            variance = noise[0, 0] if key[1] == "square" else noise[1, 1]
            if key[1] == "square":
                other = theta.rates.get((node, "slope"), 0.0)
                both = 2 * rate * other * noise[0, 1] / width / theta.value**2
                parts[owner(node)] = parts.get(owner(node), 0.0) + float(both)
        part = rate**2 * variance / width / theta.value**2
        parts[owner(node)] = parts.get(owner(node), 0.0) + float(part)
    ordered = {node: parts[node] for node in network if parts.get(node, 0.0) != 0}
    note = Assumption(
        "network",
        "the variance of the tangent kernel is computed to leading order in 1/width, for "
        "independent Gaussian weights and one output channel",
        "convention",
    )
    width = min((used[node] for node in ordered), default=0)
    return TangentVariance(theta.value, sum(ordered.values()), width, ordered, (note,))


def q_shifts(network: Network, q: float, variances: Mapping[Node, float]) -> dict[Node, float]:
    """Return {node: mean q value minus q value at infinite width}, to first order in 1/width.

    ``variances`` is {node: Var q}. An activation maps a shift s to ``Q' s + Q'' V / 2``, where V is
    the variance of the variance of its pre-activations. Raises: NoRule naming the node without a
    rule.
    """
    program = _Program(network, q)
    found: dict[Node, float] = {}
    levels: dict[Node, tuple[float, float]] = {}  # (variance, variance of this variance)
    sizes: dict[Node, float] = {}
    for node, op, reads in program.steps:
        below = [program.places[read] for read in reads]
        if isinstance(op, P.Source):
            found[node], sizes[node] = 0.0, q
        elif isinstance(op, P.Fresh):
            ((place, factor),) = below
            scale = (factor * float(op.sigma_w)) ** 2
            found[node] = scale * found[place]
            sizes[node] = scale * sizes[place] + float(op.sigma_b) ** 2
            levels[node] = sizes[node], scale**2 * variances.get(place, 0.0)
        elif isinstance(op, P.Post) and below[0][0] in levels:
            ((place, factor),) = below
            level, spread = levels[place]
            m = activation_moments(op.activation, factor**2 * level)
            found[node] = factor**2 * found[place] * m.rate + factor**4 * spread * m.bend / 2
            sizes[node] = m.square
        elif isinstance(op, P.Mix) and _has_one_old(program, below):
            squares = [(float(w) * f) ** 2 for w, (_, f) in zip(op.weights, below, strict=True)]
            found[node] = sum(w * found[p] for w, (p, _) in zip(squares, below, strict=True))
            sizes[node] = sum(w * sizes[p] for w, (p, _) in zip(squares, below, strict=True))
        else:
            what = f"this {op.kind}"
            if isinstance(op, P.Post):
                what = "an activation that does not read the output of a dense layer"
            raise NoRule(
                f"node {owner(node)!r}: there is no rule for shifts of q at {what}; all but one "
                "of the addends of a Sum must be outputs of separate dense layers. Use "
                "kc.verify_kernels to measure any network"
            )
    places = program.places
    return {n: places[n][1] ** 2 * found[places[n][0]] for n in network}


def _has_one_old(program: _Program, below: Sequence[tuple[Node, float]]) -> bool:
    """Whether all but one of the addends are new Gaussians that nothing else reads."""
    new = {
        node for node, op, _ in program.steps if isinstance(op, P.Fresh)
        and len(program.readers[node]) == 1
    }  # fmt: skip
    places = [place for place, _ in below]
    return len(set(places)) == len(places) and sum(place not in new for place in places) <= 1
