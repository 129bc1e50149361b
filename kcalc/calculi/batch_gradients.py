"""Gradients through batch normalisation over a large batch.

With BatchNorm, the output of one example has a gradient at every example of the batch. At the
example itself, the squared gradient is divided by ``(1 - b) q``, as in the C map of a large batch.
At each of the n other examples, the gradient is of order 1/n. The squared norms of these gradients
vanish, but their sum does not: the gradients at all examples of the batch sum to 0 before a
BatchNorm. A message therefore contains two derivatives ``d K_out / d K``: one for an example paired
with itself, and one summed over all pairs of different examples. Gradients at nodes need only the
first. Gradients of weights, which all examples share, need both. [De and Smith 2020; Yang et al.
2019]
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from ..fields import NUMPY
from ..fields.jets import Jet
from ..foundation.errors import KcalcError
from ..foundation.rootfinding import zero_between
from ..network.compose import interpret, interpret_back
from ..network.network import Network
from ..network.primitives import Norm, Primitive
from .backward import Backward, Groups, added, own_parameters
from .channels import Channels
from .kernel import Kernel, kernel_over
from .tangent import trained_part

Node = Hashable
Both = tuple[Groups, Groups]  # for the example with itself, and for all pairs of different examples
SAME = 1e-6  # tolerance between c values of one batch


def normalised_batches(network: Network) -> list[tuple[Node, Norm, Node]]:
    """Return (node, norm, node that it reads) for every BatchNorm of a large batch."""
    return [
        (node, op, reads[0])
        for node, op, reads in network.operations
        if isinstance(op, Norm) and op.over == "batch" and op.batch_c is not None
    ]


def refuse_batches_of_tokens(network: Network) -> None:
    """Reject gradients over tokens through BatchNorm, because other examples are not included."""
    for node, _, _ in normalised_batches(network):
        raise KcalcError(
            f"node {node!r}: BatchNorm removes the part of the gradients that all examples of "
            "the batch share, but gradients over tokens do not track the other examples; omit "
            "tokens= if no layer mixes tokens, or use LayerNorm"
        )


def weight_gradients(
    network: Network,
    backward: Backward,
    start: Mapping[Node, Groups],
    q: Mapping[Node, Any],
) -> dict[Node, float]:
    """Return {node with parameters: E|d out_k / d parameters|^2}, over the whole batch."""
    kernel, states = _two_examples(network, q)
    apart = Backward(kernel, states, apart=True)

    def rule(op: Primitive, node: Node, message: Both, reads: Sequence[Node]) -> list[Both]:
        own = backward.rule(op, node, message[0], reads)
        if isinstance(op, Norm) and op.over == "batch":
            others = [[-m for m in groups] for groups in own]
        else:
            others = apart.rule(op, node, message[1], reads)
        return list(zip(own, others, strict=True))

    first: dict[Node, Both] = {n: (groups, [0.0] * len(groups)) for n, groups in start.items()}
    messages = interpret_back(
        network, rule, first, lambda a, b: (added(a[0], b[0]), added(a[1], b[1]))
    )
    found = {}
    for node, (made, op) in own_parameters(network).items():
        size, _, gap = kernel.whole(states[made])
        own, others = map(sum, messages[made])
        one, two = (trained_part(op, size * cosine) for cosine in (1, 1 - gap.value))
        found[node] = max(float(one * own + two * others), 0.0)
    return found


def _two_examples(network: Network, q: Mapping[Node, Any]) -> tuple[Kernel, dict[Node, Channels]]:
    """Return the states of two examples of the batch, given the c value of the first BatchNorm.

    Raises: KcalcError if the BatchNorms do not belong to the same batch.
    """
    norms = normalised_batches(network)

    def run(c: float) -> tuple[Kernel, dict[Node, Channels]]:
        kernel = kernel_over(NUMPY, True)
        gap = Jet((np.asarray(1.0 - c),))
        return kernel, interpret(
            network, kernel, {node: kernel.start(node, q[node], q[node], gap) for node in q}
        )

    def off(c: float) -> float:
        kernel, states = run(c)
        _, op, read = norms[0]
        return float(1 - kernel.whole(states[read])[2].value) - float(op.batch_c)

    c = 0.0
    if abs(off(0.0)) > SAME and off(0.0) < 0 < off(1 - SAME):
        c = zero_between(off, 0.0, 1 - SAME, 1e-12)
    kernel, states = run(c)
    for node, op, read in norms:
        between = float(1 - kernel.whole(states[read])[2].value)
        if abs(between - float(op.batch_c)) > SAME:
            raise KcalcError(
                f"node {node!r}: batch_c = {float(op.batch_c):.6g}, but the other BatchNorms and "
                f"these inputs have {between:.6g}; set the c value of all BatchNorms with "
                "kc.large_batch(net, c=..., q=...), and pass the same q here"
            )
    return kernel, states
