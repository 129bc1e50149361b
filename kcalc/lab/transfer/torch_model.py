"""PyTorch models: read the base and the model, and find every parameter in the network."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ... import Reading, read
from ... import layers as L
from ... import network as P
from ...foundation.errors import KcalcError, NoRule, glimpse
from ...interchange import Held, Linear, Lookup, Normalise, Op, Pointwise, Prefixed
from ...interchange.torch_model import copied, trace_torch
from ...maps import Assumption
from ...network import owner
from .growth import Growth, NotInNetwork, growth_between, matching_name
from .powers import ONE
from .program import Program, Unlike, has_mixtures, program_of
from .program_run import before_zeros, guessed_of, reaching, run
from .program_sizes import ALONE, Fold, whole
from .result import Transfer
from .rules import CODES, Guesses, Options, Placement, derive, derive_program, setting
from .sizes import Sizes, TwoRoles
from .torch_groups import moments

Node = Hashable
UNREAD = (
    "no recorded operation reads it, for example because the output of a head is not returned; "
    "delete it, or freeze it with"
)


def torch_transfer(
    base: Any,
    model: Any,
    inputs: tuple[Any, ...],
    axes: tuple[str, ...] | None,
    chosen: Options,
) -> Transfer:
    """Return the rules for a ``torch.nn.Module`` that is a larger version of a base.

    Raises: KcalcError for other objects, for models that cannot be read, and for parameters whose
    place in the network is unknown.
    """
    if isinstance(base, int | Mapping) and not hasattr(model, "named_parameters"):
        raise KcalcError(
            f"base={base} is a size, so the first argument must be a function that builds models; "
            "also pass the size of the larger model as to="
        )
    for one in (base, model):
        if not hasattr(one, "named_parameters"):
            raise KcalcError(f"expected two networks or two torch.nn.Modules, got {glimpse(one)}")
    if not inputs:
        raise KcalcError(
            "kcalc reads PyTorch models by running them; pass example inputs or their "
            "shapes after the model, as in kc.transfer(build, (2, 3, 32, 32), base=64, "
            "to=256)"
        )
    if axes is not None and "rank" in axes:
        if "width" not in axes:
            _check_rank(base, model)
        axes = tuple(dict.fromkeys("width" if axis == "rank" else axis for axis in axes))
    small, large = (_read(one, inputs) for one in (base, model))
    try:
        return _by_network((small, large), (base, model), axes, chosen)
    except (NotInNetwork, NoRule, TwoRoles) as error:
        try:
            program = program_of(_whole(base, small, inputs), _whole(model, large, inputs))
        except Unlike as unlike:
            raise _counted(error, unlike, base, model) from None
        _check_axes(axes)
        _check_constants(base, model)
        return _by_program(program, (base, model), chosen)


def _check_rank(base: Any, model: Any) -> None:
    """Raise a KcalcError unless only the inner size of products B A with B = 0 grows."""
    small, inner, zeros = dict(base.named_parameters()), [], False
    for name, parameter in model.named_parameters():
        shapes = {tuple(other.shape) for other in matching_name(name, small)}
        own = tuple(parameter.shape)
        if own in shapes or not shapes:
            continue
        differing = [a != b for a, b in zip(own, shapes.pop(), strict=False)]
        if len(own) < 2 or sum(differing) != 1:
            raise KcalcError(
                f"parameter {name!r} has the shape {own}, so something other than the rank of the "
                "low-rank updates B A grows; add 'width' to axes, or use the same widths as the "
                "base"
            )
        inner.append(name)
        zeros = zeros or _is_zero(parameter)
    if not inner:
        raise KcalcError("the base has the same ranks as the model, so nothing grows")
    if not zeros:
        raise KcalcError(
            f"none of the weights that grow, {', '.join(map(repr, inner[:3]))}, starts at 0, "
            "so these are not low-rank updates B A with B = 0; use axes='width'"
        )


def _counted(error: KcalcError, unlike: Unlike, base: Any, model: Any) -> KcalcError:
    """Extend an error with the parameters that occur more often in the model than in the base.

    If there are none, extend it with the reason why the programs do not match.
    """
    families = [
        {re.sub(r"\d+", "*", name): 0 for name, _ in one.named_parameters()}
        for one in (base, model)
    ]
    for one, found in zip((base, model), families, strict=True):
        for name, _ in one.named_parameters():
            found[re.sub(r"\d+", "*", name)] += 1
    for name, count in families[1].items():
        before = families[0].get(name, 0)
        if before and count != before:
            return KcalcError(
                f"the model has {count} parameters {name!r}, but the base model has {before}. If "
                "these are experts, heads or streams, use the same number in both models, because "
                "this number changes gates and gradients by factors that are not powers of the "
                f"width. If they are blocks: {error}"
            )
    return KcalcError(f"{error}. Rules for single operations do not help, because {unlike}")


def _by_network(
    readings: tuple[Reading, Reading],
    models: tuple[Any, Any],
    axes: tuple[str, ...] | None,
    chosen: Options,
) -> Transfer:
    """Return the rules that follow from kernel-calculus networks, which also cover depth.

    Raises: KcalcError, NotInNetwork or NoRule if the rules may follow from a program instead.
    """
    small, large = readings
    for network in (small.network, large.network):
        for node in network.nodes_of(L.Opaque):
            unread = network.layer(node)
            advice = (
                "the table of an embedding may also be a readout, but other shared weights must be "
                "untied"
                if unread.name == "shared weights"
                else "compute it with operations that kcalc can read"
            )
            raise NotInNetwork(
                f"node {node!r} was not read ({unread.name}: {unread.reason}), so its sizes have "
                f"no exponents; {advice}"
            )
    growth = growth_between(small.network, large.network, axes)
    _check_inputs_and_epsilons(small, large)
    _check_constants(*models)
    return derive(large.network, growth, chosen, _placed(*models, large))


def _check_axes(axes: tuple[str, ...] | None) -> None:
    """Raise a KcalcError if ``axes`` contains "depth" although both models have the same depth."""
    if axes is not None and "depth" in axes:
        raise KcalcError("the base has the same depth; leave 'depth' out of axes")


def _by_program(program: Program, models: tuple[Any, Any], chosen: Options) -> Transfer:
    """Return the rules that follow from the operations that both models run."""
    if not program.ratios:
        raise KcalcError("the base has the same widths and depth as the network, so nothing grows")
    growth = Growth({}, {}, {}, (), program.ratios)
    told = setting(growth, chosen)
    fold, found = run(program, told, chosen.unknown)
    zeros = {n for n, p in models[1].named_parameters() if _is_zero(p)}
    if told.capped and zeros:  # these nodes are known only after a first run
        told = replace(told, zeros=frozenset(w.node for w in fold.kept if w.name in zeros))
        fold, found = run(program, told, chosen.unknown)
    scores = {node: power for node, (power, of_scores) in fold.settled.items() if of_scores}
    settled = {node: power for node, (power, _) in fold.settled.items() if node not in scores}
    names = {name for name, _ in models[1].named_parameters()}
    placed = [
        _placement(*models, name, node, kind, behind)
        for name, node, kind, behind in _uses_of(fold, found)
        if name in names
    ]
    _check_placed(placed, models[1])
    notes = (
        *(Assumption(node, ALONE, "heuristic") for node in fold.guessed),
        *(Assumption(node, CODES, "heuristic") for node in fold.codes),
    )
    rest = Guesses(
        placed,
        settled,
        fold.sized,
        guessed_of(fold),
        before_zeros(fold, zeros),
        notes,
        fold.columns,
    )
    return derive_program(replace(growth, scores=scores), chosen, (told, found), rest)


def _uses_of(fold: Fold, found: Sizes) -> Iterator[tuple[str, Node, str, Any]]:
    """Yield (parameter, node, kind, multiplier after it) for all uses of parameters.

    If a parameter affects an output, its uses that affect none are left out.
    """
    met = set()
    live = reaching(fold.program)
    names = {name for node, name in fold.program.parameters.items() if node in live}
    for one in fold.kept:
        if one.name in names and whole(one.node) not in live:
            continue
        met.add(one.name)
        own = fold.behind.get((one.node, "bias") if one.kind == "bias" else one.node, ONE)
        yield one.name, one.node, one.kind, own * fold.after.get(one.node, ONE)
    for node, name in fold.program.parameters.items():
        if found.gradients[node] != 0 or (name not in met and name in fold.roles):
            yield name, node, fold.roles.get(name, "vector"), ONE


def _others(name: str, small: Mapping[str, Any], own: Mapping[str, Any]) -> list[Any]:
    """Return the base model's parameters of the same name, up to block numbers.

    Blocks may have different sizes. A parameter of a block that the base model lacks is compared
    with the parameters that have the same shape in the larger model.
    """
    return matching_name(
        name, small, lambda other: other in own and own[other].shape == own[name].shape
    )


def _check_placed(placed: Sequence[Placement], model: Any) -> None:
    """Raise a KcalcError for a parameter that is trained but not read."""
    known = {one.name for one in placed}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name not in known:
            raise KcalcError(
                f"the place of parameter {name!r} in the network is not known: {UNREAD} "
                f"requires_grad_(False), because frozen parameters need no rule"
            )


def _placement(
    base: Any, model: Any, name: str, node: Node, kind: str, behind: Any = ONE
) -> Placement:
    """Return the placement for one use of a model's parameter."""
    small, own = dict(base.named_parameters()), dict(model.named_parameters())
    others = _others(name, small, own)
    pattern = re.sub(r"\d+", "*", name)
    counts = [sum(re.sub(r"\d+", "*", n) == pattern for n in one) for one in (own, small)]
    deviation, mean = moments(others) if others else (None, 0.0)
    if kind == "length" and deviation is not None:  # the size of the row lengths
        deviation = math.hypot(deviation, mean)
    return Placement(
        name,
        node,
        kind,
        tuple(own[name].shape),
        deviation,
        sum(p.numel() for p in others),
        counts[0] > counts[1],
        kind == "weight" and _is_zero(own[name]),
        behind,
    )


