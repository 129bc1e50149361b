"""What local conditions take for granted of a network: activations that read fresh Gaussians, addends that are uncorrelated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from .. import layers as L
from ..calculi.global_maps import c_map, q_and_mean_values
from ..errors import FreshnessError, KcalcError
from ..network import Network, sum_weights
from .tokens import unmixed

Node = Hashable
PASSING = (L.Identity, L.Flatten, L.Pool)
MET = 1e-9  # how far, in parts, q after a Sum may be from that of uncorrelated addends


def check_fresh(network: Network) -> None:
    """Refuse networks on which local conditions do not add up: every activation must see a fresh Gaussian, addends be independent.

    Raises: FreshnessError naming the node, also where the kernel calculus handles it exactly by fusing or cross terms.
    """
    network = unmixed(network)
    if simply_fresh(network):
        return
    for assumption in c_map(network).assumptions:
        if assumption.kind == "exact":
            raise FreshnessError(
                f"node {assumption.node!r} cannot be shaped by local conditions: {assumption.text}; "
                "end all addends of a Sum but one in their own Affine, and put an Affine between activations"
            )


def simply_fresh(network: Network) -> bool:
    """Whether freshness shows in the shape of the graph alone: every activation reads its own Affine, or a Sum of fresh feature maps of
    which all but one come from Affine layers that nothing else reads. False where only the kernel calculus can tell.
    """
    readers: Counter[Node] = Counter(parent for _, _, parents in network.steps() for parent in parents)
    gaussian: dict[Node, bool] = {}
    own: dict[Node, bool] = {}  # ends in weights that reach the reader along this way only
    for node, layer, parents in network.steps():
        if isinstance(layer, L.Affine):
            gaussian[node], own[node] = True, readers[node] == 1
        elif isinstance(layer, PASSING):
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


def check_sums(network: Network, promise: str, instead: str = "use method='dks', which gives activations mean 0") -> None:
    """Refuse a shaped network in which the channel means of addends meet: ``q = sum_i w_i^2 q_i`` must hold at every Sum.

    Addends that end in activations are independent given their means, which :func:`check_fresh` lets pass; where two of them have
    means ``m_i``, ``2 w_1 w_2 m_1 m_2`` is added to q. ``promise``: what would not hold; ``instead``: what to do but end addends in an
    Affine. Raises: KcalcError naming the node and remedies.
    """
    network = unmixed(network)
    if simply_fresh(network):
        return
    values = q_and_mean_values(network)
    for node in network.nodes_of(L.Sum):
        parents = network.parents(node)
        alone = sum(float(w) ** 2 * values[p][0] for w, p in zip(sum_weights(network.layer(node), len(parents)), parents, strict=True))
        if abs(values[node][0] - alone) > MET * alone:
            met = values[node][0]
            raise KcalcError(
                f"the Sum at node {node!r} adds activations whose means are not 0 after shaping: the means meet, and q is {met:.6g} "
                f"instead of {alone:.6g}, so that {promise} would not hold; end all addends but one in their own Affine, or {instead}"
            )
