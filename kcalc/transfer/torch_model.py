"""Models of PyTorch: both are read, and every parameter is placed in the network."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from ..foundation.errors import KcalcError
from ..interchange.model_reading import Reading
from ..interchange.read import read
from ..interchange.trace import Held, Linear, Lookup, Normalise
from ..network import primitives as P
from ..network.layers import Opaque, Positions
from ..network.network import Network
from ..network.primitives import owner
from .growth import Growth, growth_between, matching_name
from .result import Transfer
from .rules import Options, Placement, derive

Node = Hashable


def torch_transfer(
    base: Any,
    model: Any,
    inputs: tuple[Any, ...],
    axes: tuple[str, ...] | None,
    chosen: Options,
) -> Transfer:
    """The rules for a ``torch.nn.Module``, grown from another.

    Raises: KcalcError for other objects, models that cannot be read, and parameters whose place in
    the network is not known.
    """
    for one in (base, model):
        if not hasattr(one, "named_parameters"):
            raise KcalcError(
                f"expected two networks or two torch.nn.Modules, got a {type(one).__name__}"
            )
    small, large = read(base, *inputs), read(model, *inputs)
    for network in (small.network, large.network):
        for node in network.nodes_of(Opaque):
            unread = network.layer(node)
            raise KcalcError(
                f"node {node!r} was not read ({unread.name}: {unread.reason}), so its sizes have "
                f"no exponents; see kc.read(model, ...).notes"
            )
    growth = growth_between(small.network, large.network, axes)
    _check_inputs_and_epsilons(small, large)
    return derive(large.network, growth, chosen, _placed(base, model, large, growth))


def _check_inputs_and_epsilons(small: Reading, large: Reading) -> None:
    """Raises: KcalcError where inputs go through other functions, or norms have another epsilon."""
    for network in (small.network, large.network):
        for node in network.inputs:
            notes = [tuple(n.text for n in one.notes if n.node == node) for one in (large, small)]
            if notes[0] != notes[1]:
                own, base = (" and ".join(texts) or "no remark" for texts in notes)
                raise KcalcError(
                    f"input {node!r}: {own}; in the base: {base}. Keep functions of inputs as they "
                    f"are in the base"
                )
    known = {op.name: op for op in _norms(small)}
    for op in _norms(large):
        for other in matching_name(op.name, known):
            if not math.isclose(op.epsilon, other.epsilon, rel_tol=1e-6):
                raise KcalcError(
                    f"node {op.name!r} has the epsilon {op.epsilon:g}, in the base "
                    f"{other.epsilon:g}: the base may differ in width and depth alone"
                )


def _norms(reading: Reading) -> list[Normalise]:
    ops = reading.trace.ops if reading.trace is not None else ()
    return [op for op in ops if isinstance(op, Normalise)]


def _placed(base: Any, model: Any, reading: Reading, growth: Growth) -> list[Placement]:
    """All uses of all parameters."""
    small = dict(base.named_parameters())
    own = dict(model.named_parameters())
    uses = list(_uses(reading))
    met = {name for name, _, _ in uses}
    uses += [_vector(n, p, small, reading.network) for n, p in own.items() if n not in met]
    return [
        Placement(name, node, kind, tuple(own[name].shape), _spread(name, small))
        for name, node, kind in uses
        if name in own
    ]


def _uses(reading: Reading) -> Iterator[tuple[str, Node, str]]:
    """(parameter, node of its primitive, kind) of weights and their biases."""
    network = reading.network
    made = {owner(node): node for node, op, _ in network.operations if isinstance(op, P.Fresh)}
    held: dict[str, str] = {}
    for op in reading.trace.ops if reading.trace is not None else ():
        if isinstance(op, Held) and op.parameter is not None:
            held[op.name] = op.parameter
        if isinstance(op, Linear | Lookup) and op.name in made:
            yield op.parameter, made[op.name], "weight"
        if isinstance(op, Linear) and op.bias_parameter is not None and op.name in made:
            yield op.bias_parameter, made[op.name], "bias"
        if op.name in network and isinstance(network.layer(op.name), Positions):
            for name in op.reads:
                if name in held:
                    yield held[name], made[op.name], "weight"


def _vector(
    name: str, parameter: Any, small: Mapping[str, Any], network: Network
) -> tuple[str, Node, str]:
    """The use of a gain or another vector: at the node of the module that holds it.

    Raises: KcalcError for anything but vectors with one extent that grows at most.
    """
    grown = {
        sum(a != b for a, b in zip(parameter.shape, other.shape, strict=True))
        for other in matching_name(name, small)
        if other.ndim == parameter.ndim
    }
    module = name.rpartition(".")[0]
    nodes = [
        n for n in network if str(n) == module or str(n).startswith((f"{module}.", f"{module}["))
    ]
    if not grown or max(grown) > 1 or not nodes or not module:
        raise KcalcError(
            f"the place of parameter {name!r} in the network is not known: no layer that was read "
            f"has it; freeze it, or write the operation that uses it as a module of its own"
        )
    return name, nodes[-1], "gain" if max(grown) else "shared"


def _spread(name: str, small: Mapping[str, Any]) -> float | None:
    """The standard deviation of a parameter in the base; of several counterparts, their mean."""
    others = matching_name(name, small)
    if not others:
        return None
    squares = [float(p.detach().double().var(unbiased=False)) for p in others]
    return math.sqrt(sum(squares) / len(squares))


__all__ = ["torch_transfer"]
