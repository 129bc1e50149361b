"""Mixtures of experts in networks, against sampled networks of finite width."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refusals
from wiring import wired

import kcalc as kc
from kcalc import KcalcError

L = kc.layers
EXPERT = kc.chain(L.Affine(), L.Nonlinear("relu"), L.Affine(sigma_w=math.sqrt(2)))


def mixture(*given: Any, **options: Any) -> kc.Network:
    return kc.chain(L.Input(), L.RMSNorm(), L.MoE(*given, **options))


def test_a_shared_expert_is_added() -> None:
    s = sp.Symbol("s", positive=True)
    experts = [kc.chain(L.Identity(), L.Affine())] * 8
    net = mixture(experts, 8, 2, scale=s, shared=L.Affine(sigma_w=3)).subs({s: 2})
    assert kc.q_map(net)(3.0) == pytest.approx(4 * 0.553763041186 + 9, abs=1e-9)


def test_two_experts_of_two() -> None:
    """C = c W / S_2 with W = 2 E p(u) p(u'), p the sigmoid of u of variance 2: W' = 4 E p'(u)^2."""
    z, w = np.polynomial.hermite_e.hermegauss(80)
    p = 1 / (1 + np.exp(-z * 2**0.5))
    found = kc.c_map(mixture(L.Affine(), 2, 2)).derivative(1)(1.0)
    assert found == pytest.approx(1 + 4 * ((p * (1 - p)) ** 2 @ w) / (2 * p**2 @ w), rel=1e-5)


@pytest.mark.parametrize(("experts", "selected"), [(2, 1), (3, 2)])
def test_obtuse_angles_and_third_derivatives(experts: int, selected: int) -> None:
    given: Any = {"score": "sigmoid", "normalise": False}
    C = kc.c_map(mixture(L.Affine(), experts, selected, **given))
    at = np.array([-0.95, -0.8, -0.6, -0.4, -0.2])
    by = [kc.moe_statistics(experts, selected, 1.0, c, **given).cross for c in at]
    second = kc.moe_statistics(experts, selected, 1.0, 0.0, **given).second
    np.testing.assert_allclose(C(at), np.array(by) / second * at, atol=1e-8)
    h = 1e-4
    two = C.derivative(2)(np.array([-0.3 - h, -0.3 + h]))
    assert C.derivative(3)(-0.3) == pytest.approx((two[1] - two[0]) / (2 * h), rel=1e-5)
    if selected == 1:
        assert C(-1.0) == 0  # opposite tokens share no expert
    else:
        with pytest.raises(KcalcError, match="cosine below -0.982.*use larger"):
            C(-0.995)


def routed(logits: Any, expert: Any, k: int = 2, below: Any = None) -> kc.Network:
    steps = [("a", L.Affine(3), "x"), ("l", logits, below or "x"), ("e", expert, "x")]
    return wired(("x", L.Input(6)), *steps, ("r", L.Route(k), "l e"))


def test_gradients_of_a_mixture() -> None:
    """The oracle: .758 by backpropagation through 2 of 8 experts of chi_e = q_e = 1."""
    net = kc.chain(L.Input(), L.MoE(EXPERT, 8, 2))
    found = kc.gradients(net)
    assert found.nodes["input"] == pytest.approx(0.553763041186 + 0.2041506661, abs=1e-9)
    assert found.weights["moe_1.1"] == pytest.approx(0.2041506661, abs=1e-9)
    one = kc.gradients(kc.chain(L.Input(), L.MoE(EXPERT, 8, 1)))
    assert one.weights["moe_1.1"] == pytest.approx(0, abs=1e-12)  # a router that does not learn
    assert kc.ntk(net)(1.0) == pytest.approx(sum(found.weights.values()))


def test_maps_of_a_mixture() -> None:
    net = kc.chain(L.Input(), L.RMSNorm(), L.MoE(EXPERT, 8, 2, scale=2), L.Affine())
    C, relu = kc.c_map(net), kc.c_map(EXPERT)
    assert C(0.5) == pytest.approx(0.2662534304 / 0.553763041186 * relu(0.5), abs=1e-9)
    assert C(1.0) == 1 and C.derivative(1)(1.0) == math.inf
    cosines = np.array([0.99, 0.1, 0.0])
    by_table = np.array([kc.moe_statistics(8, 2, 1.0, c).cross for c in cosines])
    assert np.abs(C(cosines) - by_table / 0.553763041186 * relu(cosines)).max() < 1e-8
    h = 1e-5
    assert C.derivative(1)(0.4) == pytest.approx((C(0.4 + h) - C(0.4 - h)) / (2 * h), abs=1e-7)


test_bad_mixtures = refusals(
    [
        (lambda: L.MoE(EXPERT, 4, 5), "top_k = 5 exceeds num_experts = 4"),
        (lambda: L.MoE(EXPERT, 4, 2, sigma_w=0), "tie"),
        (lambda: L.MoE(EXPERT, 4, 2, score="relu"), "score of a MoE"),
        (lambda: L.MoE(EXPERT, 4, 2, scale=0), "scale must not be 0"),
        (lambda: L.MoE(kc.chain(L.Affine(), L.Nonlinear("relu")), 4, 2), "must end in an Affine"),
        (lambda: L.MoE([EXPERT] * 3, 4, 2), "3 experts were passed"),
        (
            lambda: L.MoE([EXPERT, kc.chain(L.Affine(7), L.Affine())], 2, 1),
            "all experts must have the same widths",
        ),
        (
            lambda: kc.chain(L.MoE(L.Affine(7), 2, 1, shared=L.Affine(8)), L.Affine()),
            "use the same width for both",
        ),
        (
            lambda: kc.c_map(kc.chain(L.MoE(EXPERT, 4, 2), L.Affine()))(0.5, 1.0, 2.0),
            "put an RMSNorm before the router",
        ),
        (
            lambda: kc.c_map(kc.chain(L.MoE(EXPERT, 4, 2), L.Affine())).ball(0.5),
            "double precision",
        ),
        (lambda: kc.chain(L.Input(), L.Route(2)), "inputs"),
        (lambda: kc.c_map(routed(L.Affine(), L.Affine())), "'r' needs the number of experts"),
        (lambda: routed(L.Affine(3), L.Affine(), 4), "selects k = 4 experts, but there are only 3"),
        (
            lambda: kc.c_map(routed(L.Nonlinear("relu"), L.Affine(4), below="a"))(0.5),
            "its logits must be a fresh Gaussian",
        ),
        (
            lambda: kc.c_map(wired(("l", L.Affine(4)), ("r", L.Route(2), "l l"), features=6))(0.5),
            "the logits and the expert use the same weights",
        ),
        (
            lambda: kc.q_map(kc.chain(L.MoE(EXPERT, 8, 2), L.Affine())).derivative(1)(1.0),
            "with respect to the q value of the logits; put an RMSNorm",
        ),
    ]
)


def test_laws_of_depth_say_that_a_norm_reads_mixtures() -> None:
    block = kc.residual(kc.chain(L.RMSNorm(), L.MoE(EXPERT, 8, 2)))
    assert kc.depth_laws(block).heuristic


def test_streams_of_mixtures() -> None:
    branch = kc.chain(L.RMSNorm(), L.MoE(EXPERT, 4, 2))
    net = kc.architectures.hyper_connected(branch, 1, 1, [[1]], [1], [1], readout="sum")
    assert kc.c_map(net)(0.5) == pytest.approx(float(kc.c_map(kc.residual(branch, 1, 1))(0.5)))
    both = kc.chain(L.RMSNorm(), L.MoE(EXPERT, 8, 2, shared=L.Affine(sigma_w=3)))
    net = kc.architectures.hyper_connected(both, 1, 1, [[1]], [1], [1], readout="sum")
    assert kc.q_map(net)(1.0) == pytest.approx(1 + 0.553763041186 + 9, abs=1e-9)
