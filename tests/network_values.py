"""What a shaped network computes with the weights of the model that was read, in numpy.

The edits of the model take no part, so that it is an independent truth for models given back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from kcalc.network import layers as L
from kcalc.network.network import Network, sum_weights

Array = np.ndarray
Step = tuple[L.Layer, tuple[Hashable, ...]]


def shaped_values(shaping: Any, x: Array) -> Array:
    """The first output of the model with its own weights, of one input, shaped.

    Nodes in no shaped network are the model's own, but for those that shaping took out of it.
    """
    network = shaping.reading.unmerged
    shaped = getattr(shaping, "networks", None) or (shaping.network,)
    steps: dict[Hashable, Step] = {
        node: (layer, parents)
        for one in shaped
        for node, layer, parents in one.steps()
        if not isinstance(layer, L.Input) and node not in getattr(shaping, "left_alone", ())
    }
    return values(network, steps, shaping, x)


def values(network: Network, steps: Mapping[Hashable, Step], shaping: Any, x: Array) -> Array:
    """The first output of a network, in which ``steps`` stand for its own."""
    ops = {op.name: op for op in shaping.reading.trace.ops}
    left = getattr(shaping, "left_alone", {})
    known: dict[Hashable, Array] = {}
    read = {parent for _, parents in steps.values() for parent in parents}

    def value(node: Hashable) -> Array:
        if node not in known:
            known[node] = computed(node)
        return known[node]

    def gone(node: Hashable) -> bool:
        own = isinstance(network.layer(node), L.Scale | L.Normalisation)
        return bool(steps) and own and node not in steps and node not in left and node not in read

    def computed(node: Hashable) -> Array:
        layer, parents = steps.get(node, (network.layer(node), network.parents(node)))
        if isinstance(layer, L.Input):
            return x
        arrays = [value(parent) for parent in parents]
        if gone(node) or layer.passes:
            return arrays[0]
        return RULES[type(layer)](layer, arrays, ops.get(str(node)))

    return value(network.outputs[0])


def _affine(_: L.Layer, arrays: list[Array], op: Any) -> Array:
    weight, bias = np.asarray(op.weight, float), op.bias
    return arrays[0] @ weight.T + (0 if bias is None else np.asarray(bias, float))


def _sum(layer: Any, arrays: list[Array], _: Any) -> Array:
    weights = sum_weights(layer, len(arrays))
    return np.add.reduce([float(w) * array for w, array in zip(weights, arrays, strict=True)])


def _norm(_: L.Layer, arrays: list[Array], op: Any) -> Array:
    centred = arrays[0] - arrays[0].mean(-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + op.epsilon)


RULES: dict[type, Callable[[Any, list[Array], Any], Array]] = {
    L.Affine: _affine,
    L.Sum: _sum,
    L.LayerNorm: _norm,
    L.Nonlinear: lambda layer, arrays, _: np.asarray(layer.activation(arrays[0]), float),
    L.Scale: lambda layer, arrays, _: float(layer.factor) * arrays[0],
    L.Product: lambda _, arrays, __: np.prod(arrays, axis=0),
}
