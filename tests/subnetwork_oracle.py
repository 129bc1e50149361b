"""Subnetworks by enumeration of all subsets of layers, and random networks to enumerate."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp

import kcalc as kc
from kcalc.network.layers import Affine, Concat, Input, LayerNorm, Nonlinear, Product, Sum

Node = Hashable
Pairs = dict[frozenset[Node], tuple[Node, Node]]
MOST = 11


def random_network(seed: int) -> kc.Network:
    """Up to eleven layers: chains, sums, concatenations and products (maps read twice too).

    Rational weights, 1-3 inputs, extra heads.
    """
    rng = random.Random(seed)
    while True:
        try:
            net = _draw(rng)
            mix_shares(net)
            return net
        except (kc.GraphError, TypeError):  # widths that do not fit
            continue


def _draw(rng: random.Random) -> kc.Network:
    kinds = ["affine", "norm", "phi", "phi", "phi", "sum", "sum", "concat", *["product"] * 3]
    inputs = rng.choice([1, 1, 1, 2, 3])
    steps: list[Any] = [(f"x{i}", Input(), ()) for i in range(inputs)]
    local = rng.random()
    for i in range(rng.randint(max(1, inputs - 1), MOST - 1)):
        nodes = [step[0] for step in steps]
        unread = [n for n in nodes if not any(n in step[2] for step in steps)]
        recent = nodes[-3:] if rng.random() < local else nodes
        kind = rng.choice(kinds)
        few = [2, 2, 3] if kind == "product" else [1, 2, 2, 3]
        count = 1 if kind in ("affine", "norm", "phi") else rng.choice(few)
        parents = tuple(
            rng.choice(unread if unread and rng.random() < 0.6 else recent) for _ in range(count)
        )
        if kind == "sum":
            weights = [sp.Rational(rng.randint(1, 4), rng.randint(1, 3)) for _ in parents]
            layer: Any = Sum(rng.choice([None, weights]))
        elif kind == "concat":
            layer = Concat(rng.choice([None, tuple(rng.randint(1, 5) for _ in parents)]))
        else:
            phi = Nonlinear(rng.choice(["relu", "tanh"]))
            plain = {"product": Product(), "affine": Affine(), "norm": LayerNorm(), "phi": phi}
            layer = plain[kind]
        steps.append((f"n{i}", layer, parents))
    read = {parent for step in steps for parent in step[2]}
    idle = tuple(f"x{i}" for i in range(inputs) if f"x{i}" not in read)
    if idle:
        steps.append(("last", Sum(), (steps[-1][0], *idle) if steps[-1][0] not in idle else idle))
    read = {parent for step in steps for parent in step[2]}
    outputs = {step[0] for step in steps if step[0] not in read}
    outputs |= {step[0] for step in steps[inputs:] if rng.random() < 0.08}
    return kc.Network.from_steps(steps, outputs)


@lru_cache(maxsize=64)
def mix_shares(net: kc.Network) -> dict[Node, list[Fraction]]:
    """The shares of every Sum and Concat, from weights, channel counts, or the widths of what is
    read.

    Raises: TypeError where only some widths are known.
    """
    width: dict[Node, int | None] = {}
    found: dict[Node, list[Fraction]] = {}
    for node, layer, parents in net.steps():
        known = [width[p] for p in parents]
        open_ = isinstance(layer, Input | Affine)
        width[node] = None if open_ else max(filter(None, known), default=None)
        if isinstance(layer, Sum):
            amounts = [Fraction(str(v)) ** 2 for v in layer.weights or (1,) * len(parents)]
        elif isinstance(layer, Concat):
            counts = layer.channels or (known if any(known) else (1,) * len(parents))
            amounts = [Fraction(k) for k in counts]  # pyright: ignore[reportArgumentType]
            width[node] = sum(counts) if layer.channels or any(known) else None  # pyright: ignore
        else:
            continue
        found[node] = [a / sum(amounts) for a in amounts]
    return found


def read_forward(
    net: kc.Network,
    members: frozenset[Node],
    entry: Node,
    start: Any,
    r: Callable[..., Any],
    number: Any = Fraction,
) -> Any:
    """``U_{g,r}`` straight from its definition; ``r(x, node)`` acts at nonlinear nodes.

    Returns: {node: value}.
    """
    values: dict[Node, Any] = {entry: start}
    shares = mix_shares(net)
    for node, layer, parents in net.steps():
        if node in members:
            inputs = [values[p] for p in parents]
            if isinstance(layer, Nonlinear):
                values[node] = r(inputs[0], node)
            elif isinstance(layer, Sum | Concat):
                values[node] = sum(number(s) * v for s, v in zip(shares[node], inputs, strict=True))
            elif isinstance(layer, Product):
                values[node] = math.prod(inputs)
            else:
                values[node] = inputs[0]
    return values


def enumerate_subnetworks(net: kc.Network) -> Pairs:
    """All sets of layers that are subnetworks, with (entry, exit).

    A set reads one feature map from outside, and one member is used outside.
    """
    layers = [node for node in net if not isinstance(net.layer(node), Input)]
    names = [*layers, *net.inputs]
    number = {node: i for i, node in enumerate(names)}
    reads, users = np.zeros(len(layers), np.int64), np.zeros(len(layers), np.int64)
    for i, node in enumerate(layers):
        for parent in net.parents(node):
            reads[i] |= 1 << number[parent]
            if number[parent] < len(layers):
                users[number[parent]] |= 1 << i
    sets = np.arange(1 << len(layers))
    read = np.zeros(1, np.int64)
    for mask in reads:
        # of all sets of the first layers, then of those with the next one too
        read = np.concatenate([read, read | mask])
    outside = read & ~sets
    one_entry = (outside != 0) & (outside & (outside - 1) == 0)
    member = (sets[:, None] >> np.arange(len(layers))) & 1 == 1
    heads = np.array([node in net.outputs for node in layers])
    leaves = member & (((users & ~sets[:, None]) != 0) | heads)
    found: Pairs = {}
    for k in np.nonzero(one_entry & (leaves.sum(axis=1) == 1))[0]:
        members = frozenset(layer for i, layer in enumerate(layers) if sets[k] >> i & 1)
        found[members] = names[int(outside[k]).bit_length() - 1], layers[int(leaves[k].argmax())]
    return found


def greatest(
    net: kc.Network,
    pairs: Mapping[frozenset[Node], tuple[Node, Node]],
    r: Callable[..., Any],
    x: Any,
) -> Any:
    """``max_g U_{g,r}(x)`` over given subnetworks, x where there is none."""
    values = [read_forward(net, g, s, x, r, float)[t] for g, (s, t) in pairs.items()]
    return np.max(values, axis=0) if values else x
