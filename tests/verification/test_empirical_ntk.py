"""The empirical tangent kernel against formulas written out and against difference quotients."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from refusals import refused

import kcalc as kc

L = kc.layers
RNG = np.random.default_rng(7)


def two_layers(parameterization: str, outputs: int = 3) -> tuple[kc.Model, Any, np.ndarray]:
    """tanh network 5 -> 7 -> outputs in double precision, its parameters, and four inputs."""
    net = kc.chain(
        L.Input(),
        L.Affine(7, sigma_w=1.5, sigma_b=0.4),
        L.Nonlinear("tanh"),
        L.Affine(outputs, sigma_w=0.8, sigma_b=0.2),
    )
    model = kc.to_jax(net, parameterization=parameterization, weights="gaussian", dtype="float64")
    x = RNG.standard_normal((4, 5))
    return model, model.init(1, x), x


def written_out(
    params: dict[str, Any], x: np.ndarray, y: np.ndarray, factors: list[tuple[float, float]]
) -> dict[str, np.ndarray]:
    """{layer: (n1, n2, k, k)} of a network with one hidden layer.

    ``factors`` stand before (weights, biases) of the layers.
    """
    (first, second), ((w1, b1), (w2, b2)) = params.items(), factors
    u1, v1, u2 = (
        np.asarray(a) for a in (first[1]["weight"], first[1]["bias"], second[1]["weight"])
    )
    z1, z2 = (w1 * a @ u1 + b1 * v1 for a in (x, y))
    h1, h2 = np.tanh(z1), np.tanh(z2)
    out = u2.shape[1]
    last = (w2**2 * h1 @ h2.T + b2**2)[:, :, None, None] * np.eye(out)
    back1, back2 = (w2 * u2.T[None] * (1 - h**2)[:, None] for h in (h1, h2))
    hidden = np.einsum("akh,blh->abkl", back1, back2) * (w1**2 * x @ y.T + b1**2)[:, :, None, None]
    return {first[0]: hidden, second[0]: last}


@pytest.mark.parametrize("parameterization", ["ntk", "standard"])
def test_two_layers_written_out(parameterization: str):
    model, params, x = two_layers(parameterization)
    y = RNG.standard_normal((3, 5))
    factors = (
        [(1.5 / 5**0.5, 0.4), (0.8 / 7**0.5, 0.2)]
        if parameterization == "ntk"
        else [(1.0, 1.0)] * 2
    )
    expected = written_out(params, x, y, factors)
    found = kc.empirical_ntk(model, params, x, y, outputs="full", by_layer=True)
    assert set(found) == set(expected)
    for node, values in expected.items():
        assert np.allclose(found[node], values, rtol=1e-12, atol=1e-13), node
    whole = sum(expected.values())
    assert np.allclose(kc.empirical_ntk(model, params, x, y, outputs="full"), whole, rtol=1e-12)
    assert np.allclose(
        kc.empirical_ntk(model, params, x, y), np.einsum("abkk->ab", whole) / 3, rtol=1e-12
    )


@pytest.mark.parametrize("memory", [1, 2 * 8 * 66 * 5])
def test_blocks_do_not_change_it(memory: int):
    """One entry of one input at a time, and blocks in between; halves mirrored."""
    model, params, x = two_layers("ntk")
    whole = kc.empirical_ntk(model, params, x, x, outputs="full")
    assert np.allclose(
        kc.empirical_ntk(model, params, x, outputs="full", memory=memory), whole, rtol=1e-12
    )
    assert np.allclose(
        kc.empirical_ntk(model, params, x, memory=memory),
        np.einsum("abkk->ab", whole) / 3,
        rtol=1e-12,
    )


def test_images_against_difference_quotients():
    """Every parameter of a convolutional network moved by hand.

    Windows, strides, pooling, biases, several locations of output.
    """
    net = kc.chain(
        L.Input(2, (4, 3)),
        L.Affine(3, kernel=3, sigma_b=0.5),
        L.Nonlinear("softplus"),
        L.Affine(3, kernel=3, stride=2),
        L.LayerNorm(),
    )
    model = kc.to_jax(net, weights="gaussian", dtype="float64")
    x = RNG.standard_normal((2, 4, 3, 2))
    params = model.init(0, x)
    with jax.enable_x64(True):
        leaves, tree = jax.tree.flatten(params)
        rows = []
        for i, leaf in enumerate(leaves):
            for j in range(leaf.size):
                step = np.zeros(leaf.size)
                step[j] = 1e-5
                ends = []
                for sign in (1, -1):
                    moved = [*leaves[:i], leaf + sign * step.reshape(leaf.shape), *leaves[i + 1 :]]
                    ends.append(
                        np.asarray(model.apply(jax.tree.unflatten(tree, moved), x)).reshape(2, -1)
                    )
                rows.append((ends[0] - ends[1]) / 2e-5)
    slopes = np.stack(rows)
    full = np.einsum("pak,pbl->abkl", slopes, slopes)
    found = kc.empirical_ntk(model, params, x, outputs="full")
    assert found.shape == (2, 2, 12, 12)
    assert np.allclose(found, full, atol=1e-7 * np.abs(full).max())


def test_rolled_blocks_are_the_same_layer_by_layer():
    net = kc.shape(kc.architectures.vanilla(4), "tanh", method="dks").network
    x = RNG.standard_normal((3, 8))
    rolled, plain = (kc.to_jax(net, 8, dtype="float64", rolled=r) for r in (True, False))
    params = rolled.init(0)
    assert any(block.count > 2 for block in rolled.plan(x).blocks)
    own = {str(node): leaves for node, leaves in rolled.unstack(params).items()}
    one, two = (
        kc.empirical_ntk(m, p, x, by_layer=True) for m, p in ((rolled, params), (plain, own))
    )
    assert list(one) == list(two)
    assert all(np.allclose(one[node], two[node], rtol=1e-12) for node in two)


def test_bad_input():
    model, params, x = two_layers("ntk")
    for arguments, message in (
        ({"outputs": "all"}, "unknown way to put the outputs"),
        ({"output": "affine_9"}, "unknown output"),
        ({"x2": x[0]}, "x2 must be a batch"),
        ({"x2": x[:, :4]}, "5"),
        ({"x2": x[:0]}, "at least one"),
    ):
        with refused(message):
            kc.empirical_ntk(model, params, x, **arguments)
    with refused("expected a model"):
        kc.empirical_ntk(params, model, x)  # pyright: ignore
    normed = kc.to_jax(kc.chain(L.Input(), L.Affine(4), L.BatchNorm()), 4)
    with refused("BatchNorm"):
        kc.empirical_ntk(normed, normed.init(0), np.ones((2, 4)))
