"""Subnetworks: the single-entry single-exit regions of a network.

A subnetwork is a non-empty set of layers that satisfies three rules. (1) It reads exactly one
feature map from outside, which is the output of its *entry*. (2) It has no other edges from
outside. (3) Exactly one of its layers, its *exit*, is used outside or is a network output. Rule 3
is the strict reading, which reproduces [DKS eq. 20] and [TAT App. B.5].

In :func:`find_regions`, nodes are numbers 0 ... n-1 in topological order. ``parents[v]`` may
contain a node several times, and is empty at inputs. ``idom`` is the dominator tree from a virtual
root above the inputs, and ``ipdom`` is the post-dominator tree from a virtual sink below the
outputs. Both virtual nodes have the number n. ``A(s, t)`` contains the nodes reached backwards from
``t`` without passing ``s``. A pair (s, t) is a subnetwork iff ``s`` strictly dominates ``t`` and
``t`` post-dominates ``A(s, t)``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...foundation.printing import Shown
from ...foundation.process_state import cached_property
from ...network import layers as L
from ...network import primitives as P
from ...network.compose import require_network
from ...network.network import Network, Step

Node = Hashable


def _keeps_gaussian(op: P.Primitive) -> bool:
    if isinstance(op, P.Norm):
        return op.over == "channels"
    if isinstance(op, P.Window):
        return op.matrix is None
    return isinstance(op, P.Mix | P.Join | P.Reshape | P.Mask | P.Resize | P.Stop)


@dataclass(frozen=True)
class Regions:
    """``idom[v]`` (n for the virtual root) and the maximal regions as paths (entry, t_1, ..., t_k).

    Any two nodes of a path bound a region, and there are no other regions. Each node is an exit in
    at most one path.
    """

    idom: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]


class _Tree:
    """A tree to which leaves are added, with skip pointers; its root is ``size``.

    ``meet`` and ``spread`` cost O(log depth). Every node has an interval of labels, [``low``,
    ``high``]. ``least`` and ``most`` are the smallest and largest label on the way from a node to
    the target of its skip pointer, excluding the target.
    """

    def __init__(self, size: int) -> None:
        self.up, self.skip = ([size] * (size + 1) for _ in range(2))
        self.depth, self.low, self.high, self.least, self.most = (
            [0] * (size + 1) for _ in range(5)
        )

    def add(self, node: int, parent: int, low: int = 0, high: int = 0) -> None:
        """Add a leaf with labels ``low`` to ``high``."""
        skip, depth, least, most = self.skip, self.depth, self.least, self.most
        over = skip[parent]
        self.up[node] = parent
        depth[node] = depth[parent] + 1
        self.low[node], self.high[node] = low, high
        if parent != over and depth[parent] - depth[over] == depth[over] - depth[skip[over]]:
            skip[node] = skip[over]
            least[node] = min(low, least[parent], least[over])
            most[node] = max(high, most[parent], most[over])
        else:
            skip[node], least[node], most[node] = parent, low, high

    def meet(self, a: int, b: int) -> int:
        """The deepest common ancestor of two nodes."""
        up, skip, depth = self.up, self.skip, self.depth
        if depth[a] < depth[b]:
            a, b = b, a
        level = depth[b]
        while depth[a] > level:
            a = skip[a] if depth[skip[a]] >= level else up[a]
        while a != b:
            a, b = (skip[a], skip[b]) if skip[a] != skip[b] else (up[a], up[b])
        return a

    def spread(self, node: int, top: int) -> tuple[int, int]:
        """The smallest and largest label from ``node`` to its ancestor ``top``, without ``top``."""
        level = self.depth[top]
        low, high = self.low[node], self.high[node]
        while node != top:
            if self.depth[self.skip[node]] >= level:
                low, high = min(low, self.least[node]), max(high, self.most[node])
                node = self.skip[node]
            else:
                low, high = min(low, self.low[node]), max(high, self.high[node])
                node = self.up[node]
        return low, high


def _post_dominators(parents: Sequence[Sequence[int]], outputs: Iterable[int]) -> list[int]:
    """Return ``ipdom`` of every node, computed from the last node to the first."""
    size = len(parents)
    tree = _Tree(size)
    nearest: list[int] = [-1] * size  # the meet of the readers seen so far
    for node in outputs:
        nearest[node] = size
    for node in range(size - 1, -1, -1):
        tree.add(node, nearest[node])
        for parent in parents[node]:
            seen = nearest[parent]
            nearest[parent] = node if seen < 0 or seen == node else tree.meet(seen, node)
    return nearest


def _euler(ipdom: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the first and last preorder number in every subtree of the post-dominator tree."""
    size = len(ipdom)
    weight = [1] * (size + 1)
    # readers come later, so a subtree is complete when its root is reached
    for node in range(size):
        weight[ipdom[node]] += weight[node]
    first, free = [0] * (size + 1), [1] * (size + 1)
    for node in range(size - 1, -1, -1):
        above = ipdom[node]
        first[node] = free[above]
        free[above] += weight[node]
        free[node] = first[node] + 1
    return first, [f + w - 1 for f, w in zip(first, weight, strict=True)]


