"""Compare the network that an edited model must compute with the network that it computes now."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy as sp

from ..activations import X
from ..foundation.errors import KcalcError
from ..foundation.process_state import cached_property
from ..network import layers as L
from ..network.network import Network, require_numbers
from .fusion import Constant, simplified
from .model_reading import Reading
from .trace import Drop, Held, Op, Pass, Pointwise, Reorder, Repeat, Reshape, Stopped, Transpose

Node = Hashable
REMOVABLE = (L.Normalisation, L.Scale, L.Dropout, L.Identity)
LAYOUT = (Reshape, Transpose, Pass, Reorder, Repeat, Drop)
PASSED = (*LAYOUT, Pointwise, Stopped)  # operations that may belong to the next node


class Target:
    """The network that an edited model must compute, and the network that it computes now.

    ``steps``: {node: (layer, parents)} of the shaped network; ``left_alone``: {node that stays
    unchanged: reason}.
    """

    def __init__(
        self, reading: Reading, networks: Sequence[Network], left_alone: Mapping[Node, str]
    ) -> None:
        assert reading.trace is not None
        for network in networks:
            require_numbers(network)
        self.reading, self.model = reading, reading.unmerged
        self.ops: dict[str, Op] = {op.name: op for op in reading.trace.ops}
        steps = {
            node: (layer, parents)
            for network in networks
            for node, layer, parents in network.steps()
            if not isinstance(layer, L.Input)
        }
        self.left_alone = left_alone
        self.steps = {node: step for node, step in steps.items() if node not in left_alone}
        self.inputs = {node for network in networks for node in network.inputs}
        self.gone = {
            node
            for node in self.model
            if node not in self.steps and node not in left_alone and self._goes(node)
        }
        self._check()

    def _check(self) -> None:
        """Check that edits can turn the model's network into the shaped network.

        Raises: KcalcError naming the node.
        """
        for node, (layer, parents) in self.steps.items():
            if node not in self.model:
                raise KcalcError(
                    f"node {node!r} of the shaped network is not an operation of the model, and "
                    "edits cannot add operations; use a method that keeps the nodes of the network "
                    "that was read, or shape reading.network, which needs no edits"
                )
            before = self.model.layer(node)
            if _as_edited(before) != _as_edited(layer):
                raise KcalcError(
                    f"node {node!r} is {before} in the model, but {layer} in the shaped network. "
                    "Edits can only remove layers or change activations, the weights of sums and "
                    "the scales of initial weights; leave everything else as it was read"
                )
            known = tuple(map(self.past, self.model.parents(node)))
            if known != parents:
                read, reads = (", ".join(map(repr, nodes)) for nodes in (known, parents))
                raise KcalcError(
                    f"node {node!r} reads {reads} in the shaped network, but {read} in the "
                    "model; keep the edges that were read"
                )

    def _goes(self, node: Node) -> bool:
        place = self.past(node)
        return place != node and (place in self.steps or place in self.inputs)

    def past(self, node: Node) -> Node:
        """Return the node or, if the shaped network lacks it, its nearest remaining ancestor."""
        while (
            node not in self.steps
            and node not in self.left_alone
            and node in self.model
            and isinstance(self.model.layer(node), REMOVABLE)
        ):
            (node,) = self.model.parents(node)
        return node

    def made_by(self, node: Node) -> list[list[str]]:
        """Return the operations that compute a node's feature map, as one list per computation.

        A model may compute the same feature map twice, as in ``b(relu(x)) + c(relu(x))``. The first
        operation in each list computes the values, and the others return these values unchanged.
        Computations that no other node reads directly are excluded.
        """
        lists: dict[str, list[str]] = {}
        first: dict[str, str] = {}
        for name, place in self.reading.places.items():
            if place == node:
                first[name] = first.get(self._handed_on(self.ops[name]), name)
                lists.setdefault(first[name], []).append(name)
        read = self.reading.read_at.get(node, (str(node),))
        return [lists.get(name, [name]) for name in dict.fromkeys(first.get(n, n) for n in read)]

    def _handed_on(self, op: Op) -> str:
        """Return the operation whose values ``op`` returns unchanged, or "" if there is none."""
        if isinstance(op, LAYOUT):
            return op.reads[0]
        places = self.reading.places
        same = {name for name in op.reads if places.get(name) == places[op.name]}
        if not isinstance(op, Pointwise) or len(same) != 1:
            return ""
        try:
            values = (X if name in same else self._number(name) for name in op.reads)
            returned = simplified(op.function(*values))
        except (KcalcError, TypeError, ValueError, ArithmeticError):
            return ""
        return same.pop() if returned == X else ""

    def _number(self, name: str) -> Any:
        """Return the number that an operation returns, or a symbol if it returns an array."""
        op = self.ops[name]
        if isinstance(op, Pointwise) and name not in self.reading.places:
            return simplified(op.function(*map(self._number, op.reads)))
        number = Constant(op).number if isinstance(op, Held) else None
        return sp.Symbol(name, real=True) if number is None else number

    def read_from(self, node: Node, name: str) -> list[list[str]]:
        """Return, for each parent, the operations through which operation ``name`` reads it."""
        parents = self.model.parents(node)
        found = {parent: [] for parent in parents}
        for read, place in self._within(node, name):
            if place in found:
                found[place].append(read)
        return [found[parent] or [names[0] for names in self.made_by(parent)] for parent in parents]

    def _within(self, node: Node, name: str) -> Iterator[tuple[str, Node | None]]:
        """Yield (operation, its node) for all operations between a node and its parents.

        The parents are included. ``name``: the operation that returns the node's feature map.
        """
        parents, op = self.model.parents(node), self.ops.get(name)
        waiting = [] if op is None else list(op.reads)
        seen = {name}
        while waiting:
            read = waiting.pop(0)
            if read in seen:
                continue
            seen.add(read)
            place = self.reading.places.get(read)
            if place not in self.model:  # the node reaches no output
                place = None
            if place in parents:
                yield read, place
            elif place is None or {*self.model.parents(place)} <= {*parents}:
                yield read, place
                waiting += self.ops[read].reads if isinstance(self.ops[read], PASSED) else ()

    @cached_property
    def parts(self) -> set[Node]:
        """Return the nodes whose feature maps are also intermediate values inside another node.

        In ``b(2 * x) + c(relu(2 * x))``, for example, relu(2 x) is read as one activation of x. The
        node 2 x is inside it, although it is not its parent.
        """
        found: set[Node] = set()
        for node in self.model:
            parents = {node, *self.model.parents(node)}
            for names in self.made_by(node):
                found |= {place for _, place in self._within(node, names[0])} - parents - {None}
        return found


def _as_edited(layer: L.Layer) -> Any:
    """Return the part of a layer that edits never change: its kind and some of its fields."""
    if isinstance(layer, L.Nonlinear | L.Sum | L.Scale):
        return type(layer)
    if isinstance(layer, L.Affine):
        layer = replace(layer, sigma_w=1, sigma_b=0, bias=True, standardised=False)
        return replace(layer, features=None)
    if isinstance(layer, L.Embedding):
        return replace(layer, sigma=1)
    return layer
