"""Networks on arrays in plain NumPy, double precision, one location and one window at a time.

No JAX, no kcalc rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
from monte_carlo import FUNCTIONS, slot_parents

from kcalc.network import layers

Array = np.ndarray


def two(extent: Any) -> tuple[int, int]:
    """One number per axis."""
    return (extent, extent) if isinstance(extent, int) else tuple(extent)


def starts(size: int, window: int, stride: int, padding: Any, axis: int) -> list[int]:
    """Where the windows of one axis start, in locations of the unpadded input."""
    if padding in ("same", "circular"):
        count = -(-size // stride)
        before = max((count - 1) * stride + window - size, 0) // 2
        return [i * stride - before for i in range(count)]
    pad = 0 if padding == "valid" else two(padding)[axis]
    return list(range(-pad, size + pad - window + 1, stride))


def windows(
    x: Array, window: tuple[int, int], stride: tuple[int, int], padding: Any
) -> tuple[Array, Array]:
    """(values, inside): (n, rows out, columns out, window rows, window columns, channels), zero and
    False outside the image.
    """
    n, height, width, channels = x.shape
    rows, columns = (
        starts(s, k, t, padding, i)
        for i, (s, k, t) in enumerate(zip((height, width), window, stride, strict=True))
    )
    values = np.zeros((n, len(rows), len(columns), *window, channels))
    inside = np.zeros((len(rows), len(columns), *window), bool)
    for (a, top), (b, left) in product(enumerate(rows), enumerate(columns)):
        for i, j in np.ndindex(*window):
            r, c = top + i, left + j
            if padding == "circular":
                r, c = r % height, c % width
            if 0 <= r < height and 0 <= c < width:
                values[:, a, b, i, j] = x[:, r, c]
                inside[a, b, i, j] = True
    return values, inside


def affine(layer: layers.Affine, x: Array, weight: Array) -> Array:
    """Groups one by one."""
    terms = "...c,co->...o"
    if weight.ndim == 4:
        x, _ = windows(x, weight.shape[:2], two(layer.stride), layer.padding)
        terms = "nabijc,ijco->nabo"
    groups = (np.split(part, layer.groups, -1) for part in (x, weight))
    return np.concatenate([np.einsum(terms, *pair) for pair in zip(*groups, strict=True)], axis=-1)


def pooled(layer: layers.Pool, x: Array, weight: Array | None) -> Array:
    """Windows as for a convolution with that padding; locations outside are not there."""
    whole = layer.window is None
    window = x.shape[1:3] if whole else two(layer.window)
    stride = window if layer.stride is None else two(layer.stride)
    values, inside = (
        (x[:, None, None], np.ones((1, 1, *window), bool))
        if whole
        else windows(x, window, stride, layer.padding)
    )
    mask = inside[None, ..., None]
    count = inside.sum(axis=(2, 3))[None, :, :, None]
    if layer.kind == "max":
        out = np.where(mask, values, -np.inf).max(axis=(3, 4))
    elif layer.kind == "mean":
        out = (values * mask).sum(axis=(3, 4)) / count
    else:
        out = np.einsum("nabijc,ij->nabc", values, weight) * np.sqrt(window[0] * window[1] / count)
    return out[:, 0, 0] if whole else out


def run(
    network: Any,
    x: Any,
    params: Mapping[Any, Mapping[str, Any]],
    scales: Callable[[Any], float] = lambda node: 1.0,
) -> dict[Any, Array]:
    """Every feature map; ``params[node]`` holds weight and bias, ``scales(node)`` multiplies the
    weight.
    """
    graph = network.graph
    values: dict[Any, Array] = {}
    for node, layer, parents in network.steps():
        assert slot_parents(graph, node) == list(parents)
        below = [values[p] for p in parents]
        own = {name: np.asarray(leaf, float) for name, leaf in params.get(node, {}).items()}
        match layer:
            case layers.Input():
                values[node] = np.asarray(x[node] if isinstance(x, dict) else x, float)
            case layers.Affine():
                out = affine(layer, below[0], own["weight"] * scales(node))
                values[node] = out + own.get("bias", 0.0)
            case layers.Nonlinear():
                values[node] = activation(layer.activation, below[0])
            case layers.Sum():
                weights = map(float, layer.weights or (1,) * len(below))
                values[node] = sum(w * h for w, h in zip(weights, below, strict=True))
            case layers.Product():
                values[node] = np.prod(np.stack(below), axis=0)
            case layers.Concat():
                values[node] = np.concatenate(below, axis=-1)
            case layers.Scale():
                values[node] = float(layer.factor) * below[0]
            case layers.LayerNorm() | layers.RMSNorm():
                centred = below[0]
                if isinstance(layer, layers.LayerNorm):
                    centred = centred - centred.mean(axis=-1, keepdims=True)
                values[node] = centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True))
            case layers.Pool():
                values[node] = pooled(layer, below[0], own.get("weight"))
            case layers.Flatten():
                values[node] = below[0].reshape(below[0].shape[0], -1)
            case layers.Identity() | layers.Dropout():
                values[node] = below[0]
            case _:
                raise NotImplementedError(type(layer).__name__)
    return values


def activation(phi: Any, x: Array) -> Array:
    """phi written out, its transformation applied by hand."""
    t = phi.transformation
    base = FUNCTIONS.get(phi.base.name, phi.base)
    if t is None:
        return base(x)
    numbers = (t.output_scale, t.input_scale, t.input_shift, t.output_shift)
    outer, inner, shift, added = map(float, numbers)
    return outer * (base(inner * x + shift) + added)
