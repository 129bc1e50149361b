"""C maps of homogeneous networks whose q values leave double precision."""

from __future__ import annotations

import math
import time
from typing import Any

import mpmath
import pytest
from refusals import refused
from wiring import wired

import kcalc as kc

L = kc.layers


def resnet(blocks: int, *last: tuple[Any, ...]) -> kc.Network:
    """h -> h + W relu(h) with sigma_w^2 = 2, which doubles q."""
    steps: list[tuple[Any, ...]] = [("h0", L.Affine(), "x")]
    for i in range(blocks):
        steps += [
            (f"r{i}", L.Nonlinear("relu"), f"h{i}"),
            (f"w{i}", L.Affine(sigma_w=math.sqrt(2)), f"r{i}"),
            (f"h{i + 1}", L.Sum(), f"h{i} w{i}"),
        ]
    return wired(*steps, *last)


def relu_map(c: Any) -> Any:
    theta = mpmath.acos(c)
    return (mpmath.sin(theta) + (mpmath.pi - theta) * c) / mpmath.pi


def after(blocks: int, c: float) -> Any:
    with mpmath.workdps(30):
        value = mpmath.mpf(c)
        for _ in range(blocks):
            value = (value + relu_map(value)) / 2
        return value


@pytest.mark.parametrize("c", [0.3, -1.0])
def test_q_overflows(c: float) -> None:
    C = kc.c_map(resnet(1100))
    assert 1 - C(c) == pytest.approx(float(1 - after(1100, c)), rel=1e-11)
    assert C(c, 4.0, 9.0) == pytest.approx(C(c), abs=1e-13)


def test_q_underflows() -> None:
    layers = [part for _ in range(600) for part in (L.Affine(sigma_w=0.5), L.Nonlinear("relu"))]
    with mpmath.workdps(30):
        value = mpmath.mpf(0.3)
        for _ in range(600):
            value = relu_map(value)
    assert kc.c_map(kc.chain(*layers))(0.3) == pytest.approx(float(value), rel=1e-13)


def test_biases_of_0_stay_0_however_small_q_is() -> None:
    """Affine has a bias of sigma_b = 0; here its feature maps are of the order of 10^-1200."""
    layers = [part for _ in range(1500) for part in (L.Affine(sigma_w=0.3), L.Nonlinear("relu"))]
    with mpmath.workdps(30):
        value = mpmath.mpf(0.3)
        for _ in range(1500):
            value = relu_map(value)
    assert kc.c_map(kc.chain(*layers))(0.3) == pytest.approx(float(value), abs=1e-13)
    biased = kc.chain(*layers, L.Affine(sigma_b=1.0))  # nothing but the bias is left
    assert kc.c_map(biased)(0.3) == 1


def test_long_residual_streams_take_linear_time() -> None:
    start = time.process_time()
    branch = kc.chain(L.Nonlinear("relu"), L.Affine(sigma_w=0.1))
    net = kc.chain(L.Affine(), kc.repeat(kc.residual(branch), 2500))
    assert 0.3 < kc.c_map(net)(0.3) < 1
    assert time.process_time() - start < 12


def test_a_chain_that_overflows_names_where_q_counts() -> None:
    layers = [part for _ in range(1500) for part in (L.Affine(sigma_w=3.0), L.Nonlinear("relu"))]
    net = kc.chain(*layers, L.Affine(), L.Nonlinear("tanh"))
    with refused("'nonlinear_1501'"):
        kc.c_map(net)


def test_a_norm_after_an_overflow() -> None:
    """An RMSNorm brings q back, whatever follows it."""
    last = (
        ("n", L.RMSNorm(), "h1100"),
        ("a", L.Affine(), "n"),
        ("t", L.Nonlinear("tanh"), "a"),
        ("out", L.Affine(), "t"),
    )
    C = kc.activation("tanh").c_map
    expected = C(float(after(1100, 0.3)))
    assert kc.c_map(resnet(1100, *last))(0.3) == pytest.approx(expected, abs=1e-13)


def test_where_q_matters() -> None:
    last = (("a", L.Affine(), "h1100"), ("t", L.Nonlinear("tanh"), "a"), ("out", L.Affine(), "t"))
    with refused("'t'.*inf"):
        kc.c_map(resnet(1100, *last))
    with refused("has q = inf"):
        kc.q_map(resnet(1100))(1.0)


def test_enclosures_have_no_such_bounds() -> None:
    ball = kc.c_map(resnet(1100)).ball(0.3)
    assert float(ball.mid) == pytest.approx(float(after(1100, 0.3)), abs=1e-15)
