"""C maps of homogeneous networks whose q values leave double precision."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import c_map, chain
from kcalc.network.layers import Affine, Nonlinear, RMSNorm, Sum


def resnet(blocks: int, *last: tuple[Any, ...]) -> kc.Network:
    """h -> h + W relu(h) with sigma_w^2 = 2, which doubles q."""
    steps: list[tuple[Any, ...]] = [("h0", Affine(), "x")]
    for i in range(blocks):
        steps += [
            (f"r{i}", Nonlinear("relu"), f"h{i}"),
            (f"w{i}", Affine(sigma_w=math.sqrt(2))),
            (f"h{i + 1}", Sum(), f"h{i} w{i}"),
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


def test_q_underflows() -> None:
    layers = [part for _ in range(600) for part in (Affine(sigma_w=0.5), Nonlinear("relu"))]
    with mpmath.workdps(30):
        value = mpmath.mpf(0.3)
        for _ in range(600):
            value = relu_map(value)
    assert c_map(chain(*layers))(0.3) == pytest.approx(float(value), rel=1e-13)


def test_a_chain_that_overflows_names_where_q_counts() -> None:
    layers = [part for _ in range(1500) for part in (Affine(sigma_w=3.0), Nonlinear("relu"))]
    net = chain(*layers, Affine(), Nonlinear("tanh"))
    with refused("'nonlinear_1501'"):
        c_map(net)


def test_a_norm_after_an_overflow() -> None:
    """An RMSNorm brings q back, whatever follows it."""
    last = (
        ("n", RMSNorm(), "h1100"),
        ("a", Affine(), "n"),
        ("t", Nonlinear("tanh"), "a"),
        ("out", Affine(), "t"),
    )
    C = kc.activation("tanh").c_map
    expected = C(float(after(1100, 0.3)))
    assert c_map(resnet(1100, *last))(0.3) == pytest.approx(expected, abs=1e-13)
