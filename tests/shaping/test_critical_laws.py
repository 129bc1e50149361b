"""Laws at criticality beyond cosines: derivatives, tangent kernels, half-stable q, endless q."""

from __future__ import annotations

import math
from typing import Any

import pytest

import kcalc as kc
from kcalc import chain, critical_point, depth_laws
from kcalc.network.layers import Affine, Nonlinear


def edge(phi: str, q: float) -> kc.Network:
    point = critical_point(phi, "edge", q=q)
    return layer(phi, point)


def layer(phi: str, point: Any) -> kc.Network:
    return chain(Nonlinear(phi), Affine(sigma_w=point.sigma_w, sigma_b=point.sigma_b))


def test_half_stable_q() -> None:
    point = critical_point("gelu")
    net = layer("gelu", point)
    rest = depth_laws(net, q=point.q, token_cosine=0.5)
    assert (rest.cosine_rate, rest.growth, rest.cosine_exponent) == (1, 1, -1)
    above = depth_laws(net, q=point.q + 1, token_cosine=0.5)
    assert above.q == pytest.approx(point.q, rel=1e-6) and above.cosine_exponent == -1
    assert "half-stable: it attracts only from above" in above.assumptions[-1].text
    # the slope at 1 is 1 + tilt/l with q - q* = 2 / (|f''| l): tilt from slopes of the C map
    maps = kc.c_map(chain(Affine(), net)).derivative(1)
    slope = (maps(1.0, point.q + 0.01) - maps(1.0, point.q - 0.01)) / 0.02
    tilt = slope * 2 / abs(point.curvature)
    assert above.cosine_prefactor == pytest.approx((1 + tilt) * rest.cosine_prefactor, rel=1e-3)
    below = depth_laws(net, q=point.q - 1, token_cosine=0.5)
    assert below.q < point.q - 0.1 and below.cosine_rate < 1


def test_laws_do_not_depend_on_a_start_from_which_q_moves_slowly() -> None:
    edge = critical_point("tanh", "edge", q=0.01)
    block = chain(Nonlinear("tanh"), Affine(sigma_w=edge.sigma_w, sigma_b=edge.sigma_b))
    law = depth_laws(block, q=0.5).cosine_law
    assert (law.limit, law.exponent) == (1, -1)
    assert law.prefactor == pytest.approx(depth_laws(block, q=0.01).cosine_law.prefactor, rel=1e-6)


@pytest.mark.parametrize("q", [1e-300, 1e100])
def test_laws_of_homogeneous_blocks_at_any_q(q: float) -> None:
    block = chain(Affine(sigma_w=math.sqrt(2)), Nonlinear("relu"))
    law = depth_laws(block, q=q).cosine_law
    assert law.prefactor == pytest.approx(4.5 * math.pi**2)
    # C' = 1 - acos(c)/pi, and derivatives after L blocks tend to a multiple of u^(3/2)
    u, slope = 1.0, 1.0
    for _ in range(4000):
        t = 2 * math.asin(math.sqrt(u / 2))
        u, slope = u - (math.sin(t) - t * math.cos(t)) / math.pi, slope * (1 - t / math.pi)
    assert law.derivative_prefactor == pytest.approx(slope * (law.prefactor / u) ** 1.5, rel=3e-3)


@pytest.mark.parametrize(("cosine", "derivative"), [(1, math.nan), (-1, 0)])
def test_derivatives_at_the_ends(cosine: float, derivative: float) -> None:
    """C'(1) = 1 and C'(-1) = 0 of relu, so there is no power law, or its factor is 0."""
    found = depth_laws(chain(Affine(sigma_w=2**0.5), Nonlinear("relu")), token_cosine=cosine)
    assert found.derivative_prefactor == pytest.approx(derivative, nan_ok=True)


def test_gelu_is_relu_at_large_q() -> None:
    found = depth_laws(chain(Affine(sigma_w=1.6), Nonlinear("gelu")))
    assert found.growth == pytest.approx(1.28) and found.tangent_ratio == 0.25
    assert found.cosine_prefactor == pytest.approx(4.5 * math.pi**2, rel=1e-3)
    assert math.isnan(found.derivative_prefactor)  # the map changes with q
