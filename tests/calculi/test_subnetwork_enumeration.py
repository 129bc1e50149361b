"""Maxima over subnetworks of random networks against enumeration of all pairs of nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from slope_oracle import mixing_network, read_forward, regions

from kcalc.calculi.subnetworks import maximal


def relu_map(c: Any) -> Any:
    """The C map of the ReLU."""
    return (np.sqrt((1 - c) * (1 + c)) + (np.pi - np.arccos(c)) * c) / np.pi


@pytest.mark.parametrize("block", range(3))
def test_maxima_with_products(block: int) -> None:
    """c values of both signs; functions above, across and below the identity."""
    points = np.array([-1.0, -0.7, -0.25, 0.0, 0.2, 0.6, 1.0])
    functions = [
        relu_map,
        lambda x: 0.75 * x + 0.25,
        lambda x: np.maximum(x, 0.3),
        lambda x: 0.6 * x + 0.1,  # below x from 1/4 on
        lambda x: 0.5 * x - 0.3,
        lambda x: x**3,
    ]
    for seed in range(10 * block, 10 * block + 10):
        net = mixing_network(seed, bare=True)
        strict = regions(net)
        for r in functions:
            ends = {
                (entry, end): read_forward(net, inside, entry, points, r)[end]
                for (entry, end), inside in strict.items()
            }
            truth = np.max([*ends.values()], axis=0) if ends else points
            found = maximal(net, r)
            assert found(points) == pytest.approx(truth, rel=1e-13, abs=1e-15)
            for x, top in zip(points.tolist(), truth, strict=True):
                assert found(x) == pytest.approx(top, rel=1e-13, abs=1e-15)
            if ends:
                owner = found.active(-0.25)
                reached = ends[owner.entry, owner.exit][2]
                assert reached == pytest.approx(truth[2], rel=1e-13, abs=1e-15)
