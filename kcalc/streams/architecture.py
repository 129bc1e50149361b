"""Build networks with several residual streams."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from ..fields.arguments import as_number
from ..foundation.errors import KcalcError, glimpse
from ..foundation.plain_arguments import items, whole
from ..network import layers as L
from ..network import primitives as P
from ..network.architectures.titles import titled
from ..network.combinators import DEEPEST, Builder, Piece, chain
from ..network.network import Network, Step
from .levels import label

Node = Hashable
Stream = dict[Node, Any]  # {node: weight}; empty if the stream is zero
READOUTS: dict[str, Callable[[int], list[Any]]] = {
    "sum": lambda n: [1] * n,
    "mean": lambda n: [1 / n] * n,
}


def hyper_connected(
    branch: Piece,
    streams: int,
    depth: int,
    h_res: Any,
    h_pre: Any,
    h_post: Any,
    expand: Any = None,
    readout: Any = None,
) -> Network:
    """Build a network with several residual streams and fixed hyper-connection gates.

    With n streams X_j, sub-layer l computes ``X_i' = sum_j H_ij X_j + p_i F(sum_j h_j X_j)``. Every
    sub-layer has its own copy of the branch F, with its own weights. Gates that depend on the input
    (dynamic hyper-connections) do not self-average at any width; pass their values at
    initialisation instead.

    Parameters
    ----------
    branch
        The piece F, a chain that ends in an Affine.
    streams
        The number n of streams.
    depth
        The number of sub-layers.
    h_res
        The matrix H, shape (n, n): ``h_res[i, j]`` is the weight from stream j to stream i.
        :func:`kcalc.sinkhorn` builds such a matrix from logits.
    h_pre, h_post
        The read vector h and the write vector p, shape (n,). ``h_res``, ``h_pre`` and ``h_post``
        may also be functions of the sub-layer index 0 ... depth - 1. Entries are numbers or SymPy
        expressions.
    expand
        The weights of the input in the initial streams, shape (n,). The default is all ones.
    readout
        "sum", "mean" or n weights, which combine the streams into one output. With None, the
        streams are the outputs "stream_1" ... "stream_n".

    Returns
    -------
    Network
        The network with its residual streams.
        Its node ``stream_i_l`` is stream i after l sub-layers; ``stream_i_0`` is its copy of the
        input.

    Raises
    ------
    KcalcError
        If a shape is wrong, a row of ``h_res`` is all zeros, a branch reads only zeros, or the
        branch does not end in an Affine.

    Notes
    -----
    Source: Zhu et al. (2024), "Hyper-Connections"; Xie et al. (2025), "mHC".

    Examples
    --------
    >>> import kcalc as kc
    >>> L = kc.layers
    >>> branch = kc.chain(L.RMSNorm(), L.Affine(), L.Nonlinear("tanh"), L.Affine())
    >>> H = kc.sinkhorn([[3, 0], [0, 3]])
    >>> net = kc.architectures.hyper_connected(branch, 2, 8, H, [0.9, 0.1], [1, 1], readout="mean")
    >>> print(round(kc.c_map(net)(0.5), 6))
    0.496281

    """
    n, count = whole(streams, "streams", 1), whole(depth, "depth", 1, DEEPEST)
    _check_branch(branch)
    builder = Builder()
    entry = builder.add(L.Input(), ())
    start = [1] * n if expand is None else _vector(expand, n, "expand")
    state = [
        {_summed(builder, {entry: weight}, label(i, 0)): 1} if weight != 0 else {}
        for i, weight in enumerate(start, 1)
    ]
    for layer in range(count):
        final = layer == count - 1 and readout is None
        state = _sub_layer(
            builder,
            branch,
            state,
            _matrix(_at(h_res, layer), n, layer),
            _vector(_at(h_pre, layer), n, f"h_pre of sub-layer {layer}"),
            _vector(_at(h_post, layer), n, f"h_post of sub-layer {layer}"),
            [f"stream_{i}" if final else label(i, layer + 1) for i in range(1, n + 1)],
        )
    outputs = [next(iter(stream), None) for stream in state]
    if readout is not None:
        read = _combined(state, _readout(readout, n))
        outputs = [_node(builder, read, "the readout")]
    for i, node in enumerate(outputs):
        if node is None:
            raise KcalcError(
                f"stream {i + 1} is 0 at the end; set a nonzero weight for it in h_res or h_post"
            )
    builder.steps = _read_by(outputs, builder.steps)
    return titled("hyper-connected", builder.network(outputs))


def _read_by(outputs: Sequence[Node], steps: list[Step]) -> list[Step]:
    """Return only the steps that the outputs depend on, because the readout may omit streams."""
    needed, kept = set(outputs), []
    for step in reversed(steps):
        if step[0] in needed:
            needed.update(step[2])
            kept.append(step)
    return kept[::-1]


def _sub_layer(
    builder: Builder,
    branch: Piece,
    state: list[Stream],
    mixing: list[list[Any]],
    read: list[Any],
    write: list[Any],
    names: Sequence[str],
) -> list[Stream]:
    """Return the streams after one sub-layer, one node per stream."""
    inside = builder.append(branch, _node(builder, _combined(state, read), "a branch"))
    after = []
    for row, weight, name in zip(mixing, write, names, strict=True):
        mixed = _added(_combined(state, row), _scaled({inside: 1}, weight))
        after.append({_summed(builder, mixed, name): 1} if mixed else {})
    return after


def _scaled(stream: Stream, weight: Any) -> Stream:
    return {} if weight == 0 else {node: weight * factor for node, factor in stream.items()}


def _added(first: Stream, second: Stream) -> Stream:
    total = {node: first.get(node, 0) + second.get(node, 0) for node in {**first, **second}}
    return {node: weight for node, weight in total.items() if weight != 0}


def _combined(state: Iterable[Stream], weights: Iterable[Any]) -> Stream:
    """Return the weighted sum of streams."""
    total: Stream = {}
    for stream, weight in zip(state, weights, strict=True):
        total = _added(total, _scaled(stream, weight))
    return total


def _summed(builder: Builder, stream: Stream, name: str | None = None) -> Node:
    return builder.add(L.Sum(tuple(stream.values())), tuple(stream), name)


def _node(builder: Builder, stream: Stream, what: str) -> Node:
    """Return the node of a stream; add a Sum unless the stream already is a single node."""
    if not stream:
        raise KcalcError(
            f"{what} has weight 0 for every nonzero stream; set a nonzero weight for at "
            "least one of them"
        )
    if list(stream.values()) == [1]:
        return next(iter(stream))
    return _summed(builder, stream)


def _check_branch(branch: Any) -> None:
    """Raise a KcalcError if the branch does not end in an Affine with new weights."""
    network = chain(branch)
    made = {node: (op, reads) for node, op, reads in network.operations}
    ends = [network.outputs[0]]
    while ends:  # follow both inputs of a mixture of experts
        op, reads = made[ends.pop()]
        if op is None or isinstance(op, P.Mix):
            ends.extend(reads)
        if not (isinstance(op, P.Fresh | P.Mix) or (op is None and reads) or (op and op.varies)):
            last = network.layer(network.outputs[0])
            raise KcalcError(
                f"branch must end in an Affine, got {type(last).__name__} at node "
                f"{network.outputs[0]!r}; append layers.Affine()"
            )


def _at(given: Any, layer: int) -> Any:
    return given(layer) if callable(given) else given


def _vector(given: Any, n: int, what: str) -> list[Any]:
    values = [as_number(value, f"{what}[{i}]") for i, value in enumerate(items(given, what))]
    if len(values) != n:
        raise KcalcError(f"{what} must contain one number per stream ({n}), got {len(values)}")
    return values


def _matrix(given: Any, n: int, layer: int) -> list[list[Any]]:
    what = f"h_res of sub-layer {layer}"
    rows = [
        [as_number(value, f"{what}[{i}, {j}]") for j, value in enumerate(items(row, what))]
        for i, row in enumerate(items(given, what))
    ]
    if len(rows) != n or any(len(row) != n for row in rows):
        shape = " x ".join(map(str, dict.fromkeys((len(rows), *map(len, rows)))))
        raise KcalcError(f"{what} must be a {n} x {n} matrix, got {shape}")
    for i, row in enumerate(rows):
        if all(value == 0 for value in row):
            raise KcalcError(
                f"row {i} of {what} is all zeros, so stream {i + 1} reads nothing; set at "
                "least one nonzero weight in this row"
            )
    return rows


def _readout(given: Any, n: int) -> list[Any]:
    if isinstance(given, str):
        if given not in READOUTS:
            raise KcalcError(f"readout must be 'sum', 'mean' or {n} weights, got {glimpse(given)}")
        return READOUTS[given](n)
    return _vector(np.ravel(given) if hasattr(given, "ravel") else given, n, "readout")
