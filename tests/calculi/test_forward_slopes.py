"""Slopes at every node, and depths, of random networks of mixes, norms and products against their
definitions at 50 digits.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from log_slopes import log_slopes
from refusals import refused
from slope_oracle import MP, degree_of_mix, log_of_mix, mixing_network, slopes
from wiring import wired

import kcalc as kc
from kcalc.calculi.factored import mixed
from kcalc.calculi.subnetworks.forward import ForwardSlope, _mixed, _mixed_arrays, as_slopes, newton
from kcalc.network.layers import Affine, Input, LayerNorm, Nonlinear, Sum

PSIS = (1.0, 1 + 2.0**-30, 1.3, 7.0, 1e80)
QS = (None, Fraction(3, 2))


@cache
def truth_of(seed: int, psi: float, q: Fraction | None) -> Any:
    """The slopes at all nodes, by definition."""
    return slopes(mixing_network(seed), psi, q)


def reading(seed: int, q: Fraction | None) -> tuple[kc.Network, ForwardSlope]:
    net = mixing_network(seed)
    return net, ForwardSlope(net, None if q is None else float(q))


@pytest.mark.parametrize("q", QS)
@pytest.mark.parametrize("seed", range(10))
def test_values_and_derivatives_at_every_node(seed: int, q: Fraction | None) -> None:
    net, forward = reading(seed, q)
    numeric = log_slopes(net, list(PSIS), None if q is None else float(q))
    for k, psi in enumerate(PSIS):
        truth = truth_of(seed, psi, q)
        logs, degrees = forward._bases(math.log(psi))
        for node in net:
            exact, mean = MP.log(truth[node].value), truth[node].degree
            # by true q values, shares and slopes of LayerNorms are kept to 14 digits
            allowed = 1e-15 * (1 + abs(exact)) if q is None else 2e-13 * (1 + abs(exact))
            assert abs(forward.log_at(node, psi) - exact) <= allowed, (node, psi)
            assert abs(numeric[node].log[k] - exact) <= allowed, (node, psi)
            state = forward._states[node]
            assert logs[state.base] + state.power * math.log(
                psi
            ) + state.log_constant == pytest.approx(float(exact), rel=2e-13, abs=2e-13)
            assert degrees[state.base] + state.power == pytest.approx(
                float(mean), rel=1e-12, abs=1e-15
            )
            assert numeric[node].degree[k] == pytest.approx(float(mean), rel=1e-12, abs=1e-15)


def test_the_earliest_of_equally_steep_nodes_is_active() -> None:
    steps = [
        ("x", Input()),
        ("a", Affine(), "x"),
        ("f", Nonlinear("relu"), "a"),
        ("b", Affine(), "f"),
    ]
    steps += [
        ("g", Nonlinear("relu"), "b"),
        ("c", Affine(), "g"),
        ("s", Sum((1, 2)), "b c"),
        ("t", LayerNorm(), "s"),
    ]
    forward = ForwardSlope(wired(*steps))
    with refused("must exceed 1, "):
        forward.inverse(1.0)
    assert forward.active(1.0) in ("x", "f", "g", "s")
    assert forward.active(1.2) == "g"
    assert forward.log_at("t", 2.0) == pytest.approx(math.log((2 + 16) / 5), rel=1e-15)
    with refused("psi.*time"):
        forward.active(np.array([1.2]))


# -- mixes and roots -------------------------------------------------------------------------------

LOGS = [
    [0.0, 0.0, 0.0],
    [1e-12, 3e-12, 0.0],
    [2.0, 0.5, -0.25],
    [40.0, 1.0, 39.0],
    [499.5, 3.0, 498.0],
    [501.0, 500.2, 2.0],
    [2000.0, 1999.0, 700.0],
    [-0.4, -0.3, -0.2],
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


@pytest.mark.parametrize("target", [1 + 1e-13, 1.00001, 1.4, 7.0, 1e9, 1e300])
def test_newton_finds_roots_to_rounding(target: float) -> None:
    """``f(x) = log((3 e^{4x} + e^{x/2}) / 4)`` as of a mix; and a straight line."""
    values = np.array([[target, target]])

    def curve(x: float) -> tuple[float, float]:
        weights, logs, powers = (0.75, 0.25), (4 * x, x / 2), (4.0, 0.5)
        return float(log_of_mix(weights, logs)), float(degree_of_mix(weights, logs, powers))

    found = newton(curve, values)
    assert found.shape == (1, 2)
    root = MP.log(MP.mpf(float(found[0, 0])))
    goal = MP.log(MP.mpf(target))
    truth = MP.findroot(lambda x: MP.log((3 * MP.exp(4 * x) + MP.exp(x / 2)) / 4) - goal, goal / 4)
    assert abs(root - truth) < 3e-16 * max(1, goal)
    assert np.log(newton(lambda x: (3 * x, 3.0), np.array(target))) == pytest.approx(
        math.log(target) / 3, rel=3e-16, abs=3e-16
    )


def test_slopes_from_1_on() -> None:
    assert as_slopes([1, 2]) == pytest.approx([0, math.log(2)], rel=1e-15)
    for wrong in (1 - 1e-12, 0.5, [1.5, 0.99]):
        with refused("must.*1"):
            as_slopes(wrong)
