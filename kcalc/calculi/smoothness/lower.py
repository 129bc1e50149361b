"""Bounds on singular values of the Jacobian J from every node to the output, computed backwards.

``largest`` >= |J|; ``smallest`` <= inf |J^T v| over unit vectors v at the output, which is 0 if the
output has more entries than the node. With this definition, the product of the ``smallest`` of
several Jacobians is a lower bound on the ``smallest`` of their product. A sum of Jacobians along
several paths, with lower bounds s_i and upper bounds g_i, has ``smallest >= max_i (s_i - sum_{j !=
i} g_j)``. For a residual block x + g, the lower bound is 1 - |Jg|. Bounds multiply at nodes that
every path crosses.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...network.compose import interpret_back
from ...network.network import Network
from ...network.primitives import Primitive
from .logs import NONE, NOTHING, ONE, Gain

Node = Hashable


def either(one: Gain, two: Gain) -> Gain:
    """Return bounds on a sum of two Jacobians."""
    if one.largest == NONE or two.largest == NONE:
        return two if one.largest == NONE else one
    high = max(one.largest, two.largest)
    low = max(_less(one.smallest, two.largest), _less(two.smallest, one.largest))
    return Gain(low, high + math.log1p(math.exp(min(one.largest, two.largest) - high)))


def _less(a: float, b: float) -> float:
    """Return log(e^a - e^b), or -inf if the difference is not positive."""
    return a + math.log(-math.expm1(b - a)) if a > b else NONE


@dataclass(frozen=True)
class PathPiece:
    """The part between two nodes that every path crosses, with bounds on d exit / d entry."""

    entry: Node
    exit: Node
    gain: Gain


def backward(
    network: Network, output: Node, own: Mapping[Node, Sequence[Gain]], cuts: Sequence[Node]
) -> tuple[dict[Node, Gain], list[PathPiece]]:
    """Return {node: bounds on d output / d node}, and the pieces between cuts in order.

    ``own``: {node: bounds on the node's Jacobian with respect to each of its inputs}, as
    :class:`Upper` records them; ``cuts``: the nodes that every path crosses, in order.
    """
    crossed = frozenset(cuts)

    def sent(op: Primitive, node: Node, message: Gain, parents: Sequence[Node]) -> list[Gain]:
        """Return bounds on the Jacobian from each parent of ``node`` to the next cut."""
        after = ONE if node in crossed else message
        return [NOTHING if after.largest == NONE else after * gain for gain in own[node]]

    start = dict.fromkeys(network, NOTHING)
    start[output] = ONE
    relative = interpret_back(network, sent, start, either)
    after: dict[Node, Gain] = {output: ONE}
    steps = list(pairwise(cuts))
    for cut, following in reversed(steps):
        after[cut] = relative[cut] * after[following]
    total: dict[Node, Gain] = {}
    behind = ONE
    for node in reversed(list(network)):
        behind = after.get(node, behind)
        total[node] = behind if node in after else relative[node] * behind
    return total, [PathPiece(cut, following, relative[cut]) for cut, following in steps]
