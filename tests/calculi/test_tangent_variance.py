"""Finite width: variances of tangent kernels and shifts of q, against formulas and draws."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import chain, fluctuations, repeat, residual
from kcalc.network.layers import Affine, Input, Nonlinear, Sum

A = kc.architectures
LEAKY = kc.activations.leaky_relu(0.5)


def measured(values: Any, expected: float) -> float:
    """z of the relative variance of draws, with its standard error by resampling."""
    draws, rng = np.asarray(values), np.random.default_rng(0)
    again = rng.choice(draws, (200, draws.size))
    spread = (again.var(axis=1) / again.mean(axis=1) ** 2).std()
    return (draws.var() / draws.mean() ** 2 - expected) / spread


@pytest.mark.parametrize(
    ("phi", "q", "expected"),
    [("tanh", 1.0, 0.936122), ("hard_tanh", 0.5, 0.777570), (LEAKY, 3.0, 1.72)],
)
def test_one_hidden_layer(phi: Any, q: float, expected: float) -> None:
    """T = phi^2 + q a^2 phi'^2 of one channel.

    That of a leaky ReLU is (2 (3 k + 2) + 2 k) / 4 with k = m_4 / m_2^2 - 1 = .36.
    """
    found = fluctuations(A.vanilla(1, phi), features=100, q=q).tangent_variance
    assert found.scaled == pytest.approx(expected, abs=1e-6)


def drawn_stream(rng: Any) -> tuple[float, float]:
    """(Theta, q of the last stream) of two drawn blocks."""
    n, hidden, memory = 100, 150, []
    x = rng.normal(size=n)
    for _ in range(2):
        w1 = rng.normal(size=(hidden, n)) * 1.4 / sqrt(n)
        w2 = rng.normal(size=(n, hidden)) * 1.4 / sqrt(hidden)
        a = np.tanh(w1 @ x)
        memory.append((w1, w2, a, x))
        x = 0.8 * x + 0.6 * w2 @ a
    theta, d = np.mean(x**2), rng.normal(size=n) / sqrt(n)
    for w1, w2, a, below in memory[::-1]:
        df = 0.6 * d
        dz = (w2.T @ df) * (1 - a**2)
        theta += 1.96 * (df @ df * np.mean(a**2) + dz @ dz * np.mean(below**2))
        d = 0.8 * d + w1.T @ dz
    return float(theta + d @ d), float(np.mean(x**2))


def test_residual_streams() -> None:
    branch = chain(Affine(150, sigma_w=1.4), Nonlinear("tanh"), Affine(100, sigma_w=1.4))
    blocks = repeat(residual(branch, 0.8, 0.6), 2)
    found = fluctuations(chain(Input(40), Affine(100), blocks, Affine(1)))
    rng = np.random.default_rng(2)
    theta, q = np.array([drawn_stream(rng) for _ in range(2500)]).T
    assert found.tangent_variance.mean == pytest.approx(float(kc.ntk(found.network)(1.0)))
    assert abs(measured(theta, found.tangent_variance.relative)) < 4
    expected = found["sum_2"].q + found.q_shift["sum_2"]
    assert abs(q.mean() - expected) < 4 * q.std() / sqrt(q.size)


def test_shifts_of_q() -> None:
    layer = chain(Affine(sigma_w=1.3, sigma_b=0.4), Nonlinear("tanh"))
    net = chain(Input(64), repeat(layer, 6))
    found = fluctuations(net, features=64)
    last = net.outputs[0]
    assert found[last].q == pytest.approx(0.339751, abs=1e-6)
    # .338725(60) over many networks
    assert abs(found[last].q + found.q_shift[last] - 0.338725) < 4 * 6e-5
    relu = fluctuations(A.vanilla(5, "relu", sigma_w=1.2), features=32)
    assert all(abs(shift) < 1e-12 for shift in relu.q_shift.values())


def test_scales_and_dropout_at_evaluation() -> None:
    def theory(*parts: Any) -> Any:
        found = fluctuations(chain(Input(), *parts, Affine()), features=40)
        return found.tangent_variance, list(found.q_shift.values())[-1]

    Scale, off, tanh = kc.layers.Scale, kc.layers.Dropout(0.5), Nonlinear("tanh")
    found, shift = theory(Affine(), off, Scale(3), tanh, Scale(2), Affine(sigma_w=0.5))
    other, shift2 = theory(Affine(sigma_w=3), tanh, Affine())
    assert (found.mean, found.relative) == pytest.approx((other.mean, other.relative))
    assert shift == pytest.approx(shift2) and "nonlinear_1  " in str(found)


APART = (("a", Affine()), ("b", Affine(), "x"))
SHARED = wired(
    ("x", Input(16)),
    ("a", Affine(16)),
    ("f", Nonlinear("relu")),
    ("g", Nonlinear("tanh"), "a"),
    ("u", Affine(16), "f"),
    ("v", Affine(16), "g"),
    ("s", Sum(), "u v"),
    ("out", Affine(1)),
)


SKIPS = wired(
    ("a", Affine()), ("b", Affine()), ("s", Sum(), "x a"), ("t", Sum(), "s b"), ("o", Affine())
)
TWICE = chain(Input(), Affine(), Nonlinear("tanh"), Nonlinear("relu"), Affine())


@pytest.mark.parametrize(
    ("net", "options", "text"),
    [
        (A.vanilla(2, "relu"), {"weights": "orthogonal"}, "Gaussian weights"),
        (SHARED, {}, "'a'.*another node also reads"),
        (chain(Input(), Affine(), Nonlinear("tanh")), {}, "not come from a separate"),
        (wired(*APART, ("s", Sum(), "a b"), ("r", Nonlinear("relu")), ("o", Affine())), {},
         "'r'.*does not read a dense layer"),
        (wired(*APART, ("j", kc.layers.Concat(), "a b"), ("o", Affine())), {}, "'j'.*Concat"),
        (wired(*APART), {}, "one output"),
        (chain(Input(), Affine(trained=False)), {}, "no trained parameter"),
        (SKIPS, {}, "'s'.*all but one"),
        (TWICE, {}, "'nonlinear_1'.*other than an Affine"),
    ],
)  # fmt: skip
def test_where_it_stops(net: Any, options: Any, text: str) -> None:
    found = fluctuations(net, features=16, **options)
    with refused(text):
        _ = found.tangent_variance


@pytest.mark.parametrize(
    ("net", "text"), [(SKIPS, "'s'.*this Sum"), (TWICE, "'nonlinear_2'.*activation")]
)
def test_where_shifts_of_q_stop(net: Any, text: str) -> None:
    found = fluctuations(net, features=16)
    with refused(text):
        _ = found.q_shift
