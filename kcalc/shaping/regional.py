"""Shapings of the parts of a model that were understood, each by its own slopes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from ..foundation.errors import FreshnessError, KcalcError, UnreachableTarget
from ..foundation.files import write_whole
from ..foundation.plain_arguments import file_path
from ..foundation.printing import Tabled, html_table, marked, plain, text_table
from ..foundation.process_state import cached_property
from ..interchange.model_reading import Reading, connected_parts
from ..interchange.pointwise import extreme_parts
from ..maps.maps import Approximable, Assumption
from ..network import layers as L
from ..network.combinators import chain
from ..network.network import Network, is_normalised, sum_weights
from .advice import OPTION
from .base import Shaping
from .constants import Constants, ConstantsTable
from .norms import removals

Node = Hashable
SCHEMA = "kcalc.regional_shaping/1"
LISTED = 6  # reasons that an error gives
TAKEN_AS_ONE = (
    "q at this input of a region is taken as 1: it comes from operations that were left alone"
)
MEASURED = "; on the example inputs, the model as it was read has q = {:.4g} there"
RESCALES = "it rescales a feature map that is left alone"
HEAD = "it makes an output of the model, whose range it sets, and stands nowhere else"
EXTREME = "the larger or smaller of two feature maps, whose two sides are not independent"
TWICE = (
    ". Read and shape the part that is used twice by itself, kc.shape(kc.read(model.part, x)), and "
    "put it back, model.part = s.apply_to(model.part)"
)
TIED = "it shares the parameter {!r} with another operation, so its weights cannot be drawn anew"
WEIGHTLESS = "it has no weights that could be drawn anew"
TAKES = "tokens are taken as the model takes them"
MIXES = "weights over tokens are left as they are"
NOTHING = "it has no activations"
NOT_WRITTEN = {
    L.Attend: "attention is left as it is",
    L.Positions: "added positional vectors are left as they are",
    L.ClassToken: "class tokens are left as they are",
}


@dataclass(frozen=True)
class RegionalShaping(Approximable, Tabled):
    """The shaped regions of a model, and all of it that is left alone.

    A region is a connected part of the network without the operations that were not read. Each is
    shaped by its own maximal slope function, as if its inputs had q = 1.

    ``regions``: {the first node of a region: its :class:`Shaping`}; ``left_alone``: {node: reason};
    ``entries``: {input of a region that the model computes: q measured there, None where nothing
    was measured}; ``original``: the network that was read.
    """

    method: str
    original: Network
    regions: Mapping[Node, Shaping]
    left_alone: Mapping[Node, str]
    entries: Mapping[Node, float | None]
    prepared: tuple[str, ...] = field(default=(), repr=False)
    reading: Any = field(default=None, repr=False, compare=False)

    @property
    def networks(self) -> tuple[Network, ...]:
        """The shaped networks, region by region."""
        return tuple(shaping.network for shaping in self.regions.values())

    @property
    def options(self) -> dict[str, Any]:
        """The targets of the method."""
        return next(iter(self.regions.values())).options

    @cached_property
    def constants(self) -> ConstantsTable:
        """The constants of all regions: by node, or by activation name where there are one set."""
        return ConstantsTable(
            {
                n: k
                for shaping in self.regions.values()
                for n, k in shaping.constants.by_node.items()
            }
        )

    @property
    def changes(self) -> tuple[str, ...]:
        """Every edit in words."""
        made = (change for shaping in self.regions.values() for change in shaping.changes)
        return tuple(dict.fromkeys((*self.prepared, *made)))

    @cached_property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Those of every region, and one for every input that the model computes."""
        own = (a for shaping in self.regions.values() for a in shaping.assumptions)
        entered = (
            Assumption(node, TAKEN_AS_ONE + ("" if q is None else MEASURED.format(q)), "heuristic")
            for node, q in self.entries.items()
        )
        return (*dict.fromkeys(own), *entered)

    @property
    def residuals(self) -> dict[Node, dict[str, float]]:
        """{region: {condition: |value - target|}}, measured independently of the solver."""
        return {name: shaping.residuals for name, shaping in self.regions.items()}

    @cached_property
    def edits(self) -> Any:
        """The changes of the model, place by place: see :attr:`Shaping.edits`."""
        return self.edits_on(self.reading)

    def edits_on(self, reading: Any) -> Any:
        """The edits of the model of a reading that this is a shaping of."""
        from ..interchange.apply import edits_of

        return edits_of(reading, self)

    def apply_to(self, model: Any, *example_inputs: Any, **options: Any) -> Any:
        """A copy of the model in which the regions are shaped and all else is as it was.

        ``model`` is left as it is; the arguments are those of :meth:`Shaping.apply_to`.
        Raises: KcalcError as there.
        """
        from ..interchange.apply import apply_to

        return apply_to(model, self, *example_inputs, **options)

    def export(self, target: str, path: str | os.PathLike[str] | None = None) -> str:
        """The shaping as a document, ``target="json"``; written to ``path`` too if it is given.

        Code of other frameworks has one region each, ``regions[name].export(target)``.
        Raises: KcalcError for other targets, naming an operation that was left alone; for missing
        folders.
        """
        from ..interchange.writers import writer

        writer(target)
        if target != "json" and self.left_alone:
            node, reason = next(iter(self.left_alone.items()))
            raise KcalcError(
                f"node {node!r} was left alone ({reason}), so that the whole is not written for "
                f"{target!r}; use .apply_to(model) and export that copy with its own framework, "
                f".regions[name].export({target!r}) for one region, or target='json'"
            )
        if target != "json":
            raise KcalcError(
                f"several regions are not one program; use .regions[name].export({target!r}) for "
                f"each of them, or target='json'"
            )
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False, default=str) + "\n"
        if path is not None:
            write_whole(file_path(path), text)
        return text

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data, with a versioned schema."""
        return {
            "schema": SCHEMA,
            "method": self.method,
            "options": plain(self.options),
            "regions": {str(name): shaping.to_dict() for name, shaping in self.regions.items()},
            "left_alone": {str(node): reason for node, reason in self.left_alone.items()},
            "entries": {str(node): plain(q) for node, q in self.entries.items()},
            "assumptions": [assumption.to_dict() for assumption in self.assumptions],
            "changes": list(self.changes),
        }

    def _frame(self) -> list[dict[str, Any]]:
        rows = []
        for name, shaping in self.regions.items():
            for node, k in shaping.constants.by_node.items():
                rows.append({"region": str(name), "node": str(node), **_columns(k), "left": ""})
        return rows + [
            {"region": "", "node": str(node), "left": reason}
            for node, reason in self.left_alone.items()
        ]

    def _rows(self) -> list[tuple[str, ...]]:
        head = ("region", "nodes", "activations", "C'(1)", "largest residual")
        rows: list[tuple[str, ...]] = [head]
        for name, shaping in self.regions.items():
            slope = shaping.targets.get("C'(1)")
            worst = max(shaping.residuals.values(), default=None)
            rows.append(
                (
                    str(name),
                    str(len(shaping.network)),
                    ", ".join(dict.fromkeys(k.describe() for k in _constants(shaping))),
                    "-" if slope is None else f"{slope:.6g}",
                    "-" if worst is None else f"{worst:.1e}",
                )
            )
        return rows

    def _below(self) -> list[str]:
        return [
            *(f"heuristic: {a.node}: {a.text}" for a in self.assumptions if a.kind == "heuristic"),
            *(f"left alone: {', '.join(nodes)}: {why}" for why, nodes in self.by_reason().items()),
        ]

    def by_reason(self) -> dict[str, list[str]]:
        """{reason: the nodes left alone for it}."""
        found: dict[str, list[str]] = {}
        for node, reason in self.left_alone.items():
            found.setdefault(reason, []).append(str(node))
        return found

    def __str__(self) -> str:
        return "\n".join([repr(self), "", text_table(self._rows()), "", *self._below()])

    def _repr_html_(self) -> str:
        told = "".join(f"<p>{escape(line)}</p>" for line in self._below())
        return f"<p>{escape(repr(self))}</p>{html_table(self._rows())}{told}"

    def __repr__(self) -> str:
        count, rest = len(self.regions), len(self.left_alone)
        text = f"{self.method}, {count} region{'s' * (count != 1)}, {rest} nodes left alone"
        return f"RegionalShaping({marked(text, self)})"


def _columns(k: Constants) -> dict[str, Any]:
    return {"activation": k.activation.name, "constants": k.describe()}


def _constants(shaping: Shaping) -> Iterable[Constants]:
    return (shaping.constants[name] for name in shaping.constants)


def shape_reading(
    reading: Reading, function: Callable[..., Shaping], method: str, targets: Mapping[str, Any]
) -> Shaping | RegionalShaping:
    """The shaping of a model that was read: of its network, or region by region.

    ``function``: the method, of one network and targets. What the model's code has no place for is
    left alone. Returns and raises: as :func:`_shaped`.
    """
    from ..interchange.apply import unplaced

    left: dict[Node, str] = {}
    while True:
        found = replace(_shaped(reading, function, method, targets, left), reading=reading)
        if not (further := unplaced(reading, found)):
            return found
        left |= further


def _shaped(
    reading: Reading,
    function: Callable[..., Shaping],
    method: str,
    targets: Mapping[str, Any],
    unplaced: Mapping[Node, str],
) -> Shaping | RegionalShaping:
    """The shaping of a model that was read: of its network, or region by region.

    ``function``: the method, of one network and targets. BatchNorm is removed and sums are
    normalised first, where that is what the method needs.
    Returns: a Shaping where all was read, else a RegionalShaping. Raises: KcalcError with the
    reasons where no region can be shaped.
    """
    left = _left_alone(reading, unplaced)
    edits: list[str] = []
    heads = _heads(reading.network if not left else reading.unmerged, left)
    if not left:
        network = _before(reading.network, heads) if heads else reading.network
        found = function(_ready(network, method, edits), **targets)
        notes = tuple(
            Assumption(node, f"{node!r} is left as it is: {why}") for node, why in heads.items()
        )
        return replace(found, changes=(*edits, *found.changes), warnings=(*found.warnings, *notes))
    left |= heads
    regions: dict[Node, Shaping] = {}
    refusals: list[str] = []
    waiting = [*reading.cut([*left])]
    for part in waiting:  # grows where some activations of a part cannot be shaped
        own = [node for node, layer, _ in part.steps() if not isinstance(layer, L.Input)]
        made: list[str] = []
        try:
            if not part.nodes_of(L.Nonlinear):
                raise KcalcError(NOTHING)
            if not part.nodes_of(L.Affine):
                raise KcalcError(WEIGHTLESS)
            computed = [node for node in part.inputs if node not in reading.unmerged.inputs]
            regions[own[0]] = _region(_ready(part, method, made), computed, function, targets)
            edits += made
        except KcalcError as error:
            unable = _unable(part, function, targets)
            if unable:
                left |= unable
                waiting += connected_parts(part, {*unable})
                continue
            left |= dict.fromkeys(own, str(error))
            refusals.append(f"{own[0]!r}: {error}")
    if not regions:
        raise _nothing(left, refusals)
    entries = _entries(reading, regions)
    left = _in_order(reading, left)
    return RegionalShaping(method, reading.network, regions, left, entries, tuple(edits))


def _heads(network: Network, left: Mapping[Node, str]) -> dict[Node, str]:
    """{node: reason} of the activations that make an output and stand nowhere else in the network.

    They give outputs their range, as the sigmoid of a probability does.
    """
    readers: dict[Node, list[Node]] = {node: [] for node in network}
    for node, _, parents in network.steps():
        for parent in parents:
            readers[parent].append(node)
    ends: set[Node] = set()  # nodes behind which no layer has weights or an activation
    for node, layer, _ in reversed([*network.steps()]):
        if (layer.passes or isinstance(layer, L.Concat | L.Opaque)) and ends.issuperset(
            readers[node]
        ):
            ends.add(node)
    phi = {n: network.layer(n).activation for n in network.nodes_of(L.Nonlinear) if n not in left}
    heads = [node for node in phi if ends.issuperset(readers[node])]
    inside = {activation for node, activation in phi.items() if node not in heads}
    return {node: HEAD for node in heads if inside and phi[node] not in inside}


def _before(network: Network, heads: Mapping[Node, str]) -> Network:
    """The network without some activations at its outputs and without what reads them."""
    taken = {*heads}
    for node, _, parents in network.steps():
        if not taken.isdisjoint(parents):
            taken.add(node)
    steps = [step for step in network.steps() if step[0] not in taken]
    ends = {parent for node in taken for parent in network.parents(node)}
    outputs = [node for node, *_ in steps if node in ends or node in network.outputs]
    before = Network.from_steps(steps, outputs)
    return before.with_notes(note for note in network.notes if note.node not in taken)


def _unable(
    part: Network, function: Callable[..., Shaping], targets: Mapping[str, Any]
) -> dict[Node, str]:
    """{node: reason} of the activations that meet the targets in no network, if others do."""
    found: dict[Node, str] = {}
    nodes = part.nodes_of(L.Nonlinear)
    for activation in dict.fromkeys(part.layer(node).activation for node in nodes):
        try:
            function(chain(L.Affine(), L.Nonlinear(activation), L.Affine()), **targets)
        except UnreachableTarget as error:
            alike = (node for node in nodes if part.layer(node).activation == activation)
            found |= dict.fromkeys(alike, str(error))
        except KcalcError:
            pass
    return found if len(found) < len(nodes) else {}


def _region(
    part: Network,
    computed: Sequence[Node],
    function: Callable[..., Shaping],
    targets: Mapping[str, Any],
) -> Shaping:
    """The shaping of a region; inputs ``computed`` by the model are taken as independent.

    Raises: KcalcError where the method refuses for any other reason.
    """
    try:
        return function(part, **targets)
    except FreshnessError:
        if not computed:
            raise
    function(_behind_weights(part, computed), **targets)  # refuses for other reasons
    return function(part, **{**targets, OPTION: True})


def _behind_weights(part: Network, computed: Sequence[Node]) -> Network:
    """The network with weights of its own behind some inputs, which make them independent."""
    renamed = {node: ("weights behind", node) for node in computed}
    steps: list[Any] = []
    for node, layer, parents in part.steps():
        steps.append((node, layer, tuple(renamed.get(p, p) for p in parents)))
        if node in renamed:
            steps.append((renamed[node], L.Affine(part.features[node], bias=False), (node,)))
    return Network.from_steps(steps, [renamed.get(node, node) for node in part.outputs])


OWN_FORM = ("geometric", "nf", "residual_weights")  # methods that edit norms and sums themselves


def _ready(network: Network, method: str, edits: list[str]) -> Network:
    """The network without BatchNorm and with normalised sums; ``edits`` grows by the changes."""
    if method in OWN_FORM:
        return network
    norms = network.nodes_of(L.BatchNorm)
    if norms:
        edits += removals(network, norms)
        network = network.without_normalization(L.BatchNorm)
    sums = [
        node
        for node in network.nodes_of(L.Sum)
        if not is_normalised(sum_weights(network.layer(node), len(network.parents(node))))
    ]
    if sums:
        edits += [f"{node}: the weights of the sum normalised" for node in sums]
        network = network.normalised()
    return network


def _left_alone(reading: Reading, unplaced: Mapping[Node, str]) -> dict[Node, str]:
    """{node: reason} of the nodes that a region cannot hold."""
    network = reading.unmerged
    left: dict[Node, str] = {**unplaced}
    for node, layer, parents in network.steps():
        if node in left:
            continue
        if isinstance(layer, L.Opaque):
            left[node] = f"{layer.name}: {layer.reason}"
        elif isinstance(layer, L.Scale | L.BatchNorm) and parents[0] in left:
            left[node] = RESCALES
        elif (reason := NOT_WRITTEN.get(type(layer))) is not None:
            left[node] = reason
        elif parts := extreme_parts(network, node):
            left |= dict.fromkeys((*parts, node), EXTREME)
        elif isinstance(layer, L.TokenMix) and layer.random:
            left[node] = MIXES
        elif isinstance(layer, L.TokenMix) and len(layer.matrix) != len(layer.matrix[0]):
            left[node] = TAKES
    return left if reading.trace is None else _with_bound(reading, left)


def _with_bound(reading: Reading, left: dict[Node, str]) -> dict[Node, str]:
    """The nodes left alone, with those that share weights with them, or with each other."""
    from ..interchange.sharing import shared_parameters

    while further := {
        node: TIED.format(parameter)
        for node, parameter in shared_parameters(reading, left).items()
        if node not in left
    }:
        left |= further
    return left


def _in_order(reading: Reading, left: Mapping[Node, str]) -> dict[Node, str]:
    return {node: left[node] for node in reading.unmerged if node in left}


def _entries(reading: Reading, regions: Mapping[Node, Shaping]) -> dict[Node, float | None]:
    """{input of a region that is none of the model: q of the model there, or None}."""
    from ..interchange.boundaries import measured_q

    inside = [
        node
        for shaping in regions.values()
        for node, layer, parents in shaping.network.steps()
        if not isinstance(layer, L.Input | L.Embedding)
        for node in parents
        if node in shaping.network.inputs and node not in reading.unmerged.inputs
    ]
    found = measured_q(reading, inside)
    return {node: found.get(node) for node in dict.fromkeys(inside)}


def _nothing(left: Mapping[Node, str], refusals: list[str]) -> KcalcError:
    """The error where no region was shaped."""
    told = [text for text in refusals if not text.endswith(NOTHING)][:LISTED]
    if told:
        shared = any("shared weights" in reason for reason in left.values())
        return KcalcError(
            f"no region of the model can be shaped; {'; '.join(told)}{TWICE if shared else ''}"
        )
    first = ", ".join(f"{node!r} ({reason})" for node, reason in [*left.items()][:LISTED])
    return KcalcError(
        f"no region of the model has activations, so there is nothing to shape; not read: {first}; "
        f"write these operations by others, or shape the network that the model is meant to be, "
        f"kc.shape(kc.chain(...))"
    )
