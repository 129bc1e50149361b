"""Gradients through BatchNorm over a large batch, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc import chain, gradients, large_batch, training_curve
from kcalc.network.layers import Affine, BatchNorm, Input, Nonlinear, Sum
from tests.wiring import wired

RATIO = math.pi / (math.pi - 1)


def normalised(depth, bias=0.0):
    layers = [Input()]
    for _ in range(depth):
        layers += [Affine(sigma_b=bias), BatchNorm(), Nonlinear("relu")]
    return chain(*layers, Affine())


def test_correlated_examples():
    found = gradients(large_batch(normalised(1), c=0.4))
    assert found.nodes["affine_1"] == pytest.approx(0.5 / 0.6, rel=1e-12)
    assert found.weights["affine_1"] == pytest.approx(0.5, rel=1e-12)


def test_batches_that_do_not_fit_are_refused():
    net = large_batch(normalised(3))
    wrong = net.map_layers(
        lambda node, layer: BatchNorm(batch_c=0.9 if node == "batchnorm_2" else layer.batch_c),
        BatchNorm,
    )
    with refused("'batchnorm_2'.*kc.large_batch"):
        gradients(wrong)
    with refused("kc.large_batch"):
        gradients(normalised(2))
    shared = wired(
        ("a", Affine()),
        ("n", BatchNorm()),
        ("p", Nonlinear("relu")),
        ("s", Sum(), "n p"),
        ("out", Affine()),
    )
    with refused("'s'.*without_normalization"):
        gradients(large_batch(shared))


def test_gradients_over_tokens_are_refused():
    """They would treat the other examples as fixed, and give the weights of plain networks."""
    net = large_batch(normalised(2, 0.7))
    with refused("'batchnorm_1'.*omit tokens"):
        gradients(net, tokens=4)
    assert gradients(net).weights["affine_2"] < gradients(net).nodes["affine_2"]


def drawn(signs, x):
    """|sum_i r_i d f_i / d W_1|^2 through the whole batch, for a normalised ReLU layer."""
    rng = np.random.default_rng(5)
    h = x @ rng.standard_normal((x.shape[1], 600)) / math.sqrt(x.shape[1])
    spread = h.std(axis=0)
    z = (h - h.mean(axis=0)) / spread
    g = (z > 0) * signs[:, None] * rng.choice([-1, 1], 600) / math.sqrt(600)
    g = (g - g.mean(axis=0) - z * (g * z).mean(axis=0)) / spread
    return float(np.sum(g.T @ x * (g.T @ x))) / x.shape[1]


def test_a_common_component_of_the_loss_is_refused():
    """Drawn networks follow the kernel where the examples' gradients have the mean 0."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((300, 1200))
    K = kc.ntk(large_batch(normalised(1)))
    matrix = K.layers["affine_1"].matrix(x)
    centred = rng.permutation(np.repeat([1.0, -1.0], 150))
    assert drawn(centred, x) == pytest.approx(centred @ matrix @ centred, rel=0.05)
    with refused(r"'batchnorm_1'.*mean of 1 .*y - y.mean\(axis=0\)"):
        training_curve(K, x[:20], np.ones(20))
    y = np.arange(20.0)
    for kernel, targets, start in ((K, y - 9.5, None), (K.nngp, y, None), (K, y, y[::-1])):
        first = 0 if start is None else start
        curve = training_curve(kernel, x[:20], targets, initial=start)
        assert curve.loss(0) == pytest.approx(np.sum((first - targets) ** 2) / 2)


def test_laws_of_depth_state_the_hypothesis():
    block = chain(Input(), Affine(), BatchNorm(), Nonlinear("relu"))
    found = kc.depth_laws(large_batch(block, c=1 / math.pi, q=0.5))
    assert found.gradient_mean == pytest.approx(RATIO, rel=1e-9)
    assert any("uncorrelated" in note.text for note in found.assumptions)
