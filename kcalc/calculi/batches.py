"""Batch normalisation as kernel maps see it in a large batch: the c value between its examples, node by node."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..arguments import one_number, one_q
from ..compose import fold, require_network
from ..errors import KcalcError, glimpse, without_option
from ..fields import NUMPY
from ..fields.jets import Jet
from ..layers import BatchNorm, Layer
from ..network import Network, channel_widths, concat_channels
from .channels import Channels
from .kernel import Kernel

Node = Hashable


@dataclass
class Batches(Kernel):
    """Kernel maps of two examples of a batch; every BatchNorm records their c value and leaves them with c = 0."""

    found: dict[Node, float] = field(default_factory=dict)

    def rule(self, layer: Layer, node: Node, inputs: list[Channels]) -> Channels:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The state a layer emits."""
        if isinstance(layer, BatchNorm):
            between = float(1 - self.whole(inputs[0])[2].value)
            if between > 1 - 1e-9:
                raise KcalcError(
                    f"node {node!r}: all examples of the batch have the same direction there (c = {between:.6g}), so no variance is left"
                )
            self.found[node] = max(between, 0.0)
            layer = BatchNorm(self.found[node])
        return super().rule(layer, node, inputs)


@without_option()
def large_batch(network: Network, c: float = 0.0, q: float = 1.0) -> Network:
    """The network with ``batch_c`` at every BatchNorm, for a large batch of inputs of mean square ``q`` and pairwise c value ``c``.

    Of a batch of n examples with one q value and pairwise cosine b, as n grows, a channel's mean has mean square ``b q`` and its variance
    is ``(1 - b) q``. So BatchNorm maps ``c -> (c - b) / (1 - b)`` and q to 1, and the examples themselves leave it with c = 0. Kernel maps
    say "heuristic": the examples of a batch do not all have the same cosine, and after an activation channels differ in their variance.
    [De and Smith 2020; Yang et al. 2019]

    Parameters: 0 <= c < 1, q > 0. Returns: a network; other layers are unchanged. Raises: KcalcError for bad numbers, where the kernel
    calculus does not apply, and where all examples have come to the same direction.
    """
    require_network(network)
    between, size = one_number(c, "c"), one_q(q)
    if not 0 <= between < 1:
        raise KcalcError(f"the c value between examples of a batch lies in [0, 1), got {glimpse(c)}")
    kernel = Batches(NUMPY, True, True, concat_channels(network), False, channel_widths(network))
    start: dict[Any, Channels] = {
        n: kernel.start(n, np.asarray(size), np.asarray(size), Jet((np.asarray(1 - between),))) for n in network.inputs
    }
    fold(network, kernel, start)
    return network.map_layers(lambda node, layer: replace(layer, batch_c=kernel.found[node]) if isinstance(layer, BatchNorm) else layer)
