"""Split a network into coordinate groups with the distributions of their slopes at a given q."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..calculi.channels import Channels
from ..calculi.global_maps import MapReading
from ..calculi.second_moments import Moments
from ..calculi.widths import with_widths
from ..fields import NUMPY
from ..fields.arguments import one_q
from ..foundation.errors import KcalcError, glimpse
from ..foundation.plain_arguments import choice
from ..maps.maps import Assumption
from ..network import primitives as P
from ..network.compose import require_network
from ..network.network import Network, require_numbers
from ..network.primitives import owner
from .groups import Grouped, grouped
from .slopes import GroupLaw, Program, law_of, program_key

Node = Hashable
WEIGHTS = ("gaussian", "orthogonal")
INPUT_LAWS = ("gaussian",)

FREE = (
    "infinite width at fixed depth; one position; weights independent between layers, {weights}; "
    "slopes asymptotically free from the weights around them; pre-activations of one coordinate "
    "jointly Gaussian, with the q values of the kernel maps. The spectrum is that of the bulk; a "
    "few singular values, such as the one along the input, may lie outside it"
)
NORMS = (
    "a channel norm acts as a scale plus a term of finite rank, so the spectrum is that of the "
    "bulk, and a few singular values may lie outside it"
)
STANDARDISED = (
    "standardised weights are Gaussian weights up to a term of rank one, so the spectrum is that "
    "of the bulk, and a few singular values may lie outside it"
)
SAMPLED = (
    "the joint distribution of the slopes from {count} sources is integrated with a quasi-Monte "
    "Carlo rule, with an error of about 1%"
)
EVALUATED = "dropout is the identity (evaluation)"


@dataclass(frozen=True)
class Reading:
    """A network with its groups, the distributions of their slopes, and notes."""

    network: Network
    q: float
    weights: Mapping[Node, str]
    grouped: Grouped
    laws: tuple[GroupLaw, ...]
    variance: Mapping[Node, float | None]
    norms: Mapping[Any, tuple[float, float]]
    assumptions: tuple[Assumption, ...]


def reading_of(
    network: Network, q: Any, weights: Any, features: Any, input_law: str | None
) -> Reading:
    """Read a network for its Jacobian spectrum.

    Raises: KcalcError for invalid arguments and for nodes that the theory does not cover.
    """
    require_network(network)
    level = one_q(q)
    if input_law is not None:
        choice(input_law, "input_law", INPUT_LAWS)
    for what, nodes in (("input", network.inputs), ("output", network.outputs)):
        if len(nodes) != 1:
            raise KcalcError(
                f"the network has {len(nodes)} {what}s ({', '.join(map(repr, nodes))}), but the "
                "input-output Jacobian requires one input and one output; cut the network to one "
                f"{what}, or join them with a Concat"
            )
    sized = with_widths(network, features)
    require_numbers(sized)
    laws = _weights(sized, weights)
    start = sized.inputs[0]
    rough = grouped(sized, dict.fromkeys(laws, False), lambda *_: (0.0, 1.0))
    if input_law is None:  # raise these errors before any errors from kernel maps
        for group in rough.groups:
            Program(group).refuse_unknown([j for j, n in enumerate(group.sources) if n == start])
    reading = MapReading(sized, False)
    kernel = reading.plain_kernel(NUMPY, True, False)
    one = np.asarray(level)
    if input_law is None:
        states = {start: kernel.start(start, one, one, 0)}
    else:
        kernel.start(start, one, one, 0)
        moments = Moments(one, one, np.asarray(0.0))
        states = {start: Channels.one(kernel.ledger.fresh(start, moments))}
    states = reading.interpreted(kernel, states)
    norms: dict[Any, tuple[float, float]] = {}

    def divisors(node: Node, op: P.Norm, read: Node, place: Any) -> tuple[float, float]:
        state = states[read]
        below = state.divisors(op.groups)[_part(state, place)]
        mean = float(kernel.statistics.means(below, node)[0]) if op.centred else 0.0
        size = float(kernel.whole(below)[0]) - mean**2
        norms[node, place] = mean, size**0.5
        return norms[node, place]

    orthogonal = {node: law == "orthogonal" for node, law in laws.items()}
    found = grouped(sized, orthogonal, divisors)
    variance: dict[Node, float | None] = {
        edge.node: float(kernel.whole(states[edge.node])[0]) for edge in found.weights
    }
    variance[start] = level if input_law else None
    known: dict[Any, GroupLaw] = {}
    keys = [program_key(group, variance) for group in found.groups]
    for key, group in zip(keys, found.groups, strict=True):
        if key not in known:
            known[key] = law_of(group, variance)
    group_laws = tuple(known[key] for key in keys)
    notes = tuple(_notes(sized, laws, found, group_laws, kernel.notes.values()))
    return Reading(sized, level, laws, found, group_laws, variance, norms, notes)


def _part(state: Channels, place: Any) -> int:
    """Return the index of the channel group that contains a given fraction of the channels."""
    return max(k for k, edge in enumerate(state.edges[:-1]) if edge <= place)


def _weights(network: Network, given: Any) -> dict[Node, str]:
    """Return {node with weights: "gaussian" or "orthogonal"}."""
    nodes = [node for node, op, _ in network.operations if isinstance(op, P.Fresh)]
    if not isinstance(given, Mapping):
        return dict.fromkeys(nodes, choice(given, "weights", WEIGHTS))
    owners = {owner(node) for node in nodes}
    for node, law in given.items():
        if node not in owners:
            raise KcalcError(f"weights: {glimpse(node)} is not a node with weights in the network")
        choice(law, f"weights of {node!r}", WEIGHTS)
    return {node: given.get(owner(node), "gaussian") for node in nodes}


def _notes(
    network: Network,
    laws: Mapping[Node, str],
    found: Grouped,
    group_laws: tuple[GroupLaw, ...],
    notes: Any,
) -> Any:
    kinds = set(laws.values())
    what = f"all {kinds.pop()}" if len(kinds) == 1 else "Gaussian or uniform orthogonal"
    yield Assumption("network", FREE.format(weights=what))
    yield from network.assumptions
    for node, op, _ in network.operations:
        if isinstance(op, P.Norm):
            yield Assumption(owner(node), NORMS)
        elif isinstance(op, P.Fresh) and op.standardised:
            if laws[node] == "orthogonal":
                raise KcalcError(
                    f"node {owner(node)!r} standardises its weights, so they are not orthogonal; "
                    'use weights="gaussian" there'
                )
            yield Assumption(owner(node), STANDARDISED)
    for group, law in zip(found.groups, group_laws, strict=True):
        if law.sampled:
            text = SAMPLED.format(count=len(group.sources))
            yield Assumption(owner(group.sources[0]), text, "heuristic")
    yield from notes
