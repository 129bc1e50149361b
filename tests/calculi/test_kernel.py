"""Global maps as objects: shapes, inputs and outputs, derivatives, symbols, refusals.

Values against mpmath by hand.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import c_map, q_map
from kcalc.network.layers import Affine, Input, Nonlinear, Sum

A = kc.architectures


def relu_c(c):
    return (mpmath.sqrt(1 - c * c) + (mpmath.pi - mpmath.acos(c)) * c) / mpmath.pi


def erf_c(c, q1, q2):
    top = mpmath.asin(2 * c * mpmath.sqrt(q1 * q2) / mpmath.sqrt((1 + 2 * q1) * (1 + 2 * q2)))
    return top / mpmath.sqrt(
        mpmath.asin(2 * q1 / (1 + 2 * q1)) * mpmath.asin(2 * q2 / (1 + 2 * q2))
    )


def erf_q(q):
    return 2 / mpmath.pi * mpmath.asin(2 * q / (1 + 2 * q))


def two_by_two() -> kc.Network:
    return wired(
        ("x", Input()),
        ("y", Input()),
        ("a", Affine(), "x"),
        ("b", Affine(), "y"),
        ("s", Sum((0.6, 0.8)), "a b"),
        ("p", Nonlinear("relu")),
        ("t", Affine(), "b"),
    )


def test_several_inputs_and_outputs_are_mappings() -> None:
    C = c_map(two_by_two())
    out = C({"x": 0.2, "y": -0.4}, q1={"x": 1.0, "y": 2.0})
    assert set(out) == {"p", "t"}
    assert out["t"] == pytest.approx(-0.4, abs=1e-15)
    mixed = (0.36 * 0.2 - 0.64 * 2 * 0.4) / (0.36 + 0.64 * 2)
    assert out["p"] == pytest.approx(float(relu_c(mpmath.mpf(mixed))), rel=1e-14)
    assert q_map(two_by_two())({"x": 1.0, "y": 2.0})["p"] == pytest.approx((0.36 + 1.28) / 2)
    assert set(C.derivative(1)(0.3)) == {"p", "t"}
    assert set(C.expr) == {"p", "t"}
    for call in (lambda: C({"x": 0.2}), lambda: C({"x": 0.2, "z": 0.1}), lambda: C.fixed_points()):
        with refused():
            call()


def test_series_is_the_taylor_expansion_at_zero() -> None:
    C = c_map(A.vanilla(5, "erf"))

    def f(c):
        q = mpmath.mpf(1)
        for _ in range(5):
            c, q = erf_c(c, q, q), erf_q(q)
        return c

    with mpmath.workdps(60):
        expected = [float(v) for v in mpmath.taylor(f, 0, 8)]
    b = C.series(9)
    assert b == pytest.approx(expected, rel=1e-12, abs=1e-16)
    assert np.all(b >= -1e-16)
    assert C.series(1) == pytest.approx([0.0], abs=1e-16)


def test_angles_keep_their_digits_near_zero() -> None:
    C = c_map(A.vanilla(100, "relu"))
    with mpmath.workdps(80):
        for theta in (1e-8, 1.0, 3.0):
            c = mpmath.cos(mpmath.mpf(theta))
            for _ in range(100):
                c = relu_c(c)
            assert C.gap_at_angle(theta) == pytest.approx(float(1 - c), rel=1e-12)
            assert C.at_angle(theta) == pytest.approx(float(mpmath.acos(c)), rel=1e-12)
    assert C.gap_at_angle(0.0) == 0.0


def test_exploding_and_vanishing_q_name_the_node() -> None:
    with refused("affine_.*inf"):
        q_map(A.vanilla(600, "relu", sigma_w=20))(1.0)
    with refused("nonlinear_.* vanish"):
        q_map(A.vanilla(2000, "relu"))(1.0)
    with refused("'s'.*cancel"):
        c_map(wired(("z", Affine()), ("s", Sum((1, -1)), "z z"), ("a", Affine())))
