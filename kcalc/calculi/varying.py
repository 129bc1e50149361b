"""Nodes that read feature maps whose q values differ between draws of the weights at any width.

Kernel maps use the expectation of such a q value. This is exact as long as layers are linear, but
a norm or an activation sees the q value of one draw.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from ..maps.maps import Assumption
from ..network import primitives as P
from ..network.network import Network
from ..network.primitives import owner

Node = Hashable
LINEAR = (P.Fresh, P.Mix, P.Join, P.Passing, P.Window)
TEXT = (
    "reads {!r}, whose q and c values differ between draws of the weights at any width; they are "
    "replaced by their expectations"
)


def varying_values(network: Network) -> Iterator[Assumption]:
    """Yield notes on the first nonlinear operations after feature maps with random q values."""
    sources: dict[Node, Node] = {}  # {node of the lowered network: the node that varies}
    for node, op, reads in network.operations:
        found = next((sources[read] for read in reads if read in sources), None)
        if op is not None and op.varies:
            sources[node] = owner(node)
        if found is None:
            continue
        if op is None or (isinstance(op, LINEAR) and not isinstance(op, P.Max)):
            sources.setdefault(node, found)
        else:
            yield Assumption(owner(node), TEXT.format(found), "heuristic")
