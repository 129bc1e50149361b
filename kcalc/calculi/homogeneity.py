"""Feature maps with ``f(a x) = a^k f(x)`` for all a > 0, found from the network's structure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from ..activations import Activation
from ..network import primitives as P
from ..network.network import Network
from ..network.primitives import owner

Node = Hashable


def degrees(
    network: Network, start: Mapping[Node, int] | None = None, nodes: Iterable[Node] | None = None
) -> dict[Node, int | None]:
    """Return {node: degree k with f(a x) = a^k f(x) for all a > 0 and all weights, or None}.

    The degree is None if the structure of the network implies no such k. ``start``: {node: degree}
    known in advance, by default 1 for every Input. ``nodes``: the nodes to compute, by default all.
    Biases are constants; if sigma_b = 0 they are 0.
    """
    found: dict[Node, int | None] = dict(start or dict.fromkeys(network.inputs, 1))
    wanted = None if nodes is None else set(nodes)
    for node, op, reads in network.operations:
        if node not in found and (wanted is None or owner(node) in wanted):
            below = [found.get(p) for p in reads]
            found[node] = below[0] if op is None else _degree(op, below)
    return found


def _degree(op: P.Primitive, below: list[int | None]) -> int | None:
    if isinstance(op, P.Source | P.Unknown) or any(k is None for k in below):
        return None
    if isinstance(op, P.Positions):
        return 0
    first = below[0]
    if isinstance(op, P.Norm):
        return 0 if op.over == "channels" else None
    if isinstance(op, P.Fresh):
        return first if op.sigma_b == 0 or first == 0 else None
    if isinstance(op, P.Post):
        degree = op.activation.degree
        return 0 if first == 0 else None if degree is None or first is None else first * degree
    if isinstance(op, P.Mix | P.Join):
        return first if all(k == first for k in below) else None
    return first if _keeps(op) else None


def _keeps(op: P.Primitive) -> bool:
    """Whether a primitive with one input commutes with multiplication by -1 and positive numbers.

    Max pooling does, because kernel maps treat it as the identity.
    """
    return isinstance(op, P.Passing) or (isinstance(op, P.Window) and op.matrix is None)


def is_odd(network: Network) -> bool:
    """Whether the structure implies f(-x) = -f(x).

    The network must have odd activations and no biases; pooling counts as the identity.
    """
    return all(op is None or _odd(op) for _, op, _ in network.operations)


def _odd(op: P.Primitive) -> bool:
    if isinstance(op, P.Fresh):
        return op.sigma_b == 0
    if isinstance(op, P.Post):
        return _is_odd_function(op.activation)
    if isinstance(op, P.Norm):
        return op.over == "channels"
    return isinstance(op, P.Source | P.Mix | P.Join | P.Attend) or _keeps(op)


@lru_cache(maxsize=512)
def _is_odd_function(phi: Activation) -> bool:
    """Whether SymPy's automatic simplification turns phi(-x) into -phi(x)."""
    expr: Any = phi.expr
    (symbol, *others) = expr.free_symbols or (None,)
    return (
        symbol is not None and not others and not phi.kinks and expr.subs(symbol, -symbol) == -expr
    )
