"""Residual branches: the operations that belong to each branch, and the weights that end it.

In ``x + f(x)``, a sum reads a feature map x (the stream) and a map computed from it (the branch).
The number of such sums is the depth.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from ... import Network
from ... import network as P
from ...foundation.errors import KcalcError
from ...network import owner

Node = Hashable


@dataclass(frozen=True)
class Branch:
    """One residual branch.

    ``sum`` is the node that adds the branch to the stream, and ``slot`` is the branch's position
    among the inputs of that node. ``inside`` contains the nodes of the branch. ``last`` is the node
    of the weights that end the branch, or None if the branch does not end in weights.
    """

    sum: Node
    slot: int
    inside: frozenset[Node]
    last: Node | None


def branches(network: Network) -> tuple[Branch, ...]:
    """Return the residual branches of a network, in order."""
    made = {node: (op, reads) for node, op, reads in network.operations}
    place = {node: k for k, node in enumerate(made)}
    above: dict[Node, frozenset[Node]] = {}
    added: dict[Node, frozenset[Node]] = {}  # the addends of each node, including the node itself
    found: list[Branch] = []
    for node, op, reads in network.operations:
        above[node] = frozenset(reads).union(*(above[read] for read in reads))
        through = op is None or isinstance(op, P.Mix)
        added[node] = frozenset({node}).union(*(added[read] for read in reads if through))
        if not isinstance(op, P.Mix) or len(reads) < 2:
            continue
        for slot, read in enumerate(reads):
            others = [added[other] for k, other in enumerate(reads) if k != slot]
            streams = above[read].intersection(frozenset().union(*others))
            if not streams or above[read] & added[read] & streams:
                continue
            stream = max(streams, key=place.__getitem__)
            inside = frozenset(n for n in (*above[read], read) if stream in above[n])
            found.append(Branch(node, slot, inside, _last(made, read)))
    return tuple(found)


def _last(made: dict[Node, tuple[P.Primitive | None, tuple[Node, ...]]], node: Node) -> Node | None:
    """Return the weights that end a branch, ignoring dropout and multiplications after them.

    The result is None if a node other than the sum of the branch also reads the output of the
    weights.
    """
    readers: dict[Node, int] = {}
    for _, reads in made.values():
        for read in reads:
            readers[read] = readers.get(read, 0) + 1
    while True:
        op, reads = made[node]
        if readers.get(node, 0) > 1:
            return None
        if isinstance(op, P.Fresh):
            return node
        passes = op is None or isinstance(op, P.Mask | P.Stop)
        through = passes or (isinstance(op, P.Mix) and len(reads) < 2)
        if not through or not reads:
            return None
        node = reads[0]


def streams(network: Network, found: tuple[Branch, ...]) -> list[list[Branch]]:
    """Return the branches of each residual stream, such as one for every stage of a ResNet.

    Two sums belong to the same stream if no weights, attention, concatenation or product lies
    between them outside their branches.
    """
    inside = {node for branch in found for node in branch.inside}
    by_sum: dict[Node, list[Branch]] = {}
    for branch in found:
        by_sum.setdefault(branch.sum, []).append(branch)
    leads: dict[Node, int] = {}
    lists: list[list[Branch]] = []
    for node, op, reads in network.operations:
        carries = not isinstance(op, P.Fresh | P.Attend | P.Join | P.Prod)
        before = [leads[r] for r in reads if carries and r in leads and r not in inside]
        if node in by_sum and not before:
            before = [len(lists)]
            lists.append([])
        if before and node not in inside:
            leads[node] = before[0]
        if node in by_sum:
            lists[before[0]] += by_sum[node]
    return lists


Place = tuple[str, str, int]  # ((name with * for numbers, primitive, operations since a sum))


def on_stream(network: Network, found: tuple[Branch, ...]) -> dict[Node, Place]:
    """Return {node on the stream after the first sum, such as a norm: its place}.

    The sums are included. A place is (name with * for numbers, kind of operation, number of
    operations since the last sum).
    """
    inside = {node for branch in found for node in branch.inside}
    sums = {branch.sum for branch in found}
    since: dict[Node, int] = {}
    places: dict[Node, Place] = {}
    for node, op, reads in network.operations:
        behind = [since[read] for read in reads if read in since]
        if node in inside or not (behind or node in sums):
            continue
        since[node] = 0 if node in sums else 1 + max(behind)
        places[node] = (re.sub(r"\d+", "*", str(owner(node))), type(op).__name__, since[node])
    return places


def grown_places(
    network: Network, found: tuple[Branch, ...], base: Network | None = None
) -> frozenset[Place]:
    """Return the places on the stream where the number of operations grows with the branches.

    :func:`on_stream` defines places. With a base, these are the places that occur more often in the
    larger network. Without a base, these are the places that occur at least twice and at least once
    for every two branches.
    """
    count = Counter(on_stream(network, found).values())
    if base is None:
        return frozenset(p for p, k in count.items() if k > 1 and 2 * k >= len(found))
    before = Counter(on_stream(base, branches(base)).values())
    return frozenset(p for p, k in count.items() if k > before[p])


def along_stream(
    network: Network, found: tuple[Branch, ...], places: frozenset[Place]
) -> frozenset[Node]:
    """Return the operations on the stream at the given places."""
    return frozenset(n for n, place in on_stream(network, found).items() if place in places)


def refuse_nested(found: tuple[Branch, ...]) -> None:
    """Reject branches that contain the sum of another branch, because they have no depth exponents.

    Raises: KcalcError if there is such a branch.
    """
    for branch in found:
        inner = next((other for other in found if other.sum in branch.inside), None)
        if inner is not None:
            raise KcalcError(
                f"the residual branch that node {branch.sum!r} adds contains another branch, which "
                f"node {inner.sum!r} adds. Depth exponents exist only for branches in sequence; "
                "use the same depth as the base"
            )
