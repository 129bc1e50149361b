"""Find the edits of a JAX model from its shaped network, and apply them to a copy."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ..edit_target import Target
from ..editing_plan import TWICE, Calls, Planner
from ..edits import Action, CallEdit, Edit, Edits, Taken
from ..outdated import outdated
from . import keras_models, modules
from .functions import JaxModel, Parameters
from .kinds import kind_of, split
from .program import JaxProgram
from .sites import MODULE, by_place
from .weights import JaxWeightEdits, generator, redrawn

Node = Hashable
LOOP = (
    "it runs several times, in a loop or in a module that is called again, and the runs would "
    "need different edits"
)
MARKED = "it belongs to a normalisation or dropout layer, which can only be edited as a whole"


def jax_edits(target: Target, constants: Mapping[Node, Any]) -> Edits:
    """Return the edits for a model that was read.

    Nodes that cannot be located in its code are in ``left_alone``. ``constants``: {node: constants
    of its shaped activation}.
    """
    trace = target.reading.trace
    assert trace is not None
    model: JaxModel = trace.model
    weights = JaxWeightEdits(model, target)
    planner = Planner(target, model.program.flow(trace.ops), constants)
    found = _placed(planner, model.program, set(weights.norm_of))
    found += list(weights.edits())
    name = getattr(model.original, "__name__", type(model.original).__name__)
    order = {str(node): place for place, node in enumerate(target.model)}
    found.sort(key=lambda edit: order[edit.node])
    left = {**target.left_alone, **planner.left, **weights.left}
    return Edits(trace.framework, name, tuple(found), {str(n): why for n, why in left.items()})


def edited(model: Any, edits: Edits, law: str, key: Any) -> Any:
    """Return an edited copy of a model.

    The copy runs the user's own code; only the edited calls change. Custom derivatives,
    ``stop_gradient``, loops, branches, states, other batch sizes and other modes work as before.
    The parameter tree stays the same. It still contains the parameters of removed normalisation,
    which are unused with one exception: if the preceding layer has no bias, the normalisation's
    bias serves as the layer's bias. ``law``: "orthogonal_delta" and "gaussian_delta" draw new
    weights for the central tap of every kernel; "keep" keeps the model's weights. ``key``: an
    integer or ``jax.random.key(seed)``; the same key gives the same weights.

    Returns: (function, parameters) for functions, (module, variables) for Linen, and a model of the
    user's class for NNX, Equinox and Keras. All work with ``jax.jit``, ``jax.grad`` and
    ``jax.vmap``.

    Raises: KcalcError if the model is of a different kind, if its parameters do not match the
    edits, or if a kernel has an even size.
    """
    kind, random = kind_of(model), generator(key)
    if (framework := FRAMEWORKS[kind]) != edits.framework:
        raise KcalcError(
            f"these edits are for {edits.framework} models, but this is a {framework} model"
        )
    module, tree = split(kind, model)
    own = Parameters.of(kind, tree)
    leaves = redrawn(own.leaves, edits, law, random)
    calls = by_place(call for edit in edits for call in edit.calls)
    gone = {place[0][1]: place[0][2:] == ("bias",) for place in calls if place[0][0] == MODULE}
    rest = {place: action for place, action in calls.items() if place[0][0] != MODULE}
    return COPIES[kind](module, own.filled(leaves), rest, gone)


def changed(reading: Any, model: Any, edits: Edits) -> str:
    """Return a parameter whose value in the network is out of date, or "" if there is none."""
    known: JaxModel = reading.trace.model
    norms = [call.place[0] for edit in edits if edit.kind == "norm" for call in edit.calls]
    gone = [place[1] for place in norms if place[0] == MODULE]
    leaves = Parameters.of(known.kind, split(known.kind, model)[1]).leaves
    now = {name: np.asarray(leaves[name]) for name in known.numbers if name in leaves}
    return outdated(known.numbers, now, edits, gone)


FRAMEWORKS = {"function": "jax", "nnx": "flax", "linen": "flax"}
FRAMEWORKS |= {"equinox": "equinox", "keras": "keras"}
COPIES = {
    "function": modules.function,
    "nnx": modules.nnx,
    "linen": modules.linen,
    "equinox": modules.equinox,
    "keras": keras_models.copied,
}  # the functions that make an edited copy, by kind of model


# -- places ----------------------------------------------------------------------------------------


def _placed(planner: Planner, program: JaxProgram, serving: set[str]) -> list[Edit]:
    """Return the edits for activations, sums and removed layers, with their places in the code.

    ``serving``: removed normalisations whose biases stay in use.
    """
    kept: list[tuple[Edit, Calls]] = []
    taken: set[int] = set()
    for edit, calls in planner.edits():
        marked = [action for call, action in calls.items() if program.key(call)[0] == MODULE]
        if not taken.isdisjoint(calls):
            planner.left[edit.node] = TWICE
        elif not all(isinstance(action, Taken) for action in marked):
            planner.left[edit.node] = MARKED
        else:
            taken |= set(calls)
            kept.append((edit, calls))
    while uneven := _uneven(program, kept):
        planner.left |= dict.fromkeys((edit.node for edit, _ in uneven), LOOP)
        kept = [pair for pair in kept if pair not in uneven]
    return [
        replace(edit, calls=tuple(_call_edits(program, calls, edit.node in serving)))
        for edit, calls in kept
    ]


def _uneven(program: JaxProgram, found: list[tuple[Edit, Calls]]) -> list[tuple[Edit, Calls]]:
    """Return the edits that act on an equation in a loop but differ between its iterations."""
    actions: dict[int, Action] = {call: a for _, calls in found for call, a in calls.items()}
    bad = {
        key
        for key, runs in program.runs.items()
        if any(run in actions for run in runs)
        and any(actions.get(run) != actions.get(runs[0]) for run in runs)
    }
    return [pair for pair in found if any(program.key(call) in bad for call in pair[1])]


def _call_edits(program: JaxProgram, calls: Calls, serves: bool) -> Iterator[CallEdit]:
    for call, action in calls.items():
        runs = program.runs[program.key(call)]
        place = program.place(call)
        if serves and place[0][0] == MODULE:
            place = ((*place[0], "bias"),)
        yield CallEdit(place, action, runs.index(call), len(runs))
