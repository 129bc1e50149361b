"""Sums and products of functions of the same Gaussians, at q values that differ, against
two-dimensional Gauss-Hermite sums.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss

import kcalc as kc

L = kc.layers
NODES, WEIGHTS = hermegauss(120)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
JOINT = np.outer(WEIGHTS, WEIGHTS)
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "": lambda x: x,
    "tanh": np.tanh,
    "softplus": lambda x: np.logaddexp(0, x),
    "sin": np.sin,
    "logcosh": lambda x: np.log(np.cosh(x)),
    "square": np.square,
}
# Addends (weight, activation or "" for the Gaussian itself, which of two independent Gaussians).
SUMS = [
    ((0.6, "tanh", 0), (0.8, "softplus", 0)),
    ((0.6, "softplus", 0), (-0.8, "", 0), (0.5, "sin", 0)),
    ((0.6, "softplus", 0), (0.8, "softplus", 1), (0.3, "", 0), (0.4, "", 1)),
    ((1.5, "logcosh", 0), (-0.7, "softplus", 0), (0.2, "logcosh", 1)),
    ((0.9, "square", 0), (0.4, "softplus", 1), (0.7, "", 1), (-0.5, "tanh", 1)),
]
POINTS = [(0.3, 1.0, 1.0), (-0.7, 0.5, 1.3), (0.95, 1.2, 0.4)]
SCALE = 0.8  # sigma_w of the two Gaussians


def network(
    addends: tuple[tuple[float, str, int], ...], last: tuple[object, ...] = ()
) -> kc.Network:
    """The sum of the addends, then the layers of ``last``, then an Affine."""
    steps = [
        ("x", L.Input(), ()),
        ("g0", L.Affine(sigma_w=SCALE), ("x",)),
        ("g1", L.Affine(sigma_w=SCALE), ("x",)),
    ]
    ends = []
    for k, (_, name, which) in enumerate(addends):
        ends.append(f"g{which}")
        if name:
            steps.append((f"f{k}", L.Nonlinear(name), (f"g{which}",)))
            ends[-1] = f"f{k}"
    steps.append(("sum", L.Sum([weight for weight, _, _ in addends]), tuple(ends)))
    below = "sum"
    for k, layer in enumerate((*last, L.Affine())):
        steps.append((f"last{k}", layer, (below,)))
        below = f"last{k}"
    used = {"x", *(f"g{which}" for _, _, which in addends)}
    return kc.Network.from_steps([step for step in steps if step[0][0] != "g" or step[0] in used])


def moments(
    addends: tuple[tuple[float, str, int], ...], c: float, q1: float, q2: float
) -> np.ndarray:
    """E s, E s' and E s s' of the sums for two inputs, by a product rule for each Gaussian.

    [[E s s, E s s'], [., E s' s']], means last.
    """
    first = SCALE * np.sqrt(q1) * NODES
    second = SCALE * np.sqrt(q2) * (c * NODES[:, None] + np.sqrt(1 - c * c) * NODES)
    table, means = np.zeros((2, 2)), np.zeros(2)
    for which in (0, 1):
        one = sum(
            (w * FUNCTIONS[name](first)[:, None] for w, name, i in addends if i == which),
            np.zeros((len(NODES), 1)),
        )
        two = sum(
            (w * FUNCTIONS[name](second) for w, name, i in addends if i == which),
            np.zeros_like(second),
        )
        one = np.broadcast_to(one, second.shape)
        own = np.array([np.sum(JOINT * one), np.sum(JOINT * two)])
        raw = np.array([[np.sum(JOINT * a * b) for b in (one, two)] for a in (one, two)])
        table += raw - np.outer(own, own)  # the two Gaussians are independent: covariances add up
        means += own
    return np.vstack([table + np.outer(means, means), means])


@pytest.mark.parametrize("addends", SUMS)
@pytest.mark.parametrize(("c", "q1", "q2"), POINTS)
def test_sums_of_functions_of_shared_gaussians(addends, c: float, q1: float, q2: float) -> None:
    net, expected = network(addends), moments(addends, c, q1, q2)
    own1, joint, own2 = expected[0, 0], expected[0, 1], expected[1, 1]
    assert [kc.q_map(net)(q1), kc.q_map(net)(q2)] == pytest.approx([own1, own2], rel=1e-12)
    C = kc.c_map(net)
    assert C(c, q1, q2) == pytest.approx(joint / np.sqrt(own1 * own2), abs=1e-12)
    assert C(c, q2, q1) == pytest.approx(joint / np.sqrt(own1 * own2), abs=1e-12)
    step = 1e-4
    around = [moments(addends, c + k * step, q1, q2)[0, 1] for k in (-2, -1, 1, 2)]
    slope = (
        (around[0] - 8 * around[1] + 8 * around[2] - around[3]) / (12 * step) / np.sqrt(own1 * own2)
    )
    assert C.derivative(1)(c, q1, q2) == pytest.approx(slope, abs=1e-9)


@pytest.mark.parametrize("addends", SUMS)
@pytest.mark.parametrize(("c", "q1", "q2"), POINTS)
def test_layer_norm_of_shared_sums_takes_their_means_off(
    addends, c: float, q1: float, q2: float
) -> None:
    net, expected = network(addends, (L.LayerNorm(),)), moments(addends, c, q1, q2)
    table = expected[:2] - np.outer(expected[2], expected[2])
    assert kc.c_map(net)(c, q1, q2) == pytest.approx(
        table[0, 1] / np.sqrt(table[0, 0] * table[1, 1]), abs=1e-11
    )


@pytest.mark.parametrize(("c", "q1", "q2"), POINTS)
def test_products_of_independent_sums(c: float, q1: float, q2: float) -> None:
    left, right = ((0.6, "softplus", 0), (0.8, "", 0)), ((0.5, "logcosh", 1), (-0.9, "softplus", 1))
    steps = [
        ("x", L.Input(), ()),
        ("g0", L.Affine(sigma_w=SCALE), ("x",)),
        ("g1", L.Affine(sigma_w=SCALE), ("x",)),
    ]
    steps += [
        ("a", L.Nonlinear("softplus"), ("g0",)),
        ("b", L.Nonlinear("logcosh"), ("g1",)),
        ("d", L.Nonlinear("softplus"), ("g1",)),
    ]
    steps += [
        ("s", L.Sum([0.6, 0.8]), ("a", "g0")),
        ("t", L.Sum([0.5, -0.9]), ("b", "d")),
        ("p", L.Product(), ("s", "t")),
        ("out", L.Affine(), ("p",)),
    ]
    net = kc.Network.from_steps(steps)
    one = moments(left, c, q1, q2)
    two = moments(right, c, q1, q2)
    own1, own2, joint = one[0, 0] * two[0, 0], one[1, 1] * two[1, 1], one[0, 1] * two[0, 1]
    assert [kc.q_map(net)(q1), kc.q_map(net)(q2)] == pytest.approx([own1, own2], rel=1e-12)
    assert kc.c_map(net)(c, q1, q2) == pytest.approx(joint / np.sqrt(own1 * own2), abs=1e-12)
