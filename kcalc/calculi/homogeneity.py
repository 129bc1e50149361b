"""Positive homogeneity by structure: which feature maps scale as a power when the network's input is scaled."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from .. import layers as L
from ..activations import Activation
from ..network import Network

Node = Hashable

_KEEPING = L.Scale | L.Pool | L.Dropout | L.Flatten | L.Identity


def degrees(network: Network, start: Mapping[Node, int] | None = None, nodes: Iterable[Node] | None = None) -> dict[Node, int | None]:
    """{node: k with f(a x) = a^k f(x) for all a > 0 and all weights, or None where there is none by structure}.

    ``start``: what is known already, by default 1 for every Input; ``nodes``: which to look at, in topological order. Biases count as
    constants: where sigma_b = 0 they are 0.
    """
    found: dict[Node, int | None] = dict(start or dict.fromkeys(network.inputs, 1))
    for node in [node for node, _, _ in network.steps()] if nodes is None else nodes:
        if node not in found:
            found[node] = _degree(network.layer(node), [found.get(p) for p in network.parents(node)])
    return found


def _degree(layer: L.Layer, below: list[int | None]) -> int | None:
    if isinstance(layer, L.Input) or any(k is None for k in below):
        return None
    first = below[0]
    if isinstance(layer, L.LayerNorm | L.RMSNorm):
        return 0
    if first == 0 and all(k == 0 for k in below) and isinstance(layer, L.Affine | L.Nonlinear | L.Sum | L.Concat | _KEEPING):
        return 0
    if isinstance(layer, L.Affine):
        return first if layer.sigma_b == 0 else None
    if isinstance(layer, L.Nonlinear):
        degree = layer.activation.degree
        return None if degree is None or first is None else first * degree
    if isinstance(layer, L.Sum | L.Concat):
        return first if all(k == first for k in below) else None
    return first if isinstance(layer, _KEEPING) else None


def is_odd(network: Network) -> bool:
    """Whether the network's output changes its sign with its input, by structure: odd activations, no biases."""
    return all(_odd(layer) for _, layer, _ in network.steps())


def _odd(layer: L.Layer) -> bool:
    if isinstance(layer, L.Affine):
        return layer.sigma_b == 0
    if isinstance(layer, L.Nonlinear):
        return _is_odd_function(layer.activation)
    return isinstance(layer, L.Input | L.Sum | L.Concat | L.LayerNorm | L.RMSNorm | _KEEPING)


@lru_cache(maxsize=512)
def _is_odd_function(phi: Activation) -> bool:
    """phi(-x) = -phi(x), as SymPy's automatic rules see it."""
    expr: Any = phi.expr
    (symbol, *others) = expr.free_symbols or (None,)
    return symbol is not None and not others and not phi.kinks and expr.subs(symbol, -symbol) == -expr
