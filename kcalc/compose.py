"""The folds, forward and backward: the only loops over a network in the library."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from .errors import FreshnessError, NoRule
from .layers import Affine, Layer, Nonlinear
from .network import Network, require_network

State = TypeVar("State")


class Calculus(Protocol):
    """One way of reading a network: a state per feature map and a rule per layer."""

    @property
    def rule(self) -> Any:
        """``rule(layer, node, inputs)``: the state a layer emits, from the states it reads in slot order; mostly a dispatching method."""
        ...


def fold(network: Network, calculus: Calculus, inputs: Mapping[Hashable, State]) -> dict[Hashable, State]:
    """Read a network from its inputs to its outputs.

    Parameters: ``inputs`` holds the state of every Input node. Returns: the state of every node.
    Raises: whatever a rule raises; NoRule where the calculus has none for a layer.
    """
    require_network(network)
    rule = calculus.rule  # looked up once: a dispatching method is made anew at every look
    states: dict[Hashable, State] = {}
    for node, layer, parents in network.steps():
        try:
            states[node] = inputs[node] if node in inputs else rule(layer, node, [states[p] for p in parents])
        except FreshnessError as error:
            if isinstance(layer, Nonlinear) and _reads_others_preactivated(network, node):
                raise FreshnessError(f"{error.message} (net.preactivated() rewrites the ResNet as V2)", error.option) from None
            raise
    return states


def _reads_others_preactivated(network: Network, node: Hashable) -> bool:
    """Whether in ``network.preactivated()`` other nodes lie between an activation and the weights before it."""
    other, waiting = network.preactivated(), [node]
    seen = set(waiting)
    while waiting:
        here = waiting.pop()
        parents = network.parents(here)
        if other.parents(here) != parents:
            return True
        fresh = [p for p in parents if p not in seen and not isinstance(network.layer(p), Affine)]
        seen.update(fresh)
        waiting.extend(fresh)
    return False


def fold_back(
    network: Network,
    rule: Callable[[Layer, Hashable, State, Sequence[Hashable]], Sequence[State]],
    messages: Mapping[Hashable, State],
    add: Callable[[State, State], State],
) -> dict[Hashable, State]:
    """Read a network from its outputs to its inputs.

    Parameters: ``messages`` holds what every node starts with, ``rule(layer, node, message, parents)`` gives one message per parent, and
    ``add`` joins those of a node's readers. Returns: the message of every node. Raises: whatever the rule raises.
    """
    require_network(network)
    found = dict(messages)
    for node, layer, parents in reversed(tuple(network.steps())):
        for parent, sent in zip(parents, rule(layer, node, found[node], parents), strict=True):
            found[parent] = add(found[parent], sent)
    return found


def no_rule(calculus: str, layer: Any, node: Hashable) -> NoRule:
    """The error of a calculus without a rule for a layer, naming the nearest rewrite."""
    kind = type(layer).__name__
    rewrite = REWRITES.get(kind, "replace the layer by one that the calculus knows")
    if kind == "BatchNorm" and calculus in KERNELS:
        rewrite += ", use LayerNorm, or approximate a large batch with kc.large_batch(net)"
    reason = f" ({layer.name}: {layer.reason})" if kind == "Opaque" else ""
    return NoRule(f"node {node!r}: {calculus} have no rule for {kind}{reason}; {rewrite}")


KERNELS = ("kernel maps", "gradients")  # the calculi that know LayerNorm, and BatchNorm of a large batch
REWRITES = {
    "BatchNorm": "it couples the examples of a batch; drop it with net.without_normalization() and normalise the sums "
    "with net.normalised()",
    "GroupNorm": "its statistics run over locations too; drop it with net.without_normalization() and normalise the sums "
    "with net.normalised()",
    "TokenMix": "what it makes of c values depends on those between tokens; follow pairs of tokens with "
    "kc.c_map(net, spatial='exact', image_shape=(tokens,))",
    "Product": "rewrite the gate as one activation of a single pre-activation where it is one, or cut the network there",
    "Opaque": "replace the node by layers that kcalc knows, or analyse the parts before and after it",
}
