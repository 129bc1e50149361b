"""Shape a model region by region, with separate slopes, and report all nodes left unchanged."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

from ...foundation.errors import FreshnessError, KcalcError, UnreachableTarget
from ...maps.maps import Assumption
from ...network import layers as L
from ...network.combinators import chain
from ...network.compose import AS_V2
from ...network.network import Network, is_normalised, sum_weights
from ...shaping.base import Shaping
from ...shaping.hypotheses import check_fresh
from ...shaping.norms import removals
from ...shaping.records import DEPENDENT, OPTION
from ...shaping.regional import RegionalShaping
from ..apply import unplaced
from ..boundaries import measured_q
from ..model_reading import Reading
from ..pointwise import extreme_parts
from ..sharing import shared_parameters
from ..trace import Routed
from .relied_on import RANDOM, RETURNED, heads, relied_on

Node = Hashable
LISTED = 6  # maximum number of reasons in an error message
RESCALES = "it rescales a feature map that is left alone"
EXTREME = "it is the maximum or minimum of two feature maps, which is a sum of dependent terms"
TWICE = (
    ". If a part of the model is used twice, read and shape it separately with "
    "s = kc.shape(kc.read(model.part, x)), and put it back with "
    "model.part = s.apply_to(model.part)"
)
JOINED = (
    ". Regions end at activations and sums for which an assumption fails; "
    "assume_independent=True joins the regions, which is a heuristic"
)
WEIGHTLESS = "it has no weights that could be redrawn"
TAKES = "selections of tokens are not edited"
NOISE = "it uses random numbers that the model draws, for example to sample from a distribution"
MIXES = "weights over tokens are not edited"
NOTHING = "it has no activations"
ROUTER = (
    "only the experts of a mixture are edited, not its router. The q of the mixture is S_2 times "
    "the q of one expert, where S_2 is kc.moe_statistics(...).second"
)
GATES = "gates"  # name of the option for the treatment of gates
# layers at which a region ends if an assumption fails
CUT_AT = (L.Nonlinear, L.Sum, L.Product, L.Normalisation, L.TokenMix, L.Affine)
NOT_WRITTEN = {
    L.Attend: "attention is not edited",
    L.Positions: "positional vectors are not edited",
    L.ClassToken: "class tokens are not edited",
    L.SurrogateGradient: "functions that use the gradient of another function are not edited",
}


@dataclass(frozen=True, eq=False)
class _Asked:
    """A shaping method with its targets, to be applied to each region."""

    method: str
    function: Callable[..., Shaping]
    targets: Mapping[str, Any]

    def __call__(self, network: Network, **more: Any) -> Shaping:
        own = {GATES: "normalise"} if self.takes(GATES) else {}
        return self.function(network, **{**own, **self.targets, **more})

    def takes(self, target: str) -> bool:
        return target in signature(self.function).parameters


def shape_reading(
    reading: Reading, function: Callable[..., Shaping], method: str, targets: Mapping[str, Any]
) -> Shaping | RegionalShaping:
    """Shape a model that was read, as a whole or region by region.

    ``function``: the method, a function of a network and targets. Nodes that cannot be located in
    the model's code stay unchanged. Methods that read attention shape the whole network. For the
    result and errors, see :func:`_shaped`.
    """
    if getattr(function, "attention", False):
        return replace(function(reading.network, **targets), reading=reading)
    asked, left = _Asked(method, function, targets), dict[Node, str]()
    while True:
        found = replace(_shaped(reading, asked, left), reading=reading)
        further, not_run = unplaced(reading, found)
        if not further:
            return _told(found, not_run)
        left |= further


def _told(
    found: Shaping | RegionalShaping, not_run: Mapping[str, str]
) -> Shaping | RegionalShaping:
    """Record in a shaping which code did not run and is therefore left alone."""
    if not not_run:
        return found
    left = {**found.left_alone, **not_run}
    if isinstance(found, RegionalShaping):
        return replace(found, left_alone=left)
    notes = tuple(Assumption(what, f"{what} is left alone: {why}") for what, why in not_run.items())
    return replace(found, left_alone=left, warnings=(*found.warnings, *notes))


def _shaped(
    reading: Reading, asked: _Asked, unplaced: Mapping[Node, str]
) -> Shaping | RegionalShaping:
    """Shape a network except for nodes that cannot be located in the model's code.

    If the method requires it, remove BatchNorm and normalise sums first. Gates of products keep
    their range unless ``gates`` is given. Returns: a Shaping if only activations at outputs are
    left alone, else a RegionalShaping. Raises: KcalcError with the reasons if no region can be
    shaped.
    """
    left = _left_alone(reading, asked, unplaced)
    last = heads(reading.network if not left else reading.unmerged, left)
    if not left and RETURNED not in last.values():
        try:
            return _whole(reading.network, last, asked)
        except KcalcError as error:
            if reading.trace is None or not _local(reading.network, error):
                raise
    left = _closed(reading, left | last, asked)
    regions, left, refusals = _regions(reading, left, asked)
    if not regions:
        raise _nothing(reading.unmerged, left, refusals)
    found = {name: shaping for name, (shaping, _) in regions.items()}
    made = tuple(edit for _, edits in regions.values() for edit in edits)
    entries = _entries(reading, found)
    return RegionalShaping(
        asked.method, reading.network, found, _in_order(reading, left), entries, made
    )


def _whole(network: Network, last: Mapping[Node, str], asked: _Asked) -> Shaping:
    """Shape a completely read network, except for the activations at its outputs."""
    edits: list[str] = []
    network = _before(network, last) if last else network
    found = asked(_ready(network, asked.method, edits))
    notes = tuple(Assumption(node, f"{node!r} is left alone: {why}") for node, why in last.items())
    changes, warnings = (*edits, *found.changes), (*found.warnings, *notes)
    return replace(found, changes=changes, warnings=warnings, left_alone=last)


@dataclass(frozen=True, eq=False)
class _Outcome:
    """The result for one part of a network.

    The result is either a shaping and the edits made before it, or a set of nodes to leave alone.
    ``refusal``: the reason if nothing in the part was shaped, else "".
    """

    shaping: Shaping | None = None
    edits: tuple[str, ...] = ()
    left: Mapping[Node, str] = field(default_factory=dict)
    refusal: str = ""


def _regions(
    reading: Reading, left: dict[Node, str], asked: _Asked
) -> tuple[dict[Node, tuple[Shaping, tuple[str, ...]]], dict[Node, str], list[str]]:
    """Shape the regions of a network.

    If a part cannot be shaped because of one node, only this node is left alone. Otherwise, the
    whole part is left alone. Then the remaining parts are examined again, because they may share
    weights with nodes that are left alone, or such nodes may rely on the range of values in these
    parts. Returns: {first node of a region: (shaping, edits made before it)}, the nodes left alone,
    and reasons why parts were not shaped.
    """
    known: dict[tuple[Node, ...], _Outcome] = {}
    refusals: dict[str, None] = {}
    while True:
        parts = reading.cut([*left]) if left else (reading.unmerged,)
        found: dict[Node, tuple[Shaping, tuple[str, ...]]] = {}
        more: dict[Node, str] = {}
        for part in parts:
            key = tuple(part)
            if key not in known:
                computed = [node for node in part.inputs if node not in reading.unmerged.inputs]
                known[key] = _outcome(part, computed, asked)
            outcome = known[key]
            first = _own(part)[0]
            if outcome.shaping is not None:
                found[first] = outcome.shaping, outcome.edits
            more |= outcome.left
            if outcome.refusal:
                refusals[f"{first!r}: {outcome.refusal}"] = None
        if not more:
            return found, left, [*refusals]
        left = _closed(reading, left | more, asked)


def _outcome(part: Network, computed: Sequence[Node], asked: _Asked) -> _Outcome:
    """Shape a part; ``computed`` names those of its inputs that the model computes."""
    made: list[str] = []
    refused: KcalcError
    try:
        if not part.nodes_of(L.Nonlinear):
            raise KcalcError(NOTHING)
        if not part.nodes_of(L.Affine):
            raise KcalcError(WEIGHTLESS)
        return _Outcome(_region(_ready(part, asked.method, made), computed, asked), tuple(made))
    except FreshnessError as error:
        refused, cut = error, _stale(part, computed, error, asked)
    except KcalcError as error:
        refused, cut = error, _unable(part, asked) or _local(part, error)
    if cut:
        return _Outcome(left=cut)
    return _Outcome(left=dict.fromkeys(_own(part), str(refused)), refusal=str(refused))


def _own(part: Network) -> list[Node]:
    """Return the nodes of a part other than its inputs."""
    return [node for node, layer, _ in part.steps() if not isinstance(layer, L.Input)]


def _local(part: Network, error: KcalcError) -> dict[Node, str]:
    """Return {node: reason} for the node where an assumption fails.

    The result is empty for an error about the whole network, such as an unreachable target, and if
    no other activations remain.
    """
    node = error.node
    if node is None or node not in part or not isinstance(part.layer(node), CUT_AT):
        return {}
    # edits of a model cannot rewrite it as V2
    reason = str(error).replace(AS_V2, "")
    return {node: reason} if {*part.nodes_of(L.Nonlinear)} - {node} else {}


def _stale(
    part: Network, computed: Sequence[Node], error: FreshnessError, asked: _Asked
) -> dict[Node, str]:
    """Return {node: reason} for all nodes that combine dependent values."""
    cut = _local(part, error)
    if not cut:
        return {}
    option = DEPENDENT if asked.takes(OPTION) else ""
    network = _behind_weights(_ready(part, asked.method, []), computed)
    while True:
        network = _as_weights(network, cut)
        try:
            check_fresh(network.written_out())
            break
        except FreshnessError as further:
            found = {n: w for n, w in _local(part, further).items() if n not in cut}
            if not found:
                break
            cut |= dict.fromkeys(found, f"{further.message.replace(AS_V2, '')}{option}")
        except KcalcError:
            break
    activations = {*part.nodes_of(L.Nonlinear)}
    return cut if activations - {*cut} else {}


def _before(network: Network, last: Mapping[Node, str]) -> Network:
    """Return the network without the activations ``last`` and all nodes after them."""
    taken = {*last}
    for node, _, parents in network.steps():
        if not taken.isdisjoint(parents):
            taken.add(node)
    steps = [step for step in network.steps() if step[0] not in taken]
    ends = {parent for node in taken for parent in network.parents(node)}
    outputs = [node for node, *_ in steps if node in ends or node in network.outputs]
    before = Network.from_steps(steps, outputs)
    return before.with_notes(note for note in network.notes if note.node not in taken)


def _unable(part: Network, asked: _Asked) -> dict[Node, str]:
    """Return {node: reason} for activations that cannot meet the targets, if others can."""
    found: dict[Node, str] = {}
    nodes = part.nodes_of(L.Nonlinear)
    for activation in dict.fromkeys(part.layer(node).activation for node in nodes):
        try:
            asked(chain(L.Affine(), L.Nonlinear(activation), L.Affine()))
        except UnreachableTarget as error:
            alike = (node for node in nodes if part.layer(node).activation == activation)
            found |= dict.fromkeys(alike, str(error))
        except KcalcError:
            pass
    return found if len(found) < len(nodes) else {}


def _region(part: Network, computed: Sequence[Node], asked: _Asked) -> Shaping:
    """Shape a region. If necessary, treat the inputs in ``computed`` as independent.

    Raises: KcalcError if the method fails for a reason other than their dependence.
    """
    try:
        return asked(part)
    except FreshnessError:
        if not computed:
            raise
    asked(_behind_weights(part, computed))  # raises an error if there is another reason
    return asked(part, **{OPTION: True})


def _behind_weights(part: Network, computed: Sequence[Node]) -> Network:
    """Insert an Affine after each input in ``computed``, which makes these inputs independent."""
    renamed = {node: ("weights after", node) for node in computed}
    steps: list[Any] = []
    for node, layer, parents in part.steps():
        steps.append((node, layer, tuple(renamed.get(p, p) for p in parents)))
        if node in renamed:
            steps.append((renamed[node], L.Affine(part.features[node], bias=False), (node,)))
    return Network.from_steps(steps, [renamed.get(node, node) for node in part.outputs])


def _as_weights(part: Network, cut: Container[Node]) -> Network:
    """Replace the nodes that are left alone with layers that have weights.

    The nodes after these layers then treat the outputs of the layers as independent of all other
    values.
    """
    steps: list[Any] = []
    unread: list[Node] = []
    for node, layer, parents in part.steps():
        if node in cut:
            layer, unread = L.Affine(part.features[node], bias=False), [*unread, *parents[1:]]
            parents = parents[:1]
        steps.append((node, layer, parents))
    return Network.from_steps(steps, [*dict.fromkeys((*part.outputs, *unread))])


OWN_FORM = ("geometric", "nf", "residual_weights")  # methods that edit norms and sums themselves


def _ready(network: Network, method: str, edits: list[str]) -> Network:
    """Remove BatchNorm and normalise sums; append descriptions of the changes to ``edits``."""
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
        edits += [f"{node}: weights of the sum normalised" for node in sums]
        network = network.normalised()
    return network


def _left_alone(reading: Reading, asked: _Asked, unplaced: Mapping[Node, str]) -> dict[Node, str]:
    """Return {node: reason} for nodes that cannot be part of a region."""
    network = reading.unmerged
    left: dict[Node, str] = {**_in_mixtures(reading), **unplaced}
    noisy: set[Node] = set()
    for node, layer, parents in network.steps():
        if node in left:
            continue
        if isinstance(layer, L.Opaque):
            left[node] = f"{layer.name}: {layer.reason}"
            noisy |= {node} if layer.name.startswith(RANDOM) else set()
        elif isinstance(layer, L.Scale | L.BatchNorm) and parents[0] in left:
            left[node] = RESCALES
        elif (reason := NOT_WRITTEN.get(type(layer))) is not None:
            left[node] = reason
        elif isinstance(layer, L.Product | L.Sum) and not noisy.isdisjoint(parents):
            left[node] = NOISE
            noisy.add(node)
        elif parts := extreme_parts(network, node):
            left |= dict.fromkeys((*parts, node), EXTREME)
        elif isinstance(layer, L.TokenMix) and layer.random:
            left[node] = MIXES
        elif isinstance(layer, L.TokenMix) and len(layer.matrix) != len(layer.matrix[0]):
            left[node] = TAKES
    return _closed(reading, left, asked)


def _in_mixtures(reading: Reading) -> dict[Node, str]:
    """Return {node: reason} for routers and for operations on the outputs of selected experts."""
    ops = () if reading.trace is None else reading.trace.ops
    places = {op.name: op.source.partition(" (")[0] for op in ops}
    routed = [op for op in ops if isinstance(op, Routed)]
    within = {places[op.name] for op in routed}
    found = {op.reads[0] for op in routed}
    for op in ops:
        later = places[op.name] in within and not found.isdisjoint(op.reads)
        if isinstance(op, Routed) or later:
            found.add(op.name)
    return {name: ROUTER for name in found if name in reading.unmerged}


def _closed(reading: Reading, left: dict[Node, str], asked: _Asked) -> dict[Node, str]:
    """Add nodes that must be left alone because of nodes that already are.

    The added nodes share weights with such nodes, or are activations whose range the model relies
    on.
    """
    while True:
        further = relied_on(reading, left, complements=GATES not in asked.targets)
        further |= {} if reading.trace is None else shared_parameters(reading, left)
        further = {node: why for node, why in further.items() if node not in left}
        if not further:
            return left
        left = left | further


def _in_order(reading: Reading, left: Mapping[Node, str]) -> dict[Node, str]:
    return {node: left[node] for node in reading.unmerged if node in left}


def _entries(reading: Reading, regions: Mapping[Node, Shaping]) -> dict[Node, float | None]:
    """Return {input of a region that the model computes: its q, or None if unknown}."""
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


def _nothing(network: Network, left: Mapping[Node, str], refusals: list[str]) -> KcalcError:
    """Return the error to raise if no region was shaped."""
    told = [text for text in refusals if not text.endswith(NOTHING)][:LISTED]
    if told:
        shared = any("shared weights" in reason for reason in left.values())
        cut = any(DEPENDENT in reason for reason in left.values())
        hint = (TWICE if shared else "") + (JOINED if cut else "")
        return KcalcError(f"no region of the model can be shaped; {'; '.join(told)}{hint}")
    activations = network.nodes_of(L.Nonlinear)
    first = [*(n for n in activations if n in left), *(n for n in left if n not in activations)]
    listed = ", ".join(f"{node!r} ({left[node]})" for node in first[:LISTED])
    return KcalcError(
        "no region of the model has activations, so there is nothing to shape (left alone: "
        f"{listed}); replace these operations, or shape a network that you build yourself, "
        "as in kc.shape(kc.chain(...))"
    )
