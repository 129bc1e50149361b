"""Maxima along chains against all intervals, C maps of leaky ReLUs at 50 digits, and what is
refused of a function ``r``.
"""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc import architectures, chain
from kcalc.calculi.subnetworks import maximal, maximal_c_value
from kcalc.network.layers import Affine, GroupNorm, Input, LayerNorm, Nonlinear

MP = mpmath.MPContext()
MP.dps = 50


def test_what_r_returns_has_the_shape_it_was_given() -> None:
    net = architectures.vanilla(3)
    assert maximal(net, lambda x: 0.5)(np.array([0.1, 0.7])) == pytest.approx([0.5, 0.7])
    short = maximal(chain(Affine(), Nonlinear("relu")), lambda x: 0.5)
    assert short(np.array([0.1, 0.7])) == pytest.approx([0.5, 0.7])
    assert maximal(net, lambda x: np.float32(0.5))(0.1) == 0.5
    for wrong in (lambda x: np.array([0.5, 0.5]), lambda x: "a"):
        with refused("return.*number"):
            maximal(net, wrong)(0.1)
    with refused("r must return"):
        maximal(net, lambda x: np.ones(3))(np.array([0.1, 0.2]))


# -- leaky ReLUs -----------------------------------------------------------------------------------


def leaky(alpha: Any, c: Any) -> Any:
    k = (1 - alpha) ** 2 / (MP.pi * (1 + alpha**2))
    return c + k * (MP.sqrt(1 - c * c) - c * MP.acos(c))


def test_maximal_c_values_of_chains() -> None:
    mu = maximal_c_value(architectures.vanilla(4))
    for alpha in (-1.0, 0.0, 0.6):
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
    relu = Nonlinear("relu")
    first, second = (Input(8), Affine(8), GroupNorm(2), relu), (LayerNorm(), Affine(8), relu)
    net = chain(*first, *second, GroupNorm(2))
    most = maximal_c_value(net)
    assert "leaky ReLU" in most.assumptions[0].text and most.assumptions[0].node == "network"
    heuristic = [a for a in most.assumptions if a.kind == "heuristic"]
    # what groupnorm_1 reads has mean 0
    assert [a.node for a in heuristic] == ["layernorm_1", "groupnorm_2"]
    others = {(a.kind, a.node) for a in most.assumptions if a not in heuristic}
    assert others == {("convention", "network")}
    assert "this GroupNorm is treated as the identity on c values" in heuristic[1].text
    assert "q=1.0" in heuristic[1].text
    # two ReLUs, each with a norm behind it: C(c) = (sqrt(1 - c^2) + (pi - arccos c) c)/pi, less the
    # square of the mean in the true value
    assert most(0.0) == pytest.approx(0.49373109020037, abs=1e-13)
    assert maximal(net, kc.activation("relu").c_map, 1.0)(0.0) < 0.4
    told = [a.text for a in maximal(net, abs).assumptions]
    assert sum("maxima over subnetworks check neither" in text for text in told) == 1
