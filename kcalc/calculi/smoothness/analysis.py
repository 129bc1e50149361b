"""``smoothness``: curvature and regularity of a loss landscape, from bounds on the layers."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from ...fields.arguments import one_q, per_input, real_array
from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import mapping, whole
from ...maps.maps import Assumption
from ...network.compose import interpret, require_network
from ...network.network import Network, chosen_output, require_numbers
from ...network.primitives import Mix, Reshape
from ..checks import refuse_displaced, refuse_other_sizes
from ..widths import with_widths
from .hypotheses import hypotheses
from .logs import NONE, Gain, log
from .losses import loss_of
from .lower import backward
from .normalisers import positive_number
from .parameters import Choices, ParameterSet, check_nodes, of_node
from .result import LayerBound, Smoothness
from .upper import Bound, Upper, start

Node = Hashable


def smoothness(
    network: Network,
    features: Any = None,
    *,
    X: Any = None,
    examples: int = 1,
    q: Any = 1,
    weights: Mapping[Node, Any] | None = None,
    radius: Any = None,
    normalisation: Any = None,
    epsilon: Any = 1.0,
    scale: Any = 1.0,
    biases: Any = True,
    loss: str = "half_square",
    targets: Any = None,
    level: float | None = None,
    output: Node = None,
) -> Smoothness:
    """Bound Lipschitz constants, curvature and regularity of a network in its parameters.

    The bounds hold over a stated set of parameters. An option for layers is one value, or {node:
    value, None: value for all others}.

    Parameters
    ----------
    network
        A network without symbols.
    features
        The width of layers that do not specify one, or {node: width, None: width of all others}.
    X
        The examples, (N, features) or (N, height, width, features); {input: array} for several
        inputs.
    examples, q
        Alternatives to X: the number of examples, and their mean square (a number or {input:
        number}).
    weights
        {node: array (fan-in, outputs) or a convolution kernel, or {"weight": ..., "bias": ...}}.
    radius
        The parameters of every layer lie in a Frobenius ball of this radius around its weights, or
        around 0 if no weights are given. The default is 0 for layers with given weights. The bounds
        of a normalised layer with neither weights nor a radius hold for all w.
    normalisation
        The layer's weights are W = P(w). None means P(w) = w. "entry": every entry x of w becomes
        scale x / sqrt(epsilon + x^2). "weight": the weights r into each output become scale r /
        sqrt(epsilon + |r|^2).
    epsilon
        A number > 0; a value for all nodes also applies to BatchNorm.
    scale
        A factor, or "contracting", which makes the spectral norm of P(w) at most 0.99 for all w.
    biases
        False keeps biases constant at their given values, which are 0 by default.
    loss
        "square", "half_square", "cross_entropy" or "logistic"; each is the mean over the examples.
    targets, level
        The curvature of the first two losses needs the targets, (N, outputs), or an upper bound
        ``level`` of the loss, for example its value at the start of descent.
    output
        The output that enters the loss, if there are several.

    Returns
    -------
    Smoothness
        The constants at every layer and for the network.

    Raises
    ------
    KcalcError
        For unsupported layers (LayerNorm, RMSNorm, Product, Opaque, activations that jump),
        unbounded slopes, missing widths, radii or image shapes, and symbols.

    References
    ----------
    [MacDonald et al. 2023; Prop. 4.2-4.6, Theorem 4.7]

    """
    require_network(network)
    require_numbers(network)
    chosen_loss = loss_of(loss)
    wide = with_widths(network, features)
    target = chosen_output(wide, output)
    wide = wide if wide.outputs == (target,) else _up_to(wide, target)
    choices = Choices(
        dict(mapping({} if weights is None else weights, "weights")),
        radius,
        normalisation,
        epsilon,
        scale,
        biases,
    )
    check_nodes(wide if output is None else network, choices)
    data = _data(wide, X, examples, q)
    refuse_displaced(wide, "bounds that depend on how often windows read a position")
    sizes = {node: bound.locations for node, (bound, _, _) in data.items()}
    refuse_other_sizes(wide, {node: size for node, size in sizes.items() if size is not None})
    count = next(iter(data.values()))[1]
    cuts = [
        node
        for node in wide.cut_nodes()
        if node == target or wide.operations_of(node)[-1].primitive is not None
    ]
    rules = Upper(
        count, choices, positive_number(of_node(epsilon, None, 1.0), "epsilon"), frozenset(cuts)
    )
    bounds = interpret(wide, rules, {node: bound for node, (bound, _, _) in data.items()})
    gains, pieces = backward(wide, target, rules.gains, cuts)
    grams = {node: gram for node, (_, _, gram) in data.items()}
    layers = {node: _layer(wide, node, rules, bounds, gains, grams, count) for node in rules.sets}
    residual = _residual(chosen_loss, level, targets, bounds[target], count)
    found = hypotheses(wide, rules, layers, gains, chosen_loss, data)
    notes = (Assumption("network", _set_text(rules), "convention"), *wide.assumptions, *rules.notes)
    return Smoothness(
        wide,
        target,
        count,
        chosen_loss,
        bounds,
        gains,
        tuple(pieces),
        layers,
        residual,
        dict(rules.rough),
        found,
        notes,
    )


def _up_to(network: Network, node: Node) -> Network:
    """Return the part of a network that one output depends on."""
    needed = {node}
    for name, _, parents in reversed(tuple(network.steps())):
        needed |= set(parents) if name in needed else set()
    part = Network.from_steps([step for step in network.steps() if step[0] in needed], [node])
    return part.with_notes(network.notes)


# -- data ------------------------------------------------------------------------------------------


def _data(
    network: Network, X: Any, examples: Any, q: Any
) -> dict[Node, tuple[Bound, int, np.ndarray | None]]:
    """Return {input: (its bound, number of examples, the (N, features) array if known)}."""
    if X is not None:
        return _given_data(network, X)
    examples = whole(examples, "examples", 1)
    levels = per_input(network.inputs)(q, one_q, "q")
    found: dict[Node, tuple[Bound, int, np.ndarray | None]] = {}
    for node in network.inputs:
        layer: Any = network.layer(node)
        if layer.features is None:
            raise KcalcError(
                f"the number of features of the input {node!r} is unknown; pass features= (or X=)"
            )
        locations = _locations(layer.image_shape, node)
        one = math.sqrt(levels[node] * layer.features * math.prod(locations or ()))
        size = one * math.sqrt(examples)
        found[node] = start(node, (size, one), size, layer.features, locations), examples, None
    return found


def _locations(shape: Any, node: Node) -> tuple[int, int] | None:
    if shape is None:
        return None
    if len(shape) != 2:
        raise KcalcError(
            f"the input {node!r} has image_shape={shape}; bounds require image_shape=(height, "
            "width)"
        )
    return tuple(shape)


def _given_data(network: Network, X: Any) -> dict[Node, tuple[Bound, int, np.ndarray | None]]:
    arrays = per_input(network.inputs)(X, lambda v: real_array(v, "X"), "X")
    counts = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
    if len(counts) != 1 or 0 in counts:
        raise KcalcError(
            "X must contain the same number of examples (>= 1) for every input, got "
            f"{sorted(counts)}"
        )
    found: dict[Node, tuple[Bound, int, np.ndarray | None]] = {}
    for node, array in arrays.items():
        layer: Any = network.layer(node)
        if array.ndim not in (2, 4) or (
            layer.features is not None and array.shape[-1] != layer.features
        ):
            expected = layer.features or "features"
            raise KcalcError(
                f"X for the input {node!r} must have shape (N, {expected}) or (N, height, width, "
                f"{expected}), got shape {array.shape}"
            )
        locations = (array.shape[1], array.shape[2]) if array.ndim == 4 else None
        flat = array.reshape(len(array), -1)
        sizes = float(np.linalg.norm(flat)), float(np.linalg.norm(flat, axis=1).max())
        spectral = float(np.linalg.norm(array.reshape(-1, array.shape[-1]), 2))
        found[node] = (
            start(node, sizes, spectral, array.shape[-1], locations),
            len(array),
            flat if locations is None else None,
        )
    return found


def _residual(loss: Any, level: Any, targets: Any, out: Bound, examples: int) -> float | None:
    """Return the log of a bound on N |D gamma| for the mean loss gamma, or None without a bound.

    Losses with unbounded slope need the ``level`` or the ``targets``.
    """
    if loss.slope is not None:
        return log(loss.slope) + math.log(examples) / 2
    if level is not None:
        return log(loss.residual(positive_number(level, "level"), examples))
    if targets is None:
        return None
    wanted = real_array(targets, "targets")
    if wanted.shape != (examples, out.channels * out.places):
        raise KcalcError(
            f"targets must have shape ({examples}, {out.channels * out.places}), got {wanted.shape}"
        )
    return log(loss.pull) + float(np.logaddexp(out.size[0], log(float(np.linalg.norm(wanted)))))


# -- layers ----------------------------------------------------------------------------------------


def _layer(
    network: Network,
    node: Node,
    rules: Upper,
    bounds: Mapping[Node, Bound],
    gains: Mapping[Node, Gain],
    data: Mapping[Node, np.ndarray | None],
    examples: int,
) -> LayerBound:
    """Return bounds on one Affine layer, with its part of the lower bound on lambda(DF)."""
    layer: Any = network.layer(node)
    p, z = rules.sets[node], bounds[network.parents(node)[0]]
    rows = math.log(examples * bounds[node].places) / 2
    fresh = log(p.first) + float(z.spectral[0])
    own = float(np.logaddexp(2 * fresh, 2 * rows) / 2) if p.trained_bias else fresh
    dense = layer.kernel == 1 and layer.groups == 1 and z.locations is None
    array = _read(network, node, data) if dense else None
    sigma, least = _regularity(p, array, examples * bounds[node].places)
    return LayerBound(node, p, own, gains[node], sigma, least)


def _regularity(p: ParameterSet, array: np.ndarray | None, rows: int) -> tuple[float, float]:
    """Return the logs of the smallest of N singular values of the data X, and of a bound for Df.

    The bound is a lower bound on the smallest singular value of Df, the derivative of the layer f
    with respect to its parameters. ``Df Df^T = (I x X^T) DP DP^T (I x X) + I x 11^T``, where x is
    the Kronecker product; the second part is present only with a trained bias. So the smallest
    singular value of Df is at least |DP|_min sigma(X), and at least min(1, |DP|_min) times sigma of
    X with a column of ones. ``array`` is X, or None if the layer reads other layers. Without X the
    bound is 1 for one row and a trained bias, and otherwise 0.
    """
    if array is None:
        return NONE, 0.0 if rows == 1 and p.trained_bias else NONE
    plain, first = _smallest(array), log(p.least_first)
    if not p.trained_bias:
        return plain, first + plain
    with_ones = _smallest(np.concatenate([array, np.ones((len(array), 1))], axis=1))
    return max(plain, with_ones), max(first + plain, min(first, 0.0) + with_ones)


def _smallest(array: np.ndarray) -> float:
    """Return the log of the smallest of N singular values of an (N, features) array.

    The result is NONE if the rank is below N.
    """
    if len(array) > array.shape[1]:
        return NONE
    values = np.linalg.svd(array, compute_uv=False)
    return log(float(values[-1])) if values[-1] > 1e-14 * max(array.shape) * values[0] else NONE


def _read(
    network: Network, node: Node, data: Mapping[Node, np.ndarray | None]
) -> np.ndarray | None:
    """Return the data (N, features) that a layer reads, or None if it reads other layers."""
    factor, parent = 1.0, network.parents(node)[0]
    while len(network.parents(parent)) == 1:
        (_, op, _) = network.operations_of(parent)[-1]
        if not (op is None or isinstance(op, Reshape | Mix)):
            break
        factor *= abs(float(op.weights[0])) if isinstance(op, Mix) else 1.0
        (parent,) = network.parents(parent)
    array = data.get(parent)
    return None if array is None else factor * array


def _set_text(rules: Upper) -> str:
    """Describe the set of parameters."""
    all_of_them = sum(p.whole for p in rules.sets.values())
    if all_of_them == len(rules.sets):
        return (
            "bounds hold for all parameters, because every layer is normalised and has no "
            "trained bias"
        )
    if all_of_them:
        return (
            f"bounds hold for all parameters of {all_of_them} normalised layers, but for the "
            "other layers only in balls around the given parameters (or around 0)"
        )
    return (
        "bounds hold while the parameters of every layer stay in a ball around the given "
        "parameters (or around 0); there are no bounds outside these balls"
    )
