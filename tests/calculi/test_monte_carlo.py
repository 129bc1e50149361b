"""Kernel maps against real random networks.

30 valid ones agree at every node, 30 invalid ones are refused or agree.

The bar is four standard errors at every node, for q1, q2 and c. A run makes about 1500 comparisons,
so one of them exceeds four by chance once in ten runs; an exceedance therefore counts only if an
independent run with four times the draws shows one at the same node and number again, which happens
by chance with probability below 1e-7 per comparison.
"""

from __future__ import annotations

from laws.random_networks import Recipe, broken_network, seeded

import kcalc as kc

"""(c, q1, q2) by seed; None: equal."""
INVALID = range(30)


def valid(seed: int) -> kc.Network:
    """A valid network of 6 to 20 nodes.

    Even seeds may fuse functions of one Gaussian after a LayerNorm.
    """
    return seeded(seed, Recipe(size=(6, 20), uniform=seed % 2 == 0))


# -- valid networks --------------------------------------------------------------------------------


# -- invalid networks ------------------------------------------------------------------------------


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
