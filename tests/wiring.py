"""Networks of tests, written as steps."""

from __future__ import annotations

from typing import Any

import kcalc as kc


def wired(*steps: tuple[Any, ...], features: Any = None, outputs: Any = None) -> kc.Network:
    """The network of steps (node, layer, "parent parent ...").

    A layer without parents reads the step before it. Behind an input ``x`` of ``features`` channels
    where no step is one. Parents that are no text stand in a tuple.
    """
    Input = kc.layers.Input
    if not any(isinstance(layer, Input) for _, layer, *_ in steps):
        steps = (("x", Input(features)), *steps)
    given: list[Any] = []
    for node, layer, *reads in steps:
        below = [(given[-1][0],)] if given and not isinstance(layer, Input) else []
        parents = tuple(part for text in reads or below for part in _labels(text))
        given.append((node, layer, parents))
    return kc.Network.from_steps(given, outputs)


def attending(attend: Any = None, below: Any = "x", *reads: Any) -> list[tuple[Any, ...]]:
    """Steps of queries q, keys k and values v, and of attention a to them.

    ``reads`` are the layers of q, k and v, one for all of them, or plain Affine layers.
    """
    L = kc.layers
    layers = reads if len(reads) == 3 else (reads or (L.Affine(),)) * 3
    steps = [(name, layer, below) for name, layer in zip("qkv", layers, strict=True)]
    return [*steps, ("a", attend or L.Attend(), "q k v")]


def _labels(reads: Any) -> Any:
    return reads.split() if isinstance(reads, str) else reads


def layered(layers: list[Any], shape: tuple[int, ...] | None = None) -> kc.Network:
    """The network of an oracle's list of layers: [kind, numbers ...], or [kind, branches ...].

    Nodes are ``x``, ``n1``, ``n2`` ... in the order in which they are met.
    """
    L = kc.layers
    steps: list[Any] = [("x", L.Input(image_shape=shape))]

    def add(layer: Any, *reads: str) -> str:
        steps.append((f"n{len(steps)}", layer, reads))
        return steps[-1][0]

    def walk(part: list[Any], node: str) -> str:
        for layer in part:
            kind, *rest = [layer] if isinstance(layer, str) else layer
            if kind == "product":
                node = add(L.Product(), *(walk(branch, node) for branch in rest))
            elif kind == "residual":  # one branch stands beside its input
                branches = rest if len(rest) > 1 else [[], *rest]
                node = add(L.Sum(), *(walk(branch, node) for branch in branches))
            elif kind == "attention":  # sizes of the three reads, the same weights twice if None
                queries, keys, values, options = rest
                read = [add(L.Affine(sigma_w=s), node) for s in (queries, keys, values) if s]
                node = add(L.Attend(**options), *(read if keys else [read[0], *read]))
            elif kind != "identity":
                node = add(_layer(kind, *rest), node)
        return node

    walk(layers, "x")
    return wired(*steps)


def _layer(kind: str, *numbers: Any) -> Any:
    L = kc.layers
    match kind:
        case "conv":
            size, *given, sigma_w, sigma_b = numbers
            size, *given = (tuple(v) if isinstance(v, list) else v for v in (size, *given))
            named = dict(zip(("stride", "padding"), given, strict=False))
            return L.Affine(kernel=size, sigma_w=sigma_w, sigma_b=sigma_b, **named)
        case "dense":
            return L.Affine(sigma_w=numbers[0], sigma_b=numbers[1])
        case "mean" | "pool":
            return L.Pool("mean", *(tuple(v) if v else None for v in numbers))
        case "flatten":
            return L.Flatten()
        case "layernorm":
            return L.LayerNorm()
    return L.Nonlinear(kind)
