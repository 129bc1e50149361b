"""The forward and backward folds; all traversals of a network use them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from ..foundation.errors import FreshnessError, KcalcError, NoRule
from ..foundation.guests import RULES
from .layers import Affine
from .network import Network, require_network
from .primitives import Mask, Post, Primitive, owner

State = TypeVar("State")


class Calculus(Protocol):
    """An interpretation of a network.

    A calculus defines a state for each feature map and a rule for each layer or primitive.
    """

    @property
    def rule(self) -> Any:
        """``rule(layer, node, inputs)`` maps the input states, in slot order, to the output state.

        The rule is usually a dispatching method.
        """
        ...


def fold(
    network: Network, calculus: Calculus, inputs: Mapping[Hashable, State]
) -> dict[Hashable, State]:
    """Interpret a network layer by layer, from its inputs to its outputs.

    ``inputs`` contains the state of every Input node. Returns the state of every node. Raises:
    NoRule if the calculus has no rule for a layer, and any error that the rules of the calculus
    raise.
    """
    require_network(network)
    return _fold(network, network.steps(), calculus, inputs)


def interpret_through(
    network: Network,
    calculus: Calculus,
    inputs: Mapping[Hashable, State],
    record: Callable[[Hashable, State], Any],
) -> dict[Hashable, Any]:
    """Run :func:`interpret` and return ``record(node, state)`` for each node of the network.

    A state is dropped after its last use.
    """
    require_network(network)
    last = {read: node for node, _, reads in network.operations for read in (node, *reads)}
    found: dict[Hashable, Any] = {}

    def after(node: Hashable, states: dict[Hashable, State]) -> None:
        if node in network:
            found[node] = record(node, states[node])
        for read in [read for read in states if last[read] == node]:
            del states[read]

    _fold(network, network.operations, calculus, inputs, after)
    return {node: found[node] for node in network}


def interpret(
    network: Network, calculus: Calculus, inputs: Mapping[Hashable, State]
) -> dict[Hashable, State]:
    """Interpret a network primitive by primitive (:mod:`kcalc.network.primitives`).

    This is :func:`fold` for calculi with one rule per primitive. Returns the state of every node,
    including the inner nodes of layers that consist of several primitives.
    """
    require_network(network)
    return _fold(network, network.operations, calculus, inputs)


def _fold(
    network: Network,
    steps: Iterable[tuple[Hashable, Any, Sequence[Hashable]]],
    calculus: Calculus,
    inputs: Mapping[Hashable, State],
    after: Callable[[Hashable, dict[Hashable, State]], None] | None = None,
) -> dict[Hashable, State]:
    missing = next((node for node in network.inputs if node not in inputs), None)
    if missing is not None:
        raise KcalcError(
            f"the input {missing!r} has no value; pass a value for every input, {{input: value}}"
        )
    rule = calculus.rule  # look it up once; every look-up creates a new dispatching method
    states: dict[Hashable, State] = {}
    for node, operation, reads in steps:
        if node in inputs:
            states[node] = inputs[node]
        elif operation is None:
            states[node] = states[reads[0]]
        else:
            try:
                states[node] = rule(operation, node, [states[p] for p in reads])
            except FreshnessError as error:
                error.at(owner(node))
                if isinstance(operation, Post) and _reads_others_preactivated(network, owner(node)):
                    message = f"{error.message}{AS_V2}"
                    raise FreshnessError(message, error.option).at(error.node) from None
                raise
        if after is not None:
            after(node, states)
    return states


def _reads_others_preactivated(network: Network, node: Hashable) -> bool:
    """Whether ``network.preactivated()`` changes the inputs of ``node`` or of a node above it.

    ``node`` is an activation; the nodes above it are those between it and the weights before it.
    """
    other, waiting = network.preactivated(), [node]
    seen = {node, *network.nodes_of(Affine)}
    while waiting:
        here = waiting.pop()
        parents = network.parents(here)
        if other.parents(here) != parents:
            return True
        fresh = [p for p in parents if p not in seen]
        seen.update(fresh)
        waiting.extend(fresh)
    return False


def interpret_back(
    network: Network,
    rule: Callable[[Primitive, Hashable, State, Sequence[Hashable]], Sequence[State]],
    messages: Mapping[Hashable, State],
    add: Callable[[State, State], State],
) -> dict[Hashable, State]:
    """Propagate messages backwards through a network, primitive by primitive.

    ``messages`` contains the initial message of every node. ``rule(primitive, node, message,
    reads)`` returns one message per input node, and ``add`` combines the messages from all readers
    of a node. Returns the message of every node. Raises: any error that the rule raises.
    """
    require_network(network)
    found = dict(messages)
    for node, operation, reads in reversed(network.operations):
        sent = (
            (found[node],)
            if operation is None
            else rule(operation, node, found[node], reads)
            if reads
            else ()
        )
        for parent, message in zip(reads, sent, strict=True):
            found[parent] = add(found[parent], message) if parent in found else message
    return found


def rule_of_guest(calculus: str, operation: Primitive) -> Callable[..., Any] | None:
    """Return the rule of an optional part of kcalc for a primitive in a calculus, or None."""
    key = (calculus, type(operation).__name__)
    return RULES[key] if key in RULES else None  # noqa: SIM401 - a registry has no get


def no_rule(
    calculus: str,
    operation: Any,
    node: Hashable,
    hints: Mapping[type[Primitive], str] = MappingProxyType({}),
) -> NoRule:
    """Return the error for a layer or primitive that a calculus has no rule for.

    The message suggests the closest rewrite. ``hints`` is {kind of primitive: advice}, for layers
    not listed in ``REWRITES``.
    """
    layer: Any = operation.origin if isinstance(operation, Primitive) else operation
    kind = type(layer).__name__
    own = (hint for primitive, hint in hints.items() if isinstance(operation, primitive))
    over = getattr(operation, "over", "")  # the axes over which a norm computes its statistics
    known = REWRITES.get(kind) or OF_NORMS.get(over)
    rewrite = known or next(own, "replace the layer with one that the calculus supports")
    if over == "batch" and calculus in KERNELS:
        rewrite += ", use LayerNorm, or approximate a large batch with kc.large_batch(net)"
    reason = f" ({layer.name}: {layer.reason})" if kind == "Opaque" else ""
    return NoRule(f"node {node!r}: {calculus} have no rule for {kind}{reason}; {rewrite}")


def refuse_dropping(calculus: str, operation: Any, node: Hashable) -> None:
    """Raise NoRule for active dropout, in a calculus that describes only networks in evaluation."""
    if isinstance(operation, Mask) and operation.drops:
        raise NoRule(
            f"node {owner(node)!r}: {calculus} have no rule for Dropout with active=True; to "
            "describe evaluation, use Dropout(rate) with active=False"
        )


def unknown_gradient(what: str, node: Hashable) -> KcalcError:
    """Return the error for gradients through an operation with an unknown gradient."""
    return KcalcError(
        f"node {owner(node)!r}: {what} has a custom gradient that kcalc cannot read; kernel maps "
        "do not need it. Rewrite it with operations that backpropagation can handle, or put "
        "layers.StopGradient() or layers.SurrogateGradient(activation, slope) in its place"
    )


# calculi that support LayerNorm, and BatchNorm with large batches
AS_V2 = " (net.preactivated() rewrites the ResNet as V2)"
KERNELS = (
    "kernel maps",
    "gradients",
)
OVER_TOKENS = (
    "for networks over tokens, use kernel maps, gradients or tangent kernels, as in kc.c_map(net, "
    "tokens=128)"
)
OF_NORMS = {
    "batch": "it couples the examples of a batch; drop it with net.without_normalization() and "
    "normalise the sums "
    "with net.normalised()",
    "positions": "its statistics are also taken over locations; drop it with "
    "net.without_normalization() and normalise the sums with net.normalised()",
}
REWRITES = {
    "Positions": OVER_TOKENS,
    "Attend": OVER_TOKENS,
    "ClassToken": OVER_TOKENS,
    "TokenMix": "its effect on c values depends on the c values between tokens; follow pairs of "
    "tokens with kc.c_map(net, spatial='exact', image_shape=(tokens,))",
    "Product": "if the gate is one activation of a single pre-activation, write it as that "
    "activation; otherwise cut the network there",
    "Opaque": "replace the node with layers that kcalc supports, or analyse the parts before and "
    "after it",
}
