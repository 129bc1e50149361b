"""Kernel maps against real random networks.

30 valid ones agree at every node, 30 invalid ones are refused or agree.

The bar is four standard errors at every node, for q1, q2 and c. A run makes about 1500 comparisons,
so one of them exceeds four by chance once in ten runs; an exceedance therefore counts only if an
independent run with four times the draws shows one at the same node and number again, which happens
by chance with probability below 1e-7 per comparison.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from laws.random_networks import Recipe, broken_network, seeded
from monte_carlo import simulate
from thinning import mostly_slow

import kcalc as kc

BAR = 4.0
DRAWS = 64
POINTS = (
    (0.5, 1.0, None),
    (0.4, 0.6, 1.7),
    (-0.3, 2.0, None),
    (0.9, 1.3, 0.5),
    (0.0, 1.0, None),
    (1.0, 0.7, 1.5),
)
"""(c, q1, q2) by seed; None: equal."""
VALID = range(30)
INVALID = range(30)


def valid(seed: int) -> kc.Network:
    """A valid network of 6 to 20 nodes.

    Even seeds may fuse functions of one Gaussian after a LayerNorm.
    """
    return seeded(seed, Recipe(size=(6, 20), uniform=seed % 2 == 0))


def exceedances(
    network: kc.Network, expected: dict[Any, Any], point: tuple[Any, ...], seed: int, draws: int
) -> set[tuple[Any, int]]:
    """(node, which number) beyond the bar."""
    measured = simulate(network, *point, draws=draws, width=16384, seed=seed)
    deviations = {node: m.deviations(expected[node]) for node, m in measured.items()}
    return {
        (node, i) for node, three in deviations.items() for i in range(3) if not three[i] <= BAR
    }


def disagreements(
    network: kc.Network, expected: dict[Any, Any], point: tuple[Any, ...], seed: int
) -> set[tuple[Any, int]]:
    """Exceedances that an independent, larger run confirms."""
    found = exceedances(network, expected, point, seed, DRAWS)
    return (
        found & exceedances(network, expected, point, seed + 10_000, 4 * DRAWS) if found else found
    )


# -- valid networks --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", mostly_slow(VALID, 6))
def test_valid_networks_agree_at_every_node(seed):
    net, point = valid(seed), POINTS[seed % len(POINTS)]
    assert 6 <= len(net) <= 20
    assert kc.c_map(net).heuristic is False
    assert disagreements(net, kc.node_values(net, *point), point, seed) == set()


# -- invalid networks ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", INVALID)
def test_invalid_networks_are_refused_or_agree(seed):
    net, broken = broken_network(seed, Recipe(size=(5, 12), uniform=True))
    point = POINTS[seed % len(POINTS)]
    try:
        expected = kc.node_values(net, *point)
    except kc.KcalcError as error:
        assert any(f"node {node!r}" in str(error) for node in net), broken
        with pytest.raises(kc.KcalcError):
            kc.c_map(net)(*point)
        if "its output is 0" not in str(error):
            assert all(
                np.isfinite(v).all()
                for v in kc.node_values(net, *point, assume_independent=True).values()
            )
        return
    assert disagreements(net, expected, point, seed) == set()


def test_invalid_networks_are_mostly_refused():
    refused = 0
    for seed in INVALID:
        net, _ = broken_network(seed, Recipe(size=(5, 12), uniform=True))
        try:
            kc.node_values(net, 0.5)
        except kc.FreshnessError:
            refused += 1
            assert kc.c_map(net, assume_independent=True).heuristic
    assert refused >= 15
