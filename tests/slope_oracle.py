"""Random networks whose mixes, norms and products are known by hand, and their slopes at 50 digits,
straight from the definitions.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import mpmath
import sympy as sp

import kcalc as kc
from kcalc.network.layers import Affine, Concat, Input, LayerNorm, Nonlinear, Product, Sum

Node = Hashable
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
def mixing_network(seed: int, bare: bool = False) -> kc.Network:
    """ReLUs behind weights, LayerNorms behind some, and mixes of two to ten maps, each behind
    weights of its own, with unequal shares; ``bare``: maps are read as they are, some twice.
    """
    rng = random.Random(f"mixes {seed}")
    steps: list[Any] = [(f"x{i}", Input(), ()) for i in range(rng.choice([1, 1, 1, 2]))]
    maps = [step[0] for step in steps]

    def add(layer: Any, *parents: Any) -> str:
        steps.append((f"n{len(steps)}", layer, parents))
        return steps[-1][0]

    def fresh(node: Any) -> Any:
        return node if bare else add(Affine(), node)

    near, far = (1, rng.choice([1, 2, 4])) if bare else (3, 5)  # 1 makes long chains
    kinds = ["relu", "relu", "relu", "norm", "sum", "sum", "concat", "plain norm", "product"]
    kinds += ["product"] * 3 * bare
    for _ in range(rng.randint(4, 9)):
        kind = rng.choice(kinds)
        if kind in ("relu", "norm"):
            found = add(Nonlinear("relu"), fresh(rng.choice(maps[-near:])))
            maps.append(add(LayerNorm(), found) if kind == "norm" else found)
        elif kind == "plain norm":
            maps.append(add(LayerNorm(), fresh(maps[-1])))
        else:
            count = rng.randint(2, 3) if kind == "product" else rng.choice([2, 2, 3, 10])
            chosen = [rng.choice(maps[-far:]) for _ in range(count)]
            parents = [fresh(parent) for parent in chosen]
            weights = [
                sp.Rational(rng.randint(0 if k else 1, 5), rng.randint(1, 4)) for k in range(count)
            ]
            channels = None if bare else tuple(rng.randint(1, 6) for _ in chosen)
            layer = {"sum": Sum(weights), "concat": Concat(channels), "product": Product()}
            maps.append(add(layer[kind], *parents))
    read = {parent for step in steps for parent in step[2]}
    loose = [step[0] for step in steps if step[0] not in read]
    ends = [add(Affine(), node) for node in loose]
    last = add(Sum([sp.Rational(k + 1, 3) for k in range(len(ends))]), *ends)
    heads = [node for node in maps if rng.random() < 0.15 and node not in ("x0", "x1")]
    return kc.Network.from_steps(steps, list(dict.fromkeys([last, *heads])))


def amounts(layer: Any, count: int) -> list[Fraction]:
    """What a mix takes of each map, but for q values."""
    if isinstance(layer, Sum):
        return [Fraction(str(v)) ** 2 for v in layer.weights or (1,) * count]
    return [Fraction(k) for k in layer.channels or (1,) * count]


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
            q[node] = math.prod(below) / (2 if isinstance(layer, Nonlinear) else 1)
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
    shares = [Fraction(part) / sum(parts) for part in parts]
    return [MP.mpf(share.numerator) / share.denominator for share in shares]


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
            values, moved = zip(*below, strict=True)
            found[node] = Slope(MP.fdot(parts, values), MP.fdot(parts, moved))
        else:
            factor = steepness(net, node, q) if isinstance(layer, LayerNorm) else 1
            found[node] = Slope(*(factor * part for part in below[0]))
    return found


def log_of_mix(weights: Any, logs: Any) -> Any:
    """``log sum_j w_j exp(l_j) / sum_j w_j`` of floats."""
    return MP.log(sum(_terms(weights, logs)) / sum(map(MP.mpf, weights)))


def degree_of_mix(weights: Any, logs: Any, degrees: Any) -> Any:
    """The mean of degrees by what each term of a mix contributes."""
    parts = _terms(weights, logs)
    return MP.fdot(parts, map(MP.mpf, degrees)) / sum(parts)


def _terms(weights: Any, logs: Any) -> list[Any]:
    return [MP.mpf(w) * MP.exp(MP.mpf(x)) for w, x in zip(weights, logs, strict=True)]


# -- subnetworks -----------------------------------------------------------------------------------


def region(net: kc.Network, entry: Any, exit: Any) -> set[Any]:
    """The layers between, if nothing but ``entry`` is read from outside and only ``exit`` is used
    there; else none.
    """
    inside, waiting = {exit}, [exit]
    while waiting:
        new = {*net.parents(waiting.pop())} - inside - {entry}
        inside |= new
        waiting += new
    read = [net.parents(node) for node in inside]
    if not all(read) or not any(entry in above for above in read):
        return set()
    used = {p for node in set(net) - inside for p in net.parents(node)} | set(net.outputs)
    return inside if inside & used == {exit} else set()


def regions(net: kc.Network) -> dict[tuple[Node, Node], set[Node]]:
    """{(entry, exit): layers} of every subnetwork, by the rules tried on every pair of nodes."""
    pairs = {(s, t): region(net, s, t) for t in net for s in net if s != t}
    return {pair: inside for pair, inside in pairs.items() if inside}


def strict_slopes(
    net: kc.Network, psi: Any, q: Fraction | None = None
) -> dict[tuple[Node, Node], Slope]:
    """The slope of every subnetwork and its derivative: that at its exit over that at its entry."""
    at = slopes(net, psi, q)
    found = {}
    for s, t in regions(net):
        ratio = at[t].value / at[s].value
        found[s, t] = Slope(ratio, ratio * (at[t].degree - at[s].degree))
    return found


def read_forward(net: kc.Network, inside: set[Node], entry: Node, x: Any, r: Any) -> Any:
    """{node: value} from ``x`` at the entry of a subnetwork on; ``r`` acts at nonlinear layers."""
    values: dict[Node, Any] = {entry: x}
    for node, layer, parents in net.steps():
        if node in inside:
            below = [values[p] for p in parents]
            if isinstance(layer, Sum | Concat):
                shares = map(float, shares_of(net, node, None))
                values[node] = sum(share * v for share, v in zip(shares, below, strict=True))
            elif isinstance(layer, Product):
                values[node] = math.prod(below)
            else:
                values[node] = r(below[0]) if isinstance(layer, Nonlinear) else below[0]
    return values