def _read(model: Any, inputs: tuple[Any, ...]) -> Reading:
    """Read the architecture, including branches whose trained factor starts at 0 (ReZero)."""
    found = read(model, *inputs, sigmas=False)
    zeros = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and _is_zero(parameter) and _multiplies(name, found)
    ]
    if not zeros:
        return found
    import torch

    twin = copied(model)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if name in zeros:
                parameter.fill_(1.0)
    return read(twin, *inputs, sigmas=False)


def _is_zero(parameter: Any) -> bool:
    return parameter.numel() > 0 and not bool(parameter.detach().any())


def _whole(model: Any, reading: Reading, inputs: tuple[Any, ...]) -> Reading:
    """Return the reading with a trace that contains all experts of mixtures."""
    if not has_mixtures(reading):
        return reading
    return replace(reading, trace=trace_torch(model, *inputs, experts=True))


def _multiplies(name: str, reading: Reading) -> bool:
    """Return whether a parameter is read as a factor of a feature map."""
    held = {op.name for op in _ops(reading) if isinstance(op, Held) and _takes(op, name)}
    return any(
        isinstance(op, Pointwise) and op.label == "mul" and held.intersection(op.reads)
        for op in _ops(reading)
    )


def _check_constants(base: Any, model: Any) -> None:
    """Reject constant parameters whose value differs from the base.

    An example is a LayerScale that starts at 1 / depth. Rules are relative to the initial values of
    the base, and rescaling does not change constants.

    Raises: KcalcError for such parameters.
    """
    small, own = dict(base.named_parameters()), dict(model.named_parameters())
    for name, parameter in own.items():
        if parameter.numel() == 1 and name.rpartition(".")[2] == "bias":
            continue  # a layer with one output, whose parameter is usually drawn at random
        others = _others(name, small, own)
        one, two = (_constants(group) for group in ([parameter], others))
        if one and two and not any(math.isclose(a, b, rel_tol=1e-5) for a in one for b in two):
            raise KcalcError(
                f"parameter {name!r} starts at {min(one):.4g}, but at {min(two):.4g} in the "
                "base model; use the same initial values as the base. kc.transfer reports "
                "how to change them"
            )


