"""Random networks through JSON: the identity, for every kind of layer."""

from __future__ import annotations

import json
import random

from random_networks import any_network

from kcalc.interchange import network_from_dict, network_to_dict
from kcalc.layers import KINDS


def test_a_thousand_random_networks_come_back_from_json() -> None:
    rng, kinds = random.Random(2), set()
    for _ in range(1000):
        network = any_network(rng)
        text = json.dumps(network_to_dict(network), allow_nan=False)
        back = network_from_dict(json.loads(text))
        assert back == network and back.outputs == network.outputs and tuple(back) == tuple(network)
        assert json.dumps(network_to_dict(back)) == text
        kinds |= {type(layer).__name__ for _, layer, _ in network.steps()}
    assert kinds == set(KINDS)
