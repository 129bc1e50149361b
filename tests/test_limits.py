"""Infinite depth: fixed points, correlation lengths, the flow of tailored ReLUs."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import integrate

import kcalc as kc
from kcalc.shaping import depth_limit, flow, flow_slope, flow_time

A, L = kc.architectures, kc.layers


def test_published_time_and_value() -> None:
    assert flow_time(0.9) == pytest.approx(4.50994, abs=6e-6)
    assert flow(-0.5, flow_time(0.9)) == pytest.approx(0.888242, abs=6e-7)


def test_flow_by_an_ode_solver() -> None:
    for start, time in ((0.0, 1.0), (-0.9, 3.0), (0.5, 20.0)):
        truth = integrate.solve_ivp(
            lambda _, x: np.sqrt(1 - x * x) - x * np.arccos(x), (0, time), [start], rtol=1e-12, atol=1e-13, method="DOP853"
        )
        assert flow(start, time) == pytest.approx(truth.y[0, -1], abs=1e-9)
        assert flow_time(flow(start, time), start) == pytest.approx(time, rel=1e-10)


def test_speed_has_no_cancellation_near_one() -> None:
    with mpmath.workdps(40):
        c = mpmath.mpf(1) - mpmath.mpf("1e-7")
        integral = mpmath.quad(lambda t: mpmath.sin(t) / (mpmath.sin(t) - t * mpmath.cos(t)), [mpmath.acos(c), 0.01, mpmath.pi / 2])
    assert flow_time(float(c)) == pytest.approx(float(integral), rel=1e-9)


def test_exact_slopes_tend_to_the_flow() -> None:
    errors = []
    for depth in (50, 200, 800):
        exact = kc.shape(A.vanilla(depth), "relu", method="tat", eta=0.9).constants["relu"].negative_slope
        errors.append(abs(flow_slope(A.vanilla(depth), 0.9) - exact))
    assert errors[1] < errors[0] / 3 and errors[2] < errors[1] / 3
    net = A.rescaled_resnet(400, 2, shortcut_weight=0.8)
    exact = kc.shape(net, method="tat", eta=0.5).constants["relu"].negative_slope
    assert flow_slope(net, 0.5) == pytest.approx(exact, abs=3e-3)


def test_chaotic_and_ordered_limits_are_what_many_layers_do() -> None:
    for sigma_w, sigma_b in ((1.5, 0.3), (0.9, 0.4), (2.0, 0.1)):
        block = kc.chain(L.Affine(sigma_w=sigma_w, sigma_b=sigma_b), L.Nonlinear("tanh"))
        limit = depth_limit(block)
        deep = kc.repeat(block, 120)
        assert float(kc.q_map(deep)(1.0)) == pytest.approx(limit.q, rel=1e-9)
        assert float(kc.c_map(deep)(0.3, limit.q)) == pytest.approx(limit.c, abs=3 * math.exp(-120 / limit.xi_c) + 1e-10)
        one = kc.c_map(block)
        near = limit.c - 1e-4
        assert (limit.c - float(one(near, limit.q))) / 1e-4 == pytest.approx(limit.rate, rel=2e-3)
        assert limit.xi_c == pytest.approx(-1 / math.log(limit.rate)) and limit.xi_q > 0


def test_relu_has_no_correlation_length() -> None:
    limit = depth_limit(kc.chain(L.Affine(sigma_w=math.sqrt(2)), L.Nonlinear("relu")))
    assert limit.c == 1 and limit.rate == pytest.approx(1) and limit.xi_c == math.inf and limit.q == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: flow_time(1.0), "c < 1"),
        (lambda: flow_time(0.1, 0.5), "start <= c"),
        (lambda: flow_time(2.0), r"\[-1, 1\]"),
        (lambda: flow(0.0, -1.0), ">= 0"),
        (lambda: flow_slope(A.vanilla(5), 0.9), "too shallow"),
        (lambda: depth_limit(kc.chain(L.Affine(sigma_w=2), L.Nonlinear("relu"))), "grow without end"),
        (lambda: depth_limit(kc.chain(L.Affine(), L.Nonlinear("relu"))), "shrink without end"),
        (lambda: depth_limit(kc.chain(L.Affine(), L.Nonlinear("tanh")), q=-1), "> 0"),
    ],
)
def test_bad_input_is_refused(call, words: str) -> None:
    with pytest.raises(kc.KcalcError, match=words):
        call()
