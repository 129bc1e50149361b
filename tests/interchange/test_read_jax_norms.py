"""Normalisation and dropout written out in plain JAX functions, and what only looks like them."""

import jax
import jax.numpy as jnp
import pytest
from test_read_jax_primitives import conv, normalised_by_hand

import kcalc as kc
from kcalc.network import layers as kl


@pytest.mark.parametrize(
    ("norm", "layer"),
    [
        (normalised_by_hand, kl.LayerNorm()),
        (lambda x: normalised_by_hand(x, axes=(0, 1, 2)), kl.BatchNorm()),
        (lambda x: normalised_by_hand(x, axes=(1, 2, 3)), kl.GroupNorm(1)),
        (
            lambda x: normalised_by_hand(x.reshape(2, 6, 6, 4, 2), axes=(1, 2, 4)).reshape(x.shape),
            kl.GroupNorm(4),
        ),
    ],
)
def test_normalisation_written_out(norm, layer):
    params = {"w": jnp.ones((3, 3, 3, 8)), "g": jnp.ones(8), "b": jnp.zeros(8)}

    def plain(p, x):
        return jax.nn.relu(norm(conv(x, p["w"])))

    def scaled(p, x):
        return jax.nn.relu(norm(conv(x, p["w"])) * p["g"] + p["b"])

    affine, relu = kl.Affine(8, 3, bias=False), kl.Nonlinear("relu")
    expected = kc.chain(kl.Input(3, (6, 6)), affine, layer, relu)
    for function in (plain,) if layer == kl.GroupNorm(4) else (plain, scaled):
        r = kc.read(function, params, jnp.ones((2, 6, 6, 3)), sigmas=False)
        assert r.network.isomorphic(expected), str(r)


def spread(x, axis=-1):
    return jnp.sqrt(x.var(axis, keepdims=True) + 1e-5)


@pytest.mark.parametrize(
    "almost",
    [
        lambda x: x / spread(x),
        lambda x: jax.nn.relu(x - x.mean(-1, keepdims=True)) / spread(x),
        lambda x: (x - x.mean(1, keepdims=True)) / spread(x, 2),
    ],
)
def test_what_only_looks_like_normalisation_is_not_read_as_one(almost):
    r = kc.read(
        lambda p, x: almost(conv(x, p["w"])), {"w": jnp.ones((3, 3, 3, 8))}, jnp.ones((2, 6, 6, 3))
    )
    assert not r.network.nodes_of(kl.LayerNorm, kl.RMSNorm, kl.BatchNorm, kl.GroupNorm)
    assert r.fidelity.level == "not read"


def test_gains_by_location_are_no_gains_of_channels():
    def function(p, x):
        return normalised_by_hand(x @ p["w"]) * p["g"]

    parameters = {"w": jnp.ones((3, 4)), "g": jnp.arange(4.0).reshape(4, 1)}
    r = kc.read(function, parameters, jnp.ones((2, 4, 3)))
    assert r.network.nodes_of(kl.LayerNorm) and r.fidelity.level == "not read"


def test_random_numbers_that_are_no_dropout_are_reported():
    params, x = {"w": jnp.ones((9, 50))}, jnp.ones((20, 9))
    shape, key = (20, 50), jax.random.key(0)
    for function in (
        lambda p, x: x @ p["w"] + jax.random.normal(key, shape),
        lambda p, x: jnp.where(jax.random.bernoulli(key, 0.5, shape), x @ p["w"] / 0.9, 0),
        lambda p, x: jnp.where(jax.random.bernoulli(key, 0.5, shape), x @ p["w"], 1),
        lambda p, x: x @ p["w"] * jax.random.normal(key, shape),
        lambda p, x: x @ p["w"] * (1 + abs(jax.random.normal(key))),
    ):
        assert kc.read(function, params, x).fidelity.level == "not read"


@pytest.mark.parametrize(
    "drop",
    [
        lambda h, kept: h * kept / 0.5,
        lambda h, kept: h * (kept / 0.5),
        lambda h, kept: jnp.where(kept[:, :1], h / 0.5, 0),
    ],
    ids=["rescaled after", "rescaled mask", "of examples"],
)
def test_random_masks_that_are_rescaled_are_dropout(drop):
    key, params = jax.random.key(6), {"w": jnp.ones((9, 50)), "o": jnp.ones((50, 2))}

    def function(p, x):
        return drop(x @ p["w"], jax.random.bernoulli(key, 0.5, (20, 50))) @ p["o"]

    net = kc.read(function, params, jnp.ones((20, 9))).network
    assert [net.layer(node).rate for node in net.nodes_of(kl.Dropout)] == [0.5]
