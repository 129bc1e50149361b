"""Mixtures of experts in networks, against sampled networks of finite width."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import kcalc as kc
from kcalc import KcalcError

L = kc.layers
EXPERT = kc.chain(L.Affine(), L.Nonlinear("relu"), L.Affine(sigma_w=math.sqrt(2)))


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
    relu = kc.c_map(EXPERT)(0.5)
    C = kc.c_map(net)
    assert C(0.5) == pytest.approx(0.2662534304 / 0.553763041186 * relu, abs=1e-9)
    assert kc.q_map(net)(3.0) == pytest.approx(4 * 0.553763041186, abs=1e-9)
    assert C(1.0) == 1 and C.derivative(1)(1.0) == math.inf
    cosines = np.array([0.99, 0.93, 0.5, 0.1, 0.0])
    by_table = np.array([kc.moe_statistics(8, 2, 1.0, c).cross for c in cosines])
    assert np.abs(C(cosines) - by_table / 0.553763041186 * kc.c_map(EXPERT)(cosines)).max() < 1e-8
    h = 1e-5
    assert C.derivative(1)(0.4) == pytest.approx((C(0.4 + h) - C(0.4 - h)) / (2 * h), abs=1e-7)


@pytest.mark.parametrize(
    ("make", "words"),
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
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_mixtures(make: Any, words: str) -> None:
    with pytest.raises(KcalcError, match=words):
        make()


def test_laws_of_depth_say_that_a_norm_reads_mixtures() -> None:
    block = kc.residual(kc.chain(L.RMSNorm(), L.MoE(EXPERT, 8, 2)))
    assert kc.depth_laws(block).heuristic


def test_streams_of_mixtures() -> None:
    branch = kc.chain(L.RMSNorm(), L.MoE(EXPERT, 4, 2))
    net = kc.architectures.hyper_connected(branch, 1, 1, [[1]], [1], [1], readout="sum")
    assert kc.c_map(net)(0.5) == pytest.approx(float(kc.c_map(kc.residual(branch, 1, 1))(0.5)))
