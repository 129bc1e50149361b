"""Gradients through BatchNorm over a large batch: closed forms, and Monte Carlo."""

from __future__ import annotations

import math

import numpy as np
import pytest

import kcalc as kc
from tests.wiring import wired

L = kc.layers
RATIO = math.pi / (math.pi - 1)


def normalised(depth, bias=0.0):
    layers = [L.Input()]
    for _ in range(depth):
        layers += [L.Affine(sigma_b=bias), L.BatchNorm(), L.Nonlinear("relu")]
    return kc.chain(*layers, L.Affine())


@pytest.mark.parametrize("bias", [0.0, 0.7])
def test_relu_layers_with_batch_norm_multiply_gradients_by_pi_over_pi_minus_1(bias):
    """1/2 for relu, over 1 - 1/pi times the q value 1/2 before the next norm."""
    found = kc.gradients(kc.large_batch(normalised(5, bias)))
    nodes = [found.nodes[f"affine_{k}"] for k in range(1, 7)]
    # the last affine reads relu's output: its own gradient is 1
    first = 0.5  # behind the last relu
    spread = [1.0] + [0.5 * (1 - 1 / math.pi)] * 4  # (1 - b) q of the norms' inputs
    factor = [1 / s for s in spread]
    expected = [1.0]
    for scale in reversed(factor):
        expected.append(expected[-1] * first * scale)
    assert nodes == pytest.approx(expected[::-1], rel=1e-12)
    assert nodes[1] / nodes[2] == pytest.approx(RATIO, rel=1e-12)
    # weights behind a norm see the differences of examples alone: no bias, q - K(b)
    for k in range(1, 6):
        share = spread[k - 1]
        assert found.weights[f"affine_{k}"] == pytest.approx(nodes[k - 1] * share, rel=1e-12)


@pytest.mark.parametrize("c", [0.0, 0.4])
def test_correlated_examples(c):
    found = kc.gradients(kc.large_batch(normalised(1), c=c))
    assert found.nodes["affine_1"] == pytest.approx(0.5 / (1 - c), rel=1e-12)
    assert found.weights["affine_1"] == pytest.approx(0.5, rel=1e-12)


def test_a_residual_network_with_batch_norm():
    """x + W relu(norm(x)): q grows by 1/2, the differences of examples by (1 - 1/pi) / 2."""
    steps, depth = [("s0", L.Affine(), "x")], 4
    for k in range(depth):
        steps += [
            (f"n{k}", L.BatchNorm(), f"s{k}"),
            (f"p{k}", L.Nonlinear("relu"), f"n{k}"),
            (f"b{k}", L.Affine(), f"p{k}"),
            (f"s{k + 1}", L.Sum(), f"s{k} b{k}"),
        ]
    found = kc.gradients(kc.large_batch(wired(*steps)))
    gradient, spread = 1.0, [1 + k * (1 - 1 / math.pi) / 2 for k in range(depth)]
    for k in reversed(range(depth)):
        gradient *= 1 + 0.5 / spread[k]
        assert found.nodes[f"s{k}"] == pytest.approx(gradient, rel=1e-12)


def test_batches_that_do_not_fit_are_refused():
    net = kc.large_batch(normalised(3))
    wrong = net.map_layers(
        lambda node, layer: L.BatchNorm(batch_c=0.9 if node == "batchnorm_2" else layer.batch_c),
        L.BatchNorm,
    )
    with pytest.raises(kc.KcalcError, match="'batchnorm_2'.*kc.large_batch"):
        kc.gradients(wrong)
    with pytest.raises(kc.KcalcError, match="kc.large_batch"):
        kc.gradients(normalised(2))
    shared = wired(
        ("a", L.Affine(), "x"),
        ("n", L.BatchNorm(), "a"),
        ("p", L.Nonlinear("relu"), "n"),
        ("s", L.Sum(), "n p"),
        ("out", L.Affine(), "s"),
    )
    with pytest.raises(kc.KcalcError, match="'s'.*without_normalization"):
        kc.gradients(kc.large_batch(shared))


@pytest.mark.slow
def test_monte_carlo_over_batches():
    torch = pytest.importorskip("torch")
    count, width, bias, c = 300, 300, 0.5, 0.3
    rows = []
    for seed in range(8):
        draw = torch.Generator().manual_seed(seed)

        def normal(*shape, draw=draw):
            return torch.randn(*shape, generator=draw, dtype=torch.float64)

        x = math.sqrt(c) * normal(1, width) + math.sqrt(1 - c) * normal(count, width)
        weights = [normal(width, width).requires_grad_() for _ in range(3)]
        shifts = [normal(width) for _ in range(2)]
        parts, h = [], x
        for w, b in zip(weights, shifts, strict=False):
            z = h @ w.T / math.sqrt(width) + bias * b
            parts.append(z)
            h = torch.relu((z - z.mean(0)) / z.std(0, unbiased=False))
        out = h @ weights[-1].T / math.sqrt(width)
        for k in range(6):
            found = torch.autograd.grad(out[k, 7 * k], [*parts, *weights], retain_graph=True)
            nodes = [float((g[k] ** 2).sum()) for g in found[:2]]
            rows.append([*nodes, *(float((g**2).sum()) for g in found[2:])])
    means = np.reshape(rows, (8, 6, 5)).mean(axis=1)
    error = means.std(axis=0) / math.sqrt(8)
    found = kc.gradients(kc.large_batch(normalised(2, bias), c=c))
    names = ["affine_1", "affine_2", "affine_3"]
    expected = [*(found.nodes[n] for n in names[:2]), *(found.weights[n] for n in names)]
    assert np.all(np.abs(means.mean(axis=0) - expected) < 4 * error + 0.02 * np.array(expected))
