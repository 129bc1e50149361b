"""Mean squared gradients over exchangeable tokens, even if branches share weights.

The tangent calculus over tokens compares two sequences at equal and at different positions. A probe
that differs from token to token perturbs only the covariance at equal positions. Its tangent kernel
is the sum over tokens of the squared gradients. A probe that all tokens share also perturbs the
covariance at different positions. Its tangent kernel is the squared sum over tokens of the
gradients. See :mod:`kcalc.calculi.probes` for probes of inputs without tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ...fields import NUMPY
from ...fields.jets import Jet
from ...network import primitives as P
from ...network.network import Network
from ...network.tokens import read_tokens
from ..probes import NUMBERS_HELD, Probed, known_gradients, with_scales
from ..tangent import Tangent
from .exchangeable import Exchangeable, Relation, TokenState
from .structure import inputs_over, over_tokens
from .tangent import TokenTangentReading

Node = Hashable
Modes = tuple[float, float]


class _Part(Probed):
    """The calculus for one relation; :class:`_ProbedTokens` adds the probes."""

    def rule(self, op: P.Primitive, node: Node, inputs: Sequence[Any]) -> Any:
        return Tangent.rule(self, op, node, inputs)


class _ProbedTokens(Exchangeable):
    """Kernel maps over tokens of two sequences, with a probe at every node.

    The first half of the directions perturbs equal positions, and the second half perturbs all
    positions. After pooling, all positions are equal.
    """

    def rule(self, op: P.Primitive, node: Node, inputs: Sequence[TokenState]) -> TokenState:
        new = isinstance(op, P.Fresh | P.Attend)
        return self.probed(node, super().rule(op, node, inputs), new)

    def probed(self, node: Node, state: TokenState, new: bool) -> TokenState:
        """Add the node's probes to its state, as :meth:`Probed.probed` does."""
        made = dict(state.relations)
        for name in (Relation.SAME_TOKEN, Relation.OTHER_TOKEN):
            part = self.parts[name]
            direction = part.directions.get(node)
            if direction is not None and name == Relation.OTHER_TOKEN and state.count is not None:
                direction = np.where(np.arange(len(direction)) < len(direction) // 2, 0, direction)
            made[name] = part.probed(node, made[name], new, direction)
        return TokenState(made, state.count)


def probed_modes(
    reading: TokenTangentReading, q: Mapping[Node, Any], output: Node, states: Mapping[Node, Any]
) -> dict[Node, Modes]:
    """Return {node: (sum of squared gradients, squared sum of gradients) over its tokens}.

    Nodes whose gradients have no rule are left out. ``states`` are the states of one sequence.
    """
    own = {node: state.relations[Relation.FIRST_INPUT] for node, state in states.items()}
    return known_gradients(
        reading.network, own, lambda nodes: modes_of(reading, q, output, [(n,) for n in nodes])
    )


def joint_modes(
    network: Network,
    q: float,
    output: Node,
    groups: Sequence[Sequence[Node]],
    options: Mapping[str, Any],
) -> list[Modes]:
    """Return the two modes (see :func:`probed_modes`) of the summed gradients for each group.

    The gradients are summed over the nodes of the group, and no node of a group may depend on
    another node of the group. ``options``: the arguments for exchangeable tokens.
    """
    tokens = read_tokens(options["tokens"], options["token_cosine"])
    assert tokens is not None
    reading = TokenTangentReading(network, None, False, tokens)
    shared = {node: place for place, group in enumerate(groups) for node in group}
    return modes_of(reading, dict.fromkeys(network.inputs, np.asarray(q)), output, groups, shared)


def modes_of(
    reading: TokenTangentReading,
    q: Mapping[Node, Any],
    output: Node,
    groups: Sequence[Sequence[Node]],
    shared: Mapping[Node, Any] = MappingProxyType({}),
) -> list[Modes]:
    """Return the two modes for each group: at its node, or jointly at all of its nodes.

    ``shared`` is {node: key}; nodes with equal keys share one probe.
    """
    reading = TokenTangentReading(with_scales(reading.network), None, reading.assume, reading.said)
    network = reading.network
    room = max(32, NUMBERS_HELD // (2 * len(network)))
    found: list[Modes] = []
    for start in range(0, len(groups), room):
        few = groups[start : start + room]
        rows = np.tile(np.eye(len(few)), 2)
        directions = {n: row for group, row in zip(few, rows, strict=True) for n in group}

        def make(uniform: bool, directions: Mapping[Node, Any] = directions) -> _Part:
            kernel = reading.plain_kernel(NUMPY, uniform)
            return _Part(kernel, {}, None, reading.unseen, directions, shared)

        calculus = over_tokens(make, reading.plain_kernel, True, True, _ProbedTokens)
        calculus.plain[Relation.SAME_TOKEN].same_masks = True
        still = Jet((np.asarray(0.0), np.zeros(2 * len(few))))
        inputs = inputs_over(reading.said, calculus, q, q, dict.fromkeys(q, still))
        inputs = {node: calculus.probed(node, state, True) for node, state in inputs.items()}
        state = reading.interpreted(calculus, inputs)[output]
        kernel = calculus.plain[Relation.SAME_TOKEN]
        parts = kernel.statistics.parts(state.relations[Relation.SAME_TOKEN])
        values = -sum(part.deficit.coefficients[1] for part in parts)
        one, mean = np.broadcast_to(values, (2 * len(few),)).reshape(2, -1) + 0.0  # no -0
        found.extend(zip(one.tolist(), mean.tolist(), strict=True))
    return found
