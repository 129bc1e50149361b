"""LayerNorm and GroupNorm in networks to be shaped.

Local conditions combine only if the inputs of these norms have channel mean 0.

A norm that reads channel means ``m`` maps ``c -> 1 - s (1 - c)`` with ``s = q / (q - m^2) > 1``.
Such a norm lowers c values and increases slopes. The slope polynomials and maximal c values that
turn targets into local conditions ignore this effect.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ..calculi.global_maps import q_and_variances
from ..foundation.errors import Advice, KcalcError
from ..network import layers as L
from ..network.network import Network
from .mixing import unmixed
from .records import independent

Node = Hashable
CENTRED = 1e-12  # tolerance for the excess of the slope of a norm over 1


def centring(network: Network) -> list[Node]:
    """Return the norms that subtract means within one example, such as LayerNorm and GroupNorm."""
    norms = ((node, network.layer(node)) for node in network.nodes_of(L.Normalisation))
    return [node for node, layer in norms if layer.centred and layer.over != "batch"]


def norm_slopes(network: Network) -> dict[Node, float]:
    """Return {node: slope ``q / (q - m^2)``} of norms that read channel means ``m``.

    The norms are LayerNorms and GroupNorms, and the inputs have q = 1.
    """
    norms = centring(network)
    if not norms:
        return {}
    values = q_and_variances(unmixed(network), assume_independent=independent())
    read = {node: values[network.parents(node)[0]] for node in norms}
    slopes = {node: square / variance for node, (square, variance) in read.items()}
    return {node: slope for node, slope in slopes.items() if slope > 1 + CENTRED}


def removals(network: Network, norms: Sequence[Node]) -> list[str]:
    """Describe the changes made by ``network.without_normalization()``.

    If an output moves to another node, the description names this node.
    """
    texts: list[str] = []
    for node in norms:
        text = f"{node}: {type(network.layer(node)).__name__} removed"
        if node in network.outputs:
            (place,) = network.parents(node)
            while place in norms:
                (place,) = network.parents(place)
            text += f"; the output is {place!r} instead"
        texts.append(text)
    return texts


def true_q(network: Network) -> float | None:
    """Return 1 if the network has norms that subtract means, and None otherwise.

    The result is the ``q`` at which maxima over subnetworks use the true slopes of these norms.
    """
    return 1.0 if centring(network) else None


def refuse_means(network: Network, promise: str, instead: Advice = "") -> None:
    """Reject a shaped network in which a norm reads feature maps with nonzero channel means.

    The norm is a LayerNorm or a GroupNorm.

    ``promise`` is the claim that fails, and ``instead`` is advice other than edits of the network.

    Raises: a KcalcError that names the node and remedies.
    """
    slopes = norm_slopes(network)
    if slopes:
        node = next(node for node in network if node in slopes)
        refusal = KcalcError(
            f"the {type(network.layer(node)).__name__} at node {node!r} reads activations whose "
            "mean is not 0 after shaping. Subtracting this mean multiplies the slope by "
            f"{slopes[node]:.6g} and lowers c values, so {promise} would not hold"
        )
        raise refusal.advising(
            "replace it with an RMSNorm or put an Affine before it",
            "drop it with net.without_normalization()",
            instead,
        ).at(node)
