"""Bounds of singular values of the Jacobian J from every node to the output, by a reversed fold.

``largest`` >= |J|; ``smallest`` <= inf |J^T v| over unit vectors v at the output, which is 0 where the output has more entries than the
node. With this definition the product of smallest values bounds that of a product of Jacobians from
below. A sum of Jacobians along several paths, with bounds s_i and g_i, has ``smallest >= max_i (s_i
- sum_{j != i} g_j)``, which is 1 - |Jg| for a residual block x + g. Across nodes that every path
crosses, bounds multiply.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from itertools import pairwise

from ...network import primitives as P
from ...network.compose import interpret_back, no_rule
from ...network.network import Network
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
    """The rules of the reversed fold.

    ``bounds``, ``sets`` and ``slopes`` come from :class:`Upper`.
    """

    bounds: Mapping[Node, Bound]
    sets: Mapping[Node, ParameterSet]
    slopes: Mapping[Node, float]
    cuts: frozenset[Node]
    epsilon: float

    def rule(self, op: P.Primitive, node: Node, message: Gain, parents: Sequence[Node]) -> list[Gain]:
        """One message per parent.

        Messages are relative to the next node that every path crosses.
        """
        after = ONE if node in self.cuts else message
        if after.largest == NONE:
            return [NOTHING] * len(parents)
        return [after * own for own in self.through(op, node, parents)]

    @singledispatchmethod
    def through(self, op: P.Primitive, node: Node, parents: Sequence[Node]) -> list[Gain]:
        """The bounds of a primitive's own Jacobian in each of its inputs."""
        raise no_rule("smoothness bounds", op, node)

    @through.register
    def _(self, op: P.Fresh, node: Node, parents: Sequence[Node]) -> list[Gain]:
        p, z = self.sets[node], self.bounds[parents[0]]
        taps, spread, _ = affine_window(op, node, z.locations)
        return [Gain(log(p.least) if taps == 1 else NONE, log(p.spectral) + log(spread))]

    @through.register
    def _(self, op: P.Post, node: Node, parents: Sequence[Node]) -> list[Gain]:
        least = activation_bounds(op.activation).least_slope
        if least < 1e-6:
            least = activation_bounds(op.activation, rounded_up(number(float(self.bounds[parents[0]].size[1])))).least_slope
        return [Gain(log(least), log(self.slopes[node]))]

    @through.register
    def _(self, op: P.Mix, node: Node, parents: Sequence[Node]) -> list[Gain]:
        return [Gain(log(abs(float(w))), log(abs(float(w)))) for w in op.weights]

    @through.register
    def _(self, op: P.Join, node: Node, parents: Sequence[Node]) -> list[Gain]:
        return [ONE] if len(parents) == 1 else [Gain(NONE, 0.0)] * len(parents)

    @through.register
    def _(self, op: P.Mask | P.Reshape, node: Node, parents: Sequence[Node]) -> list[Gain]:
        return [ONE]

    @through.register
    def _(self, op: P.Window, node: Node, parents: Sequence[Node]) -> list[Gain]:
        norm, least, _ = pool_norms(op, node, self.bounds[parents[0]].locations)
        return [Gain(log(least), log(norm))]

    @through.register
    def _(self, op: P.Norm, node: Node, parents: Sequence[Node]) -> list[Gain]:
        """The bounds of a BatchNorm; other norms have no forward rule."""
        return [Gain(NONE, log(self.epsilon) / -2)]


def rounded_up(reach: float) -> float:
    """A reach rounded up to a power of 2^(1/4), so that similar layers share one cached bound."""
    return 2.0 ** (math.ceil(4 * math.log2(reach)) / 4) if 0 < reach < 1e60 else reach


@dataclass(frozen=True)
class Piece:
    """The part between two nodes that every path crosses, with bounds for d exit / d entry."""

    entry: Node
    exit: Node
    gain: Gain


def backward(network: Network, output: Node, rules: Backward, cuts: Sequence[Node]) -> tuple[dict[Node, Gain], list[Piece]]:
    """({node: bounds of d output / d node}, the pieces between cuts in order)."""
    start = dict.fromkeys(network, NOTHING)
    start[output] = ONE
    relative = interpret_back(network, rules.rule, start, either)
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
