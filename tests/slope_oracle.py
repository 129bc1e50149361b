"""Random networks whose mixes, norms and products are known by hand, and their slopes at 50 digits,
straight from the definitions.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import mpmath
import sympy as sp

import kcalc as kc
from kcalc.network.layers import Affine, Concat, Input, LayerNorm, Nonlinear, Product, Sum

Node = Hashable
Parents = Mapping[Node, Sequence[Node]]
MP = mpmath.MPContext()
MP.dps = 50
STEEP = MP.pi / (MP.pi - 1)  # q / (q - m^2) of a LayerNorm behind a ReLU


class Slope(NamedTuple):
    """``V`` and ``dV / d log psi`` at one node."""

    value: Any
    moved: Any

    @property
    def degree(self) -> Any:
        """``d log V / d log psi``."""
        return self.moved / self.value


@lru_cache(maxsize=256)
def mixing_network(seed: int, products: bool = True) -> kc.Network:
    """ReLUs behind weights, LayerNorms behind some, and mixes of two to ten maps, each behind
    weights of its own, with unequal shares.
    """
    rng = random.Random(f"mixes {seed}")
    steps: list[Any] = [(f"x{i}", Input(), ()) for i in range(rng.choice([1, 1, 1, 2]))]
    maps = [step[0] for step in steps]

    def add(layer: Any, *parents: Any) -> str:
        steps.append((f"n{len(steps)}", layer, parents))
        return steps[-1][0]

    kinds = ["relu", "relu", "relu", "norm", "sum", "sum", "concat", "plain norm"] + [
        "product"
    ] * products
    for _ in range(rng.randint(4, 9)):
        kind = rng.choice(kinds)
        if kind in ("relu", "norm"):
            found = add(Nonlinear("relu"), add(Affine(), rng.choice(maps[-3:])))
            maps.append(add(LayerNorm(), found) if kind == "norm" else found)
        elif kind == "plain norm":
            maps.append(add(LayerNorm(), add(Affine(), maps[-1])))
        else:
            count = rng.randint(2, 3) if kind == "product" else rng.choice([2, 2, 3, 10])
            chosen = [rng.choice(maps[-5:]) for _ in range(count)]
            parents = [add(Affine(), parent) for parent in chosen]
            weights = tuple(
                sp.Rational(rng.randint(0 if k else 1, 5), rng.randint(1, 4)) for k in range(count)
            )
            layer = {
                "sum": Sum(weights),
                "concat": Concat(tuple(rng.randint(1, 6) for _ in chosen)),
                "product": Product(),
            }[kind]
            maps.append(add(layer, *parents))
    read = {parent for step in steps for parent in step[2]}
    loose = [step[0] for step in steps if step[0] not in read]
    last = add(
        Sum(tuple(sp.Rational(k + 1, 3) for k in range(len(loose)))),
        *(add(Affine(), node) for node in loose),
    )
    heads = [node for node in maps if rng.random() < 0.15 and node not in ("x0", "x1")]
    return kc.Network.from_steps(steps, list(dict.fromkeys([last, *heads])))


def amounts(layer: Any, count: int) -> list[Fraction]:
    """What a mix takes of each map, but for q values."""
    given = (
        [Fraction(str(v)) ** 2 for v in layer.weights or (1,) * count]
        if isinstance(layer, Sum)
        else map(Fraction, layer.channels)
    )
    return list(given)


@lru_cache(maxsize=256)
def q_values(net: kc.Network, start: Fraction) -> dict[Node, Fraction]:
    """The q value of every node of a :func:`mixing_network`, of which every addend and factor is a
    Gaussian of its own.
    """
    q: dict[Node, Fraction] = {}
    for node, layer, parents in net.steps():
        below = [q[p] for p in parents]
        if isinstance(layer, Input):
            q[node] = start
        elif isinstance(layer, LayerNorm):
            q[node] = Fraction(1)
        elif isinstance(layer, Sum | Concat):
            shares = amounts(layer, len(below))
            whole = sum(shares) if isinstance(layer, Concat) else 1
            q[node] = sum(a * b for a, b in zip(shares, below, strict=True)) / whole
        else:
            q[node] = below[0] / 2 if isinstance(layer, Nonlinear) else below[0]
            for factor in below[1:]:
                q[node] *= factor
    return q


def steepness(net: kc.Network, node: Node, q: Fraction | None) -> Any:
    """The slope of a LayerNorm."""
    (parent,) = net.parents(node)
    return STEEP if q is not None and isinstance(net.layer(parent), Nonlinear) else MP.mpf(1)


def shares_of(net: kc.Network, node: Node, q: Fraction | None) -> list[Any]:
    """The shares of a Sum or Concat, by true q values where ``q``, that of the inputs, is given."""
    parents = net.parents(node)
    parts = amounts(net.layer(node), len(parents))
    if q is not None:
        table = q_values(net, q)
        parts = [a * table[p] for a, p in zip(parts, parents, strict=True)]
    return [
        MP.mpf(part.numerator)
        / part.denominator
        / (MP.mpf(sum(parts).numerator) / sum(parts).denominator)
        for part in parts
    ]


def slopes(net: kc.Network, psi: Any, q: Fraction | None = None) -> dict[Node, Slope]:
    """``V`` at every node, with its derivative."""
    psi = MP.mpf(psi)
    found: dict[Node, Slope] = {}
    for node, layer, parents in net.steps():
        below = [found[p] for p in parents]
        if isinstance(layer, Input):
            found[node] = Slope(MP.mpf(1), MP.mpf(0))
        elif isinstance(layer, Nonlinear):
            found[node] = Slope(psi * below[0].value, psi * (below[0].value + below[0].moved))
        elif isinstance(layer, Sum | Concat | Product):
            parts = [1] * len(below) if isinstance(layer, Product) else shares_of(net, node, q)
            found[node] = Slope(
                *(sum(a * s[i] for a, s in zip(parts, below, strict=True)) for i in (0, 1))
            )
        else:
            factor = steepness(net, node, q) if isinstance(layer, LayerNorm) else 1
            found[node] = Slope(factor * below[0].value, factor * below[0].moved)
    return found


def log_of_mix(weights: Any, logs: Any) -> Any:
    """``log sum_j w_j exp(l_j) / sum_j w_j`` of floats."""
    return MP.log(
        sum(MP.mpf(w) * MP.exp(MP.mpf(x)) for w, x in zip(weights, logs, strict=True))
        / sum(map(MP.mpf, weights))
    )


def degree_of_mix(weights: Any, logs: Any, degrees: Any) -> Any:
    """The mean of degrees by what each term of a mix contributes."""
    parts = [MP.mpf(w) * MP.exp(MP.mpf(x)) for w, x in zip(weights, logs, strict=True)]
    return sum(p * MP.mpf(d) for p, d in zip(parts, degrees, strict=True)) / sum(parts)


# -- subnetworks -----------------------------------------------------------------------------------


def behind(parents: Parents, entry: Any, exit: Any) -> set[Any]:
    """All that is reached backwards from ``exit`` without passing ``entry``."""
    found, waiting = {exit}, [exit]
    while waiting:
        for parent in parents[waiting.pop()]:
            if parent != entry and parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found


def is_region(parents: Parents, outputs: Iterable[Any], entry: Any, exit: Any) -> bool:
    """Rules 1-3: nothing but ``entry`` is read from outside, and only ``exit`` is used there."""
    inside = behind(parents, entry, exit)
    if any(not parents[node] for node in inside) or not any(
        entry in parents[node] for node in inside
    ):
        return False
    used = {p for node, above in parents.items() if node not in inside for p in above} | set(
        outputs
    )
    return inside & used == {exit}


def strict_pairs(net: kc.Network) -> list[tuple[Node, Node]]:
    """(entry, exit) of every subnetwork, by the rules tried on every pair of nodes."""
    parents = {node: above for node, _, above in net.steps()}
    return [(s, t) for t in net for s in net if s != t and is_region(parents, net.outputs, s, t)]


def strict_slopes(
    net: kc.Network, psi: Any, q: Fraction | None = None
) -> dict[tuple[Node, Node], Slope]:
    """The slope of every subnetwork and its derivative: that at its exit over that at its entry."""
    at = slopes(net, psi, q)
    found = {}
    for s, t in strict_pairs(net):
        ratio = at[t].value / at[s].value
        found[s, t] = Slope(ratio, ratio * (at[t].degree - at[s].degree))
    return found
