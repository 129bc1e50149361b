"""Forward and backward chains that follow the gradients at each token separately."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...foundation.errors import KcalcError
from ...foundation.progress import progress
from ...maps.maps import Assumption
from ...network.compose import interpret, interpret_back
from ...network.layers import Attend
from ...network.network import Network
from ...network.primitives import owner
from ..backward import added, mean_slopes, own_parameters, refuse_shared, summed
from ..tangent import trained_part
from .sampled import Sampled, token_kernel
from .sampled_backward import SampledBackward
from .sampling import Draws, Sampling
from .values import assumptions_of

Node = Hashable
Array = np.ndarray
TOGETHER = 1 << 16  # chain covariances that are computed at once
MOST_DRAWN = 1 << 23  # weights kept for the backward pass
# entries of covariances at all nodes of one chain: 1 GB, and as much again for gradients
MOST_KEPT = 1 << 27


class Chains(NamedTuple):
    """Gradients of one sequence, for every chain.

    ``nodes``: {node: covariances of its gradients over tokens, (chains, T, T)}, for all nodes, or
    for the needed nodes if these are specified. ``weights``: {node: the squared gradients of its
    parameters, per chain}; ``chi``: see :class:`Gradients`.
    """

    nodes: dict[Node, Array]
    weights: dict[Node, Array]
    chi: dict[Node, float]

    @classmethod
    def of(
        cls,
        network: Network,
        kernel: Sampled,
        inputs: Mapping[Node, Array],
        output: Node,
        needed: Sequence[Node] | None,
    ) -> Chains:
        """Run forward and backward passes for inputs with given covariances over tokens."""
        start = {node: kernel.start(node, table) for node, table in inputs.items()}
        with np.errstate(all="ignore"):  # the rules raise a KcalcError that names the node
            states = interpret(network, kernel, start)
            refuse_shared(kernel.notes.values())
            backward = SampledBackward(kernel, states)
            count = backward.count(output)
            messages = interpret_back(
                network,
                backward.rule,
                backward.start(output, np.eye(count) / count),
                added,
            )
        made = own_parameters(network) if needed is None else {}
        nodes = tuple(network) if needed is None else tuple(needed)
        chains = len(kernel.draws.chains) if kernel.sampled else 1
        whole = {
            node: np.broadcast_to(
                np.asarray(summed(messages[node])), (chains, *(backward.count(node),) * 2)
            )
            for node in (*nodes, *(one for one, _ in made.values()))
        }
        weights = {
            node: (whole[one] * trained_part(op, backward.covariance(one))).sum(axis=(-2, -1))
            for node, (one, op) in made.items()
        }
        weights |= {owner(node): share for node, share in backward.biases.items()}
        own = {node: whole[node] for node in nodes}
        return cls(own, weights, mean_slopes(network, backward.own))

    @classmethod
    def joined(cls, parts: Sequence[Chains]) -> Chains:
        """Concatenate the chains of one sequence that were computed in several groups."""
        first, shares = parts[0], [len(next(iter(part.nodes.values()))) for part in parts]
        if len(parts) == 1:
            return first
        return cls(
            {node: np.concatenate([part.nodes[node] for part in parts]) for node in first.nodes},
            {
                node: np.concatenate([part.weights[node] for part in parts])
                for node in first.weights
            },
            {
                node: float(np.average([part.chi[node] for part in parts], weights=shares))
                for node in first.chi
            },
        )


def followed(
    network: Network,
    inputs: Mapping[Node, Array],
    sequences: int,
    output: Node,
    options: tuple[bool, Sampling, bool, Sequence[Node] | None],
    draws: Draws,
) -> tuple[list[Chains], tuple[Assumption, ...]]:
    """Return the chains of every sequence (one if nothing is sampled), and the assumptions.

    ``inputs``: {input: the covariance of all tokens of all ``sequences``}. The gradients at
    different tokens of the output are independent, each with mean square ``1 / T``. ``options``:
    whether addends are assumed independent, the requested sampling, whether to use exact rules
    after a class token, and the needed nodes (by default all nodes, and the parameters).
    """
    (assume, asked, exact, needed), made, kernel = options, list[Chains](), None
    places = len(inputs[network.inputs[0]]) // sequences
    _check_size(network, places)
    together = max(1, TOGETHER // places**2)
    attending = network.nodes_of(Attend)
    kept = len(attending) * together * draws.count * places**2 <= MOST_DRAWN
    groups = [draws.chains[k : k + together] for k in range(0, len(draws.chains), together)]
    total = len(draws.chains) * draws.count * sequences * len(attending)
    with progress(total, "gradients", "draw") as tick:
        for k in range(sequences):
            cut = slice(k * places, (k + 1) * places)
            own, parts = {node: table[cut, cut] for node, table in inputs.items()}, list[Chains]()
            for group in groups:
                part = draws._replace(chains=group)
                kernel = Sampled(token_kernel(assume), part, 1, exact=exact)
                kernel.tick = tick
                kernel.keeps = kept
                parts.append(Chains.of(network, kernel, own, output, needed))
                if not kernel.sampled:
                    break  # every chain is the same
            made.append(Chains.joined(parts))
    assert kernel is not None
    kernel.draws = draws
    return made, assumptions_of(network, kernel, asked)


def _check_size(network: Network, places: int) -> None:
    """Reject sequences if their covariances, for all nodes together, do not fit in memory."""
    most = int((MOST_KEPT / len(network.operations)) ** 0.5)
    if places > most:
        raise KcalcError(
            "computing gradients requires the products of all pairs of tokens at every node. "
            f"With {len(network.operations)} nodes, memory suffices for {most} tokens, but there "
            f"are {places}; pass fewer tokens"
        )
