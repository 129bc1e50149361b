"""The depth trace of a network: q, c and token cosine at every layer, and the network's blocks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..activations import activation
from ..calculi.attention.maps import each_token
from ..calculi.attention.structure import one_by_one
from ..calculi.attention.values import SampledValues
from ..calculi.global_maps import node_values
from ..maps.maps import Assumption
from ..network import layers as L
from ..network.blocks import trunk_pieces
from ..network.layers import Affine, Nonlinear
from ..network.network import Network
from ..network.tokens import has_distinct_tokens

Node = Hashable
Array = np.ndarray
STARTS = (-0.9, -0.5, 0.0, 0.5, 0.9)


@dataclass(frozen=True)
class DepthTrace:
    """q, c and token cosines at nodes, in the order of the network.

    The inputs have the c values ``cosines``, and q = 1 by default.

    ``depth`` has shape (nodes,). It is the number of nonlinear layers on the longest path from an
    input to the node, including the node itself, plus 1/2 if an Affine comes after the last of
    these layers. ``values`` contains c values, shape (nodes, cosines). ``q`` and ``token_cosine``
    have shape (nodes,); the latter is None without tokens and nan after pooling. ``errors`` is
    {"q", "c", "token_cosine": standard errors, (nodes,)} if attention is sampled. ``layers``
    contains the rows that are Affine or Nonlinear. ``trunk`` contains the rows of the nodes on all
    paths from inputs to outputs or, if there are hardly any, on a longest path. ``blocks`` contains
    the rows of the nodes that separate the blocks. ``found`` is the result of
    :func:`kcalc.node_values`.
    """

    cosines: tuple[float, ...]
    nodes: tuple[Node, ...]
    depth: Array
    values: Array
    q: Array
    token_cosine: Array | None
    errors: dict[str, Array]
    layers: Array
    trunk: Array
    blocks: Array
    found: Any = field(repr=False)
    assumptions: tuple[Assumption, ...] = ()


def depth_trace(
    network: Network, cosines: Iterable[float] = STARTS, q: float = 1.0, **options: Any
) -> DepthTrace:
    """Compute the values of every node for inputs with the given q and c values.

    ``options`` are the arguments of :func:`kcalc.node_values` for tokens and sampling. Sampled
    values are available only for the first c value.

    Raises: KcalcError if the kernel calculus does not apply or overflows.
    """
    starts = tuple(float(c) for c in cosines)
    tokens = options.get("tokens")
    own = has_distinct_tokens(tokens)  # an array determines q and cosines
    if one_by_one(network, tokens, options.get("sampling")):
        given = (tokens, options.get("token_cosine"))
        c, levels = (None, (None, None)) if own else (starts[0], (q, q))
        how = False, options.get("sampling")
        found: Any = each_token(network, c, levels, given, how, profile=True)
    else:
        found = node_values(network, np.array(starts), q=q, **options)
    nodes = tuple(node for node, _, _ in network.steps())
    columns, errors = _columns(found, nodes, len(starts))
    layers = [
        i
        for i, (_, layer, _) in enumerate(network.steps())
        if isinstance(layer, Affine | Nonlinear)
    ]
    depth, longest = _depths(network)
    row = {node: i for i, node in enumerate(nodes)}
    trunk = sorted({0, len(nodes) - 1, *(row[node] for node in network.cut_nodes())})
    return DepthTrace(
        starts,
        nodes,
        depth,
        columns["c"],
        columns["q"],
        columns.get("token_cosine"),
        errors,
        np.array(layers),
        np.array(trunk if len(trunk) > 3 else longest),
        np.array(block_ends(network)),
        found,
        tuple(found.assumptions),
    )


def _columns(
    found: Any, nodes: Sequence[Node], count: int
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return {quantity: values} and {quantity: standard errors}, with one row per node.

    The quantities are "q", "c" and "token_cosine".
    """
    values = [found[node] for node in nodes]

    def column(name: str) -> Array:
        read = (getattr(value, name) for value in values)
        return np.array([np.nan if x is None else float(np.ravel(x)[0]) for x in read])

    if isinstance(found, SampledValues):
        names = ("q", "c", "token_cosine")
        columns = {name: column(name) for name in names}
        columns["c"] = np.repeat(columns["c"][:, None], count, axis=1)
        return columns, {name: column(f"{name}_error") for name in names}
    columns = {
        "q": column("q1"),
        "c": np.array([np.broadcast_to(value.c, (count,)) for value in values], dtype=float),
    }
    if hasattr(values[0], "token_cosine1"):
        columns["token_cosine"] = column("token_cosine1")
    return columns, {}


