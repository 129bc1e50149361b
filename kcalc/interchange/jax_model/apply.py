"""Edits of a JAX model: found from its shaped networks, and performed on a copy of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...foundation.errors import KcalcError
from ...network.layers import Affine
from ..editing_plan import TWICE, Calls, Planner, Target
from ..edits import Action, CallEdit, Edit, Edits, Taken
from ..geometry import checked_law
from ..model_reading import Reading
from . import modules
from .functions import JaxModel
from .initial import biases, generator, initial, weight_edits
from .program import Program
from .sites import MODULE, by_place

Node = Hashable
LOOP = "it runs in a loop, or in a module that is called again, whose turns would be edited apart"
MARKED = "it belongs to a normalisation or dropout layer, which is edited as a whole or not at all"


def apply_jax(
    model: Any, reading: Reading, shaping: Any, *, key: Any = 0, weights: str = "orthogonal_delta"
) -> Any:
    """A copy of the model with the edits of ``shaping``; ``model`` is left as it is.

    model: the model that ``reading`` is of. shaping: has ``network`` or ``networks``, whose nodes
    are those of ``reading.network``. key: a whole number or ``jax.random.key(seed)``, the source of
    randomness; equal keys give equal weights, and none gives the numbers of
    ``np.random.default_rng``. weights: "orthogonal_delta" and "gaussian_delta" draw new weights
    with the sigma_w of the shaped network (1) on the central tap of every kernel, biases become 0
    (normal with sigma_b); "keep" takes those of the model.

    The copy runs the user's own code; only the edited calls change. Custom derivatives,
    ``stop_gradient``, loops, branches, states, other batch sizes and other modes of the model stay
    what they are. The parameters have the tree of the model's; those of normalisation that is
    removed stay in it unused, but for its bias behind a layer without bias, which serves as that
    layer's.

    Returns: for functions (function, parameters); for Linen (module, variables); for NNX, Equinox
    and Keras a model, of the user's own class. All work under ``jax.jit``, ``jax.grad`` and
    ``jax.vmap``.

    Raises: KcalcError for nodes that are not the model's or that were not read, weights that are
    not parameters, even kernels.
    """
    if reading.trace is None or not isinstance(reading.trace.model, JaxModel):
        raise KcalcError("the reading is not of a JAX model; read it with kc.read(model, example)")
    law = checked_law(weights)
    networks = getattr(shaping, "networks", None)
    networks = (shaping.network,) if networks is None else networks
    target = Target(reading, networks, dict(getattr(shaping, "left_alone", {})))
    constants = getattr(getattr(shaping, "constants", None), "by_node", {})
    return perform(reading.trace.model, edits_of(target, constants, law), law, key)


def edits_of(target: Target, constants: Mapping[Node, Any], law: str) -> Edits:
    """All edits that make a JAX model compute shaped networks."""
    _check_wiring(target)
    assert target.reading.trace is not None
    model: JaxModel = target.reading.trace.model
    found, left = _placed(target, model, constants)
    items = (*found, *weight_edits(model, target, law))
    name = getattr(model.original, "__name__", type(model.original).__name__)
    left_alone = {str(node): why for node, why in (target.left_alone | left).items()}
    return Edits(target.reading.framework, name, items, left_alone)


def perform(model: JaxModel, edits: Iterable[Edit], law: str, key: Any) -> Any:
    """A copy of a model with edits, drawn by a law from a key."""
    edits = list(edits)
    leaves = initial(model, edits, law, generator(key))
    calls = by_place(call for edit in edits for call in edit.calls)
    gone = {place[0][1]: place[0][2:] == ("bias",) for place in calls if place[0][0] == MODULE}
    own = {place: action for place, action in calls.items() if place[0][0] != MODULE}
    return getattr(modules, model.kind)(model, leaves, own, gone)


def _check_wiring(target: Target) -> None:
    """Raises: KcalcError for networks that are not made of the model's nodes as they are joined."""
    for node, (layer, parents) in target.steps.items():
        if node not in target.model:
            raise KcalcError(
                f"node {node!r} of the shaped network is no operation of the model; shape the "
                f"network that was read from it"
            )
        own = tuple(map(target.past, target.model.parents(node)))
        if tuple(parents) != own:
            raise KcalcError(
                f"node {node!r} of the shaped network reads {', '.join(map(repr, parents))}, in "
                f"the model {', '.join(map(repr, own))}; edits change what nodes compute, not what "
                f"they read: write the model in that order, and shape it then"
            )
        if isinstance(layer, Affine) != isinstance(target.model.layer(node), Affine):
            raise KcalcError(
                f"node {node!r} of the shaped network is no layer of the model; shape the network "
                f"that was read from it"
            )


# -- places ----------------------------------------------------------------------------------------


def _placed(
    target: Target, model: JaxModel, constants: Mapping[Node, Any]
) -> tuple[list[Edit], dict[Node, str]]:
    """The edits of activations, sums and what is removed, and {node: why it has no place}."""
    program = model.program
    assert program is not None and target.reading.trace is not None
    planner = Planner(target, program.flow(target.reading.trace.ops), constants)
    kept: list[tuple[Edit, Calls]] = []
    taken: set[int] = set()
    for edit, calls in planner.edits():
        if not taken.isdisjoint(calls):
            planner.left[edit.node] = TWICE
        elif any(_marked(program, c) and not isinstance(a, Taken) for c, a in calls.items()):
            planner.left[edit.node] = MARKED
        else:
            taken |= set(calls)
            kept.append((edit, calls))
    while uneven := _uneven(program, kept):
        planner.left |= dict.fromkeys((edit.node for edit, _ in uneven), LOOP)
        kept = [pair for pair in kept if pair not in uneven]
    serving = {norm for _, norm in biases(model, target).values()}
    edits = [
        replace(edit, calls=tuple(_call_edits(program, calls, edit.node in serving)))
        for edit, calls in kept
    ]
    return edits, planner.left


def _marked(program: Program, call: int) -> bool:
    return program.key(call)[0] == MODULE


def _uneven(program: Program, found: list[tuple[Edit, Calls]]) -> list[tuple[Edit, Calls]]:
    """The edits at equations of which another turn is edited in another way."""
    actions: dict[int, Action] = {call: a for _, calls in found for call, a in calls.items()}
    bad = {
        key
        for key, runs in program.runs.items()
        if any(run in actions for run in runs)
        and any(actions.get(run) != actions.get(runs[0]) for run in runs)
    }
    return [pair for pair in found if any(program.key(call) in bad for call in pair[1])]


def _call_edits(program: Program, calls: Calls, serves: bool) -> Iterator[CallEdit]:
    for call, action in calls.items():
        runs = program.runs[program.key(call)]
        place = program.place(call)
        if serves and place[0][0] == MODULE:
            place = ((*place[0], "bias"),)
        yield CallEdit(place, action, runs.index(call), len(runs))
