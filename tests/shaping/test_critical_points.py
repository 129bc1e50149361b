"""Half-stable and critical points, against the literature and iterated layers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from refusals import refusals

import kcalc as kc
from kcalc import chain, critical_point
from kcalc.network.layers import Affine, Input, Nonlinear


def sigmas(point: Any) -> dict[str, float]:
    return {"sigma_w": point.sigma_w, "sigma_b": point.sigma_b}


@pytest.mark.parametrize("q", [2.0, 2.5])
def test_laws_beside_a_half_stable_point(q: float) -> None:
    """Just above it q drifts through 400 blocks to another fixed point, here by quadrature."""
    point = critical_point("hard_swish")
    weight, bias = point.sigma_w**2, point.sigma_b**2
    x, w = np.polynomial.legendre.leggauss(60)

    def after(size: float) -> float:
        scale = math.sqrt(weight * size + bias)
        ends = [-3 / scale, 0.0, 3 / scale, 3 / scale + 3, 3 / scale + 6, 3 / scale + 9]
        total = 0.0
        for low, high in itertools.pairwise(ends):
            z = (low + high) / 2 + (high - low) / 2 * x
            phi = scale * z * np.clip(scale * z + 3, 0, 6) / 6
            density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
            total += (high - low) / 2 * float(w @ (phi**2 * density))
        return total

    if q > 2.2:
        low, high = 4.0, 8.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if after(middle) > middle else (low, middle)
        rate = (after(low + 1e-4) - after(low - 1e-4)) / 2e-4
    else:
        low, rate = (point.q - bias) / weight, 1.0
    net = chain(Affine(**sigmas(point)), Nonlinear("hard_swish"))
    found = kc.depth_laws(net, q=q, token_cosine=0.3)
    assert found.q == pytest.approx(low, rel=1e-10) and found.growth == pytest.approx(
        rate, rel=1e-7
    )
    if q > 2.2:
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
        (("tanh", "edge", 1.0, 0.1), "with q or sigma_b"),
        (("tanh", "edge", None, 0.0), "q\\* -> 0"),
        (("tanh", "edges"), "kind"),
        (("tanh", "edge", -1.0), "q must"),
    ],
    lambda arguments: critical_point(*arguments),
)
