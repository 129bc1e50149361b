"""Hypotheses that a network must satisfy before local conditions can be combined.

Activation inputs must be fresh Gaussians, and addends must be uncorrelated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from ..calculi.global_maps import c_map, q_and_variances
from ..foundation.errors import Advice, FreshnessError, KcalcError, Remedy
from ..network import layers as L
from ..network.network import Network, sum_weights
from .mixing import unmixed
from .records import independent

Node = Hashable
OPENED = {  # the remedy if factors or addends share weights
    L.Sum: "end all but one of the inputs of this Sum in separate Affine layers",
    L.Product: "end all but one of the factors of this Product in separate Affine layers",
}
CENTRED = Remedy("dks", words="try method='dks', which shapes activations to mean 0")
MET = 1e-9  # relative tolerance of q after a Sum, compared with uncorrelated addends


def check_fresh(network: Network) -> None:
    """Reject networks in which local conditions cannot be combined.

    The input of every activation must be a fresh Gaussian, and addends must be independent.

    Raises: a FreshnessError that names the node, even if the kernel calculus handles the node
    exactly by fusion or cross terms.
    """
    network = unmixed(network)
    if independent() or simply_fresh(network):
        return
    for assumption in c_map(network).assumptions:
        if assumption.kind == "exact":
            node = assumption.node
            remedy = OPENED.get(
                type(network.layer(node)),
                f"put an Affine between it and {_activation_before(network, node)!r}",
            )
            raise FreshnessError(
                f"node {node!r} cannot be shaped by local conditions: {assumption.text}; {remedy}"
            ).at(node)


def _activation_before(network: Network, node: Node) -> Node:
    """Return the nearest activation that a node reads without weights in between.

    If there is none, return the input of the node.
    """
    waiting = list(network.parents(node))
    activated = network.nodes_of(L.Nonlinear)
    affine = network.nodes_of(L.Affine)
    for here in waiting:  # the list grows during the loop
        if here in activated:
            return here
        if here not in affine:
            waiting += [parent for parent in network.parents(here) if parent not in waiting]
    return network.parents(node)[0]


def simply_fresh(network: Network) -> bool:
    """Whether the graph structure suffices to prove freshness.

    If the result is False, only the kernel calculus can decide.

    The result is True if every activation reads an Affine that nothing else reads, or a Sum of
    fresh feature maps all but one of which come from such Affine layers.
    """
    readers: Counter[Node] = Counter(
        parent for _, _, parents in network.steps() for parent in parents
    )
    gaussian: dict[Node, bool] = {}
    own: dict[Node, bool] = {}  # ends in weights that nothing else reads
    for node, layer, parents in network.steps():
        if isinstance(layer, L.Affine):
            if layer.groups > 1:  # a group may have a single channel
                return False
            gaussian[node], own[node] = True, readers[node] == 1
        elif layer.passes:
            gaussian[node], own[node] = gaussian[parents[0]], own[parents[0]] and readers[node] == 1
        elif isinstance(layer, L.Sum):
            if sum(not own[parent] for parent in parents) > 1:
                return False
            gaussian[node], own[node] = all(gaussian[parent] for parent in parents), False
        elif isinstance(layer, L.Nonlinear):
            if not gaussian[parents[0]]:
                return False
            gaussian[node] = own[node] = False
        elif isinstance(layer, L.Input):
            gaussian[node] = own[node] = False
        else:
            return False
    return True


def check_sums(network: Network, promise: str, instead: Advice = "") -> None:
    """Reject a shaped network in which several addends have nonzero channel means.

    ``q = sum_i w_i^2 q_i`` must hold at every Sum.

    :func:`check_fresh` accepts addends that end in activations, because they are independent up to
    their means. If two of them have means ``m_i``, they add ``2 w_1 w_2 m_1 m_2`` to q. ``promise``
    is the claim that fails, and ``instead`` is advice other than ending addends in an Affine.

    Raises: a KcalcError that names the node and remedies.
    """
    network = unmixed(network)
    if simply_fresh(network):
        return
    values = q_and_variances(network, assume_independent=independent())
    for node in network.nodes_of(L.Sum):
        parents = network.parents(node)
        alone = sum(
            float(w) ** 2 * values[p][0]
            for w, p in zip(sum_weights(network.layer(node), len(parents)), parents, strict=True)
        )
        if abs(values[node][0] - alone) > MET * alone:
            met = values[node][0]
            refusal = KcalcError(
                f"the Sum at node {node!r} adds activations whose means are not 0 after shaping. "
                f"The means add up, so q is {met:.6g} instead of {alone:.6g}, and {promise} would "
                "not hold"
            )
            raise refusal.advising(
                "end all but one of the addends in separate Affine layers", instead
            ).at(node)
