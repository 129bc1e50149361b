"""PyTorch models read as they are: the network equals the one written by hand."""

from __future__ import annotations

import pytest
from torch_zoo import REPORTED, ZOO

from kcalc.interchange.read import read


@pytest.mark.parametrize("name", ZOO)
def test_network_is_the_one_written_by_hand(name: str) -> None:
    model, example, twin = ZOO[name]()
    found = read(model, *example, sigmas=False)
    assert found.network.isomorphic(twin), f"\n{found}\n{list(found.network.steps())}"
    if name not in REPORTED:
        assert found.fidelity.level in ("exact", "locations", "pooling")
