"""Maxima along chains against all intervals, C maps of leaky ReLUs at 50 digits, and what is
refused of a function ``r``.
"""

from __future__ import annotations

import random
from typing import Any

import mpmath
import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.calculi.subnetworks import maximal, maximal_c_value
from kcalc.calculi.subnetworks.leaky_relus import leaky_relu_map
from kcalc.calculi.subnetworks.maxima import _check_monotone
from kcalc.network.layers import Affine, GroupNorm, Input, LayerNorm, Nonlinear

MP = mpmath.MPContext()
MP.dps = 50


@pytest.mark.parametrize("seed", range(30))
def test_active_is_an_interval_that_attains_the_maximum_and_cannot_be_extended(seed: int) -> None:
    """A chain of activations of one function each: up, down to a floor, to a ceiling.

    In eighths, so that ties are exact.
    """
    rng = random.Random(seed)
    kinds = [
        lambda x: (x + 1) / 2,
        lambda x: x / 2,
        lambda x: max(x, 0.5),
        lambda x: min(x, 0.25),
        lambda x: x,
    ]
    chosen = [rng.choice(kinds) for _ in range(5)]
    net = kc.chain(*(Nonlinear("relu") for _ in chosen))
    nodes = list(net)
    found = maximal(net, dict(zip(nodes[1:], chosen, strict=True)))
    for x in (0.125, 0.5, 0.75):
        values = {}
        for i in range(5):
            value = x
            for j in range(i, 5):
                value = chosen[j](value)
                values[i, j + 1] = value
        top = max(values.values())
        assert found(x) == top
        owner = found.active(x)
        i, j = nodes.index(owner.entry), nodes.index(owner.exit)
        assert values[i, j] == top
        assert j == 5 or values[i, j + 1] != top
        assert i == 0 or values[i - 1, j] != top or chosen[i - 1](x) < x
    assert found.to_dict()["subnetworks"] == len(found._sweep.exits) <= 5


def test_a_function_that_decreases_is_named_with_its_values() -> None:
    def pairs(*given: tuple[float, float]) -> Any:
        return [(np.array([0.0, x]), np.array([0.0, y])) for x, y in given]

    _check_monotone([])
    _check_monotone(pairs((0.5, 1.0), (0.25, 1.0 + 1e-9), (0.75, 2.0)))  # rounding is let through
    _check_monotone([(0.5, 1.0), (0.5, 1.0), (0.25, 0.5)])
    with refused(r"non-decreasing.*r\(0.25\).*1.5.*r\(0.5\).*1$"):
        _check_monotone(pairs((0.5, 1.0), (0.25, 1.5)))
    with refused(r"r\(0.5\).*100.*r\(0.75\).*99.9$"):
        _check_monotone([(0.5, 100.0), (0.75, 99.9), (0.25, 3.0)])
    _check_monotone([(0.5, 1e12), (0.75, 1e12 - 10)])
    _check_monotone([(0.25, 1.0), (0.5, 1e12), (0.75, 1e12 - 10)])
    with refused("non-decreasing"):
        _check_monotone(pairs((0.5, 1.0), (0.25, 1.0 + 2.5e-9)))
    with refused("non-decreasing"):
        _check_monotone([(0.5, 1e12), (0.75, 1e12 - 10_000)])


def test_what_r_returns_has_the_shape_it_was_given() -> None:
    net = kc.architectures.vanilla(3)
    assert maximal(net, lambda x: 0.5)(np.array([0.1, 0.7])) == pytest.approx([0.5, 0.7])
    assert maximal(kc.chain(Affine(), Nonlinear("relu")), lambda x: 0.5)(
        np.array([0.1, 0.7])
    ) == pytest.approx([0.5, 0.7])
    assert maximal(net, lambda x: np.float32(0.5))(0.1) == 0.5
    for wrong in (lambda x: np.array([0.5, 0.5]), lambda x: "a", lambda x: [[0.5], [0.6]]):
        with refused("return.*number"):
            maximal(net, wrong)(0.1)
    with refused("r must return"):
        maximal(net, lambda x: np.ones(3))(np.array([0.1, 0.2]))


