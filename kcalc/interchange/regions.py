"""Shaped networks in a model: which operations they replace, and what they read of the rest."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from ..foundation.errors import KcalcError
from ..foundation.process_state import cached_property
from ..network import layers as L
from ..network.network import Network
from .layout import channel_axes, keeps_locations
from .model_reading import Reading
from .trace import (
    Drop,
    Linear,
    NotRead,
    Op,
    Part,
    Pass,
    Pointwise,
    Pooling,
    Reorder,
    Repeat,
    Reshape,
    Stopped,
    Transpose,
)

Node = Hashable
REMOVABLE = (L.Normalisation, L.Scale, L.Dropout, L.Identity)
PICKS = "it takes some of the tokens"
LAYOUT = (Reshape, Transpose, Pass, Stopped, Reorder, Repeat)


class Regions:
    """The nodes of shaped networks beside the operations of the model that they stand for.

    ``networks``: shaped networks whose inputs are inputs of the model or nodes that are left alone;
    ``left_alone``: nodes that stay as they are, and are not removed.
    """

    def __init__(
        self, reading: Reading, networks: tuple[Network, ...], left_alone: Mapping[Node, str]
    ) -> None:
        assert reading.trace is not None
        self.reading, self.trace, self.networks = reading, reading.trace, networks
        self.model = reading.unmerged
        self.ops: dict[str, Op] = {op.name: op for op in self.trace.ops}
        self.axes = channel_axes(self.trace)
        self.steps = {
            node: (layer, parents)
            for network in networks
            for node, layer, parents in network.steps()
            if not isinstance(layer, L.Input)
        }
        self.left_alone = {**left_alone, **self._picks()}
        self.steps = {n: step for n, step in self.steps.items() if n not in self.left_alone}
        self._check_pools()
        self.inputs = {node for network in networks for node in network.inputs}
        self.ends = self._ends()

    def _picks(self) -> dict[Node, str]:
        """Nodes that take some of the tokens as the model does, such as its last one."""
        return {
            node: PICKS
            for node, (layer, _) in self.steps.items()
            if isinstance(layer, L.TokenMix)
            and isinstance(self.ops.get(str(node)), Part)
            and layer == self.model.layer(node)
        }

    def _check_pools(self) -> None:
        """Refuse pools of another kind than the model's.

        Raises: KcalcError naming the node.
        """
        for node, (layer, _) in self.steps.items():
            op = self.ops.get(str(node))
            if isinstance(layer, L.Pool) and isinstance(op, Pooling) and layer.kind != op.kind:
                raise KcalcError(
                    f"node {node!r} takes the {op.kind} in the model and is a {layer.kind} in the "
                    f"shaped network, and a new model has the model's pools; shape the network "
                    f"with Pool({op.kind!r}) there, or change the model"
                )

    @cached_property
    def whole(self) -> bool:
        """Whether one network leads from all inputs of the model to all its outputs."""
        if len(self.networks) != 1 or self.left_alone:
            return False
        (network,) = self.networks
        if not all(node in self.model for node in network):
            return True  # with nodes of its own, as methods add them
        unread = any(node not in self.steps for node in self.model.nodes_of(L.Opaque))
        ends = all(self.past(node) in network.outputs for node in self.model.outputs)
        return not unread and ends and set(network.inputs) == set(self.model.inputs)

    def _ends(self) -> dict[str, Node]:
        """{output of the model: the node in its place}, where that is one that a method added."""
        if not self.whole or self.outputs is not None:
            return {}
        pairs = zip(self._outputs(), self.networks[0].outputs, strict=True)
        found = {output: node for output, node in pairs if self.resolved(output) != node}
        for output in found:
            op = self.ops[output]
            if isinstance(op, Transpose) and not self._keeps(op):
                raise KcalcError(
                    f"{output!r} exchanges the axes of locations of an output behind which the "
                    f"shaped network has a node of its own; transpose the output outside the model"
                )
        return found

    def _outputs(self) -> tuple[str, ...]:
        """The outputs of the model in the order in which the network that was read has them."""
        names = {self.reading.places.get(name, name): name for name in self.trace.outputs}
        order = self.model.outputs
        alike = len(names) == len(self.trace.outputs) and set(names) == set(order)
        return tuple(names[node] for node in order) if alike else self.trace.outputs

    @property
    def outputs(self) -> tuple[Node, ...] | None:
        """The outputs of a network that has others besides those of the model; None else."""
        if not self.whole or len(self.networks[0].outputs) == len(self.trace.outputs):
            return None
        return self.networks[0].outputs

    @cached_property
    def removed(self) -> list[Node]:
        """Nodes of the model that shaped networks do without: norms, factors, dropout."""
        return [
            node
            for node in self.model
            if node not in self.steps and node not in self.left_alone and self._goes(node)
        ]

    @cached_property
    def kept(self) -> list[Node]:
        """Nodes of the model that stay as they are."""
        gone = set(self.removed)
        inputs = set(self.model.inputs)
        return [n for n in self.model if not (n in self.steps or n in gone or n in inputs)]

    def _goes(self, node: Node) -> bool:
        place = self.past(node)
        return place != node and (place in self.steps or place in self.inputs)

    def past(self, node: Node) -> Node:
        """The node itself, or the one before it that is not removed."""
        while (
            node not in self.steps
            and node not in self.left_alone
            and node in self.model
            and isinstance(self.model.layer(node), REMOVABLE)
        ):
            (node,) = self.model.parents(node)
        return node

    def resolved(self, name: str) -> Node | None:
        """The node whose feature map an operation returns in the shaped model."""
        node = self.reading.places.get(name)
        if node is None or node in self.steps or node not in self.model:
            return node
        return self.past(node) if self._goes(node) else node

    def replacing(self, name: str) -> Node | None:
        """The node that takes the place of an operation; None where the operation stays.

        Reshapes, transposes and the like stay as they are, behind nodes that are exchanged.
        """
        if name in self.ends and not isinstance(self.ops[name], NotRead):
            return self.ends[name]
        op, place = self.ops.get(name), self.reading.places.get(name)
        if op is None or (place != name and isinstance(op, (*LAYOUT, NotRead))):
            return None
        node = self.resolved(name)
        if node is None or (node not in self.steps and node == place):
            return None
        if place != name:
            self._check_order(op, str(place))
        return node

    def _check_order(self, op: Op, end: str) -> None:
        """Refuse arrays whose locations stand in another order than those of their node.

        Raises: KcalcError naming the operation that changes it.
        """
        waiting, seen = [op], {op.name}
        while waiting:
            here = waiting.pop()
            if isinstance(here, Transpose) and not self._keeps(here):
                raise KcalcError(
                    f"{here.name!r} exchanges the axes of locations before {op.name!r}, which is "
                    f"exchanged together with what is before it; leave {op.name!r} out of the "
                    f"shaped part, or transpose the input instead"
                )
            if here.name != end and isinstance(here, (*LAYOUT, Pointwise, Drop)):
                waiting += [self.ops[name] for name in here.reads if name not in seen]
                seen |= set(here.reads)

    def _keeps(self, op: Transpose) -> bool:
        return keeps_locations(op, self.axes[op.reads[0]])

    def sources(self, node: Node) -> Iterator[tuple[str, Any]]:
        """The values that a shaped node reads.

        ("node", another shaped node) or ("program", an operation of the model).
        """
        _, parents = self.steps[node]
        op = self.ops.get(str(node))
        for place, parent in enumerate(parents):
            found = None if op is None else self._found(op, parent, place)
            if parent in self.steps and (found is None or self._plain(found)):
                yield "node", parent
            else:
                yield "program", str(parent) if found is None else found

    def channels(self, name: str, reader: Node) -> int:
        """The axis of an operation's output on which a shaped node reads channels.

        Raises: KcalcError where no operation tells.
        """
        op, known = self.ops.get(str(reader)), self.axes.get(name)
        rank = len(self.ops[name].shape)
        if isinstance(op, Linear) and op.reads[0] == name:
            return op.axis
        if known is None and op is not None and len(op.shape) == rank:
            known = self.axes.get(op.name)
        if known is None and rank > 2:
            raise KcalcError(
                f"{name!r} has no axis that is known to hold channels, so that {reader!r} cannot "
                f"read it; leave {reader!r} out of the shaped part"
            )
        return min(1, rank - 1) if known is None else known

    def _found(self, op: Op, parent: Node, place: int) -> str | None:
        """The last operation before ``op`` that returns the feature map of ``parent``."""
        if not isinstance(op, Pointwise):
            first = op.reads[place] if place < len(op.reads) else None
            if first is not None and self.resolved(first) == parent:
                return self._with_examples(first, parent)
        waiting, seen = list(op.reads), set()
        while waiting:
            name = waiting.pop(0)
            if name in seen:
                continue
            seen.add(name)
            if self.resolved(name) == parent:
                if isinstance(op, Pointwise):
                    self._check_order(op, name)
                return name
            if isinstance(self.ops[name], (*LAYOUT, Pointwise)):
                waiting += self.ops[name].reads
        return None

    def _with_examples(self, name: str, parent: Node) -> str:
        """The array before reshapes that make examples of locations, as rows of a matrix."""
        op = self.ops[name]
        while isinstance(op, Reshape):
            before = self.ops[op.reads[0]]
            if before.shape[:1] == op.shape[:1] or self.resolved(before.name) != parent:
                break
            op = before
        return op.name

    def _plain(self, name: str) -> bool:
        """Whether an array has the locations of the node that it shows in their order."""
        while True:
            op = self.ops[name]
            if self.replacing(name) is not None:
                return True
            if not isinstance(op, LAYOUT) or isinstance(op, NotRead):
                return False
            if isinstance(op, Transpose) and not self._keeps(op):
                return False
            name = op.reads[0]


class Places:
    """Where nodes of shaped networks stand in a model's program.

    ``at``: {operation of the model: the key of its output in the program}.
    """

    def __init__(self, regions: Regions) -> None:
        self.regions = regions
        self.at: dict[str, Any] = {}

    def key(self, name: Any) -> Any:
        """The key of an operation's output. Raises: KcalcError where it has none."""
        if str(name) not in self.at:
            raise KcalcError(
                f"node {name!r} of the shaped network reads or replaces an array that no single "
                f"operation of the model makes (as inside of a loop); leave that layer out of the "
                f"shaped part"
            )
        return self.at[str(name)]

    def read_by(self, node: Node, seen: set[Node]) -> list[Any]:
        """The keys of what a node of a shaped network depends on."""
        if node in seen:
            return []
        seen.add(node)
        if node not in self.regions.steps:
            return [self.key(node)]
        found: list[Any] = []
        for kind, source in self.regions.sources(node):
            found += [self.key(source)] if kind == "program" else self.read_by(source, seen)
        return found


def regions_of(reading: Reading, shaping: Any, law: str) -> Regions:
    """The regions of a shaping, or of anything that has a ``network``.

    ``law``: the initial weights that are asked for.

    Raises: KcalcError for readings without the operations of the model, and for weights of the
    model behind channels in an order that networks do not have.
    """
    if reading.trace is None:
        raise KcalcError(
            "the reading has no operations of the model (it is a copy from a pickle, or a network "
            "of kcalc's own); read the model again, kc.read(model, example)"
        )
    ordered = next((op.name for op in reading.trace.ops if isinstance(op, Reorder)), None)
    if law == "keep" and ordered is not None:
        raise KcalcError(
            f"{ordered!r} puts channels in another order, which a network does not show, so that "
            f"the model's weights cannot be kept; leave weights= out to draw new ones"
        )
    networks = getattr(shaping, "networks", None)
    left_alone = dict(getattr(shaping, "left_alone", {}))
    return Regions(reading, (shaping.network,) if networks is None else networks, left_alone)
