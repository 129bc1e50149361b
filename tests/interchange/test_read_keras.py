"""Keras 3 models on the JAX backend read as networks."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.interchange.read import read
from kcalc.network import layers as kl

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="Keras runs on another backend in this process"
)
K = keras.layers


def hand(steps, outputs=None):
    return kc.Network.from_steps(
        [(n, layer, tuple(p)) for n, layer, p in steps], outputs or [steps[-1][0]]
    )


def test_sequential_and_other_layers():
    model = keras.Sequential(
        [
            keras.Input((12, 12, 4)),
            K.ZeroPadding2D(1),
            K.Conv2D(8, 3, activation="swish", name="a"),
            K.DepthwiseConv2D(3, padding="same", name="b"),
            K.GroupNormalization(2, name="n"),
            K.LeakyReLU(0.2, name="f"),
            K.AveragePooling2D(2, name="p"),
            K.Flatten(name="flat"),
            K.Dense(6, name="c"),
        ]
    )
    r = read(model, sigmas=False)
    leaky = r.network.layer(r.network.nodes_of(kl.Nonlinear)[1])
    assert np.allclose(leaky.activation(np.array([-1.0, 2.0])), [-0.2, 2])
    assert r.network.isomorphic(
        hand(
            [
                ("x", kl.Input(4, (12, 12)), ()),
                ("a", kl.Affine(8, 3), "x"),
                ("s", kl.Nonlinear("swish"), "a"),
                ("b", kl.Affine(8, 3, groups=8), "s"),
                ("n", kl.GroupNorm(2), "b"),
                ("f", leaky, "n"),
                ("p", kl.Pool("mean", 2), "f"),
                ("l", kl.Flatten(), "p"),
                ("c", kl.Affine(6), "l"),
            ]
        )
    ), str(r)


@pytest.mark.parametrize(
    "name",
    [
        "relu",
        "gelu",
        "silu",
        "elu",
        "celu",
        "selu",
        "softplus",
        "softsign",
        "tanh",
        "sigmoid",
        "mish",
        "hard_sigmoid",
        "leaky_relu",
    ],
)
def test_activations(name):
    r = read(keras.Sequential([keras.Input((3,)), K.Dense(4, activation=name)]), sigmas=False)
    phi = r.network.layer(r.network.nodes_of(kl.Nonlinear)[0]).activation
    grid = np.linspace(-4, 4, 33)
    assert np.allclose(
        phi(grid), np.asarray(keras.activations.get(name)(jnp.asarray(grid)), float), atol=2e-6
    )
    if name != "leaky_relu":  # its slope is 0.2 here
        assert phi == kc.activation(name)


def test_errors():
    open_size = keras.Sequential([keras.Input((None, None, 3)), K.Conv2D(4, 3)])
    with refused("not fixed"):
        read(open_size)
    assert len(read(open_size, jnp.ones((1, 8, 8, 3))).network) == 2
    assert read(open_size, (1, 8, 8, 3)).network == read(open_size, jnp.ones((1, 8, 8, 3))).network
