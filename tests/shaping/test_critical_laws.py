"""Laws at criticality beyond cosines: derivatives, tangent kernels, half-stable q, endless q."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import kcalc as kc

L = kc.layers
RELU = kc.chain(L.Nonlinear("relu"), L.Affine(sigma_w=2**0.5))
BRANCH = kc.chain(L.Affine(sigma_w=2**0.5), L.Nonlinear("relu"), L.Affine())


def edge(phi: str, q: float) -> kc.Network:
    point = kc.critical_point(phi, "edge", q=q)
    return layer(phi, point)


def layer(phi: str, point: Any) -> kc.Network:
    return kc.chain(L.Nonlinear(phi), L.Affine(sigma_w=point.sigma_w, sigma_b=point.sigma_b))


@pytest.mark.parametrize(
    ("phi", "start", "power"), [("tanh", 0.25, 1), ("tanh", 1.0, 1), ("hard_tanh", 0.5, 2)]
)
def test_derivatives_of_other_networks(phi: str, start: float, power: int) -> None:
    """The derivative through many layers on the way of q and c, with its correction in u^(1/p)."""
    net = edge(phi, 0.5 if power == 2 else 0.25)
    law = kc.depth_laws(net, q=start, token_cosine=0.3).cosine_law
    assert law.exponent == -power and law.tangent_ratio == 1 / (power + 2)
    maps = kc.c_map(kc.chain(L.Affine(), net))
    (node,), (output,) = maps.inputs, maps.outputs
    q, u, log, depth = np.asarray(start), 0.7, 0.0, 1500
    for _ in range(depth):
        jet = maps.gaps({node: np.asarray(u)}, {node: q}, None, 1)[output]
        log += math.log(-jet.coefficients[1])
        u, q = float(jet.value), np.asarray(kc.q_map(maps.network)(float(q)))
    # in place of L^-(p+1), the power of u that it stands for
    seen = math.exp(log) * law.prefactor ** (1 + 1 / power) / u ** (1 + 1 / power)
    assert law.derivative_prefactor == pytest.approx(seen, rel=0.02 if power == 1 else 0.1)


def test_ratios_of_tangent_kernels() -> None:
    for net, limit in ((RELU, 0.25), (kc.residual(BRANCH), 0.25), (edge("tanh", 0.25), 1 / 3)):
        one, two = (
            kc.ntk(kc.chain(L.Affine(sigma_w=0.5), kc.repeat(net, n), L.Affine()))
            for n in (150, 300)
        )
        near, far = (float(k(0.5) / k(1.0)) for k in (one, two))
        assert limit < far < near and 2 * far - near == pytest.approx(limit, abs=0.01)


def test_no_power_law_beside_criticality_and_none_of_derivatives_where_q_drifts() -> None:
    beside = kc.depth_laws(kc.chain(L.Affine(sigma_w=1.3, sigma_b=0.3), L.Nonlinear("tanh")))
    assert beside.cosine_law.limit == beside.cosine and math.isnan(beside.cosine_law.exponent)
    drifts = kc.depth_laws(kc.chain(L.Affine(), L.Nonlinear("tanh")), token_cosine=0.5)
    law = drifts.cosine_law
    assert law.limit == pytest.approx(0.44051, abs=1e-5) and law.exponent == -1
    assert math.isnan(law.derivative_exponent) and math.isnan(law.tangent_ratio)
    assert any("depends on the start" in note.text for note in law.assumptions)


def test_half_stable_q() -> None:
    point = kc.critical_point("gelu")
    net = layer("gelu", point)
    rest = kc.depth_laws(net, q=point.q, token_cosine=0.5)
    assert (rest.cosine_rate, rest.growth, rest.cosine_exponent) == (1, 1, -1)
    above = kc.depth_laws(net, q=point.q + 1, token_cosine=0.5)
    assert above.q == pytest.approx(point.q, rel=1e-6) and above.cosine_exponent == -1
    assert "half-stable: it attracts only from above" in above.assumptions[-1].text
    # the slope at 1 is 1 + tilt/l with q - q* = 2 / (|f''| l): tilt from slopes of the C map
    maps = kc.c_map(kc.chain(L.Affine(), net)).derivative(1)
    slope = (maps(1.0, point.q + 0.01) - maps(1.0, point.q - 0.01)) / 0.02
    tilt = slope * 2 / abs(point.curvature)
    assert above.cosine_prefactor == pytest.approx((1 + tilt) * rest.cosine_prefactor, rel=1e-3)
    below = kc.depth_laws(net, q=point.q - 1, token_cosine=0.5)
    assert below.q < point.q - 0.1 and below.cosine_rate < 1


def test_cosines_exist_where_q_is_beyond_double_precision() -> None:
    deep = kc.chain(L.Input(), kc.repeat(kc.residual(BRANCH), 1500))
    found = kc.node_values(deep, 0.5)[deep.outputs[0]]
    assert found.c == kc.c_map(deep)(0.5) and math.isinf(found.q1)
    assert (1 - found.c) * 1500**2 == pytest.approx(18 * math.pi**2, rel=0.05)


def test_laws_do_not_depend_on_a_start_from_which_q_moves_slowly() -> None:
    edge = kc.critical_point("tanh", "edge", q=0.01)
    block = kc.chain(L.Nonlinear("tanh"), L.Affine(sigma_w=edge.sigma_w, sigma_b=edge.sigma_b))
    law = kc.depth_laws(block, q=0.5).cosine_law
    assert (law.limit, law.exponent) == (1, -1)
    assert law.prefactor == pytest.approx(
        kc.depth_laws(block, q=0.01).cosine_law.prefactor, rel=1e-6
    )


@pytest.mark.parametrize("q", [1e-300, 1e8, 1e100])
def test_laws_of_homogeneous_blocks_at_any_q(q: float) -> None:
    block = kc.chain(L.Affine(sigma_w=math.sqrt(2)), L.Nonlinear("relu"))
    assert kc.depth_laws(block, q=q).cosine_law.prefactor == pytest.approx(4.5 * math.pi**2)