def _constants(parameters: Sequence[Any]) -> set[float]:
    """Return the values of constant parameters, or an empty set if one is not constant."""
    found = set()
    for parameter in parameters:
        values = parameter.detach().flatten()
        if not values.numel() or bool((values != values[0]).any()):
            return set()
        found.add(float(values[0]))
    return found


def _check_inputs_and_epsilons(small: Reading, large: Reading) -> None:
    """Raise a KcalcError if functions of inputs, or the epsilons of norms, differ."""
    for network in (small.network, large.network):
        for node in network.inputs:
            notes = [tuple(n.text for n in one.notes if n.node == node) for one in (large, small)]
            if notes[0] != notes[1]:
                own, base = (" and ".join(texts) or "no remark" for texts in notes)
                raise KcalcError(
                    f"input {node!r} is read differently in the two models ({own}, but "
                    f"{base} in the base model); use the same functions as the base"
                )
    known = {op.name: op for op in _norms(small)}
    for op in _norms(large):
        for other in matching_name(op.name, known):
            if not any(
                math.isclose(own, theirs, rel_tol=1e-6)
                for own, theirs in zip(_epsilons(op), _epsilons(other), strict=True)
            ):
                raise KcalcError(
                    f"node {op.name!r} has epsilon {op.epsilon:g}, but {other.epsilon:g} in "
                    "the base model; the base may differ only in width and depth"
                )


