"""Coordinate groups of a network, which the network's weights couple to each other.

Activations, sums, products and norms act on each coordinate; only weights mix coordinates. A
network is therefore a set of groups. The coordinates of a group are coupled by elementwise
operations and share one program. The sources of a program are products with weights, or the input.
Its sinks are the values that are read by weights or by the output. A concatenation belongs to
several groups.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from ..foundation.errors import KcalcError, NoRule
from ..network import primitives as P
from ..network.network import Network
from ..network.primitives import owner

Node = Hashable
MOST_PIECES = 4000
HELP = {
    P.Window: "measure its singular values with kc.verify_kernels, or remove the pooling",
    P.Attend: (
        "attention mixes positions; compute the spectra of the blocks between attention layers"
    ),
    P.Positions: "only networks with a single position, without tokens, are supported",
    P.Prefix: "only networks with a single position, without tokens, are supported",
    P.Moving: "it moves positions, but only networks with a single position are supported",
    P.Surrogate: "its backward pass does not compute the derivative; use layers.Nonlinear",
    P.Stop: "its backward pass does not compute the derivative; use layers.Identity",
}


@dataclass(frozen=True)
class Step:
    """One operation of a program: ``kind`` with ``parameter``, applied to earlier values.

    The parameter is an activation for "post", weights for "mix", None for "prod", (mean, root mean
    square) for "norm", and the dropped fraction for "mask". ``start`` is the first coordinate of
    the step at its node.
    """

    kind: str
    parameter: Any
    reads: tuple[int, ...]
    node: Node
    start: Fraction


@dataclass
class Group:
    """Coordinates that share a program; its values are the sources, followed by the steps' results.

    ``sources`` are nodes with weights, or the input, and ``starts`` are the first coordinates at
    these nodes. ``sinks`` is [(node that weights or the output read, index of the value)].
    ``width`` is the number of coordinates, up to a common factor.
    """

    width: Fraction
    sources: list[Node] = field(default_factory=list)
    starts: list[Fraction] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    sinks: list[tuple[Node, int]] = field(default_factory=list)

    @property
    def random(self) -> bool:
        """Whether the slopes may differ between coordinates."""
        return any(step.kind in ("post", "prod", "mask") for step in self.steps)


@dataclass(frozen=True)
class Weights:
    """The weights at ``node``, which act on the feature map ``reads``.

    ``variance`` is sigma_w^2, the variance of an entry times fan_in; ``ratio`` is n_out / n_in.
    """

    node: Node
    reads: Node
    variance: float
    ratio: float
    orthogonal: bool


@dataclass(frozen=True)
class Grouped:
    """A network as groups and weights; ``width`` is {node: width, up to a common factor}."""

    groups: tuple[Group, ...]
    weights: tuple[Weights, ...]
    width: Mapping[Node, Fraction]
    start: Node
    end: Node
    depth: int


def grouped(network: Network, laws: Mapping[Node, bool], divisors: Any) -> Grouped:
    """Return the groups of a network with one input and one output.

    ``laws`` is {node with weights: whether they are orthogonal}. ``divisors(node, read, start)``
    returns the (mean, root mean square) that a norm uses for the coordinates after ``start``, a
    fraction of the channels. Raises: a KcalcError that names a node if the theory does not cover
    it.
    """
    operations, same = _plain(network)
    width = _widths(network, operations)
    aligned = [link for operation in operations for link in _links(operation, width)]
    cuts = _refined(width, aligned)
    place = _places(cuts, aligned)
    groups: dict[Any, Group] = {}
    at: dict[tuple[Node, Fraction], tuple[Group, int]] = {}
    for node, op, reads in operations:
        if isinstance(op, P.Join):
            offset = Fraction(0)
            for read in reads:
                for start, _ in pairwise(cuts[read]):
                    at[node, offset + start] = at[read, start]
                offset += width[read]
            continue
        for start, stop in pairwise(cuts[node]):
            group = groups.setdefault(place[node, start], Group(stop - start))
            if isinstance(op, P.Source | P.Fresh):
                at[node, start] = group, -1 - len(group.sources)
                group.sources.append(node)
                group.starts.append(start)
            else:
                inputs = tuple(at[read, start][1] for read in reads)
                kind, parameter = _step(op, reads, start / width[node], divisors, node)
                at[node, start] = group, len(group.steps)
                group.steps.append(Step(kind, parameter, inputs, node, start))
    edges = []
    for node, op, reads in operations:
        if isinstance(op, P.Fresh):
            ratio = float(width[node] / width[reads[0]])
            edges.append(Weights(node, reads[0], float(op.sigma_w) ** 2, ratio, laws[node]))
    end = same[network.outputs[0]]
    for node in dict.fromkeys([*(edge.reads for edge in edges), end]):
        for start, _ in pairwise(cuts[node]):
            group, index = at[node, start]
            group.sinks.append((node, index))
    for group in groups.values():
        _numbered(group)
    found = tuple(group for group in groups.values() if group.sinks)
    depth = _depth(operations)[end]
    return Grouped(found, tuple(edges), width, network.inputs[0], end, depth)


def _numbered(group: Group) -> None:
    """Number the sources 0, 1, ..., and then the steps."""
    count = len(group.sources)

    def number(index: int) -> int:
        return -1 - index if index < 0 else count + index

    group.steps = [replace(step, reads=tuple(map(number, step.reads))) for step in group.steps]
    group.sinks = [(node, number(index)) for node, index in group.sinks]


Operation = tuple[Node, P.Primitive, tuple[Node, ...]]


def _plain(network: Network) -> tuple[list[Operation], dict[Node, Node]]:
    """Return the operations without identities, and {node: the node that replaces it}."""
    same: dict[Node, Node] = {}
    found: list[Operation] = []
    for node, op, reads in network.operations:
        inputs = tuple(same[read] for read in reads)
        if op is None or isinstance(op, P.Reshape) or (isinstance(op, P.Mask) and not drops(op)):
            same[node] = inputs[0]
            continue
        _check(network, node, op)
        same[node] = node
        found.append((node, op, inputs))
    return found, same


def drops(op: P.Mask) -> bool:
    """Whether dropout is active."""
    return op.drops


def _check(network: Network, node: Node, op: P.Primitive) -> None:
    """Reject operations other than weights that couple coordinates or positions."""
    where = f"node {owner(node)!r} ({op.kind})"
    if isinstance(op, P.Source):
        if network.layer(node).image_shape is not None:
            raise NoRule(
                f"{where} is an image, but Jacobian spectra are available only for networks "
                "with one position; use vector inputs, layers.Input(), and dense layers"
            )
    elif isinstance(op, P.Fresh):
        problem = _dense_problem(op)
        if problem:
            raise NoRule(f"{where}: {problem}")
    elif isinstance(op, P.Norm):
        if op.over == "batch":
            raise NoRule(
                f"{where} couples the examples of a batch, which Jacobian spectra do not "
                "support; use LayerNorm or RMSNorm, or drop it with "
                "net.without_normalization()"
            )
    elif not isinstance(op, P.Post | P.Mix | P.Prod | P.Join | P.Mask):
        advice = next(
            (text for kind, text in HELP.items() if isinstance(op, kind)),
            "replace it with layers that kcalc supports",
        )
        raise NoRule(f"{where}: Jacobian spectra have no rule for it; {advice}")


def _dense_problem(op: P.Fresh) -> str:
    if op.one_hot:
        return (
            "an embedding reads one-hot vectors, so the Jacobian would have one column per token "
            "id; start the network after it, with layers.Input()"
        )
    if not op.dense:
        return (
            "a window reads several positions, but Jacobian spectra are available only for "
            "networks with one position; use kernel=1 and stride=1"
        )
    if op.groups != 1:
        return (
            f"{op.groups} channel groups have separate weights; use groups=1, or one separate "
            "branch per group and a Concat"
        )
    return ""


def _step(op: P.Primitive, reads: Any, start: Fraction, divisors: Any, node: Node) -> Any:
    if isinstance(op, P.Post):
        return "post", op.activation
    if isinstance(op, P.Mix):
        return "mix", tuple(float(w) for w in op.weights)
    if isinstance(op, P.Mask):
        return "mask", float(op.rate)
    if isinstance(op, P.Norm):
        return "norm", divisors(node, op, reads[0], start)
    return "prod", None


# -- widths and cuts -----------------------------------------------------------------------------


def _widths(network: Network, operations: list[Operation]) -> dict[Node, Fraction]:
    """Return {node: width}: the numbers of channels if all are known, or 1 if none is known."""
    sized = [(node, op) for node, op, _ in operations if isinstance(op, P.Source | P.Fresh)]
    known = {node: network.features[owner(node)] for node, _ in sized}
    missing = [node for node, count in known.items() if count is None]
    if missing and len(missing) < len(known):
        raise KcalcError(
            f"node {owner(missing[0])!r} has no width, but other nodes do, and the spectrum "
            "depends on the ratios of the widths. Set features= for all nodes, or for none "
            "if all widths are equal"
        )
    width: dict[Node, Fraction] = {}
    for node, op, reads in operations:
        if isinstance(op, P.Source | P.Fresh):
            width[node] = Fraction(1) if missing else Fraction(int(known[node] or 0))
        elif isinstance(op, P.Join):
            width[node] = sum((width[read] for read in reads), Fraction(0))
            _check_ratio(node, op, [width[read] for read in reads])
        else:
            width[node] = width[reads[0]]
            if any(width[read] != width[node] for read in reads):
                raise KcalcError(
                    f"node {owner(node)!r} ({op.kind}) reads feature maps of different "
                    f"widths: {', '.join(str(width[read]) for read in reads)}; set features="
                )
    return width


def _check_ratio(node: Node, op: P.Join, widths: list[Fraction]) -> None:
    given = [Fraction(int(count)) for count in op.channels]
    if any(a * widths[0] != given[0] * b for a, b in zip(given, widths, strict=True)):
        raise KcalcError(
            f"node {owner(node)!r} (Concat) has inputs with channels in the ratio "
            f"{':'.join(map(str, given))}, but without features= all widths are assumed to "
            "be equal; set features= for all nodes"
        )


Link = tuple[Node, Node, Fraction, Fraction]  # (read, node, its start at the node, its width)


def _links(operation: Operation, width: Mapping[Node, Fraction]) -> list[Link]:
    node, op, reads = operation
    if isinstance(op, P.Source | P.Fresh):
        return []
    if not isinstance(op, P.Join):
        return [(read, node, Fraction(0), width[node]) for read in reads]
    offset, found = Fraction(0), []
    for read in reads:
        found.append((read, node, offset, width[read]))
        offset += width[read]
    return found


def _refined(width: Mapping[Node, Fraction], links: list[Link]) -> dict[Node, list[Fraction]]:
    """Return {node: positions from 0 to its width at which one part ends and the next begins}."""
    near: dict[Node, list[tuple[Node, Fraction, Fraction, Fraction]]] = {}
    for read, node, offset, length in links:
        near.setdefault(read, []).append((node, offset, Fraction(0), length))
        near.setdefault(node, []).append((read, -offset, offset, offset + length))
    cuts: dict[Node, set[Fraction]] = {node: set() for node in width}
    waiting = [(node, cut) for node, w in width.items() for cut in (Fraction(0), w)]
    left = MOST_PIECES + 2 * len(cuts)
    while waiting:
        node, cut = waiting.pop()
        if cut in cuts[node]:
            continue
        cuts[node].add(cut)
        left -= 1
        if left < 0:
            raise KcalcError(
                "the network's concatenations split its channels into too many parts. "
                "Choose features that are multiples of a common number"
            )
        for other, shift, low, high in near.get(node, ()):
            if low <= cut <= high:
                waiting.append((other, cut + shift))
    return {node: sorted(found) for node, found in cuts.items()}


def _places(cuts: Mapping[Node, list[Fraction]], links: list[Link]) -> dict[Any, Any]:
    """Return {part: a representative part of the same group}; a part is (node, its start)."""
    root = {(node, start): (node, start) for node, found in cuts.items() for start in found[:-1]}

    def find(piece: Any) -> Any:
        while root[piece] != piece:
            root[piece] = root[root[piece]]
            piece = root[piece]
        return piece

    for read, node, offset, _ in links:
        for start in cuts[read][:-1]:
            root[find((node, start + offset))] = find((read, start))
    return {piece: find(piece) for piece in root}


def _depth(operations: list[Operation]) -> dict[Node, int]:
    """Return {node: largest number of weights on a path from the input}."""
    depth: dict[Node, int] = {}
    for node, op, reads in operations:
        depth[node] = max((depth[read] for read in reads), default=0) + isinstance(op, P.Fresh)
    return depth
