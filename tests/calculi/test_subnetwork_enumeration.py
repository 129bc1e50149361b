"""Subnetworks, slopes, curvature and maxima of random networks against enumeration of all subsets
of layers.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import sympy as sp
from log_slopes import log_slopes
from subnetwork_oracle import Node, enumerate_subnetworks, greatest, random_network, read_forward
from thinning import mostly_slow

import kcalc as kc
from kcalc.calculi.slopes import slope_polynomial
from kcalc.calculi.subnetworks import maximal, maximal_slope, subnetworks
from kcalc.calculi.subnetworks.pruning import not_included
from kcalc.calculi.subnetworks.regions import Subnetwork, network_regions

psi = kc.symbols.psi
PSIS = (Fraction(11, 10), Fraction(3, 2), Fraction(4))
START = np.array([0.05, 0.45, 0.9])
FUNCTIONS = {
    "line above": lambda x: 0.75 * x + 0.25,
    "bend above": lambda x: x + 0.4 * (1 - x) ** 2 * (x < 1),
    "floor": lambda x: np.maximum(x, 0.3),
    "line across": lambda x: 0.6 * x + 0.1,  # below x from 1/4 on
}


def relu_map(c: Any) -> Any:
    """The C map of the ReLU."""
    return (np.sqrt((1 - c) * (1 + c)) + (np.pi - np.arccos(c)) * c) / np.pi


def strict_pairs(net: kc.Network) -> dict[frozenset[Node], tuple[Node, Node]]:
    """All intervals of the maximal paths."""
    nodes, _, regions = network_regions(net)
    pairs = [
        (path[i], path[j]) for path in regions.paths for j in range(len(path)) for i in range(j)
    ]
    pieces = [Subnetwork(nodes[s], nodes[t], net) for s, t in pairs]
    assert len({frozenset(piece.layers) for piece in pieces}) == len(pieces)
    return {frozenset(piece.layers): (piece.entry, piece.exit) for piece in pieces}


def permissive_pairs(net: kc.Network) -> dict[frozenset[Node], tuple[Node, Node]]:
    """All pairs of a layer and a strict dominator."""
    nodes, _, regions = network_regions(net)
    found = {}
    for node in range(len(nodes)):
        above = regions.idom[node]
        while above < len(nodes):
            piece = Subnetwork(nodes[above], nodes[node], net)
            found[frozenset(piece.layers)] = piece.entry, piece.exit
            above = regions.idom[above]
    return found


def exact(value: sp.Expr) -> Fraction:
    return Fraction(int(value.p), int(value.q))  # pyright: ignore


def check(seed: int) -> None:
    net = random_network(seed)
    strict, permissive = enumerate_subnetworks(net)
    assert strict_pairs(net) == strict
    assert permissive_pairs(net) == permissive
    found = subnetworks(net)
    ends = set(strict.values())
    composed = {
        (s, t)
        for s, t in ends
        if any(
            ((s, u) in ends and (t, u) in ends) or ((u, t) in ends and (u, s) in ends) for u in net
        )
    }
    assert {(piece.entry, piece.exit) for piece in found} == ends - composed
    earliest = {
        t: max((len(g) for g, pair in permissive.items() if pair[1] == t))
        for _, t in permissive.values()
    }
    assert {
        piece.exit: len(piece.layers) for piece in subnetworks(net, permissive=True)
    } == earliest

    slopes = [
        {
            g: read_forward(net, g, s, Fraction(1), lambda x, _, p=p: p * x)[t]
            for g, (s, t) in strict.items()
        }
        for p in PSIS
    ]
    numeric = log_slopes(net, [float(p) for p in PSIS])
    for g, (s, t) in strict.items():
        assert numeric[t].log - numeric[s].log == pytest.approx(
            [float(np.log(float(table[g]))) for table in slopes], rel=1e-12, abs=1e-14
        )
    for piece in found:
        p = slope_polynomial(piece.network)
        assert exact(p.xreplace({psi: sp.Rational(3, 2)})) == slopes[1][frozenset(piece.layers)]

    mu = maximal_slope(net)
    everything = [mu._factors.expr(m) for m in mu._set.monomials]
    assert not_included(dict.fromkeys(mu._set.monomials)) == [m for m in mu._set.monomials if m]
    for value, table in zip(PSIS, slopes, strict=True):
        top = max(table.values(), default=Fraction(1))
        at = {psi: sp.Rational(value.numerator, value.denominator)}
        assert max(exact(p.xreplace(at)) for p in mu.pieces) == top
        assert max(exact(p.xreplace(at)) for p in everything) == top
        assert mu(float(value)) == pytest.approx(float(top), rel=1e-13)
        if top > 1:
            owner = mu.active(float(value))
            assert float(table[frozenset(owner.layers)]) == pytest.approx(float(top), rel=1e-14)
    if mu.symbols:
        assert mu(mu.inverse(1.7)) == pytest.approx(1.7, rel=1e-13)
        assert mu.forward(mu.forward.inverse(1.7)) == pytest.approx(1.7, rel=1e-13)
    through = {
        g: read_forward(net, g, s, 1.0, lambda x, _: 1.5 * x, float)[t]
        for g, (s, t) in permissive.items()
    }
    if len(net.inputs) == 1:
        assert mu.forward(1.5) == pytest.approx(max(through.values()), rel=1e-13)
    else:
        assert mu.forward(1.5) >= max(through.values(), default=1.0) * (1 - 1e-13)

    up, down = FUNCTIONS["bend above"], FUNCTIONS["line across"]
    names = {node: net.layer(node).activation.name for node in net.nodes_of(kc.layers.Nonlinear)}
    truth = greatest(net, strict, lambda x, node: (up if names[node] == "relu" else down)(x), START)
    used = {name: up if name == "relu" else down for name in names.values()}
    assert maximal(net, used or up)(START) == pytest.approx(truth, rel=1e-13)


@pytest.mark.parametrize("block", mostly_slow(range(6)))
def test_maxima_with_products(block: int) -> None:
    """c values of both signs; functions above, across and below the identity."""
    points = np.array([-1.0, -0.7, -0.25, 0.0, 0.2, 0.6, 1.0])
    functions = [FUNCTIONS[name] for name in ("line above", "floor", "line across")]
    functions += [relu_map, lambda x: 0.5 * x - 0.3, lambda x: x**3]
    for seed in range(40 * block, 40 * block + 40):
        net = random_network(seed, products=True)
        strict, _ = enumerate_subnetworks(net)
        for r in functions:
            truth = greatest(net, strict, lambda x, _, r=r: r(x), points)
            found = maximal(net, r)
            assert found(points) == pytest.approx(truth, rel=1e-13, abs=1e-15)
            for x, top in zip(points.tolist(), truth, strict=True):
                assert found(x) == pytest.approx(top, rel=1e-13, abs=1e-15)
            if strict:
                owner = frozenset(found.active(-0.25).layers)
                entry, leaving = strict[owner]
                reached = read_forward(net, owner, entry, -0.25, lambda x, _, r=r: r(x), float)
                assert reached[leaving] == pytest.approx(truth[2], rel=1e-13, abs=1e-15)


@pytest.mark.parametrize("block", mostly_slow(range(6)))
def test_random_networks(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_five_thousand_random_networks(block: int) -> None:
    for seed in range(1000 + 250 * block, 1000 + 250 * (block + 1)):
        check(seed)
