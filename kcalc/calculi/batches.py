"""Batch normalisation in kernel maps: the c value between examples of a large batch."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..fields import NUMPY
from ..fields.arguments import one_number, one_q
from ..fields.jets import Jet
from ..foundation.errors import KcalcError, glimpse, without_option
from ..network.compose import interpret, require_network
from ..network.layers import BatchNorm
from ..network.network import Network
from ..network.primitives import Norm, Primitive
from .channels import Channels
from .kernel import Kernel, kernel_over

Node = Hashable


@dataclass
class Batches:
    """Kernel maps of two examples of a batch.

    Every BatchNorm records the c value of the two examples and maps it to 0.
    """

    kernel: Kernel
    found: dict[Node, float] = field(default_factory=dict)

    def rule(self, op: Primitive, node: Node, inputs: list[Channels]) -> Channels:
        """Return the state of a primitive's output."""
        if isinstance(op, Norm) and op.over == "batch":
            between = float(1 - self.kernel.whole(inputs[0])[2].value)
            if between > 1 - 1e-9:
                raise KcalcError(
                    f"all examples of the batch have the same direction at node {node!r} (c = "
                    f"{between:.6g}), so their variance is 0; choose a smaller c, or remove the "
                    "BatchNorm"
                )
            self.found[node] = max(between, 0.0)
            op = replace(op, batch_c=self.found[node])
        return self.kernel.rule(op, node, inputs)


@without_option()
def large_batch(network: Network, c: float = 0.0, q: float = 1.0) -> Network:
    """Set ``batch_c`` of every BatchNorm, for a large batch of inputs.

    The inputs have mean square ``q`` and pairwise c value ``c``.

    Take a batch of n examples with the same q value and pairwise cosine b. As n grows, the mean of
    a channel has mean square ``b q``, and its variance is ``(1 - b) q``. So BatchNorm maps
    ``c -> (c - b) / (1 - b)`` and q to 1, and two examples of the batch have c = 0 after it. Kernel
    maps mark this as heuristic, because the cosine differs between pairs of examples, and after an
    activation the variance differs between channels. [De and Smith 2020; Yang et al. 2019]

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    c
        The pairwise cosine of the inputs, in [0, 1).
    q
        The mean square of the inputs, > 0.

    Returns
    -------
    Network
        The network with these BatchNorms; other layers are unchanged.

    Raises
    ------
    KcalcError
        If ``c`` or ``q`` is out of range, if the kernel calculus does not apply, or if all examples
        have the same direction before a BatchNorm.

    """
    require_network(network)
    between, size = one_number(c, "c"), one_q(q)
    if not 0 <= between < 1:
        raise KcalcError(
            f"the c value between examples of a batch must lie in [0, 1), got {glimpse(c)}"
        )
    batches = Batches(kernel_over(NUMPY, True))
    start: dict[Any, Channels] = {
        n: batches.kernel.start(
            n, np.asarray(size), np.asarray(size), Jet((np.asarray(1 - between),))
        )
        for n in network.inputs
    }
    interpret(network, batches, start)
    return network.map_layers(
        lambda node, layer: replace(layer, batch_c=batches.found[node]), BatchNorm
    )
