"""Mean squared gradients at every feature map, even if branches share weights.

A *probe* is a parameter with variance 0 that is added to every channel of a feature map. It does
not change values, and its tangent kernel is ``E|d out_k / d node|^2``. So one pass of the tangent
calculus, with one direction of derivatives per node, gives all mean squared gradients. Sums whose
addends share weights then include the covariances of gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from ..fields import NUMPY
from ..fields.jets import Jet
from ..foundation.errors import FreshnessError
from ..network import primitives as P
from ..network.layers import Scale
from ..network.network import Network
from .atoms import Atom, Pair, Term, disjoint
from .channels import Channels
from .ntk import TangentReading
from .second_moments import Moments, Part, is_zero
from .tangent import Tangent

Node = Hashable
Value = TypeVar("Value")
NUMBERS_HELD = 1 << 22  # directions times nodes in one pass


@dataclass
class Probed(Tangent):
    """The tangent calculus with probes, and without parameters.

    ``directions``: {node of the lowered network: the derivatives with respect to its probe};
    ``shared`` is {node: key}; nodes with equal keys share one probe.
    """

    directions: Mapping[Node, np.ndarray] = field(default_factory=dict)
    shared: Mapping[Node, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._probes: dict[Any, Atom] = {}

    def rule(self, op: P.Primitive, node: Node, inputs: Sequence[Channels]) -> Channels:
        """The state that a primitive emits, with its probe."""
        return self.probed(node, super().rule(op, node, inputs), isinstance(op, P.Fresh))

    def probed(
        self, node: Node, state: Channels, new: bool, direction: np.ndarray | None = None
    ) -> Channels:
        """Add the node's probe to its state.

        ``new``: whether the state is one atom that no other node has read yet. ``direction``
        replaces the node's own direction.
        """
        direction = self.directions.get(node) if direction is None else direction
        if direction is None:
            return state
        return state.map(lambda pair: self._with(direction, pair, node, new))

    def _with(self, direction: np.ndarray, pair: Pair, node: Node, new: bool) -> Pair:
        moved, m = Jet((np.asarray(0.0), -direction)), pair.moments
        moments = replace(m, gap=m.gap + moved * (1 / m.q1))
        if new and node not in self.shared:
            (term,) = pair.terms
            term = replace(term, atom=replace(term.atom, moments=moments))
            return replace(pair, moments=moments, terms=(term,))
        probe = self._probe(node, moved)
        terms = (*pair.terms, Term(1, 1, probe))
        if not (is_zero(pair.shift1) and is_zero(pair.shift2)):
            return replace(pair, moments=moments, terms=terms)
        support = pair.support | probe.support
        return Pair.of(Atom(node, moments, support, pair.gaussian, pair.raw, terms)).at(pair.window)

    def _probe(self, node: Node, moved: Jet) -> Atom:
        key = self.shared.get(node)
        if key is None or key not in self._probes:
            nothing = Moments(0.0, 0.0, moved * 0, part=Part(0.0, 0.0, 0.0, moved))
            made = Atom(node, nothing, self.kernel.ledger.bit(), gaussian=True)
            if key is None:
                return made
            self._probes[key] = made
        return self._probes[key]


def probed_gradients(
    reading: TangentReading, q: Mapping[Node, Any], output: Node, states: Mapping[Node, Channels]
) -> dict[Node, float]:
    """Return {node: E|d out_k / d node|^2}, without the nodes whose gradients have no rule.

    ``states`` are the states of the kernel calculus. There is no rule for the gradients of
    functions that are fused with an activation, because the activation reads one function of a
    Gaussian.
    """
    return known_gradients(
        reading.network,
        states,
        lambda nodes: _passes(reading, q, output, [(node,) for node in nodes]),
    )


def known_gradients(
    network: Network,
    states: Mapping[Node, Channels],
    compute: Callable[[Sequence[Node]], Sequence[Value]],
) -> dict[Node, Value]:
    """Return {node: result of ``compute``}, for the nodes whose gradients have rules."""
    hidden = _inside_fusions(network, states)
    nodes = [node for node in network if node not in hidden]
    try:
        found = compute(nodes)
    except FreshnessError:  # a probe prevents a rule for shared weights
        new = {node for node, op, _ in network.operations if isinstance(op, P.Fresh)}
        nodes = [node for node in nodes if node in new or node in network.inputs]
        found = compute(nodes)
    return dict(zip(nodes, found, strict=True))


def with_scales(network: Network) -> Network:
    """Return the network with a primitive at every node, so that every node can have a probe."""
    aliases = {node for node, op, reads in network.operations if op is None and reads}
    return network.map_layers(lambda node, layer: Scale(1) if node in aliases else layer)


def joint_gradients(
    network: Network, q: float, output: Node, groups: Sequence[Sequence[Node]]
) -> list[float]:
    """The mean square of the summed gradients at the nodes of each group.

    No node of a group may depend on another node of the group.
    """
    reading = TangentReading(network, None, False)
    shared = {node: place for place, group in enumerate(groups) for node in group}
    found = _passes(reading, dict.fromkeys(network.inputs, np.asarray(q)), output, groups, shared)
    return list(found)


def _passes(
    reading: TangentReading,
    q: Mapping[Node, Any],
    output: Node,
    groups: Sequence[Sequence[Node]],
    shared: Mapping[Node, Any] = MappingProxyType({}),
) -> list[float]:
    """The mean squared gradient for each group: at its node, or jointly at all of its nodes."""
    network = reading.network
    reading = TangentReading(with_scales(network), None, reading.assume)
    room = max(64, NUMBERS_HELD // len(network))
    found: list[float] = []
    for start in range(0, len(groups), room):
        few = groups[start : start + room]
        rows = zip(few, np.eye(len(few)), strict=True)
        calculus = Probed(
            reading.plain_kernel(NUMPY, True),
            seeds={},
            unseen=reading.unseen,
            directions={node: row for group, row in rows for node in group},
            shared=shared,
        )
        calculus.kernel.same_masks = True
        still = Jet((np.asarray(0.0), np.zeros(len(few))))
        inputs = {
            node: calculus.probed(node, calculus.start(node, q[node], q[node], still), True)
            for node in network.inputs
        }
        state = reading.interpreted(calculus, inputs)[output]
        parts = calculus.kernel.statistics.parts(state)
        values = -sum(part.deficit.coefficients[1] for part in parts)
        found.extend(map(float, np.broadcast_to(values, (len(few),)) + 0.0))  # avoid -0
    return found


def _inside_fusions(network: Network, states: Mapping[Node, Channels]) -> set[Node]:
    """Return the nodes after weights that a later activation or product fuses into one function."""
    inside: set[Node] = set()
    for node, op, reads in reversed(network.operations):
        if op is None or isinstance(op, P.Fresh):
            reached = node in inside and op is None
        else:
            reached = node in inside or _fuses(op, [states[read] for read in reads])
        if reached:
            inside.update(reads)
    kept = {node for node, op, reads in network.operations if isinstance(op, P.Fresh) or not reads}
    return inside - kept


def _fuses(op: P.Primitive, inputs: Sequence[Channels]) -> bool:
    """Whether a primitive fuses functions of the same Gaussian into a single function."""
    if isinstance(op, P.Post | P.Surrogate):
        return not all(pair.gaussian for pair in inputs[0].pairs)
    supports = [reduce(or_, (pair.support for pair in state.pairs)) for state in inputs]
    return isinstance(op, P.Prod) and not disjoint(supports)
