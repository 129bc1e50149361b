"""The scaling calculus: a forward fold, a reversed fold, and scalings of parameters [Scaling]."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import sympy as sp

from ...fields import SYMPY
from ...fields.arguments import per_input
from ...foundation.errors import KcalcError, glimpse, unknown
from ...foundation.plain_arguments import extents, truth
from ...network.compose import interpret, interpret_back, require_network
from ...network.layers import Affine, Input, Nonlinear, Pool, Scale, Sum
from ...network.network import Network
from ...network.primitives import Blend
from ..checks import refuse_displaced, refuse_other_sizes
from ..widths import with_widths
from .affine import Weight
from .backward import ScalingBackward, ScalingMessage
from .forward import ScalingForward
from .levels import FloatValues, Level, quotient
from .pools import uniform_pairs
from .result import Scaling, TensorScaling, WeightScaling
from .state import ChannelPart, EntryLaw, State, locations_of

Node = Hashable
Number = Any
PAIRS = 3.0e7  # largest number of pairs of locations to follow, over all nodes
ATOMS = (
    "the weights have atoms, so pre-activations are 0 with positive probability. ReLU is not "
    "symmetric there, so gamma is off by a few percent"
)
LAWS = {
    "gaussian": "",
    "uniform": "",
    "laplace": "",
    "orthogonal": "orthogonal weights are not independent, so the calculus holds only in the "
    "limit of large widths",
    "signs": ATOMS,
    "ternary": ATOMS,
}


def scaling(
    network: Network,
    features: Any = None,
    image_shape: Any = None,
    input_moment: Any = 1,
    input_symmetric: bool = True,
    input_correlation: Any = 0,
    correlation: Any = None,
    weights: str = "gaussian",
    cotangent_moment: Any = 1,
) -> Scaling:
    """Compute second moments of every tensor and gradient, and scalings of every parameter.

    For a tensor of n channels, with f = E[x^2] and b = E[(d loss/dx)^2] at location p: zeta = n
    sum_p f b. For the weights W of a layer from n to m channels with k^2 taps, gamma = zeta/(n m
    k^2 E[W^2]^2). Let nu = E[gW^2]/E[W^2], where gW is the gradient of W. Then gamma = nu at every
    width if weights are independent and symmetric without atoms, activations are rectifiers, and
    cotangents at the output are independent.

    Convolutions are dense: all taps are independent with Var W = sigma_w^2/(n k^2). Kernel maps
    assume Delta initialisation instead. [Scaling sec. 4, 8; App. A-E]

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    features
        The width of layers that do not specify one, or {node: width}. Widths are numbers or SymPy
        symbols (positive, integer).
    image_shape
        (height, width) of inputs whose layers do not define it.
    input_moment
        E[x^2] of the inputs: one value or {input: value}.
    input_symmetric
        Whether x and -x are equally likely.
    input_correlation
        The correlation of two locations of an input.
    correlation
        The correlation within the windows of mean pooling, or of the normals before max pooling:
        {Pool: r} or one value for all. None computes it.
    weights
        The weight distribution: "gaussian", "uniform", "laplace", "orthogonal", "signs" or
        "ternary". Distributions with atoms are reported as violations.
    cotangent_moment
        E[(d loss/dx)^2] at the outputs.

    Returns
    -------
    Scaling
        The moments of tensors and the scalings of parameters.

    Raises
    ------
    KcalcError
        For missing widths or images, and for invalid values.
    NoRule
        For unsupported layers (normalisation, products, weighted means, standardised weights).
    FreshnessError
        For sums whose cross terms have no rule.

    Examples
    --------
    >>> import kcalc as kc
    >>> s = kc.scaling(kc.architectures.vanilla(2, "relu", features=64))
    >>> len(s.weights)
    3

    """
    require_network(network)
    _check_law(weights)
    input_symmetric = truth(input_symmetric, "input_symmetric")
    net = with_images(with_widths(network, features, symbols=True), image_shape)
    refuse_displaced(net, "second moments by position")
    refuse_other_sizes(net, {node: net.layer(node).image_shape for node in net.inputs})
    symbolic = bool(net.free_symbols) or any(_has_symbols(v) for v in _values(input_moment))
    given = _Inputs(symbolic, input_moment, input_symmetric, input_correlation)
    chosen = _correlations(net, correlation)
    if symbolic:
        return _read(
            net, ScalingForward(net, True, correlation=chosen), given, weights, cotangent_moment
        )
    forward = ScalingForward(net, False, correlation=chosen)
    states: dict[Node, State] = interpret(net, forward, given.states(forward))
    sizes = {
        node: state.size if state.locations is not None else 1 for node, state in states.items()
    }
    below = frozenset(
        n
        for n in _below_means(net, sizes, forward)
        if any(part.rho != 0 for part in states[n].parts)
    )
    if not below or sum(sizes[node] ** 2 for node in below) > PAIRS:
        return _read(net, forward, given, weights, cotangent_moment, states, below)
    return _read(net, ScalingForward(net, False, below, chosen), given, weights, cotangent_moment)


# -- inputs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Inputs:
    """The assumptions on the inputs, as given by the caller."""

    symbolic: bool
    moment: Any
    symmetric: bool
    correlation: Any

    def states(self, forward: ScalingForward) -> dict[Node, State]:
        """The state of every Input."""
        network = forward.network
        moments = per_input(network.inputs)(
            self.moment, lambda v: _positive(v, "input_moment", self.symbolic), "input_moment"
        )
        rho = _unit(self.correlation, "input_correlation", self.symbolic)
        return {node: self._state(forward, node, moments[node], rho) for node in network.inputs}

    def _state(self, forward: ScalingForward, node: Node, moment: Number, rho: Number) -> State:
        layer: Any = forward.network.layer(node)
        if layer.features is None:
            raise KcalcError(
                f"the number of channels of the input {node!r} is unknown; pass "
                f"features={{{node!r}: ..., None: others}}"
            )
        size = locations_of(layer.image_shape)
        level = Level(moment if self.symbolic else np.full(size, moment))
        followed = node in forward.pairs and rho != 0
        pairs = uniform_pairs(level, rho) if followed else None
        law = EntryLaw("symmetric" if self.symmetric else "mixed")
        channels = layer.features
        return State(
            (ChannelPart(channels, level, pairs, rho),),
            layer.image_shape,
            size,
            law,
            forward.bits[node],
        )


def _positive(value: Any, what: str, symbolic: bool) -> Number:
    def fits(number: Any) -> bool:
        return number > 0 and (symbolic or math.isfinite(float(number)))

    return _given(value, what, "is a mean square and must be one number > 0", fits, symbolic)


def _unit(value: Any, what: str, symbolic: bool) -> Number:
    says = "is a correlation and must lie in [-1, 1]"
    return _given(value, what, says, lambda number: abs(number) <= 1, symbolic)


def _given(value: Any, what: str, says: str, fits: Callable[[Any], Any], symbolic: bool) -> Number:
    """Check that a number satisfies ``fits``, and return it.

    The result is a float, or an expression if the network is ``symbolic``. Expressions with symbols
    are accepted only in this case. ``what`` and ``says`` are parts of the error message.
    """
    try:
        number = SYMPY.number(value)
        ok = not isinstance(value, bool) and (number.free_symbols or fits(number))
    except (KcalcError, TypeError):
        ok, number = False, sp.Integer(0)
    if not ok:
        raise KcalcError(f"{what} {says}, got {glimpse(value)}")
    if not symbolic and number.free_symbols:
        raise KcalcError(
            f"{what} = {number} contains symbols, but the network has none; pass a number"
        )
    return number if symbolic else float(number)


def _has_symbols(value: Any) -> bool:
    return isinstance(value, sp.Basic) and bool(value.free_symbols)


def _values(given: Any) -> list[Any]:
    return list(given.values()) if isinstance(given, Mapping) else [given]


def _check_law(weights: Any) -> None:
    if not isinstance(weights, str) or weights not in LAWS:
        raise unknown(
            "weight distribution for the scaling calculus (with independent taps)",
            weights,
            LAWS,
        )


def with_images(network: Network, image_shape: Any) -> Network:
    """The network with ``image_shape`` set in its Input layers.

    Raises: KcalcError for an unknown input, and for a shape that contradicts the Input layer's
    shape.
    """
    if image_shape is None:
        return network
    given = (
        image_shape
        if isinstance(image_shape, Mapping)
        else dict.fromkeys(network.inputs, image_shape)
    )
    shapes: dict[Node, tuple[int, ...]] = {}
    for node, asked in given.items():
        if node not in network.inputs:
            raise unknown("input", node, map(str, network.inputs))
        stated, shapes[node] = network.layer(node).image_shape, extents(asked, "image_shape")
        if stated not in (None, shapes[node]):
            raise KcalcError(
                f"the layer of the input {node!r} sets image_shape={stated}, but {shapes[node]} "
                "was passed; set only one of them"
            )
    return network.map_layers(
        lambda node, layer: replace(layer, image_shape=shapes.get(node, layer.image_shape)), Input
    )


def _correlations(network: Network, correlation: Any) -> dict[Node, Number]:
    if correlation is None:
        return {}
    if not isinstance(correlation, Mapping):
        _unit(correlation, "correlation", _has_symbols(correlation))
    given = (
        dict(correlation)
        if isinstance(correlation, Mapping)
        else dict.fromkeys(network.nodes_of(Pool), correlation)
    )
    for node in given:
        if node not in network.nodes_of(Pool):
            raise KcalcError(
                f"correlation applies only to Pool nodes, but node {node!r} is a "
                f"{type(network.layer(node)).__name__}"
            )
    symbolic = bool(network.free_symbols) or any(_has_symbols(v) for v in given.values())
    return {
        node: _unit(value, f"correlation of {node!r}", symbolic) for node, value in given.items()
    }


# -- pairs of locations ----------------------------------------------------------------------------


def _below_means(
    network: Network, sizes: Mapping[Node, int], forward: ScalingForward
) -> frozenset[Node]:
    """The mean pooling nodes, and the nodes with several locations that lead to them."""
    found: set[Node] = set()
    for node, op, reads in reversed(network.operations):
        mean = (
            isinstance(op, Blend)
            and not op.weighted
            and node in forward.windows
            and not forward.windows[node].trivial
        )
        if mean or node in found:
            found.add(node)
            found.update(parent for parent in reads if sizes[parent] > 1)
    return frozenset(found)


# -- reading ---------------------------------------------------------------------------------------


def _read(
    network: Network,
    forward: ScalingForward,
    given: _Inputs,
    law: str,
    cotangent: Any,
    known: Mapping[Node, State] | None = None,
    unfollowed: frozenset[Node] = frozenset(),
) -> Scaling:
    states: Mapping[Node, State] = (
        known if known is not None else interpret(network, forward, given.states(forward))
    )
    backward = ScalingBackward(forward, states)
    start = backward.start(_positive(cotangent, "cotangent_moment", forward.symbolic))
    messages = interpret_back(network, backward.send, start, backward.add)
    _note_all(network, forward, given, law)
    sums = frozenset(network.nodes_of(Sum))
    tensors = {
        node: _tensor(network, node, states, messages, backward, node in sums)
        for node in network
        if messages[node] is not None
    }
    for node in network.nodes_of(Nonlinear):
        _note_ratio(forward, node, tensors)
    live = [node for node in network.nodes_of(Affine) if node in tensors]
    lost = {node for node in live if node in unfollowed}
    found = {
        node: _weight(node, forward.weights[node], messages[node], states[node], node in lost)
        for node in live
    }
    reference = _reference([w.gamma_level for w in found.values()], forward.symbolic)
    biased = [node for node in live if getattr(network.layer(node), "bias", False)]
    biases = {node: _bias(forward, node, messages[node], states[node]) for node in biased}
    scales = [node for node in network.nodes_of(Scale) if node in tensors]
    factors: dict[Node, Any] = {node: network.layer(node) for node in scales}
    scalars = {
        node: tensors[node].scaling_level.scaled(1 / forward.square(layer.factor) ** 2)
        for node, layer in factors.items()
    }
    return Scaling(
        network,
        tensors,
        {node: replace(w, reference_level=reference) for node, w in found.items()},
        FloatValues(biases, "a bias scaling"),
        FloatValues(scalars, "a scalar's scaling"),
        dict(forward.correlations),
        reference,
        tuple(forward.violations.values()),
        tuple(forward.notes.values()),
    )


def _reference(found: list[Level], symbolic: bool) -> Level:
    """The geometric mean of all gamma; if values are symbolic, the first gamma."""
    if not found:
        return Level(sp.Integer(1)) if symbolic else Level(np.ones(1))
    if symbolic:
        return found[0]
    whole, part = divmod(sum(level.log10() for level in found) / len(found) / math.log10(2), 1)
    return Level(np.array([2.0**part]), int(whole))


def _zeta(state: State, message: ScalingMessage) -> Level:
    """Return ``zeta = n sum_p f b``, summed over parts of n channels."""
    both = zip(state.parts, message.parts, strict=True)
    return reduce(
        Level.plus,
        (o.level.times(b.level).total(state.size).scaled(o.channels) for o, b in both),
    )


def _tensor(
    network: Network,
    node: Node,
    states: Mapping[Node, State],
    messages: Mapping[Node, Any],
    backward: ScalingBackward,
    adds: bool,
) -> TensorScaling:
    state, message = states[node], messages[node]
    zeta = _zeta(state, message)
    back = State(message.parts, state.locations, state.size, state.law, 0).moment()
    parents = network.parents(node)
    sent = [
        _zeta(states[p], backward.edges.get((node, slot)) or message)
        for slot, p in enumerate(parents)
    ]
    ratio, splits = None, None
    if len(parents) == 1:
        ratio = quotient(zeta, sent[0])
    if adds:
        whole = reduce(Level.plus, sent)
        splits = tuple(quotient(term, whole) for term in sent)
    locations = state.locations
    return TensorScaling(node, state.channels, locations, state.moment(), back, zeta, ratio, splits)


def _weight(
    node: Node, weight: Weight, message: Any, state: State, unfollowed: bool
) -> WeightScaling:
    """Return gamma = E[gW^2] / E[W^2] for the weights of a layer, and the variants of gamma.

    E[gW^2] = (1/(n k^2)) sum_p R(p) b(p), where R(p) is the sum of second moments over the channels
    and taps that output location p reads. ``unfollowed``: pairs of locations matter but were not
    followed, so nu is unknown.
    """
    part = message.parts[0]
    channels = weight.inputs if part.level.symbolic else float(weight.inputs)
    share = 1 / (channels / weight.groups * weight.taps)
    seen = weight.read.times(part.level)
    gamma = seen.total(state.size).scaled(share / weight.variance)
    extrinsic = weight.read.times(seen).over(state.parts[0].level).total(state.size).scaled(share)
    if gamma.symbolic:
        gamma, extrinsic = gamma.mapped(sp.simplify), extrinsic.mapped(sp.simplify)
    ratio = None if unfollowed else gamma
    if part.pairs is not None:
        read = ChannelPart(1, weight.read, weight.read_pairs).pair_values()
        ratio = read.times(part.pairs).total(1).scaled(share / weight.variance)
    given = (weight.inputs, weight.outputs, weight.taps, weight.groups, weight.variance)
    return WeightScaling(node, *given, gamma, extrinsic, ratio)


def _bias(forward: ScalingForward, node: Node, message: Any, state: State) -> Level:
    """The scaling gamma_b = sum_p b / f of a bias [Scaling def. 5, index corrected].

    f belongs to the tensor to which the bias is added.
    """
    weight = forward.weights[node]
    back = message.parts[0].level.total(state.size)
    before = weight.read.scaled(weight.variance)
    if before.symbolic:
        return back.over(before).mapped(sp.simplify)
    return back.over(Level(np.mean(before.values, keepdims=True).reshape(1), before.exponent))


# -- texts -----------------------------------------------------------------------------------------


def _note_all(network: Network, forward: ScalingForward, given: _Inputs, law: str) -> None:
    forward.note(
        "network",
        "weights are independent and symmetric, with the same variance in all taps of a "
        "convolution (kernel maps assume Delta initialisation)",
    )
    forward.note(
        "network",
        "cotangents at the outputs are independent of each other and of the weights, "
        "and have mean 0",
    )
    symmetric = "symmetric, " if given.symmetric else ""
    for node in network.inputs:
        spatial = network.layer(node).image_shape is not None  # type: ignore[attr-defined]
        where = (
            f"with correlation {given.correlation} between locations"
            if spatial
            else "with equal second moments in all channels"
        )
        forward.note(node, f"inputs are {symmetric}{where}")
    if LAWS[law]:
        forward.violated("network", LAWS[law])
    for node in network.nodes_of(Affine):
        layer: Any = network.layer(node)
        if layer.sigma_b != 0:
            forward.violated(
                node, "the bias does not start at 0, so gamma and its extrinsic form differ"
            )


def _note_ratio(forward: ScalingForward, node: Node, tensors: Mapping[Node, TensorScaling]) -> None:
    """Record a violation if an activation changes the activation scaling zeta."""
    tensor = tensors.get(node)
    if tensor is None or forward.symbolic or tensor.ratio is None or abs(tensor.ratio - 1) < 1e-9:
        return
    layer: Any = forward.network.layer(node)
    forward.violated(
        node, f"{layer.activation.name} multiplies the activation scaling by R = {tensor.ratio:.5g}"
    )