def _epsilons(op: Normalise) -> tuple[float, float]:
    """Return epsilon, and epsilon divided by 1 - 1 / n for norms with an unbiased variance."""
    count = math.prod(op.shape[axis] for axis in op.axes) / op.groups
    return op.epsilon, op.epsilon / (1 - 1 / count) if count > 1 else op.epsilon


def _norms(reading: Reading) -> list[Normalise]:
    return [op for op in _ops(reading) if isinstance(op, Normalise)]


def _placed(base: Any, model: Any, reading: Reading) -> list[Placement]:
    """Return all uses of all parameters, except frozen parameters that are not found."""
    small = dict(base.named_parameters())
    own = dict(model.named_parameters())
    uses = list(_uses(reading))
    met = {name for name, _, _ in uses}
    uses += [
        (name, *use)
        for name in own
        if name not in met and (use := _vector(name, own, small, reading)) is not None
    ]
    return [_placement(base, model, *use) for use in uses if use[0] in own]


def _uses(reading: Reading) -> Iterator[tuple[str, Node, str]]:
    """Yield (parameter, node of its primitive, kind) for weights and their biases."""
    network = reading.network
    made = {owner(node): node for node, op, _ in network.operations if isinstance(op, P.Fresh)}
    added = set(network.nodes_of(L.Positions, L.ClassToken))
    held: dict[str, str] = {}
    for op in _ops(reading):
        if isinstance(op, Held) and op.parameter is not None:
            held[op.name] = op.parameter
        if isinstance(op, Linear | Lookup) and op.name in made:
            yield op.parameter, made[op.name], "weight"
        if isinstance(op, Linear) and op.bias_parameter is not None and op.name in made:
            yield op.bias_parameter, made[op.name], "bias"
        if op.name in added:
            arrays = [held[name] for name in op.reads if name in held]
            arrays += (op.parameter or "").split(", ") if isinstance(op, Prefixed) else []
            for name in arrays:
                yield name, made[op.name], "weight"


