"""Dropout in training: kernel maps, gradients and tangent kernels, and what has no rule for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from monte_carlo import simulate
from wiring import wired

import kcalc as kc

L = kc.layers


IMAGES = np.ones((1, 2, 2, 3))


def drop(rate: float = 0.1) -> kc.layers.Dropout:
    return L.Dropout(rate, active=True)


def repeated(phi: str, keep: float, sigma_w: float, sigma_b: float, count: int) -> kc.Network:
    block = [L.Nonlinear(phi), drop(1 - keep), L.Affine(sigma_w=sigma_w, sigma_b=sigma_b)]
    return kc.chain(L.Input(), L.Affine(), *block * count)


@pytest.mark.parametrize(
    ("phi", "keep", "sigma_w", "sigma_b", "limit"),
    [
        ("relu", 0.9, 1.8**0.5, 0.0, 0.627146),
        ("relu", 0.8, 1.6**0.5, 0.0, 0.472799),
        ("tanh", 0.9, 1.76**0.5, 0.05**0.5, 0.356737),
    ],
)
def test_cosines_tend_to_a_limit_below_1(
    phi: str, keep: float, sigma_w: float, sigma_b: float, limit: float
) -> None:
    deep = repeated(phi, keep, sigma_w, sigma_b, 100)
    assert kc.c_map(deep)(np.array([0.1, 1.0])) == pytest.approx(limit, abs=1e-6)
    block = repeated(phi, keep, sigma_w, sigma_b, 1)
    assert kc.depth_limit(block).c == pytest.approx(limit, abs=1e-6)
    assert kc.depth_laws(block).cosine == pytest.approx(limit, abs=1e-6)


BRANCHES = wired(
    ("x", L.Input()),
    ("dx", drop(0.2), "x"),
    ("a", L.Affine(sigma_w=1.3, sigma_b=0.4), "dx"),
    ("f", L.Nonlinear("softplus"), "a"),
    ("d", drop(0.3), "f"),
    ("twice", drop(0.5), "d"),
    ("both", L.Sum((1, 2, 3)), "f d twice"),
    ("n", L.LayerNorm(), "both"),
    ("b", L.Affine(sigma_w=1.1), "n"),
    ("gate", L.Nonlinear("tanh"), "b"),
    ("g", drop(0.4), "gate"),
    ("p", L.Product(), "d g"),
    ("s", L.Sum((0.6, 0.8)), "p f"),
    ("noise", L.Sum((1, -1)), "d f"),
    ("end", L.Sum((1, 1)), "noise s"),
    ("out", L.Affine(), "end"),
)


def test_branches_and_norms_agree_with_random_networks() -> None:
    """Noise has no covariance with what it comes from; masks of two dropouts are independent."""
    for c, q1, q2 in ((0.5, 1.0, None), (-0.3, 0.6, 1.7)):
        expected = kc.node_values(BRANCHES, c, q1, q2)
        measured = simulate(BRANCHES, c, q1, q2, draws=32, width=8192, seed=5)
        worst = {n: max(map(abs, m.deviations(expected[n]))) for n, m in measured.items()}
        assert max(worst.values()) < 4.2, worst


def backpropagated(seed: int, width: int = 500) -> dict[str, float]:
    """|d out / d node|^2 of ``x + D2 W2 D1 tanh(W1 x)`` read out, by hand."""
    rng = np.random.default_rng(seed)
    n = width
    x = rng.normal(size=n)
    x *= np.sqrt(n) / np.linalg.norm(x)
    w1, w2 = (1.2 * rng.normal(size=(n, n)) / np.sqrt(n) for _ in range(2))
    out = rng.normal(size=n) / np.sqrt(n)
    m1, m2 = ((rng.random(n) < keep) / keep for keep in (0.7, 0.5))
    a = w1 @ x
    second = w2.T @ (m2 * out)
    first = second * m1 * (1 - np.tanh(a) ** 2)
    return {"b": m2 @ (m2 * out**2), "a": first @ first, "x": np.sum((out + w1.T @ first) ** 2)}


def test_gradients_are_those_of_one_mask() -> None:
    steps: list[Any] = [
        ("x", L.Input()),
        ("a", L.Affine(sigma_w=1.2), "x"),
        ("f", L.Nonlinear("tanh"), "a"),
        ("d1", drop(0.3), "f"),
        ("b", L.Affine(sigma_w=1.2), "d1"),
        ("d2", drop(0.5), "b"),
        ("s", L.Sum(), "x d2"),
    ]
    found = kc.gradients(wired(*steps, ("out", L.Affine(), "s")))
    drawn = [backpropagated(seed) for seed in range(40)]
    for node in ("b", "a", "x"):
        values = np.array([one[node] for one in drawn])
        assert abs(values.mean() - found.nodes[node]) < 4 * values.std() / 40**0.5, node
    # shared weights take another route: a sum with the activation itself, whose cross terms count
    shared = wired(*steps[:4], ("s", L.Sum(), "x d1 f"), ("out", L.Affine(), "s"))
    phi = kc.activation("tanh")
    slope = float(kc.expectation(lambda z: (1 - np.tanh(z) ** 2) ** 2, q=1.44))
    own = float(phi.second_moment(1.44))
    found = kc.gradients(shared)
    ratio = 1 / 0.7 + 2 + 1  # E (m + 1)^2
    assert found.nodes["x"] == pytest.approx(1 + ratio * slope * 1.44)
    assert found.weights["out"] == pytest.approx(1 + ratio * own)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda net: kc.shape(net, method="dks"), "C\\(1\\) < 1"),
        (lambda net: kc.shape(net, method="eoc"), "C\\(1\\) < 1"),
        (lambda net: kc.slope_polynomial(net), "active"),
        (lambda net: kc.ntk(net).matrix(np.eye(3)), "masks differ"),
        (lambda net: kc.fluctuations(net, features=64), "active"),
        (lambda net: kc.moments(repeated("relu", 0.9, 1.0, 0.0, 1), features=64), "active"),
        (lambda net: kc.c_map(net, tokens=4), "active"),
        (lambda net: kc.c_map(net, spatial="exact", image_shape=(2, 2)).q_values(IMAGES), "active"),
        (
            lambda net: kc.c_map(kc.chain(L.Input(), L.Affine(), drop(), L.Nonlinear("relu"))),
            "dropout_1",
        ),
        (lambda net: kc.verify_kernels(kc.to_jax(net, features=16)), "tangent=False"),
        (lambda net: L.Dropout(0.1, active=1), "True or False"),
    ],
)
def test_refusals(call: Any, text: str) -> None:
    with pytest.raises(kc.KcalcError, match=text):
        call(repeated("tanh", 0.9, 1.0, 0.0, 2))


def test_drawn_networks_agree() -> None:
    net = repeated("relu", 0.8, 1.6**0.5, 0.0, 3)
    model = kc.to_jax(net, features=256)
    check = kc.verify_kernels(model, c=[0.3, 1.0], draws=10, tangent=False, gradients=False)
    assert check.passed, check
