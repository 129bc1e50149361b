"""Slopes at every node, and depths, of random networks of mixes, norms and products against their
definitions at 50 digits.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from refusals import refused
from slope_oracle import degree_of_mix, log_of_mix
from wiring import wired

from kcalc.calculi.factored import mixed
from kcalc.calculi.subnetworks.forward import ForwardSlope, _mixed, _mixed_arrays
from kcalc.network.layers import Affine, LayerNorm, Nonlinear, Sum


def test_the_earliest_of_equally_steep_nodes_is_active() -> None:
    steps = [
        ("a", Affine()),
        ("f", Nonlinear("relu")),
        ("b", Affine()),
        ("g", Nonlinear("relu"), "b"),
        ("c", Affine()),
        ("s", Sum((1, 2)), "b c"),
        ("t", LayerNorm()),
    ]
    forward = ForwardSlope(wired(*steps))
    with refused("must exceed 1, "):
        forward.inverse(1.0)
    assert forward.active(1.0) in ("x", "f", "g", "s")
    assert forward.active(1.2) == "g"
    assert forward.log_at("t", 2.0) == pytest.approx(math.log((2 + 16) / 5), rel=1e-15)
    with refused("single psi"):
        forward.active(np.array([1.2]))


# -- mixes and roots -------------------------------------------------------------------------------

LOGS = [
    [0.0, 0.0, 0.0],
    [1e-12, 3e-12, 0.0],
    [40.0, 1.0, 39.0],
    [499.5, 3.0, 498.0],
    [2000.0, 1999.0, 700.0],
    [-900.0, -902.0, -901.0],
]
WEIGHTS = [[0.5, 0.125, 0.375], [2.0**-30, 0.75, 0.25 - 2.0**-30]]
DEGREES = [3.0, 1.5, 0.25]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("logs", LOGS)
def test_mixes_in_logs(weights: list[float], logs: list[float]) -> None:
    value, degree = log_of_mix(weights, logs), degree_of_mix(weights, logs, DEGREES)
    found = []
    if logs[0] > -10:  # those of slopes >= 1
        found += [
            _mixed(weights, logs, DEGREES),
            _mixed_arrays(*map(np.array, (weights, logs, DEGREES))),
        ]
    columns = (np.array(v)[:, None] for v in (weights, logs, DEGREES))
    logs_of_runs, degrees_of_runs = mixed(*columns, np.zeros(1, np.intp))
    found.append((logs_of_runs[0, 0], degrees_of_runs[0, 0]))
    for log, mean in found:
        assert abs(log - value) <= 4e-16 * abs(value)
        assert abs(mean - degree) <= 1e-15 * degree
