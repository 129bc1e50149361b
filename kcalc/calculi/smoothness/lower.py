"""Bounds of Jacobians, backward: from every node to the output, the largest and the smallest singular value.

``largest`` >= |J|; ``smallest`` <= inf |J^T v| over unit vectors v at the output, which is 0 where the output has more entries than the
node: in this sense products of smallest values bound those of products. Between consecutive nodes that every path crosses a sum of paths
has ``smallest >= max_i (s_i - sum_{j != i} g_j)``: 1 - |Jg| for a residual block; across such nodes bounds multiply.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from itertools import pairwise

from ... import layers as L
from ...compose import fold_back, no_rule
from ...network import Network, sum_weights
from .activation_bounds import activation_bounds
from .logs import NONE, log, number
from .parameters import ParameterSet
from .upper import Bound
from .windows import affine_window, pool_norms

Node = Hashable


@dataclass(frozen=True)
class Gain:
    """Logs of bounds of the singular values of a Jacobian."""

    smallest: float
    largest: float

    def __mul__(self, other: Gain) -> Gain:
        return Gain(self.smallest + other.smallest, self.largest + other.largest)


ONE, NOTHING = Gain(0.0, 0.0), Gain(NONE, NONE)


def either(one: Gain, two: Gain) -> Gain:
    """Bounds of a sum of two Jacobians."""
    if one.largest == NONE or two.largest == NONE:
        return two if one.largest == NONE else one
    high = max(one.largest, two.largest)
    low = max(_less(one.smallest, two.largest), _less(two.smallest, one.largest))
    return Gain(low, high + math.log1p(math.exp(min(one.largest, two.largest) - high)))


def _less(a: float, b: float) -> float:
    """log(e^a - e^b), -inf where that is not positive."""
    return a + math.log(-math.expm1(b - a)) if a > b else NONE


@dataclass
class Backward:
    """The rules of the reversed fold; ``bounds`` and ``sets`` are those found forward."""

    bounds: Mapping[Node, Bound]
    sets: Mapping[Node, ParameterSet]
    slopes: Mapping[Node, float]
    cuts: frozenset[Node]
    epsilon: float

    def rule(self, layer: L.Layer, node: Node, message: Gain, parents: Sequence[Node]) -> list[Gain]:
        """One message per parent; a node that every path crosses starts anew, so that its message is relative to it."""
        after = ONE if node in self.cuts else message
        if after.largest == NONE:
            return [NOTHING] * len(parents)
        return [after * own for own in self.through(layer, node, parents)]

    @singledispatchmethod
    def through(self, layer: L.Layer, node: Node, parents: Sequence[Node]) -> list[Gain]:
        """The bounds of a layer's own Jacobian in each of its inputs."""
        raise no_rule("smoothness bounds", layer, node)

    @through.register
    def _(self, layer: L.Affine, node: Node, parents: Sequence[Node]) -> list[Gain]:
        p, z = self.sets[node], self.bounds[parents[0]]
        taps, spread, _ = affine_window(layer, node, z.locations)
        return [Gain(log(p.least) if taps == 1 else NONE, log(p.spectral) + log(spread))]

    @through.register
    def _(self, layer: L.Nonlinear, node: Node, parents: Sequence[Node]) -> list[Gain]:
        least = activation_bounds(layer.activation).least_slope
        if least < 1e-6:
            least = activation_bounds(layer.activation, rounded_up(number(float(self.bounds[parents[0]].size[1])))).least_slope
        return [Gain(log(least), log(self.slopes[node]))]

    @through.register
    def _(self, layer: L.Sum, node: Node, parents: Sequence[Node]) -> list[Gain]:
        return [Gain(log(abs(float(w))), log(abs(float(w)))) for w in sum_weights(layer, len(parents))]

    @through.register
    def _(self, layer: L.Concat, node: Node, parents: Sequence[Node]) -> list[Gain]:
        return [ONE] if len(parents) == 1 else [Gain(NONE, 0.0)] * len(parents)

    @through.register
    def _(self, layer: L.Scale, node: Node, parents: Sequence[Node]) -> list[Gain]:
        factor = log(abs(float(layer.factor)))
        return [Gain(factor, factor)]

    @through.register(L.Identity)
    @through.register(L.Dropout)
    @through.register(L.Flatten)
    def _(self, layer: L.Layer, node: Node, parents: Sequence[Node]) -> list[Gain]:
        return [ONE]

    @through.register
    def _(self, layer: L.Pool, node: Node, parents: Sequence[Node]) -> list[Gain]:
        norm, least, _ = pool_norms(layer, node, self.bounds[parents[0]].locations)
        return [Gain(log(least), log(norm))]

    @through.register
    def _(self, layer: L.BatchNorm, node: Node, parents: Sequence[Node]) -> list[Gain]:
        return [Gain(NONE, log(self.epsilon) / -2)]

    @through.register
    def _(self, layer: L.Input, node: Node, parents: Sequence[Node]) -> list[Gain]:
        return []


def rounded_up(reach: float) -> float:
    """A reach on a grid of factors 2^(1/4), so that layers alike share one search."""
    return 2.0 ** (math.ceil(4 * math.log2(reach)) / 4) if 0 < reach < 1e60 else reach


@dataclass(frozen=True)
class Piece:
    """Between two nodes that every path crosses: logs of bounds of the singular values of d exit / d entry."""

    entry: Node
    exit: Node
    gain: Gain


def backward(network: Network, output: Node, rules: Backward, cuts: Sequence[Node]) -> tuple[dict[Node, Gain], list[Piece]]:
    """({node: bounds of d output / d node}, the pieces between cuts in order)."""
    start = dict.fromkeys(network, NOTHING)
    start[output] = ONE
    relative = fold_back(network, rules.rule, start, either)
    after: dict[Node, Gain] = {output: ONE}
    steps = list(pairwise(cuts))
    for cut, following in reversed(steps):
        after[cut] = relative[cut] * after[following]
    total: dict[Node, Gain] = {}
    behind = ONE
    for node in reversed(list(network)):
        behind = after.get(node, behind)
        total[node] = behind if node in after else relative[node] * behind
    return total, [Piece(cut, following, relative[cut]) for cut, following in steps]
