"""A network: an immutable, validated view of a directed acyclic graph of layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import networkx as nx
import sympy as sp

from ..activations import Activation
from ..foundation.errors import GraphError, KcalcError, glimpse, unknown
from ..foundation.extras import MissingExtra
from ..foundation.guests import DRAWINGS, MissingGuest
from ..foundation.plain_arguments import is_key, items, mapping, text
from ..foundation.process_state import cached_property
from ..maps.maps import Assumption
from . import layers as L
from .blocks import Block, cut_nodes, find_blocks, same_structure
from .frozen_graph import frozen_graph, notes_of
from .notes import CARRIED, Note
from .preactivation import preactivated_steps
from .primitives import Count, Fresh, Inner, Join, Norm, Operation, Post, lowered, owner
from .validation import (
    Step,
    check_outputs,
    infer_features,
    ordered_nodes,
    read_nodes,
    read_steps,
    readers_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    class SomeLayer(L.Layer):
        """A layer for which the caller knows the kind and therefore the fields."""

        def __getattr__(self, name: str) -> Any: ...


Node = Hashable


class Network:
    """Directed acyclic graph whose nodes have a ``layer`` and whose edges have a ``slot``.

    Weights are never shared between nodes.

    Parameters
    ----------
    graph
        An ``nx.DiGraph`` with a node attribute ``layer``. The edge attribute ``slot`` orders the
        inputs of a node. It may be omitted for a single input. It is a tuple of slots if a node is
        read twice, as in ``x + x``.
    outputs
        The output nodes; by default all nodes that no other node reads.
    notes
        The differences from the model that the network was read from. Results list them among their
        ``assumptions``, and networks derived from this one keep them. Comparisons of networks
        ignore them.

    Raises
    ------
    GraphError
        If there is a cycle, a node without a layer, a wrong number of inputs, a missing or repeated
        slot, an input that no node reads, a dangling node, or a mismatch of channel counts.

    """

    def __init__(self, graph: nx.DiGraph, outputs: Iterable[Node] | None = None) -> None:
        layers, parents = read_nodes(graph)
        self._settle(layers, parents, graph._succ, outputs)  # pyright: ignore  # views are several times slower
        self.notes = notes_of(graph)

    @classmethod
    def from_steps(cls, steps: Iterable[Step], outputs: Iterable[Node] | None = None) -> Network:
        """Build a network from (node, layer, parents in slot order) triples in any order.

        Parameters
        ----------
        steps
            Triples (node, layer, parents).
        outputs
            The output nodes; None selects the nodes that no other node reads.

        Returns
        -------
        Network
            The network.

        Raises
        ------
        GraphError
            For the same errors as :class:`Network`, a node defined twice, or a node that reads an
            unknown node.

        """
        network = cls.__new__(cls)
        # build it directly: going through a graph takes several times longer than all checks
        layers, parents = read_steps(steps)
        network._settle(layers, parents, readers_of(parents), outputs)
        return network

    def _settle(
        self,
        layers: Mapping[Node, L.Layer],
        parents: Mapping[Node, tuple[Node, ...]],
        readers: Mapping[Node, Collection[Node]],
        outputs: Iterable[Node] | None,
    ) -> None:
        """Check the network and store it in topological order."""
        order = ordered_nodes(readers)
        self._layers: dict[Node, L.Layer] = {node: layers[node] for node in order}
        self._parents: dict[Node, tuple[Node, ...]] = {node: parents[node] for node in order}
        self.outputs: tuple[Node, ...] = check_outputs(self._layers, readers, outputs)
        self.removed: tuple[Node, ...] = ()
        self.notes: tuple[Note, ...] = ()
        self.name: str = ""
        self._features = infer_features(self.steps())

    # -- access ------------------------------------------------------------------------------------

    @cached_property
    def graph(self) -> nx.DiGraph:
        """Frozen graph with frozen attributes; ``graph.copy()`` can be changed."""
        return frozen_graph(self.steps(), self.notes)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes."""
        return self.nodes_of(L.Input)

    def steps(self) -> Iterator[Step]:
        """Iterate over (node, layer, parents in slot order), every node after its parents.

        Returns
        -------
        Iterator[Step]
            One triple per node.

        """
        layers = self._layers
        return zip(layers, layers.values(), map(self._parents.__getitem__, layers), strict=True)

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """Primitives that make up the network; calculi interpret them.

        See :mod:`kcalc.network.primitives`.
        """
        return tuple(chain.from_iterable(self._lowered.values()))

    @cached_property
    def _lowered(self) -> dict[Node, tuple[Operation, ...]]:
        return dict(zip(self._layers, lowered(self.steps(), self._features), strict=True))

    def operations_of(self, node: Node) -> tuple[Operation, ...]:
        """Return the operations of one node.

        Parameters
        ----------
        node
            The label of a node.

        Returns
        -------
        tuple[Operation, ...]
            Its operations, in order of evaluation.

        """
        self.layer(node)
        return self._lowered[node]

    def layer(self, node: Node) -> SomeLayer:
        """Return the layer of a node.

        Parameters
        ----------
        node
            The label of a node.

        Returns
        -------
        SomeLayer
            The layer.

        Raises
        ------
        KcalcError
            If there is no such node. The message lists similar names.

        """
        if not is_key(node, self._layers):
            raise unknown("node", node, map(str, self._layers))
        return cast("SomeLayer", self._layers[node])

    def _check_nodes(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self.layer(node)

    def parents(self, node: Node) -> tuple[Node, ...]:
        """Return the nodes that a node reads, in slot order.

        Parameters
        ----------
        node
            The label of a node.

        Returns
        -------
        tuple[Node, ...]
            Labels of nodes.

        """
        self.layer(node)
        return self._parents[node]

    def nodes_of(self, *kinds: type[L.Layer]) -> tuple[Node, ...]:
        """Return the nodes whose layer is of one of the given kinds, in order.

        Parameters
        ----------
        *kinds
            Classes of layers.

        Returns
        -------
        tuple[Node, ...]
            Labels of nodes.

        Raises
        ------
        KcalcError
            If an argument is not a class of layers.

        """
        for kind in kinds:
            if not isinstance(kind, type) or not issubclass(kind, L.Layer):
                raise KcalcError(
                    f"a kind of layer must be a class such as kc.layers.Affine, got {glimpse(kind)}"
                )
        found = [nodes for kind, nodes in self._by_kind.items() if issubclass(kind, kinds)]
        if len(found) < 2:
            return tuple(found[0]) if found else ()
        return tuple([node for node, layer in self._layers.items() if isinstance(layer, kinds)])

    @cached_property
    def _by_kind(self) -> dict[type[L.Layer], list[Node]]:
        found: defaultdict[type[L.Layer], list[Node]] = defaultdict(list)
        for node, layer in self._layers.items():
            found[type(layer)].append(node)
        return found

    @property
    def activations(self) -> tuple[Activation, ...]:
        """Distinct activations, in the order of the network."""
        return tuple(
            dict.fromkeys(op.activation for _, op, _ in self.operations if isinstance(op, Post))
        )

    @property
    def features(self) -> Mapping[Node, int | None]:
        """Number of output channels of each node; None if unknown."""
        return MappingProxyType(self._features)

    @property
    def free_symbols(self) -> set[sp.Symbol]:
        """SymPy symbols in the layers."""
        distinct = {id(layer): layer for layer in self._layers.values()}
        return set().union(*(layer.free_symbols for layer in distinct.values()))

    def blocks(self) -> tuple[Block, ...]:
        """Cut the network at the feature maps through which all paths pass.

        Consecutive equal pieces are grouped into repetitions.

        Returns
        -------
        tuple[Block, ...]
            The pieces, from first to last.

        """
        return self._blocks

    @cached_property
    def _blocks(self) -> tuple[Block, ...]:
        return find_blocks(tuple(self.steps()), self.outputs)

    def cut_nodes(self) -> tuple[Node, ...]:
        """Return the nodes that lie on every path from an input to an output, in order.

        Returns
        -------
        tuple[Node, ...]
            Labels of nodes.

        """
        return tuple(cut_nodes(tuple(self.steps()), self.outputs))

    def isomorphic(self, other: Network) -> bool:
        """Whether relabelling nodes turns one network into the other.

        The addends of a Sum may be permuted.

        Parameters
        ----------
        other
            The other :class:`kcalc.Network`.

        Returns
        -------
        bool
            True if there is such a relabelling.

        """
        require_network(other)
        return same_structure(
            tuple(self.steps()), self.outputs, tuple(other.steps()), other.outputs
        )

    def draw(self, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw the graph from top to bottom.

        Parameters
        ----------
        ax
            The Matplotlib Axes to draw on; None creates new axes.
        **options
            Additional plot options.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        return DRAWINGS["Network"](self, ax=ax, **options)

    # -- derived networks --------------------------------------------------------------------------

    def map_layers(self, change: Callable[[Node, Any], L.Layer], *kinds: type[L.Layer]) -> Network:
        """Replace layers by ``change(node, layer)`` and return the new network.

        If kinds are given, only layers of these kinds are replaced.

        Parameters
        ----------
        change
            A function of a node and its layer that returns the new layer.
        *kinds
            Classes of layers.

        Returns
        -------
        Network
            A new network.

        Raises
        ------
        KcalcError
            If ``change`` does not return a layer, or if a kind is not a class of layers.

        """
        if not callable(change):
            raise KcalcError(
                f"change must be a function (node, layer) -> layer, got {glimpse(change)}"
            )
        changed = {
            node: new
            for node in (self.nodes_of(*kinds) if kinds else self._layers)
            if (new := change(node, self._layers[node])) is not self._layers[node]
        }
        if not changed:
            return self
        layers = self._layers | changed
        if all(type(layers[n]) is type(self._layers[n]) is L.Nonlinear for n in changed):
            return self._same_structure(layers)
        return self._kept(
            Network.from_steps(
                ((node, layers[node], parents) for node, _, parents in self.steps()), self.outputs
            )
        )

    def _same_structure(self, layers: dict[Node, L.Layer]) -> Network:
        """Copy the network, reusing checks and channel counts; only activations may differ."""
        other = Network.__new__(Network)
        other._layers, other._parents, other.outputs, other._features = (
            layers,
            self._parents,
            self.outputs,
            self._features,
        )
        other._by_kind = self._by_kind
        return self._kept(other)

    def _kept(self, other: Network) -> Network:
        """Copy the removals, notes and name of this network to a new network."""
        other.removed, other.notes, other.name = self.removed, self.notes, self.name
        return other

    def with_notes(self, notes: Iterable[Note]) -> Network:
        """Replace the notes on the differences between the network and a model.

        ``with_notes([])`` removes them.

        Parameters
        ----------
        notes
            The new notes.

        Returns
        -------
        Network
            A new network.

        Raises
        ------
        KcalcError
            If an entry is not a :class:`kcalc.network.notes.Note`.

        """
        given = items(notes, "notes")
        if not all(isinstance(note, Note) for note in given):
            raise KcalcError(
                "notes must come from a reading (r.notes) or another network (net.notes); pass [] "
                "to remove them"
            )
        other = self._same_structure(self._layers)
        other.notes = tuple(note for note in given if note.level in CARRIED)
        return other

    def written_out(self, whole: type[L.Layer] | None = None) -> Network:
        """Expand composite layers into their parts.

        Each layer that consists of several primitives is replaced by layers of one primitive each.
        Layers of the class ``whole`` are kept.

        The last part keeps the node's label; the other parts are called ``"<label>.1"``,
        ``"<label>.2"``, ... If there are no composite layers, return the network itself. A layer
        with its own primitive, such as Positions, is not expanded.

        Parameters
        ----------
        whole
            A class of layers to keep; None expands all of them.

        Returns
        -------
        Network
            A new network, or the network itself.

        """
        kept = () if whole is None else self.nodes_of(whole)
        alike = {  # many nodes share a few layers
            (id(layer), tuple(map(self._features.__getitem__, parents))): node
            for node, layer, parents in self.steps()
        }
        if all(len(self.operations_of(node)) == 1 for node in alike.values()):
            return self
        several = {node.node for node, _, _ in self.operations if isinstance(node, Inner)}
        several.difference_update(kept)
        made = {
            place: L.layer_of(op)
            for node in several
            for place, op, _ in self.operations_of(node)
            if op is not None
        }
        layers = {place: layer for place, layer in made.items() if layer is not None}
        several -= {owner(place) for place in made.keys() - layers.keys()}
        if not several:
            return self
        labels: dict[Node, Node] = {}
        steps: list[Step] = []
        for node, layer, parents in self.steps():
            if node not in several:
                steps.append((node, layer, parents))
                continue
            for place, _, reads in self.operations_of(node):
                if isinstance(place, Inner):
                    labels[place] = f"{node}.{place.index + 1}"
                    while labels[place] in self:
                        labels[place] = f"{labels[place]}'"
                steps.append(
                    (
                        labels.get(place, place),
                        layers[place],
                        tuple(labels.get(p, p) for p in reads),
                    )
                )
        return self._kept(Network.from_steps(steps, self.outputs))

    def named(self, name: str) -> Network:
        """Return the network with a name, which plot legends and the ``repr`` of maps show.

        Parameters
        ----------
        name
            The name to show; None derives one.

        Returns
        -------
        Network
            A new network.

        Raises
        ------
        KcalcError
            If the name is not a string.

        """
        other = self.with_notes(self.notes)
        other.name = text(name, "the name of a network", empty=True)
        return other

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Notes of the network as assumptions; every result of the network includes them."""
        return tuple(note.assumption for note in self.notes if CARRIED[note.level])

    def subs(self, values: Mapping[Any, Any]) -> Network:
        """Replace SymPy symbols (or their names) in the layers by numbers.

        Parameters
        ----------
        values
            {symbol or its name: number}.

        Returns
        -------
        Network
            A new network.

        """
        named = {symbol.name: symbol for symbol in self.free_symbols}
        resolved: dict[Any, Any] = {}
        for key, value in mapping(values, "values").items():
            symbol = named.get(key if isinstance(key, str) else getattr(key, "name", glimpse(key)))
            if symbol is None:
                raise unknown("symbol", key, named or ["(the network has no symbols)"])
            resolved[symbol] = value
        return self.map_layers(lambda node, layer: _with_values(node, layer, resolved))

    def relabelled(self, names: Mapping[Node, Node] | Callable[[Node], Node]) -> Network:
        """Rename the nodes; the new labels must be distinct.

        Parameters
        ----------
        names
            {node: new label}, or a function of the old label, such as ``str``.

        Returns
        -------
        Network
            A new network.

        Raises
        ------
        GraphError
            If labels coincide or are not hashable.
        KcalcError
            If a node is unknown.

        """
        if not callable(names):
            self._check_nodes(mapping(names, "names"))
        new = {
            node: names(node) if callable(names) else names.get(node, node) for node in self._layers
        }
        steps = (
            (new[node], layer, tuple(new[p] for p in parents))
            for node, layer, parents in self.steps()
        )
        network = Network.from_steps(steps, [new[node] for node in self.outputs])
        moved = (replace(note, node=new.get(note.node, note.node)) for note in self.notes)
        return network.with_notes(moved)

    def normalised(self) -> Network:
        """Divide the weights of every Sum by ``sqrt(sum_i w_i^2)``.

        Returns
        -------
        Network
            A new network.

        """
        return self.map_layers(
            lambda node, layer: normalised_sum(layer, len(self._parents[node])), L.Sum
        )

    def without_normalization(self, kind: type[L.Layer] = L.Normalisation) -> Network:
        """Remove normalisation layers such as BatchNorm and LayerNorm.

        ``.removed`` lists their nodes. Affine layers without a bias before a normalisation get a
        bias with sigma_b = 0. Outputs change as described in :meth:`without`.

        Parameters
        ----------
        kind
            A class of normalisations; only layers of this class are removed.

        Returns
        -------
        Network
            A new network.

        Raises
        ------
        KcalcError
            If ``kind`` is not a class of normalisations.

        """
        if not isinstance(kind, type) or not issubclass(kind, L.Normalisation):
            raise KcalcError(
                "kind must be a normalisation class such as kc.layers.BatchNorm, got "
                f"{glimpse(kind)}"
            )
        dropped = self.nodes_of(kind)
        bare = {self._parents[node][0] for node in dropped}
        network = self.without(dropped).map_layers(
            lambda node, layer: replace(layer, bias=True) if node in bare else layer, L.Affine
        )
        network.removed = self.removed + dropped
        return network

    def preactivated(self) -> Network:
        """Convert the network to pre-activation form (ResNet V2).

        Identity shortcuts then carry the inputs of the activations instead of their outputs.

        The result computes a different function from the post-activation network (ResNet V1). The
        kernel calculus applies to V2 but not to V1, because the addends of a V1 sum are activations
        of the same input and therefore dependent. Node labels do not change. [DKS sec. 23]

        Returns
        -------
        Network
            A new network.

        """
        return self._kept(Network.from_steps(preactivated_steps(self), self.outputs))

    def without(self, dropped: Iterable[Node]) -> Network:
        """Bypass nodes with one input: the readers of such a node then read its input.

        If an output is bypassed, its input becomes the output; outputs that coincide are merged.
        Notes on the differences between a bypassed layer and a model are removed with the layer.
        Notes on positions stay, because they affect all later nodes.

        Parameters
        ----------
        dropped
            The nodes to bypass.

        Returns
        -------
        Network
            A new network.

        Raises
        ------
        GraphError
            If a node has several inputs.
        KcalcError
            If a node is unknown.

        """
        dropped = items(dropped, "dropped")
        self._check_nodes(dropped)
        dropped = set(dropped)
        source: dict[Node, Node] = {}
        for node, _, parents in self.steps():
            if node in dropped and len(parents) != 1:
                raise GraphError(
                    f"node {node!r} has {len(parents)} inputs, so it cannot be bypassed"
                )
            source[node] = source[parents[0]] if node in dropped else node
        steps = (
            (node, layer, tuple(source[p] for p in parents))
            for node, layer, parents in self.steps()
            if node not in dropped
        )
        network = Network.from_steps(steps, dict.fromkeys(source[node] for node in self.outputs))
        kept = (n for n in self.notes if n.level == "locations" or n.node not in dropped)
        return network.with_notes(kept)

    # -- protocol ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._layers)

    def __contains__(self, node: object) -> bool:
        return node in self._layers

    def __iter__(self) -> Iterator[Node]:
        return iter(self._layers)

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return frozenset(self.steps()), frozenset(self.outputs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Network) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (tuple(self.steps()), self.outputs, self.removed, self.notes, self.name)

    def __repr__(self) -> str:
        ends = f"{_names(self.inputs)} -> {_names(self.outputs)}"
        return f"Network({len(self)} nodes, {sum(map(len, self._parents.values()))} edges, {ends})"

    def _repr_html_(self) -> str | None:
        try:
            return DRAWINGS["Network.html"](self)
        except (MissingGuest, MissingExtra):
            return None  # notebooks then show the text


def _with_values(node: Node, layer: L.Layer, values: dict[Any, Any]) -> L.Layer:
    try:
        return layer.subs(values)
    except KcalcError as error:
        raise KcalcError(f"node {node!r}: {error}") from None


def require_network(network: object) -> None:
    """Raise a KcalcError if ``network`` is not a Network."""
    if not isinstance(network, Network):
        if isinstance(getattr(network, "network", None), Network):
            remedy = "pass its .network"
        elif isinstance(getattr(network, "networks", None), tuple):
            remedy = "pass one of its .networks"
        elif callable(network):
            remedy = "read a model first, kc.read(model, x).network"
        else:
            remedy = "convert a graph with kc.Network(graph)"
        raise KcalcError(f"expected a kcalc.Network, got {type(network).__name__}; {remedy}")


def require_numbers(network: Network) -> None:
    """Raise a KcalcError if the network has symbols."""
    if network.free_symbols:
        names = ", ".join(sorted(map(str, network.free_symbols)))
        raise KcalcError(
            f"the network has symbols ({names}); substitute numbers with net.subs({{...}})"
        )


def require_kind(
    network: Network, nodes: Iterable[Node], remedy: str, *kinds: type[L.Layer]
) -> None:
    """Raise a KcalcError unless every node's layer is of one of the given kinds.

    ``remedy`` is the end of the message.
    """
    for node in nodes:
        if not isinstance(network.layer(node), kinds):
            raise KcalcError(f"node {node!r} is a {type(network.layer(node)).__name__}{remedy}")


def chosen_output(network: Network, output: Node = None) -> Node:
    """Return the chosen output, or the only output.

    Raises: KcalcError if there are several outputs and none is chosen, or if the choice is not an
    output.
    """
    if output is None:
        if len(network.outputs) > 1:
            raise KcalcError(
                f"the network has {len(network.outputs)} outputs; choose one with output=, e.g. "
                f"{network.outputs[0]!r}"
            )
        return next(iter(network.outputs))
    if not is_key(output, network.outputs):
        raise unknown("output", output, map(str, network.outputs))
    return output


def _rebuild(
    steps: Sequence[Step],
    outputs: Sequence[Node],
    removed: tuple[Node, ...],
    notes: tuple[Note, ...],
    name: str,
) -> Network:
    network = Network.from_steps(steps, outputs)
    network.removed, network.notes, network.name = removed, notes, name
    return network


def _names(nodes: Sequence[Node]) -> str:
    shown = ", ".join(map(str, nodes[:4]))
    return shown + ", ..." if len(nodes) > 4 else shown


def concat_channels(network: Network) -> dict[Node, tuple[Count, ...]]:
    """Return the channel counts of the inputs of every Concat.

    The counts are either given or derived from known features. If all features are unknown, the
    inputs are assumed to have equally many channels.

    Raises: GraphError if only some features are known.
    """
    return {node: op.channels for node, op, _ in network.operations if isinstance(op, Join)}


def channel_widths(network: Network) -> dict[Node, int | None]:
    """Return {node: number of input channels, or None} for nodes whose rules depend on this number.

    These are the rules for channel groups and for statistics over channels.
    """
    return {
        node: op.reads
        for node, op, _ in network.operations
        if (isinstance(op, Norm) and op.over != "batch")
        or (isinstance(op, Fresh) and (op.groups > 1 or op.standardised))
    }


def sum_weights(layer: L.Sum | SomeLayer, count: int) -> tuple[float | sp.Expr, ...]:
    """Return the weights of a Sum with ``count`` inputs; the default is all ones."""
    return layer.weights if layer.weights is not None else (1,) * count


def is_normalised(weights: Sequence[Any], tolerance: float = 1e-12) -> bool:
    """Whether ``sum_i w_i^2 = 1``.

    The check is exact for SymPy numbers and symbols, and to ``tolerance`` for floats.
    """
    excess: Any = sp.Add(*(sp.sympify(w, strict=True) ** 2 for w in weights)) - 1
    if excess.free_symbols:
        return sp.simplify(excess) == 0
    return abs(float(excess)) <= tolerance


def normalised_sum(layer: L.Sum, count: int) -> L.Sum:
    """Divide the weights of a Sum by ``sqrt(sum_j w_j^2)``, or return the Sum if this root is 1."""
    weights = sum_weights(layer, count)
    if is_normalised(weights):
        return layer
    total = sp.sqrt(sum(sp.sympify(w, strict=True) ** 2 for w in weights))
    scaled = (sp.sympify(w, strict=True) / total for w in weights)
    floats = any(isinstance(w, float) for w in weights)
    return replace(layer, weights=tuple(float(w) if floats and w.is_number else w for w in scaled))
