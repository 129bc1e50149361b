"""Random networks through JSON: the identity, for every kind of layer."""

from __future__ import annotations

import json
import random

import pytest
from fuzz.documents import any_network
from thinning import mostly_slow

from kcalc.interchange import network_from_dict, network_to_dict
from kcalc.network.layers import KINDS


@pytest.mark.parametrize("seed", mostly_slow(range(2, 6), 4))
def test_many_random_networks_come_back_from_json(seed: int) -> None:
    rng, kinds = random.Random(seed), set()
    for _ in range(250):
        network = any_network(rng)
        text = json.dumps(network_to_dict(network), allow_nan=False)
        back = network_from_dict(json.loads(text))
        assert back == network and back.outputs == network.outputs and tuple(back) == tuple(network)
        assert json.dumps(network_to_dict(back)) == text
        kinds |= {type(layer).__name__ for _, layer, _ in network.steps()}
    assert kinds == set(KINDS) - {"MoE", "Route"}
