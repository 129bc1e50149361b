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
from kcalc import gradients, ntk, to_jax
from kcalc.network.layers import (
    Affine,
    Attend,
    ClassToken,
    Embedding,
    Nonlinear,
    Positions,
    StopGradient,
    Sum,
    SurrogateGradient,
)

X = sp.Symbol("x", real=True)
C = 0.4
WINDOW = sp.Piecewise((1, sp.Abs(X) < 1), (0, True))


def chain(*layers: Any) -> kc.Network:
    return wired(*((f"n{i}", layer) for i, layer in enumerate(layers, 1)))


def test_over_locations_as_at_one_location() -> None:
    """Images of one pixel have the kernels of vectors."""
    net = wired(
        ("a", Affine(sigma_w=1.4, sigma_b=0.3, trained="biases")),
        ("s", SurrogateGradient("sign", WINDOW)),
        ("b", Affine(sigma_w=1.1)),
        ("t", Nonlinear("tanh")),
        ("d", StopGradient()),
        ("u", Sum(), "b d"),
        ("o", Affine(trained=False)),
    )
    images = np.random.default_rng(3).normal(size=(2, 1, 1, 6))
    images /= np.sqrt((images**2).mean(axis=-1, keepdims=True))
    cosine = float((images[0] * images[1]).mean())
    table = ntk(net, spatial="exact", image_shape=(1, 1)).matrix(images)
    assert float(table[0, 1]) == pytest.approx(ntk(net)(cosine), rel=1e-10)


@pytest.mark.parametrize(
    ("trained", "share"), [("weights", 1.96), ("biases", 0.25), ("indirectly", None)]
)
def test_gradients_pass_frozen_weights_where_addends_share_some(trained: Any, share: Any) -> None:
    """``u + relu(u)`` has cross terms, for which gradients come from the tangent calculus."""
    net = wired(
        ("a", Affine(sigma_w=1.4, sigma_b=0.5, trained=trained)),
        ("r", Nonlinear("relu")),
        ("u", Sum(), "a r"),
        ("o", Affine(sigma_w=1.2)),
    )
    found = gradients(net)
    assert found.nodes["a"] == pytest.approx(1.44 * (4 + 1) / 2, rel=1e-12)
    assert found.weights.get("a") == (share and pytest.approx(share * 1.44 * 2.5, rel=1e-12))


def test_no_limit_is_predicted_of_frozen_weights() -> None:
    layers = [Affine(sigma_w=2**0.5, trained="biases"), Nonlinear("relu")]
    shown = str(ntk(chain(*layers, *layers, *layers, Affine())).regime())
    assert shown.count("not trained") == 2


def test_a_network_without_trained_weights() -> None:
    net = chain(Affine(trained=False), Nonlinear("relu"), Affine(trained=False))
    with refused("trained=True"):
        ntk(net)
    assert gradients(net).weights == {"n1": 0, "n3": 0}


def test_a_function_that_jumps_is_fine_where_no_gradient_passes() -> None:
    net = chain(Affine(trained=False), Nonlinear("sign"), Affine())
    assert ntk(net)(C) == pytest.approx(2 / math.pi * math.asin(C), rel=1e-12)
    before = gradients(chain(Affine(), Nonlinear("sign"), StopGradient(), Affine()))
    assert before.weights == {"n1": 0, "n4": 1}
    through = wired(
        ("a", Affine(sigma_w=1.5)),
        ("t", Nonlinear("sign")),
        ("d", Sum((1, -1)), "t a"),
        ("s", StopGradient()),
        ("u", Sum(), "a s"),
        ("o", Affine()),
    )
    truth = 2 / math.pi * math.asin(C) + 2.25 * C
    assert ntk(through)(C) == pytest.approx(truth, rel=1e-12)
    assert gradients(through).weights["a"] == pytest.approx(2.25, rel=1e-12)
    assert before.chi == {"n2": math.inf}
    with refused(r"(?s)(?=.*'n2')(?=.*jumps)"):
        ntk(chain(Affine(), Nonlinear("sign"), Affine()))


def test_frozen_tables() -> None:
    net = wired(
        ("e", Embedding(trained=False)),
        ("p", Positions(sigma=0.5, trained=False)),
        ("t", ClassToken(trained=False)),
        *((n, Affine(), "t") for n in "qkv"),
        ("att", Attend(heads=2), "q k v"),
        ("o", Affine()),
    )
    found = gradients(net, tokens=4)
    assert [found.weights[n] for n in "ept"] == [0, 0, 0]
    assert all(found.weights[n] > 0 for n in "qkvo")


def test_arrays_have_these_gradients() -> None:
    net = wired(
        ("a", Affine(8, trained="biases")),
        ("s", SurrogateGradient("sign", WINDOW)),
        ("b", Affine(8)),
        ("d", StopGradient()),
        ("o", Affine(3, trained="weights")),
        ("w", Affine(3), "s"),
        ("u", Sum(), "o w"),
        features=4,
    )
    model = to_jax(net)
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
    unknown = to_jax(chain(Affine(3), StopGradient("the function f"), Affine(2)))
    params = unknown.init(jax.random.key(0), x)
    assert unknown.apply(params, x).shape == (5, 2)
    with refused(r"(?s)(?=.*'n2')(?=.*the\ function\ f)"):
        jax.grad(lambda p: unknown.apply(p, x).sum())(params)


def test_other_calculi_and_faces() -> None:
    net = chain(Affine(8, bias=False), Nonlinear("relu"), StopGradient(), Affine(4, bias=False))
    moments = kc.moments(net, features=8)
    layers = [Affine(8, bias=False), Nonlinear("relu"), Affine(4, bias=False)]
    plain = kc.moments(chain(*layers), features=8)
    assert moments.nodes["n4"].mean == plain.nodes["n3"].mean
    with refused(r"(?s)(?=.*'n3')(?=.*kc\.gradients)"):
        _ = moments.weights
    with refused(r"(?s)(?=.*'n3')(?=.*StopGradient)"):
        kc.scaling(net, features=8)
    assert kc.q_map(chain(Affine(), StopGradient(), Affine(), Nonlinear("relu")))(1) == 0.5
