"""Regions of random graphs against the definition of a subnetwork, trees that skip against walks,
and subnetworks as networks.
"""

from __future__ import annotations

import random

import pytest
from slope_oracle import behind, is_region
from wiring import wired

from kcalc.calculi.subnetworks.regions import Subnetwork, find_regions
from kcalc.network.layers import (
    Affine,
    Input,
    Nonlinear,
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


# -- subnetworks as networks -----------------------------------------------------------------------


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
