"""Normalisation and dropout written out in plain JAX functions, and what only looks like them."""

import jax
import jax.numpy as jnp
import pytest
from test_read_jax import architecture, conv, hand, layers_of, normalised_by_hand

from kcalc.network import layers as kl


@pytest.mark.parametrize(
    ("norm", "layer"),
    [
        (lambda x: normalised_by_hand(x), kl.LayerNorm()),
        (lambda x: normalised_by_hand(x, axes=(0, 1, 2)), kl.BatchNorm()),
        (lambda x: normalised_by_hand(x, axes=(1, 2, 3)), kl.GroupNorm(1)),
        (
            lambda x: normalised_by_hand(x.reshape(2, 6, 6, 4, 2), axes=(1, 2, 4)).reshape(x.shape),
            kl.GroupNorm(4),
        ),
    ],
)
def test_normalisation_written_out(norm, layer):
    params = {
        "w": jax.random.normal(jax.random.key(0), (3, 3, 3, 8)),
        "g": jnp.ones(8),
        "b": jnp.zeros(8),
    }
    for gains in (False, True):
        if gains and layer == kl.GroupNorm(4):
            continue
        r = architecture(
            lambda p, x, gains=gains: jax.nn.relu(
                norm(conv(x, p["w"])) * (p["g"] if gains else 1) + (p["b"] if gains else 0)
            ),
            params,
            jnp.ones((2, 6, 6, 3)),
        )
        expected = hand(
            [
                ("x", kl.Input(3, (6, 6)), ()),
                ("w", kl.Affine(8, 3, bias=False), "x"),
                ("n", layer, "w"),
                ("f", kl.Nonlinear("relu"), "n"),
            ]
        )
        assert r.network.isomorphic(expected), (gains, str(r))


@pytest.mark.parametrize(
    "almost",
    [
        lambda x: x / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5),
        lambda x: (
            jax.nn.relu(x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        ),
        lambda x: (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(2, keepdims=True) + 1e-5),
    ],
)
def test_what_only_looks_like_normalisation_is_not_read_as_one(almost):
    r = architecture(
        lambda p, x: almost(conv(x, p["w"])), {"w": jnp.ones((3, 3, 3, 8))}, jnp.ones((2, 6, 6, 3))
    )
    assert not {"LayerNorm", "RMSNorm", "BatchNorm", "GroupNorm"} & set(layers_of(r))
    assert r.fidelity.level == "not read"


def test_gains_by_location_are_no_gains_of_channels():
    def function(p, x):
        return normalised_by_hand(x @ p["w"]) * p["g"]

    parameters = {"w": jnp.ones((3, 4)), "g": jnp.arange(4.0).reshape(4, 1)}
    r = architecture(function, parameters, jnp.ones((2, 4, 3)))
    assert "LayerNorm" in layers_of(r) and r.fidelity.level == "not read"


def test_random_numbers_that_are_no_dropout_are_reported():
    params, x = {"w": jnp.ones((9, 50))}, jnp.ones((20, 9))
    noise = architecture(
        lambda p, x: x @ p["w"] + jax.random.normal(jax.random.key(0), (20, 50)), params, x
    )
    assert noise.fidelity.level == "not read"
    wrong = architecture(
        lambda p, x: jnp.where(
            jax.random.bernoulli(jax.random.key(0), 0.5, (20, 50)), x @ p["w"] / 0.9, 0
        ),
        params,
        x,
    )
    assert wrong.fidelity.level == "not read"
