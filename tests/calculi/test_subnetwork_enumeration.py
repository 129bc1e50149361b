"""Subnetworks, slopes, curvature and maxima of random networks against enumeration of all subsets
of layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from subnetwork_oracle import enumerate_subnetworks, greatest, random_network, read_forward
from thinning import mostly_slow

from kcalc.calculi.subnetworks import maximal


def relu_map(c: Any) -> Any:
    """The C map of the ReLU."""
    return (np.sqrt((1 - c) * (1 + c)) + (np.pi - np.arccos(c)) * c) / np.pi


@pytest.mark.parametrize("block", mostly_slow(range(6)))
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
    for seed in range(40 * block, 40 * block + 40):
        net = random_network(seed)
        strict = enumerate_subnetworks(net)
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