def block_ends(network: Network) -> list[int]:
    """Return the rows of the nodes that separate the blocks of a network.

    Blocks are the repeated pieces of the trunk, and pieces with a residual sum. The comparison
    ignores widths, standard deviations, weights of sums and activations, so blocks with different
    constants count as repeated. For a network without blocks, the result is all rows on every path.
    """
    tanh = activation("tanh")

    def bare(node: Node, layer: Any) -> Any:
        if isinstance(layer, Affine):
            return replace(layer, features=None, sigma_w=1, sigma_b=0, groups=1)
        if isinstance(layer, Nonlinear):
            return L.Nonlinear(tanh)
        return L.Sum() if isinstance(layer, L.Sum) else layer

    plain = network.map_layers(bare, Affine, Nonlinear, L.Sum)
    row = {node: i for i, node in enumerate(network)}
    ends: set[int] = set()
    pieces = trunk_pieces(tuple(plain.steps()), plain.outputs)
    sums, mixes = (
        [any(isinstance(plain.layer(n), kinds) for n in nodes) for _, nodes, _ in pieces]
        for kinds in ((L.Sum,), (L.Attend, L.TokenMix))
    )
    codes, start = [code for _, _, code in pieces], 0
    while start < len(codes):
        size = next((k for k, code in enumerate(codes[start:]) if k and code == codes[start]), 1)
        inside = [k for k in range(start, start + size) if sums[k]]
        mixed = any(mixes[start : start + size])
        if len(inside) > 1 and not (mixed and len({codes[k] for k in inside}) == len(inside)):
            size = 1  # every residual branch is a block, but attention and its MLP form one block
        count = 1
        while _same(codes, start, start + count * size, size):
            count += 1
        size = 1 if count == 1 else size
        stop = start + count * size
        entry = pieces[start][0]
        if entry is not None and (count > 1 or sums[start]):
            lasts = (
                max(row[n] for n in nodes) for _, nodes, _ in pieces[start:stop][size - 1 :: size]
            )
            ends |= {row[entry], *lasts}
        start = stop
    return sorted(ends) or [row[node] for node in network.cut_nodes()]


def _same(codes: Sequence[Any], one: int, two: int, size: int) -> bool:
    return two + size <= len(codes) and codes[one : one + size] == codes[two : two + size]


def _depths(network: Network) -> tuple[Array, list[int]]:
    """Return (depth of every node, rows of a longest path from an input to the deepest output)."""
    row = {node: i for i, (node, _, _) in enumerate(network.steps())}
    depth, before = np.zeros(len(row)), np.full(len(row), -1)
    for node, layer, parents in network.steps():
        i = row[node]
        if parents:
            before[i] = max((row[parent] for parent in parents), key=lambda j: depth[j])
            depth[i] = depth[before[i]]
            if isinstance(layer, Affine | Nonlinear):
                depth[i] = np.floor(depth[i]) + (1 if isinstance(layer, Nonlinear) else 0.5)
    here, way = max((row[node] for node in network.outputs), key=lambda j: depth[j]), []
    while here >= 0:
        way.append(int(here))
        here = before[here]
    return depth, way[::-1]
