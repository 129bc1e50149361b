"""The set of parameters over which bounds hold, layer by layer.

The set is a ball around given weights, or all of parameter space for normalised weights.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...fields.arguments import one_number, real_array
from ...foundation.errors import KcalcError, glimpse
from ...foundation.plain_arguments import truth
from ...network.layers import Affine
from ...network.network import Network, require_kind
from ...network.primitives import Fresh
from .normalisers import (
    EntryNormalisation,
    Normaliser,
    NormaliserBounds,
    WeightNormalisation,
    normaliser,
    positive_number,
)

Node = Hashable
SHRINK = 0.99
CONTRACTING = "contracting"


@dataclass(frozen=True)
class ParameterSet:
    """The weights of one Affine layer.

    Bounds over a set of parameters: ``spectral`` >= |W|_2 and ``bias`` >= |b|.

    ``first``, ``second``: suprema of |DP| and |D^2 P| of the parameterisation W = P(w).
    ``least_first`` is a lower bound on the smallest singular value of DP, and ``least`` is a lower
    bound on the smallest singular value of W as a map to the outputs (0 if there are more outputs
    than inputs). ``trained_bias``: whether the bias is a parameter. ``whole``: whether the set is
    all of parameter space.
    """

    spectral: float
    bias: float
    first: float
    second: float
    least_first: float
    least: float
    trained_bias: bool
    whole: bool
    kind: str | None


@dataclass(frozen=True)
class Choices:
    """The options of :func:`kcalc.calculi.smoothness.smoothness` that concern parameters.

    Each option is one value or {node: value, None: value for all others}.
    """

    weights: Mapping[Node, Any]
    radius: Any
    normalisation: Any
    epsilon: Any
    scale: Any
    biases: Any


def of_node(given: Any, node: Node, default: Any = None) -> Any:
    """The value for a node, from one value or {node: value, None: value for all others}.

    The result is ``default`` if the node has no value.
    """
    return given.get(node, given.get(None, default)) if isinstance(given, Mapping) else given


def check_nodes(network: Network, choices: Choices) -> None:
    """Check that options name only Affine nodes.

    Raises: KcalcError.
    """
    for name in ("weights", "radius", "normalisation", "epsilon", "scale", "biases"):
        value = getattr(choices, name)
        nodes = [node for node in value if node is not None] if isinstance(value, Mapping) else ()
        require_kind(network, nodes, f"; {name} can be set only for Affine nodes", Affine)


def parameter_set(op: Fresh, node: Node, fan_in: int, choices: Choices) -> ParameterSet:
    """The parameter set of one layer.

    Raises: KcalcError for unsuitable options, and for a plain layer with neither radius nor
    weights.
    """
    if op.standardised:
        raise KcalcError(
            f"node {node!r}: weight standardisation with epsilon = 0 is not Lipschitz; use "
            "standardised=False and a normalisation"
        )
    kind = of_node(choices.normalisation, node)
    trained = op.bias and truth(of_node(choices.biases, node, True), f"biases of node {node!r}")
    rule = None if kind is None else _rule(kind, of_node(choices.epsilon, node, 1.0), node)
    given = choices.weights.get(node)
    radius = _radius(of_node(choices.radius, node), given, rule, trained, node)
    weight, bias = _arrays(given, op, node, fan_in)
    outputs: Any = op.features
    moved = 0.0 if radius is None else radius
    held = 0.0 if bias is None else float(np.linalg.norm(bias))
    offset = held + moved if trained else held
    if rule is None:
        _scale(of_node(choices.scale, node, 1.0), None, node)
        spectral, least = _matrix(weight, op.groups)
        return ParameterSet(
            spectral + moved, offset, 1.0, 0.0, 1.0, max(0.0, least - moved), trained, False, None
        )
    own = rule.bounds(outputs, fan_in)
    factor = _scale(of_node(choices.scale, node, 1.0), own, node)
    bounds = own.scaled(factor)
    slope = 0.0 if radius is None else factor * _least_first(rule, weight, outputs, fan_in, radius)
    spectral, least = (
        (bounds.value, 0.0)
        if weight is None or radius is None
        else _matrix(factor * np.asarray(rule.value(weight.T)).T, op.groups)
    )
    drift = bounds.first * moved
    value = min(bounds.value, spectral + drift)
    return ParameterSet(
        value,
        offset,
        bounds.first,
        bounds.second,
        slope,
        max(0.0, least - drift),
        trained,
        radius is None,
        rule.kind,
    )


def _rule(kind: Any, epsilon: Any, node: Node) -> Normaliser:
    if isinstance(kind, str) and kind == "batch":
        raise KcalcError(
            f"node {node!r}: weights are normalised by 'entry' or 'weight'; to normalise over "
            f"batches, add a BatchNorm layer"
        )
    return normaliser(kind, epsilon)


def _radius(
    value: Any, given: Any, rule: Normaliser | None, trained: bool, node: Node
) -> float | None:
    """The radius of the ball, or None for all of parameter space."""
    if value is None and given is not None:
        return 0.0
    if value is None:
        if rule is None or trained:
            what, more = (
                ("weights", "normalisation=...") if rule is None else ("bias", "biases=False")
            )
            raise KcalcError(
                f"the {what} of node {node!r} can take any value, so there is no bound; pass "
                f"radius=..., weights={{...}}, or {more}"
            )
        return None
    number = float("nan") if isinstance(value, bool) else one_number(value, "radius")
    if not number >= 0:
        raise KcalcError(f"radius must be a number >= 0, got {glimpse(value)} for node {node!r}")
    return number


def _scale(value: Any, bounds: NormaliserBounds | None, node: Node) -> float:
    if isinstance(value, str) and value == CONTRACTING:
        return 1.0 if bounds is None else SHRINK / bounds.value
    if isinstance(value, str) or value is None:
        raise KcalcError(
            f"scale must be a number > 0 or {CONTRACTING!r}, got {glimpse(value)} for node {node!r}"
        )
    return positive_number(value, "scale")


def _arrays(
    given: Any, op: Fresh, node: Node, fan_in: int
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return (weights of shape (fan-in, outputs), bias) from the value given for a node.

    An entry is None if it is not given.
    """
    if given is None:
        return None, None
    leaves = given if isinstance(given, Mapping) else {"weight": given}
    if "weight" not in leaves or set(leaves) - {"weight", "bias"}:
        raise KcalcError(
            f"the weights of node {node!r} must be an array or {{'weight': ..., 'bias': ...}}, "
            f"got {sorted(map(str, leaves))}"
        )
    weight = real_array(leaves["weight"], f"weights of {node!r}")
    outputs: Any = op.features
    if weight.ndim < 2 or weight.shape[-1] != outputs or weight.size != fan_in * outputs:
        raise KcalcError(
            f"node {node!r} has weights of shape {weight.shape}, expected ({fan_in}, {outputs}) "
            "or a kernel with the same number of entries"
        )
    bias = None if leaves.get("bias") is None else real_array(leaves["bias"], f"bias of {node!r}")
    if bias is not None and (not op.bias or bias.shape != (outputs,)):
        expected = f"shape ({outputs},)" if op.bias else "none: the layer has bias=False"
        raise KcalcError(f"node {node!r} has a bias of shape {bias.shape}, expected {expected}")
    return weight.reshape(fan_in, outputs), bias


def _matrix(weight: np.ndarray | None, groups: int) -> tuple[float, float]:
    """The largest and the smallest singular value of weights as a map to the outputs.

    With groups, weights are treated block by block.
    """
    if weight is None:
        return 0.0, 0.0
    values = [np.linalg.svd(block, compute_uv=False) for block in np.split(weight, groups, axis=1)]
    wide = weight.shape[1] // groups <= weight.shape[0]
    return max(float(v[0]) for v in values), min(float(v[-1]) for v in values) if wide else 0.0


def _least_first(
    rule: Normaliser, weight: np.ndarray | None, rows: int, columns: int, radius: float
) -> float:
    """A lower bound on the smallest singular value of DP over the ball.

    The bound is attained when the longest entry or row grows by ``radius``.
    """
    start = np.zeros((rows, columns)) if weight is None else weight.T
    if isinstance(rule, EntryNormalisation):
        return rule.smallest_slope(np.array([np.abs(start).max() + radius]))
    assert isinstance(rule, WeightNormalisation)
    return rule.smallest_slope(np.array([[np.linalg.norm(start, axis=1).max() + radius]]))
