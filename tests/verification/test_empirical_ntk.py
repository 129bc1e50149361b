"""The empirical tangent kernel against formulas written out and against difference quotients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc

L = kc.layers
RNG = np.random.default_rng(7)


def two_layers() -> tuple[kc.Model, Any, np.ndarray]:
    """tanh network 5 -> 7 -> 3 in double precision, its parameters, and four inputs."""
    net = kc.chain(
        L.Input(),
        L.Affine(7, sigma_w=1.5, sigma_b=0.4),
        L.Nonlinear("tanh"),
        L.Affine(3, sigma_w=0.8, sigma_b=0.2),
    )
    model = kc.to_jax(net, parameterization="ntk", weights="gaussian", dtype="float64")
    x = RNG.standard_normal((4, 5))
    return model, model.init(1, x), x


@pytest.mark.parametrize("memory", [1, 2 * 8 * 66 * 5])
def test_blocks_do_not_change_it(memory: int):
    """One entry of one input at a time, and blocks in between; halves mirrored."""
    model, params, x = two_layers()
    whole = kc.empirical_ntk(model, params, x, x, outputs="full")
    assert np.allclose(
        kc.empirical_ntk(model, params, x, outputs="full", memory=memory), whole, rtol=1e-12
    )
    assert np.allclose(
        kc.empirical_ntk(model, params, x, memory=memory),
        np.einsum("abkk->ab", whole) / 3,
        rtol=1e-12,
    )


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
    model, params, x = two_layers()
    for arguments, message in (
        ({"outputs": "all"}, "unknown arrangement of the outputs"),
        ({"output": "affine_9"}, "unknown output"),
        ({"x2": x[0]}, "x2 must be a batch"),
        ({"x2": x[:, :4]}, "5"),
        ({"x2": x[:0]}, "at least one"),
    ):
        with refused(message):
            kc.empirical_ntk(model, params, x, **arguments)
    bare = kc.to_jax(kc.chain(L.Input(4), L.Nonlinear("tanh")), 4)
    with refused("no parameters between its inputs and its output"):
        kc.empirical_ntk(bare, bare.init(0), np.ones((2, 4)))
    with refused("expected a model"):
        kc.empirical_ntk(params, model, x)  # pyright: ignore
    normed = kc.to_jax(kc.chain(L.Input(), L.Affine(4), L.BatchNorm()), 4)
    with refused("BatchNorm"):
        kc.empirical_ntk(normed, normed.init(0), np.ones((2, 4)))
