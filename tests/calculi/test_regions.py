"""Regions of random graphs against the definition of a subnetwork, trees that skip against walks,
and subnetworks as networks.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from slope_oracle import behind, is_region
from wiring import wired

import kcalc as kc
from kcalc.calculi.subnetworks.regions import Subnetwork, find_regions
from kcalc.network.layers import (
    Affine,
    BatchNorm,
    Dropout,
    Identity,
    Input,
    LayerNorm,
    Nonlinear,
    Pool,
    RMSNorm,
    Scale,
)

Graph = list[tuple[int, ...]]


def random_graph(seed: int) -> tuple[Graph, list[int]]:
    """Nodes that read some before them, near ones in some graphs.

    Several inputs and outputs in some.
    """
    rng = random.Random(seed)
    size, near = rng.randint(2, 24), rng.choice([1, 2, 3, 30])
    parents: Graph = [()]
    for node in range(1, size):
        source = rng.random() < 0.05
        parents.append(
            ()
            if source
            else tuple(
                rng.randint(max(0, node - near), node - 1)
                for _ in range(rng.choice([1, 1, 1, 2, 2, 3]))
            )
        )
    read = {p for above in parents for p in above}
    outputs = [node for node in range(size) if node not in read or rng.random() < 0.04]
    return parents, outputs


@pytest.mark.parametrize("block", range(4))
def test_regions_are_all_intervals_of_disjoint_paths(block: int) -> None:
    for seed in range(60 * block, 60 * block + 60):
        parents, outputs = random_graph(seed)
        found, above = find_regions(parents, outputs), dict(enumerate(parents))
        pairs = [
            (path[i], path[j]) for path in found.paths for j in range(len(path)) for i in range(j)
        ]
        truth = {
            (s, t) for t in range(len(parents)) for s in range(t) if is_region(above, outputs, s, t)
        }
        assert sorted(pairs) == sorted(truth), seed
        assert hash(found) == hash(find_regions(parents, outputs))
        exits = [t for path in found.paths for t in path[1:]]
        assert len(exits) == len(set(exits))
        for node in range(len(parents)):
            dominators = [s for s in range(node) if all(parents[v] for v in behind(above, s, node))]
            assert found.idom[node] == max(dominators, default=len(parents)), seed


# -- trees -----------------------------------------------------------------------------------------


# -- subnetworks as networks -----------------------------------------------------------------------


def between(*steps: Any) -> kc.Network:
    """``x``, then the steps, each behind the one before it, then weights and an activation."""
    named: list[Any] = [("x", Input(7))]
    for k, layer in enumerate(steps):
        named.append((f"s{k}", layer, (named[-1][0],)))
    named += [("w", Affine(5), (named[-1][0],)), ("f", Nonlinear("tanh"), "w")]
    return wired(*named)


@pytest.mark.parametrize(
    "layer", [LayerNorm(), RMSNorm(), Dropout(0.1), Scale(2.0), Identity(), Pool("mean", 2)]
)
def test_what_keeps_a_gaussian_keeps_it_fresh(layer: Any) -> None:
    net = between(Affine(4), layer)
    assert Subnetwork("s1", "f", net).network.inputs == ("input of s1",)
    assert Subnetwork("s1", "f", net).network.layer("s1") == Affine(4)
    assert Subnetwork("s1", "w", between(Nonlinear("relu"), layer)).network.inputs == ("s1",)
    assert Subnetwork("s0", "w", between(layer)).network.inputs == ("s0",)
    assert Subnetwork("s1", "w", between(Affine(4), BatchNorm())).network.inputs == ("s1",)


def test_names_of_the_new_input_are_free_ones() -> None:
    steps = [
        ("x", Input(4)),
        ("a", Affine(4), "x"),
        ("input of a", Nonlinear("relu"), "a"),
    ]
    steps.append(("input of a'", Affine(4), ("input of a",)))
    piece = Subnetwork("a", "input of a'", wired(*steps))
    assert piece.layers == ("input of a", "input of a'")
    assert piece.network.inputs == ("input of a''",)
    assert list(piece.network) == ["input of a''", "a", "input of a", "input of a'"]
    whole = Subnetwork("x", "input of a'", wired(*steps))
    assert whole.network == wired(*steps)


# -- the tuple of them -----------------------------------------------------------------------------
