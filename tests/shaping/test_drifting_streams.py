"""Streams whose q vanishes or grows without end, and laws of cosines at criticality."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc import activation, chain, depth_laws, residual
from kcalc.network.layers import Affine, Nonlinear
from kcalc.shaping.depth_laws import _gradient_law
from kcalc.shaping.drifting_streams import End, Pace, Turns, Way, approach_of, end_of, pace_of

X = sp.Symbol("x")


def block(phi: Any, sigma_w: float = 1.0) -> kc.Network:
    return chain(Affine(sigma_w=sigma_w), Nonlinear(phi))


def depends_on_start(found: kc.DepthLaws) -> bool:
    return any("depends on the starting point" in a.text for a in found.assumptions)


HARD_TANH = 0.358978  # by its flow to q = .014, from integrals in one dimension
KINKED = 1110.3  # by quadrature in the plane over 16000 blocks, extrapolated
# by quadrature in the plane over 16000 blocks (52 for exponential laws), extrapolated
FROZEN = [
    ("tanh", 1.0, 0.4405141974, "power", 0.5, -1.0),
    ("swish", 2**0.5, 0.5673287157, "exponential", 0.5, math.nan),
]


@pytest.mark.parametrize(("name", "scale", "cosine", "law", "growth", "exponent"), FROZEN)
def test_limits_of_the_catalogue(
    name: str, scale: float, cosine: float, law: str, growth: float, exponent: float
) -> None:
    found = depth_laws(block(name, scale), token_cosine=0.5)
    assert found.cosine == pytest.approx(cosine, abs=1e-8) and depends_on_start(found)
    assert found.law == law and found.growth == pytest.approx(growth, rel=1e-8)
    assert found.exponent == pytest.approx(exponent, nan_ok=True)
    if law == "exponential":  # channels have means: C - c is of the order of q
        assert found.cosine_rate == pytest.approx(0.5, rel=1e-8)
        assert found.gradient_mean == pytest.approx(0.5, rel=1e-8)
    else:
        assert found.gradient_mean == pytest.approx(exponent, rel=1e-7)


@pytest.mark.slow
def test_activations_with_a_bend_at_0_end_at_one_half_whatever_the_start() -> None:
    """``x + a x^2 + b x^3``: dc/d(log q) = (a^2/k) (1 - c)(1 - 2c), with k = -3 a^2 - 6 b."""
    t = sp.tanh(sp.Rational(3, 10))
    phi = activation((sp.tanh(X + sp.Rational(3, 10)) - t) / (1 - t**2), name="bent")
    a, b = -float(t), (3 * float(t) ** 2 - 1) / 3
    k = -3 * a * a - 6 * b
    for start in (0.1, 0.9):
        found = depth_laws(block(phi), token_cosine=start)
        assert found.cosine == pytest.approx(0.5, abs=1e-6) and not depends_on_start(found)
        assert found.growth == pytest.approx(1 / k, rel=1e-6)
        assert found.cosine_exponent == pytest.approx(-a * a / k, rel=1e-3)
        assert found.gradient_mean == pytest.approx((4 * a * a + 6 * b) / k, rel=1e-5)
        assert math.isnan(found.cosine_prefactor)


def test_streams_just_beside_criticality() -> None:
    above = depth_laws(block("tanh", 1.0005), token_cosine=0.5)
    small = 1.0005**2 - 1
    # q = s^2 q (1 - 2q s^2 ...), behind the activation
    assert above.law == "settles" and above.q == pytest.approx(small / 2, rel=2e-3)
    assert above.cosine == pytest.approx(0, abs=1e-7)
    below = depth_laws(block("tanh", 0.9999), token_cosine=0.5)
    assert below.law == "exponential" and below.growth == pytest.approx(0.9999**2, rel=1e-10)
    # of an odd activation C - c is of the order of q^2
    assert below.cosine_rate == pytest.approx(0.9999**4, rel=1e-8)
    at = depth_laws(block("tanh"), token_cosine=0.5)
    assert below.cosine == pytest.approx(at.cosine, abs=5e-4)


@pytest.mark.parametrize("start", [-1.0, 0.0])
def test_cosines_that_odd_maps_keep(start: float) -> None:
    found = depth_laws(block("erf", math.sqrt(math.pi) / 2), token_cosine=start)
    assert found.cosine == pytest.approx(start, abs=1e-9)


@pytest.mark.slow
def test_hard_tanh_loses_q_as_the_inverse_of_a_logarithm() -> None:
    found = depth_laws(block("hard_tanh"), token_cosine=0.5)
    assert found.law == "logarithmic" and found.exponent == -1
    assert found.growth == pytest.approx(0.5, rel=0.01)
    assert found.cosine == pytest.approx(HARD_TANH, abs=1e-4)
    assert found.cosine_exponent == 0 and found.heuristic


# -- at criticality --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("net", "share"),
    [
        (residual(chain(Affine(sigma_w=2**0.5), Nonlinear("relu"), Affine())), 0.5),
        (block("relu", 1.1), 1.0),
    ],
)
def test_relu_networks_at_criticality(net: kc.Network, share: float) -> None:
    found = depth_laws(net, token_cosine=0.5)
    assert found.cosine == 1 and found.cosine_rate == 1 and math.isinf(found.correlation_depth)
    assert found.cosine_exponent == -2
    assert found.cosine_prefactor == pytest.approx(4.5 * math.pi**2 / share**2, rel=1e-7)
    assert f"{found.cosine_prefactor:.4g} L^-2" in repr(found)


@pytest.mark.slow
def test_a_kink_at_0_while_q_falls_slowly() -> None:
    """The slope at 1 is ``1 + tilt/l`` meanwhile, which changes the prefactor."""
    phi = sp.Piecewise((X / 2, X < 0), (X, True)) - X**3 / (1 + X**2)
    net = block(activation(phi, name="kinked", kinks=[0]), math.sqrt(1 / 0.625))
    found = depth_laws(net, token_cosine=0.5)
    assert (found.law, found.cosine, found.cosine_exponent) == ("power", 1, -2)

    assert found.exponent == -1
    assert found.cosine_prefactor == pytest.approx(KINKED, rel=0.01)


def test_q_that_vanishes_faster_than_any_exponential() -> None:
    found = depth_laws(block(activation(X**2, name="square"), 0.4), token_cosine=0.3)
    assert found.growth == 0 and found.gradient_mean == 0
    # C = (1 + 2 c^2) / 3
    assert found.cosine == pytest.approx(0.5) and found.cosine_rate == pytest.approx(2 / 3)
    # blocks of known flow: none, 1 - x ~ q, and dx/dq = -q x with dq/dL = -q^2
    assert Way(lambda q, x: (q, x), -1).velocity(0.0, 0.3) == (0, 0)
    kept = math.exp(-0.01)
    way = Way(lambda q, x: (q * kept, 1 - (1 - x) * kept), -1)
    assert way.carried(0.0, 0.5, -3.0) == pytest.approx(1 - 0.5 * math.exp(-3), abs=1e-9)
    way = Way(lambda q, x: (q - q * q, x + q**3 * x), -1)
    law = approach_of(way, Pace("power", 0.0, 1.0, 1.0, (9.0, 9.5, 10.0)), 0.5)
    assert (law.power, law.size) == (2, pytest.approx(0.5 / 2, rel=1e-4))
    law = approach_of(Way(lambda q, x: (q - q * q, x), -1), Pace("power", 0, 1, 1, (9, 9.5)), 0.5)
    assert law.frozen and law.power == math.inf  # cosines stay
    with pytest.raises(Turns):
        end_of(Way(lambda q, x: (q * 1.01, x), -1), 0.0, 0.5)
    uneven = Way(lambda q, x: (q * (1 - 1e-9 * (2 + math.sin(5 * math.log(q)))), x), -1)
    with refused("the stream vanishes but follows none of the known laws"):
        pace_of(uneven, End(0.5, 0.0, -10.0, 1.4))
    # q ~ L and log-gradients that change by 3 / sqrt(L) per block add up to 6 sqrt(L)
    pace = Pace("power", 0.0, 1.0, 1.0, (1.0, 2.0, 3.0, 4.0, 5.0))
    stretched = _gradient_law(3 * np.exp(0.5 * np.array(pace.places)), pace)
    assert stretched == pytest.approx((0.5, 6.0))


@pytest.mark.slow
def test_streams_leave_points_that_repel(monkeypatch: pytest.MonkeyPatch) -> None:
    """``x + x^3``: Q = v + 6 v^2 + 15 v^3 with v = s q, which has slope > 1 at its fixed point."""
    monkeypatch.setattr(import_module("kcalc.shaping.depth_laws"), "BLOCKS", 20)
    s = 0.9
    q = (math.sqrt(36 + 60 * (1 / s - 1)) - 6) / 30 / s
    found = depth_laws(block(activation(X + X**3), s**0.5), q=1.0001 * q)
    assert (found.law, found.growth, found.cosine) == ("exponential", math.inf, 0)


@pytest.mark.parametrize(
    ("phi", "sigma_w", "cosine"),
    [("relu", 1.41421356, 1), ("identity", 1 + 1e-9, 0.5)],
)
def test_homogeneous_blocks_beside_criticality(
    phi: str, sigma_w: float, cosine: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("kcalc.shaping.depth_laws"), "BLOCKS", 9)
    found = depth_laws(block(phi, sigma_w), token_cosine=0.5)
    assert (found.law, found.cosine) == ("exponential", pytest.approx(cosine))
    growth = sigma_w**2 / (2 if phi == "relu" else 1)
    assert found.growth == pytest.approx(growth, rel=1e-13)
    assert found.gradient_mean == pytest.approx(growth, rel=1e-12)