def find_regions(parents: Sequence[Sequence[int]], outputs: Iterable[int]) -> Regions:
    """Find dominators and maximal regions in O((nodes + edges) log nodes) time.

    A(idom t, t) without ``t`` is the union of A(idom d, d) over ``d`` on the dominator path from
    each parent of ``t`` up to ``idom t``. So the span of Euler numbers over that set follows from
    the spans of earlier nodes. ``t`` post-dominates the set iff this span lies in the interval of
    ``t``; otherwise no region ends at ``t``. Regions that follow one another form paths.
    """
    size = len(parents)
    ipdom = _post_dominators(parents, outputs)
    first, last = _euler(ipdom)
    tree = _Tree(size)
    closed = [False] * (size + 1)
    for node, above in enumerate(parents):
        top = above[0] if above else size
        for parent in above:
            if parent != top:
                top = tree.meet(top, parent)
        low = high = first[node]
        for parent in set(above) if len(above) > 1 else ():
            if parent != top:
                least, most = tree.spread(parent, top)
                low, high = min(low, least), max(high, most)
        closed[node] = top != size and first[node] <= low and high <= last[node]
        tree.add(node, top, low, high)
    idom = tree.up
    follows = [idom[above] == node for node, above in enumerate(ipdom)]
    paths: list[tuple[int, ...]] = []
    for node in range(size):
        entry = idom[node]
        if not closed[node] or (closed[entry] and ipdom[entry] == node):
            continue
        path = [entry, node]
        while follows[path[-1]]:
            path.append(ipdom[path[-1]])
        paths.append(tuple(path))
    return Regions(tuple(idom[:size]), tuple(paths))


# -- regions of a network --------------------------------------------------------------------------


@dataclass(frozen=True)
class Subnetwork(Shown):
    """The layers between the feature map of ``entry`` and the layer ``exit``.

    Attributes
    ----------
    entry
        A node that is not one of the layers.
    exit
        One of the layers.
    network
        The induced network with one input and one output, which any kcalc function accepts.

    """

    entry: Node
    exit: Node
    within: Network

    @cached_property
    def layers(self) -> tuple[Node, ...]:
        """The nodes on paths from ``entry`` to ``exit``, without entry, in topological order."""
        order: dict[Node, None] = {}
        # no recursion, because networks may be deep
        stack: list[tuple[Node, bool]] = [(self.exit, False)]
        while stack:
            node, done = stack.pop()
            if node in order or node == self.entry:
                continue
            if done:
                order[node] = None
            else:
                stack.append((node, True))
                stack.extend((parent, False) for parent in reversed(self.within.parents(node)))
        return tuple(order)

    @cached_property
    def network(self) -> Network:
        """The subnetwork as a separate network, with an Input in place of ``entry``.

        If the feature map of ``entry`` is Gaussian, ``entry`` becomes an Affine that reads the
        Input.
        """
        width = self.within.features[self.entry]
        first: list[Step] = [
            (
                self.entry,
                L.Input(width)
                if self.within.parents(self.entry)
                else self.within.layer(self.entry),
                (),
            )
        ]
        if self._is_fresh():
            name = f"input of {self.entry}"
            while name in self.layers or name == self.entry:
                name += "'"
            first = [(name, L.Input(width), ()), (self.entry, L.Affine(width), (name,))]
        inner: list[Step] = [
            (node, self.within.layer(node), self.within.parents(node)) for node in self.layers
        ]
        network = Network.from_steps([*first, *inner], [self.exit])
        return network.with_notes(note for note in self.within.notes if note.node in self.layers)

    def _is_fresh(self) -> bool:
        """Whether no activation or input lies between ``entry`` and the weights before it."""
        steps = {step.node: step for step in self.within.operations}
        seen, waiting = {self.entry}, [self.entry]
        while waiting:
            _, op, reads = steps[waiting.pop()]
            if isinstance(op, P.Fresh):
                continue
            if not (op is None or _keeps_gaussian(op)):
                return False
            waiting.extend(node for node in reads if node not in seen)
            seen.update(reads)
        return True

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data: entry, exit and layers.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {
            "entry": str(self.entry),
            "exit": str(self.exit),
            "layers": [str(node) for node in self.layers],
        }

    def _rows(self) -> list[tuple[str, str]]:
        return [
            ("layer of the subnetwork", "kind"),
            *((str(node), type(self.within.layer(node)).__name__) for node in self.layers),
        ]

    def __repr__(self) -> str:
        return f"Subnetwork({self.entry!r} -> {self.exit!r}, {len(self.layers)} layers)"


def network_regions(network: Network) -> tuple[list[Node], list[tuple[int, ...]], Regions]:
    """Return (nodes in order, indices of their parents in slot order, regions) of a network."""
    require_network(network)
    number = {node: k for k, node in enumerate(network)}
    parents = [tuple(map(number.__getitem__, above)) for _, _, above in network.steps()]
    return list(number), parents, find_regions(parents, [number[node] for node in network.outputs])
