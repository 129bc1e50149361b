"""Jumps at kinks: what is rounding, what is a jump; infinite slopes."""

from __future__ import annotations

import math
import time

import mpmath
import numpy as np
import pytest
import sympy as sp
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.activations import activation

L = kc.layers
X = sp.Symbol("x", real=True)


CONTINUOUS = {
    "wave": X * sp.Max(0, sp.sin(X)),
    "sqrt 2": X**2 * sp.Max(0, sp.sin(sp.sqrt(2) * X)),
    "floats": X * sp.Max(0, sp.sin(2.3 * X + 0.1)),
    "cube": X * sp.Max(0, sp.sin(X) ** 3),
    "found by Newton": X * sp.Max(0, sp.sin(X) - sp.Float(0.3)),
    "nested": sp.Max(0, X * sp.Max(0, sp.sin(X)) - sp.Rational(1, 3)),
    "exponential": sp.Max(0, sp.sin(X)) * sp.exp(X / 3),
    "pieces": sp.Piecewise((X * sp.sin(X), sp.sin(X) > 0), (0, True)),
    "float pi": sp.Piecewise((sp.sin(X), math.pi > X), (0, True)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_rounding_is_no_jump(name: str) -> None:
    phi = activation(CONTINUOUS[name])
    assert not any(phi.jump_sizes(0))
    assert math.isfinite(phi.c_map.derivative(1)(1.0, 2.0))


@pytest.mark.parametrize("size", [sp.Float(1e-14), sp.Rational(1, 10**20)])
def test_tiny_jumps_are_jumps(size: sp.Expr) -> None:
    phi = activation(sp.Piecewise((X, X < 1), (X + size, True)))
    assert phi.jump_sizes(0) == pytest.approx([float(size)], rel=1e-12)
    assert phi.c_map.derivative(1)(1.0) == math.inf


def _slope_of_wave(q: float) -> float:
    """q E phi'^2 / E phi^2 of x max(0, sin x)."""
    root = mpmath.sqrt(q)

    def mean(f):
        pieces = [n * mpmath.pi for n in range(-8, 9)]
        return sum(
            mpmath.quad(lambda x: f(x) * mpmath.exp(-x * x / (2 * q)), [a, b])
            for a, b in zip(pieces[::2], pieces[1::2], strict=False)
        ) / (root * mpmath.sqrt(2 * mpmath.pi))

    slope = mean(lambda x: (mpmath.sin(x) + x * mpmath.cos(x)) ** 2)
    return float(q * slope / mean(lambda x: (x * mpmath.sin(x)) ** 2))


def test_a_gate_of_many_kinks() -> None:
    """Gradients and tangent kernel of max(0, sin a) a, a fused product."""
    net = wired(
        ("a", L.Affine(), "x"),
        ("s", L.Nonlinear(activation(sp.Max(0, sp.sin(X)))), "a"),
        ("g", L.Product(), "s a"),
        ("out", L.Affine(), "g"),
    )
    nodes = kc.gradients(net, q=2).nodes
    assert all(map(math.isfinite, nodes.values()))
    phi = activation(X * sp.Max(0, sp.sin(X)))
    chi = _slope_of_wave(2.0) * float(phi.second_moment(2.0)) / 2
    assert nodes["a"] == pytest.approx(chi, rel=1e-10)


# -- infinite slopes -------------------------------------------------------------------------------


def _even(a: float, c: float) -> float:
    """C of |x|^a."""
    return float(mpmath.hyp2f1(-a / 2, -a / 2, 0.5, c * c) / mpmath.hyp2f1(-a / 2, -a / 2, 0.5, 1))


@pytest.mark.parametrize(
    ("expr", "truth", "a"),
    [
        (sp.sqrt(sp.Abs(X)), _even, 0.5),
        (sp.Abs(X) ** sp.Rational(3, 2), _even, 1.5),
        (sp.Abs(X) ** sp.Rational(1, 3), _even, 1 / 3),
        (sp.Abs(X) ** sp.Rational(5, 2), _even, 2.5),
    ],
)
def test_fractional_powers(expr: sp.Expr, truth, a: float) -> None:
    phi = activation(expr)
    for c in (0.3, 0.99, 0.999999):
        assert phi.c_map(c) == pytest.approx(truth(a, c), abs=2e-15)
    slope = phi.c_map.derivative(1)
    numeric = (truth(a, 0.98 + 1e-6) - truth(a, 0.98 - 1e-6)) / 2e-6
    assert slope(0.98) == pytest.approx(numeric, rel=1e-8)
    exact = a * a / (2 * a - 1) if a > 0.5 else math.inf  # E phi'^2 / E phi^2
    assert slope(1.0) == pytest.approx(exact, rel=1e-13)


@pytest.mark.slow
def test_many_values_near_one_of_a_power() -> None:
    """From a table, of the kernel matrix of 60 rows, and of its slopes."""
    phi = activation(sp.Abs(X) ** sp.Rational(3, 2))
    gaps = np.geomspace(1e-7, 0.05, 80)
    start = time.process_time()
    drop, slope = phi.taylor(gaps, np.ones(80), np.full(80, 2.5), 1)
    net = kc.chain(L.Affine(), L.Nonlinear(phi), L.Affine())
    rows = np.random.default_rng(0).normal(size=(60, 5))
    found = kc.ntk(net).nngp.matrix(rows)
    assert time.process_time() - start < 60
    with mpmath.workdps(30):
        at_one = mpmath.hyp2f1(-0.75, -0.75, 0.5, 1)
        for gap, u, s in zip(gaps[::13], drop[::13], slope[::13], strict=True):
            c = 1 - mpmath.mpf(float(gap))
            exact = 1 - mpmath.hyp2f1(-0.75, -0.75, 0.5, c * c) / at_one
            bend = 2.25 * c * mpmath.hyp2f1(0.25, 0.25, 1.5, c * c) / at_one
            assert u == pytest.approx(float(exact), rel=1e-12, abs=0)
            assert s == pytest.approx(float(bend), rel=1e-12)
    q = (rows**2).mean(axis=1)
    for i, j in ((0, 1), (7, 40), (59, 59)):
        c = (rows[i] * rows[j]).mean() / math.sqrt(q[i] * q[j])
        size = (q[i] * q[j]) ** 0.75 * math.sqrt(8 / math.pi)  # E |z|^3
        assert found[i, j] == pytest.approx(size * _even(1.5, min(c, 1.0)), rel=1e-12)


def test_a_root_with_its_kink_declared() -> None:
    phi = activation(sp.sqrt(sp.Abs(X)), kinks=[0])
    assert phi.c_map(-0.97) == pytest.approx(_even(0.5, -0.97), abs=2e-15)


@pytest.mark.slow
def test_a_shifted_power() -> None:
    """sign(y) |y|^0.7, y = x - 0.3: Q and C'(1) by mpmath."""
    y = X - sp.Rational(3, 10)
    phi = activation(sp.sign(y) * sp.Abs(y) ** sp.Rational(7, 10))
    with mpmath.workdps(30):
        k = mpmath.mpf(3) / 10

        def moment(power):
            density = lambda t: mpmath.npdf(k + t) + mpmath.npdf(k - t)  # noqa: E731
            return mpmath.quad(lambda t: t**power * density(t), [0, 1e-6, 0.1, 1, 3, 12])

        size = moment(mpmath.mpf(14) / 10)
        slope = mpmath.mpf(49) / 100 * moment(mpmath.mpf(-6) / 10)
    assert phi.second_moment(1.0) == pytest.approx(float(size), rel=1e-14)
    assert phi.c_map.derivative(1)(1.0) == pytest.approx(float(slope / size), rel=1e-12)
    moved = activation(sp.sign(X) * sp.Abs(X) ** sp.Rational(7, 10)).transformed(
        input_scale=-1, input_shift=sp.Rational(3, 10), output_scale=-2
    )
    assert moved.c_map(0.97) == pytest.approx(phi.c_map(0.97), abs=1e-15)
    assert moved.c_map.derivative(1)(1.0) == pytest.approx(float(slope / size), rel=1e-12)


def test_moments_of_a_root() -> None:
    """Q = q^(1/2) E|z|, from which dQ/dq and the slope of the mean follow."""
    phi = activation(sp.sqrt(sp.Abs(X)))
    assert phi.second_moment(3.0) == pytest.approx(math.sqrt(6 / math.pi), rel=1e-14)
    assert phi.q_slope(3.0) == pytest.approx(math.sqrt(6 / math.pi) / 6, rel=1e-13)
    assert phi.mean_slope(3.0) == pytest.approx(0.0, abs=1e-15)


def test_infinite_slopes_are_named() -> None:
    net = kc.chain(L.Affine(), L.Nonlinear(activation(sp.sqrt(sp.Abs(X)))), L.Affine())
    for ask in (kc.gradients, kc.ntk):
        with refused("'nonlinear_1'.*steep at x = 0.*infinite"):
            ask(net)
    smoother = activation(sp.Abs(X) ** sp.Rational(3, 2))
    net = kc.chain(L.Affine(), L.Nonlinear(smoother), L.Affine())
    chi = 1.125 * float(smoother.second_moment(1.0))
    assert kc.gradients(net).nodes["affine_1"] == pytest.approx(chi, rel=1e-12)


def test_roots_of_callables_are_refused() -> None:
    with refused("kink x = 0.*SymPy expression"):
        activation(lambda x: np.sqrt(np.abs(x)), kinks=[0])


def test_roots_with_kinks_without_end_are_refused_for_what_they_are() -> None:
    with refused("beyond.*known kink"):
        activation(sp.sqrt(sp.Abs(sp.sin(X))))
    with refused("real.*value"):
        activation(sp.sqrt(X))


# -- tails -----------------------------------------------------------------------------------------
