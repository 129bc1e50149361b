"""Stops of gradients, slopes of their own and weights that are not trained.

The truth is written by hand from Gaussian expectations, or it is autograd on wide models that are
drawn many times.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
import sympy as sp
from refusals import refused
from wiring import wired

import kcalc as kc

L = kc.layers
X = sp.Symbol("x", real=True)
C = 0.4
WINDOW = sp.Piecewise((1, sp.Abs(X) < 1), (0, True))


def chain(*layers: Any) -> kc.Network:
    names = ["x", *(f"n{i}" for i in range(1, len(layers) + 1))]
    return wired(*((n, layer, p) for p, n, layer in zip(names, names[1:], layers, strict=False)))


def test_over_locations_as_at_one_location() -> None:
    """Images of one pixel have the kernels of vectors."""
    net = wired(
        ("a", L.Affine(sigma_w=1.4, sigma_b=0.3, trained="biases"), "x"),
        ("s", L.SurrogateGradient("sign", WINDOW), "a"),
        ("b", L.Affine(sigma_w=1.1), "s"),
        ("t", L.Nonlinear("tanh"), "b"),
        ("d", L.StopGradient(), "t"),
        ("u", L.Sum(), "b d"),
        ("o", L.Affine(trained=False), "u"),
    )
    images = np.random.default_rng(3).normal(size=(2, 1, 1, 6))
    images /= np.sqrt((images**2).mean(axis=-1, keepdims=True))
    cosine = float((images[0] * images[1]).mean())
    table = kc.ntk(net, spatial="exact", image_shape=(1, 1)).matrix(images)
    assert float(table[0, 1]) == pytest.approx(kc.ntk(net)(cosine), rel=1e-10)


@pytest.mark.parametrize("trained", [True, False, "weights", "biases", "indirectly"])
def test_gradients_pass_frozen_weights_where_addends_share_some(trained: Any) -> None:
    """``u + relu(u)`` has cross terms, for which gradients come from the tangent calculus."""
    net = wired(
        ("a", L.Affine(sigma_w=1.4, sigma_b=0.5, trained=trained), "x"),
        ("r", L.Nonlinear("relu"), "a"),
        ("u", L.Sum(), "a r"),
        ("o", L.Affine(sigma_w=1.2), "u"),
    )
    found = kc.gradients(net)
    assert found.nodes["a"] == pytest.approx(1.44 * (4 + 1) / 2, rel=1e-12)
    share = {True: 2.21, False: 0, "weights": 1.96, "biases": 0.25}
    if trained == "indirectly":
        assert "a" not in found.weights
    else:
        assert found.weights["a"] == pytest.approx(share[trained] * 1.44 * 2.5, rel=1e-12)


def test_no_limit_is_predicted_of_frozen_weights() -> None:
    layers = [L.Affine(sigma_w=2**0.5, trained="biases"), L.Nonlinear("relu")]
    shown = str(kc.ntk(chain(*layers, *layers, *layers, L.Affine())).regime())
    assert shown.count("not trained") == 2


def test_a_network_without_trained_weights() -> None:
    net = chain(L.Affine(trained=False), L.Nonlinear("relu"), L.Affine(trained=False))
    with refused("trained=True"):
        kc.ntk(net)
    assert kc.gradients(net).weights == {"n1": 0, "n3": 0}


def test_a_function_that_jumps_is_fine_where_no_gradient_passes() -> None:
    net = chain(L.Affine(trained=False), L.Nonlinear("sign"), L.Affine())
    assert kc.ntk(net)(C) == pytest.approx(2 / math.pi * math.asin(C), rel=1e-12)
    before = kc.gradients(chain(L.Affine(), L.Nonlinear("sign"), L.StopGradient(), L.Affine()))
    assert before.weights == {"n1": 0, "n4": 1}
    through = wired(
        ("a", L.Affine(sigma_w=1.5), "x"),
        ("t", L.Nonlinear("sign"), "a"),
        ("d", L.Sum((1, -1)), "t a"),
        ("s", L.StopGradient(), "d"),
        ("u", L.Sum(), "a s"),
        ("o", L.Affine(), "u"),
    )
    truth = 2 / math.pi * math.asin(C) + 2.25 * C
    assert kc.ntk(through)(C) == pytest.approx(truth, rel=1e-12)
    assert kc.gradients(through).weights["a"] == pytest.approx(2.25, rel=1e-12)
    assert before.chi == {"n2": math.inf}
    with refused(r"(?s)(?=.*'n2')(?=.*jumps)"):
        kc.ntk(chain(L.Affine(), L.Nonlinear("sign"), L.Affine()))


def test_frozen_tables() -> None:
    net = wired(
        ("e", L.Embedding(trained=False), "x"),
        ("p", L.Positions(sigma=0.5, trained=False), "e"),
        ("t", L.ClassToken(trained=False), "p"),
        *((n, L.Affine(), "t") for n in "qkv"),
        ("att", L.Attend(heads=2), "q k v"),
        ("o", L.Affine(), "att"),
    )
    found = kc.gradients(net, tokens=4)
    assert [found.weights[n] for n in "ept"] == [0, 0, 0]
    assert all(found.weights[n] > 0 for n in "qkvo")


def test_arrays_have_these_gradients() -> None:
    net = wired(
        ("a", L.Affine(8, trained="biases"), "x"),
        ("s", L.SurrogateGradient("sign", WINDOW), "a"),
        ("b", L.Affine(8), "s"),
        ("d", L.StopGradient(), "b"),
        ("o", L.Affine(3, trained="weights"), "d"),
        ("w", L.Affine(3), "s"),
        ("u", L.Sum(), "o w"),
        features=4,
    )
    model = kc.to_jax(net)
    x = np.random.default_rng(0).normal(size=(5, 4))
    params = model.init(jax.random.key(0), x)
    found = jax.grad(lambda p: model.apply(p, x).sum())(params)
    sizes = {(n, k): bool(np.any(a)) for n, held in found.items() for k, a in held.items()}
    assert {pair for pair, moved in sizes.items() if not moved} == {
        ("a", "weight"),
        ("b", "weight"),
        ("b", "bias"),
        ("o", "bias"),
    }
    unknown = kc.to_jax(chain(L.Affine(3), L.StopGradient("the function f"), L.Affine(2)))
    params = unknown.init(jax.random.key(0), x)
    assert unknown.apply(params, x).shape == (5, 2)
    with refused(r"(?s)(?=.*'n2')(?=.*the\ function\ f)"):
        jax.grad(lambda p: unknown.apply(p, x).sum())(params)


def test_other_calculi_and_faces() -> None:
    net = chain(
        L.Affine(8, bias=False), L.Nonlinear("relu"), L.StopGradient(), L.Affine(4, bias=False)
    )
    moments = kc.moments(net, features=8)
    layers = [L.Affine(8, bias=False), L.Nonlinear("relu"), L.Affine(4, bias=False)]
    plain = kc.moments(chain(*layers), features=8)
    assert moments.nodes["n4"].mean == plain.nodes["n3"].mean
    with refused(r"(?s)(?=.*'n3')(?=.*kc\.gradients)"):
        _ = moments.weights
    with refused(r"(?s)(?=.*'n3')(?=.*StopGradient)"):
        kc.scaling(net, features=8)
    assert kc.q_map(chain(L.Affine(), L.StopGradient(), L.Affine(), L.Nonlinear("relu")))(1) == 0.5
