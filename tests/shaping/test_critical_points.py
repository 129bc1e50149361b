"""Half-stable and critical points, against the literature and iterated layers."""

from __future__ import annotations

import math
from typing import Any

import mpmath as mp
import pytest
from refusals import refusals

import kcalc as kc
from kcalc import chain, critical_point
from kcalc.network.layers import Affine, Input, Nonlinear


def test_laws_beside_a_half_stable_point() -> None:
    """Just above it q drifts through 400 blocks to another fixed point, here by quadrature."""
    point = critical_point("hard_swish")
    weight, bias = point.sigma_w**2, point.sigma_b**2

    def after(size: float) -> float:
        scale = math.sqrt(weight * size + bias)
        kink = 3 / scale

        def square(z: Any) -> Any:
            return (scale * z * min(scale * z + 3, 6) / 6) ** 2 * mp.npdf(z)

        return float(mp.quad(square, [-kink, 0, kink, kink + 4, kink + 12]))

    net = chain(Affine(sigma_w=point.sigma_w, sigma_b=point.sigma_b), Nonlinear("hard_swish"))
    found = kc.depth_laws(net, q=2.5, token_cosine=0.3)
    assert 4 < found.q < 8 and after(found.q) == pytest.approx(found.q, rel=1e-12)
    rate = (after(found.q + 1e-3) - after(found.q - 1e-3)) / 2e-3
    assert found.growth == pytest.approx(rate, rel=1e-7)
    maps = kc.c_map(chain(Input(), net))
    assert maps(found.cosine, found.q) == pytest.approx(found.cosine, rel=1e-13)
    assert found.cosine_rate == maps.derivative(1)(found.cosine, found.q) < 1 < found.slope


def test_points_of_the_edge() -> None:
    one = critical_point("tanh", "edge", q=1.0)
    other = critical_point("tanh", "edge", sigma_b=one.sigma_b)
    assert other.q == pytest.approx(1.0) and one.stability == "attracting"
    assert one.chi_parallel < 1 < one.sigma_w
    kinked = critical_point("hard_tanh", "edge", q=0.5)
    assert kinked.sigma_w**2 * math.erf(1) == pytest.approx(1, rel=1e-12)  # P(|z| < 2^.5)
    assert critical_point("relu", "edge", q=3.0).stability == "neutral"


test_refusals = refusals(
    [
        (("tanh",), "below 1 at every q"),
        (("relu",), "homogeneous"),
        (("step",), "jumps"),
        (("gelu", "half-stable", 1.0), "isolated"),
        (("tanh", "edge"), "with q or sigma_b"),
        (("tanh", "edge", None, 0.0), "q\\* -> 0"),
        (("tanh", "edges"), "kind"),
        (("tanh", "edge", -1.0), "q must"),
    ],
    lambda arguments: critical_point(*arguments),
)
