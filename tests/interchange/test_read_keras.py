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


def test_sequential_and_other_layers():
    model = keras.Sequential(
        [
            keras.Input((12, 12, 4)),
            K.ZeroPadding2D(1),
            K.Conv2D(8, 3, activation="swish"),
            K.DepthwiseConv2D(3, padding="same"),
            K.GroupNormalization(2),
            K.LeakyReLU(0.2),
            K.AveragePooling2D(2),
            K.Flatten(),
            K.Dense(6),
        ]
    )
    r = read(model, sigmas=False)
    leaky = r.network.layer(r.network.nodes_of(kl.Nonlinear)[1])
    assert np.allclose(leaky.activation(np.array([-1.0, 2.0])), [-0.2, 2])
    twin = kc.chain(
        kl.Input(4, (12, 12)),
        kl.Affine(8, 3),
        kl.Nonlinear("swish"),
        kl.Affine(8, 3, groups=8),
        kl.GroupNorm(2),
        leaky,
        kl.Pool("mean", 2),
        kl.Flatten(),
        kl.Affine(6),
    )
    assert r.network.isomorphic(twin), str(r)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_norm_by_the_standard_deviation_is_not_one_by_the_root_mean_square():
    model = keras.Sequential([keras.Input((4,)), K.LayerNormalization(rms_scaling=True)])
    assert [note.level for note in read(model).notes if "RMSNormalization" in note.text] == [
        "not read"
    ]


NAMES = """
    relu gelu silu elu celu selu softplus softsign tanh sigmoid mish hard_sigmoid leaky_relu
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_activations(name):
    r = read(keras.Sequential([keras.Input((3,)), K.Dense(4, activation=name)]), sigmas=False)
    phi = r.network.layer(r.network.nodes_of(kl.Nonlinear)[0]).activation
    grid = np.linspace(-4, 4, 33)
    truth = np.asarray(keras.activations.get(name)(jnp.asarray(grid)), float)
    assert np.allclose(phi(grid), truth, atol=2e-6)
    if name != "leaky_relu":  # its slope is 0.2 here
        assert phi == kc.activation(name)


def test_errors():
    open_size = keras.Sequential([keras.Input((None, None, 3)), K.Conv2D(4, 3)])
    with refused("not fixed"):
        read(open_size)
    found, told = (
        read(open_size, jnp.ones((1, 8, 8, 3))).network,
        read(open_size, (1, 8, 8, 3)).network,
    )
    assert len(found) == 2 and told == found
