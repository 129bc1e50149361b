"""Find the residual streams of hyper-connections in a captured graph, and measure their weights.

Public code writes hyper-connections in many ways: with einsums or matrix products, with the streams
merged into the batch axis, with Sinkhorn loops over parameters or over gates that depend on the
input. So the weights are measured: the graph runs with noise in the streams, and each sum of
streams is fitted by least squares. Products of the input and weights that only gates read are set
to 0, so that the gates have their initial values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..trace import Pointwise, Reshape
from .captured import Captured
from .graph_values import TensorRef

Array = np.ndarray
MOST = 16  # maximum number of streams
TRIED = 40  # maximum number of nodes tested as the input of a branch or of the readout
PLACES = 4  # number of places where gates that depend on the input are compared
CLOSE = 1e-8  # maximum relative error of a fit
STARTS = ("expand", "repeat", "repeat_interleave", "stack", "cat", "mul")
PRODUCTS = ("linear", "matmul", "mm", "bmm", "einsum", "addmm", "mv", "conv1d", "conv2d", "conv3d")
VIEWS = ("select", "squeeze", "view", "reshape", "_unsafe_view", "contiguous", "clone", "unsqueeze")
NARROW = ("float32", "float16", "bfloat16")
DYNAMIC = (
    "the weights of its streams depend on the input; they are read as their initial values, "
    "without the part that depends on the input"
)
DEPTH = (
    "its weights over the feature maps depend on the input once their queries are not 0; they are "
    "read as their initial values"
)


@dataclass(frozen=True, eq=False)
class Mixture:
    """A weighted sum of feature maps, each given by a node or a pair (sub-layer, stream)."""

    terms: tuple[tuple[Any, float], ...]
    text: str = ""


@dataclass(eq=False)
class Plan:
    """How to read the sums of streams in a captured graph.

    ``sums``: {node that is a sum: mixture}; ``streams``: {node after which streams are made:
    [(label, mixture)]}; ``skipped``: the nodes that need not be read; ``shape``: the shape of one
    stream.
    """

    sums: dict[Any, Mixture] = field(default_factory=dict)
    streams: dict[Any, list[tuple[tuple[int, int], Mixture]]] = field(default_factory=dict)
    skipped: set[Any] = field(default_factory=set)
    shape: tuple[int, ...] = ()


class _Graph:
    """A captured graph that stores the dependencies between its nodes as bit masks."""

    def __init__(self, captured: Captured) -> None:
        self.captured = captured
        self.nodes = list(captured.graph.nodes)
        self.place = {node: i for i, node in enumerate(self.nodes)}
        self.above = [0] * len(self.nodes)  # for each node, itself and the nodes it depends on
        self.traced = [False] * len(self.nodes)
        entries = set(captured.entries)
        for i, node in enumerate(self.nodes):
            self.above[i] = 1 << i
            self.traced[i] = node in entries
            for read in node.all_input_nodes:
                self.above[i] |= self.above[self.place[read]]
                self.traced[i] |= self.traced[self.place[read]]

    def size(self, node: Any) -> int:
        """Return the number of entries of a real array, or 0 for other values."""
        value = node.meta.get("val")
        if not hasattr(value, "shape") or not value.dtype.is_floating_point:
            return 0
        known = all(isinstance(n, int) for n in value.shape)  # other sizes depend on the data
        return math.prod(value.shape) if known else 0

    def reads(self, node: Any) -> list[Any]:
        """Return the inputs of a node that depend on the input of the model."""
        return [read for read in node.all_input_nodes if self.traced[self.place[read]]]

    def depends(self, node: Any, on: Any) -> bool:
        return bool(self.above[self.place[node]] >> self.place[on] & 1)

    def within(self, first: Any, last: Any) -> set[Any]:
        """Return the nodes on paths between two nodes, including both."""
        mask = self.above[self.place[last]]
        return {
            node
            for node in self.nodes
            if mask >> self.place[node] & 1 and self.depends(node, first)
        }

    def run(
        self, inputs: Sequence[Any], changed: Callable[[Any, Any], Any], zeroed: set[Any]
    ) -> dict[Any, Any]:
        """Run the graph in double precision, and return {node: value}.

        ``changed(node, value)`` may replace values; ``zeroed``: products in which the operand that
        depends on the input is replaced with 0.
        """
        import torch
        from torch.fx.node import map_aggregate

        wide = {getattr(torch, name): torch.float64 for name in NARROW}

        def widened(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor) and leaf.dtype in wide:
                return leaf.detach().to(torch.float64)
            return wide.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

        values: dict[Any, Any] = dict(zip(self.captured.entries, map(widened, inputs), strict=True))
        values |= self.captured.given
        for node in self.nodes:
            if node in values or node.op == "output":
                continue
            if node in self.captured.held:
                values[node] = widened(self.captured.held[node][0])
                continue
            if node.op == "get_attr":
                found: Any = self.captured.module
                for part in str(node.target).split("."):
                    found = getattr(found, part)
                values[node] = widened(found)
                continue
            still = set(self.reads(node)) if node in zeroed else set()

            def given(leaf: Any, still: set[Any] = still) -> Any:
                if isinstance(leaf, torch.fx.Node):
                    return values[leaf] * 0 if leaf in still else values[leaf]
                return widened(leaf)

            args, named = map_aggregate((node.args, node.kwargs), given)
            values[node] = changed(node, node.target(*args, **named))
        return values


@dataclass(frozen=True, eq=False)
class _State:
    node: Any
    count: int
    skip: Any
    branch: Any


def plan_of(captured: Captured, inputs: Sequence[Any]) -> Plan | None:
    """Return the plan for several streams or for attention over depth, or None."""
    graph = _Graph(captured)
    states = list(_states(graph))
    origin = _origin(graph, states[0]) if states else None
    mixers = [
        node
        for node in graph.nodes
        if _kind(node) == "stack" and graph.traced[graph.place[node]] and graph.size(node)
    ]
    if origin is None and not any(
        _kind(node) in ("softmax", "_softmax") for node in graph.nodes if mixers
    ):
        return None
    try:
        if origin is not None:
            own = [
                s for s in states if s.count == states[0].count and graph.depends(s.skip, origin)
            ]
            return _of_streams(graph, inputs, origin, own)
        return _of_depth(graph, inputs, mixers)
    except Exception:  # if the graph cannot run by itself, it is read node by node
        return None


def _kind(node: Any) -> str:
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        return schema.name.partition("::")[2]
    return getattr(node.target, "__name__", str(node.target))


def _states(graph: _Graph) -> Iterator[_State]:
    """Yield the sums in which the output of a branch is added to several streams."""
    products = 0
    for i, node in enumerate(graph.nodes):
        fixed = [read for read in node.all_input_nodes if not graph.traced[graph.place[read]]]
        reads = graph.reads(node)
        if _kind(node) in PRODUCTS and len(reads) == 1 and fixed:
            products |= 1 << i if _sums(node, reads[0]) else 0
        size = graph.size(node)
        if _kind(node) != "add" or len(reads) != 2 or not size:
            continue
        for skip, branch in (reads, reads[::-1]):
            own = graph.above[graph.place[branch]] & ~graph.above[graph.place[skip]] & products
            if graph.size(skip) != size or not own:
                continue
            end = graph.nodes[own.bit_length() - 1]
            count, rest = divmod(size, max(graph.size(end), 1))
            if rest == 0 and 2 <= count <= MOST:
                yield _State(node, count, skip, branch)
                break


def _sums(node: Any, read: Any) -> bool:
    """Whether a product sums over entries of ``read`` rather than only multiplying them."""
    if _kind(node) != "einsum":
        return read.meta["val"].shape[-1] > 1
    source, _, out = str(node.args[0]).replace(" ", "").partition("->")
    letters = source.split(",")[list(node.args[1]).index(read)]
    return not set(letters) <= set(out)


def _origin(graph: _Graph, first: _State) -> Any:
    """Return the node where one feature map becomes several streams, or None."""
    size = graph.size(first.node)
    for node in reversed(graph.nodes[: graph.place[first.skip] + 1]):
        reads = graph.reads(node)
        if not graph.depends(first.skip, node) or graph.size(node) != size or not reads:
            continue
        below = [graph.size(read) for read in reads]
        if max(below) < size:
            alike = set(below) == {size // first.count}
            one = alike and _kind(node) in STARTS and _source(graph, node) is not None
            return node if one else None
    return None


def _source(graph: _Graph, origin: Any) -> Any:
    """Return the feature map that all streams are multiples of, or None."""
    below = set(graph.reads(origin))
    if len(below) > 1:  # a stack of multiples of one feature map
        below = {
            node
            for read in below
            for node in (graph.reads(read) if _kind(read) == "mul" else [read])
        }
    return below.pop() if len(below) == 1 else None


# -- fits ------------------------------------------------------------------------------------------


def _array(tensor: Any) -> Array:
    return tensor.detach().double().cpu().numpy()


def _splits(shape: Sequence[int], count: int) -> Iterator[tuple[int, bool]]:
    for axis, size in enumerate(shape):
        if size % count == 0:
            yield axis, False
            if size != count:
                yield axis, True


def _taken(array: Array, count: int, split: tuple[int, bool]) -> Array:
    """Return an array as (streams, ...), without axes of size 1.

    ``split``: the axis of the array that contains the streams, and whether the stream index varies
    fastest along it.
    """
    axis, fastest = split
    shape = array.shape
    parts = (shape[axis] // count, count) if fastest else (count, shape[axis] // count)
    made = array.reshape(*shape[:axis], *parts, *shape[axis + 1 :])
    made = np.moveaxis(made, axis + fastest, 0)
    return made.reshape(count, *(size for size in made.shape[1:] if size > 1))


def _solved(goal: Array, rows: Array) -> Array | None:
    weights = np.linalg.lstsq(rows.T, goal, rcond=None)[0]
    size = np.linalg.norm(goal)
    return weights if np.linalg.norm(rows.T @ weights - goal) <= CLOSE * size > 0 else None


def _same(goal: Array, basis: Sequence[Array]) -> Array | None:
    """Fit an array by a weighted sum of arrays; return the weights, or None if the fit fails."""
    return _solved(goal.ravel(), np.array([b.ravel() for b in basis]))


def _anywhere(goal: Array, basis: Sequence[Array]) -> bool:
    """Whether an array is a weighted sum of arrays with weights that may differ by position."""
    width = goal.shape[-1]
    if width <= len(basis) + 1:
        return _same(goal, basis) is not None
    flat = [array.reshape(-1, width) for array in (goal, *basis)]
    spread = np.linspace(0, len(flat[0]) - 1, PLACES).astype(int)
    pairs = zip(*(rows[spread] for rows in flat), strict=True)
    return all(_solved(g, np.array(b)) is not None for g, *b in pairs)


# -- streams ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Run:
    """The results of a run with noise in the streams.

    ``values``: {node: value}; ``kept``: {node with streams: (value, value with noise)}.
    """

    values: dict[Any, Any]
    kept: dict[Any, tuple[Any, Any]]


def _noisy(graph: _Graph, inputs: Sequence[Any], places: set[Any], zeroed: set[Any]) -> _Run:
    import torch

    generator = torch.Generator().manual_seed(0)
    kept: dict[Any, tuple[Any, Any]] = {}

    def changed(node: Any, value: Any) -> Any:
        if node not in places:
            return value
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.device)
        made = value + noise * value.square().mean().sqrt()
        kept[node] = (value, made)
        return made

    with torch.no_grad():
        return _Run(graph.run(inputs, changed, zeroed), kept)


def _of_streams(
    graph: _Graph, inputs: Sequence[Any], origin: Any, states: list[_State]
) -> Plan | None:
    places = [origin, *(state.node for state in states)]
    first = _noisy(graph, inputs, set(places), set())
    for split in _splits(first.kept[origin][1].shape, states[0].count):
        streams = _taken(_array(first.kept[origin][1]), states[0].count, split)
        ends = _ends(graph, first, places, states, streams)
        if ends is not None:
            break
    else:
        return None
    branches = [graph.within(read, end) for read, end in ends[:-1]]
    inside = set().union(*branches)
    after = {node for node in graph.nodes if graph.depends(node, ends[-1][0])}
    mixed = {node for read, _ in ends for node in _made_by(graph, read)}
    zeroed = {
        node
        for node in graph.nodes
        if _kind(node) in PRODUCTS
        and graph.depends(node, origin)
        and node not in inside | after | mixed
        and len(graph.reads(node)) < len(node.all_input_nodes)
        and _gates(graph, node)
    }
    plan = _measured(graph, _noisy(graph, inputs, set(places), zeroed), places, states, ends, split)
    if plan is None:
        return None
    plan.skipped = {n for n in graph.nodes if graph.depends(n, origin)} - inside - after
    for node in inside | after:
        if node not in plan.sums and any(read in plan.skipped for read in node.all_input_nodes):
            return None
    if zeroed:
        plan.sums = {n: Mixture(m.terms, DYNAMIC) for n, m in plan.sums.items()}
    return plan


def _gates(graph: _Graph, node: Any) -> bool:
    """Whether a product computes gates, that is, has fewer entries than its input."""
    (read,) = graph.reads(node) or (None,)
    return read is not None and graph.size(node) < graph.size(read)


def _ends(
    graph: _Graph, run: _Run, places: list[Any], states: list[_State], streams: Array
) -> list[tuple[Any, Any]] | None:
    """Return the input node and end node of every branch, in order, and (readout, None) at the end.

    Returns None if one of these nodes is not found.
    """
    found: list[tuple[Any, Any]] = []
    count = len(streams)
    for before, state in zip(places, states, strict=False):
        own = graph.above[graph.place[state.branch]] & ~graph.above[graph.place[state.skip]]
        size = streams[0].size
        inside = [n for n in graph.nodes if own >> graph.place[n] & 1 and graph.size(n) == size]
        inside = [n for n in inside if graph.depends(n, before)]
        if not inside:
            return None
        end = inside[-1]
        read = _read(graph, run, before, end, streams)
        if read is None:
            return None
        found.append((read, end))
        made = _array(run.values[end]).reshape(streams[0].shape)
        value, noisy = map(_array, run.kept[state.node])
        for split in _splits(value.shape, count):
            goals = _taken(value, count, split)
            if goals.shape == streams.shape and all(
                _anywhere(goal, [*streams, made]) for goal in goals
            ):
                streams = _taken(noisy, count, split)
                break
        else:
            return None
    last = _read(graph, run, places[-1], None, streams)
    return None if last is None else [*found, (last, None)]


def _read(graph: _Graph, run: _Run, before: Any, end: Any, streams: Array) -> Any:
    """Return the first node with the size of one stream that sums over the streams, or None."""
    tried = 0
    for node in graph.nodes[graph.place[before] + 1 :]:
        if graph.size(node) != streams[0].size or not graph.depends(node, before):
            continue
        if end is not None and not graph.depends(end, node):
            continue
        tried += 1
        if tried > TRIED:
            return None
        value = _array(run.values[node])
        if value.shape[-1] == streams.shape[-1] and _anywhere(
            value.reshape(streams[0].shape), list(streams)
        ):
            return _viewed(graph, node)
    return None


def _viewed(graph: _Graph, node: Any) -> Any:
    """Follow a node through views that are its only readers, and return the last one."""
    while len(node.users) == 1:
        (user,) = node.users
        if _kind(user) not in VIEWS or graph.size(user) != graph.size(node):
            break
        node = user
    return node


def _made_by(graph: _Graph, node: Any) -> Iterator[Any]:
    """Yield a node, and the nodes that it is a view of."""
    yield node
    while _kind(node) in VIEWS and len(graph.reads(node)) == 1:
        (node,) = graph.reads(node)
        yield node


def _measured(
    graph: _Graph,
    run: _Run,
    places: list[Any],
    states: list[_State],
    ends: list[tuple[Any, Any]],
    split: tuple[int, bool],
) -> Plan | None:
    """Return the plan for several streams, with weights fitted to the values of a run.

    In this run, gates have their initial values. Returns None if a fit fails.
    """
    plan, count, origin = Plan(), states[0].count, places[0]
    plan.shape = tuple(int(n) for n in ends[0][0].meta["val"].shape)
    start, noisy = map(_array, run.kept[origin])
    source = _source(graph, origin)
    one = _array(run.values[source]).ravel()
    copies = [_solved(part.ravel(), one[None]) for part in _taken(start, count, split)]
    if any(weight is None for weight in copies):
        return None
    plan.streams[origin] = [
        ((i, 0), Mixture(((source, _plain(weight[0])),)))
        for i, weight in enumerate(copies, 1)
        if weight is not None
    ]
    streams = _taken(noisy, count, split)
    for level, (state, (read, end)) in enumerate(zip(states, ends, strict=False), 1):
        before = [(i, level - 1) for i in range(1, count + 1)]
        weights = _same(_array(run.values[read]).reshape(streams[0].shape), list(streams))
        if weights is None:
            return None
        plan.sums[read] = _mixture(before, weights)
        made = _array(run.values[end]).reshape(streams[0].shape)
        value, after = map(_array, run.kept[state.node])
        for other in _splits(value.shape, count):
            goals = _taken(value, count, other)
            if goals.shape != streams.shape:
                continue
            rows = [_same(goal, [*streams, made]) for goal in goals]
            if all(row is not None for row in rows):
                named = [*before, end]
                plan.streams[state.node] = [
                    ((i, level), _mixture(named, row))
                    for i, row in enumerate(rows, 1)
                    if row is not None
                ]
                streams = _taken(after, count, other)
                break
        else:
            return None
    readout = ends[-1][0]
    weights = _same(_array(run.values[readout]).reshape(streams[0].shape), list(streams))
    if weights is None:
        return None
    plan.sums[readout] = _mixture([(i, len(states)) for i in range(1, count + 1)], weights)
    return plan


def _mixture(names: Sequence[Any], weights: Array) -> Mixture:
    largest = float(np.abs(weights).max())
    kept = zip(names, weights, strict=True)
    return Mixture(tuple((n, _plain(w)) for n, w in kept if abs(w) > 1e-11 * largest))


def _plain(weight: float) -> float:
    """Round a weight, because the last digits of a fit depend on the number of examples."""
    return float(f"{weight:.12g}")


# -- attention over depth --------------------------------------------------------------------------


def _of_depth(graph: _Graph, inputs: Sequence[Any], mixers: list[Any]) -> Plan | None:
    """Return the plan for attention over depth, or None.

    Such attention adds stacked feature maps with softmax weights that do not depend on the input.
    """
    run, plan = _noisy(graph, inputs, set(mixers), set()), Plan()
    for node in mixers:
        parts = list(node.args[0])
        noisy, axis = _array(run.kept[node][1]), int(node.args[1]) if len(node.args) > 1 else 0
        slices = np.moveaxis(noisy, axis, 0)
        for read in graph.nodes[graph.place[node] + 1 :]:
            if graph.size(read) != slices[0].size or not graph.depends(read, node):
                continue
            inside = graph.within(node, read)
            if not any(_kind(n) in ("softmax", "_softmax") for n in inside):
                continue
            weights = _same(_array(run.values[read]).reshape(slices[0].shape), list(slices))
            free = all(user in inside for n in inside - {read} for user in n.users)
            if weights is not None and free:
                plan.sums[read] = Mixture(_mixture(parts, weights).terms, DEPTH)
                plan.skipped |= inside
                break
    return plan if plan.sums else None


# -- reading ---------------------------------------------------------------------------------------


def read_planned(walker: Any, plan: Plan, node: Any) -> bool:
    """Record the value of a node, and the streams made after it, if it is part of the plan.

    Returns: whether the node is part of the plan.
    """
    if node in plan.sums:
        walker.values[node] = walker.made[node] = _summed(walker, node, plan.sums[node], None)
        return True
    if node not in plan.skipped:
        return False
    for label, mixture in plan.streams.get(node, ()):
        walker.streams[label] = _summed(walker, node, mixture, f"stream_{label[0]}_{label[1]}")
    walker.values[node] = None
    return True


def _summed(walker: Any, node: Any, mixture: Mixture, label: str | None) -> TensorRef:
    """Add a weighted sum of feature maps to the trace."""
    from .calls import call_of

    args, kwargs = walker.resolved(node)
    call = call_of(walker, node, args, dict(kwargs))
    refs = [
        walker.streams[t] if isinstance(t, tuple) else walker.values[t] for t, _ in mixture.terms
    ]
    weights = [weight for _, weight in mixture.terms]
    shape = walker.plan.shape or refs[0].shape

    def function(*arrays: Any) -> Any:
        return sum(w * array for w, array in zip(weights, arrays, strict=True))

    reads = [
        ref if ref.shape == shape else call.emit(Reshape, [ref.name], shape=shape) for ref in refs
    ]
    fields: dict[str, Any] = {"function": function, "label": "sum", "text": mixture.text}
    made = call.emit(Pointwise, [r.name for r in reads], shape=shape, wish=label, **fields)
    if label is None and made.shape != call.shape:
        return call.emit(Reshape, [made.name])
    return made