def _vector(
    name: str, own: Mapping[str, Any], small: Mapping[str, Any], reading: Reading
) -> tuple[Node, str] | None:
    """Return (node, kind) of a gain or another vector, or None if it is frozen and not found.

    Raises: KcalcError for anything but vectors with at most one axis that grows.
    """
    parameter = own[name]
    grown = [
        sum(a != b for a, b in zip(parameter.shape, other.shape, strict=True))
        for other in _others(name, small, own)
        if other.ndim == parameter.ndim
    ]
    place = _place(name, own, reading)
    if grown and max(grown) <= 1 and place is not None:
        node, factor = place
        return node, ("gain" if max(grown) else "shared") if factor else "vector"
    if not parameter.requires_grad:
        return None
    takers = [op.name for op in _ops(reading) if _takes(op, name)]
    told = (
        f"there is no rule for the way in which {takers[0]!r} uses it; freeze it with"
        if takers
        else UNREAD
    )
    raise NotInNetwork(
        f"the place of parameter {name!r} in the network is not known: {told} "
        "requires_grad_(False), because frozen parameters need no rule"
    )


def _ops(reading: Reading) -> Sequence[Op]:
    return reading.trace.ops if reading.trace is not None else ()


def _takes(op: Op, name: str) -> bool:
    """Return whether an operation reads a parameter, or a value computed from it."""
    parameter = (getattr(op, "parameter", None) or "").partition(" #")[0]
    return name in parameter.split(", ")


def _place(name: str, own: Container[str], reading: Reading) -> tuple[Node, bool] | None:
    """Return (node, whether it is a factor there) for a parameter that is not a weight."""
    ops = _ops(reading)
    held = {op.name for op in ops if isinstance(op, Held) and _takes(op, name)}
    readers = [op for op in ops if held.intersection(op.reads)]
    tokens = [op for op in ops if isinstance(op, Prefixed) and _takes(op, name)]
    if not readers and not tokens:
        norms = [op.name for op in ops if isinstance(op, Normalise) and _of_norm(name, op, own)]
        return (norms[0], True) if norms and norms[0] in reading.network else None
    nodes = {_node(op, reading, held) for op in (*readers, *tokens)}
    if len(nodes) > 1 or None in nodes or not all(isinstance(op, Pointwise) for op in readers):
        return None
    added = all(isinstance(op, Pointwise) and op.label in ("add", "sub") for op in readers)
    return nodes.pop(), not added  # separate tokens are also added


def _of_norm(name: str, op: Normalise, own: Container[str]) -> bool:
    """Return whether a norm is the module that owns a parameter, or is computed in that module."""
    module = name.rpartition(".")[0]
    # an unbiased standard deviation adds a factor after the norm, and the norm then gets the suffix
    # .norm
    inner = op.name.removeprefix(f"{module}.").removesuffix(".norm")
    here = inner != op.name and "." not in inner and f"{op.name}.weight" not in own
    return op.name == module or here


def _node(op: Op, reading: Reading, arrays: Container[str]) -> Node | None:
    """Return the node whose feature map an operation returns, or else the only node that it reads.

    Return None if there is no such node.
    """
    ops = {one.name: one for one in _ops(reading)}
    made = {node for node, _, _ in reading.network.operations}
    while (node := reading.places.get(op.name)) is None or node not in made:
        sources = [read for read in op.reads if read not in arrays]
        readers = [one for one in ops.values() if sources[0] in one.reads] if sources else []
        if len(sources) != 1 or len(readers) != 1:
            return None
        op = ops[sources[0]]
    return node


__all__ = ["torch_transfer"]