@pytest.mark.parametrize("target", [0.0, 0.3, 1.0])
def test_inverse_on_a_whole_interval(target: float) -> None:
    found = maximal(kc.architectures.vanilla(2), lambda x: x)
    assert found.inverse(target, 0.0, 1.0) == pytest.approx(target, abs=1e-15)
    for wrong in (-1e-9, 1 + 1e-9):
        with pytest.raises(kc.UnreachableTarget, match=r"from 0 to 1 on \[0.0, 1.0\]"):
            found.inverse(wrong, 0.0, 1.0)


# -- leaky ReLUs -----------------------------------------------------------------------------------


def leaky(alpha: Any, c: Any) -> Any:
    k = (1 - alpha) ** 2 / (MP.pi * (1 + alpha**2))
    return c + k * (MP.sqrt(1 - c * c) - c * MP.acos(c))


def test_c_maps_of_leaky_relus() -> None:
    points = np.array([0.0, 1e-9, 0.3, 0.8, 1 - 1e-9, 1.0])
    slopes = np.array([-1.0, -0.4, 0.0, 0.25, 1.0])
    truth = [[float(leaky(MP.mpf(a), MP.mpf(c))) for c in points] for a in slopes]
    for a, row in zip(slopes, truth, strict=True):
        assert [leaky_relu_map(float(a))(float(c)) for c in points] == pytest.approx(
            row, rel=4e-16, abs=1e-16
        )
        assert leaky_relu_map(float(a))(1 + 1e-15) == 1.0
    assert leaky_relu_map(slopes[:, None])(points[None, :] * np.ones((5, 1))) == pytest.approx(
        np.array(truth), rel=4e-16, abs=1e-16
    )
    assert leaky_relu_map(slopes)(np.full(5, 1 + 1e-15)) == pytest.approx(np.ones(5), rel=0, abs=0)


def test_maximal_c_values_of_chains() -> None:
    mu = maximal_c_value(kc.architectures.vanilla(4))
    for alpha in (-1.0, -0.3, 0.0, 0.6, 1.0):
        truth = MP.mpf(0)
        for _ in range(4):
            truth = leaky(MP.mpf(alpha), truth)
        assert mu(alpha) == pytest.approx(float(truth), rel=4e-15, abs=1e-16)
    assert mu(np.array([[-1.0, 0.6]])).shape == (1, 2)
    most = float(mu(-1.0))
    assert mu.inverse(most) == pytest.approx(-1.0, abs=1e-12)
    assert mu.inverse([[0.1, 0.2]]).shape == (1, 2)
    with pytest.raises(kc.UnreachableTarget, match="at most 0.877053 "):
        mu.inverse(most + 1e-9)
    for wrong in (0.0, 1.0, -0.5):
        with refused("strictly.*0.*1"):
            mu.inverse(wrong)
    with refused(r"negative_slope.*\[-1.*1\]"):
        mu.active(1.5)
    assert mu.to_dict()["at_relu"] == float(mu(0.0))


def test_what_a_maximal_c_value_takes_for_granted() -> None:
    net = kc.chain(
        Input(8),
        Affine(8),
        GroupNorm(2),
        Nonlinear("relu"),
        LayerNorm(),
        Affine(8),
        Nonlinear("relu"),
        GroupNorm(2),
    )
    most = maximal_c_value(net)
    assert "leaky ReLU" in most.assumptions[0].text and most.assumptions[0].node == "network"
    heuristic = [a for a in most.assumptions if a.kind == "heuristic"]
    # what groupnorm_1 reads has mean 0
    assert [a.node for a in heuristic] == [
        "layernorm_1",
        "groupnorm_2",
    ]
    assert all(
        a.kind == "convention" and a.node == "network"
        for a in most.assumptions
        if a not in heuristic
    )
    assert (
        "this GroupNorm is treated as the identity on c values" in heuristic[1].text
        and "q=1.0" in heuristic[1].text
    )
    # two ReLUs, each with a norm behind it: C(c) = (sqrt(1 - c^2) + (pi - arccos c) c)/pi, less the
    # square of the mean in the true value
    assert (
        most(0.0) == pytest.approx(0.49373109020037, abs=1e-13)
        and maximal(net, kc.activation("relu").c_map, 1.0)(0.0) < 0.4
    )
    assert (
        len(
            [
                a
                for a in maximal(net, abs).assumptions
                if "maxima over subnetworks check neither" in a.text
            ]
        )
        == 1
    )
