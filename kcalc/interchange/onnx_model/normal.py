"""Read normalisation operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..rewriting.norms import kind_over
from ..trace import Array, Normalise
from . import shapes
from .graph_values import Made, Node, Value, rule


def normalised(
    node: Node,
    x: Value,
    kind: str,
    axes: Sequence[int],
    epsilon: float | None = None,
    **fields: Any,
) -> Made:
    """Add a normalisation of ``x``; the default epsilon is the node's attribute."""
    epsilon = node.real("epsilon", 1e-5) if epsilon is None else epsilon
    told = {"kind": kind, "axes": tuple(axes), "epsilon": epsilon, **fields}
    return node.emit(Normalise, x.shape, (x,), **told)


def _arrays(node: Node, indices: Sequence[int]) -> list[Array | None] | None:
    """Return the arrays of constant inputs, or None if one of them is not constant."""
    values = [node.optional(i) for i in indices]
    if any(v is not None and v.array is None for v in values):
        return None
    return [None if v is None else v.array for v in values]


@rule("BatchNormalization")
def batch(node: Node) -> Made:
    """Read BatchNormalization over examples and locations."""
    x, arrays = node.value(0), _arrays(node, (1, 2, 3, 4))
    if arrays is None or x.rank < 2:
        return None
    if any(a is None or a.shape != (x.shape[1],) for a in arrays):
        raise node.fail(
            f"its scale, bias, mean and variance must each have {x.shape[1]} entries, one "
            "per channel"
        )
    axes = [i for i in range(x.rank) if i != 1]
    gain, bias, mean, variance = arrays
    assert mean is not None and variance is not None
    told = {"gain": gain, "bias": bias, "running": (mean, variance)}
    return normalised(node, x, "batch", axes, None, **told)


@rule("SimplifiedLayerNormalization", domain="com.microsoft")
@rule("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def layer(node: Node) -> Made:
    """Read LayerNormalization and RMSNormalization over the axes from ``axis`` to the last."""
    x, arrays = node.value(0), _arrays(node, (1, 2))
    if arrays is None:
        return None
    axis = node.axis(node.whole("axis", -1), x.rank)
    kind = "layer" if node.op == "LayerNormalization" else "rms"
    gain, bias = arrays
    return normalised(node, x, kind, range(axis, x.rank), gain=gain, bias=bias)


@rule("InstanceNormalization", "GroupNormalization")
def group(node: Node) -> Made:
    """Read InstanceNormalization and GroupNormalization.

    The scale and bias of GroupNormalization have one entry per group before opset 21, and one per
    channel since then.
    """
    x, arrays, alone = node.value(0), _arrays(node, (1, 2)), node.op == "InstanceNormalization"
    if arrays is None or x.rank < 2 + alone:
        return None
    channels = x.shape[1]
    groups = channels if alone else node.whole("num_groups")
    if alone and any(a is None or a.shape != (channels,) for a in arrays):
        raise node.fail(f"its scale and bias must each have {channels} entries, one per channel")
    if groups < 1 or channels % groups:
        raise node.fail(f"{channels} channels cannot be split into {groups} equal groups")
    gain, bias = (
        a.repeat(channels // groups) if a is not None and a.shape == (groups,) else a
        for a in arrays
    )
    told = {"gain": gain, "bias": bias, "groups": groups}
    return normalised(node, x, "group", range(1, x.rank), None, **told)


@rule("MeanVarianceNormalization")
def mean_variance(node: Node) -> Made:
    """Read MeanVarianceNormalization over the given axes, by default 0, 2 and 3."""
    x = node.value(0)
    axes = node.axes(node.wholes("axes") or (0, 2, 3), x.rank)
    found = kind_over("layer", x.shape, axes, 1)
    if found is None:
        return None
    kind, over, groups = found
    return normalised(node, x, kind, over, 1e-9, groups=groups)


@rule("Reshape")
def in_groups(node: Node) -> Made:
    """Read Reshape, possibly as the end of a group normalisation.

    Exporters write group normalisation as an instance normalisation between two reshapes, which
    turn groups into channels and back.
    """
    inner, shape = node.value(0).maker, shapes.target_shape(node, node.value(0).shape)
    named = inner is not None and (inner.domain, inner.op) == ("", "InstanceNormalization")
    outer = inner.value(0).maker if inner is not None and named else None
    if inner is None or outer is None or (outer.domain, outer.op) != ("", "Reshape"):
        return shapes.reshape(node)
    source, (batch, groups) = outer.value(0), inner.value(0).shape[:2]
    (gain, bias), rank = _arrays(inner, (1, 2)) or (None, None), inner.value(0).rank
    plain = gain is not None and bias is not None and np.all(gain == 1) and np.all(bias == 0)
    same = source.shape == shape and source.rank > 1 and rank == 3 and source.shape[0] == batch
    if not plain or not same or source.shape[1] % groups:
        return shapes.reshape(node)
    epsilon = inner.real("epsilon", 1e-5)
    place = replace(node, label=node.label.removesuffix(".reshape"))
    axes = range(1, len(source.shape))
    return normalised(place, source, "group", axes, epsilon, groups=groups)
